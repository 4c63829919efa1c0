//! What the status says of the archive of WAL. The holder's agent keeps the archive, and tells of it in the Lease.

use std::time::Duration;

use api::ClusteredDatabaseStatus;
use api::backup::{BackupKind, BackupSource, BackupState};
use api::status::{ArchiveFence, ArchiveStatus, ArchivedUpTo, BackupCatalogue, BackupStatus};
use chrono::{DateTime, SecondsFormat, Utc};

use super::drill;
use super::facts::Facts;
use super::final_backup;
use super::health::{Answer, Reason};
use super::schedule;
use crate::archive::ArchiveRecord;

/// How far the archive is stands in the status at most this long after it stands in the Lease. Under writes it moves all the time, and
/// each write of the status is one for everybody who watches.
pub(super) const PROGRESS_SETTLES: Duration = Duration::from_secs(60);

/// `status.backup`; `None` without `spec.backup`.
pub(super) fn describe(facts: &Facts<'_>) -> Option<BackupStatus> {
    facts.wanted.spec.backup.as_ref()?;
    let before = BackupStatus {
        next_backup_time: schedule::next_time(facts),
        ..facts.status.backup.clone().unwrap_or_default()
    };
    let Some(record) = facts.archive() else {
        return Some(before);
    };
    let known = before.archive.archived_up_to;
    let archived_up_to = record.progress.up_to.filter(|_| record.fence.is_some()).map(|up_to| {
        let (timeline, lsn) = (up_to.timeline.0, up_to.lsn.to_string());
        match known {
            Some(known) if (known.timeline, &known.lsn) == (timeline, &lsn) => known,
            Some(_) | None => ArchivedUpTo {
                timeline,
                lsn,
                time: facts.now,
            },
        }
    });
    let completed = record.backup.as_ref().and_then(|task| task.backup.clone());
    Some(BackupStatus {
        task: record.backup.clone(),
        last_backup: completed.or(before.last_backup),
        next_backup_time: before.next_backup_time,
        catalogue: record.catalogue.clone().or(before.catalogue),
        drill: before.drill,
        archive: ArchiveStatus {
            line: record.line,
            fence: record.fence,
            archived_up_to,
            waiting_bytes: record.progress.waiting.0,
            given_up_segments: (record.given_up > 0).then_some(record.given_up),
            fault: record.fault.clone(),
            full_time: record.full_time,
        },
    })
}

/// UID of the DatabaseBackup that is to be taken, whose files it has, and what it is (`status.intent`). A database that is paused is left
/// as it is.
pub(super) fn backup_to_take(facts: &Facts<'_>) -> (Option<String>, BackupSource, BackupKind) {
    let (spec, intent) = (&facts.wanted.spec, &facts.status.intent);
    let takes_backups = if facts.wanted.deleting {
        final_backup::is_open(facts)
    } else if spec.paused {
        return (intent.backup.clone(), intent.backup_source, intent.backup_kind);
    } else {
        spec.backup.is_some() && !spec.hibernated
    };
    match facts.wanted.backup.filter(|_| takes_backups) {
        Some(uid) => (
            Some(uid.to_owned()),
            facts.wanted.backup_source,
            facts.wanted.backup_kind,
        ),
        None => (None, BackupSource::default(), BackupKind::default()),
    }
}

/// The same status without how far the archive is.
pub(super) fn without_progress(status: &ClusteredDatabaseStatus) -> ClusteredDatabaseStatus {
    let mut status = status.clone();
    if let Some(backup) = &mut status.backup {
        backup.archive.archived_up_to = None;
        backup.archive.waiting_bytes = 0;
        if let Some(task) = &mut backup.task {
            task.copied_bytes = None;
        }
    }
    status
}

/// The answer of [`BACKUP_HEALTHY`]; `None` without `spec.backup`.
pub(super) fn condition(facts: &Facts<'_>) -> Option<Answer> {
    facts.wanted.spec.backup.as_ref()?;
    if let Some(fault) = schedule::fault(facts).or_else(|| drill::fault(facts)) {
        return Some(Answer::new(false, Reason::ScheduleInvalid, fault));
    }
    let answer = match facts.archive() {
        None => Answer {
            holds: None,
            reason: Reason::ArchiveUnknown,
            message: "the primary has not told yet whether it archives WAL".to_owned(),
        },
        Some(ArchiveRecord {
            fault: Some(fault),
            full_time,
            ..
        }) => Answer::new(
            false,
            Reason::ArchiveFails,
            full_time.map_or_else(|| fault.clone(), |full| format!("{fault}. {}", forecast(full))),
        ),
        Some(ArchiveRecord { given_up, .. }) if *given_up > 0 => Answer::new(
            false,
            Reason::ArchiveHasGap,
            format!(
                "{given_up} segments of WAL were given up, since they would have filled the volume: no recovery leads through that gap"
            ),
        ),
        Some(ArchiveRecord {
            full_time: Some(full), ..
        }) => Answer::new(
            false,
            Reason::ArchiveFallsBehind,
            format!("WAL is written faster than it is archived. {}", forecast(*full)),
        ),
        Some(ArchiveRecord {
            catalogue: Some(BackupCatalogue { fault: Some(fault), .. }),
            ..
        }) => Answer::new(
            false,
            Reason::CatalogueFails,
            format!("WAL is archived, but the backups cannot be listed or removed: {fault}"),
        ),
        Some(record) if record.lacks_backup() => Answer::new(
            false,
            Reason::ArchiveLineNew,
            format!(
                "line {} of the archive has begun and has no backup yet, so that nothing from then on can be recovered: take a backup. In \
                 the line before it the name of a segment is taken by other content, which another server may have written; what this \
                 database has is kept there under wal/conflicts",
                record.line.0
            ),
        ),
        Some(ArchiveRecord { fence: None, .. }) => Answer {
            holds: None,
            reason: Reason::ArchiveUnknown,
            message: "the store is being tried".to_owned(),
        },
        Some(ArchiveRecord {
            fence: Some(ArchiveFence::BestEffort),
            ..
        }) => Answer::new(
            true,
            Reason::Archiving,
            "WAL is archived. The store does not refuse to write an object twice: each write looks before and after",
        ),
        Some(ArchiveRecord {
            fence: Some(ArchiveFence::Enforced),
            ..
        }) => Answer::new(
            true,
            Reason::Archiving,
            "WAL is archived, and the store refuses to write an object twice",
        ),
    };
    let answer = backed_up(facts, answer);
    Some(undamaged(facts, drill::proven(facts, answer)))
}

/// What the backups lack, where WAL is archived as it should be.
fn backed_up(facts: &Facts<'_>, answer: Answer) -> Answer {
    let archived = facts.archive().filter(|_| answer.holds == Some(true));
    match archived.and_then(|record| lacking(facts, record)) {
        Some((reason, why)) => Answer::new(false, reason, why),
        None => answer,
    }
}

fn lacking(facts: &Facts<'_>, record: &ArchiveRecord) -> Option<(Reason, String)> {
    let task = record.backup.as_ref();
    let completed = task.and_then(|task| task.backup.as_ref());
    let before = || facts.status.backup.as_ref()?.last_backup.as_ref();
    let last = completed.or_else(before);
    if let Some(failed) = task.filter(|task| task.state == BackupState::Failed) {
        let why = failed.message.as_deref().unwrap_or("it is not known why");
        return Some((Reason::BackupFailed, format!("the last backup has failed: {why}")));
    }
    let listed = record.catalogue.as_ref().map(|listed| listed.backups);
    if listed.map_or(last.is_none(), |backups| backups == 0) {
        let why = format!(
            "WAL is archived, and there is no backup, without which nothing can be recovered: kubectl cdb backup {} takes one",
            facts.wanted.name
        );
        return Some((Reason::NoBackup, why));
    }
    Some((Reason::BackupOverdue, schedule::overdue(facts, last?)?))
}

/// What becomes of WAL that goes on waiting.
fn forecast(full: DateTime<Utc>) -> String {
    format!(
        "If that goes on, the WAL that waits will have used up its room on the volume at {}, and what is oldest is given up then",
        full.to_rfc3339_opts(SecondsFormat::Secs, true)
    )
}

/// What the last backup says of the data, where everything else is as it should be.
fn undamaged(facts: &Facts<'_>, answer: Answer) -> Answer {
    let last = facts
        .status
        .backup
        .as_ref()
        .and_then(|backup| backup.last_backup.as_ref());
    match last.filter(|last| last.damaged_pages && answer.holds == Some(true)) {
        Some(last) => Answer::new(
            false,
            Reason::DamagedPages,
            format!(
                "backup {} has data pages with wrong checksums: its DatabaseBackup and the log of the instance name the files; an older \
                 backup, recovered to now, may have them whole",
                last.name
            ),
        ),
        None => answer,
    }
}

#[cfg(test)]
mod tests;
