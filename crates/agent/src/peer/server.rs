//! The server side: requests of other agents, and of poolers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::names::Names;
use http::request::Parts;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use listen::{Bounds, Port};
use machine::protocol::{
    FailsafeReply, FailsafeRequest, PoolerReply, PoolerRequest, PromiseReply, PromiseRequest, ReportReply,
    ReportRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Tls;
use super::message::{check_failsafe_request, check_pooler, check_report, check_request, read};
use super::signature::{Channel, HEADER, Signer, verify};

/// A peer's request. The event loop answers it within a second, or the peer gets an error.
#[derive(Debug)]
pub enum Request {
    /// `POST /v1/report`: a member reports to the primary.
    Report {
        /// The report.
        request: Box<ReportRequest>,
        /// The key with which the request is signed.
        key: Option<String>,
        /// The channel for the answer; `Err` says why the request is refused (409).
        reply: oneshot::Sender<Result<ReportReply, String>>,
    },
    /// `POST /v1/promise`: a candidate asks for a promise.
    Promise {
        /// The request.
        request: PromiseRequest,
        /// The key with which the request is signed.
        key: Option<String>,
        /// The channel for the answer; `Err` says why the request is refused (409).
        reply: oneshot::Sender<Result<PromiseReply, String>>,
    },
    /// `POST /v1/failsafe`: a holder that cannot renew its lease asks this member not to take it.
    Failsafe {
        /// The request.
        request: FailsafeRequest,
        /// The key with which the request is signed.
        key: Option<String>,
        /// The channel for the answer; `Err` says why the request is refused (409).
        reply: oneshot::Sender<Result<FailsafeReply, String>>,
    },
    /// `POST /v1/pooler`: a pooler's pod asks whether it is to pause.
    Pooler {
        /// The request.
        request: PoolerRequest,
        /// The channel for the answer; it is never refused.
        reply: oneshot::Sender<Result<PoolerReply, String>>,
    },
    /// `GET /v1/status`: the agent's own status, as it would report it.
    Status {
        /// The channel for the answer; `None`: it is not known yet (503).
        reply: oneshot::Sender<Option<ReportRequest>>,
    },
}

/// Time limit of a handshake, and of an answer.
pub(super) const LIMIT: Duration = Duration::from_secs(1);
/// The most bytes of a message; a report has one or two KiB.
pub(super) const LONGEST: usize = 16 * 1024;
/// Time limit of a connection: a third each for the handshake, the request and the answer.
const LIFE: Duration = Duration::from_secs(3);
/// Connections from members' addresses at a time. A candidate asks each member every 0.1 s and waits 0.4 s for an
/// answer, beside reports and requests of the holder: eight peers have some ten each at most.
const OF_MEMBERS: Bounds = Bounds {
    all: 96,
    each_source: 16,
};
/// Connections from all other addresses at a time: members whose pod has a new address that the Lease does not name
/// yet, and strangers.
const OF_OTHERS: Bounds = Bounds {
    all: 32,
    each_source: 8,
};

/// Addresses of the known members. Connections from these have places of their own.
pub type KnownMembers = watch::Receiver<BTreeSet<IpAddr>>;

/// Serves the agents of the database `names` on `listener` for ever, and signs the answers with `signer`. Calls
/// `dropped` for each connection that is dropped for a newer one.
pub async fn serve(
    listener: TcpListener,
    tls: Tls,
    signer: Signer,
    names: Names,
    members: KnownMembers,
    requests: mpsc::Sender<Request>,
    dropped: impl Fn() + Send + Sync + 'static,
) {
    let known = Arc::new(Known { tls, signer, names });
    Port::new(listener, OF_OTHERS, LIFE)
        .with_members(OF_MEMBERS, move |source| members.borrow().contains(&source))
        .counting_dropped(dropped)
        .serve(|stream| serve_connection(stream, Arc::clone(&known), requests.clone()))
        .await;
}

/// Who has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Agent,
    Pooler,
}

/// The one path for poolers.
pub(super) const POOLER: &str = "/v1/pooler";

/// What every connection needs.
struct Known {
    tls: Tls,
    signer: Signer,
    names: Names,
}

async fn serve_connection(stream: TcpStream, known: Arc<Known>, requests: mpsc::Sender<Request>) {
    let _ = stream.set_nodelay(true);
    let stream = match timeout(LIMIT, TlsAcceptor::from(known.tls.server()).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!("a peer's handshake failed: {error}"),
        Err(_) => return tracing::debug!("a peer's handshake took too long"),
    };
    let connection = stream.get_ref().1;
    let caller = match connection.peer_certificates() {
        certificates if known.tls.is_agent(certificates) => Caller::Agent,
        certificates if Tls::is_pooler(certificates) => Caller::Pooler,
        _ => return tracing::warn!("a peer presented a certificate that is neither an agent's nor a pooler's"),
    };
    let channel = match Channel::of(connection) {
        Ok(channel) => channel,
        Err(error) => return tracing::warn!("a peer's connection has no exported keying material: {error}"),
    };
    let (known, channel) = (&known, &channel);
    let service = service_fn(|request| {
        let requests = requests.clone();
        async move { Ok::<_, std::convert::Infallible>(answer(request, known, (caller, channel), requests).await) }
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
    known: &Known,
    (caller, channel): (Caller, &Channel),
    requests: mpsc::Sender<Request>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let routed = timeout(LIMIT, route(&head, body, known, (caller, channel), requests)).await;
    let late = || {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            b"the agent did not answer in time".to_vec(),
        )
    };
    let (status, body) = routed.unwrap_or_else(|_| late());
    let signature = (status == StatusCode::OK).then(|| channel.reply(head.uri.path(), &body));
    let signature = signature.and_then(|message| known.signer.sign(&message));
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .extend(signature.map(|signature| (HEADER, signature)));
    response
}

/// Status and body of an answer.
type Answer = (StatusCode, Vec<u8>);

async fn route(
    head: &Parts,
    body: Incoming,
    known: &Known,
    (caller, channel): (Caller, &Channel),
    requests: mpsc::Sender<Request>,
) -> Answer {
    let names = &known.names;
    let path = head.uri.path();
    if (caller == Caller::Pooler) != (path == POOLER) {
        return text(StatusCode::FORBIDDEN, "agents and poolers have questions of their own");
    }
    match (&head.method, path) {
        (&Method::POST, POOLER) => match message(head, body, channel).await.and_then(check_pooler) {
            Ok(request) => decided(requests, |reply| Request::Pooler { request, reply }).await,
            Err(reason) => text(StatusCode::BAD_REQUEST, &reason),
        },
        (&Method::POST, "/v1/report") => {
            let read = message(head, body, channel).await;
            match read.and_then(|(report, key)| Ok((check_report(report, names)?, key))) {
                Ok((request, key)) => {
                    let request = Box::new(request);
                    decided(requests, |reply| Request::Report { request, key, reply }).await
                }
                Err(reason) => text(StatusCode::BAD_REQUEST, &reason),
            }
        }
        (&Method::POST, "/v1/promise") => {
            let read = message(head, body, channel).await;
            match read.and_then(|(asked, key)| Ok((check_request(asked, names)?, key))) {
                Ok((request, key)) => decided(requests, |reply| Request::Promise { request, key, reply }).await,
                Err(reason) => text(StatusCode::BAD_REQUEST, &reason),
            }
        }
        (&Method::POST, "/v1/failsafe") => {
            let read = message(head, body, channel).await;
            match read.and_then(|(asked, key)| Ok((check_failsafe_request(asked, names)?, key))) {
                Ok((request, key)) => decided(requests, |reply| Request::Failsafe { request, key, reply }).await,
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
            "there are POST /v1/report, POST /v1/promise, POST /v1/failsafe, POST /v1/pooler and GET /v1/status",
        ),
    }
}

/// A message, and the key with which it is signed.
async fn message<T: DeserializeOwned>(
    head: &Parts,
    body: Incoming,
    channel: &Channel,
) -> Result<(T, Option<String>), String> {
    let body = Limited::new(body, LONGEST).collect().await;
    let body = body.map_err(|error| format!("the message cannot be read: {error}"))?;
    let body = body.to_bytes();
    let signed = channel.request(head.method.as_str(), head.uri.path(), &body);
    let key = verify(&head.headers, &signed)?;
    Ok((read(&body)?, key))
}

/// Sends a request to the event loop, and makes its answer a response.
async fn decided<T: Serialize>(
    requests: mpsc::Sender<Request>,
    request: impl FnOnce(oneshot::Sender<Result<T, String>>) -> Request,
) -> Answer {
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

fn ending() -> Answer {
    text(StatusCode::SERVICE_UNAVAILABLE, "this agent is ending")
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn text(status: StatusCode, reason: &str) -> Answer {
    (status, reason.as_bytes().to_vec())
}
