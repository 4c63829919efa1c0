//! The HTTP server of probes and metrics.

use std::sync::Arc;

use tokio::net::TcpListener;

use super::{Health, Metrics};

/// Serves `/startupz`, `/livez`, `/readyz` and `/metrics` on `listener` for ever.
pub async fn serve(_listener: TcpListener, _health: Arc<Health>, _metrics: Arc<Metrics>) {
    todo!()
}
