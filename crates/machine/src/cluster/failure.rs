//! Faults that do not go away by waiting, each found in what is observed: when its cause goes, so does it. And the rest
//! after an action that failed.

use api::status::FailureReason;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, ApplyHow};
use super::decision::{Failure, Step};
use super::drift;
use super::facts::Facts;
use super::observed::{ChildKind, ChildState, Fault, Pod, StorageClass, Target, Volume};
use super::rule::{Proposal, Rule};
use super::volumes;
use crate::reconcile::FaultKind;
use crate::reconcile::retry_at;

/// See [`Rule::what`].
pub const INVALID_SPEC: Rule = Rule {
    name: "invalid-spec",
    family: "failure",
    what: "A spec that breaks a rule changes nothing; a database that runs goes on as it is.",
    propose: invalid_spec,
    passable: false,
};

/// An image may be pushed, or a registry come back, this long after the first failed pull.
pub const IMAGE_PATIENCE: TimeDelta = TimeDelta::minutes(2);
/// A missing StorageClass is looked for again after this long: it brings no event of ours.
pub const STORAGE_CLASS_RECHECK: TimeDelta = TimeDelta::seconds(15);

fn invalid_spec(facts: &Facts<'_>) -> Option<Proposal> {
    let why = facts.wanted.invalid?;
    let step = if facts.bootstrapped() {
        Step::Repair
    } else {
        Step::Objects
    };
    Proposal::wait(
        facts,
        step,
        format!("a valid spec: {why}"),
        "the user, by changing the spec",
    )
}

/// Why the database cannot go on, if it cannot.
pub fn failure(facts: &Facts<'_>) -> Option<Failure> {
    invalid(facts)
        .or_else(|| foreign(facts))
        .or_else(|| lost(facts))
        .or_else(|| storage_class(facts))
        .or_else(|| refused(facts))
        .or_else(|| image(facts))
        .or_else(|| bootstrap(facts))
}

fn failed(reason: FailureReason, message: String) -> Option<Failure> {
    Some(Failure {
        reason,
        message: message.into(),
    })
}

fn invalid(facts: &Facts<'_>) -> Option<Failure> {
    failed(FailureReason::InvalidSpec, facts.wanted.invalid?.to_owned())
}

fn foreign(facts: &Facts<'_>) -> Option<Failure> {
    if let Some((kind, why)) = drift::first_foreign(facts) {
        let name = facts.child_name(kind);
        let message = format!(
            "{} {name} is {why}: delete or rename it, or use another name",
            kind.kind()
        );
        return failed(FailureReason::ForeignObject, message);
    }
    let claim = drift::foreign_claim(facts, facts.wanted.replicas())?;
    let of = claim.cluster_uid.as_deref().unwrap_or("unknown");
    let message = format!(
        "claim {} holds the data of another database (UID {of}): delete the claim, or use another name",
        claim.name
    );
    failed(FailureReason::ForeignObject, message)
}

fn lost(facts: &Facts<'_>) -> Option<Failure> {
    let kind = drift::first_lost(facts)?;
    if kind == ChildKind::Lease && drift::may_heal(facts) {
        return None;
    }
    let name = facts.child_name(kind);
    let message = if kind == ChildKind::Lease {
        lost_lease(facts, &name)?
    } else if let Some(ChildState::Damaged { what, .. }) = facts.child(kind) {
        format!(
            "Secret {name} {what}, and is not given other content: restore it from a copy, or delete it and restore it"
        )
    } else {
        format!(
            "Secret {name} is lost and is not made again with other content: restore it from a copy, labelled {}={}",
            api::names::LABEL_CLUSTER,
            facts.wanted.name
        )
    };
    failed(FailureReason::PartLost, message)
}

/// What is said of a Lease that is lost; nothing while it is made again.
fn lost_lease(facts: &Facts<'_>, name: &str) -> Option<String> {
    let message = if let Some(what) = drift::understood_by_nobody(facts) {
        format!(
            "Lease {name} {what}, so that nobody may be primary; it is ended by {}",
            drift::PUT_RIGHT
        )
    } else if facts.wanted.recreate_lease == Some(facts.wanted.uid) {
        drift::last_primary(facts).is_none().then(|| {
            format!("Lease {name} is lost, and who held it last is not on record: it cannot be made again safely")
        })?
    } else if drift::is_emptied(facts) {
        format!(
            "Lease {name} is empty: nobody knows who may be primary. If no other member can have been promoted since, it is ended by {}",
            drift::EMPTIED
        )
    } else {
        format!(
            "Lease {name} is lost: nobody knows who may be primary. If no other member can have been promoted since, \
             annotate this resource with {}={}",
            api::names::ANNOTATION_RECREATE_LEASE,
            facts.wanted.uid
        )
    };
    Some(message)
}

fn storage_class(facts: &Facts<'_>) -> Option<Failure> {
    let (volume, class) = drift::storage_class_fault(facts)?;
    let (of, field) = match volume {
        Volume::Data => ("", "spec.storage.storageClassName"),
        Volume::Wal => (" for WAL volumes", "spec.storage.wal.storageClassName"),
    };
    let message = match class {
        StorageClass::Missing { name } => format!("StorageClass {name}{of} does not exist: create it"),
        StorageClass::NoDefault => {
            format!("there is no default StorageClass{of}: mark one as default, or name one in {field}")
        }
        StorageClass::Present { .. } => return None,
    };
    failed(FailureReason::StorageClassNotFound, message)
}

/// Objects that the API server refuses for a reason that only people can change. One that is as it should be after all
/// is refused no more, whoever made it so.
fn refused(facts: &Facts<'_>) -> Option<Failure> {
    facts
        .observed
        .faults
        .iter()
        .filter(|fault| !is_over(facts, &fault.target))
        .find_map(|fault| match (&fault.target, fault.kind) {
            (target, FaultKind::Quota) => {
                let message = format!("a quota refuses {}: {}", describe(facts, target), fault.message);
                failed(FailureReason::QuotaExceeded, message)
            }
            (Target::Child(_), FaultKind::Invalid) => {
                let message = format!(
                    "the API server refuses {}: {}",
                    describe(facts, &fault.target),
                    fault.message
                );
                failed(FailureReason::InvalidSpec, message)
            }
            (_, FaultKind::Invalid | FaultKind::Forbidden | FaultKind::Conflict | FaultKind::Transient) => None,
        })
}

/// An object that cannot be made or changed, though everything that does not build on it goes on: what is passed over would be
/// said nowhere else. What may go away by itself is told from the second time on, and a pod or a claim only while a rule that
/// may be passed over still wants to change it.
pub(super) fn passed_over(facts: &Facts<'_>) -> Option<String> {
    let wanted: Vec<Target> = super::RULES
        .iter()
        .filter(|rule| rule.passable && !facts.observed.faults.is_empty())
        .filter_map(|rule| (rule.propose)(facts)?.action.target())
        .collect();
    let mut faults = facts.observed.faults.iter();
    let fault = faults.find(|fault| {
        let lasts = match fault.kind {
            FaultKind::Quota | FaultKind::Forbidden | FaultKind::Invalid => true,
            FaultKind::Conflict | FaultKind::Transient => fault.attempts > 1,
        };
        let missing = matches!(fault.target, Target::Child(_)) && !is_over(facts, &fault.target);
        lasts && (missing || wanted.contains(&fault.target))
    })?;
    let object = describe(facts, &fault.target);
    Some(format!(
        "{object} cannot be made or changed: {}",
        shortened(&fault.message)
    ))
}

/// So much of the API server's words, or a webhook's, stands in a condition, in characters: what was wrong stands first.
const WORDS: usize = 300;

pub(super) fn shortened(message: &str) -> String {
    match message.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

/// What was refused has come about, or is not wanted any more.
fn is_over(facts: &Facts<'_>, target: &Target) -> bool {
    match target {
        Target::Child(kind) => matches!(facts.child(*kind), Some(ChildState::Current { .. })),
        Target::Resize(name) => {
            let mut pods = facts.pods().iter();
            pods.all(|pod| pod.name != *name || facts.current_revision(pod))
        }
        Target::Resource | Target::Status | Target::Pod(_) | Target::Claim(_) | Target::Certificate(_) => false,
    }
}

/// A pod of the wanted template whose image has not run for [`IMAGE_PATIENCE`]. One of an older template is not waited
/// for: it is replaced.
fn image(facts: &Facts<'_>) -> Option<Failure> {
    let hopeless = |pod: &&Pod| image_deadline(facts, pod).is_some_and(|deadline| facts.now >= deadline);
    let pod = facts.pods().iter().find(hopeless)?;
    let error = pod.image_error.as_ref()?;
    let message = format!(
        "pod {} cannot run image {} ({}): {}",
        pod.name, error.image, error.reason, error.message
    );
    failed(FailureReason::ImageCannotRun, message)
}

/// When an image that does not run makes the database fail.
pub(super) fn image_deadline(facts: &Facts<'_>, pod: &Pod) -> Option<DateTime<Utc>> {
    let error = pod
        .image_error
        .as_ref()
        .filter(|_| facts.current_revision(pod) && !pod.terminating)?;
    Some(error.since + IMAGE_PATIENCE)
}

/// When a fault that is not one yet becomes one by the passing of time alone.
pub(super) fn next_deadline(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let deadlines = facts.pods().iter().filter_map(|pod| image_deadline(facts, pod));
    deadlines.filter(|deadline| *deadline > facts.now).min()
}

fn bootstrap(facts: &Facts<'_>) -> Option<Failure> {
    let grant = facts
        .status
        .intent
        .bootstrap
        .as_ref()
        .filter(|_| !facts.bootstrapped())?;
    let pod = facts.pods().iter().find(|pod| pod.name == grant.pod)?;
    let error = pod.bootstrap_error.as_ref()?;
    failed(
        FailureReason::BootstrapFailed,
        format!("{} could not make the first database: {error}", pod.name),
    )
}

/// The rest after a failure of `action`, while it lasts.
pub(super) fn resting(facts: &Facts<'_>, action: &Action) -> Option<Proposal> {
    if facts.observed.faults.is_empty() {
        return None;
    }
    let target = action.target()?;
    let (fault, again) = rest_of(facts, &target)?;
    let doing = match action {
        Action::Apply(apply) if apply.how == ApplyHow::Make => "making",
        Action::MakeWalClaim { .. } | Action::RecreateLease { .. } => "making",
        Action::DeleteStatefulSet(_)
        | Action::DeleteRoleBinding(_)
        | Action::DeleteNetworkPolicy(_)
        | Action::DeleteClaim(_)
        | Action::OrphanStatefulSet(_)
        | Action::ReplacePod(_) => "deleting",
        Action::Wait(_)
        | Action::AddFinalizer(_)
        | Action::RemoveFinalizer(_)
        | Action::Apply(_)
        | Action::WriteStatus(_)
        | Action::LabelPod { .. }
        | Action::MarkPod { .. }
        | Action::ResizePod(_)
        | Action::ResizeClaim { .. } => "changing",
    };
    let what = format!("{doing} {} to succeed: {}", describe(facts, &target), fault.message);
    let who = match fault.kind {
        FaultKind::Quota => "whoever can raise the quota (it is tried again)",
        FaultKind::Forbidden => "whoever can grant the operator what it needs (it is tried again)",
        FaultKind::Invalid => "the user, by changing the spec",
        FaultKind::Conflict | FaultKind::Transient => "the API server (it is tried again)",
    };
    let way_back = matches!(action, Action::ResizeClaim { .. }).then(|| volumes::way_back(facts));
    let who = format!("{who}{}", way_back.unwrap_or_default());
    // The next try is no deadline: it would be another one after every try.
    Some(Proposal::wait(facts, step_of(facts), what, who)?.looking_again(again))
}

/// What was done to `target` has failed, and is not tried again yet.
pub(super) fn rests(facts: &Facts<'_>, target: &Target) -> bool {
    rest_of(facts, target).is_some()
}

/// The failure of what was done to `target`, and when that is tried again, if it is not yet.
pub(super) fn rest_of<'a>(facts: &Facts<'a>, target: &Target) -> Option<(&'a Fault, DateTime<Utc>)> {
    let fault = facts.observed.faults.iter().find(|fault| fault.target == *target)?;
    let again = retry_at(fault);
    (facts.now < again).then_some((fault, again))
}

fn step_of(facts: &Facts<'_>) -> Step {
    match (facts.wanted.deleting, facts.bootstrapped()) {
        (true, _) => Step::Removing,
        (false, true) => Step::Repair,
        (false, false) => Step::Objects,
    }
}

fn describe(facts: &Facts<'_>, target: &Target) -> String {
    match target {
        Target::Resource => format!("ClusteredDatabase {}", facts.wanted.name),
        Target::Status => format!("the status of ClusteredDatabase {}", facts.wanted.name),
        Target::Child(kind) => format!("{} {}", kind.kind(), facts.child_name(*kind)),
        Target::Pod(name) => format!("pod {name}"),
        Target::Claim(name) => format!("claim {name}"),
        Target::Resize(name) => format!("cpu and memory of pod {name}"),
        Target::Certificate(pod) => format!("the certificate of {pod}"),
    }
}

#[cfg(test)]
mod tests;
