//! Who may make the first database. Granted to one data claim, before anything happens, and moved only if that claim is
//! gone and no system identifier was ever recorded: initdb runs at most once.

use api::status::BootstrapGrant;

use super::action::StatusChange;
use super::facts::{Facts, fenced, hibernation};
use super::observed::{Claim, OwnedState, Pod};
use super::snapshot;

/// The grant to write now, with everything that has to be on record before a database exists.
pub(super) fn changes(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) {
    let Some((pod, claim)) = grant(facts) else { return };
    changes.push(StatusChange::GrantBootstrap {
        pod: pod.name.clone(),
        claim_uid: claim.uid.clone(),
    });
}

/// The pod and the claim to grant the bootstrap to, if a grant is missing and may be given.
pub(super) fn grant<'a>(facts: &Facts<'a>) -> Option<(&'a Pod, &'a Claim)> {
    let lease = facts.lease?;
    let order = facts.status.intent.recovery.as_ref();
    let begins = order.map_or(0, |order| order.epoch);
    let untouched = lease.holder.is_none() && lease.epoch.0 == begins && lease.release.is_none();
    let adopts = facts.status.memo.adopted.is_some() && order.is_none();
    let stays = facts.wanted.deleting || hibernation::wanted(facts) || adopts;
    if !untouched || facts.bootstrapped() || facts.wanted.invalid.is_some() || stays {
        return None;
    }
    let all_made = facts.wanted_children().all(|kind| {
        matches!(
            facts.child(kind),
            Some(OwnedState::Current { .. } | OwnedState::Drifted { .. })
        )
    });
    if !all_made
        || facts
            .status
            .intent
            .bootstrap
            .as_ref()
            .is_some_and(|grant| stands(facts, grant))
    {
        return None;
    }
    let of_first_only = snapshot::is_recovered_from(facts);
    let granted = facts
        .pods()
        .iter()
        .filter(|pod| pod.ordinal == 0 || !of_first_only)
        .filter(|pod| pod.node.is_some() && !pod.terminating && !fenced::is_fenced(facts, &pod.name))
        .find_map(|pod| {
            let claim = facts.data_claim(pod.ordinal)?;
            (!claim.terminating && facts.owns(claim)).then_some((pod, claim))
        });
    granted.filter(|_| facts.observed.claims.get().is_some())
}

/// A grant stands while its claim exists, or the pod that may be using it, or while that is unknown. A pod that is on
/// record with another claim does not use the granted one.
fn stands(facts: &Facts<'_>, grant: &BootstrapGrant) -> bool {
    let (Some(claims), Some(pods)) = (facts.observed.claims.get(), facts.observed.pods.get()) else {
        return true;
    };
    let user = facts
        .status
        .members
        .get(&grant.pod)
        .filter(|member| member.claim_uid.as_deref() == Some(grant.claim_uid.as_str()))
        .and_then(|member| member.pod_uid.as_deref());
    claims.iter().any(|claim| claim.uid == grant.claim_uid) || pods.iter().any(|pod| Some(pod.uid.as_str()) == user)
}

#[cfg(test)]
mod tests;
