//! Requests to the API server. Each has a time limit and is counted, and none is retried without the caller's
//! knowledge.

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
use machine::cluster::{FaultKind, ObjectVersion, why_never_resized};
use serde_json::{Value, json};

use crate::builders::MANAGER;
use crate::cache::Kept;
use crate::metrics::Metrics;

/// Time limit of a request. The API server's own is a minute; a request that hangs must not delay a database as long as
/// that.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// The environment variable with the number of writes after which the operator ends itself. Only tests set it.
const CRASH_VARIABLE: &str = "CDB_CRASH_AFTER_WRITES";
/// A version that no object has, since etcd starts with a higher one. So an apply with it creates an object, and never
/// changes one.
const NO_VERSION: &str = "1";
/// The API server, as the executor uses it.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    metrics: Metrics,
    crash: Crash,
}

/// Ends the operator, as if it were killed, right after this many writes. Tests check what it leaves behind.
#[derive(Clone, Default)]
struct Crash(Option<Arc<AtomicU32>>);

impl Crash {
    /// Reads [`CRASH_VARIABLE`]; without it the operator never ends itself.
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
        /// The API server's message.
        message: String,
    },
    /// The API server did not answer in time. The request may have been carried out all the same.
    #[error("no answer in {} s", TIMEOUT.as_secs())]
    Timeout,
    /// There was no connection, or the answer is not understood.
    #[error("{0}")]
    Transport(String),
    /// The returned object is not understood. A write of it was carried out.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

impl Refused {
    /// The kind of failure, for decisions.
    pub fn kind(&self) -> FaultKind {
        match self {
            // The object of the write is gone: it has changed meanwhile.
            Refused::NotFound(_) => FaultKind::Conflict,
            Refused::Refused { kind, .. } => *kind,
            Refused::Timeout | Refused::Transport(_) | Refused::Unreadable(_) => FaultKind::Transient,
        }
    }
}

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Deleted<K> {
    /// It is gone.
    Gone,
    /// The object is marked for deletion, and is now in this state.
    Going(Box<K>),
}

/// An object that can be written in a namespace.
pub trait Writable: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Kept {}

impl<K> Writable for K where K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Kept {}

impl Requests {
    /// Requests through this client. Its retries must be off.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        let crash = Crash::from_environment();
        Self { client, metrics, crash }
    }

    /// Reads one object.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood. A missing object is no error.
    pub async fn get<K: Writable>(&self, namespace: &str, name: &str) -> Result<Option<K>, Refused> {
        match self.limited(self.api::<K>(namespace).get(name)).await {
            Ok(object) => Ok(Some(readable(object)?)),
            Err(Refused::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object that is never applied later.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood.
    pub async fn create<K: Writable>(&self, namespace: &str, object: &K) -> Result<K, Refused> {
        let params = PostParams {
            dry_run: false,
            field_manager: Some(MANAGER.to_owned()),
        };
        let object = Guarded::from(object.clone());
        let api = self.api::<K>(namespace);
        readable(self.write::<K, _>("create", api.create(&params, &object)).await?)
    }

    /// Creates an object by server-side apply.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood. The kind is [`FaultKind::Conflict`] if there is an object of that name already.
    pub async fn apply_new<K: Writable>(&self, namespace: &str, name: &str, content: Value) -> Result<K, Refused> {
        self.apply(namespace, name, content, json!({"resourceVersion": NO_VERSION}))
            .await
    }

    /// Changes an object by server-side apply, if it still has the UID and version of `exact`.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood. The kind is [`FaultKind::Conflict`] if the object has changed.
    pub async fn apply_to<K: Writable>(
        &self,
        namespace: &str,
        exact: &ObjectVersion,
        content: Value,
    ) -> Result<K, Refused> {
        self.apply(namespace, exact.name(), content, precondition(exact)).await
    }

    /// Changes an object by merge patch, if it still has the UID and version of `exact`.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood. The kind is [`FaultKind::Conflict`] if the object has changed.
    pub async fn merge<K: Writable>(
        &self,
        namespace: &str,
        exact: &ObjectVersion,
        change: Value,
    ) -> Result<K, Refused> {
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

    /// Changes the resources of a pod's containers in place, by strategic merge patch of its subresource `resize`, if
    /// the pod still has the UID and version of `exact`.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood. The kind is [`FaultKind::Conflict`] if the object has changed. It is [`FaultKind::Invalid`] if
    /// the API server does not offer this, or the operator may not do it: the pod can then be replaced.
    pub async fn resize(&self, namespace: &str, exact: &ObjectVersion, change: Value) -> Result<Pod, Refused> {
        let patch = Patch::Strategic(with_metadata(change, precondition(exact)));
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let pods = self.api::<Pod>(namespace);
        let request = pods.patch_subresource("resize", exact.name(), &params, &patch);
        let answer = self.write::<Pod, _>("resize", request);
        let error = match answer.await {
            Ok(pod) => return readable(pod),
            Err(error) => error,
        };
        let (Refused::NotFound(message) | Refused::Refused { message, .. }) = &error else {
            return Err(error);
        };
        match why_never_resized(error.kind(), message) {
            Some(message) => Err(Refused::Refused {
                kind: FaultKind::Invalid,
                message,
            }),
            None => Err(error),
        }
    }

    /// Replaces the status, if the object still has the version of `object`.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood. The kind is [`FaultKind::Conflict`] if the object has changed.
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

    /// Deletes an object, if it still has the UID and version of `exact`. A missing object counts as deleted.
    ///
    /// # Errors
    /// Fails with [`Refused`], which says whether the API server refused, did not answer, or answered something that is
    /// not understood. The kind is [`FaultKind::Conflict`] if the object has changed.
    pub async fn delete<K: Writable>(
        &self,
        namespace: &str,
        exact: &ObjectVersion,
        propagation: PropagationPolicy,
    ) -> Result<Deleted<K>, Refused> {
        let params = DeleteParams {
            propagation_policy: Some(propagation),
            preconditions: Some(Preconditions {
                uid: Some(exact.uid().to_owned()),
                resource_version: Some(exact.resource_version().to_owned()).filter(|version| !version.is_empty()),
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

    /// The client, for requests that are not made in one namespace.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs a request that writes: counts it, and sets the time limit.
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
    ///
    /// # Errors
    /// Fails with [`Refused::Timeout`] after ten seconds, and otherwise as the request does.
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
        // Force: the fields that a builder names belong to the operator, whoever wrote them last.
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

fn precondition(exact: &ObjectVersion) -> Value {
    match exact.resource_version() {
        "" => json!({"uid": exact.uid()}),
        version => json!({"uid": exact.uid(), "resourceVersion": version}),
    }
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
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
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

    /// An API server that answers every request with this code. Its message also quotes the request's method, path,
    /// content type and body.
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
        let exact = ObjectVersion::new("db-0", "u", "7");
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
