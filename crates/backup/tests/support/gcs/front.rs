//! What fake-gcs-server lacks of Google's XML interface, in front of it.
//!
//! | request | the emulator alone | here |
//! |---|---|---|
//! | `PUT` of an object | 400 without a signed URL; then it ignores `x-goog-if-generation-match` | its JSON upload, with the condition |
//! | uploads in parts | 400 | the parts are held here, the whole goes to its JSON upload |
//! | errors | JSON, plain text, or 500 for a bucket that does not exist | XML with Google's codes |
//!
//! All other requests pass unchanged, and the emulator alone decides about conditions.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::header::{ETAG, HOST};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

type Reply = Response<Full<Bytes>>;

/// Google refuses smaller parts, but for the last.
const LEAST_PART: usize = 5 << 20;
const GENERATION: &str = "x-goog-generation";
const CONDITION: &str = "x-goog-if-generation-match";

/// Serves until the task is dropped.
pub async fn run(listener: TcpListener, emulator: SocketAddr) {
    let front = Arc::new(Front {
        emulator,
        client: Client::builder(TokioExecutor::new()).build_http(),
        uploads: Mutex::default(),
        next: AtomicU64::new(1),
    });
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let front = front.clone();
        let service = service_fn(move |request| {
            let front = front.clone();
            async move { Ok::<_, Infallible>(front.answer(request).await) }
        });
        let server = hyper::server::conn::http1::Builder::new();
        connections.spawn(server.serve_connection(TokioIo::new(stream), service));
    }
}

struct Front {
    emulator: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    uploads: Mutex<HashMap<String, Parts>>,
    next: AtomicU64,
}

type Parts = BTreeMap<u32, Bytes>;

/// An object, as it is written in a URL.
struct Object<'a> {
    bucket: &'a str,
    name: &'a str,
}

impl Front {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let path = head.uri.path().trim_start_matches('/');
        let (bucket, name) = path.split_once('/').unwrap_or((path, ""));
        let object = Object { bucket, name };
        let pairs = head.uri.query().unwrap_or_default().split('&');
        let query: HashMap<&str, &str> = pairs.filter_map(|pair| pair.split_once('=')).collect();
        match (&head.method, query.get("uploadId"), query.get("partNumber")) {
            (&Method::POST, None, None) if query.contains_key("uploads") => self.begin(),
            (&Method::PUT, Some(id), Some(number)) => self.take_part(id, number, body),
            (&Method::POST, Some(id), None) => self.complete(&object, id, &body).await,
            (&Method::DELETE, Some(id), None) => self.abort(id),
            (&Method::PUT, None, None) => {
                let condition = head.headers.get(CONDITION);
                let condition = condition.map(|number| number.to_str().expect("a number"));
                self.create(&object, body, condition).await
            }
            _ => {
                let path = head.uri.path_and_query().expect("a path").as_str();
                let answer = self.send(head.method, path, head.headers, body).await;
                self.as_xml(&object, answer).await
            }
        }
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<String, Parts>> {
        self.uploads.lock().expect("no panic")
    }

    fn begin(&self) -> Reply {
        let id = format!("upload-{}", self.next.fetch_add(1, Ordering::Relaxed));
        self.uploads().insert(id.clone(), Parts::new());
        let result = "InitiateMultipartUploadResult";
        reply(200, format!("<{result}><UploadId>{id}</UploadId></{result}>"))
    }

    fn take_part(&self, id: &str, number: &str, part: Bytes) -> Reply {
        let Some(Ok(number)) = self.uploads().contains_key(id).then(|| number.parse()) else {
            return refuse(404, "NoSuchUpload");
        };
        let tag = tag(&part);
        self.uploads().entry(id.to_owned()).or_default().insert(number, part);
        let mut answer = reply(200, String::new());
        answer.headers_mut().insert(ETAG, tag.parse().expect("a header"));
        answer
    }

    async fn complete(&self, object: &Object<'_>, id: &str, body: &Bytes) -> Reply {
        let Some(parts) = self.uploads().get(id).cloned() else {
            return refuse(404, "NoSuchUpload");
        };
        let text = String::from_utf8_lossy(body);
        let listed: Vec<&str> = text.split("<Part>").skip(1).collect();
        let mut whole = Vec::new();
        for (at, listed_part) in listed.iter().enumerate() {
            let number = (at + 1) as u32;
            let Some(part) = parts.get(&number) else {
                return refuse(400, "InvalidPart");
            };
            if !listed_part.contains(&format!("<PartNumber>{number}</PartNumber>")) || !listed_part.contains(&tag(part))
            {
                return refuse(400, "InvalidPart");
            }
            if part.len() < LEAST_PART && at + 1 < listed.len() {
                return refuse(400, "EntityTooSmall");
            }
            whole.extend_from_slice(part);
        }
        let mut answer = self.create(object, whole.into(), None).await;
        if answer.status().is_success() {
            self.uploads().remove(id);
            let tag = answer.headers()[ETAG].to_str().expect("text").to_owned();
            let result = "CompleteMultipartUploadResult";
            *answer.body_mut() = Full::from(format!("<{result}><ETag>{tag}</ETag></{result}>"));
        }
        answer
    }

    fn abort(&self, id: &str) -> Reply {
        match self.uploads().remove(id) {
            Some(_) => reply(204, String::new()),
            None => refuse(404, "NoSuchUpload"),
        }
    }

    async fn create(&self, object: &Object<'_>, content: Bytes, condition: Option<&str>) -> Reply {
        let Object { bucket, name } = object;
        let condition = condition.map_or(String::new(), |number| format!("&ifGenerationMatch={number}"));
        let path = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}{condition}");
        let answer = self.send(Method::POST, &path, HeaderMap::new(), content).await;
        if !answer.status().is_success() {
            return self.as_xml(object, answer).await;
        }
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        let stored: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let field = |name: &str| stored[name].as_str().expect("a text").to_owned();
        let answer = Response::builder()
            .header(ETAG, format!("\"{}\"", field("etag")))
            .header(GENERATION, field("generation"));
        answer.body(Full::default()).expect("an answer")
    }

    async fn send(&self, method: Method, path: &str, headers: HeaderMap, body: Bytes) -> Reply {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = format!("http://{}{path}", self.emulator).parse().expect("a URL");
        *request.headers_mut() = headers;
        request.headers_mut().remove(HOST);
        let (head, body) = self.client.request(request).await.expect("an answer").into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Response::from_parts(head, Full::from(body))
    }

    /// The same answer, or its error as Google writes it.
    async fn as_xml(&self, object: &Object<'_>, answer: Reply) -> Reply {
        match answer.status().as_u16() {
            412 => refuse(412, "PreconditionFailed"),
            404 | 500 => {
                let bucket = format!("/storage/v1/b/{}", object.bucket);
                let bucket = self.send(Method::GET, &bucket, HeaderMap::new(), Bytes::new()).await;
                match bucket.status() {
                    StatusCode::NOT_FOUND => refuse(404, "NoSuchBucket"),
                    _ if answer.status() == StatusCode::NOT_FOUND => refuse(404, "NoSuchKey"),
                    _ => answer,
                }
            }
            _ => answer,
        }
    }
}

fn tag(part: &Bytes) -> String {
    let mut hasher = DefaultHasher::new();
    part.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

fn refuse(status: u16, code: &str) -> Reply {
    let message = "The emulator refuses.";
    reply(
        status,
        format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"),
    )
}

fn reply(status: u16, body: String) -> Reply {
    let answer = Response::builder().status(status).body(Full::from(body));
    answer.expect("an answer")
}
