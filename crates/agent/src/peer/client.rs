//! The agent's end that calls.

use std::net::SocketAddr;

use machine::protocol::{ReportReply, ReportRequest};

use super::Tls;

/// Calls peers; clones are cheap.
#[derive(Clone, Debug)]
pub struct Client {}

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
    pub fn new(_tls: Tls) -> Self {
        todo!()
    }
    /// Reports to the primary's agent.
    pub async fn report(&self, _peer: SocketAddr, _report: &ReportRequest) -> Result<ReportReply, PeerError> {
        todo!()
    }
    /// Asks an agent how it sees itself.
    pub async fn status(&self, _peer: SocketAddr) -> Result<ReportRequest, PeerError> {
        todo!()
    }
}
