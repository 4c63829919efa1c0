//! The agent's end that is called.

use machine::protocol::{ReportReply, ReportRequest};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::Tls;

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
    /// `GET /v1/status`: how this agent sees itself (as it would report).
    Status {
        /// The answer; `None`: not known yet (503).
        reply: oneshot::Sender<Option<ReportRequest>>,
    },
}

/// Serves peers on `listener` for ever.
pub async fn serve(_listener: TcpListener, _tls: Tls, _requests: mpsc::Sender<Request>) {
    todo!()
}
