//! The HTTP server of readiness and metrics.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use listen::{Bounds, Port};
use tokio::net::TcpListener;

use super::{Health, Metrics};

/// Connections at a time. The kubelet and a scraper need one each; the other places keep the connections of a flood
/// from displacing these two before they are answered.
const BOUNDS: Bounds = Bounds {
    all: 64,
    each_source: 32,
};
/// Time limit of a connection; an answer takes milliseconds.
const LIMIT: Duration = Duration::from_secs(3);

/// The content type of `prometheus_client`'s text. Scrapers refuse metrics of an unknown type.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `/readyz` and `/metrics` on `listener` for ever.
pub async fn serve(listener: TcpListener, health: Arc<Health>, metrics: Arc<Metrics>) {
    let counted = Arc::clone(&metrics);
    Port::new(listener, BOUNDS, LIMIT)
        .counting_dropped(move || counted.dropped("probes"))
        .serve_pages(move |path| answer(path, &health, &metrics))
        .await;
}

fn answer(path: &str, health: &Health, metrics: &Metrics) -> Response<Full<Bytes>> {
    let checked = match path {
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
            return respond(StatusCode::NOT_FOUND, "there are /readyz and /metrics\n".to_owned());
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
    use std::net::Ipv4Addr;

    use listen::flood::{self, Flood};

    use super::*;
    use crate::deadman::boot_time;

    #[test]
    fn probes_say_what_the_loop_said() {
        let (health, metrics) = (Health::new(boot_time()), Metrics::new());
        let status = |path: &str| answer(path, &health, &metrics).status();
        assert_eq!(status("/readyz"), StatusCode::SERVICE_UNAVAILABLE);
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn readiness_is_answered_in_time_during_a_flood() {
        let listener = Port::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let target = listener.local_addr().expect("an address");
        let (health, metrics) = (Arc::new(Health::new(boot_time())), Arc::new(Metrics::new()));
        health.set_ready(Ok(()));
        tokio::spawn(serve(listener, health, metrics));
        let request = b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";
        let _flood = Flood::rages(target, request).await;
        flood::probe_for(flood::duration(), target, "/readyz")
            .await
            .expect("answers");
    }
}
