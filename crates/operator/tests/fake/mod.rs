//! An API server in memory: versions, UIDs, preconditions, server-side apply (by laying over), merge patches, the status
//! subresource. It can die in the middle: the write is stored, and no answer ever comes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Plural, namespace and name.
pub type Path = (String, String, String);

/// The server; clones share it.
#[derive(Clone, Default)]
pub struct Fake(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    crashed: Notify,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Path, Value>,
    version: u64,
    writes: Vec<String>,
    /// The write with this number is stored and never answered.
    crash_at: Option<usize>,
}

impl Fake {
    /// A client of it.
    pub fn client(&self) -> Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request| {
            let fake = fake.clone();
            async move { fake.answer(request).await }
        });
        Client::new(service, "default")
    }

    /// Puts an object there, as somebody else would.
    pub fn put(&self, plural: &str, mut object: Value) {
        let mut state = self.0.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let path = (plural.to_owned(), text("namespace"), text("name"));
        state.objects.insert(path, object);
    }

    /// Everything that is stored.
    pub fn objects(&self) -> BTreeMap<Path, Value> {
        self.0.state.lock().unwrap().objects.clone()
    }

    /// The objects of one kind.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        self.objects()
            .into_iter()
            .filter(|((kind, _, _), _)| kind == plural)
            .map(|(_, object)| object)
            .collect()
    }

    /// The writes so far.
    pub fn writes(&self) -> Vec<String> {
        self.0.state.lock().unwrap().writes.clone()
    }

    /// Dies at this write, counted from 1; `None`: never.
    pub fn crash_at(&self, write: Option<usize>) {
        self.0.state.lock().unwrap().crash_at = write;
    }

    /// Returns when it has died.
    pub async fn crashed(&self) {
        self.0.crashed.notified().await;
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.map_err(std::io::Error::other)?;
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let (answer, died) = {
            let mut state = self.0.state.lock().unwrap();
            let before = state.writes.len();
            let answer = state.answer(&parts.method, parts.uri.path(), &body);
            let wrote = state.writes.len() > before;
            (answer, wrote && state.crash_at == Some(state.writes.len()))
        };
        if died {
            self.0.crashed.notify_one();
            std::future::pending::<()>().await;
        }
        let (code, object) = match answer {
            Ok(object) => (StatusCode::OK, object),
            Err((code, reason)) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                    "code": code.as_u16(), "reason": reason, "message": reason});
                (code, status)
            }
        };
        let response = Response::builder()
            .status(code)
            .header("content-type", "application/json");
        response
            .body(Body::from(object.to_string().into_bytes()))
            .map_err(std::io::Error::other)
    }
}

type Answer = Result<Value, (StatusCode, &'static str)>;

const NOT_FOUND: (StatusCode, &str) = (StatusCode::NOT_FOUND, "NotFound");
const CONFLICT: (StatusCode, &str) = (StatusCode::CONFLICT, "Conflict");

impl State {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> Answer {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let Some(place) = parts.iter().position(|part| *part == "namespaces") else {
            return Err(NOT_FOUND);
        };
        let rest = &parts[place + 1..];
        match (method, rest) {
            (&Method::GET, [namespace]) => Ok(json!({"metadata": {"name": namespace}})),
            (&Method::GET, [_, _]) => Ok(json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})),
            (&Method::GET, [namespace, plural, name]) => self
                .objects
                .get(&key(plural, namespace, name))
                .cloned()
                .ok_or(NOT_FOUND),
            (&Method::POST, [namespace, plural]) => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let key = key(plural, namespace, &name);
                if self.objects.contains_key(&key) {
                    return Err((StatusCode::CONFLICT, "AlreadyExists"));
                }
                Ok(self.store("create", key, body.clone()))
            }
            (&Method::PATCH, [namespace, plural, name]) => self.patch(key(plural, namespace, name), body),
            (&Method::DELETE, [namespace, plural, name]) => {
                let key = key(plural, namespace, name);
                check(self.objects.get(&key).ok_or(NOT_FOUND)?, &body["preconditions"])?;
                self.objects.remove(&key);
                self.writes.push(format!("delete {plural} {name}"));
                Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
            }
            (&Method::PUT, [namespace, plural, name, "status"]) => {
                let key = key(plural, namespace, name);
                let mut object = self.objects.get(&key).cloned().ok_or(NOT_FOUND)?;
                check(&object, &body["metadata"])?;
                object["status"] = body["status"].clone();
                Ok(self.store("status", key, object))
            }
            other => panic!("not expected: {other:?}"),
        }
    }

    /// Apply and merge patch differ in what becomes of a missing object. An empty desired map takes a live one away.
    fn patch(&mut self, key: Path, body: &Value) -> Answer {
        let applies = body.get("kind").is_some();
        match self.objects.get(&key).cloned() {
            Some(mut object) => {
                check(&object, &body["metadata"])?;
                let metadata = object["metadata"].clone();
                lay_over(&mut object, body);
                for fixed in ["uid", "resourceVersion"] {
                    object["metadata"][fixed] = metadata[fixed].clone();
                }
                Ok(self.store(if applies { "apply" } else { "merge" }, key, object))
            }
            None if applies => Ok(self.store("apply", key, body.clone())),
            None => Err(NOT_FOUND),
        }
    }

    fn store(&mut self, verb: &str, key: Path, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        metadata["namespace"] = json!(key.1);
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        self.writes.push(format!("{verb} {} {}", key.0, key.2));
        if key.0 == "statefulsets" {
            self.make_pods(&key, &object);
        }
        self.objects.insert(key, object.clone());
        object
    }

    /// As the StatefulSet controller does: pods from the template, and a bound claim for each.
    fn make_pods(&mut self, (_, namespace, set): &Path, object: &Value) {
        for ordinal in 0..object["spec"]["replicas"].as_u64().unwrap_or(0) {
            let template = &object["spec"]["template"];
            let claim = &object["spec"]["volumeClaimTemplates"][0];
            let (pod, data) = (format!("{set}-{ordinal}"), format!("data-{set}-{ordinal}"));
            let mut spec = template["spec"].clone();
            spec["nodeName"] = json!("n1");
            self.make("pods", namespace, &pod, &template["metadata"], json!({"spec": spec}));
            let bound = json!({"spec": claim["spec"], "status": {"phase": "Bound"}});
            self.make("persistentvolumeclaims", namespace, &data, &claim["metadata"], bound);
        }
    }

    fn make(&mut self, plural: &str, namespace: &str, name: &str, metadata: &Value, mut object: Value) {
        self.version += 1;
        object["metadata"] = metadata.clone();
        let more = json!({"name": name, "namespace": namespace, "uid": format!("uid-of-{name}"),
                          "resourceVersion": self.version.to_string(), "creationTimestamp": "2027-01-01T00:00:00Z"});
        lay_over(&mut object["metadata"], &more);
        self.objects.entry(key(plural, namespace, name)).or_insert(object);
    }
}

fn key(plural: &str, namespace: &str, name: &str) -> Path {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

fn check(live: &Value, wanted: &Value) -> Result<(), (StatusCode, &'static str)> {
    let fits = ["uid", "resourceVersion"]
        .iter()
        .all(|field| wanted[field].is_null() || wanted[field] == live["metadata"][field]);
    if fits { Ok(()) } else { Err(CONFLICT) }
}

fn lay_over(live: &mut Value, wanted: &Value) {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) if !wanted.is_empty() => {
            for (key, value) in wanted {
                if value.is_null() {
                    live.remove(key);
                } else {
                    lay_over(live.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (live, wanted) => *live = wanted.clone(),
    }
}
