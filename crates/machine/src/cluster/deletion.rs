//! Deletion: stop cleanly, let the pods go, carry out the volume policy, let the resource go. Everything else belongs to
//! the resource and is collected with it. Each step is recorded; a step that hangs is given up after a bound.

use api::spec::VolumeFate;
use chrono::TimeDelta;

use super::action::{Action, DeletionStep, StatusChange};
use super::decision::Step;
use super::facts::{Facts, list};
use super::members::{exact, exact_claim};
use super::observed::{ChildKind, ChildState, Known};
use super::rule::{Proposal, Rule};
use crate::reconcile::Exact;

macro_rules! rule {
    ($constant:ident, $name:literal, $function:ident, $what:literal) => {
        /// See [`Rule::what`].
        pub const $constant: Rule = Rule {
            name: $name,
            family: "deletion",
            what: $what,
            propose: $function,
            passable: false,
        };
    };
}

rule!(
    LET_GO,
    "let-go",
    let_go,
    "A resource that is being deleted with its namespace is let go at once; one without our finalizer is gone soon."
);
rule!(
    STOP,
    "stop",
    stop,
    "All instances are told to stop cleanly, standbys last, before their pods are taken away."
);
rule!(
    REMOVE_PODS,
    "remove-pods",
    remove_pods,
    "The StatefulSet is deleted, and pods that it does not own any more."
);
rule!(
    REMOVE_VOLUMES,
    "remove-volumes",
    remove_volumes,
    "Claims are deleted if volumePolicy.onDelete says so."
);
rule!(FINISH, "finish", finish, "The finalizer is removed.");

/// A clean stop of a busy server takes a checkpoint: longer than the kubelet's 30 s, and bounded.
pub(super) const STOP_PATIENCE: TimeDelta = TimeDelta::minutes(1);
/// A pod on a node that is gone never stops; its claims are held by the kubelet's finalizer anyway.
const PODS_PATIENCE: TimeDelta = TimeDelta::minutes(5);

/// What a stop of all instances waits for.
pub(super) const CLEAN_STOP: &str = "PostgreSQL to stop cleanly everywhere";
/// Who can end the wait for pods that are to go.
pub(super) const WHO_REMOVES_PODS: &str =
    "the kubelets; for a node that is gone, the user by deleting the pod with force";

fn remove_finalizer(facts: &Facts<'_>, because: &'static str) -> Option<Proposal> {
    let wanted = facts.wanted;
    let exact = Exact::new(wanted.name, wanted.uid, wanted.resource_version);
    Proposal::act(Step::Removing, Action::RemoveFinalizer(exact), because)
}

fn let_go(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting {
        return None;
    }
    if !facts.wanted.finalizer {
        return Proposal::wait(facts, Step::Removing, "the resource to be gone", "the API server");
    }
    if facts.observed.namespace_terminating {
        return remove_finalizer(facts, "the namespace is being deleted with all that is in it");
    }
    None
}

fn done(facts: &Facts<'_>, step: DeletionStep) -> bool {
    facts.status.memo.deletion_done.iter().any(|name| name == step.as_str())
}

fn record(step: DeletionStep, because: &'static str) -> Option<Proposal> {
    let during = if step == DeletionStep::Stopped {
        Step::Stopping
    } else {
        Step::Removing
    };
    Proposal::act(
        during,
        Action::WriteStatus(vec![StatusChange::DeletionDone(step)]),
        because,
    )
}

/// A StatefulSet of our name that is somebody else's: neither it nor its pods are ours to stop or to delete.
pub(super) fn is_set_foreign(facts: &Facts<'_>) -> bool {
    matches!(facts.child(ChildKind::StatefulSet), Some(ChildState::Foreign { .. }))
}

const NOT_OURS: &str = "the StatefulSet of this name is not ours";

/// Nothing was made that would have to stop.
pub(super) fn nothing_runs(facts: &Facts<'_>) -> bool {
    facts.missing(ChildKind::StatefulSet) && facts.observed.pods.get().is_some_and(Vec::is_empty)
}

/// Nobody holds the Lease, or who does can let nothing go, and no instance serves.
pub(super) fn has_stopped(facts: &Facts<'_>) -> bool {
    let released = match &facts.observed.lease {
        // A holder whose pod is gone can let nothing go.
        Known::Known(_) => facts.holder().is_none() || (facts.holder_pod().is_none() && facts.all_known()),
        Known::Unknown => false,
    };
    let pods = facts.observed.pods.get();
    released && pods.is_some_and(|pods| pods.iter().all(|pod| !pod.ready))
}

fn stop(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting || done(facts, DeletionStep::Stopped) || nothing_runs(facts) {
        return None;
    }
    if is_set_foreign(facts) {
        return record(DeletionStep::Stopped, NOT_OURS);
    }
    if !facts.status.intent.stop {
        let action = Action::WriteStatus(vec![StatusChange::RequestStop]);
        return Proposal::act(Step::Stopping, action, "the resource is being deleted");
    }
    if has_stopped(facts) {
        return record(DeletionStep::Stopped, "PostgreSQL has stopped everywhere");
    }
    let deadline = facts.phase_since() + STOP_PATIENCE;
    if facts.now >= deadline {
        return record(DeletionStep::Stopped, "the time for a clean stop has passed");
    }
    Some(Proposal::wait(facts, Step::Stopping, CLEAN_STOP, "the agents")?.until(deadline))
}

fn remove_pods(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting || done(facts, DeletionStep::PodsGone) {
        return None;
    }
    let Some(child) = facts.child(ChildKind::StatefulSet) else {
        return Proposal::unread(facts, Step::Removing, "the StatefulSet");
    };
    if matches!(child, ChildState::Foreign { .. }) {
        return record(DeletionStep::PodsGone, NOT_OURS);
    }
    if let Some(set) = &facts.observed.stateful_set {
        let exact = Exact::new(facts.wanted.name, &set.uid, &set.resource_version);
        return Proposal::act(
            Step::Removing,
            Action::DeleteStatefulSet(exact),
            "PostgreSQL is to run no more",
        );
    }
    let Known::Known(pods) = &facts.observed.pods else {
        return Proposal::unread(facts, Step::Removing, "the pods");
    };
    if let Some(pod) = pods.iter().find(|pod| !pod.terminating) {
        let because = format!("{} is to run no more, and no StatefulSet has it", pod.name);
        return Proposal::act(Step::Removing, Action::ReplacePod(exact(pod)), because);
    }
    if pods.is_empty() {
        let stopped = facts.status.intent.stop;
        return if stopped {
            record(DeletionStep::PodsGone, "all pods are gone")
        } else {
            None
        };
    }
    let deadline = facts.phase_since() + PODS_PATIENCE;
    if facts.now >= deadline {
        return record(DeletionStep::PodsGone, "the time for pods to go has passed");
    }
    let what = format!("{} to be gone", list(pods.iter().map(|pod| pod.name.as_str())));
    Some(Proposal::wait(facts, Step::Removing, what, WHO_REMOVES_PODS)?.until(deadline))
}

fn remove_volumes(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting || done(facts, DeletionStep::Volumes) {
        return None;
    }
    if facts.wanted.spec.volume_policy.on_delete == VolumeFate::Delete {
        let Known::Known(claims) = &facts.observed.claims else {
            return Proposal::unread(facts, Step::Removing, "the claims");
        };
        let ours = |uid: &Option<String>| uid.as_deref() == Some(facts.wanted.uid);
        if let Some(claim) = claims
            .iter()
            .find(|claim| ours(&claim.cluster_uid) && !claim.terminating)
        {
            let because = "the resource is being deleted, and volumePolicy.onDelete is Delete";
            return Proposal::act(Step::Removing, Action::DeleteClaim(exact_claim(claim)), because);
        }
    }
    let stopped = facts.status.intent.stop;
    if stopped {
        record(DeletionStep::Volumes, "the volume policy has been carried out")
    } else {
        None
    }
}

fn finish(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting {
        return None;
    }
    remove_finalizer(facts, "everything that the resource's deletion asks for is done")
}

#[cfg(test)]
mod tests;
