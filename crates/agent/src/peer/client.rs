//! The client side: calls to other agents.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use machine::protocol::{
    FailsafeReply, FailsafeRequest, PoolerReply, PoolerRequest, PromiseReply, PromiseRequest, ReportReply,
    ReportRequest,
};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::message::{check_failsafe_reply, check_reply, read};
use super::server::{LIMIT, LONGEST, POOLER};
use super::signature::{Channel, HEADER, Signed, Signer, verify};
use super::{Resolver, Tls};

/// Time limit of a call for a promise of either kind. It costs three round trips (TCP, TLS, the message itself), and a
/// packet that is lost in TCP's handshake is sent again after a second.
const PROMISE: Duration = Duration::from_secs(2);
/// After this time without an answer from a member's recorded address, its name is looked up as well.
const HEAD_START: Duration = Duration::from_millis(100);

/// Stands for an unknown address: the pod is then found by its name alone.
pub const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Calls peers, with a connection for each call; clones are cheap.
#[derive(Clone, Debug)]
pub struct Client {
    tls: Tls,
    signer: Signer,
    resolver: Option<Resolver>,
}

/// Why a peer did not answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Nothing listens there: the connection was refused.
    #[error("{address} refuses connections")]
    NotListening {
        /// The peer.
        address: SocketAddr,
    },
    /// The peer did not answer in time.
    #[error("{address} did not answer within {milliseconds} ms")]
    Silent {
        /// The peer.
        address: SocketAddr,
        /// The time limit, in milliseconds.
        milliseconds: u128,
    },
    /// The peer's event loop did not answer, or does not know enough yet.
    #[error("{address} cannot answer: {reason}")]
    Unable {
        /// The peer.
        address: SocketAddr,
        /// The peer's message.
        reason: String,
    },
    /// The peer's answer is not understood.
    #[error("{address} answers what is not understood: {reason}")]
    Garbled {
        /// The peer.
        address: SocketAddr,
        /// What is wrong.
        reason: String,
    },
    /// The peer refused the request.
    #[error("{address} refuses: {reason}")]
    Refused {
        /// The peer.
        address: SocketAddr,
        /// The peer's message.
        reason: String,
    },
    /// Connection or TLS failed.
    #[error("call {address}: {reason}")]
    Failed {
        /// The peer.
        address: SocketAddr,
        /// What is wrong.
        reason: String,
    },
}

impl PeerError {
    /// True if the peer's event loop has answered, which proves that it lives.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Garbled { .. } => true,
            Self::NotListening { .. } | Self::Silent { .. } | Self::Unable { .. } | Self::Failed { .. } => false,
        }
    }
}

impl Client {
    /// The certificate with which it connects.
    pub const fn tls(&self) -> &Tls {
        &self.tls
    }

    /// A client with the cluster's certificate.
    pub fn new(tls: Tls) -> Self {
        Self {
            tls,
            signer: Signer::default(),
            resolver: None,
        }
    }

    /// The same client, which signs its messages.
    #[must_use]
    pub fn signed_by(self, signer: Signer) -> Self {
        Self { signer, ..self }
    }

    /// The same client, which also finds pods by their names.
    #[must_use]
    pub fn with_resolver(self, resolver: Resolver) -> Self {
        Self {
            resolver: Some(resolver),
            ..self
        }
    }

    /// Reports to the primary's agent.
    ///
    /// # Errors
    /// Fails with [`PeerError`], which says whether the peer was silent, refused the connection or the request, or gave
    /// an answer that is not understood.
    pub async fn report(&self, peer: SocketAddr, report: &ReportRequest) -> Result<Signed<ReportReply>, PeerError> {
        let body = serde_json::to_vec(report).map_err(|error| failed(peer, &error))?;
        self.call(peer, Method::POST, "/v1/report", body.into(), LIMIT).await
    }

    /// Asks the agent of `pod` for a promise, within [`PROMISE`]. If `address` fails or does not answer at once, the
    /// address that the pod's name has now is tried as well.
    ///
    /// # Errors
    /// Fails with [`PeerError`], which says whether the peer was silent, refused the connection or the request, or gave
    /// an answer that is not understood.
    pub async fn promise(
        &self,
        pod: &str,
        address: SocketAddr,
        request: &PromiseRequest,
    ) -> Result<Signed<PromiseReply>, PeerError> {
        let body = serde_json::to_vec(request).map_err(|error| failed(address, &error))?;
        self.ask(pod, address, "/v1/promise", body.into(), check_reply).await
    }

    /// Asks the agent of `pod` not to take the lease, as [`Self::promise`] asks.
    ///
    /// # Errors
    /// Fails with [`PeerError`], which says whether the peer was silent, refused the connection or the request, or gave
    /// an answer that is not understood.
    pub async fn failsafe(
        &self,
        pod: &str,
        address: SocketAddr,
        request: &FailsafeRequest,
    ) -> Result<Signed<FailsafeReply>, PeerError> {
        let body = serde_json::to_vec(request).map_err(|error| failed(address, &error))?;
        self.ask(pod, address, "/v1/failsafe", body.into(), check_failsafe_reply)
            .await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        pod: &str,
        address: SocketAddr,
        path: &str,
        body: Bytes,
        check: fn(T) -> Result<T, String>,
    ) -> Result<Signed<T>, PeerError> {
        let call = |address: SocketAddr, limit| {
            let body = body.clone();
            async move {
                if address.ip() == UNKNOWN {
                    return Err(PeerError::NotListening { address });
                }
                let Signed { message, key } = self.call(address, Method::POST, path, body, limit).await?;
                let message = check(message).map_err(|reason| PeerError::Garbled { address, reason })?;
                Ok(Signed { message, key })
            }
        };
        let Some(resolver) = &self.resolver else {
            return call(address, PROMISE).await;
        };
        let recorded = call(address, PROMISE);
        tokio::pin!(recorded);
        let first = match timeout(HEAD_START, &mut recorded).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) if error.is_answer() => return Err(error),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        // A name that is not found tells less than a call that failed.
        let named = async {
            let ip = resolver.address_of(pod).await.ok()?;
            match SocketAddr::new(ip, address.port()) {
                same if same == address => std::future::pending().await,
                other => Some(call(other, PROMISE).await),
            }
        };
        let named = async { timeout(PROMISE - HEAD_START, named).await.ok().flatten() };
        match first {
            Some(error) => named.await.unwrap_or(Err(error)),
            None => {
                tokio::pin!(named);
                tokio::select! {
                    reply = &mut recorded => match reply {
                        Err(error) if !error.is_answer() => named.await.unwrap_or(Err(error)),
                        reply => reply,
                    },
                    reply = &mut named => match reply {
                        Some(Ok(reply)) => Ok(reply),
                        Some(Err(_)) | None => recorded.await,
                    },
                }
            }
        }
    }

    /// Asks the primary's agent whether a pooler is to pause.
    ///
    /// # Errors
    /// Fails with [`PeerError`], which says whether the peer was silent, refused the connection or the request, or gave
    /// an answer that is not understood.
    pub async fn pooler(&self, peer: SocketAddr, request: &PoolerRequest) -> Result<PoolerReply, PeerError> {
        let body = serde_json::to_vec(request).map_err(|error| failed(peer, &error))?;
        let called = self.call(peer, Method::POST, POOLER, body.into(), LIMIT);
        called.await.map(|reply| reply.message)
    }

    /// Asks an agent for its own status.
    ///
    /// # Errors
    /// Fails with [`PeerError`], which says whether the peer was silent, refused the connection or the request, or gave
    /// an answer that is not understood.
    pub async fn status(&self, peer: SocketAddr) -> Result<ReportRequest, PeerError> {
        let called = self.call(peer, Method::GET, "/v1/status", Bytes::new(), LIMIT);
        called.await.map(|status| status.message)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Signed<T>, PeerError> {
        match timeout(limit, self.exchange(address, method, path, body)).await {
            Ok(Ok((StatusCode::OK, body, signed))) => {
                let garbled = |reason| PeerError::Garbled { address, reason };
                let key = signed.map_err(|reason| garbled(reason.to_owned()))?;
                let message = read(&body).map_err(garbled)?;
                Ok(Signed { message, key })
            }
            Ok(Ok((StatusCode::SERVICE_UNAVAILABLE, body, _))) => Err(PeerError::Unable {
                address,
                reason: String::from_utf8_lossy(&body).into_owned(),
            }),
            Ok(Ok((_, body, _))) => Err(PeerError::Refused {
                address,
                reason: String::from_utf8_lossy(&body).into_owned(),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(silent(address, limit)),
        }
    }

    async fn exchange(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, PeerError> {
        let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => PeerError::NotListening { address },
            _ => failed(address, &error),
        })?;
        let _ = stream.set_nodelay(true);
        let connector = TlsConnector::from(self.tls.client());
        let stream = connector
            .connect(self.tls.name(), stream)
            .await
            .map_err(|error| failed(address, &error))?;
        let channel = Channel::of(stream.get_ref().1).map_err(|error| failed(address, &error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(address, &error))?;
        let signature = self.signer.sign(&channel.request(method.as_str(), path, &body));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(hyper::header::HOST, self.tls.name().to_str().as_ref())
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| failed(address, &error))?;
        if let Some(signature) = signature {
            request.headers_mut().insert(HEADER, signature);
        }
        let exchange = async {
            let response = sender
                .send_request(request)
                .await
                .map_err(|error| failed(address, &error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, LONGEST).collect().await;
            let body = body.map_err(|error| failed(address, &error))?.to_bytes();
            let signed = verify(&head.headers, &channel.reply(path, &body));
            Ok((head.status, body, signed))
        };
        // The connection is driven by this future, and ends with the call.
        tokio::pin!(exchange, connection);
        tokio::select! {
            answer = &mut exchange => answer,
            ended = &mut connection => match ended {
                // The answer may have come with the end.
                Ok(()) => exchange.await,
                Err(error) => Err(failed(address, &error)),
            },
        }
    }
}

/// Status, body, and the key with which that is signed.
type Answer = (StatusCode, Bytes, Result<Option<String>, &'static str>);

fn silent(address: SocketAddr, limit: Duration) -> PeerError {
    PeerError::Silent {
        address,
        milliseconds: limit.as_millis(),
    }
}

fn failed(address: SocketAddr, error: &dyn std::fmt::Display) -> PeerError {
    PeerError::Failed {
        address,
        reason: error.to_string(),
    }
}
