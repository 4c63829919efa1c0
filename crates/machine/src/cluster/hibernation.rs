//! `spec.hibernated`: the whole database is stopped as for a deletion, and its pods go; everything else stays, and is kept
//! as the spec wants it. It wakes by getting its pods back: who held the Lease last, or has all that it wrote, takes it.

use api::status::WaitReason;

use super::action::{Action, Apply, ApplyHow, StatusChange};
use super::claims;
use super::decision::Step;
use super::deletion;
use super::facts::Facts;
use super::facts::hibernation::{is_asked, wanted};
use super::observed::{Known, OwnedState, StatefulSetView};
use super::owned::OwnedObject;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use crate::reconcile::ObjectVersion;

/// See [`Rule::what`].
pub const WAKE: Rule = Rule {
    name: "wake",
    family: "hibernation",
    what: "Instances that were asked to stop, and need not any more, are told that they may run.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: wake,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const HIBERNATE: Rule = Rule {
    name: "hibernate",
    family: "hibernation",
    what: "With spec.hibernated all instances stop cleanly, standbys last; then, at the latest after a minute, the StatefulSet is scaled to 0.\n\
           - Not while the claim with the newest data was deleted: that data would go with its pod.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: hibernate,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_WAKING: Rule = Rule {
    name: "await-waking",
    family: "hibernation",
    what: "A database that hibernates stays so until the user wakes it; its objects are kept as they should be, and its volumes may grow.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_waking,
    on_backoff: OnBackoff::Hold,
};

fn wake(facts: &Facts<'_>) -> Option<Proposal> {
    if wanted(facts) || facts.wanted.deleting || !facts.status.intent.stop {
        return None;
    }
    let action = Action::WriteStatus(vec![StatusChange::EndStop]);
    Proposal::act(Step::Scaling, action, "the database is to run again")
}

fn hibernate(facts: &Facts<'_>) -> Option<Proposal> {
    if !wanted(facts) {
        return None;
    }
    let set = facts.observed.stateful_set.as_ref();
    if set.is_none_or(|set| set.replicas > 0) {
        let kept = claims::before_hibernating(facts);
        if !facts.status.intent.stop && kept.is_some() {
            return kept;
        }
        return stop(facts).or(kept).or_else(|| scale_to_zero(facts, set?));
    }
    let Known::Known(pods) = &facts.observed.pods else {
        return Proposal::unread(facts, Step::Removing, "the pods");
    };
    if pods.is_empty() {
        return None;
    }
    deletion::wait_for_removal(facts, pods)
}

/// Until nothing of PostgreSQL runs any more, or the time for that has passed.
fn stop(facts: &Facts<'_>) -> Option<Proposal> {
    // A StatefulSet of somebody else, and its pods, are not ours to stop; and where nothing was made, nothing runs.
    if deletion::is_set_foreign(facts) || deletion::nothing_runs(facts) {
        return None;
    }
    if !facts.status.intent.stop {
        let mut changes = vec![StatusChange::RequestStop];
        let memo = &facts.status.memo;
        if facts.status.intent.primary.is_some() || memo.switchover.is_some() {
            changes.push(StatusChange::EndSwitchover);
        }
        if facts.status.intent.restart.is_some() {
            changes.push(StatusChange::EndRestart);
        }
        return Proposal::act(Step::Stopping, Action::WriteStatus(changes), why(facts));
    }
    if deletion::has_stopped(facts) {
        return None;
    }
    let deadline = facts.waiting_since(&WaitReason::CleanStop.into()) + deletion::STOP_LIMIT;
    let wait = deletion::wait_for_clean_stop(facts)?;
    if facts.now < deadline {
        return Some(wait.until(deadline));
    }
    // What is to be taken away is looked at first.
    facts.observed.pods.get().is_none().then_some(wait)
}

/// A StatefulSet that cannot be changed as it is, is first made again by the rule `children`.
fn scale_to_zero(facts: &Facts<'_>, set: &StatefulSetView) -> Option<Proposal> {
    match facts.child(OwnedObject::StatefulSet)? {
        OwnedState::Current { .. } | OwnedState::Drifted { immutable: false, .. } => {}
        OwnedState::Missing
        | OwnedState::Foreign { .. }
        | OwnedState::Drifted { immutable: true, .. }
        | OwnedState::Damaged { .. } => return None,
    }
    let exact = ObjectVersion::new(facts.wanted.name, &set.uid, &set.resource_version);
    let apply = Apply {
        kind: OwnedObject::StatefulSet,
        how: ApplyHow::Change(exact),
        replicas: Some(0),
        wal: None,
    };
    let stopped = if deletion::has_stopped(facts) {
        "PostgreSQL has stopped everywhere"
    } else {
        "the time for a clean stop has passed"
    };
    Proposal::act(
        Step::Removing,
        Action::Apply(apply),
        format!("{stopped}, and {}", why(facts)),
    )
}

/// Why nothing is to run.
fn why(facts: &Facts<'_>) -> &'static str {
    if is_asked(facts) {
        "spec.hibernated is true"
    } else {
        "another set of volumes is to be used"
    }
}

fn await_waking(facts: &Facts<'_>) -> Option<Proposal> {
    if !is_asked(facts) {
        return None;
    }
    let what = "spec.hibernated to be false";
    let proposal = Proposal::wait(facts, Step::Removing, WaitReason::WakeUp, what, "the user")?;
    Some(Proposal { step: None, ..proposal })
}

#[cfg(test)]
mod tests;
