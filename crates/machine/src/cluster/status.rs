//! The status that belongs to a decision.

use std::collections::BTreeMap;

use api::names::{LABEL_CLUSTER, Names};
use api::status::{
    BackupStatus, Binding, BootstrapGrant, DeletionOutcome, FailureStatus, MemberRole, MemberStatus, Memo,
    RecoveryOrder, Transition, VolumeSets, WaitingStatus,
};
use api::{ClusteredDatabaseStatus, Phase};
use chrono::{DateTime, Utc};

use super::action::{Action, StatusChange};
use super::decision::Decision;
use super::facts::late::{LateMember, late_members};
use super::facts::{Facts, hibernation};
use super::observed::Observed;
use super::wait::Waiting;
use super::wanted::Wanted;
use super::{StatusWrite, archive, certificates, decide, delete_archive, durability, health, in_place, snapshot};
use crate::protocol::Epoch;
use crate::reconcile::STATUS_SETTLES;

/// How many changes of phase are kept.
const HISTORY: usize = 20;

/// The whole status after `decision`: stored as it is, it makes the next decision go on from there. Computed again from
/// the same input it is equal, so that a database at rest causes no write. `certificates` holds the signed certificates
/// (PEM) by pod name, for each [`StatusChange::SignCertificate`] of the decision; one that is missing is asked for again.
pub fn status(
    wanted: &Wanted<'_>,
    observed: &Observed,
    stored: &ClusteredDatabaseStatus,
    decision: &Decision,
    certificates: &BTreeMap<String, String>,
    now: DateTime<Utc>,
) -> ClusteredDatabaseStatus {
    let mut next = stored.clone();
    if let Action::WriteStatus(changes) = &decision.action {
        for change in changes {
            apply(&mut next, change, certificates, now);
        }
    }
    describe_decision(&mut next, decision, now);
    let before = Facts::new(wanted, observed, stored, now);
    describe_members(&mut next, &before);
    describe_database(&mut next, &before);
    let follows;
    let waiting = if let Action::Wait(waiting) = &decision.action {
        Some(waiting)
    } else if let Action::WriteStatus(_) = &decision.action {
        // What comes after the write: otherwise the next decision would write again only to say so.
        follows = decide(wanted, observed, &next, now);
        if let Action::Wait(waiting) = &follows.action
            && follows.phase == decision.phase
        {
            next.step = follows.step.map(|step| step.as_str().to_owned());
            Some(waiting)
        } else {
            None
        }
    } else {
        None
    };
    next.waiting = waiting.and_then(waiting_status);
    remember_late(&mut next, waiting, &before);
    next.conditions = health::conditions(&Facts::new(wanted, observed, &next, now));
    next
}

/// When `next` has to be written, given what is stored.
pub fn due(stored: &ClusteredDatabaseStatus, next: &ClusteredDatabaseStatus, decision: &Decision) -> StatusWrite {
    match decision.action {
        // The resource's metadata comes first, and a status goes with its resource.
        Action::AddFinalizer(_) | Action::RemoveFinalizer(_) => return StatusWrite::None,
        // Nothing relies on it, and more is decided right after it.
        Action::LabelPod { .. } => return StatusWrite::None,
        Action::WriteStatus(_) => return StatusWrite::BeforeAction,
        Action::Wait(_)
        | Action::Apply(_)
        | Action::RecreateLease { .. }
        | Action::ChangeLease(..)
        | Action::MarkPod { .. }
        | Action::ResizePod(_)
        | Action::ReplacePod(_)
        | Action::DeleteChild(..)
        | Action::OrphanStatefulSet(_)
        | Action::DeleteStatefulSet(_)
        | Action::MakeWalClaim { .. }
        | Action::ResizeClaim { .. }
        | Action::UpdateClaim(_)
        | Action::AdoptClaim(_)
        | Action::MakeBackup { .. }
        | Action::MakeSnapshot { .. }
        | Action::DeleteSnapshot(_)
        | Action::MakeDataClaim { .. }
        | Action::MakeDrill { .. }
        | Action::DeleteDrill(_)
        | Action::DeleteClaim(_) => {}
    }
    if stored == next {
        StatusWrite::None
    } else if archive::without_progress(stored) == archive::without_progress(next) {
        StatusWrite::Debounced(archive::PROGRESS_SETTLES)
    } else if without_what_people_read(stored) == without_what_people_read(next) {
        StatusWrite::Debounced(STATUS_SETTLES)
    } else {
        StatusWrite::BeforeAction
    }
}

/// A status without what only people read: the part that agents and later decisions go by.
fn without_what_people_read(status: &ClusteredDatabaseStatus) -> ClusteredDatabaseStatus {
    let members = status.members.iter().map(|(pod, member)| {
        let promised = MemberStatus {
            member_id: None,
            role: None,
            ready: false,
            agent_version: None,
            ..member.clone()
        };
        (pod.clone(), promised)
    });
    ClusteredDatabaseStatus {
        phase: status.phase,
        failure: status.failure.clone(),
        current_primary: status.current_primary.clone(),
        system_identifier: status.system_identifier.clone(),
        members: members.collect(),
        intent: status.intent.clone(),
        memo: Memo {
            late: Vec::new(),
            ..status.memo.clone()
        },
        ..ClusteredDatabaseStatus::default()
    }
}

fn apply(
    next: &mut ClusteredDatabaseStatus,
    change: &StatusChange,
    certificates: &BTreeMap<String, String>,
    now: DateTime<Utc>,
) {
    match change {
        StatusChange::PublishMember {
            pod,
            pod_uid,
            claim_uid,
        } => {
            let member = next.members.entry(pod.clone()).or_default();
            if member.claim_uid.as_ref() != Some(claim_uid) {
                *member = MemberStatus::default();
            }
            member.pod_uid = Some(pod_uid.clone());
            member.claim_uid = Some(claim_uid.clone());
        }
        StatusChange::ForgetMember { pod } => {
            next.members.remove(pod);
        }
        StatusChange::GrantBootstrap { pod, claim_uid } => {
            next.intent.bootstrap = Some(BootstrapGrant {
                pod: pod.clone(),
                claim_uid: claim_uid.clone(),
            });
        }
        StatusChange::SignCertificate {
            pod,
            member: id,
            public_key,
            ..
        } => {
            if let (Some(certificate), Some(member)) = (certificates.get(pod), next.members.get_mut(pod)) {
                member.certificate = Some(certificate.clone());
                member.certified_key = Some(public_key.clone());
                member.member_id = Some(id.to_string());
            }
        }
        StatusChange::RecordSystemIdentifier(id) => next.system_identifier = Some(id.clone()),
        StatusChange::EndRecovery(keep_until) => {
            next.intent.recovery = None;
            if let Some(sets) = &mut next.memo.volumes {
                sets.keep_until = *keep_until;
            }
        }
        StatusChange::Adopt(from, set, former) => {
            next.memo.adopted = Some(from.clone());
            next.memo.volumes = (*set > 0 || former.is_some()).then(|| VolumeSets {
                current: *set,
                former: *former,
                ..VolumeSets::default()
            });
        }
        StatusChange::RecordRecoverySource(source) => next.memo.recovery_source = Some(*source.clone()),
        StatusChange::SetVolumes(sets) => next.memo.volumes = Some(sets.clone()),
        StatusChange::UseVolumes { set, epoch, system_id } => use_volumes(next, *set, *epoch, system_id.clone()),
        StatusChange::RecordLeaseMade => next.memo.lease_made = true,
        StatusChange::RecordMade { name, uid } => {
            next.memo.made.insert(name.clone(), uid.clone());
        }
        StatusChange::PermitRestart(permit) => {
            next.intent.restart = Some(permit.clone());
            next.memo.restart_since = Some(now);
        }
        StatusChange::EndRestart => (next.intent.restart, next.memo.restart_since) = (None, None),
        StatusChange::MovePrimary { memo, urgent } => {
            (next.intent.primary, next.intent.urgent) = (Some(memo.target.clone()), *urgent);
            next.memo.switchover = Some(memo.clone());
        }
        StatusChange::GiveUpSwitchover(at) => {
            (next.intent.primary, next.intent.urgent) = (None, false);
            if let Some(memo) = &mut next.memo.switchover {
                memo.ended = Some(*at);
            }
        }
        StatusChange::EndSwitchover => {
            (next.intent.primary, next.intent.urgent) = (None, false);
            next.memo.switchover = None;
        }
        StatusChange::GiveWalVolumes(pods) => {
            let given = &mut next.memo.wal_volumes;
            given.extend(pods.iter().cloned());
            given.sort();
            given.dedup();
        }
        StatusChange::RecordGranted(granted) => next.memo.granted.clone_from(granted),
        StatusChange::RecordDurability(durability) => next.memo.durability = Some(*durability),
        StatusChange::RecordImage(image) => next.memo.image = Some(image.clone()),
        StatusChange::RestartAll(uid) => next.memo.restarted_by = Some(uid.clone()),
        StatusChange::AcceptLoss(epoch) => next.intent.accept_loss = Some(*epoch),
        StatusChange::Discard(discard) => next.intent.discard = Some(discard.clone()),
        StatusChange::NoteRequest(request) => {
            next.memo.request.clone_from(request);
            (next.intent.accept_loss, next.intent.discard) = (None, None);
        }
        StatusChange::RecordSchedule(name, run) => {
            next.memo.schedules.insert(name.clone(), run.clone());
        }
        StatusChange::ForgetSchedule(name) => {
            next.memo.schedules.remove(name);
        }
        StatusChange::RequestStop => next.intent.stop = true,
        StatusChange::EndStop => {
            next.intent.stop = false;
            next.memo.put_down = next.epoch;
        }
        StatusChange::RecordDrill(run, result) => {
            next.memo.drill = Some((**run).clone());
            if let Some(result) = result {
                next.backup.get_or_insert_default().drill = Some((**result).clone());
            }
        }
        StatusChange::ForgetDrill => next.memo.drill = None,
        StatusChange::RecordSnapshot(memo) => next.memo.snapshots.push(memo.clone()),
        StatusChange::ForgetSnapshot(name) => next.memo.snapshots.retain(|memo| memo.name != *name),
        StatusChange::RecordFinalBackup(memo) => next.memo.final_backup = Some(memo.clone()),
        StatusChange::DeletionDone(step, outcome) => next.deletion.push(DeletionOutcome {
            step: step.as_str().to_owned(),
            outcome: (*outcome).to_owned(),
            time: now,
        }),
    }
}

/// Back from a recovery that came to nothing, its volumes are not kept.
fn use_volumes(next: &mut ClusteredDatabaseStatus, set: u32, epoch: Epoch, system_id: Option<String>) {
    let sets = next.memo.volumes.get_or_insert_default();
    let left = Some(std::mem::replace(&mut sets.current, set));
    (sets.former, sets.discarded) = match sets.failure {
        None => (left, None),
        Some(_) => (None, left),
    };
    (sets.next, sets.keep_until) = (None, None);
    next.intent.recovery = sets.recover.take().map(|recover| RecoveryOrder {
        recover,
        epoch: epoch.0,
    });
    next.intent.bootstrap = None;
    next.system_identifier = system_id;
    next.members.clear();
}

fn describe_decision(next: &mut ClusteredDatabaseStatus, decision: &Decision, now: DateTime<Utc>) {
    if next.phase != Some(decision.phase) {
        next.history.push(Transition {
            from: next.phase,
            to: decision.phase,
            because: decision.because.to_string(),
            at: now,
        });
        let surplus = next.history.len().saturating_sub(HISTORY);
        next.history.drain(..surplus);
        next.phase = Some(decision.phase);
        next.memo.phase_since = Some(now);
    }
    next.step = decision.step.map(|step| step.as_str().to_owned());
    next.failure = decision.failure.as_ref().map(|failure| FailureStatus {
        reason: failure.reason,
        message: failure.message.to_string(),
    });
}

fn waiting_status(waiting: &Waiting) -> Option<WaitingStatus> {
    (!waiting.resting).then(|| WaitingStatus {
        reason: Some(waiting.reason),
        object: waiting.object.clone(),
        actor: Some(waiting.actor),
        what: waiting.what.to_string(),
        since: waiting.since,
        who_can_end_it: waiting.who_can_end_it.to_string(),
        deadline: waiting.deadline,
    })
}

/// Late objects keep their times while something else is waited for, as long as it is known that they are late.
fn remember_late(next: &mut ClusteredDatabaseStatus, waiting: Option<&Waiting>, facts: &Facts<'_>) {
    match waiting.filter(|waiting| !waiting.late.is_empty()) {
        Some(waiting) => next.memo.late.clone_from(&waiting.late),
        None if next.memo.late.is_empty() => {}
        None if !facts.all_known() => {}
        None => {
            let late = late_members(facts);
            next.memo.late.retain(|known| {
                let mut keys = late.iter().map(LateMember::key);
                keys.any(|key| key.reason == known.reason && key.object.as_ref() == Some(&known.object))
            });
        }
    }
}

/// What is seen of the published members. What could not be read stays as it was.
fn describe_members(next: &mut ClusteredDatabaseStatus, facts: &Facts<'_>) {
    let (Some(pods), Some(lease)) = (facts.observed.pods.get(), facts.lease) else {
        return;
    };
    for (name, member) in &mut next.members {
        let pod = pods
            .iter()
            .find(|pod| pod.name == *name && Some(&pod.uid) == member.pod_uid.as_ref());
        let report = pod.and_then(|pod| facts.report(pod));
        member.ready = pod.is_some_and(|pod| facts.serves(pod));
        if let Some(holder) = &lease.holder {
            let holds = holder.incarnation.pod == *name && Some(&holder.incarnation.pod_uid) == member.pod_uid.as_ref();
            member.role = Some(if holds {
                MemberRole::Primary
            } else {
                MemberRole::Standby
            });
        }
        if let Some(report) = report {
            if member
                .member_id
                .as_deref()
                .is_some_and(|before| before != report.member.as_str())
            {
                // New data on the same claim: its certificate would be in the name of the data before.
                member.certificate = None;
                member.certified_key = None;
            }
            member.member_id = Some(report.member.to_string());
            member.agent_version = Some(report.agent_version.clone());
        }
    }
}

fn describe_database(next: &mut ClusteredDatabaseStatus, facts: &Facts<'_>) {
    let wanted = facts.wanted.replicas();
    next.observed_generation = Some(facts.wanted.generation);
    next.selector = format!("{LABEL_CLUSTER}={}", facts.wanted.name);
    if let Some(pods) = facts.observed.pods.get() {
        next.replicas = count(pods.iter().filter(|pod| !pod.terminating).count());
        if facts.observed.lease.get().is_some() {
            next.ready_replicas = count(pods.iter().filter(|pod| facts.serves(pod)).count());
        }
    }
    next.ready = format!("{}/{wanted}", next.ready_replicas);
    let secret = Names::new(facts.wanted.name).app_secret();
    next.binding = next.memo.made.contains_key(&secret).then_some(Binding { name: secret });
    (next.intent.backup, next.intent.backup_source, next.intent.backup_kind) = archive::backup_to_take(facts);
    next.certificates = certificates::describe(facts);
    next.intent.snapshot = snapshot::progress(facts);
    snapshot::note_ready(next);
    next.intent.delete_archive = delete_archive::is_to_delete(facts);
    next.intent.recovery_check = in_place::check_to_make(facts);
    let Some(lease) = facts.lease else { return };
    next.durability = Some(durability::describe(facts));
    let drill = next.backup.take().and_then(|backup| backup.drill);
    next.backup = archive::describe(facts).map(|backup| BackupStatus { drill, ..backup });
    let serving = lease
        .holder
        .as_ref()
        .filter(|holder| holder.serving && !hibernation::is_down(facts));
    next.current_primary = serving.map(|holder| holder.incarnation.pod.clone());
    if let Some(timeline) = serving.and_then(|holder| holder.timeline) {
        next.timeline = Some(timeline.0);
    }
    if lease.epoch.0 > 0 {
        // A Lease behind it is an old view, or was put back by somebody: agents know it by this.
        next.epoch = next.epoch.max(Some(lease.epoch.0));
    }
    if hibernation::is_back(facts) || next.phase == Some(Phase::Ready) {
        next.memo.put_down = None;
    }
    let report = serving.and_then(|holder| lease.members.get(&holder.incarnation.pod));
    if let Some(version) = report.and_then(|report| report.server_version.clone()) {
        next.version = Some(version);
    }
}

/// At most nine members, and as many pods as a StatefulSet of them has.
fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
