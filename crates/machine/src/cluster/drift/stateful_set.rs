//! The StatefulSet: when it may be made, how many pods it asks for, and which claims stand in its way.

use chrono::TimeDelta;

use super::super::facts::{Facts, hibernation, wal};
use super::super::observed::{Claim, OwnedState, StorageClass, Volume};
use super::super::owned::OwnedObject;

/// It brings pods: everything that they need is there, their identity is ours, and so are the claims that they would pick up. A
/// database that was made before comes back even if a part that only clients need is in dispute.
pub(in crate::cluster) fn may_make_stateful_set(facts: &Facts<'_>) -> bool {
    // Of a database whose status was lost, the Lease knows on which volumes it runs.
    let is_recorded = facts.status.system_identifier.is_some() || facts.status.memo.volumes.is_some();
    let volumes_known = is_recorded || facts.observed.lease.get().is_some();
    let readable = volumes_known && facts.observed.pods.get().is_some() && facts.observed.claims.get().is_some();
    let ready = facts
        .wanted_children()
        .all(|kind| kind == OwnedObject::StatefulSet || facts.exists(kind));
    readable
        && !is_identity_foreign(facts)
        && foreign_claim(facts, facts.wanted.replicas()).is_none()
        && (facts.bootstrapped() || (ready && storage_class_fault(facts).is_none()))
}

/// `replicas` of an object that has such a number. A StatefulSet is never made smaller here, and one that is made again
/// covers every pod that is alive, and who holds or last held the Lease: how it gets smaller is for the rules of scaling.
/// Whose claims new pods would pick up must be known before it gets larger.
pub(super) fn replicas(facts: &Facts<'_>, kind: OwnedObject) -> Option<u32> {
    if kind != OwnedObject::StatefulSet {
        return None;
    }
    let alive = facts.pods().iter().map(|pod| pod.ordinal + 1).max().unwrap_or(0);
    let set = facts.observed.stateful_set.as_ref();
    let now = set.map_or(alive, |set| set.replicas);
    if hibernation::wanted(facts) {
        return Some(now);
    }
    let wanted = facts.wanted.replicas().max(returning(facts));
    let may_not_grow = facts.observed.claims.get().is_none() || foreign_claim(facts, wanted).is_some();
    Some(if may_not_grow { now } else { now.max(wanted) })
}

/// How many instances it takes to have who was primary last among them, while nobody serves: its data is the newest, and
/// a database may have been stopped with more instances than it is to have now.
pub(in crate::cluster) fn returning(facts: &Facts<'_>) -> u32 {
    if facts.primary().is_some() { 0 } else { leading(facts) }
}

/// How many instances it takes to have the Lease's holder, and who released it last, among them: their data is the newest.
fn leading(facts: &Facts<'_>) -> u32 {
    let holder = facts.holder().and_then(|holder| facts.ordinal(&holder.incarnation.pod));
    let release = facts.lease.and_then(|lease| lease.release.as_ref());
    let last = release.and_then(|release| release.member.ordinal());
    holder.max(last).map_or(0, |ordinal| ordinal.saturating_add(1))
}

/// The first claim that one of `replicas` pods would pick up though it was made for another database.
pub(in crate::cluster) fn foreign_claim<'a>(facts: &Facts<'a>, replicas: u32) -> Option<&'a Claim> {
    let theirs = |claim: &&Claim| !facts.owns(claim);
    facts
        .claims()
        .iter()
        .filter(|claim| claim.ordinal < replicas)
        .find(theirs)
}

/// A missing StorageClass is looked for again after this long: it brings no event of ours.
pub(in crate::cluster) const STORAGE_CLASS_RECHECK: TimeDelta = TimeDelta::seconds(15);

/// Why no volumes can be had, if some are still needed.
pub(in crate::cluster) fn storage_class_fault<'a>(facts: &Facts<'a>) -> Option<(Volume, &'a StorageClass)> {
    let waits = |claim: &Claim| !claim.bound && !claim.terminating && !wal::is_spare(facts, claim);
    let all = facts.missing(OwnedObject::StatefulSet) && !facts.bootstrapped();
    [Volume::Data, Volume::Wal].into_iter().find_map(|volume| {
        let class = facts.storage_class(volume)?;
        let mut claims = facts.claims().iter().filter(|claim| claim.volume == volume);
        let needed = all || claims.any(waits);
        match class {
            StorageClass::Missing { .. } | StorageClass::NoDefault if needed => Some((volume, class)),
            StorageClass::Missing { .. } | StorageClass::NoDefault | StorageClass::Present { .. } => None,
        }
    })
}

/// The agents' ServiceAccount or Role belongs to somebody else. Binding the two would give our agents foreign rights, or a
/// foreign account ours; pods would run as that account.
pub(super) fn is_identity_foreign(facts: &Facts<'_>) -> bool {
    [OwnedObject::ServiceAccount, OwnedObject::Role]
        .into_iter()
        .any(|kind| matches!(facts.child(kind), Some(OwnedState::Foreign { .. })))
}

#[cfg(test)]
mod tests;
