//! Objects that are gone and cannot be made again with the same content.

use super::super::facts::Facts;
use super::super::observed::OwnedState;
use super::super::owned::OwnedObject;
use crate::protocol::LeaseRecord;

/// An object that is gone and cannot be made again with the same content: making it with other content would lock
/// members or applications out, or let two primaries be.
pub(in crate::cluster) fn lost(facts: &Facts<'_>, kind: OwnedObject) -> bool {
    // With the user's own password it is made again as it was.
    let has_own_password = facts.wanted.spec.initdb().password_secret_ref.is_some();
    let unique = kind.owned().is_unique && !(kind == OwnedObject::AppSecret && has_own_password);
    let gone = match facts.child(kind) {
        Some(OwnedState::Missing) => true,
        Some(OwnedState::Damaged { recoverable, .. }) => !recoverable,
        Some(OwnedState::Current { .. } | OwnedState::Drifted { .. }) => {
            kind == OwnedObject::Lease && is_emptied(facts)
        }
        Some(OwnedState::Foreign { .. }) | None => false,
    };
    unique && gone && was_made(facts, kind)
}

/// By the record, or by what is only ever made after it.
fn was_made(facts: &Facts<'_>, kind: OwnedObject) -> bool {
    let recorded = if kind == OwnedObject::Lease {
        // One that is there was made: it is not given other content either.
        let seen = facts.status.memo.lease_made || understood_by_nobody(facts).is_some();
        seen || facts.status.memo.adopted.is_some()
    } else {
        facts.recorded_uid(kind).is_some()
    };
    recorded || facts.bootstrapped() || facts.exists(OwnedObject::StatefulSet) || !facts.pods().is_empty()
}

/// The first lost object.
pub(in crate::cluster) fn first_lost(facts: &Facts<'_>) -> Option<OwnedObject> {
    OwnedObject::ALL.into_iter().find(|kind| lost(facts, *kind))
}

/// Who can bring a lost object back.
pub(in crate::cluster) fn way_back(kind: OwnedObject) -> &'static str {
    if kind == OwnedObject::Lease {
        "the user, by kubectl cdb recreate-lease with the name of this ClusteredDatabase"
    } else {
        "the user, by restoring the Secret from a copy, with its labels"
    }
}

/// The Lease says nothing, and it did before: somebody has emptied it, or it is in the place of one that is lost.
pub(in crate::cluster) fn is_emptied(facts: &Facts<'_>) -> bool {
    let found = facts.observed.lease.get().and_then(Option::as_ref);
    facts.bootstrapped() && found.is_some_and(LeaseRecord::is_empty)
}

/// What is wrong with a Lease that is there: agents act on it as little as the operator, and the primary stops.
pub(in crate::cluster) fn understood_by_nobody<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    match facts.child(OwnedObject::Lease)? {
        OwnedState::Damaged { what, .. } => Some(what),
        OwnedState::Missing | OwnedState::Current { .. } | OwnedState::Drifted { .. } | OwnedState::Foreign { .. } => {
            None
        }
    }
}

#[cfg(test)]
mod tests;
