//! Sizes of volumes: which claims ask for less than the spec, which are to grow and have not yet, and which of those wait for
//! a new pod.

use api::status::GrantedStorage;
use chrono::{DateTime, TimeDelta, Utc};

use super::Facts;
use crate::cluster::observed::{Claim, Pod, StorageClass, Target, Volume};
use crate::reconcile::FaultKind;
use crate::units::Bytes;

/// The claims of this database's members that have volumes, each with the size that the spec asks for, and that in its
/// words.
fn in_use<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, Bytes, &'a str)> {
    let facts = *facts;
    let members = facts.expected().max(facts.wanted.replicas());
    let claims = facts
        .claims()
        .iter()
        .filter(move |claim| facts.owns(claim) && claim.ordinal < members && claim.bound && !claim.terminating);
    claims.filter_map(move |claim| {
        let (bytes, size) = wanted(&facts, claim.volume)?;
        Some((claim, bytes, size))
    })
}

/// The claims that are to be larger, each with its new size.
pub(in crate::cluster) fn too_small<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, &'a str)> {
    in_use(facts).filter_map(|(claim, bytes, size)| (claim.requested < bytes).then_some((claim, size)))
}

/// The claims that lack what the spec asks for beside their size.
pub(in crate::cluster) fn differing<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Claim> {
    in_use(facts).filter_map(|(claim, ..)| claim.differs.then_some(claim))
}

/// The claims that Kubernetes has let ask for more, and that have not got it yet.
pub(in crate::cluster) fn growing<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, &'a str)> {
    in_use(facts).filter_map(|(claim, bytes, size)| {
        let lacks = claim.capacity.is_some_and(|has| has < bytes);
        (lacks && claim.requested >= bytes).then_some((claim, size))
    })
}

/// The condition of a claim whose volume has grown, and the file system on it only does when it is mounted. A kubelet whose
/// driver can do that to a mounted one sets it as well, for a moment.
pub(in crate::cluster) const AWAITS_MOUNT: &str = "FileSystemResizePending";
/// A kubelet looks at the volumes of a pod that runs every 90 s at the latest.
pub(in crate::cluster) const GROWS_MOUNTED: TimeDelta = TimeDelta::minutes(2);

/// When a new pod is what this claim waits for. One that was made since has not helped.
pub(in crate::cluster) fn new_pod_at(claim: &Claim, pod: &Pod) -> Option<DateTime<Utc>> {
    let growth = claim.growth.as_ref().filter(|growth| growth.stage == AWAITS_MOUNT)?;
    (pod.created <= growth.since).then(|| growth.since + GROWS_MOUNTED)
}

/// The claim of this pod that grows only if the pod is made again.
pub(in crate::cluster) fn awaits_new_pod<'a>(facts: &Facts<'a>, pod: &Pod) -> Option<&'a Claim> {
    let due = |claim: &Claim| new_pod_at(claim, pod).is_some_and(|at| at <= facts.now);
    let mut growing = growing(facts).map(|(claim, _)| claim);
    growing.find(|claim| claim.ordinal == pod.ordinal && due(claim))
}

impl Facts<'_> {
    /// This pod is as the wanted template says: made from it, or brought there in place; and no volume of it waits for another.
    pub fn current_revision(&self, pod: &Pod) -> bool {
        pod.revision.as_deref() == Some(self.wanted.revision)
            && pod.resizing.is_none()
            && self.has_wal_volume(pod)
            && awaits_new_pod(self, pod).is_none()
    }
}

/// Why this pod is made again, in words that follow its name.
pub(in crate::cluster) fn why_made_again(facts: &Facts<'_>, pod: &Pod) -> String {
    match awaits_new_pod(facts, pod) {
        Some(claim) => format!("has to be made again for claim {} to grow", claim.name),
        None => "is of an older template".to_owned(),
    }
}

/// The size that the spec asks for, and that in its words.
fn wanted<'a>(facts: &Facts<'a>, volume: Volume) -> Option<(Bytes, &'a str)> {
    let storage = &facts.wanted.spec.storage;
    match volume {
        Volume::Data => Some((facts.wanted.data_bytes, storage.data.size.as_str())),
        Volume::Wal => Some((facts.wanted.wal_bytes?, storage.wal.as_ref()?.size.as_str())),
    }
}

/// What the spec may go back to (`status.memo.granted`). As long as the claims cannot be read, what was.
pub(in crate::cluster) fn granted(facts: &Facts<'_>) -> GrantedStorage {
    let stored = &facts.status.memo.granted;
    if facts.observed.claims.get().is_none() {
        return stored.clone();
    }
    GrantedStorage {
        data: largest(facts, Volume::Data, stored.data.is_some()),
        wal: largest(facts, Volume::Wal, stored.wal.is_some()),
    }
}

/// The size of the largest such volume, if one is refused more and none has got what the spec asks for. What was refused counts
/// as refused until it is granted, or not asked for any more: not only until it is tried again.
fn largest(facts: &Facts<'_>, volume: Volume, was_refused: bool) -> Option<String> {
    let (bytes, _) = wanted(facts, volume)?;
    let mut small = too_small(facts).filter(|(claim, _)| claim.volume == volume);
    if !small.any(|(claim, _)| was_refused || is_refused(facts, claim)) {
        return None;
    }
    let ours = |claim: &&Claim| claim.volume == volume && claim.bound && facts.owns(claim);
    let largest = facts.claims().iter().filter(ours).map(|claim| claim.requested).max()?;
    (largest < bytes).then(|| in_words(largest))
}

fn is_refused(facts: &Facts<'_>, claim: &Claim) -> bool {
    let target = Target::Claim(claim.name.clone());
    let mut faults = facts.observed.faults.iter().filter(|fault| fault.target == target);
    let refused = |kind| match kind {
        FaultKind::Quota | FaultKind::Forbidden | FaultKind::Invalid => true,
        FaultKind::Conflict | FaultKind::Transient => false,
    };
    is_fixed(facts, claim.volume) || faults.any(|fault| refused(fault.kind))
}

/// The class of these volumes cannot expand them.
pub(in crate::cluster) fn is_fixed(facts: &Facts<'_>, volume: Volume) -> bool {
    facts.storage_class(volume) == Some(&StorageClass::Present { expandable: false })
}

/// An amount as a quantity, in the largest unit in which they are a whole number.
pub(in crate::cluster) fn in_words(Bytes(mut bytes): Bytes) -> String {
    let mut units = ["Ki", "Mi", "Gi", "Ti", "Pi"].into_iter();
    let mut unit = "";
    while bytes > 0
        && bytes.is_multiple_of(1024)
        && let Some(next) = units.next()
    {
        unit = next;
        bytes /= 1024;
    }
    format!("{bytes}{unit}")
}

/// How the user can end the wait for volumes of this kind to grow, as the end of a sentence.
pub(in crate::cluster) fn way_back(facts: &Facts<'_>) -> String {
    let granted = granted(facts);
    let fields = [("storage.data.size", granted.data), ("storage.wal.size", granted.wal)];
    let back = |(field, size): (&str, Option<String>)| Some(format!(", or the user by spec.{field} {}", size?));
    fields.into_iter().filter_map(back).collect()
}

/// Every claim asks for what the spec asks for, and has it.
pub(in crate::cluster) fn large_enough(facts: &Facts<'_>) -> bool {
    too_small(facts).next().is_none() && growing(facts).next().is_none()
}
