//! Requests: their order, their faults, and the S3 service behind.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, DATE, IF_NONE_MATCH};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::service::S3Service;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::fault::{Effect, Fault, take};

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Where faults are set.
const FAULTS: &str = "/_faults";

/// A request that has arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The method.
    pub method: Method,
    /// The path, with the bucket.
    pub path: String,
    /// What stands after the question mark; may be empty.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
}

pub(crate) struct Server {
    service: S3Service,
    directory: PathBuf,
    faults: Mutex<Vec<Fault>>,
    requests: Mutex<Vec<Seen>>,
    /// Held during a write. The S3 service looks for the file and then writes it, which is not atomic.
    writes: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// Serves until the task is dropped.
pub(crate) async fn run(server: Arc<Server>, listener: TcpListener, acceptor: Option<TlsAcceptor>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // The client has gone already.
                Err(_) => continue,
            },
            // Ended connections are forgotten.
            Some(_) = connections.join_next() => continue,
        };
        // Small answers are not held back.
        let _ = stream.set_nodelay(true);
        let (server, acceptor) = (server.clone(), acceptor.clone());
        connections.spawn(async move {
            match acceptor {
                None => serve(server, stream).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(server, stream).await;
                    }
                }
            }
        });
    }
}

async fn serve(server: Arc<Server>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { server.answer(request).await }
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A connection that breaks is the client's affair, or one of our faults.
    let _ = connection.await;
}

impl Server {
    pub(crate) fn new(service: S3Service, directory: PathBuf) -> Self {
        Self {
            service,
            directory,
            faults: Mutex::default(),
            requests: Mutex::default(),
            writes: Mutex::default(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Vec<Fault>> {
        lock(&self.faults)
    }

    pub(crate) fn count_requests(&self, method: &str, part: &str) -> usize {
        let fits = |seen: &&Seen| seen.method == method && seen.path.contains(part);
        lock(&self.requests).iter().filter(fits).count()
    }

    pub(crate) fn requests(&self) -> Vec<Seen> {
        lock(&self.requests).clone()
    }

    /// An error closes the connection.
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if path == FAULTS {
            return self.set_faults(request).await;
        }
        lock(&self.requests).push(Seen {
            method: method.clone(),
            path: path.clone(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            headers: request.headers().clone(),
        });
        let effect = take(&mut self.faults(), method.as_str(), &path);
        match effect {
            None => self.pass(request).await,
            Some(Effect::Delay(millis)) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                self.pass(request).await
            }
            Some(Effect::Stall) => pending().await,
            Some(Effect::Refuse { status, code }) => {
                request.into_body().collect().await.map_err(io::Error::other)?;
                refuse(status, &code)
            }
            Some(Effect::ErrorInSuccess { code }) => {
                request.into_body().collect().await.map_err(io::Error::other)?;
                refuse(200, &code)
            }
            Some(Effect::ClockBehind(seconds)) => {
                let mut answer = refuse(403, "AccessDenied")?;
                let date = SystemTime::now() - Duration::from_secs(seconds.unsigned_abs());
                let date = httpdate::fmt_http_date(date).parse().map_err(io::Error::other)?;
                answer.headers_mut().insert(DATE, date);
                Ok(answer)
            }
            Some(Effect::LoseReply) => {
                self.pass(request).await?;
                Err(io::Error::other("the reply is lost"))
            }
            Some(Effect::CutBody) => cut(self.pass(request).await?).await,
            Some(Effect::CutUpload) => cut_upload(request.into_body()).await,
            Some(Effect::NoConditions) if request.headers().contains_key(IF_NONE_MATCH) => {
                refuse(501, "NotImplemented")
            }
            Some(Effect::NoConditions) => self.pass(request).await,
            Some(Effect::Overwrite) => {
                let write = self.write_of(&path);
                let _held = write.lock().await;
                // Then the condition holds.
                let _ = tokio::fs::remove_file(self.directory.join(path.trim_start_matches('/'))).await;
                self.forward(request).await
            }
        }
    }

    async fn set_faults(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let method = request.method().clone();
        let body = request
            .into_body()
            .collect()
            .await
            .map_err(io::Error::other)?
            .to_bytes();
        match method {
            Method::POST => match serde_json::from_slice(&body) {
                Ok(fault) => self.faults().push(fault),
                Err(error) => return answer(StatusCode::BAD_REQUEST, error.to_string()),
            },
            Method::DELETE => self.faults().clear(),
            _ => return answer(StatusCode::METHOD_NOT_ALLOWED, String::new()),
        }
        answer(StatusCode::NO_CONTENT, String::new())
    }

    /// To the S3 service, one write of a name after the other.
    async fn pass(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let path = request.uri().path();
        let bucket = path.split('/').nth(1).unwrap_or_default();
        if !self.directory.join(bucket).is_dir() {
            return refuse(404, "NoSuchBucket");
        }
        if request.method() == Method::GET || request.method() == Method::HEAD {
            return self.forward(request).await;
        }
        let write = self.write_of(path);
        let _held = write.lock().await;
        self.forward(request).await
    }

    fn write_of(&self, path: &str) -> Arc<tokio::sync::Mutex<()>> {
        lock(&self.writes).entry(path.to_owned()).or_default().clone()
    }

    async fn forward(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let answer = self.service.call(request.map(s3s::Body::from)).await;
        let answer = answer.map_err(|error| io::Error::other(format!("{error:?}")))?;
        Ok(answer.map(|body| body.map_err(io::Error::other).boxed_unsync()))
    }
}

/// The same answer, whose body ends in the middle.
async fn cut(answer: Response<Body>) -> io::Result<Response<Body>> {
    let (mut parts, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    parts.headers.insert(CONTENT_LENGTH, body.len().into());
    let half = Ok(Frame::data(body.slice(..body.len() / 2)));
    let pieces = futures::stream::iter([half, Err(io::Error::other("the body is cut off"))]);
    Ok(Response::from_parts(parts, StreamBody::new(pieces).boxed_unsync()))
}

/// Reads half of a body, and closes the connection.
async fn cut_upload(mut body: Incoming) -> io::Result<Response<Body>> {
    let half = body.size_hint().lower() / 2;
    let mut read = 0;
    while read < half {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(io::Error::other)?;
        read += frame.data_ref().map_or(0, Bytes::len) as u64;
    }
    Err(io::Error::other("the upload is cut off"))
}

fn refuse(status: u16, code: &str) -> io::Result<Response<Body>> {
    let status = StatusCode::from_u16(status).map_err(io::Error::other)?;
    answer(
        status,
        format!("<Error><Code>{code}</Code><Message>a fault by script</Message></Error>"),
    )
}

fn answer(status: StatusCode, text: String) -> io::Result<Response<Body>> {
    let body = Full::from(text)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    Response::builder().status(status).body(body).map_err(io::Error::other)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
