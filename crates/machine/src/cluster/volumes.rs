//! Volumes: grown before anything else is waited for, since a full one is what keeps a database from being healthy.
//!
//! What Kubernetes refuses to all of them (a class that cannot expand its volumes, a quota) can be taken back from the spec:
//! until a claim has grown, the size that they have is on record (`status.memo.granted`), new ones are made with that, and the
//! definition of the resource lets the spec go back to it.

use api::status::WaitReason;

use super::action::Action;
use super::decision::Step;
use super::facts::volumes::{differing, growing, is_fixed, new_pod_at, too_small, way_back};
use super::facts::{Facts, exact_claim, shortened};
use super::observed::{Claim, Target};
use super::resting;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;

/// See [`Rule::what`].
pub const GROW: Rule = Rule {
    name: "grow-volumes",
    family: "volumes",
    what: "A claim that asks for less than the spec is raised, whatever state the database is in.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: grow,
    on_backoff: OnBackoff::Yield,
};

/// See [`Rule::what`].
pub const AWAIT_GROWTH: Rule = Rule {
    name: "await-growth",
    family: "volumes",
    what: "A volume that Kubernetes has accepted to grow, and that has not grown yet, is waited for; the status quotes the claim.\n\
           - Where growing needs a new pod, the pod counts as one of an older template after two minutes.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_growth,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_EXPANDABLE: Rule = Rule {
    name: "await-expandable",
    family: "volumes",
    what: "Volumes whose StorageClass cannot expand them stay as they are; the status says so.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_expandable,
    on_backoff: OnBackoff::Hold,
};

fn grow(facts: &Facts<'_>) -> Option<Proposal> {
    let small = || too_small(facts).filter(|(claim, _)| !is_fixed(facts, claim.volume));
    let rests = |claim: &Claim| resting::rests(facts, &Target::Claim(claim.name.clone()));
    let next = small().find(|(claim, _)| !rests(claim));
    let (claim, size) = next.or_else(|| small().next())?;
    let because = format!(
        "claim {} asks for {}, and the spec for {size}",
        claim.name, claim.requested
    );
    let action = Action::ResizeClaim {
        claim: exact_claim(claim),
        size: size.to_owned(),
    };
    Proposal::act(Step::Volumes, action, because)
}

/// See [`Rule::what`].
pub const UPDATE: Rule = Rule {
    name: "update-claims",
    family: "volumes",
    what: "A claim that lacks labels, annotations or the attributes class of the spec gets them.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: update,
    on_backoff: OnBackoff::Yield,
};

fn update(facts: &Facts<'_>) -> Option<Proposal> {
    let rests = |claim: &&Claim| resting::rests(facts, &Target::Claim(claim.name.clone()));
    let next = differing(facts).find(|claim| !rests(claim));
    let claim = next.or_else(|| differing(facts).next())?;
    let because = format!(
        "claim {} lacks labels, annotations or the attributes class of the spec",
        claim.name
    );
    Proposal::act(Step::Volumes, Action::UpdateClaim(exact_claim(claim)), because)
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
        WaitKey::claim(WaitReason::VolumeGrowth, &claim.name),
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
    let key = WaitKey::claim(WaitReason::VolumeExpansion, &claim.name);
    Proposal::wait(facts, Step::Volumes, key, what, who)
}

#[cfg(test)]
mod tests;
