//! The volume claims, and whether new volumes can be had.

use std::collections::BTreeMap;

use api::names::{DATA_VOLUME, LABEL_CLUSTER_UID, Names, parse_claim};
use api::quantity::Quantity;
use api::spec::{StorageSpec, VolumeSpec};
use api::{ClusteredDatabase, Unreadable};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimStatus};
use kube::ResourceExt;
use machine::cluster::{Claim, Growth, StorageClass, Volume};
use machine::units::Bytes;

use super::time;
use crate::builders::stateful_set::SELECTED_NODE;
use crate::cache::Key;
use crate::caches::Caches;

/// The annotation of the class that volumes get which name none.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// The claims with names of this database's claims, by ordinal, data before WAL: those of this set of volumes, and the others.
pub fn claims(caches: &Caches, key: &Key, storage: &StorageSpec, set: u32) -> Option<(Vec<Claim>, Vec<Claim>)> {
    let names = Names::new(&key.name);
    let mut claims: Vec<_> = caches
        .claims
        .list(key)?
        .iter()
        .filter_map(|claim| self::claim(&names, claim, storage))
        .collect();
    claims.sort_by_key(|claim| (claim.ordinal, claim.volume, claim.set));
    Some(claims.into_iter().partition(|claim| claim.set == set))
}

/// Whether such volumes as the resource asks for can be had. WAL volumes that it does not ask for are of the default class.
pub fn storage_class(caches: &Caches, db: &ClusteredDatabase, volume: Volume) -> Option<StorageClass> {
    let storage = &db.spec.storage;
    let name = match volume {
        Volume::Data => storage.data.storage_class_name.as_ref(),
        Volume::Wal => storage.wal.as_ref().and_then(|wal| wal.storage_class_name.as_ref()),
    };
    let classes = caches.storage_classes.list_readable(&Key::all())?;
    let found = classes.iter().find(|class| match name {
        Some(name) => class.metadata.name.as_ref() == Some(name),
        None => class
            .annotations()
            .get(DEFAULT_CLASS)
            .is_some_and(|value| value == "true"),
    });
    let unreadable = caches.storage_classes.unreadable(&Key::all());
    // One that cannot be read may be the default.
    let may_be = |class: &Unreadable| name.is_none_or(|name| class.metadata.name.as_ref() == Some(name));
    if found.is_none() && unreadable.iter().any(|class| may_be(class)) {
        return None;
    }
    Some(match (found, name) {
        (Some(class), _) => StorageClass::Present {
            expandable: class.allow_volume_expansion == Some(true),
        },
        (None, Some(name)) => StorageClass::Missing { name: name.clone() },
        (None, None) => StorageClass::NoDefault,
    })
}

fn claim(names: &Names, claim: &PersistentVolumeClaim, storage: &StorageSpec) -> Option<Claim> {
    let name = claim.metadata.name.clone()?;
    let (volume, set, pod) = parse_claim(&name)?;
    let volume = if volume == DATA_VOLUME {
        Volume::Data
    } else {
        Volume::Wal
    };
    let ordinal = names.ordinal(pod)?;
    let spec = claim.spec.as_ref();
    let volume_name = spec.and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    let status = claim.status.as_ref();
    let bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
    let requested = spec
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .and_then(|quantity| Quantity::parse(&quantity.0).ok());
    Some(Claim {
        volume,
        set,
        ordinal,
        uid: claim.uid()?,
        resource_version: claim.resource_version()?,
        terminating: claim.metadata.deletion_timestamp.is_some(),
        bound,
        had_volume: bound || !volume_name.is_empty(),
        created: claim.creation_timestamp().as_ref().map(time).unwrap_or_default(),
        class: spec.and_then(|spec| spec.storage_class_name.clone()),
        selected_node: claim.annotations().get(SELECTED_NODE).cloned(),
        requested: Bytes(requested.map_or(0, Quantity::bytes)),
        capacity: status
            .and_then(|status| status.capacity.as_ref()?.get("storage"))
            .and_then(|quantity| Quantity::parse(&quantity.0).ok())
            .map(|quantity| Bytes(quantity.bytes())),
        growth: status.and_then(growth),
        cluster_uid: claim.labels().get(LABEL_CLUSTER_UID).cloned(),
        differs: storage.volume(&name).is_some_and(|wanted| differs(claim, wanted)),
        name,
    })
}

/// What the operator or Kubernetes has added is no difference, nor is what the spec has named once.
fn differs(claim: &PersistentVolumeClaim, wanted: &VolumeSpec) -> bool {
    let lacks = |wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>| {
        wanted.iter().any(|(key, value)| found.get(key) != Some(value))
    };
    let spec = claim.spec.as_ref();
    let class = spec.and_then(|spec| spec.volume_attributes_class_name.as_ref());
    let wanted_class = wanted.volume_attributes_class_name.as_ref();
    lacks(&wanted.metadata.labels, claim.labels())
        || lacks(&wanted.metadata.annotations, claim.annotations())
        || wanted_class.is_some() && wanted_class != class
}

/// The condition that says most of a growth that is not done: a failure before what comes next, and that before what goes on.
fn growth(status: &PersistentVolumeClaimStatus) -> Option<Growth> {
    const STAGES: [&str; 4] = [
        "ControllerResizeError",
        "NodeResizeError",
        "FileSystemResizePending",
        "Resizing",
    ];
    let conditions = || {
        status
            .conditions
            .iter()
            .flatten()
            .filter(|found| found.status == "True")
    };
    let found = STAGES
        .iter()
        .find_map(|stage| conditions().find(|found| found.type_ == *stage))?;
    Some(Growth {
        stage: found.type_.clone(),
        message: found.message.clone().unwrap_or_default(),
        since: found.last_transition_time.as_ref().map(time).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
