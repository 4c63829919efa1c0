//! `/metrics`, `/healthz` and `/readyz`.

use std::sync::Arc;

use api::Phase;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::caches::Caches;
use crate::metrics::Metrics;
use crate::queue::Queue;

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
