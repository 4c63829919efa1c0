//! The agent's end that is called.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::names::Names;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use listen::{Bounds, Port};
use machine::protocol::{FailsafeReply, FailsafeRequest, PromiseReply, PromiseRequest, ReportReply, ReportRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Tls;
use super::message::{check_failsafe_request, check_report, check_request, read};

/// What a peer asks; answered by the event loop within a second, or the peer gets an error.
#[derive(Debug)]
pub enum Request {
    /// `POST /v1/report`: a member reports to the primary.
    Report {
        /// What it says.
        request: Box<ReportRequest>,
        /// The answer; `Err`: why it is refused (409).
        reply: oneshot::Sender<Result<ReportReply, String>>,
    },
    /// `POST /v1/promise`: a candidate asks for a promise.
    Promise {
        /// What it asks.
        request: PromiseRequest,
        /// The answer; `Err`: why it is refused (409).
        reply: oneshot::Sender<Result<PromiseReply, String>>,
    },
    /// `POST /v1/failsafe`: a holder that cannot renew its lease asks this member not to take it.
    Failsafe {
        /// What it asks.
        request: FailsafeRequest,
        /// The answer; `Err`: why it is refused (409).
        reply: oneshot::Sender<Result<FailsafeReply, String>>,
    },
    /// `GET /v1/status`: how this agent sees itself (as it would report).
    Status {
        /// The answer; `None`: not known yet (503).
        reply: oneshot::Sender<Option<ReportRequest>>,
    },
}

/// Longest time for a handshake, and for an answer.
pub(super) const LIMIT: Duration = Duration::from_secs(1);
/// Longest message; a report has one or two KiB.
pub(super) const LONGEST: usize = 16 * 1024;
/// Longest life of a connection: handshake and answer, and a third of it for the request in between.
const LIFE: Duration = Duration::from_secs(3);
/// Connections from members' addresses at a time. A candidate asks each member every 0.1 s and waits 0.4 s for an answer,
/// beside reports and requests of the holder: eight peers have some ten each at most.
const OF_MEMBERS: Bounds = Bounds {
    all: 96,
    each_source: 16,
};
/// Connections from all other addresses at a time: members whose pod has a new address that no Lease names yet, and
/// whoever has no business here.
const OF_OTHERS: Bounds = Bounds {
    all: 32,
    each_source: 8,
};

/// Addresses of the members that are known; connections from there have places of their own.
pub type KnownMembers = watch::Receiver<BTreeSet<IpAddr>>;

/// Serves the agents of the database `names` on `listener` for ever. Calls `dropped` for each connection that is dropped
/// for a newer one.
pub async fn serve(
    listener: TcpListener,
    tls: Tls,
    names: Names,
    members: KnownMembers,
    requests: mpsc::Sender<Request>,
    dropped: impl Fn() + Send + Sync + 'static,
) {
    let names = Arc::new(names);
    Port::new(listener, OF_OTHERS, LIFE)
        .with_members(OF_MEMBERS, move |source| members.borrow().contains(&source))
        .counting_dropped(dropped)
        .serve(|stream| serve_connection(stream, tls.clone(), Arc::clone(&names), requests.clone()))
        .await;
}

async fn serve_connection(stream: TcpStream, tls: Tls, names: Arc<Names>, requests: mpsc::Sender<Request>) {
    let _ = stream.set_nodelay(true);
    let stream = match timeout(LIMIT, TlsAcceptor::from(tls.server()).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!("a peer's handshake failed: {error}"),
        Err(_) => return tracing::debug!("a peer's handshake took too long"),
    };
    if !tls.is_agent(stream.get_ref().1.peer_certificates()) {
        return tracing::warn!("a peer came with a certificate that is not an agent's");
    }
    let service = service_fn(|request| {
        let (names, requests) = (Arc::clone(&names), requests.clone());
        async move { Ok::<_, std::convert::Infallible>(answer(request, &names, requests).await) }
    });
    // A peer makes a connection for each call.
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("a peer's connection ended: {error}");
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    names: &Names,
    requests: mpsc::Sender<Request>,
) -> Response<Full<Bytes>> {
    match timeout(LIMIT, route(request, names, requests)).await {
        Ok(response) => response,
        Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the agent did not answer in time"),
    }
}

async fn route(
    request: hyper::Request<Incoming>,
    names: &Names,
    requests: mpsc::Sender<Request>,
) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/report") => match message(request).await.and_then(|report| check_report(report, names)) {
            Ok(request) => {
                let request = Box::new(request);
                decided(requests, |reply| Request::Report { request, reply }).await
            }
            Err(reason) => text(StatusCode::BAD_REQUEST, &reason),
        },
        (&Method::POST, "/v1/promise") => match message(request).await.and_then(|asked| check_request(asked, names)) {
            Ok(request) => decided(requests, |reply| Request::Promise { request, reply }).await,
            Err(reason) => text(StatusCode::BAD_REQUEST, &reason),
        },
        (&Method::POST, "/v1/failsafe") => {
            match message(request)
                .await
                .and_then(|asked| check_failsafe_request(asked, names))
            {
                Ok(request) => decided(requests, |reply| Request::Failsafe { request, reply }).await,
                Err(reason) => text(StatusCode::BAD_REQUEST, &reason),
            }
        }
        (&Method::GET, "/v1/status") => {
            let (reply, answer) = oneshot::channel();
            if requests.send(Request::Status { reply }).await.is_err() {
                return ending();
            }
            match answer.await {
                Ok(Some(status)) => json(&status),
                Ok(None) => text(StatusCode::SERVICE_UNAVAILABLE, "this agent does not know itself yet"),
                Err(_) => ending(),
            }
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "there are POST /v1/report, POST /v1/promise, POST /v1/failsafe and GET /v1/status",
        ),
    }
}

async fn message<T: DeserializeOwned>(request: hyper::Request<Incoming>) -> Result<T, String> {
    let body = Limited::new(request.into_body(), LONGEST).collect().await;
    let body = body.map_err(|error| format!("the message cannot be read: {error}"))?;
    read(&body.to_bytes())
}

/// What the event loop answers to a request.
async fn decided<T: Serialize>(
    requests: mpsc::Sender<Request>,
    request: impl FnOnce(oneshot::Sender<Result<T, String>>) -> Request,
) -> Response<Full<Bytes>> {
    let (reply, answer) = oneshot::channel();
    if requests.send(request(reply)).await.is_err() {
        return ending();
    }
    match answer.await {
        Ok(Ok(reply)) => json(&reply),
        Ok(Err(reason)) => text(StatusCode::CONFLICT, &reason),
        Err(_) => ending(),
    }
}

fn ending() -> Response<Full<Bytes>> {
    text(StatusCode::SERVICE_UNAVAILABLE, "this agent is ending")
}

fn json(value: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(body) => respond(StatusCode::OK, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn text(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    respond(status, reason.as_bytes().to_vec())
}

fn respond(status: StatusCode, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}
