//! Objects that are gone and cannot be made again with the same content.

use super::super::facts::Facts;
use super::super::observed::{ChildKind, ChildState};
use super::exists;
use super::lease::{is_emptied, understood_by_nobody};

/// An object that is gone and cannot be made again with the same content: making it with other content would lock
/// members or applications out, or let two primaries be.
pub(in crate::cluster) fn lost(facts: &Facts<'_>, kind: ChildKind) -> bool {
    let unique = match kind {
        ChildKind::CaSecret | ChildKind::Lease => true,
        // With the user's own password it is made again as it was.
        ChildKind::AppSecret => facts.wanted.spec.bootstrap.initdb.password_secret.is_none(),
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::RoleBinding
        | ChildKind::TlsSecret
        | ChildKind::HeadlessService
        | ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::EndpointSlice
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget
        | ChildKind::NetworkPolicy
        | ChildKind::StatefulSet => false,
    };
    let gone = match facts.child(kind) {
        Some(ChildState::Missing) => true,
        Some(ChildState::Damaged { recoverable, .. }) => !recoverable,
        Some(ChildState::Current { .. } | ChildState::Drifted { .. }) => kind == ChildKind::Lease && is_emptied(facts),
        Some(ChildState::Foreign { .. }) | None => false,
    };
    unique && gone && was_made(facts, kind)
}

/// By the record, or by what is only ever made after it.
fn was_made(facts: &Facts<'_>, kind: ChildKind) -> bool {
    let recorded = if kind == ChildKind::Lease {
        // One that is there was made: it is not given other content either.
        facts.status.memo.lease_made || understood_by_nobody(facts).is_some()
    } else {
        facts.recorded_uid(kind).is_some()
    };
    recorded || facts.bootstrapped() || exists(facts, ChildKind::StatefulSet) || !facts.pods().is_empty()
}

/// The first lost object.
pub(in crate::cluster) fn first_lost(facts: &Facts<'_>) -> Option<ChildKind> {
    [ChildKind::CaSecret, ChildKind::AppSecret, ChildKind::Lease]
        .into_iter()
        .find(|kind| lost(facts, *kind))
}

/// Who can bring a lost object back.
pub(in crate::cluster) fn way_back(kind: ChildKind) -> &'static str {
    if kind == ChildKind::Lease {
        "the user, by the annotation clustereddatabase.io/recreate-lease with the UID of this ClusteredDatabase"
    } else {
        "the user, by restoring the Secret from a copy, with the label clustereddatabase.io/cluster"
    }
}

#[cfg(test)]
mod tests;
