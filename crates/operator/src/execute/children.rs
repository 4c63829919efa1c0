//! Making and changing the children.

use api::names::LEASE_VOLUMES;
use std::collections::BTreeMap;

use api::spec::PasswordSecretRef;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service, ServiceAccount, ServiceSpec};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::core::{ObjectMeta, PartialObjectMeta, PartialObjectMetaExt};
use machine::cluster::{Apply, ApplyHow, FaultKind, Known, ObjectVersion, OwnedObject, OwnedState, password_refusal};
use machine::lease_object;
use machine::rotation::Step;
use serde_json::{Value, json};

use super::reads::note_content;
use super::{Executor, Failure, Outcome, Seen};
use crate::builders::{Subject, endpoint_slice, lease, secrets};
use crate::cache::Key;
use crate::caches::Watched;
use crate::certificates;
use crate::credentials::Password;
use crate::desired::{Desired, applied, desired};
use crate::drift::differences;
use crate::memory::Memory;
use crate::observe::cached;
use crate::requests::{Requests, Writable};

/// One write of an object.
struct Write<'a> {
    key: &'a Key,
    subject: &'a Subject<'a>,
    desired: &'a Desired,
    apply: &'a Apply,
    /// The content for server-side apply.
    body: Value,
}

impl Executor {
    /// Brings one child to what it should be.
    pub(super) async fn apply(
        &self,
        key: &Key,
        memory: &mut Memory,
        subject: &Subject<'_>,
        seen: &Seen,
        apply: &Apply,
    ) -> Result<Outcome, Failure> {
        let kind = apply.kind;
        let Some(wants) = memory.wants.clone() else {
            return Ok(Outcome::Outdated);
        };
        let desired = desired(&subject.with_wal(apply.wal.unwrap_or(wants.inputs.wal)), kind);
        if apply.how == ApplyHow::Make && self.is_going(key, kind) {
            return Ok(Outcome::NotYet);
        }
        let mut body = applied(&desired, kind, apply.replicas.or_else(|| replicas(seen)));
        if kind == OwnedObject::Lease
            && apply.how == ApplyHow::Make
            && let Some(volumes) = lease_object::volumes_of(subject.volume_set())
        {
            body["metadata"]["annotations"] = json!({LEASE_VOLUMES: volumes});
        }
        let write = Write {
            key,
            subject,
            desired: &desired,
            apply,
            body,
        };
        let written = self.write(memory, write).await;
        memory.compared.remove(&kind);
        match written {
            Ok(live) => {
                memory.strays.remove(&kind);
                self.note_tolerated(key, memory, kind, &desired, &live);
                Ok(Outcome::Done)
            }
            Err(failure) => {
                if apply.how == ApplyHow::Make && failure.kind == FaultKind::Conflict {
                    // There is one, and the watch does not show it (yet): look at it before deciding again.
                    memory.strays.insert(kind);
                }
                Err(failure)
            }
        }
    }

    async fn write(&self, memory: &mut Memory, write: Write<'_>) -> Result<Value, Failure> {
        let subject = write.subject;
        match write.apply.kind {
            OwnedObject::ServiceAccount => self.put::<ServiceAccount>(write).await,
            OwnedObject::Role => self.put::<Role>(write).await,
            OwnedObject::RoleBinding => self.put::<RoleBinding>(write).await,
            OwnedObject::HeadlessService | OwnedObject::RwService | OwnedObject::RoService | OwnedObject::RService => {
                self.put_service(write).await
            }
            OwnedObject::PodDisruptionBudget | OwnedObject::PrimaryBudget => {
                self.put::<PodDisruptionBudget>(write).await
            }
            OwnedObject::NetworkPolicy => self.put::<NetworkPolicy>(write).await,
            OwnedObject::StatefulSet => self.put::<StatefulSet>(write).await,
            OwnedObject::CaSecret | OwnedObject::TlsSecret | OwnedObject::AppSecret => {
                self.put_secret(memory, write).await
            }
            OwnedObject::EndpointSlice => self.put_once(&endpoint_slice::endpoint_slice(subject), write).await,
            OwnedObject::Lease => self.put_once(&lease::lease(subject), write).await,
        }
    }

    /// By server-side apply.
    async fn put<K: Writable + Watched>(&self, write: Write<'_>) -> Result<Value, Failure> {
        let namespace = &write.key.namespace;
        let object: K = match write.apply.how.exact() {
            Some(exact) => self.requests.apply_to(namespace, exact, write.body).await?,
            None => {
                self.requests
                    .apply_new(namespace, &write.desired.name, write.body)
                    .await?
            }
        };
        let live = serde_json::to_value(&object).unwrap_or_default();
        K::cache(&self.caches).put(object);
        Ok(live)
    }

    /// By server-side apply, which takes away what the spec asks for no longer. By merge patch if somebody has edited ports or
    /// selector, because that replaces lists: server-side apply knows ports by their number, so that one that was edited would
    /// stay beside ours (and be refused for its name). Whatever else differs is applied next.
    async fn put_service(&self, write: Write<'_>) -> Result<Value, Failure> {
        let before = self.caches.services.get(write.key, &write.desired.name).flatten();
        let before = before.and_then(|service| service.spec.clone()).unwrap_or_default();
        let exact = write
            .apply
            .how
            .exact()
            .filter(|_| is_edited(&before, &write.body["spec"]));
        let Some(exact) = exact else {
            return self.put::<Service>(write).await;
        };
        let selector = before.selector.unwrap_or_default();
        let change = ports_and_selector(&write.body["spec"], selector.into_keys());
        let service: Service = self.requests.merge(&write.key.namespace, exact, change).await?;
        let live = serde_json::to_value(&service).unwrap_or_default();
        self.caches.services.put(service);
        Ok(live)
    }

    /// Creates the whole object; later only its metadata is changed.
    async fn put_once<K: Writable + Watched>(&self, new: &K, write: Write<'_>) -> Result<Value, Failure> {
        let namespace = &write.key.namespace;
        let object: K = match write.apply.how.exact() {
            Some(exact) => self.requests.merge(namespace, exact, metadata(write.desired)).await?,
            None => self.requests.create(namespace, new).await?,
        };
        let live = json!({"metadata": object.meta()});
        K::cache(&self.caches).put(object);
        Ok(live)
    }

    /// Like [`Self::put_once`], but the content can be renewed, and the cache gets the metadata alone.
    async fn put_secret(&self, memory: &mut Memory, write: Write<'_>) -> Result<Value, Failure> {
        let Write {
            key,
            subject,
            desired,
            apply,
            ..
        } = write;
        let secret: Secret = match &apply.how {
            ApplyHow::Make => {
                let new = self.secret(subject, apply.kind, None).await?;
                self.requests.create(&key.namespace, &new).await?
            }
            ApplyHow::Change(exact) => self.requests.merge(&key.namespace, exact, metadata(desired)).await?,
            ApplyHow::Renew(exact) => self.renew(key, subject, apply.kind, exact).await?,
            ApplyHow::Rotate(exact, step) => self.rotate(key, subject, exact, step).await?,
        };
        note_content(memory, apply.kind, &secret, subject.db);
        let partial = secret.metadata.into_response_partial::<Secret>();
        let live = json!({"metadata": partial.metadata});
        self.caches.secrets.put(partial);
        Ok(live)
    }

    /// Gives this very Secret new content; a password that is still in it stays.
    async fn renew(
        &self,
        key: &Key,
        subject: &Subject<'_>,
        kind: OwnedObject,
        exact: &ObjectVersion,
    ) -> Result<Secret, Failure> {
        let before: Option<Secret> = self.requests.get(&key.namespace, exact.name()).await?;
        let password = before
            .as_ref()
            .and_then(|secret| secrets::password_of(secret, secrets::PASSWORD_KEY));
        let new = self.secret(subject, kind, password).await?;
        let data = serde_json::to_value(&new.data).unwrap_or_default();
        Ok(self
            .requests
            .merge(&key.namespace, exact, json!({"data": data}))
            .await?)
    }

    /// Takes a step of a rotation in this very Secret of the authority.
    async fn rotate(
        &self,
        key: &Key,
        subject: &Subject<'_>,
        exact: &ObjectVersion,
        step: &Step,
    ) -> Result<Secret, Failure> {
        let before: Option<Secret> = self.requests.get(&key.namespace, exact.name()).await?;
        let lacks = || Failure {
            kind: FaultKind::Conflict,
            message: format!(
                "Secret {} does not hold what the rotation of the authority needs",
                exact.name()
            ),
        };
        let (before, now) = (before.ok_or_else(lacks)?, (self.clock)());
        let next = || certificates::authority(subject, now);
        let data = secrets::rotated(&before, step, now, next).map_err(impossible)?;
        let change = json!({"data": data.ok_or_else(lacks)?});
        Ok(self.requests.merge(&key.namespace, exact, change).await?)
    }

    /// A Secret with new content; the application's with this password, if there is one.
    async fn secret(
        &self,
        subject: &Subject<'_>,
        kind: OwnedObject,
        password: Option<Password>,
    ) -> Result<Secret, Failure> {
        let now = (self.clock)();
        Ok(match kind {
            OwnedObject::CaSecret => secrets::ca(subject, &certificates::authority(subject, now).map_err(impossible)?),
            OwnedObject::TlsSecret => {
                let (authority, trusted) = authority(&self.requests, subject).await?;
                let agents = certificates::agents(subject, &authority, now).map_err(impossible)?;
                secrets::tls(subject, &agents, &trusted)
            }
            OwnedObject::AppSecret => {
                let password = match password {
                    Some(password) => password,
                    None => self.password(subject).await?,
                };
                let (_, trusted) = authority(&self.requests, subject).await?;
                secrets::app(subject, &password, &trusted)
            }
            other => {
                return Err(Failure {
                    kind: FaultKind::Transient,
                    message: format!("{} is no Secret", other.kind()),
                });
            }
        })
    }

    /// The application user's password: the one in the user's Secret, or a fresh one.
    async fn password(&self, subject: &Subject<'_>) -> Result<Password, Failure> {
        let Some(PasswordSecretRef { name, key }) = &subject.db.spec.initdb().password_secret_ref else {
            return Password::generate().map_err(impossible);
        };
        let wait = |message: String| Failure {
            kind: FaultKind::Transient,
            message,
        };
        let secret: Option<Secret> = self.requests.get(&subject.namespace, name).await?;
        let secret = secret.ok_or_else(|| wait(format!("the Secret {name} (passwordSecretRef) does not exist")))?;
        let labels = secret.metadata.labels.clone().unwrap_or_default();
        if let Some(refusal) = password_refusal(subject.names.cluster(), name, &labels) {
            return Err(wait(refusal));
        }
        secrets::password_of(&secret, key).ok_or_else(|| {
            wait(format!(
                "the Secret {name} (passwordSecretRef) has no text under the key `{key}`"
            ))
        })
    }

    /// Remembers what our own apply did not change, so that it is not tried for ever.
    fn note_tolerated(&self, key: &Key, memory: &mut Memory, kind: OwnedObject, desired: &Desired, live: &Value) {
        let left = differences(&desired.content, live);
        if left.is_empty() {
            memory.tolerated.remove(&kind);
        } else if !kind.owned().is_metadata_only {
            tracing::warn!(database = %key, ?kind, ?left, "the API server does not keep what was applied");
            memory.tolerated.insert(kind, left);
        }
    }

    /// An object of this name is being deleted: it cannot be made before it is gone.
    fn is_going(&self, key: &Key, kind: OwnedObject) -> bool {
        let object = self.child(key, kind);
        object.is_some_and(|object| object.deletion_timestamp.is_some())
    }

    /// The metadata of the child of this kind, as the watch has shown it.
    pub(super) fn child(&self, key: &Key, kind: OwnedObject) -> Option<ObjectMeta> {
        let object: PartialObjectMeta = cached(&self.caches, key, kind)??.read()?;
        Some(object.metadata)
    }
}

/// The number of members that the StatefulSet has, for a change that is not about it.
fn replicas(seen: &Seen) -> Option<u32> {
    let known = matches!(
        seen.observed.children[OwnedObject::StatefulSet],
        Known::Known(OwnedState::Drifted { .. })
    );
    seen.observed
        .stateful_set
        .as_ref()
        .filter(|_| known)
        .map(|set| set.replicas)
}

/// Whether a Service has a port or a key of its selector that is not wanted.
fn is_edited(live: &ServiceSpec, wanted: &Value) -> bool {
    let numbers = wanted["ports"].as_array().into_iter().flatten();
    let numbers: Vec<_> = numbers.filter_map(|port| port["port"].as_i64()).collect();
    let mut ports = live.ports.iter().flatten();
    let mut keys = live.selector.iter().flat_map(BTreeMap::keys);
    ports.any(|port| !numbers.contains(&port.port.into())) || keys.any(|key| wanted["selector"][key].is_null())
}

/// A merge patch of ports and selector, which also takes away the keys of the selector that are not wanted. It has nothing else: what
/// is written by a merge patch, a later server-side apply does not take away.
fn ports_and_selector(wanted: &Value, live: impl Iterator<Item = String>) -> Value {
    let (ports, mut selector) = (&wanted["ports"], wanted["selector"].clone());
    if selector.is_null() {
        selector = json!({});
    }
    for key in live {
        if selector[&key].is_null() {
            selector[&key] = Value::Null;
        }
    }
    json!({"spec": {"ports": ports, "selector": selector}})
}

/// What of an object that is made once is still ours.
fn metadata(desired: &Desired) -> Value {
    let metadata = &desired.content["metadata"];
    json!({"metadata": {"labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"]}})
}

/// Errors of our own making, which no waiting ends; none of their messages holds a secret.
fn impossible(error: impl std::error::Error) -> Failure {
    Failure {
        kind: FaultKind::Transient,
        message: error.to_string(),
    }
}

/// The certificate authority that issues, and the certificates of all that are trusted, from their Secret.
pub(super) async fn authority(
    requests: &Requests,
    subject: &Subject<'_>,
) -> Result<(certificates::Pair, String), Failure> {
    let name = subject.names.ca_secret();
    let secret: Option<Secret> = requests.get(&subject.namespace, &name).await?;
    let held = |secret: &Secret| secrets::authority_of(secret).zip(secrets::trusted_of(secret));
    secret.as_ref().and_then(held).ok_or_else(|| Failure {
        kind: FaultKind::Transient,
        message: format!("the Secret {name} does not hold the certificate authority (ca.crt, ca.key)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_that_somebody_added_is_taken_away() {
        let live = || ["app".to_owned(), "role".to_owned()].into_iter();
        let wanted = json!({"ports": [{"port": 5432}], "selector": {"app": "db"}, "type": "LoadBalancer"});
        let change = ports_and_selector(&wanted, live());
        let expected = json!({"ports": [{"port": 5432}], "selector": {"app": "db", "role": null}});
        assert_eq!(
            change,
            json!({"spec": expected}),
            "and nothing that could not be taken away later"
        );
        let change = ports_and_selector(&json!({"ports": []}), live());
        assert_eq!(change["spec"]["selector"], json!({"app": null, "role": null}));
    }
}
