//! `spec.hibernated`: the whole database is stopped as for a deletion, and its pods go; everything else stays, and is kept
//! as the spec wants it. It wakes by getting its pods back: who held the Lease last, or has all that it wrote, takes it.

use super::action::{Action, Apply, ApplyHow, StatusChange};
use super::claims;
use super::decision::Step;
use super::deletion;
use super::facts::{Facts, list};
use super::observed::{ChildKind, ChildState, Known, SetFacts};
use super::rule::{Proposal, Rule};
use crate::reconcile::Exact;

/// See [`Rule::what`].
pub const WAKE: Rule = Rule {
    name: "wake",
    family: "hibernation",
    what: "Instances that were told to stop, and need not any more, are told so.",
    propose: wake,
    passable: false,
};

/// See [`Rule::what`].
pub const HIBERNATE: Rule = Rule {
    name: "hibernate",
    family: "hibernation",
    what: "With spec.hibernated all instances are told to stop cleanly, standbys last; then, at the latest after a minute, the StatefulSet is scaled to 0. Nothing but pods is taken away: so not while the claim of who has the newest data was deleted, and would go with its pod.",
    propose: hibernate,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_WAKING: Rule = Rule {
    name: "await-waking",
    family: "hibernation",
    what: "A database that hibernates stays so until the user wakes it; its objects are kept as they should be, and its volumes may grow.",
    propose: await_waking,
    passable: false,
};

/// The user wants it so, and it is not being deleted.
pub(super) fn wanted(facts: &Facts<'_>) -> bool {
    facts.wanted.spec.hibernated && !facts.wanted.deleting
}

/// No pod is there, and none will be made.
pub(super) fn is_down(facts: &Facts<'_>) -> bool {
    let no_pods = facts.observed.pods.get().is_some_and(Vec::is_empty);
    wanted(facts)
        && no_pods
        && facts
            .observed
            .stateful_set
            .as_ref()
            .is_some_and(|set| set.replicas == 0)
}

/// No pod is there, and everything else is as it should be.
pub(super) fn rests(facts: &Facts<'_>) -> bool {
    is_down(facts) && facts.wanted.invalid.is_none() && facts.children_are_current()
}

/// It was put down on purpose, need not be down any more, and nobody has served since.
pub(super) fn wakes(facts: &Facts<'_>) -> bool {
    let put_down = facts.status.intent.stop || facts.status.memo.put_down.is_some();
    !facts.wanted.spec.hibernated && put_down && !is_back(facts)
}

/// A primary serves in a later epoch than that in which all instances were told to stop. (One that has not stopped yet
/// still serves in that very epoch.)
pub(super) fn is_back(facts: &Facts<'_>) -> bool {
    let before = facts.status.memo.put_down;
    let later = facts.lease.is_some_and(|lease| Some(lease.epoch.0) > before);
    before.is_some() && later && facts.primary().is_some()
}

fn wake(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.wanted.spec.hibernated || facts.wanted.deleting || !facts.status.intent.stop {
        return None;
    }
    let action = Action::WriteStatus(vec![StatusChange::EndStop]);
    Proposal::act(Step::Scaling, action, "spec.hibernated is false")
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
    let what = format!("{} to be gone", list(pods.iter().map(|pod| pod.name.as_str())));
    Proposal::wait(facts, Step::Removing, what, deletion::WHO_REMOVES_PODS)
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
        return Proposal::act(Step::Stopping, Action::WriteStatus(changes), "spec.hibernated is true");
    }
    if deletion::has_stopped(facts) {
        return None;
    }
    let deadline = facts.waiting_since(deletion::CLEAN_STOP) + deletion::STOP_PATIENCE;
    let wait = Proposal::wait(facts, Step::Stopping, deletion::CLEAN_STOP, "the agents")?;
    if facts.now < deadline {
        return Some(wait.until(deadline));
    }
    // What is to be taken away is looked at first.
    facts.observed.pods.get().is_none().then_some(wait)
}

/// A StatefulSet that cannot be changed as it is, is first made again by the rule `children`.
fn scale_to_zero(facts: &Facts<'_>, set: &SetFacts) -> Option<Proposal> {
    match facts.child(ChildKind::StatefulSet)? {
        ChildState::Current { .. } | ChildState::Drifted { immutable: false, .. } => {}
        ChildState::Missing
        | ChildState::Foreign { .. }
        | ChildState::Drifted { immutable: true, .. }
        | ChildState::Damaged { .. } => return None,
    }
    let exact = Exact::new(facts.wanted.name, &set.uid, &set.resource_version);
    let apply = Apply {
        kind: ChildKind::StatefulSet,
        how: ApplyHow::Change(exact),
        replicas: Some(0),
        wal: None,
    };
    let because = if deletion::has_stopped(facts) {
        "PostgreSQL has stopped everywhere, and spec.hibernated is true"
    } else {
        "the time for a clean stop has passed, and spec.hibernated is true"
    };
    Proposal::act(Step::Removing, Action::Apply(apply), because)
}

fn await_waking(facts: &Facts<'_>) -> Option<Proposal> {
    if !wanted(facts) {
        return None;
    }
    let proposal = Proposal::wait(facts, Step::Removing, "spec.hibernated to be false", "the user")?;
    Some(Proposal { step: None, ..proposal })
}

#[cfg(test)]
mod tests;
