//! Claims that were deleted while pods use them. Kubernetes keeps such a volume until its pod goes, and nobody can take the
//! deletion back. So it is said as long as it lasts, and nothing is done on purpose that would end the last copy of the data.

use api::status::{WaitActor, WaitReason};

use super::decision::Step;
use super::facts::{Facts, list};
use super::observed::{Claim, Pod, Volume};
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;

/// See [`Rule::what`].
pub const AWAIT_CLAIM: Rule = Rule {
    name: "await-claim",
    family: "volumes",
    what: "While a claim that a pod uses is deleted, its data goes with the pod; the status says what to do.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_claim,
    on_backoff: OnBackoff::Hold,
};

/// Names of this pod's claims that are being deleted, or are gone.
fn deleted(facts: &Facts<'_>, pod: &Pod) -> impl Iterator<Item = String> {
    let data_stays = facts.data_claim(pod.ordinal).is_some_and(|claim| !claim.terminating);
    let stays = |name: &&String| {
        facts
            .claims()
            .iter()
            .any(|claim| claim.name == **name && !claim.terminating)
    };
    let wal = pod.wal_claim.as_ref().filter(|name| !stays(name)).cloned();
    let name = || facts.claim_name(Volume::Data, &pod.name);
    let known = facts.observed.claims.get().is_some();
    let all = [(!data_stays).then(name), wal];
    all.into_iter().flatten().filter(move |_| known)
}

/// Claims that go with these pods. A pod that has no node keeps none.
fn going(facts: &Facts<'_>) -> Vec<String> {
    let pods = facts
        .pods()
        .iter()
        .filter(|pod| facts.bootstrapped() && pod.node.is_some());
    pods.flat_map(|pod| deleted(facts, pod)).collect()
}

/// What is to be known of claims that were deleted, in a sentence.
pub(super) fn words(facts: &Facts<'_>) -> Option<String> {
    let going = going(facts);
    let names = list(going.iter().map(String::as_str));
    (!going.is_empty()).then(|| format!("deleted while pods use them, so that their volumes go with the pods: {names}"))
}

fn await_claim(facts: &Facts<'_>) -> Option<Proposal> {
    let what = format!("claims to be made anew, {}", words(facts)?);
    let going = going(facts);
    let keys = going
        .iter()
        .map(|claim| WaitKey::claim(WaitReason::ClaimReplacement, claim));
    let who = if facts.expected() > 1 {
        "the user, by deleting these pods one after another, each while all others serve: it comes back with a new claim and a \
         new copy"
    } else {
        "the user, by a second instance (spec.replicas), which takes a copy before the pod ends"
    };
    Proposal::wait_for_all(facts, Step::Volumes, keys, what, who)
}

/// All that this pod's volume has is elsewhere, too: another one is primary, or follows this one, which is.
fn is_elsewhere(facts: &Facts<'_>, pod: &Pod) -> bool {
    match facts.primary() {
        Some(primary) if primary.uid == pod.uid => {
            let mut others = facts.pods().iter().filter(|other| other.uid != pod.uid);
            others.any(|other| facts.serves(other))
        }
        Some(_) => true,
        None => false,
    }
}

/// What is waited for before this pod is taken away, if the last copy of the data might go with it.
pub(super) fn before_replacing(facts: &Facts<'_>, pod: &Pod) -> Option<Proposal> {
    if !facts.bootstrapped() || pod.node.is_none() || is_elsewhere(facts, pod) {
        return None;
    }
    let name = &pod.name;
    if facts.observed.claims.get().is_none() {
        return Proposal::unread(facts, Step::Rollout, format!("what {name} leaves behind (the claims)"));
    }
    let claim = deleted(facts, pod).next()?;
    let what = format!(
        "another copy of the data, before {name} is replaced: claim {claim} was deleted, and its volume goes with the pod"
    );
    let (actor, copy) = if facts.expected() > 1 {
        (WaitActor::Agents, "the agents, by a primary that serves")
    } else {
        (
            WaitActor::User,
            "the user, by a second instance (spec.replicas), which takes a copy",
        )
    };
    let who = format!("{copy}; or, to give up what is on the volume, the user: kubectl delete pod {name}");
    let key = WaitKey::pod(WaitReason::DataCopy, name);
    Some(Proposal::wait(facts, Step::Rollout, key, what, who)?.by(actor))
}

/// What is waited for before a claim of a removed instance is deleted, if the volumes of all that stay go with their pods: then the
/// removed one's is the only copy that outlives them.
pub(super) fn before_removing(facts: &Facts<'_>, claim: &Claim) -> Option<Proposal> {
    let stays = |ordinal| facts.data_claim(ordinal).is_some_and(|claim| !claim.terminating);
    if (0..facts.wanted.replicas()).any(stays) {
        return None;
    }
    let what = format!(
        "a claim of an instance that stays, before {} is deleted, which has a copy of the data: those of all that stay were deleted",
        claim.name
    );
    let who = "the user, by more instances (spec.replicas), which take a copy, or by storage.retentionPolicy.whenScaled Retain";
    let key = WaitKey::claim(WaitReason::DataCopy, &claim.name);
    Proposal::wait(facts, Step::Scaling, key, what, who)
}

/// What is waited for before all pods are taken away, if the newest data is not known to be on a volume that stays.
pub(super) fn before_hibernating(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.bootstrapped() && facts.observed.claims.get().is_none() {
        return Proposal::unread(facts, Step::Stopping, "the claims");
    }
    let deleted_ones = words(facts)?;
    let released = facts.lease.and_then(|lease| lease.release.as_ref());
    let held = facts.holder().map(|holder| &holder.incarnation.member);
    let newest = held
        .or(released.map(|release| &release.member))
        .and_then(|member| member.ordinal());
    let stays = |ordinal| {
        let claim = facts.data_claim(ordinal).filter(|claim| !claim.terminating);
        let pod = facts.pod(ordinal);
        claim.is_some() && pod.is_none_or(|pod| deleted(facts, pod).next().is_none())
    };
    if newest.is_some_and(stays) {
        return None;
    }
    let what = format!("the primary to have a volume that outlives its pod, to hibernate; {deleted_ones}");
    let who = "the user: once spec.hibernated is false, a primary whose pod is deleted hands over first, and its claim is made \
               anew; with one instance a second one (spec.replicas) takes a copy before";
    Proposal::wait(facts, Step::Stopping, WaitReason::DataCopy, what, who)
}

#[cfg(test)]
mod tests;
