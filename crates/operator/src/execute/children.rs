//! Making and changing the children.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::core::{ObjectMeta, PartialObjectMetaExt};
use machine::cluster::{Apply, ApplyHow, ChildKind, ChildState, Exact, FaultKind, Known, password_refusal};
use serde_json::{Value, json};

use super::reads::note_content;
use super::{Executor, Failure, Outcome, Seen};
use crate::builders::{Subject, endpoint_slice, lease, secrets};
use crate::cache::{Cache, Kept, Key};
use crate::certificates;
use crate::credentials::Password;
use crate::desired::{Desired, applied, desired, metadata_only};
use crate::drift::differences;
use crate::memory::Memory;
use crate::requests::Writable;

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
        let desired = desired(&subject.with_wal(apply.wal.unwrap_or(wants.wal)), kind);
        if apply.how == ApplyHow::Make && self.is_going(key, kind) {
            return Ok(Outcome::NotYet);
        }
        let body = applied(&desired, kind, apply.replicas.or_else(|| replicas(seen)));
        let written = self.write(key, memory, subject, apply, &desired, body).await;
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

    async fn write(
        &self,
        key: &Key,
        memory: &mut Memory,
        subject: &Subject<'_>,
        Apply { kind, how, .. }: &Apply,
        desired: &Desired,
        body: Value,
    ) -> Result<Value, Failure> {
        let kind = *kind;
        let exact = match how {
            ApplyHow::Make => None,
            ApplyHow::Change(exact) | ApplyHow::Renew(exact) => Some(exact),
        };
        let caches = &self.caches;
        let name = &desired.name;
        match kind {
            ChildKind::ServiceAccount => {
                self.put::<ServiceAccount>(key, &caches.service_accounts, name, exact, body)
                    .await
            }
            ChildKind::Role => self.put::<Role>(key, &caches.roles, name, exact, body).await,
            ChildKind::RoleBinding => {
                self.put::<RoleBinding>(key, &caches.role_bindings, name, exact, body)
                    .await
            }
            ChildKind::HeadlessService | ChildKind::RwService | ChildKind::RoService | ChildKind::RService => {
                let body = match exact {
                    Some(exact) => return self.change_service(key, exact, body).await,
                    None => body,
                };
                self.put::<Service>(key, &caches.services, name, None, body).await
            }
            ChildKind::PodDisruptionBudget | ChildKind::PrimaryBudget => {
                self.put::<PodDisruptionBudget>(key, &caches.budgets, name, exact, body)
                    .await
            }
            ChildKind::NetworkPolicy => {
                self.put::<NetworkPolicy>(key, &caches.network_policies, name, exact, body)
                    .await
            }
            ChildKind::StatefulSet => {
                self.put::<StatefulSet>(key, &caches.stateful_sets, name, exact, body)
                    .await
            }
            ChildKind::CaSecret | ChildKind::TlsSecret | ChildKind::AppSecret => {
                let secret: Secret = match how {
                    ApplyHow::Make => {
                        let new = self.secret(subject, kind, None).await?;
                        self.requests.create(&key.namespace, &new).await?
                    }
                    ApplyHow::Change(exact) => self.requests.merge(&key.namespace, exact, metadata(desired)).await?,
                    ApplyHow::Renew(exact) => self.renew(key, subject, kind, exact).await?,
                };
                note_content(memory, kind, &secret, subject.db);
                let partial = secret.metadata.into_response_partial::<Secret>();
                let live = json!({"metadata": partial.metadata});
                caches.secrets.put(partial);
                Ok(live)
            }
            ChildKind::EndpointSlice => {
                let slice = endpoint_slice::endpoint_slice(subject);
                self.once(key, &caches.endpoint_slices, &slice, desired, exact).await
            }
            ChildKind::Lease => {
                self.once(key, &caches.leases, &lease::lease(subject), desired, exact)
                    .await
            }
        }
    }

    /// By server-side apply.
    async fn put<K: Writable>(
        &self,
        key: &Key,
        cache: &Cache<K>,
        name: &str,
        exact: Option<&Exact>,
        body: Value,
    ) -> Result<Value, Failure> {
        let object: K = match exact {
            Some(exact) => self.requests.apply_to(&key.namespace, exact, body).await?,
            None => self.requests.apply_new(&key.namespace, name, body).await?,
        };
        let live = serde_json::to_value(&object).unwrap_or_default();
        cache.put(object);
        Ok(live)
    }

    /// By merge patch, which replaces lists: server-side apply knows ports by their number, so that one that was edited
    /// would stay beside ours (and be refused for its name).
    async fn change_service(&self, key: &Key, exact: &Exact, body: Value) -> Result<Value, Failure> {
        let before = self.caches.services.get(key, exact.name()).flatten();
        let selector = before.and_then(|service| service.spec.as_ref()?.selector.clone());
        let body = without_other_keys(body, selector.unwrap_or_default().into_keys());
        let service: Service = self.requests.merge(&key.namespace, exact, body).await?;
        let live = serde_json::to_value(&service).unwrap_or_default();
        self.caches.services.put(service);
        Ok(live)
    }

    /// Made whole, and from then on only its metadata is ours.
    async fn once<K: Writable>(
        &self,
        key: &Key,
        cache: &Cache<K>,
        new: &K,
        desired: &Desired,
        exact: Option<&Exact>,
    ) -> Result<Value, Failure> {
        let object: K = match exact {
            Some(exact) => self.requests.merge(&key.namespace, exact, metadata(desired)).await?,
            None => self.requests.create(&key.namespace, new).await?,
        };
        let live = json!({"metadata": object.meta()});
        cache.put(object);
        Ok(live)
    }

    /// Gives this very Secret new content; a password that is still in it stays.
    async fn renew(&self, key: &Key, subject: &Subject<'_>, kind: ChildKind, exact: &Exact) -> Result<Secret, Failure> {
        let before: Option<Secret> = self.requests.get(&key.namespace, exact.name()).await?;
        let password = before.as_ref().and_then(secrets::password_of);
        let new = self.secret(subject, kind, password).await?;
        let data = serde_json::to_value(&new.data).unwrap_or_default();
        Ok(self
            .requests
            .merge(&key.namespace, exact, json!({"data": data}))
            .await?)
    }

    /// A Secret with new content; the application's with this password, if there is one.
    async fn secret(
        &self,
        subject: &Subject<'_>,
        kind: ChildKind,
        password: Option<Password>,
    ) -> Result<Secret, Failure> {
        let now = (self.clock)();
        Ok(match kind {
            ChildKind::CaSecret => secrets::ca(subject, &certificates::authority(subject, now).map_err(impossible)?),
            ChildKind::TlsSecret => {
                let authority = self.authority(subject).await?;
                let agents = certificates::agents(subject, &authority, now).map_err(impossible)?;
                secrets::tls(subject, &agents, &authority.certificate)
            }
            _ => match password {
                Some(password) => secrets::app(subject, &password),
                None => secrets::app(subject, &self.password(subject).await?),
            },
        })
    }

    /// The certificate authority, from its Secret.
    pub(super) async fn authority(&self, subject: &Subject<'_>) -> Result<certificates::Pair, Failure> {
        let name = subject.names.ca_secret();
        let secret: Option<Secret> = self.requests.get(&subject.namespace, &name).await?;
        secret.as_ref().and_then(secrets::authority_of).ok_or_else(|| Failure {
            kind: FaultKind::Transient,
            message: format!("the Secret {name} does not hold the certificate authority (ca.crt, ca.key)"),
        })
    }

    /// The application user's password: the one in the user's Secret, or a fresh one.
    async fn password(&self, subject: &Subject<'_>) -> Result<Password, Failure> {
        let Some(name) = &subject.db.spec.bootstrap.initdb.password_secret else {
            return Password::generate().map_err(impossible);
        };
        let wait = |message: String| Failure {
            kind: FaultKind::Transient,
            message,
        };
        let secret: Option<Secret> = self.requests.get(&subject.namespace, name).await?;
        let secret = secret.ok_or_else(|| wait(format!("the Secret {name} (passwordSecret) does not exist")))?;
        let labels = secret.metadata.labels.clone().unwrap_or_default();
        if let Some(refusal) = password_refusal(subject.names.cluster(), name, &labels) {
            return Err(wait(refusal));
        }
        secrets::password_of(&secret).ok_or_else(|| {
            wait(format!(
                "the Secret {name} (passwordSecret) has no text under the key `password`"
            ))
        })
    }

    /// Remembers what our own apply did not change, so that it is not tried for ever.
    fn note_tolerated(&self, key: &Key, memory: &mut Memory, kind: ChildKind, desired: &Desired, live: &Value) {
        let left = differences(&desired.content, live);
        if left.is_empty() {
            memory.tolerated.remove(&kind);
        } else if !metadata_only(kind) {
            tracing::warn!(database = %key, ?kind, ?left, "the API server does not keep what was applied");
            memory.tolerated.insert(kind, left);
        }
    }

    /// An object of this name is being deleted: it cannot be made before it is gone.
    fn is_going(&self, key: &Key, kind: ChildKind) -> bool {
        let object = self.child(key, kind);
        object.is_some_and(|object| object.deletion_timestamp.is_some())
    }

    /// The metadata of the child of this kind, as the watch has shown it.
    pub(super) fn child(&self, key: &Key, kind: ChildKind) -> Option<ObjectMeta> {
        fn of<K: Kept>(cache: &Cache<K>, key: &Key, kind: ChildKind) -> Option<ObjectMeta> {
            let object = cache.get(key, &crate::desired::name(&key.name, kind)).flatten();
            object.map(|object| object.meta().clone())
        }
        let caches = &self.caches;
        match kind {
            ChildKind::ServiceAccount => of(&caches.service_accounts, key, kind),
            ChildKind::Role => of(&caches.roles, key, kind),
            ChildKind::RoleBinding => of(&caches.role_bindings, key, kind),
            ChildKind::CaSecret | ChildKind::TlsSecret | ChildKind::AppSecret => of(&caches.secrets, key, kind),
            ChildKind::HeadlessService | ChildKind::RwService | ChildKind::RoService | ChildKind::RService => {
                of(&caches.services, key, kind)
            }
            ChildKind::EndpointSlice => of(&caches.endpoint_slices, key, kind),
            ChildKind::Lease => of(&caches.leases, key, kind),
            ChildKind::PodDisruptionBudget | ChildKind::PrimaryBudget => of(&caches.budgets, key, kind),
            ChildKind::NetworkPolicy => of(&caches.network_policies, key, kind),
            ChildKind::StatefulSet => of(&caches.stateful_sets, key, kind),
        }
    }
}

/// The number of members that the StatefulSet has, for a change that is not about it.
fn replicas(seen: &Seen) -> Option<u32> {
    let known = matches!(
        seen.observed.children[ChildKind::StatefulSet],
        Known::Known(ChildState::Drifted { .. })
    );
    seen.observed
        .stateful_set
        .as_ref()
        .filter(|_| known)
        .map(|set| set.replicas)
}

/// A merge patch that also takes away the keys of the selector that are not wanted.
fn without_other_keys(mut body: Value, live: impl Iterator<Item = String>) -> Value {
    if body["spec"]["selector"].is_null() {
        body["spec"]["selector"] = json!({});
    }
    for key in live {
        if body["spec"]["selector"][&key].is_null() {
            body["spec"]["selector"][&key] = Value::Null;
        }
    }
    body
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_that_somebody_added_is_taken_away() {
        let live = || ["app".to_owned(), "role".to_owned()].into_iter();
        let body = without_other_keys(json!({"spec": {"selector": {"app": "db"}}}), live());
        assert_eq!(body["spec"]["selector"], json!({"app": "db", "role": null}));
        let body = without_other_keys(json!({"spec": {}}), live());
        assert_eq!(body["spec"]["selector"], json!({"app": null, "role": null}));
    }
}
