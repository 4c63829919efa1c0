//! An API server with three objects, and the part of the operator that agents need.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rcgen::SubjectPublicKeyInfo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};

use crate::certificates::{Authority, params};

/// The resources, as paths name them.
pub const CLUSTERS: &str = "clustereddatabases";
pub const LEASES: &str = "leases";
pub const ROUTES: &str = "endpointslices";

/// Objects by resource, one of each; clones share them.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

struct Shared {
    objects: Mutex<BTreeMap<&'static str, Value>>,
    version: Mutex<u64>,
    changes: broadcast::Sender<(&'static str, Value)>,
    /// The server answers no client.
    paused: watch::Sender<bool>,
    authority: Authority,
}

impl ApiServer {
    pub fn new(authority: Authority, objects: [(&'static str, Value); 3]) -> Self {
        let server = Self {
            shared: Arc::new(Shared {
                objects: Mutex::default(),
                version: Mutex::new(100),
                changes: broadcast::channel(1024).0,
                paused: watch::channel(false).0,
                authority,
            }),
        };
        for (resource, object) in objects {
            server.put(resource, object);
        }
        server
    }

    /// From now on the server answers no client, or all clients again.
    pub fn pause(&self, paused: bool) {
        self.shared.paused.send_replace(paused);
    }

    /// Signs certificates.
    pub fn authority(&self) -> &Authority {
        &self.shared.authority
    }

    /// The object of `resource` as it is now.
    pub fn get(&self, resource: &'static str) -> Value {
        self.shared.objects.lock().expect("unpoisoned")[resource].clone()
    }

    /// Replaces an object, whatever its version.
    pub fn put(&self, resource: &'static str, object: Value) -> Value {
        let mut objects = self.shared.objects.lock().expect("unpoisoned");
        self.store(&mut objects, resource, object)
    }

    fn store(&self, objects: &mut BTreeMap<&'static str, Value>, resource: &'static str, mut object: Value) -> Value {
        let mut version = self.shared.version.lock().expect("unpoisoned");
        *version += 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        objects.insert(resource, object.clone());
        let _ = self.shared.changes.send((resource, object.clone()));
        object
    }

    /// Acts as the operator: signs members' keys, and copies the system identifier.
    fn operate(&self) {
        let mut objects = self.shared.objects.lock().expect("unpoisoned");
        let (lease, mut cluster) = (&objects[LEASES], objects[CLUSTERS].clone());
        let annotation = |name: &str| lease["metadata"]["annotations"][name].as_str().map(str::to_owned);
        let before = cluster.clone();
        if let Some(system_id) = annotation(api::names::LEASE_SYSTEM_ID) {
            cluster["status"]["systemIdentifier"] = system_id.into();
        }
        let members = annotation(api::names::LEASE_MEMBERS).unwrap_or_else(|| "{}".to_owned());
        let members: BTreeMap<String, Value> = serde_json::from_str(&members).expect("reports");
        for (pod, report) in members {
            let status = instance(&mut cluster, &pod);
            let (Some(member), Some(key)) = (report["member"].as_str(), report["publicKey"].as_str()) else {
                continue;
            };
            if status["memberID"] == member {
                continue;
            }
            let key = STANDARD.decode(key).expect("base64");
            let key = SubjectPublicKeyInfo::from_der(&key).expect("a public key");
            let signed = params(member, &[]).signed_by(&key, &self.shared.authority.issuer);
            status["memberID"] = member.into();
            status["certificate"] = signed.expect("signed").pem().into();
        }
        if cluster != before {
            self.store(&mut objects, CLUSTERS, cluster);
        }
    }

    /// Serves for ever.
    pub async fn serve(self, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let server = self.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let server = server.clone();
                    async move { Ok::<_, Infallible>(server.answer(request).await) }
                });
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<BoxBody<Bytes, Infallible>> {
        let mut paused = self.shared.paused.subscribe();
        let _ = paused.wait_for(|paused| !paused).await;
        let path = request.uri().path().to_owned();
        let resources = [CLUSTERS, LEASES, ROUTES];
        let Some(resource) = resources
            .into_iter()
            .find(|resource| path.contains(&format!("/{resource}")))
        else {
            return respond(StatusCode::NOT_FOUND, &status(404, "no such path"));
        };
        let query = request.uri().query().unwrap_or_default().to_owned();
        let named = !path.ends_with(resource);
        match (request.method(), named) {
            (&Method::GET, true) => respond(StatusCode::OK, &self.get(resource)),
            (&Method::GET, false) if query.contains("watch=true") => self.watch(resource, &query),
            (&Method::GET, false) => self.list(resource),
            (&Method::PUT, true) => {
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                self.replace(resource, serde_json::from_slice(&body).expect("an object"))
            }
            _ => respond(StatusCode::METHOD_NOT_ALLOWED, &status(405, "not here")),
        }
    }

    fn replace(&self, resource: &'static str, object: Value) -> Response<BoxBody<Bytes, Infallible>> {
        let stored = {
            let mut objects = self.shared.objects.lock().expect("unpoisoned");
            let now = &objects[resource]["metadata"]["resourceVersion"];
            if *now != object["metadata"]["resourceVersion"] {
                return respond(StatusCode::CONFLICT, &status(409, "the object has been modified"));
            }
            self.store(&mut objects, resource, object)
        };
        self.operate();
        respond(StatusCode::OK, &stored)
    }

    fn list(&self, resource: &'static str) -> Response<BoxBody<Bytes, Infallible>> {
        let version = self.shared.version.lock().expect("unpoisoned").to_string();
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version},
            "items": [self.get(resource)]});
        respond(StatusCode::OK, &list)
    }

    fn watch(&self, resource: &'static str, query: &str) -> Response<BoxBody<Bytes, Infallible>> {
        let since = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("resourceVersion="))
            .and_then(|version| version.parse::<u64>().ok())
            .unwrap_or_default();
        let changes = self.shared.changes.subscribe();
        let now = self.get(resource);
        let newer = move |object: &Value| {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            version.parse::<u64>().is_ok_and(|version| version > since)
        };
        let first = newer(&now).then_some(now);
        let stream = futures::stream::unfold((changes, first), move |(mut changes, first)| async move {
            let object = match first {
                Some(object) => object,
                None => loop {
                    match changes.recv().await {
                        Ok((of, object)) if of == resource && newer(&object) => break object,
                        Ok(_) => {}
                        Err(_) => return None,
                    }
                },
            };
            let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
            Some((Ok(Frame::data(Bytes::from(line))), (changes, None)))
        });
        let mut response = Response::new(StreamBody::new(stream).boxed());
        response
            .headers_mut()
            .insert("content-type", "application/json".parse().expect("a header"));
        response
    }
}

fn status(code: u16, message: &str) -> Value {
    let reason = if code == 409 { "Conflict" } else { "NotFound" };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code})
}

fn respond(status: StatusCode, body: &Value) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", "application/json".parse().expect("a header"));
    response
}

/// The entry of an instance in a database's status.
pub fn instance<'a>(cluster: &'a mut Value, pod: &str) -> &'a mut Value {
    let instances = cluster["status"]["instances"].as_array_mut().expect("instances");
    let found = instances.iter_mut().find(|instance| instance["name"] == pod);
    found.expect("an instance")
}
