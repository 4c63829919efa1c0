//! The claims of WAL volumes that are added to a running database: each is made for the node that its pod is on, and has its
//! volume before that pod is replaced. What cannot be had costs no pod.
//!
//! A claim that a pod waits for is looked after by the scheduler, which chooses a node anew when a provisioner gives up; no
//! pod waits for these, so that one that cannot come to anything any more is made anew.

use api::status::{WaitActor, WaitReason};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::decision::Step;
use super::drift::STORAGE_CLASS_RECHECK;
use super::facts::rollout::next;
use super::facts::wal::{is_not_yet_due, is_spare, lacks_claim, misfit, other_class};
use super::facts::{Facts, exact_claim};
use super::observed::{Claim, Pod, StorageClass, Volume};
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;

/// See [`Rule::what`].
pub const REMOVE_CLAIM: Rule = Rule {
    name: "remove-wal-claim",
    family: "volumes",
    what: "A WAL claim that never had a volume, and that no pod waits for, is deleted if spec.storage.wal was taken away.\n\
           - It is also deleted, and made anew, if after a minute it asks for something else than the spec, or for another node than its pod's.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: remove_claim,
    on_backoff: OnBackoff::Yield,
};

/// See [`Rule::what`].
pub const MAKE_CLAIM: Rule = Rule {
    name: "make-wal-claim",
    family: "volumes",
    what: "Where spec.storage.wal was added, the WAL claim of the pod whose turn it is to be replaced is made, on the pod's node, while the pod goes on.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: make_claim,
    on_backoff: OnBackoff::Yield,
};

/// See [`Rule::what`].
pub const AWAIT_VOLUME: Rule = Rule {
    name: "await-wal-volume",
    family: "volumes",
    what: "No pod that serves is replaced for a WAL volume that is not there yet, or that it may not reach; what it lacks is said.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_volume,
    on_backoff: OnBackoff::Hold,
};

/// A provisioner has this long before its claim is made anew, or a pod that differs in more is replaced without. So a claim
/// that comes to nothing is made once a minute, as a scheduler would try it.
const WAIT_LIMIT: TimeDelta = TimeDelta::minutes(1);

/// The pod whose turn it is, if it lacks a WAL volume. A primary that differs in more hands over before.
fn turn<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    let pod = next(facts).filter(|pod| lacks_claim(facts, pod))?;
    let is_primary = facts.primary().is_some_and(|primary| primary.uid == pod.uid);
    let hands_over = is_primary && facts.expected() > 1 && !is_not_yet_due(facts, pod);
    (!hands_over).then_some(pod)
}

/// Until when the claim of this pod, which was just made, may get its volume: a pod that differs in more waits for that, so
/// that it is replaced once.
pub(super) fn comes_until(facts: &Facts<'_>, pod: &Pod) -> Option<DateTime<Utc>> {
    let ours = |claim: &&Claim| facts.owns(claim) && !claim.terminating;
    let claim = facts.wal_claim(pod.ordinal).filter(ours)?;
    let may_come = !claim.bound && claim.selected_node == pod.node && lacks_claim(facts, pod);
    let until = claim.created + WAIT_LIMIT;
    (may_come && missing_class(facts).is_none() && facts.now < until).then_some(until)
}

fn remove_claim(facts: &Facts<'_>) -> Option<Proposal> {
    let empty = |claim: &Claim| !claim.bound && !claim.had_volume && !claim.terminating;
    let may_go = |claim: &&Claim| facts.owns(claim) && empty(claim) && is_spare(facts, claim);
    let mut claims = facts.claims().iter().filter(may_go);
    let (claim, why) = claims.find_map(|claim| Some((claim, useless(facts, claim)?)))?;
    let because = format!("claim {} never had a volume, and {why}", claim.name);
    Proposal::act(Step::Volumes, Action::DeleteClaim(exact_claim(claim)), because)
}

/// Why nothing comes of this claim.
fn useless(facts: &Facts<'_>, claim: &Claim) -> Option<String> {
    if facts.wanted.spec.storage.wal.is_none() {
        return Some("spec.storage.wal is gone".to_owned());
    }
    let wanted = facts
        .wanted
        .wal_bytes
        .filter(|_| facts.now >= claim.created + WAIT_LIMIT)?;
    if claim.requested != wanted {
        return Some(format!("asks for {} instead of {}", claim.requested, wanted.0));
    }
    let elsewhere = || {
        let pod = turn(facts).filter(|pod| pod.ordinal == claim.ordinal)?;
        let node = pod
            .node
            .as_ref()
            .filter(|node| claim.selected_node.as_ref() != Some(node))?;
        let made_for = claim.selected_node.as_deref().unwrap_or("no node");
        Some(format!("asks for {made_for}, while {} is on {node}", pod.name))
    };
    other_class(facts, claim).or_else(elsewhere)
}

fn make_claim(facts: &Facts<'_>) -> Option<Proposal> {
    let pod = turn(facts)?;
    facts.observed.claims.get()?;
    if facts.wal_claim(pod.ordinal).is_some() || missing_class(facts).is_some() {
        return None;
    }
    let action = Action::MakeWalClaim {
        name: claim_name(facts, pod.ordinal),
        node: pod.node.clone()?,
    };
    Proposal::act(Step::Volumes, action, format!("{} has no WAL volume", pod.name))
}

fn await_volume(facts: &Facts<'_>) -> Option<Proposal> {
    let pod = turn(facts)?;
    let before = format!("before {} is replaced to have it", pod.name);
    let claim = claim_name(facts, pod.ordinal);
    let wait = |key: WaitKey, what: String, who: String| {
        Proposal::wait(facts, Step::Volumes, key, format!("{what}, {before}"), who)
    };
    let key = |reason| WaitKey::claim(reason, &claim);
    let or_back = |who: &str| {
        let none_given = facts.status.memo.wal_volumes.is_empty();
        let back = if none_given {
            ", or the user by taking spec.storage.wal away"
        } else {
            ""
        };
        format!("{who}{back}")
    };
    let Some(found) = facts.wal_claim(pod.ordinal) else {
        return match missing_class(facts) {
            Some(class) => {
                let wake = facts.now + STORAGE_CLASS_RECHECK;
                let who = or_back("the cluster's administrator");
                Some(wait(WaitReason::StorageClassCreation.into(), class, who)?.looking_again(wake))
            }
            None if pod.node.is_none() => {
                let key = WaitKey::pod(WaitReason::PodScheduling, &pod.name);
                wait(key, format!("a node for pod {}", pod.name), "the scheduler".to_owned())
            }
            None => {
                let what = format!("claim {claim} to be made");
                wait(key(WaitReason::ClaimCreation), what, "the operator".to_owned())
            }
        };
    };
    if !facts.owns(found) {
        let what = format!("claim {claim} to go away, which was made for another database");
        let who = "the user, by deleting the claim".to_owned();
        return wait(key(WaitReason::ForeignClaimRemoval), what, who);
    }
    if found.terminating {
        let what = format!("claim {claim} to be gone");
        let wait = wait(key(WaitReason::ClaimRemoval), what, "who uses it".to_owned())?;
        return Some(wait.by(WaitActor::Kubernetes));
    }
    if let Some(why) = misfit(facts, pod) {
        let who = "the user, by deleting the claim, on which nothing is yet: then it is made anew".to_owned();
        let what = format!("claim {claim} to go away, which {why}");
        return wait(key(WaitReason::ClaimRemoval), what, who);
    }
    let who = or_back("the provisioner of its StorageClass (a claim that is deleted is made again)");
    let what = format!("claim {claim} to have a volume");
    let wait = wait(key(WaitReason::VolumeProvisioning), what, who)?;
    Some(match comes_until(facts, pod) {
        Some(until) if !is_not_yet_due(facts, pod) => wait.until(until),
        _ => wait.looking_again_by(Some(found.created + WAIT_LIMIT).filter(|again| *again > facts.now)),
    })
}

/// The StorageClass of the WAL volumes, if there is none.
fn missing_class(facts: &Facts<'_>) -> Option<String> {
    match facts.storage_class(Volume::Wal)? {
        StorageClass::Missing { name } => Some(format!("StorageClass {name} for WAL volumes")),
        StorageClass::NoDefault => Some("a default StorageClass for WAL volumes".to_owned()),
        StorageClass::Present { .. } => None,
    }
}

fn claim_name(facts: &Facts<'_>, ordinal: u32) -> String {
    facts.claim_name(Volume::Wal, &format!("{}-{ordinal}", facts.wanted.name))
}

#[cfg(test)]
mod tests;
