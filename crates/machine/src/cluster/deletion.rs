//! Deletion: stop cleanly, let the pods go, carry out the volume policy, let the resource go. Everything else belongs to
//! the resource and is collected with it, but for what is made only once: see [`super::adoption`]. Each step is recorded; a step that hangs is given up after a bound.

use api::ClusteredDatabaseStatus;
use api::spec::VolumeFate;
use api::status::WaitReason;
use chrono::TimeDelta;

use super::action::{Action, DeletionStep, StatusChange};
use super::adoption;
use super::decision::Step;
use super::facts::{Facts, exact, exact_claim, list};
use super::observed::{Known, OwnedState, Pod};
use super::owned::OwnedObject;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use crate::reconcile::ObjectVersion;

macro_rules! rule {
    ($constant:ident, $name:literal, $function:ident, $what:literal) => {
        /// See [`Rule::what`].
        pub const $constant: Rule = Rule {
            name: $name,
            family: "deletion",
            what: $what,
            protocol: &[],
            kind: RuleKind::Act,
            decide: $function,
            on_backoff: OnBackoff::Hold,
        };
    };
}

rule!(
    RELEASE_FINALIZER,
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
    "Claims are deleted if storage.retentionPolicy.whenDeleted says so, and with them what is made only once: the Lease and the Secrets with authority and password.\n\
     - Otherwise those stay with the claims, for a database that adopts them. A database that was never made leaves none."
);
rule!(FINISH, "finish", finish, "The finalizer is removed.");

/// A clean stop of a busy server takes a checkpoint: longer than the kubelet's 30 s, and bounded.
pub(super) const STOP_LIMIT: TimeDelta = TimeDelta::minutes(1);
/// A pod on a node that is gone never stops; its claims are held by the kubelet's finalizer anyway.
const PODS_LIMIT: TimeDelta = TimeDelta::minutes(5);

/// Waits until PostgreSQL has stopped in all instances.
pub(super) fn wait_for_clean_stop(facts: &Facts<'_>) -> Option<Proposal> {
    let what = "PostgreSQL to stop cleanly everywhere";
    Proposal::wait(facts, Step::Stopping, WaitReason::CleanStop, what, "the agents")
}

/// Waits until these pods are gone.
pub(super) fn wait_for_removal(facts: &Facts<'_>, pods: &[Pod]) -> Option<Proposal> {
    let names = || pods.iter().map(|pod| pod.name.as_str());
    let keys = names().map(|name| WaitKey::pod(WaitReason::PodRemoval, name));
    let what = format!("{} to be gone", list(names()));
    let who = "the kubelets; for a node that is gone, the user by deleting the pod with force";
    Proposal::wait_for_all(facts, Step::Removing, keys, what, who)
}

fn remove_finalizer(facts: &Facts<'_>, because: &'static str) -> Option<Proposal> {
    let wanted = facts.wanted;
    let exact = ObjectVersion::new(wanted.name, wanted.uid, wanted.resource_version);
    Proposal::act(Step::Removing, Action::RemoveFinalizer(exact), because)
}

fn let_go(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting {
        return None;
    }
    if !facts.wanted.finalizer {
        let reason = WaitReason::ResourceRemoval;
        return Proposal::wait(
            facts,
            Step::Removing,
            reason,
            "the resource to be gone",
            "the API server",
        );
    }
    if facts.observed.namespace_terminating {
        return remove_finalizer(facts, "the namespace is being deleted with all that is in it");
    }
    None
}

pub(super) fn done(facts: &Facts<'_>, step: DeletionStep) -> bool {
    is_done(facts.status, step)
}

pub(super) fn is_done(status: &ClusteredDatabaseStatus, step: DeletionStep) -> bool {
    status.deletion.iter().any(|done| done.step == step.as_str())
}

pub(super) fn record(step: DeletionStep, because: &'static str) -> Option<Proposal> {
    let during = match step {
        DeletionStep::FinalBackup => Step::BackingUp,
        DeletionStep::Stopped => Step::Stopping,
        DeletionStep::Archive | DeletionStep::PodsGone | DeletionStep::Volumes => Step::Removing,
    };
    Proposal::act(
        during,
        Action::WriteStatus(vec![StatusChange::DeletionDone(step, because)]),
        because,
    )
}

/// A StatefulSet of our name that is somebody else's: neither it nor its pods are ours to stop or to delete.
pub(super) fn is_set_foreign(facts: &Facts<'_>) -> bool {
    matches!(facts.child(OwnedObject::StatefulSet), Some(OwnedState::Foreign { .. }))
}

const NOT_OURS: &str = "the StatefulSet of this name is not ours";

/// Nothing was made that would have to stop.
pub(super) fn nothing_runs(facts: &Facts<'_>) -> bool {
    facts.missing(OwnedObject::StatefulSet) && facts.observed.pods.get().is_some_and(Vec::is_empty)
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
    let deadline = facts.phase_since() + STOP_LIMIT;
    if facts.now >= deadline {
        return record(DeletionStep::Stopped, "the time for a clean stop has passed");
    }
    Some(wait_for_clean_stop(facts)?.until(deadline))
}

fn remove_pods(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting || done(facts, DeletionStep::PodsGone) {
        return None;
    }
    let Some(child) = facts.child(OwnedObject::StatefulSet) else {
        return Proposal::unread(facts, Step::Removing, "the StatefulSet");
    };
    if matches!(child, OwnedState::Foreign { .. }) {
        return record(DeletionStep::PodsGone, NOT_OURS);
    }
    if let Some(set) = &facts.observed.stateful_set {
        let exact = ObjectVersion::new(facts.wanted.name, &set.uid, &set.resource_version);
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
    let deadline = facts.phase_since() + PODS_LIMIT;
    if facts.now >= deadline {
        return record(DeletionStep::PodsGone, "the time for pods to go has passed");
    }
    Some(wait_for_removal(facts, pods)?.until(deadline))
}

fn remove_volumes(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting || done(facts, DeletionStep::Volumes) {
        return None;
    }
    if facts.wanted.spec.storage.retention_policy.when_deleted == VolumeFate::Delete {
        let Known::Known(claims) = &facts.observed.claims else {
            return Proposal::unread(facts, Step::Removing, "the claims");
        };
        let ours = |uid: &Option<String>| uid.as_deref() == Some(facts.wanted.uid);
        if let Some(claim) = claims
            .iter()
            .chain(&facts.observed.other_claims)
            .find(|claim| ours(&claim.cluster_uid) && !claim.terminating)
        {
            let because = "the resource is being deleted, and storage.retentionPolicy.whenDeleted is Delete";
            return Proposal::act(Step::Removing, Action::DeleteClaim(exact_claim(claim)), because);
        }
    }
    let adopts = facts.status.memo.adopted.is_some();
    if adopts && (facts.observed.claims.get().is_none() || facts.child(OwnedObject::Lease).is_none()) {
        return Proposal::unread(facts, Step::Removing, "the claims and the Lease");
    }
    // Half of what was to come back would be of another name.
    if let Some(proposal) = adoption::adopt_claims(facts).or_else(|| remove_unique(facts)) {
        return Some(proposal);
    }
    let stopped = facts.status.intent.stop;
    if stopped {
        record(DeletionStep::Volumes, "the volume policy has been carried out")
    } else {
        None
    }
}

/// What no owner takes along, since volumes that are retained need it.
fn remove_unique(facts: &Facts<'_>) -> Option<Proposal> {
    let adopts = facts.status.memo.adopted.is_some();
    if adopts && !adoption::has_lease(facts) {
        return None;
    }
    if facts.observed.lease.get().is_none() && facts.status.system_identifier.is_none() {
        return Proposal::unread(facts, Step::Removing, "the Lease");
    }
    // In the middle of a recovery in place, the set of before was made.
    let kept = facts.lease.is_some_and(|lease| lease.former_set.is_some());
    let made = facts.bootstrapped() || adopts || kept;
    if made && facts.wanted.spec.storage.retention_policy.when_deleted == VolumeFate::Retain {
        return None;
    }
    for kind in OwnedObject::ALL.into_iter().filter(|kind| kind.owned().is_unique) {
        let uid = match facts.child(kind) {
            None => {
                return Proposal::unread(
                    facts,
                    Step::Removing,
                    format!("{} {}", kind.kind(), facts.child_name(kind)),
                );
            }
            Some(OwnedState::Missing | OwnedState::Foreign { .. }) => continue,
            Some(OwnedState::Current { uid } | OwnedState::Drifted { uid, .. } | OwnedState::Damaged { uid, .. }) => {
                uid
            }
        };
        let exact = ObjectVersion::of_any_version(facts.child_name(kind), uid);
        let because = format!("{} {} goes with the database", kind.kind(), exact.name());
        return Proposal::act(Step::Removing, Action::DeleteChild(kind, exact), because);
    }
    None
}

fn finish(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting {
        return None;
    }
    remove_finalizer(facts, "everything that the resource's deletion asks for is done")
}

#[cfg(test)]
mod tests;
