//! The agent's end that calls.

use std::io::ErrorKind;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use machine::protocol::{ReportReply, ReportRequest};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Tls;
use super::server::{LIMIT, LONGEST};

/// Calls peers, with a connection for each call; clones are cheap.
#[derive(Clone, Debug)]
pub struct Client {
    tls: Tls,
}

/// Why a peer did not answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It is not there: the connection was refused.
    #[error("{address} refuses connections")]
    NotListening {
        /// The peer.
        address: SocketAddr,
    },
    /// It did not answer within a second.
    #[error("{address} did not answer within 1 s")]
    Silent {
        /// The peer.
        address: SocketAddr,
    },
    /// It refused the request, in its own words.
    #[error("{address} refuses: {reason}")]
    Refused {
        /// The peer.
        address: SocketAddr,
        /// Its words.
        reason: String,
    },
    /// Connection, TLS or answer failed.
    #[error("call {address}: {reason}")]
    Failed {
        /// The peer.
        address: SocketAddr,
        /// What is wrong.
        reason: String,
    },
}

impl Client {
    /// A client with the cluster's certificate.
    pub fn new(tls: Tls) -> Self {
        Self { tls }
    }

    /// Reports to the primary's agent.
    pub async fn report(&self, peer: SocketAddr, report: &ReportRequest) -> Result<ReportReply, PeerError> {
        let body = serde_json::to_vec(report).map_err(|error| failed(peer, &error))?;
        self.call(peer, Method::POST, "/v1/report", body).await
    }

    /// Asks an agent how it sees itself.
    pub async fn status(&self, peer: SocketAddr) -> Result<ReportRequest, PeerError> {
        self.call(peer, Method::GET, "/v1/status", Vec::new()).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, PeerError> {
        match timeout(LIMIT, self.exchange(address, method, path, body)).await {
            Ok(Ok((StatusCode::OK, body))) => serde_json::from_slice(&body).map_err(|error| failed(address, &error)),
            Ok(Ok((_, body))) => Err(PeerError::Refused {
                address,
                reason: String::from_utf8_lossy(&body).into_owned(),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(PeerError::Silent { address }),
        }
    }

    async fn exchange(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), PeerError> {
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
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(address, &error))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(hyper::header::HOST, self.tls.name().to_str().as_ref())
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| failed(address, &error))?;
        let exchange = async {
            let response = sender
                .send_request(request)
                .await
                .map_err(|error| failed(address, &error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LONGEST).collect().await;
            Ok((status, body.map_err(|error| failed(address, &error))?.to_bytes()))
        };
        // The connection is driven here, and ends with the call.
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

fn failed(address: SocketAddr, error: &dyn std::fmt::Display) -> PeerError {
    PeerError::Failed {
        address,
        reason: error.to_string(),
    }
}
