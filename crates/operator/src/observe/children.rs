//! Where each child stands: missing, somebody else's, as it should be, or drifted.

use api::ClusteredDatabase;
use api::names::{ANNOTATION_APPLIED, LABEL_CLUSTER, LABEL_CLUSTER_UID};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use machine::cluster::{Children, Known, Left, OwnedObject, OwnedState, Unreadable, is_wanted};
use serde_json::Value;

use crate::builders::Subject;
use crate::cache::{Key, Text, number};
use crate::caches::Caches;
use crate::desired::{Desired, desired, name};
use crate::drift::differences;
use crate::memory::{Compared, Memory};

/// An object with a child's name that the watch does not show, since it lacks our label.
#[derive(Clone, Debug)]
pub struct Stray {
    /// Which child's name it has.
    pub kind: OwnedObject,
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
    for kind in OwnedObject::ALL {
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
            (Some(None), None) => Known::Known(OwnedState::Missing),
            (Some(None), Some(Err(_))) | (None, _) => unreadable(caches, key, kind, subject.db),
        };
    }
    children
}

/// Where an object stands of which neither content nor absence is known. It is somebody else's if its owners or its label say
/// so; our Lease is damaged like one whose content nobody understands.
fn unreadable(caches: &Caches, key: &Key, kind: OwnedObject, db: &ClusteredDatabase) -> Known<OwnedState> {
    let cache = caches.of_kind(kind.kind());
    let Some(object) = cache.and_then(|cache| cache.find_unreadable(key, &name(&key.name, kind))) else {
        return Known::Unknown;
    };
    match (foreign(&object.metadata, kind, db), kind) {
        (Some(foreign), _) => Known::Known(foreign),
        (None, OwnedObject::Lease) => Known::Known(OwnedState::Damaged {
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
    kind: OwnedObject,
    db: &ClusteredDatabase,
    desired: &Desired,
    tolerated: &[String],
) -> OwnedState {
    let metadata: ObjectMeta = serde_json::from_value(live["metadata"].clone()).unwrap_or_default();
    if metadata.deletion_timestamp.is_some() {
        return OwnedState::Missing;
    }
    let uid = metadata.uid.clone().unwrap_or_default();
    if let Some(foreign) = foreign(&metadata, kind, db) {
        return foreign;
    }
    if !is_wanted(&db.spec, kind) {
        return OwnedState::Drifted {
            uid,
            resource_version: metadata.resource_version.unwrap_or_default(),
            what: "that it is there, and the spec asks for none".to_owned(),
            immutable: false,
        };
    }
    let mut found = differences(&desired.content, live);
    // An owner would take along what volumes need that are retained.
    let owned = metadata.owner_references.is_some_and(|owners| !owners.is_empty()) && kind.owned().is_unique;
    if kind == OwnedObject::Lease {
        // Written by the agents all the time, and none of our business; but without this label we do not see it.
        let labels = [LABEL_CLUSTER, LABEL_CLUSTER_UID].map(|label| format!("metadata.labels.{label} "));
        found.retain(|path| labels.iter().any(|label| path.starts_with(label)));
    }
    found.extend(owned.then(|| "metadata.ownerReferences is there".to_owned()));
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
        None => OwnedState::Current { uid },
        Some(first) => OwnedState::Drifted {
            uid,
            resource_version: metadata.resource_version.unwrap_or_default(),
            what: first.clone(),
            immutable: found.iter().any(|path| {
                kind.owned()
                    .immutable
                    .iter()
                    .any(|immutable| path.starts_with(immutable))
            }),
        },
    }
}

/// Where the object stands that has this version. It is read only if it was not compared at this version before.
fn compare(
    version: u64,
    read: impl FnOnce() -> Value,
    kind: OwnedObject,
    subject: &Subject<'_>,
    memory: &mut Memory,
) -> OwnedState {
    let Some(hash) = memory.wants.as_ref().map(|wants| wants.hashes[&kind].clone()) else {
        return OwnedState::Missing;
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

/// Whether an object of this kind with this metadata is the database's.
pub fn is_ours(metadata: &ObjectMeta, kind: OwnedObject, db: &ClusteredDatabase) -> bool {
    foreign(metadata, kind, db).is_none()
}

/// Whose the object is, if it is not this database's. What is made only once has no owner: its label says whose it is.
fn foreign(metadata: &ObjectMeta, kind: OwnedObject, db: &ClusteredDatabase) -> Option<OwnedState> {
    let of_another = |why: String| Some(OwnedState::Foreign { why, left: None });
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    if owners.iter().any(|owner| Some(&owner.uid) == db.metadata.uid.as_ref()) {
        return None;
    }
    let controller = owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .or(owners.first());
    if let Some(owner) = controller {
        return of_another(format!("owned by {} {}", owner.kind, owner.name));
    }
    let label = |name: &str| metadata.labels.as_ref().and_then(|labels| labels.get(name));
    let named = label(LABEL_CLUSTER) == db.metadata.name.as_ref();
    match label(LABEL_CLUSTER_UID).filter(|_| kind.owned().is_unique) {
        Some(uid) if Some(uid) == db.metadata.uid.as_ref() && (named || kind == OwnedObject::Lease) => None,
        // There is one database of a name at a time: the one with this UID is gone.
        Some(uid) if named => Some(OwnedState::Foreign {
            why: format!("left by a database of this name that was deleted (UID {uid})"),
            left: Some(Left {
                by: uid.clone(),
                uid: metadata.uid.clone().unwrap_or_default(),
                resource_version: metadata.resource_version.clone().unwrap_or_default(),
            }),
        }),
        Some(uid) if Some(uid) != db.metadata.uid.as_ref() => of_another("made for another database".to_owned()),
        Some(_) if was_made(metadata, db) => None,
        None if named && (kind.kind() != "Secret" || was_made(metadata, db)) => None,
        _ => of_another("not made by this operator".to_owned()),
    }
}

/// Whether the operator has made an object of this name for the database. A Secret without an owner counts as the
/// database's only then, as a copy of it that somebody restored. One that was there before the database would otherwise
/// make its author the database's certificate authority.
fn was_made(metadata: &ObjectMeta, db: &ClusteredDatabase) -> bool {
    let made = db.status.as_ref().map(|status| &status.memo.made);
    made.zip(metadata.name.as_ref())
        .is_some_and(|(made, name)| made.contains_key(name))
}

/// The object of this kind, as the watch has shown it.
pub fn cached(caches: &Caches, key: &Key, kind: OwnedObject) -> Option<Option<Text>> {
    caches.of_kind(kind.kind())?.text(key, &name(&key.name, kind))
}

#[cfg(test)]
mod tests;
