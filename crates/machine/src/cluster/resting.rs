//! The rest after an action that failed.

use api::status::WaitReason;
use chrono::{DateTime, Utc};

use super::action::{Action, ApplyHow};
use super::decision::Step;
use super::facts::{Facts, volumes};
use super::observed::{Fault, Target};
use super::rule::Proposal;
use super::wait::WaitKey;
use crate::reconcile::{FaultKind, retry_at};

/// The rest after a failure of `action`, while it lasts.
pub(super) fn resting(facts: &Facts<'_>, action: &Action) -> Option<Proposal> {
    if facts.observed.faults.is_empty() {
        return None;
    }
    let target = action.target()?;
    let (fault, again) = rest_of(facts, &target)?;
    let doing = match action {
        Action::Apply(apply) if apply.how == ApplyHow::Make => "making",
        Action::MakeWalClaim { .. } | Action::MakeDataClaim { .. } | Action::RecreateLease { .. } => "making",
        Action::DeleteStatefulSet(_)
        | Action::DeleteChild(..)
        | Action::DeleteClaim(_)
        | Action::DeleteSnapshot(_)
        | Action::OrphanStatefulSet(_)
        | Action::ReplacePod(_) => "deleting",
        Action::Wait(_)
        | Action::AddFinalizer(_)
        | Action::RemoveFinalizer(_)
        | Action::Apply(_)
        | Action::ChangeLease(..)
        | Action::WriteStatus(_)
        | Action::LabelPod { .. }
        | Action::MarkPod { .. }
        | Action::ResizePod(_)
        | Action::ResizeClaim { .. }
        | Action::UpdateClaim(_)
        | Action::AdoptClaim(_)
        | Action::MakeBackup { .. }
        | Action::MakeSnapshot { .. }
        | Action::MakeDrill { .. }
        | Action::DeleteDrill(_) => "changing",
    };
    let what = format!("{doing} {} to succeed: {}", describe(facts, &target), fault.message);
    let (reason, who) = match fault.kind {
        FaultKind::Quota => (
            WaitReason::QuotaIncrease,
            "whoever can raise the quota (it is tried again)",
        ),
        FaultKind::Forbidden => (
            WaitReason::PermissionGrant,
            "whoever can grant the operator what it needs (it is tried again)",
        ),
        FaultKind::Invalid => (WaitReason::ObjectAcceptance, "the user, by changing the spec"),
        FaultKind::Conflict | FaultKind::Transient => (WaitReason::RequestRetry, "the API server (it is tried again)"),
    };
    let way_back = matches!(action, Action::ResizeClaim { .. }).then(|| volumes::way_back(facts));
    let who = format!("{who}{}", way_back.unwrap_or_default());
    // The next try is no deadline: it would be another one after every try.
    let key = WaitKey::target(facts, reason, &target);
    Some(Proposal::wait(facts, step_of(facts), key, what, who)?.looking_again(again))
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

pub(super) fn describe(facts: &Facts<'_>, target: &Target) -> String {
    match target {
        Target::Resource => format!("ClusteredDatabase {}", facts.wanted.name),
        Target::Status => format!("the status of ClusteredDatabase {}", facts.wanted.name),
        Target::Child(kind) => format!("{} {}", kind.kind(), facts.child_name(*kind)),
        Target::Pod(name) => format!("pod {name}"),
        Target::Claim(name) => format!("claim {name}"),
        Target::Backup(name) => format!("DatabaseBackup {name}"),
        Target::Drill(name) => format!("ClusteredDatabase {name}"),
        Target::Snapshot(name) => format!("VolumeSnapshot {name}"),
        Target::Resize(name) => format!("cpu and memory of pod {name}"),
        Target::Certificate(pod) => format!("the certificate of {pod}"),
    }
}
