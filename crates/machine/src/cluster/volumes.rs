//! Volumes: grown before anything else is waited for, since a full one is what keeps a database from being healthy.
//!
//! What Kubernetes refuses to all of them (a class that cannot expand its volumes, a quota) can be taken back from the spec:
//! until a claim has grown, the size that they have is on record (`status.memo.granted`), new ones are made with that, and the
//! definition of the resource lets the spec go back to it.

use api::status::GrantedStorage;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::decision::Step;
use super::facts::Facts;
use super::failure;
use super::failure::shortened;
use super::members::exact_claim;
use super::observed::{Claim, Pod, StorageClass, Target, Volume};
use super::rule::{Proposal, Rule};
use crate::reconcile::FaultKind;

/// See [`Rule::what`].
pub const GROW: Rule = Rule {
    name: "grow-volumes",
    family: "volumes",
    what: "A claim that asks for less than the spec is raised, whatever state the database is in.",
    propose: grow,
    passable: true,
};

/// See [`Rule::what`].
pub const AWAIT_GROWTH: Rule = Rule {
    name: "await-growth",
    family: "volumes",
    what: "A volume that Kubernetes has let ask for more, and that has not grown yet, is waited for in the claim's own words. Where it takes a new pod, the pod counts as one of an older template after two minutes.",
    propose: await_growth,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_EXPANDABLE: Rule = Rule {
    name: "await-expandable",
    family: "volumes",
    what: "A class that cannot expand its volumes keeps them as they are, and that is said.",
    propose: await_expandable,
    passable: false,
};

/// The claims of this database's members that have volumes, each with the size that the spec asks for, in bytes and in its
/// words.
fn in_use<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, u64, &'a str)> {
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
fn too_small<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, &'a str)> {
    in_use(facts).filter_map(|(claim, bytes, size)| (claim.requested < bytes).then_some((claim, size)))
}

/// The claims that Kubernetes has let ask for more, and that have not got it yet.
fn growing<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Claim, &'a str)> {
    in_use(facts).filter_map(|(claim, bytes, size)| {
        let lacks = claim.capacity.is_some_and(|has| has < bytes);
        (lacks && claim.requested >= bytes).then_some((claim, size))
    })
}

/// The condition of a claim whose volume has grown, and the file system on it only does when it is mounted. A kubelet whose
/// driver can do that to a mounted one sets it as well, for a moment.
const AWAITS_MOUNT: &str = "FileSystemResizePending";
/// A kubelet looks at the volumes of a pod that runs every 90 s at the latest.
const GROWS_MOUNTED: TimeDelta = TimeDelta::minutes(2);

/// When a new pod is what this claim waits for. One that was made since has not helped.
fn new_pod_at(claim: &Claim, pod: &Pod) -> Option<DateTime<Utc>> {
    let growth = claim.growth.as_ref().filter(|growth| growth.stage == AWAITS_MOUNT)?;
    (pod.created <= growth.since).then(|| growth.since + GROWS_MOUNTED)
}

/// The claim of this pod that grows only if the pod is made again.
pub(super) fn awaits_new_pod<'a>(facts: &Facts<'a>, pod: &Pod) -> Option<&'a Claim> {
    let due = |claim: &Claim| new_pod_at(claim, pod).is_some_and(|at| at <= facts.now);
    let mut growing = growing(facts).map(|(claim, _)| claim);
    growing.find(|claim| claim.ordinal == pod.ordinal && due(claim))
}

/// Why this pod is made again, in words that follow its name.
pub(super) fn why_made_again(facts: &Facts<'_>, pod: &Pod) -> String {
    match awaits_new_pod(facts, pod) {
        Some(claim) => format!("has to be made again for claim {} to grow", claim.name),
        None => "is of an older template".to_owned(),
    }
}

/// The size that the spec asks for, in bytes and in its words.
fn wanted<'a>(facts: &Facts<'a>, volume: Volume) -> Option<(u64, &'a str)> {
    let storage = &facts.wanted.spec.storage;
    match volume {
        Volume::Data => Some((facts.wanted.data_bytes, storage.size.as_str())),
        Volume::Wal => Some((facts.wanted.wal_bytes?, storage.wal.as_ref()?.size.as_str())),
    }
}

/// What the spec may go back to (`status.memo.granted`). As long as the claims cannot be read, what was.
pub(super) fn granted(facts: &Facts<'_>) -> GrantedStorage {
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
pub(super) fn is_fixed(facts: &Facts<'_>, volume: Volume) -> bool {
    facts.storage_class(volume) == Some(&StorageClass::Present { expandable: false })
}

/// This many bytes as a quantity, in the largest unit in which they are a whole number.
fn in_words(mut bytes: u64) -> String {
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
pub(super) fn way_back(facts: &Facts<'_>) -> String {
    let granted = granted(facts);
    let fields = [("storage.size", granted.data), ("storage.wal.size", granted.wal)];
    let back = |(field, size): (&str, Option<String>)| Some(format!(", or the user by spec.{field} {}", size?));
    fields.into_iter().filter_map(back).collect()
}

/// Every claim asks for what the spec asks for, and has it.
pub(super) fn large_enough(facts: &Facts<'_>) -> bool {
    too_small(facts).next().is_none() && growing(facts).next().is_none()
}

fn grow(facts: &Facts<'_>) -> Option<Proposal> {
    let small = || too_small(facts).filter(|(claim, _)| !is_fixed(facts, claim.volume));
    let rests = |claim: &Claim| failure::rests(facts, &Target::Claim(claim.name.clone()));
    let next = small().find(|(claim, _)| !rests(claim));
    let (claim, size) = next.or_else(|| small().next())?;
    let because = format!(
        "claim {} asks for {} bytes, and the spec for {size}",
        claim.name, claim.requested
    );
    let action = Action::ResizeClaim {
        claim: exact_claim(claim),
        size: size.to_owned(),
    };
    Proposal::act(Step::Volumes, action, because)
}

fn await_growth(facts: &Facts<'_>) -> Option<Proposal> {
    let (claim, size) = growing(facts).next()?;
    let what = format!("claim {} to grow to {size}", claim.name);
    let said = claim.growth.as_ref().map_or(String::new(), |growth| {
        format!(", which says {}: {}", growth.stage, shortened(&growth.message))
    });
    let wait = Proposal::wait(
        facts,
        Step::Volumes,
        what,
        format!("the driver of its StorageClass{said}"),
    )?;
    let due = facts.pod(claim.ordinal).and_then(|pod| new_pod_at(claim, pod));
    Some(wait.looking_again_by(due.filter(|due| *due > facts.now)))
}

fn await_expandable(facts: &Facts<'_>) -> Option<Proposal> {
    let (claim, size) = too_small(facts).find(|(claim, _)| is_fixed(facts, claim.volume))?;
    let what = format!("a StorageClass that lets claim {} grow to {size}", claim.name);
    let who = format!("the cluster's administrator{}", way_back(facts));
    Proposal::wait(facts, Step::Volumes, what, who)
}

#[cfg(test)]
mod tests;
