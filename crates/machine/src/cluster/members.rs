//! Members: who they are (published, so that agents know their claims), their certificates, and their pods' labels.

use api::names::{ROLE_PRIMARY, ROLE_REPLICA};
use api::status::{VolumeSets, WaitReason};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::{Facts, exact, list, volumes, wal};
use super::observed::{Claim, OwnedState, Pod};
use super::owned::OwnedObject;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use super::{bootstrap, certificates, durability, image};

/// See [`Rule::what`].
pub const LABEL_ROLES: Rule = Rule {
    name: "label-roles",
    family: "members",
    what: "The pod of the member that serves under the Lease is labelled primary, every other one replica.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: label_roles,
    on_backoff: OnBackoff::Yield,
};

/// See [`Rule::what`].
pub const RECORD: Rule = Rule {
    name: "record",
    family: "members",
    what: "Members are published, the bootstrap is granted, keys are signed and what must be remembered is recorded, as much as possible in one write.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: record,
    on_backoff: OnBackoff::Hold,
};

/// Members are published together if all of them appear within this time: one write instead of one for each.
const GATHER: TimeDelta = TimeDelta::seconds(2);

fn label_roles(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.holder().filter(|holder| holder.serving).and(facts.holder_pod())?;
    let wrong = |pod: &&Pod| !pod.terminating && pod.role.as_deref() != Some(role_of(pod, primary));
    // The new primary is labelled last: at no time do two pods carry its label.
    let others = facts.pods().iter().filter(|pod| pod.uid != primary.uid);
    let pod = others.chain([primary]).find(wrong)?;
    let role = role_of(pod, primary);
    let action = Action::LabelPod { pod: exact(pod), role };
    let because = format!("{} is {role} by the Lease, and its label says otherwise", pod.name);
    Some(Proposal {
        step: None,
        action,
        because: because.into(),
        wake: None,
    })
}

fn role_of(pod: &Pod, primary: &Pod) -> &'static str {
    if pod.uid == primary.uid {
        ROLE_PRIMARY
    } else {
        ROLE_REPLICA
    }
}

fn record(facts: &Facts<'_>) -> Option<Proposal> {
    let mut changes = Vec::new();
    let gathering = publish(facts, &mut changes);
    if gathering.is_none() {
        bootstrap::changes(facts, &mut changes);
    }
    record_system_identifier(facts, &mut changes);
    certificates::sign(facts, &mut changes);
    let given = wal::unrecorded(facts);
    if gathering.is_none() && !given.is_empty() {
        changes.push(StatusChange::GiveWalVolumes(given));
    }
    let granted = volumes::granted(facts);
    if granted != facts.status.memo.granted {
        changes.push(StatusChange::RecordGranted(granted));
    }
    let granting = changes
        .iter()
        .any(|change| matches!(change, StatusChange::GrantBootstrap { .. }));
    if granting || facts.bootstrapped() {
        changes.extend(image::unrecorded(facts));
        changes.extend(durability::unrecorded(facts));
        record_made(facts, &mut changes);
    }
    record_volumes(facts, &mut changes);
    if changes.is_empty() {
        let until = gathering?;
        let what = format!("pods and claims of all {} instances", facts.expected());
        let key = WaitKey::child(facts, WaitReason::PodCreation, OwnedObject::StatefulSet);
        let who = "the StatefulSet controller";
        return Some(Proposal::wait(facts, Step::Bootstrap, key, what, who)?.until(until));
    }
    let because = describe(&changes);
    let step = if facts.bootstrapped() {
        Step::Standbys
    } else {
        Step::Bootstrap
    };
    Proposal::act(step, Action::WriteStatus(changes), because)
}

/// Members to publish. While some are still expected to appear any moment, none are, and it says until when.
fn publish(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) -> Option<DateTime<Utc>> {
    let unpublished = |pod: &&Pod| claim_to_publish(facts, pod).is_some();
    let first = facts.pods().iter().filter(unpublished).map(|pod| pod.created).min()?;
    let until = first + GATHER;
    let complete = (0..facts.expected())
        .all(|ordinal| facts.pod(ordinal).is_some_and(|pod| !pod.terminating) && facts.data_claim(ordinal).is_some());
    if !complete && facts.now < until {
        return Some(until);
    }
    for pod in facts.pods() {
        if let Some(claim) = claim_to_publish(facts, pod) {
            changes.push(StatusChange::PublishMember {
                pod: pod.name.clone(),
                pod_uid: pod.uid.clone(),
                claim_uid: claim.uid.clone(),
            });
        }
    }
    None
}

/// The claim of a pod whose published identity is not its present one.
fn claim_to_publish<'a>(facts: &Facts<'a>, pod: &Pod) -> Option<&'a Claim> {
    // One that goes for good before it was published: its claims would be nobody's.
    let policy = facts.wanted.spec.storage.retention_policy.when_scaled;
    let leaves = pod.ordinal >= facts.expected() && policy == api::spec::VolumeFate::Delete && !facts.wanted.deleting;
    if pod.terminating && !leaves {
        return None;
    }
    let claim = facts.data_claim(pod.ordinal)?;
    let ours = !claim.terminating && facts.owns(claim);
    let published = facts
        .member(pod)
        .is_some_and(|member| member.claim_uid.as_deref() == Some(claim.uid.as_str()));
    (ours && !published).then_some(claim)
}

/// Once the first primary serves, so that it is one write with the standbys' keys. Until then the Lease has it.
fn record_system_identifier(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) {
    if facts.status.system_identifier.is_some() {
        return;
    }
    let Some(lease) = facts.lease else { return };
    if let Some(system_id) = lease.system_id.as_ref().filter(|_| facts.has_served()) {
        changes.push(StatusChange::RecordSystemIdentifier(system_id.clone()));
    }
}

/// A database whose status was lost runs on what the Lease says.
fn record_volumes(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) {
    if let Some(order) = facts
        .status
        .intent
        .recovery
        .as_ref()
        .filter(|_| facts.primary().is_some())
    {
        let keep = order.recover.keep_hours;
        let until = keep.map(|hours| facts.now + TimeDelta::hours(hours.into()));
        changes.push(StatusChange::EndRecovery(until));
    }
    let Some(lease) = facts
        .lease
        .filter(|lease| lease.volume_set > 0 || lease.former_set.is_some())
    else {
        return;
    };
    if facts.status.memo.volumes.is_some() || facts.status.memo.adopted.is_some() {
        return;
    }
    // What was to be recovered is lost with the status.
    let is_empty = lease.system_id.is_none() && lease.former_set.is_some();
    changes.push(StatusChange::SetVolumes(VolumeSets {
        current: lease.volume_set,
        former: lease.former_set,
        next: lease.former_set.filter(|_| is_empty),
        failure: is_empty.then(|| "the status was lost during the recovery in place".to_owned()),
        ..VolumeSets::default()
    }));
}

/// Objects whose loss has to be noticed from now on.
fn record_made(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) {
    for kind in [OwnedObject::CaSecret, OwnedObject::AppSecret] {
        let Some(OwnedState::Current { uid } | OwnedState::Drifted { uid, .. }) = facts.child(kind) else {
            continue;
        };
        if facts.recorded_uid(kind) != Some(uid.as_str()) {
            changes.push(StatusChange::RecordMade {
                name: facts.child_name(kind),
                uid: uid.clone(),
            });
        }
    }
    if !facts.status.memo.lease_made && facts.lease.is_some() {
        changes.push(StatusChange::RecordLeaseMade);
    }
}

fn describe(changes: &[StatusChange]) -> String {
    let (mut published, mut keys, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for change in changes {
        match change {
            StatusChange::PublishMember { pod, .. } => published.push(pod.as_str()),
            StatusChange::SignCertificate { pod, .. } => keys.push(pod.as_str()),
            StatusChange::GrantBootstrap { pod, .. } => others.push(format!("{pod} may make the first database")),
            StatusChange::RecordSystemIdentifier(id) => others.push(format!("the database has system identifier {id}")),
            StatusChange::Adopt(from, ..) => {
                others.push(format!("the volumes of the deleted database {from} come back"))
            }
            StatusChange::SetVolumes(sets) => {
                others.push(format!("instances run on set {} of the volumes", sets.current))
            }
            StatusChange::RecordLeaseMade => others.push("the Lease exists".to_owned()),
            StatusChange::RecordMade { name, .. } => others.push(format!("Secret {name} exists")),
            StatusChange::GiveWalVolumes(pods) => {
                let pods = list(pods.iter().map(String::as_str));
                others.push(format!("{pods} have WAL volumes"));
            }
            StatusChange::RecordGranted(granted) if granted.is_empty() => {
                others.push("no volume is refused its size any more".to_owned());
            }
            StatusChange::RecordDurability(wanted) => others.push(format!(
                "commits are to wait for {} ({:?})",
                durability::standbys(wanted.standbys),
                wanted.mode
            )),
            StatusChange::RecordImage(chosen) => others.push(format!("instances are to run {}", chosen.image)),
            StatusChange::RecordGranted(_) => others.push("volumes are refused their size".to_owned()),
            StatusChange::ForgetMember { .. }
            | StatusChange::UseVolumes { .. }
            | StatusChange::EndRecovery(_)
            | StatusChange::PermitRestart(_)
            | StatusChange::EndRestart
            | StatusChange::MovePrimary { .. }
            | StatusChange::GiveUpSwitchover(_)
            | StatusChange::EndSwitchover
            | StatusChange::RestartAll(_)
            | StatusChange::AcceptLoss(_)
            | StatusChange::Discard(_)
            | StatusChange::NoteRequest(_)
            | StatusChange::RequestStop
            | StatusChange::EndStop
            | StatusChange::RecordSchedule(..)
            | StatusChange::ForgetSchedule(_)
            | StatusChange::RecordFinalBackup(_)
            | StatusChange::RecordRecoverySource(..)
            | StatusChange::RecordSnapshot(_)
            | StatusChange::ForgetSnapshot(_)
            | StatusChange::RecordDrill(..)
            | StatusChange::ForgetDrill
            | StatusChange::DeletionDone(..) => {}
        }
    }
    if !keys.is_empty() {
        others.insert(0, format!("keys of {} are to be signed", list(keys.into_iter())));
    }
    if !published.is_empty() {
        others.insert(0, format!("pods {} have claims", list(published.into_iter())));
    }
    others.join("; ")
}

#[cfg(test)]
mod tests;
