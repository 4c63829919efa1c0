//! The backups in the store, and the removal of what the retention does not keep.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use api::backup::snapshot_name;
use api::status::{BackupCatalogue, BackupRemoval};
use backup::Problem;
use backup::base::{self, BackupInfo, Catalogue, outline, remove_all, wal_before};
use backup::layout::{BackupName, Segment};
use chrono::{DateTime, Utc};
use machine::archive::{ArchiveLine, WalFile};
use machine::protocol::{Lsn, Timeline};
use machine::recovery::{Backup, History, Stored};
use machine::retention::removal;
use machine::units::Bytes;

use super::Order;
use super::attached::{Attached, LIMIT};
use crate::volume::forks;

/// So many VolumeSnapshots are named at once: what is told stands in the Lease.
const AT_ONCE: usize = 16;

/// What the retention does not keep, by name.
#[derive(Default)]
struct Rest {
    backups: Vec<BackupName>,
    unfinished: Vec<BackupName>,
    wal: Vec<String>,
}

/// The backups in the store, after the removal of what the retention does not keep; `fault` says why something could not be removed.
///
/// # Errors
/// Fails if the store cannot be listed.
pub(super) async fn keep(
    attached: &Attached,
    access: &Path,
    order: &Order,
    size: Bytes,
    now: DateTime<Utc>,
) -> Result<BackupCatalogue, Problem> {
    let (catalogue, rest) = look(attached, order, size, now).await?;
    let retention = order.retention.as_ref();
    if catalogue.removal.is_none() || retention.is_none_or(|retention| retention.suspend) {
        return Ok(catalogue);
    }
    match remove(attached, access, rest).await {
        Ok(()) => Ok(look(attached, order, size, now).await?.0),
        Err(problem) => Ok(BackupCatalogue {
            fault: Some(problem.to_string()),
            ..catalogue
        }),
    }
}

async fn look(
    attached: &Attached,
    order: &Order,
    size: Bytes,
    now: DateTime<Utc>,
) -> Result<(BackupCatalogue, Rest), Problem> {
    let (store, folder, line) = (attached.store(), attached.folder(), attached.line());
    let found = base::catalogue(store, folder, line, LIMIT).await?;
    let mut described = BackupCatalogue {
        line: ArchiveLine(line),
        backups: count(&found.complete),
        stored_bytes: found.complete.iter().map(|info| info.stored_bytes).sum(),
        first_recoverable_time: found.complete.iter().map(|info| info.stop_time).min(),
        removed_snapshots: removed_snapshots(attached, &found, &order.snapshots),
        ..BackupCatalogue::default()
    };
    let Some(retention) = &order.retention else {
        return Ok((described, Rest::default()));
    };
    let (folders, listed) = outline(store, folder, line, LIMIT).await?;
    let first_of = |folder: &str| WalFile::parse(&format!("{folder}00000000"), size)?.segment();
    let stored = Stored {
        segments: folders.iter().filter_map(|folder| first_of(folder)).collect(),
        histories: histories(&listed),
    };
    let backups: Vec<Backup> = found.complete.iter().map(planned).collect();
    let removal = removal(&backups, &stored, retention, size, now);
    let Some(anchor) = &removal.anchor else {
        return Ok((described, Rest::default()));
    };
    // One that is held does not go on beyond its end.
    let goes_on = |info: &&BackupInfo| removal.held.iter().all(|held| held.name != info.name.to_string());
    let going_on = found.complete.iter().filter(goes_on);
    described.first_recoverable_time = going_on.map(|info| info.stop_time).min();
    let is_before = |segment: &Segment| {
        let segment = WalFile::parse(&segment.to_string(), size).and_then(WalFile::segment);
        segment.is_some_and(|segment| removal.takes_segment(segment))
    };
    let begins_before = |folder: &&str| first_of(folder).is_some_and(|first| first.number < removal.first_segment);
    let of_wal: Vec<&str> = folders.iter().map(String::as_str).filter(begins_before).collect();
    let of_wal = [&of_wal[..], &["partial", "conflicts"]].concat();
    let wal = wal_before(store, folder, line, &of_wal, is_before, LIMIT).await?;
    let unfinished = found.unfinished.iter();
    let rest = Rest {
        backups: removal.backups.iter().filter_map(|name| name.parse().ok()).collect(),
        unfinished: unfinished
            .filter(|name| removal.takes_unfinished(&name.to_string()))
            .cloned()
            .collect(),
        wal,
    };
    if !(rest.backups.is_empty() && rest.unfinished.is_empty() && rest.wal.is_empty()) {
        let removed = found.complete.iter().filter(|info| rest.backups.contains(&info.name));
        described.removal = Some(BackupRemoval {
            backups: count(&rest.backups),
            stored_bytes: removed.map(|info| info.stored_bytes).sum(),
            wal_segments: rest.wal.len() as u64,
            oldest_kept: anchor.clone(),
        });
    }
    Ok((described, rest))
}

/// The VolumeSnapshots that are there, and whose backups are not, or never will be.
fn removed_snapshots(attached: &Attached, found: &Catalogue, there: &BTreeSet<String>) -> Vec<String> {
    let names = found.discarded.iter().filter(|name| name.is_snapshot());
    let names = names.map(|name| snapshot_name(attached.folder().base_name(), &name.to_string()));
    names.filter(|name| there.contains(name)).take(AT_ONCE).collect()
}

/// Removes backups before the WAL that they need: at no time is there a complete one without its WAL.
async fn remove(attached: &Attached, access: &Path, rest: Rest) -> Result<(), Problem> {
    let remover = attached.remover(access)?;
    for backup in rest.backups.iter().chain(&rest.unfinished) {
        base::remove(&remover, attached.folder(), attached.line(), backup, LIMIT).await?;
        eprintln!("backup {backup} is removed: the retention does not keep it");
    }
    let segments = rest.wal.len();
    remove_all(&remover, rest.wal, LIMIT).await?;
    if segments > 0 {
        eprintln!("{segments} segments of WAL are removed: no kept backup needs them");
    }
    Ok(())
}

fn count<T>(all: &[T]) -> u32 {
    u32::try_from(all.len()).unwrap_or(u32::MAX)
}

/// What planning needs of a backup.
pub(crate) fn planned(info: &BackupInfo) -> Backup {
    Backup {
        name: info.name.to_string(),
        timeline: Timeline(info.timeline),
        start: Lsn(info.start_lsn),
        stop: Lsn(info.stop_lsn),
        stop_time: info.stop_time,
        damaged_pages: info.damaged_pages,
        is_snapshot: info.snapshot.is_some(),
    }
}

/// What planning needs of history files, by timeline. One that is not understood counts as missing.
pub(crate) fn histories(listed: &BTreeMap<u32, String>) -> BTreeMap<Timeline, History> {
    let parsed = listed.iter().filter_map(|(timeline, text)| match forks(text) {
        Ok(history) => Some((Timeline(*timeline), history)),
        Err(reason) => {
            tracing::warn!("the history file of timeline {timeline} in the store is passed over: {reason}");
            None
        }
    });
    parsed.collect()
}
