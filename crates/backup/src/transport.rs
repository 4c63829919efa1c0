//! HTTP for `object_store`: our own roots, names and time limits, and errors that keep the store's words.
//!
//! `object_store` offers reqwest, which wants a CA bundle in the image and another crypto library.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::client::{HttpConnector as Connector, HttpResponseBody, HttpService};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::Problem;
use crate::dns::Dns;

/// A transfer in which no byte moves for this long has failed. There is no limit for a whole body: it would depend on
/// its size.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// Time to connect, without TLS. A store that is up answers within a second; the next address is then tried.
const CONNECT: Duration = Duration::from_secs(10);
/// Unused connections are closed before the store does it: S3 closes them after about 20 s.
const KEEP: Duration = Duration::from_secs(15);
/// Bodies are sent in pieces of this size, so that progress is seen.
const PIECE: usize = 64 << 10;
/// What is read of an error's body.
const ERROR_BODY: usize = 64 << 10;

/// Connections to one store. Clones are cheap and share them.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    client: legacy::Client<HttpsConnector<HttpConnector<Dns>>, Paced>,
    idle: Duration,
}

impl Transport {
    /// Trusts the certificates in `authority` (PEM), or the public ones if it is absent.
    ///
    /// # Errors
    /// Fails with [`Problem::Unusable`] if `authority` holds no certificate.
    pub(crate) fn new(authority: Option<&[u8]>, idle: Duration) -> Result<Self, Problem> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Problem::Unusable(error.to_string()))?
            .with_root_certificates(roots(authority)?)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new_with_resolver(Dns::new());
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(KEEP)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { client, idle })
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = describe(request.uri().host().unwrap_or_default());
        let may_fail_late = may_fail_late(&request);
        let moved = Moved::default();
        let request = request.map(|body| Paced::new(body, moved.clone()));
        let answer = tokio::select! {
            answer = self.client.request(request) => answer.map_err(|error| failed(&host, error))?,
            () = moved.has_stopped(self.idle) => return Err(stalled(&host, self.idle)),
        };
        let (parts, body) = answer.into_parts();
        let body = Watched::new(body, host.clone(), self.idle);
        if parts.status.is_success() && !may_fail_late {
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
        }
        if parts.status.is_success() {
            let whole = body.collect().await?.to_bytes();
            let text = String::from_utf8_lossy(&whole);
            return match text.contains("<Error>") {
                true => Err(refused(Answer::new(host, parts.status, &parts.headers, &text))),
                false => Ok(HttpResponse::from_parts(parts, whole.into())),
            };
        }
        let text = match Limited::new(body, ERROR_BODY).collect().await {
            Ok(text) => String::from_utf8_lossy(&text.to_bytes()).into_owned(),
            // The status says enough.
            Err(_) => String::new(),
        };
        Err(refused(Answer::new(host, parts.status, &parts.headers, &text)))
    }
}

/// The end of an upload in pieces: S3 says 200 before it begins to work, and whether it succeeded only in the body.
fn may_fail_late(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == http::Method::POST && query.split('&').any(|pair| pair.starts_with("uploadId="))
}

fn refused(answer: Answer) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, answer)
}

impl Connector for Transport {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Transport {
    // What `#[async_trait]` makes of `async fn call`.
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.send(request).boxed()
    }
}

fn roots(authority: Option<&[u8]>) -> Result<rustls::RootCertStore, Problem> {
    let mut roots = rustls::RootCertStore::empty();
    let Some(pem) = authority else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return Ok(roots);
    };
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| Problem::Unusable(format!("ca.crt: {error}")))?;
        roots
            .add(certificate)
            .map_err(|error| Problem::Unusable(format!("ca.crt: {error}")))?;
    }
    if roots.is_empty() {
        return Err(Problem::Unusable("ca.crt holds no certificate".to_owned()));
    }
    Ok(roots)
}

/// The host, and why it was asked if the user has never heard of it. Pods get tokens from link-local addresses.
fn describe(host: &str) -> String {
    match host.starts_with("169.254.") || host == "metadata.google.internal" {
        true => format!("{host} (asked for the pod's own identity, as there are no credentials)"),
        false => host.to_owned(),
    }
}

/// An answer of the store that is no success. Its status may be 200: then the body has the error.
#[derive(Debug, thiserror::Error)]
#[error("{host} answers {}{code}{message}", status.as_u16())]
pub(crate) struct Answer {
    host: String,
    pub(crate) status: StatusCode,
    /// The store's own name for the error, as in ` NoSuchBucket`; may be empty.
    code: String,
    message: String,
    /// Seconds by which the store's clock is ahead of ours.
    pub(crate) clock_ahead: Option<i64>,
}

impl Answer {
    fn new(host: String, status: StatusCode, headers: &http::HeaderMap, body: &str) -> Self {
        let date = headers.get(http::header::DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| chrono::DateTime::parse_from_rfc2822(date).ok());
        let code = element(body, "Code").map_or(String::new(), |code| format!(" {code}"));
        // Google names the account and the permission that it lacks only in the details.
        let details = element(body, "Details").unwrap_or_default();
        let words = element(body, "Message").unwrap_or(body).split_whitespace();
        let message: String = words.chain(details.split_whitespace()).collect::<Vec<_>>().join(" ");
        Self {
            host,
            status,
            code,
            message: message.chars().take(300).fold(String::new(), |mut text, character| {
                text.push_str(if text.is_empty() { ": " } else { "" });
                text.push(character);
                text
            }),
            clock_ahead: date.map(|date| date.timestamp() - chrono::Utc::now().timestamp()),
        }
    }

    /// The store's own name for the error; may be empty.
    pub(crate) fn code(&self) -> &str {
        self.code.trim_start()
    }
}

/// The text of the first XML element of this name. S3, GCS and Azure all answer `<Error><Code>…</Code>…`.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

/// A request that got no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error("{host}: {text}")]
pub(crate) struct Unanswered {
    host: String,
    /// All causes.
    text: String,
    source: Box<dyn Error + Send + Sync>,
}

fn failed(host: &str, error: impl Error + Send + Sync + 'static) -> HttpError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    let unanswered = Unanswered {
        host: host.to_owned(),
        text,
        source: Box::new(error),
    };
    HttpError::new(HttpErrorKind::Interrupted, unanswered)
}

fn stalled(host: &str, idle: Duration) -> HttpError {
    failed(
        host,
        io::Error::new(io::ErrorKind::TimedOut, format!("no byte moved within {idle:?}")),
    )
}

/// When a request last moved.
#[derive(Clone, Debug)]
struct Moved(Arc<Mutex<Instant>>);

impl Default for Moved {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Moved {
    fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    async fn has_stopped(&self, idle: Duration) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + idle;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// The body of a request, in pieces. It notes when hyper asks for one: then an earlier one was sent.
///
/// What is then still in the kernel's buffer is not seen moving. That buffer grows only with the speed of the link, so
/// it empties within seconds.
#[derive(Debug)]
struct Paced {
    body: HttpRequestBody,
    rest: Bytes,
    moved: Moved,
}

impl Paced {
    fn new(body: HttpRequestBody, moved: Moved) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            moved,
        }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.moved.set();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                other => return Poll::Ready(other),
            }
        }
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        SizeHint::with_exact(rest + self.body.size_hint().lower())
    }
}

/// The body of an answer. It fails if no byte comes for too long.
#[derive(Debug)]
struct Watched {
    body: Incoming,
    host: String,
    idle: Duration,
    stop: Pin<Box<Sleep>>,
}

impl Watched {
    fn new(body: Incoming, host: String, idle: Duration) -> Self {
        Self {
            body,
            host,
            idle,
            stop: Box::pin(sleep(idle)),
        }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let end = Instant::now() + self.idle;
            self.stop.as_mut().reset(end);
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| failed(&self.host, error))));
        }
        ready!(self.stop.as_mut().poll(context));
        Poll::Ready(Some(Err(stalled(&self.host, self.idle))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
