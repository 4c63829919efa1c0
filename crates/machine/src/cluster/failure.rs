//! Faults that do not go away by waiting, each found in what is observed: when its cause goes, so does it.

use api::status::{FailureReason, WaitReason};
use chrono::{DateTime, TimeDelta, Utc};

use super::adoption;
use super::decision::{Failure, Step};
use super::drift;
use super::facts::{Facts, request};
use super::observed::{OwnedState, Pod, StorageClass, Target, Volume};
use super::owned::OwnedObject;
use super::resting::describe;

use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use crate::reconcile::FaultKind;

/// See [`Rule::what`].
pub const INVALID_SPEC: Rule = Rule {
    name: "invalid-spec",
    family: "failure",
    what: "A spec that breaks a rule changes nothing; a database that runs goes on as it is.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: invalid_spec,
    on_backoff: OnBackoff::Hold,
};

/// An image may be pushed, or a registry come back, this long after the first failed pull.
pub const IMAGE_LIMIT: TimeDelta = TimeDelta::minutes(2);

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
        WaitReason::SpecCorrection,
        format!("a valid spec: {why}"),
        "the user, by changing the spec",
    )
}

/// Why the database cannot go on, if it cannot.
pub fn failure(facts: &Facts<'_>) -> Option<Failure> {
    invalid(facts)
        .or_else(|| failed(FailureReason::NothingToAdopt, adoption::refusal(facts)?))
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
        let way_out = match facts.child(kind) {
            Some(OwnedState::Foreign { left: Some(_), .. }) => adoption::ways_out(facts),
            _ => "delete or rename it, or use another name".to_owned(),
        };
        let message = format!("{} {name} is {why}: {way_out}", kind.kind());
        return failed(FailureReason::ForeignObject, message);
    }
    let claim = drift::foreign_claim(facts, facts.wanted.replicas())?;
    if adoption::takes_claim(facts, claim.cluster_uid.as_deref()) {
        return None;
    }
    let of = claim.cluster_uid.as_deref().unwrap_or("unknown");
    let message = format!(
        "claim {} holds the data of another database (UID {of}): delete the claim, or use another name",
        claim.name
    );
    failed(FailureReason::ForeignObject, message)
}

fn lost(facts: &Facts<'_>) -> Option<Failure> {
    let kind = drift::first_lost(facts)?;
    if kind == OwnedObject::Lease && drift::may_heal(facts) {
        return None;
    }
    let name = facts.child_name(kind);
    let message = if kind == OwnedObject::Lease {
        lost_lease(facts, &name)?
    } else if let Some(OwnedState::Damaged { what, .. }) = facts.child(kind) {
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
    } else if facts.status.memo.adopted.is_some() && !facts.bootstrapped() {
        format!(
            "Lease {name} of the deleted database is gone, without which nobody can tell which volume has everything: restore it from \
             a copy, with its labels, or delete this ClusteredDatabase"
        )
    } else if request::asks_for_a_lease(facts) {
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
             kubectl cdb recreate-lease {}",
            facts.wanted.name
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

/// What was refused has come about, or is not wanted any more.
pub(super) fn is_over(facts: &Facts<'_>, target: &Target) -> bool {
    match target {
        Target::Child(kind) => matches!(facts.child(*kind), Some(OwnedState::Current { .. })),
        Target::Resize(name) => {
            let mut pods = facts.pods().iter();
            pods.all(|pod| pod.name != *name || facts.current_revision(pod))
        }
        Target::Resource
        | Target::Status
        | Target::Pod(_)
        | Target::Claim(_)
        | Target::Certificate(_)
        | Target::Backup(_)
        | Target::Snapshot(_)
        | Target::Drill(_) => false,
    }
}

/// A pod of the wanted template whose image has not run for [`IMAGE_LIMIT`]. One of an older template is not waited
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
    Some(error.since + IMAGE_LIMIT)
}

/// When a fault that is not one yet becomes one by the passing of time alone.
pub(super) fn next_deadline(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let deadlines = facts.pods().iter().filter_map(|pod| image_deadline(facts, pod));
    deadlines.filter(|deadline| *deadline > facts.now).min()
}

fn bootstrap(facts: &Facts<'_>) -> Option<Failure> {
    // A recovery in place has a way back.
    let error = bootstrap_error(facts).filter(|_| facts.status.intent.recovery.is_none())?;
    failed(FailureReason::BootstrapFailed, error)
}

/// Why the first database could not be made.
pub(super) fn bootstrap_error(facts: &Facts<'_>) -> Option<String> {
    let grant = facts
        .status
        .intent
        .bootstrap
        .as_ref()
        .filter(|_| !facts.bootstrapped())?;
    let pod = facts.pods().iter().find(|pod| pod.name == grant.pod)?;
    let error = pod.bootstrap_error.as_ref()?;
    Some(format!("{} could not make the first database: {error}", pod.name))
}

#[cfg(test)]
mod tests;
