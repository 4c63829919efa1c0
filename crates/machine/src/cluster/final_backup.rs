//! The last backup of a database that is being deleted (`spec.backup.onDelete.finalBackup`), taken while PostgreSQL still runs. Each
//! attempt has a DatabaseBackup of its own, whose name is recorded before it is made. Between failed attempts the pauses of a circuit
//! breaker ([`crate::breaker`]) pass.

use api::backup::{BackupKind, BackupSource};
use api::operation::OperationPhase;
use api::spec::FinalBackup;
use api::status::{FinalBackupMemo, WaitReason};
use chrono::TimeDelta;

use super::action::{Action, DeletionStep, StatusChange};
use super::decision::Step;
use super::deletion;
use super::facts::Facts;
use super::observed::Known;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use crate::breaker;

/// See [`Rule::what`].
pub const FINAL_BACKUP: Rule = Rule {
    name: "final-backup",
    family: "deletion",
    what: "If spec.backup.onDelete.finalBackup asks for it, a backup is taken before PostgreSQL stops. A failed one is tried again, with growing pauses.\n\
           - BestEffort goes on without one after five failures, or if no primary begins within five minutes.\n\
           - Required waits until one is complete, or the user asks for none.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: final_backup,
    on_backoff: OnBackoff::Hold,
};

/// How long `BestEffort` waits for a primary that takes it.
const BEGINS: TimeDelta = TimeDelta::minutes(5);
const LET_GO: &str = "to delete without a last backup, set spec.backup.onDelete.finalBackup to None";

/// True while a final backup is to be taken.
pub(super) fn is_open(facts: &Facts<'_>) -> bool {
    let begun = facts.status.memo.final_backup.as_ref();
    let fails = begun.is_some_and(|memo| memo.failure_time.is_some());
    begun.is_some() && !fails && policy(facts).is_some()
}

/// What the spec asks for, while that is not done.
fn policy(facts: &Facts<'_>) -> Option<FinalBackup> {
    let asked = facts.wanted.spec.backup.as_ref()?.on_delete.as_ref()?.final_backup;
    let is_done = [DeletionStep::FinalBackup, DeletionStep::Stopped]
        .into_iter()
        .any(|step| deletion::done(facts, step));
    (facts.wanted.deleting && !is_done && asked != FinalBackup::None).then_some(asked)
}

fn final_backup(facts: &Facts<'_>) -> Option<Proposal> {
    let policy = policy(facts)?;
    if !facts.bootstrapped() || deletion::is_set_foreign(facts) {
        return None;
    }
    // It hibernates, or nothing was left of it.
    if facts.status.intent.stop || deletion::nothing_runs(facts) {
        return match policy {
            FinalBackup::Required => source_is_missing(facts),
            FinalBackup::BestEffort | FinalBackup::None => done("no instance runs that could take a last backup"),
        };
    }
    let Some(memo) = &facts.status.memo.final_backup else {
        return change(
            attempt(facts, 0),
            "a last backup is to be taken before the deletion".to_owned(),
        );
    };
    let Known::Known(found) = &facts.observed.final_backup else {
        return Proposal::unread(facts, Step::BackingUp, format!("DatabaseBackup {}", memo.name));
    };
    if memo.failure_time.is_some() {
        return after_failure(facts, policy, memo);
    }
    let Some(found) = found else {
        return Proposal::act(
            Step::BackingUp,
            Action::MakeBackup {
                name: memo.name.clone(),
                source: BackupSource::default(),
                kind: BackupKind::Full,
            },
            "a last backup is to be taken before the deletion",
        );
    };
    let message = found.message.as_deref().unwrap_or("it is new");
    match found.phase {
        Some(OperationPhase::Completed) => done("the last backup is complete"),
        Some(OperationPhase::Failed | OperationPhase::Cancelled) => {
            let failed = FinalBackupMemo {
                name: memo.name.clone(),
                failures: memo.failures + 1,
                failure_time: Some(facts.now),
                message: Some(message.to_owned()),
            };
            change(failed, format!("DatabaseBackup {} failed: {message}", memo.name))
        }
        None | Some(OperationPhase::Pending | OperationPhase::Running) => {
            let key = WaitKey::of(WaitReason::FinalBackup, "dbb", &memo.name);
            let began = found.phase == Some(OperationPhase::Running);
            let deadline = facts.waiting_since(&key) + BEGINS;
            let bounded = policy == FinalBackup::BestEffort && !began;
            if bounded && facts.now >= deadline {
                return done("no primary took a last backup in time");
            }
            let what = format!(
                "the last backup, DatabaseBackup {}, to be complete: {message}",
                memo.name
            );
            let wait = Proposal::wait(facts, Step::BackingUp, key, what, format!("the agents; {LET_GO}"))?;
            Some(if bounded { wait.until(deadline) } else { wait })
        }
    }
}

/// A failed attempt is followed by a pause, and by the next one.
fn after_failure(facts: &Facts<'_>, policy: FinalBackup, memo: &FinalBackupMemo) -> Option<Proposal> {
    let open = breaker::is_open(memo.failures);
    if policy == FinalBackup::BestEffort && open {
        return done("the last backup was tried often enough");
    }
    let next = memo.failure_time? + breaker::pause(memo.failures);
    if facts.now >= next {
        let because = format!("the pause after {} failed attempts is over", memo.failures);
        return change(attempt(facts, memo.failures), because);
    }
    let what = format!(
        "the next attempt of the last backup. {} have failed{}: {}",
        memo.failures,
        if open {
            ", so that it is only tried now and then"
        } else {
            ""
        },
        memo.message.as_deref().unwrap_or("it is not known why"),
    );
    let who = format!("the store, by working again; {LET_GO}");
    let key = WaitKey::of(WaitReason::FinalBackupRetry, "dbb", &memo.name);
    Some(Proposal::wait(facts, Step::BackingUp, key, what, who)?.until(next))
}

fn source_is_missing(facts: &Facts<'_>) -> Option<Proposal> {
    let what = "the user's decision about the last backup: no instance runs that could take it";
    Proposal::wait(
        facts,
        Step::BackingUp,
        WaitReason::FinalBackupSource,
        what,
        format!("the user: {LET_GO}"),
    )
}

/// The next attempt, after so many failed ones.
fn attempt(facts: &Facts<'_>, failures: u32) -> FinalBackupMemo {
    let uid: String = facts
        .wanted
        .uid
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(8)
        .collect();
    let number = if failures == 0 {
        String::new()
    } else {
        format!("-{}", failures + 1)
    };
    FinalBackupMemo {
        name: format!("{}-final-{}{number}", facts.wanted.name, uid.to_ascii_lowercase()),
        failures,
        failure_time: None,
        message: facts
            .status
            .memo
            .final_backup
            .as_ref()
            .and_then(|memo| memo.message.clone()),
    }
}

fn change(memo: FinalBackupMemo, because: String) -> Option<Proposal> {
    let changes = vec![StatusChange::RecordFinalBackup(memo)];
    Proposal::act(Step::BackingUp, Action::WriteStatus(changes), because)
}

fn done(because: &'static str) -> Option<Proposal> {
    deletion::record(DeletionStep::FinalBackup, because)
}

#[cfg(test)]
mod tests;
