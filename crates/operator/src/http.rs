//! `/metrics`, `/healthz` and `/readyz`; and, for the pod alone, the decisions.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use api::Phase;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::cache::Key;
use crate::caches::Caches;
use crate::decisions::Decisions;
use crate::metrics::Metrics;
use crate::queue::Queue;

/// Where the decisions are served. They hold the specs of all databases, and every pod of a cluster may reach a pod's own
/// address: so it is the loopback address, which `kubectl port-forward` reaches with the right to do that in the operator's
/// namespace.
pub const DECISIONS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);

/// What the pages show.
#[derive(Clone)]
pub struct Pages {
    /// Counted so far.
    pub metrics: Metrics,
    /// What is watched.
    pub caches: Arc<Caches>,
    /// What waits.
    pub queue: Arc<Queue>,
}

/// Serves the pages for ever.
pub async fn serve(listener: TcpListener, pages: Pages) -> std::io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        // That it is answered at all says that the process is not stuck.
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .with_state(pages);
    axum::serve(listener, router).await
}

/// Serves `/decisions/<namespace>/<name>` for ever ([`crate::recording`]).
pub async fn serve_decisions(listener: TcpListener, decisions: Arc<Decisions>) -> std::io::Result<()> {
    let router = Router::new()
        .route("/decisions/{namespace}/{name}", get(recording))
        .with_state(decisions);
    axum::serve(listener, router).await
}

async fn recording(
    State(decisions): State<Arc<Decisions>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let key = Key { namespace, name };
    match decisions.text(&key) {
        Some(text) => ([(CONTENT_TYPE, "application/x-ndjson")], text).into_response(),
        None => (
            StatusCode::NOT_FOUND,
            format!("this operator has decided nothing about {key} since it started"),
        )
            .into_response(),
    }
}

async fn metrics(State(pages): State<Pages>) -> impl IntoResponse {
    let databases = pages.caches.databases.keys().into_iter();
    let found = databases.filter_map(|key| pages.caches.databases.get(&key, &key.name).flatten());
    let phases: Vec<Phase> = found
        .map(|db| db.status.as_ref().and_then(|status| status.phase).unwrap_or_default())
        .collect();
    pages
        .metrics
        .set_state(&pages.caches.health(), &phases, pages.queue.len());
    (
        [(
            CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        pages.metrics.text(),
    )
}

async fn ready(State(pages): State<Pages>) -> impl IntoResponse {
    if pages.caches.are_ready() {
        (StatusCode::OK, "ok")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the resources have not been listed yet",
        )
    }
}
