//! Where each child stands: missing, somebody else's, as it should be, or drifted.

use std::sync::Arc;

use api::ClusteredDatabase;
use api::names::{ANNOTATION_APPLIED, LABEL_CLUSTER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use machine::cluster::{ChildKind, ChildState, Children, Known, Unreadable, is_wanted};
use serde_json::Value;

use crate::builders::Subject;
use crate::cache::{Key, Text, number};
use crate::caches::Caches;
use crate::desired::{Desired, desired, name};
use crate::drift::differences;
use crate::memory::{Compared, Memory};

/// What of an object cannot be changed in place.
const fn immutable(kind: ChildKind) -> &'static [&'static str] {
    match kind {
        ChildKind::StatefulSet => &[
            "spec.volumeClaimTemplates",
            "spec.selector",
            "spec.serviceName",
            "spec.podManagementPolicy",
        ],
        ChildKind::RoleBinding => &["roleRef"],
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::CaSecret
        | ChildKind::TlsSecret
        | ChildKind::AppSecret
        | ChildKind::HeadlessService
        | ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::EndpointSlice
        | ChildKind::Lease
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget
        | ChildKind::NetworkPolicy => &[],
    }
}

/// An object with a child's name that the watch does not show, since it lacks our label.
#[derive(Clone, Debug)]
pub struct Stray {
    /// Which child's name it has.
    pub kind: ChildKind,
    /// The object, or why it cannot be read; `None`: there is none after all.
    pub object: Option<Result<Value, String>>,
}

impl Stray {
    /// That it cannot be read, if so.
    pub fn unreadable(&self, database: &Key) -> Option<Unreadable> {
        let why = self.object.as_ref()?.as_ref().err()?;
        Some(Unreadable {
            object: format!("{} {}", self.kind.kind(), name(&database.name, self.kind)),
            why: why.clone(),
        })
    }
}

/// Where every child of the subject stands.
pub fn children(caches: &Caches, key: &Key, subject: &Subject<'_>, memory: &mut Memory, strays: &[Stray]) -> Children {
    let mut children = Children::default();
    for kind in ChildKind::ALL {
        let stray = strays
            .iter()
            .find(|stray| stray.kind == kind)
            .and_then(|stray| stray.object.as_ref());
        let cached = cached(caches, key, kind);
        children[kind] = match (cached, stray) {
            (Some(Some(live)), _) => {
                let read = || live.read().unwrap_or_default();
                let state = compare(live.version, read, kind, subject, memory);
                let checked = memory.checked.get(&kind);
                Known::Known(checked.map_or(state.clone(), |checked| checked.overlay(state)))
            }
            (Some(None), Some(Ok(live))) => {
                let version = number(live["metadata"]["resourceVersion"].as_str().unwrap_or_default());
                Known::Known(compare(version, || live.clone(), kind, subject, memory))
            }
            (Some(None), None) => Known::Known(ChildState::Missing),
            (Some(None), Some(Err(_))) | (None, _) => unreadable(caches, key, kind, subject.db),
        };
    }
    children
}

/// Where an object stands of which neither content nor absence is known. It is somebody else's if its owners or its label say
/// so; our Lease is damaged like one whose content nobody understands.
fn unreadable(caches: &Caches, key: &Key, kind: ChildKind, db: &ClusteredDatabase) -> Known<ChildState> {
    let Some(object) = unreadable_child(caches, key, kind) else {
        return Known::Unknown;
    };
    match (foreign(&object.metadata, kind, db), kind) {
        (Some(why), _) => Known::Known(ChildState::Foreign { why }),
        (None, ChildKind::Lease) => Known::Known(ChildState::Damaged {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
            what: format!("cannot be read: {}", object.why),
            recoverable: false,
        }),
        (None, _) => Known::Unknown,
    }
}

/// Where one live object stands, without what is remembered.
pub fn verdict(
    live: &Value,
    kind: ChildKind,
    db: &ClusteredDatabase,
    desired: &Desired,
    tolerated: &[String],
) -> ChildState {
    let metadata: ObjectMeta = serde_json::from_value(live["metadata"].clone()).unwrap_or_default();
    if metadata.deletion_timestamp.is_some() {
        return ChildState::Missing;
    }
    let uid = metadata.uid.clone().unwrap_or_default();
    if let Some(why) = foreign(&metadata, kind, db) {
        return ChildState::Foreign { why };
    }
    if !is_wanted(&db.spec, kind) {
        return ChildState::Drifted {
            uid,
            resource_version: metadata.resource_version.unwrap_or_default(),
            what: "that it is there, and the spec asks for none".to_owned(),
            immutable: false,
        };
    }
    let mut found = differences(&desired.content, live);
    if kind == ChildKind::Lease {
        // Written by the agents all the time, and none of our business; but without this label we do not see it.
        found.retain(|path| path.starts_with(&format!("metadata.labels.{LABEL_CLUSTER} ")));
    }
    if found == tolerated {
        found.clear();
    }
    let applied = metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(ANNOTATION_APPLIED));
    if found.is_empty() && desired.hash.is_some() && applied != desired.hash.as_ref() {
        found.push("another content was applied last".to_owned());
    }
    match found.first() {
        None => ChildState::Current { uid },
        Some(first) => ChildState::Drifted {
            uid,
            resource_version: metadata.resource_version.unwrap_or_default(),
            what: first.clone(),
            immutable: found
                .iter()
                .any(|path| immutable(kind).iter().any(|immutable| path.starts_with(immutable))),
        },
    }
}

/// Where the object stands that has this version. It is read only if it was not compared at this version before.
fn compare(
    version: u64,
    read: impl FnOnce() -> Value,
    kind: ChildKind,
    subject: &Subject<'_>,
    memory: &mut Memory,
) -> ChildState {
    let Some(hash) = memory.wants.as_ref().map(|wants| wants.hashes[&kind].clone()) else {
        return ChildState::Missing;
    };
    let known = memory.compared.get(&kind);
    let is_same = |known: &&Compared| known.version == version && version != 0 && known.hash == hash;
    if let Some(compared) = known.filter(is_same) {
        return compared.state.clone();
    }
    let tolerated = memory.tolerated.get(&kind).map_or(&[][..], Vec::as_slice);
    let state = verdict(&read(), kind, subject.db, &desired(subject, kind), tolerated);
    let compared = Compared {
        version,
        hash,
        state: state.clone(),
    };
    memory.compared.insert(kind, compared);
    state
}

/// Whose the object is, if it is not this database's.
fn foreign(metadata: &ObjectMeta, kind: ChildKind, db: &ClusteredDatabase) -> Option<String> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    if owners.iter().any(|owner| Some(&owner.uid) == db.metadata.uid.as_ref()) {
        return None;
    }
    let controller = owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .or(owners.first());
    if let Some(owner) = controller {
        return Some(format!("owned by {} {}", owner.kind, owner.name));
    }
    let labelled = metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_CLUSTER));
    let adopted = labelled == db.metadata.name.as_ref() && (kind.kind() != "Secret" || was_made(metadata, db));
    (!adopted).then(|| "not made by this operator".to_owned())
}

/// Whether the operator has made an object of this name for the database. A Secret without an owner counts as the
/// database's only then, as a copy of it that somebody restored. One that was there before the database would otherwise
/// make its author the database's certificate authority.
fn was_made(metadata: &ObjectMeta, db: &ClusteredDatabase) -> bool {
    let made = db.status.as_ref().map(|status| &status.memo.made);
    made.zip(metadata.name.as_ref())
        .is_some_and(|(made, name)| made.contains_key(name))
}

fn cached(caches: &Caches, key: &Key, kind: ChildKind) -> Option<Option<Text>> {
    let name = name(&key.name, kind);
    match kind {
        ChildKind::ServiceAccount => caches.service_accounts.text(key, &name),
        ChildKind::Role => caches.roles.text(key, &name),
        ChildKind::RoleBinding => caches.role_bindings.text(key, &name),
        ChildKind::CaSecret | ChildKind::TlsSecret | ChildKind::AppSecret => caches.secrets.text(key, &name),
        ChildKind::HeadlessService | ChildKind::RwService | ChildKind::RoService | ChildKind::RService => {
            caches.services.text(key, &name)
        }
        ChildKind::EndpointSlice => caches.endpoint_slices.text(key, &name),
        ChildKind::Lease => caches.leases.text(key, &name),
        ChildKind::PodDisruptionBudget | ChildKind::PrimaryBudget => caches.budgets.text(key, &name),
        ChildKind::NetworkPolicy => caches.network_policies.text(key, &name),
        ChildKind::StatefulSet => caches.stateful_sets.text(key, &name),
    }
}

fn unreadable_child(caches: &Caches, key: &Key, kind: ChildKind) -> Option<Arc<api::Unreadable>> {
    let name = name(&key.name, kind);
    match kind {
        ChildKind::ServiceAccount => caches.service_accounts.find_unreadable(key, &name),
        ChildKind::Role => caches.roles.find_unreadable(key, &name),
        ChildKind::RoleBinding => caches.role_bindings.find_unreadable(key, &name),
        ChildKind::CaSecret | ChildKind::TlsSecret | ChildKind::AppSecret => caches.secrets.find_unreadable(key, &name),
        ChildKind::HeadlessService | ChildKind::RwService | ChildKind::RoService | ChildKind::RService => {
            caches.services.find_unreadable(key, &name)
        }
        ChildKind::EndpointSlice => caches.endpoint_slices.find_unreadable(key, &name),
        ChildKind::Lease => caches.leases.find_unreadable(key, &name),
        ChildKind::PodDisruptionBudget | ChildKind::PrimaryBudget => caches.budgets.find_unreadable(key, &name),
        ChildKind::NetworkPolicy => caches.network_policies.find_unreadable(key, &name),
        ChildKind::StatefulSet => caches.stateful_sets.find_unreadable(key, &name),
    }
}

#[cfg(test)]
mod tests;
