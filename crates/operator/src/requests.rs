//! Requests to the API server: each with a time limit and counted, none repeated behind our back.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use api::Guarded;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Client, Resource};
use machine::cluster::{Exact, FaultKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::builders::MANAGER;
use crate::metrics::Metrics;

/// How long one request may take. The API server ends its own after a minute; a database must not wait that long
/// behind one that hangs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// How many writes the operator makes before it ends itself; set by tests only.
const CRASH_VARIABLE: &str = "CDB_CRASH_AFTER_WRITES";
/// An object can have no such version (etcd starts behind it), so an apply with it makes, and never changes.
const NO_VERSION: &str = "1";
/// The API server's words for a path that it does not serve.
const NO_SUCH_RESOURCE: &str = "could not find the requested resource";
/// The API server's words for who may not change a pod's cpu and memory in place.
const MAY_NOT_RESIZE: &str = "cannot patch resource \"pods/resize\"";

/// The API server, as the executor uses it.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    metrics: Metrics,
    crash: Crash,
}

/// Ends the operator, as if it were killed, right after so many writes: for the tests of what it leaves behind.
#[derive(Clone, Default)]
struct Crash(Option<Arc<AtomicU32>>);

impl Crash {
    /// As the environment says; normally never.
    fn from_environment() -> Self {
        let writes = std::env::var(CRASH_VARIABLE).ok().and_then(|text| text.parse().ok());
        Self(writes.map(|writes: u32| Arc::new(AtomicU32::new(writes))))
    }

    fn after_a_write(&self) {
        let left = self.0.as_ref().map(|left| left.fetch_sub(1, Ordering::SeqCst));
        if left == Some(1) {
            std::process::abort();
        }
    }
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is no such object.
    #[error("not found: {0}")]
    NotFound(String),
    /// The API server refused it.
    #[error("{message}")]
    Refused {
        /// The kind of refusal.
        kind: FaultKind,
        /// The API server's words.
        message: String,
    },
    /// No answer in time. It may have been carried out all the same.
    #[error("no answer in {} s", TIMEOUT.as_secs())]
    Timeout,
    /// No connection, or an answer that cannot be understood.
    #[error("{0}")]
    Transport(String),
    /// The object cannot be read. A write of it was carried out.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

impl Refused {
    /// What a decision sees of it.
    pub fn kind(&self) -> FaultKind {
        match self {
            // What we wanted to change is gone: it has changed meanwhile.
            Refused::NotFound(_) => FaultKind::Conflict,
            Refused::Refused { kind, .. } => *kind,
            Refused::Timeout | Refused::Transport(_) | Refused::Unreadable(_) => FaultKind::Transient,
        }
    }
}

/// What became of an object that was deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum Deleted<K> {
    /// It is gone.
    Gone,
    /// It goes in its own time; this is what it is now.
    Going(Box<K>),
}

/// An object that can be written in a namespace.
pub trait Writable:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl<K> Writable for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl Requests {
    /// Requests through this client. Its retries must be off.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        let crash = Crash::from_environment();
        Self { client, metrics, crash }
    }

    /// Reads one object.
    pub async fn get<K: Writable>(&self, namespace: &str, name: &str) -> Result<Option<K>, Refused> {
        match self.limited(self.api::<K>(namespace).get(name)).await {
            Ok(object) => Ok(Some(readable(object)?)),
            Err(Refused::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes an object that is never applied later.
    pub async fn create<K: Writable>(&self, namespace: &str, object: &K) -> Result<K, Refused> {
        let params = PostParams {
            dry_run: false,
            field_manager: Some(MANAGER.to_owned()),
        };
        let object = Guarded::from(object.clone());
        let api = self.api::<K>(namespace);
        readable(self.write::<K, _>("create", api.create(&params, &object)).await?)
    }

    /// Makes an object by server-side apply; a conflict if there is one of that name already.
    pub async fn apply_new<K: Writable>(&self, namespace: &str, name: &str, content: Value) -> Result<K, Refused> {
        self.apply(namespace, name, content, json!({"resourceVersion": NO_VERSION}))
            .await
    }

    /// Changes this very object by server-side apply.
    pub async fn apply_to<K: Writable>(&self, namespace: &str, exact: &Exact, content: Value) -> Result<K, Refused> {
        self.apply(namespace, exact.name(), content, precondition(exact)).await
    }

    /// Changes this very object by merge patch.
    pub async fn merge<K: Writable>(&self, namespace: &str, exact: &Exact, change: Value) -> Result<K, Refused> {
        let patch = Patch::Merge(with_metadata(change, precondition(exact)));
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api::<K>(namespace);
        readable(
            self.write::<K, _>("patch", api.patch(exact.name(), &params, &patch))
                .await?,
        )
    }

    /// Changes the resources of this very pod's containers in place, by strategic merge patch of its subresource `resize`.
    pub async fn resize(&self, namespace: &str, exact: &Exact, change: Value) -> Result<Pod, Refused> {
        let patch = Patch::Strategic(with_metadata(change, precondition(exact)));
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let pods = self.api::<Pod>(namespace);
        let request = pods.patch_subresource("resize", exact.name(), &params, &patch);
        let answer = self.write::<Pod, _>("resize", request);
        match answer.await {
            // Kubernetes before 1.33 has no such subresource; its words are those for any path that there is not.
            Err(Refused::NotFound(message)) if message.contains(NO_SUCH_RESOURCE) => Err(Refused::Refused {
                kind: FaultKind::Invalid,
                message: format!("the API server does not offer it: {message}"),
            }),
            // Admission would refuse a new pod as well; who may not do this one thing may still replace pods.
            Err(Refused::Refused {
                kind: FaultKind::Forbidden,
                message,
            }) if message.contains(MAY_NOT_RESIZE) => Err(Refused::Refused {
                kind: FaultKind::Invalid,
                message,
            }),
            answer => readable(answer?),
        }
    }

    /// Replaces the status, if the object is still at the version that `object` has.
    pub async fn replace_status<K: Writable>(&self, namespace: &str, name: &str, object: &K) -> Result<K, Refused> {
        let params = PostParams {
            dry_run: false,
            field_manager: Some(MANAGER.to_owned()),
        };
        let object = Guarded::from(object.clone());
        let api = self.api::<K>(namespace);
        readable(
            self.write::<K, _>("update-status", api.replace_status(name, &params, &object))
                .await?,
        )
    }

    /// Deletes this very object; it is no error if it is gone already.
    pub async fn delete<K: Writable>(
        &self,
        namespace: &str,
        exact: &Exact,
        propagation: PropagationPolicy,
    ) -> Result<Deleted<K>, Refused> {
        let params = DeleteParams {
            propagation_policy: Some(propagation),
            preconditions: Some(Preconditions {
                uid: Some(exact.uid().to_owned()),
                resource_version: Some(exact.resource_version().to_owned()),
            }),
            ..DeleteParams::default()
        };
        let api = self.api::<K>(namespace);
        match self.write::<K, _>("delete", api.delete(exact.name(), &params)).await {
            Ok(answer) => {
                let going = answer.left().map(readable).transpose()?;
                Ok(going.map_or(Deleted::Gone, |object| Deleted::Going(Box::new(object))))
            }
            Err(Refused::NotFound(_)) => Ok(Deleted::Gone),
            Err(error) => Err(error),
        }
    }

    /// The client, for what is not in a namespace.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs a request that writes: counted, with the time limit.
    async fn write<K: Writable, T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Refused> {
        self.metrics.write(verb, &K::kind(&()));
        let answer = self.limited(request).await;
        self.crash.after_a_write();
        answer
    }

    /// Runs a request with the time limit.
    pub async fn limited<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Refused> {
        match tokio::time::timeout(TIMEOUT, request).await {
            Ok(answer) => answer.map_err(classify),
            Err(_) => Err(Refused::Timeout),
        }
    }

    async fn apply<K: Writable>(
        &self,
        namespace: &str,
        name: &str,
        content: Value,
        metadata: Value,
    ) -> Result<K, Refused> {
        let patch = Patch::Apply(with_metadata(content, metadata));
        // Force: what a builder names is ours, whoever wrote it last.
        let params = PatchParams::apply(MANAGER).force();
        let api = self.api::<K>(namespace);
        readable(self.write::<K, _>("apply", api.patch(name, &params, &patch)).await?)
    }

    fn api<K: Writable>(&self, namespace: &str) -> Api<Guarded<K>> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

fn readable<K>(object: Guarded<K>) -> Result<K, Refused> {
    object.0.map_err(|unreadable| Refused::Unreadable(unreadable.why))
}

fn precondition(exact: &Exact) -> Value {
    json!({"uid": exact.uid(), "resourceVersion": exact.resource_version()})
}

fn with_metadata(mut content: Value, more: Value) -> Value {
    if let (Some(metadata), Value::Object(more)) = (content["metadata"].as_object_mut(), more.clone()) {
        metadata.extend(more);
    } else {
        content["metadata"] = more;
    }
    content
}

fn classify(error: kube::Error) -> Refused {
    let kube::Error::Api(status) = error else {
        return Refused::Transport(with_sources(&error));
    };
    let message = status.message.clone();
    let kind = match status.code {
        404 => return Refused::NotFound(message),
        403 if message.contains("exceeded quota") => FaultKind::Quota,
        401 | 403 => FaultKind::Forbidden,
        400 | 422 => FaultKind::Invalid,
        409 => FaultKind::Conflict,
        _ => FaultKind::Transient,
    };
    Refused::Refused { kind, message }
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn kind_of(code: u16, message: &str) -> FaultKind {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        };
        classify(kube::Error::Api(Box::new(status))).kind()
    }

    #[test]
    fn refusals_are_told_apart() {
        assert_eq!(
            kind_of(403, "pods \"a\" is forbidden: exceeded quota: q"),
            FaultKind::Quota
        );
        assert_eq!(kind_of(403, "forbidden"), FaultKind::Forbidden);
        assert_eq!(kind_of(422, "spec: Invalid value"), FaultKind::Invalid);
        assert_eq!(kind_of(409, "the object has been modified"), FaultKind::Conflict);
        assert_eq!(kind_of(404, "not found"), FaultKind::Conflict);
        assert_eq!(kind_of(429, "too many requests"), FaultKind::Transient);
        assert_eq!(kind_of(504, "timeout"), FaultKind::Transient);
    }

    /// Answers every request with this, and with the request's method, path, content type and body as its message.
    fn echoing(code: u16, message: &'static str) -> Requests {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.map_err(std::io::Error::other)?;
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let kind = parts.headers["content-type"].to_str().unwrap_or_default();
            let said = format!("{message} {} {} {kind} {body}", parts.method, parts.uri.path());
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                "code": code, "reason": "Any", "message": said});
            let answer = http::Response::builder().status(code);
            answer
                .body(kube::client::Body::from(status.to_string().into_bytes()))
                .map_err(std::io::Error::other)
        });
        Requests::new(Client::new(service, "default"), Metrics::default())
    }

    #[tokio::test]
    async fn a_resize_asks_for_this_very_pod_and_a_server_that_does_not_know_it_refuses() {
        let exact = Exact::new("db-0", "u", "7");
        let ask = |code, message| {
            let (exact, requests) = (exact.clone(), echoing(code, message));
            async move { requests.resize("ns", &exact, json!({"spec": {}})).await.unwrap_err() }
        };
        let refused = ask(422, "no").await;
        assert_eq!(refused.kind(), FaultKind::Invalid);
        assert_eq!(
            refused.to_string(),
            "no PATCH /api/v1/namespaces/ns/pods/db-0/resize application/strategic-merge-patch+json \
             {\"metadata\":{\"resourceVersion\":\"7\",\"uid\":\"u\"},\"spec\":{}}"
        );
        let unknown = ask(404, "the server could not find the requested resource").await;
        assert_eq!(unknown.kind(), FaultKind::Invalid, "the pod is replaced then");
        assert_eq!(ask(404, "pods \"db-0\" not found").await.kind(), FaultKind::Conflict);
        let rbac = "pods \"db-0\" is forbidden: User \"op\" cannot patch resource \"pods/resize\" in API group \"\"";
        assert_eq!(
            ask(403, rbac).await.kind(),
            FaultKind::Invalid,
            "nor may this operator do it"
        );
        let limits = "pods \"db-0\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
        assert_eq!(
            ask(403, limits).await.kind(),
            FaultKind::Forbidden,
            "a new pod would be refused as well"
        );
    }

    #[test]
    fn preconditions_do_not_displace_metadata() {
        let content = with_metadata(json!({"metadata": {"name": "a"}}), json!({"uid": "u"}));
        assert_eq!(content, json!({"metadata": {"name": "a", "uid": "u"}}));
        assert_eq!(with_metadata(json!({}), json!({"uid": "u"}))["metadata"]["uid"], "u");
    }
}
