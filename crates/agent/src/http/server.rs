//! The HTTP server of probes and metrics.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::{Health, Metrics};
use crate::deadman::boot_time;

/// Connections at a time: the kubelet's and a scraper's, and some to spare.
const CONNECTIONS: usize = 16;
/// A connection without a request is closed after this time.
const IDLE: Duration = Duration::from_secs(10);
/// After a failure to accept (no file descriptors left), the next try.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What `prometheus_client` writes. Scrapers refuse metrics of an unknown type.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `/startupz`, `/livez`, `/readyz` and `/metrics` on `listener` for ever.
pub async fn serve(listener: TcpListener, health: Arc<Health>, metrics: Arc<Metrics>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("accept a probe: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let (health, metrics) = (Arc::clone(&health), Arc::clone(&metrics));
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let response = answer(request.uri().path(), &health, &metrics);
                async move { Ok::<_, Infallible>(response) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!("a probe's connection ended: {error}");
            }
            drop(place);
        });
    }
}

fn answer(path: &str, health: &Health, metrics: &Metrics) -> Response<Full<Bytes>> {
    let checked = match path {
        "/startupz" => health.startup(),
        "/livez" => health.live(boot_time()),
        "/readyz" => health.ready(),
        "/metrics" => {
            return match metrics.text() {
                Ok(text) => {
                    let mut response = respond(StatusCode::OK, text);
                    response
                        .headers_mut()
                        .insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
                    response
                }
                Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            };
        }
        _ => {
            return respond(
                StatusCode::NOT_FOUND,
                "there are /startupz, /livez, /readyz and /metrics\n".to_owned(),
            );
        }
    };
    match checked {
        Ok(()) => respond(StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => respond(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn respond(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_say_what_the_loop_said() {
        let (health, metrics) = (Health::new(boot_time()), Metrics::new());
        let status = |path: &str| answer(path, &health, &metrics).status();
        assert_eq!(status("/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status("/startupz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status("/livez"), StatusCode::OK);
        assert_eq!(status("/metrics"), StatusCode::OK);
        assert!(
            answer("/metrics", &health, &metrics)
                .headers()
                .contains_key(CONTENT_TYPE)
        );
        assert_eq!(status("/"), StatusCode::NOT_FOUND);
        health.set_ready(Ok(()));
        assert_eq!(status("/readyz"), StatusCode::OK);
    }
}
