//! What each child should be, as JSON: the content to apply, and the hash by which it is known later.

use std::collections::BTreeMap;

use api::names::{ANNOTATION_APPLIED, ANNOTATION_BASE_REVISION, ANNOTATION_REVISION};
use api::spec::RecoverySource;
use api::status::GrantedStorage;
use k8s_openapi::Resource;
use machine::cluster::{OwnedObject, WalVolumes, is_wanted};
use serde::Serialize;
use serde_json::{Value, json};

use crate::builders::pod_template::pod_template;
use crate::builders::{
    Subject, budget, endpoint_slice, lease, network_policy, role, service_account, services, stateful_set,
};
use crate::drift::hash;

/// How many members a StatefulSet is built with where the number does not matter.
const ANY_NUMBER: i32 = 0;

/// The desired content of one child.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The object's name.
    pub name: String,
    /// What must be found in the live object.
    pub content: Value,
    /// Hash of `content`; `None` where only metadata is ours, or the object is not wanted: no hash is left on it.
    pub hash: Option<String>,
}

/// All that says what is wanted of one resource, beside the operator's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// The generation of its spec.
    generation: i64,
    /// Which pods the StatefulSet gives a WAL volume.
    pub wal: WalVolumes,
    /// The set of volumes.
    volume_set: u32,
    /// What new volumes are held down to.
    granted: GrantedStorage,
    /// See [`machine::cluster::Wanted::image`].
    pub image: String,
    /// See [`machine::cluster::Wanted::default_image`].
    pub default_image: String,
    /// See [`machine::cluster::Wanted::restarted_by`].
    restarted_by: Option<String>,
    /// Where the backup is that the database is made from.
    recovery_source: Option<RecoverySource>,
}

impl Inputs {
    /// Of the subject.
    pub fn of(subject: &Subject<'_>) -> Self {
        Self {
            generation: subject.db.metadata.generation.unwrap_or(0),
            wal: subject.wal,
            volume_set: subject.volume_set(),
            granted: subject.granted(),
            image: subject.image(),
            default_image: subject.default_image(),
            restarted_by: subject.restarted_by().map(str::to_owned),
            recovery_source: subject.db.recovery_source().cloned(),
        }
    }
}

/// What is wanted of one resource.
#[derive(Clone, Debug)]
pub struct Wants {
    /// What it follows from: the same until that changes.
    pub inputs: Inputs,
    /// [`Desired::hash`] of each object. What is wanted of it is made anew when it is compared or applied.
    pub hashes: BTreeMap<OwnedObject, Option<String>>,
    /// The revisions of its pods.
    pub revisions: Revisions,
}

impl Wants {
    /// Of the subject.
    pub fn new(subject: &Subject<'_>) -> Self {
        let annotations = |wal| {
            let template = pod_template(&subject.with_wal(wal));
            template
                .metadata
                .and_then(|metadata| metadata.annotations)
                .unwrap_or_default()
        };
        let (mut full, mut bare) = (annotations(WalVolumes::Templated), annotations(WalVolumes::Withheld));
        Self {
            inputs: Inputs::of(subject),
            hashes: all(subject)
                .into_iter()
                .map(|(kind, desired)| (kind, desired.hash))
                .collect(),
            revisions: Revisions {
                revision: full.remove(ANNOTATION_REVISION).unwrap_or_default(),
                base: full.remove(ANNOTATION_BASE_REVISION).unwrap_or_default(),
                bare: bare.remove(ANNOTATION_REVISION).unwrap_or_default(),
            },
        }
    }
}

/// The revisions of the pods that are wanted in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revisions {
    /// See [`machine::cluster::Wanted::revision`].
    pub revision: String,
    /// See [`machine::cluster::Wanted::base_revision`].
    pub base: String,
    /// See [`machine::cluster::Wanted::bare_revision`].
    pub bare: String,
}

/// What every child of the subject should be. Pure; the same until its [`Inputs`] or the operator's configuration changes.
pub fn all(subject: &Subject<'_>) -> BTreeMap<OwnedObject, Desired> {
    OwnedObject::ALL
        .into_iter()
        .map(|kind| (kind, desired(subject, kind)))
        .collect()
}

/// The name of a child.
pub fn name(cluster: &str, kind: OwnedObject) -> String {
    format!("{cluster}{}", kind.suffix())
}

/// The body of a server-side apply: the content with its hash as annotation, and this number of members.
pub fn applied(desired: &Desired, kind: OwnedObject, replicas: Option<u32>) -> Value {
    let mut body = desired.content.clone();
    if let Some(hash) = &desired.hash {
        let metadata = &mut body["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][ANNOTATION_APPLIED] = json!(hash);
    }
    if let (OwnedObject::StatefulSet, Some(replicas)) = (kind, replicas) {
        body["spec"]["replicas"] = json!(replicas);
    }
    body
}

/// What one child of the subject should be.
pub fn desired(subject: &Subject<'_>, kind: OwnedObject) -> Desired {
    let content = match kind {
        OwnedObject::ServiceAccount => object(&service_account::service_account(subject)),
        OwnedObject::Role => object(&role::role(subject)),
        OwnedObject::RoleBinding => object(&role::role_binding(subject)),
        OwnedObject::CaSecret | OwnedObject::AppSecret => {
            json!({"metadata": subject.kept_meta(name(subject.names.cluster(), kind))})
        }
        OwnedObject::TlsSecret => json!({"metadata": subject.meta(name(subject.names.cluster(), kind))}),
        OwnedObject::HeadlessService => object(&services::headless(subject)),
        OwnedObject::RwService => object(&services::rw(subject)),
        OwnedObject::RoService => object(&services::ro(subject)),
        OwnedObject::RService => object(&services::r(subject)),
        OwnedObject::EndpointSlice => json!({"metadata": endpoint_slice::endpoint_slice(subject).metadata}),
        OwnedObject::Lease => json!({"metadata": lease::lease(subject).metadata}),
        OwnedObject::PodDisruptionBudget => object(&budget::replicas(subject)),
        OwnedObject::PrimaryBudget => object(&budget::primary(subject)),
        OwnedObject::NetworkPolicy => object(&network_policy::network_policy(subject)),
        OwnedObject::StatefulSet => without_replicas(object(&stateful_set::stateful_set(subject, ANY_NUMBER))),
    };
    let hash = (!kind.owned().is_metadata_only && is_wanted(&subject.db.spec, kind)).then(|| hash(&content));
    Desired {
        name: name(subject.names.cluster(), kind),
        content,
        hash,
    }
}

/// These types always serialise.
fn object<K: Resource + Serialize>(object: &K) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// How many members there should be is decided by the machine, and is no part of the set's drift.
fn without_replicas(mut set: Value) -> Value {
    if let Some(spec) = set["spec"].as_object_mut() {
        spec.remove("replicas");
    }
    set
}

#[cfg(test)]
mod tests;
