//! VolumeSnapshots, which have the files of backups of kind `Snapshot`.
//!
//! The primary's agent holds PostgreSQL in backup mode and names the VolumeSnapshot in the Lease. Its name is recorded before it is made,
//! and how far it is stands in `status.intent.snapshot`, by which the agent goes on. Only the store says which backups are complete, so that one
//! that may have a backup is deleted only after the primary's agent has seen the mark of a removal there.

use std::collections::BTreeSet;

use api::backup::{BackupState, SnapshotProgress, SnapshotState, is_snapshot, snapshot_name};
use api::names::Names;
use api::spec::RecoverySource;
use api::status::{SnapshotMemo, WaitReason};
use api::{ClusteredDatabaseSpec, ClusteredDatabaseStatus};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, DeletionStep, StatusChange};
use super::decision::Step;
use super::deletion;
use super::facts::Facts;
use super::observed::{Fault, Known, SnapshotSeen, Target, Volume};
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use crate::archive::ArchiveRecord;
use crate::protocol::LeaseRecord;
use crate::reconcile::FaultKind;

/// See [`Rule::what`].
pub const SNAPSHOT: Rule = Rule {
    name: "snapshot",
    family: "backup",
    what: "The VolumeSnapshot that the primary's agent waits for in backup mode is recorded and made.\n\
           - One that no complete backup can have is deleted: the agents were never told that it is ready, or a later attempt has begun.\n\
           - One whose backup the retention has removed from the store, or that went with all backups, is deleted, too.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: snapshot,
    on_backoff: OnBackoff::Yield,
};

/// See [`Rule::what`].
pub const CLAIM_FROM_SNAPSHOT: Rule = Rule {
    name: "claim-from-snapshot",
    family: "recovery",
    what: "Where spec.bootstrap.recovery.backup is a snapshot, the first claim is made from the VolumeSnapshot before anything else.\n\
           - Until that is there and ready, the database waits.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: claim_from_snapshot,
    on_backoff: OnBackoff::Hold,
};

/// While a VolumeSnapshot is being taken, it is looked at so often: PostgreSQL is in backup mode.
const TAKING: TimeDelta = TimeDelta::seconds(1);
/// And so often until it is ready.
const READYING: TimeDelta = TimeDelta::seconds(10);
/// So many are deleted at once.
const AT_ONCE: usize = 4;

/// The VolumeSnapshot that the primary's agent waits for.
struct Requested<'a> {
    name: &'a str,
    /// UID of the DatabaseBackup.
    uid: &'a str,
    /// The pod whose data volume it is of.
    pod: &'a str,
}

fn requested<'a>(status: &ClusteredDatabaseStatus, archive: Option<&'a ArchiveRecord>) -> Option<Requested<'a>> {
    let task = archive?.backup.as_ref()?;
    let is_open = task.state == BackupState::Copying && status.intent.backup.as_ref() == Some(&task.uid);
    Some(Requested {
        name: task.snapshot.as_deref().filter(|_| is_open)?,
        uid: &task.uid,
        pod: &task.source.as_ref()?.member,
    })
}

/// The VolumeSnapshot that the first database is to be made from.
fn recovered_from(spec: &ClusteredDatabaseSpec, status: &ClusteredDatabaseStatus) -> Option<String> {
    let recovery = spec.recovery()?;
    let backup = recovery.backup.as_deref().filter(|backup| is_snapshot(backup))?;
    let source: &RecoverySource = match spec.recovered_from() {
        Some(_) => status.memo.recovery_source.as_ref()?,
        None => &recovery.from,
    };
    // A recovery in place is one from full backups, on another set of volumes.
    let is_made =
        status.system_identifier.is_some() || status.memo.volumes.is_some() || status.intent.recovery.is_some();
    (!is_made).then(|| snapshot_name(source.cluster.as_deref().unwrap_or_default(), backup))
}

/// Whether the first database is made on a volume from a VolumeSnapshot, so that it must be the first instance's.
pub(super) fn is_recovered_from(facts: &Facts<'_>) -> bool {
    recovered_from(facts.wanted.spec, facts.status).is_some()
}

/// The VolumeSnapshots that no backup has, and none can get.
fn unneeded<'a>(
    status: &'a ClusteredDatabaseStatus,
    archive: Option<&ArchiveRecord>,
) -> impl Iterator<Item = &'a SnapshotMemo> {
    let all_go = deletion::is_done(status, DeletionStep::Archive);
    let is_taking = status.intent.backup.is_some();
    let requested = requested(status, archive).map(|of| (of.name.to_owned(), of.uid.to_owned()));
    let catalogue = archive.and_then(|archive| archive.catalogue.as_ref());
    let removed = catalogue.map_or_else(Vec::new, |catalogue| catalogue.removed_snapshots.clone());
    let is_unneeded = move |memo: &&SnapshotMemo| {
        // A process names one only after it has made sure that no earlier attempt at this backup becomes complete.
        let is_superseded = requested
            .as_ref()
            .is_some_and(|(name, uid)| *name != memo.name && *uid == memo.uid);
        let never_had = !memo.ready && !is_taking;
        all_go || is_superseded || never_had || removed.contains(&memo.name)
    };
    status.memo.snapshots.iter().filter(is_unneeded).take(AT_ONCE)
}

/// The VolumeSnapshots that the next decision looks at.
pub fn snapshots_to_read(
    spec: &ClusteredDatabaseSpec,
    status: &ClusteredDatabaseStatus,
    lease: Option<&LeaseRecord>,
) -> BTreeSet<String> {
    let archive = lease.and_then(|lease| lease.archive.as_ref());
    let requested = requested(status, archive).map(|of| of.name.to_owned());
    let unneeded = unneeded(status, archive).map(|memo| memo.name.clone());
    requested
        .into_iter()
        .chain(recovered_from(spec, status))
        .chain(unneeded)
        .collect()
}

fn act(action: Action, because: String) -> Option<Proposal> {
    Proposal::act(Step::Objects, action, because)
}

fn record(change: StatusChange, because: String) -> Option<Proposal> {
    act(Action::WriteStatus(vec![change]), because)
}

fn snapshot(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.wanted.spec.paused && !facts.wanted.deleting {
        return None;
    }
    make(facts).or_else(|| remove(facts))
}

fn make(facts: &Facts<'_>) -> Option<Proposal> {
    let Requested { name, uid, pod } = requested(facts.status, facts.archive())?;
    let because = format!("{pod} is in backup mode for VolumeSnapshot {name}");
    if !is_recorded(facts, name) {
        let memo = SnapshotMemo {
            name: name.to_owned(),
            uid: uid.to_owned(),
            ready: false,
        };
        return record(StatusChange::RecordSnapshot(memo), because);
    }
    let is_begun = facts
        .status
        .intent
        .snapshot
        .as_ref()
        .is_some_and(|known| known.name == name && known.state > SnapshotState::Asked);
    if seen(facts, name) != &Known::Known(None) || is_begun {
        return None;
    }
    let action = Action::MakeSnapshot {
        name: name.to_owned(),
        claim: facts.claim_name(Volume::Data, pod),
    };
    act(action, because)
}

fn remove(facts: &Facts<'_>) -> Option<Proposal> {
    let mut going = unneeded(facts.status, facts.archive());
    going.find_map(|memo| {
        let name = &memo.name;
        match seen(facts, name) {
            Known::Known(Some(seen)) if seen.is_ours && !seen.terminating => act(
                Action::DeleteSnapshot(seen.exact.clone()),
                format!("no backup needs VolumeSnapshot {name}"),
            ),
            // The rest of a deletion is the storage's.
            Known::Known(_) => record(
                StatusChange::ForgetSnapshot(name.clone()),
                format!("VolumeSnapshot {name} is deleted"),
            ),
            Known::Unknown => None,
        }
    })
}

fn claim_from_snapshot(facts: &Facts<'_>) -> Option<Proposal> {
    let name = recovered_from(facts.wanted.spec, facts.status)?;
    facts.observed.claims.get()?;
    if facts.data_claim(0).is_some() {
        return None;
    }
    let who = "the user: it must be in this namespace; or name another backup in another ClusteredDatabase";
    let wait = |what: String| {
        let wait = Proposal::wait(facts, Step::Objects, WaitReason::RecoverySource, what, who)?;
        Some(wait.looking_again(facts.now + READYING))
    };
    match seen(facts, &name) {
        Known::Unknown => Some(
            Proposal::unread(facts, Step::Objects, format!("VolumeSnapshot {name}"))?
                .looking_again(facts.now + READYING),
        ),
        Known::Known(None) => wait(format!(
            "VolumeSnapshot {name}, which has the files that this database is made from, to be there"
        )),
        Known::Known(Some(seen)) if seen.terminating => wait(format!(
            "another VolumeSnapshot {name}: the one that is there is being deleted"
        )),
        Known::Known(Some(seen)) if !seen.ready => {
            let why = seen.message.as_ref().map(|message| format!(": {message}"));
            wait(format!("VolumeSnapshot {name} to be ready{}", why.unwrap_or_default()))
        }
        Known::Known(Some(_)) => act(
            Action::MakeDataClaim {
                name: facts.claim_name(Volume::Data, &Names::new(facts.wanted.name).pod(0)),
                snapshot: name.clone(),
            },
            format!("the first volume is made from VolumeSnapshot {name}"),
        ),
    }
}

fn is_recorded(facts: &Facts<'_>, name: &str) -> bool {
    facts.status.memo.snapshots.iter().any(|memo| memo.name == name)
}

fn seen<'a>(facts: &Facts<'a>, name: &str) -> &'a Known<Option<SnapshotSeen>> {
    facts.observed.snapshots.get(name).unwrap_or(&Known::Unknown)
}

/// `status.intent.snapshot`.
pub(super) fn progress(facts: &Facts<'_>) -> Option<SnapshotProgress> {
    let name = requested(facts.status, facts.archive())?.name;
    if !is_recorded(facts, name) {
        return None;
    }
    let before = facts.status.intent.snapshot.as_ref().filter(|known| known.name == name);
    let reached = before.map_or(SnapshotState::Asked, |known| known.state);
    if reached == SnapshotState::Failed {
        return before.cloned();
    }
    let say = |state, message| SnapshotProgress {
        name: name.to_owned(),
        state,
        message,
    };
    let failed = |message: &str| Some(say(SnapshotState::Failed, Some(message.to_owned())));
    match seen(facts, name) {
        Known::Known(None) if reached > SnapshotState::Asked => failed("it was deleted"),
        Known::Known(None) | Known::Unknown => Some(match fault(facts, name) {
            Some(fault) if matches!(fault.kind, FaultKind::Invalid | FaultKind::Forbidden) => {
                say(SnapshotState::Failed, Some(fault.message.clone()))
            }
            fault => say(reached, fault.map(|fault| fault.message.clone())),
        }),
        Known::Known(Some(seen)) if !seen.is_ours => failed("there is one of this name that is not this database's"),
        Known::Known(Some(seen)) if seen.terminating => failed("it is being deleted"),
        Known::Known(Some(seen)) => {
            let state = match (seen.ready, seen.taken) {
                (true, _) => SnapshotState::Ready,
                (false, true) => SnapshotState::Taken,
                (false, false) => SnapshotState::Asked,
            };
            Some(say(state.max(reached), seen.message.clone()))
        }
    }
}

/// Why it could not be made or read.
fn fault<'a>(facts: &Facts<'a>, name: &str) -> Option<&'a Fault> {
    let target = Target::Snapshot(name.to_owned());
    facts.observed.faults.iter().find(|fault| fault.target == target)
}

/// `memo.snapshots`, after the agents were told that one is ready.
pub(super) fn note_ready(status: &mut ClusteredDatabaseStatus) {
    let Some(progress) = &status.intent.snapshot else {
        return;
    };
    if progress.state == SnapshotState::Ready {
        let mut known = status.memo.snapshots.iter_mut();
        if let Some(memo) = known.find(|memo| memo.name == progress.name) {
            memo.ready = true;
        }
    }
}

/// When the VolumeSnapshot that is being made is looked at again.
pub(super) fn next_look(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let name = requested(facts.status, facts.archive())?.name;
    let known = facts.status.intent.snapshot.as_ref().filter(|known| known.name == name);
    let pause = match known.map(|known| known.state) {
        None | Some(SnapshotState::Asked) => TAKING,
        Some(SnapshotState::Taken) => READYING,
        Some(SnapshotState::Ready | SnapshotState::Failed) => return None,
    };
    Some(facts.now + pause)
}

#[cfg(test)]
mod tests;
