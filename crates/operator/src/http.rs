//! `/metrics` and `/readyz`; and, for the pod alone, the decisions.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::Phase;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use listen::{Bounds, Port};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::cache::Key;
use crate::caches::Caches;
use crate::decisions::Decisions;
use crate::metrics::{DatabaseSeen, Metrics};
use crate::queue::Queue;

/// Where the decisions are served. They hold the specs of all databases, and every pod of a cluster may reach a pod's own
/// address: so it is the loopback address, which `kubectl port-forward` reaches with the right to do that in the operator's
/// namespace.
pub const DECISIONS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);

/// Connections to the pages at a time. The kubelet and a scraper need one each; the others keep a flood's newcomers from
/// ending these before they are answered.
const PAGES: Bounds = Bounds {
    all: 64,
    each_source: 32,
};
/// Longest life of a connection to the pages: an answer takes milliseconds.
const PAGES_LIMIT: Duration = Duration::from_secs(3);
/// Connections to the decisions at a time: all come from this pod.
const RECORDINGS: Bounds = Bounds {
    all: 16,
    each_source: 16,
};
/// Longest life of a connection to the decisions: a recording has some MiB, and a port-forward may be slow.
const RECORDINGS_LIMIT: Duration = Duration::from_secs(120);
/// The metrics are made at most that often: whoever asks more often gets the last ones, which costs no time of the workers.
const METRICS_AGE: Duration = Duration::from_secs(1);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
pub async fn serve(listener: TcpListener, pages: Pages) {
    let made = Mutex::new(None);
    port(listener, PAGES, PAGES_LIMIT, "pages", &pages.metrics)
        .serve_pages(move |path| match path {
            "/metrics" => with_type(OPEN_METRICS, metrics(&pages, &made)),
            "/readyz" if pages.caches.are_ready() => text(StatusCode::OK, "ok"),
            "/readyz" => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the resources have not been listed yet",
            ),
            _ => text(StatusCode::NOT_FOUND, "there are /metrics and /readyz"),
        })
        .await;
}

/// Serves `/decisions/<namespace>/<name>` for ever ([`crate::recording`]).
pub async fn serve_decisions(listener: TcpListener, decisions: Arc<Decisions>, metrics: Metrics) {
    port(listener, RECORDINGS, RECORDINGS_LIMIT, "decisions", &metrics)
        .serve_pages(move |path| recording(path, &decisions))
        .await;
}

fn port(listener: TcpListener, bounds: Bounds, limit: Duration, name: &'static str, metrics: &Metrics) -> Port {
    let metrics = metrics.clone();
    Port::new(listener, bounds, limit).counting_dropped(move || metrics.dropped_connection(name))
}

fn recording(path: &str, decisions: &Decisions) -> Response<Full<Bytes>> {
    let database = path.strip_prefix("/decisions/").and_then(|rest| rest.split_once('/'));
    let Some((namespace, name)) = database else {
        return text(StatusCode::NOT_FOUND, "there is /decisions/<namespace>/<name>");
    };
    let key = Key::database(namespace.to_owned(), name.to_owned());
    match decisions.text(&key) {
        Some(recorded) => with_type("application/x-ndjson", recorded.into()),
        None => text(
            StatusCode::NOT_FOUND,
            format!("this operator has decided nothing about {key} since it started"),
        ),
    }
}

/// Of a resource all that the metrics tell.
#[derive(Deserialize)]
struct Counted {
    #[serde(default)]
    status: CountedStatus,
}

/// See [`Counted`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct CountedStatus {
    phase: Option<Phase>,
    conditions: Vec<CountedCondition>,
    memo: CountedMemo,
}

/// See [`Counted`].
#[derive(Deserialize)]
struct CountedCondition {
    #[serde(rename = "type")]
    of: String,
    status: String,
}

/// See [`Counted`].
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CountedMemo {
    final_backup: Option<Failures>,
}

/// See [`Counted`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct Failures {
    failures: u32,
}

impl From<&Counted> for DatabaseSeen {
    fn from(counted: &Counted) -> Self {
        let status = &counted.status;
        let backup = status.memo.final_backup.as_ref();
        let conditions = status.conditions.iter();
        Self {
            phase: status.phase.unwrap_or_default(),
            conditions: conditions
                .map(|found| (found.of.clone(), found.status.clone()))
                .collect(),
            breaker_is_open: backup.is_some_and(|backup| machine::breaker::is_open(backup.failures)),
        }
    }
}

/// The metrics, made anew if those that were made last are older than a second.
fn metrics(pages: &Pages, made: &Mutex<Option<(Instant, Bytes)>>) -> Bytes {
    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, text)) = made.as_ref()
        && at.elapsed() < METRICS_AGE
    {
        return text.clone();
    }
    let databases = pages.caches.databases.keys().into_iter();
    let found = databases.filter_map(|key| pages.caches.databases.read_as::<Counted>(&key, &key.name).flatten());
    let seen: Vec<DatabaseSeen> = found.map(|counted| DatabaseSeen::from(&*counted)).collect();
    pages
        .metrics
        .set_state(&pages.caches.health(), &seen, pages.queue.len());
    let text = Bytes::from(pages.metrics.text());
    *made = Some((Instant::now(), text.clone()));
    text
}

fn with_type(content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = with_type("text/plain; charset=utf-8", body.into());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use listen::flood::{self, Flood};

    use super::*;

    async fn pages() -> (SocketAddr, Metrics) {
        let listener = Port::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let target = listener.local_addr().unwrap();
        let metrics = Metrics::default();
        let pages = Pages {
            metrics: metrics.clone(),
            caches: Arc::default(),
            queue: Arc::default(),
        };
        tokio::spawn(serve(listener, pages));
        (target, metrics)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn metrics_are_answered_in_time_during_a_flood() {
        let (target, metrics) = pages().await;
        let request = b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";
        let _flood = Flood::rages(target, request).await;
        flood::probe_for(flood::duration(), target, "/metrics").await.unwrap();
        let text = metrics.text();
        assert!(text.contains("dropped_connections_total{port=\"pages\"}"), "{text}");
    }

    #[tokio::test]
    async fn connections_that_say_nothing_do_not_pile_up() {
        let (target, _) = pages().await;
        let left = flood::left_of(target, 4 * PAGES.all, PAGES.each_source).await.unwrap();
        assert_eq!(left, PAGES.each_source);
    }

    #[tokio::test]
    async fn says_when_it_is_not_ready_and_what_there_is() {
        let (target, _) = pages().await;
        assert_eq!(flood::probe(target, "/readyz").await.unwrap(), 503);
        assert_eq!(flood::probe(target, "/").await.unwrap(), 404);
    }

    #[tokio::test]
    async fn metrics_are_made_once_a_second() {
        let pages = Pages {
            metrics: Metrics::default(),
            caches: Arc::default(),
            queue: Arc::default(),
        };
        let made = Mutex::new(None);
        let first = metrics(&pages, &made);
        pages.metrics.set_leader(true);
        assert_eq!(metrics(&pages, &made), first);
        made.lock().unwrap().as_mut().unwrap().0 -= METRICS_AGE;
        assert_ne!(metrics(&pages, &made), first);
    }
}
