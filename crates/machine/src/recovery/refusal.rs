//! Why a recovery is refused, in words that say what to change.

use chrono::{DateTime, SecondsFormat, Utc};

use super::Backup;
use crate::protocol::{Position, Timeline};

/// Why there is no way to recover to the target. The texts say what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store holds no backup.
    #[error("the store holds no complete backup of this database: check namespace, name and UID of the source")]
    NoBackup,
    /// All backups are in VolumeSnapshots, and none is named.
    #[error(
        "all backups are in VolumeSnapshots ({}): name one as backup, so that the volume is made from it, or take one of kind Full",
        .0.join(", ")
    )]
    OnlySnapshots(Vec<String>),
    /// The newest line of the archive holds no backup, and the target is all that is archived.
    #[error(
        "line {0} of the archive holds no complete backup: all that is archived cannot be recovered. What the line before it holds can be, if you name a backup or another target"
    )]
    LineWithoutBackup(u32),
    /// There is no backup of the wanted name.
    #[error("there is no backup {wanted}; these are there: {}", there.join(", "))]
    UnknownBackup {
        /// The wanted name.
        wanted: String,
        /// All names.
        there: Vec<String>,
    },
    /// All backups end after the target.
    #[error(
        "no backup ends before the target, {target}: the earliest possible time is {}, and the earliest possible position {}",
        describe_time(earliest.stop_time), earliest.stop
    )]
    BeforeFirst {
        /// The target, in words.
        target: String,
        /// The oldest backup that could be used.
        earliest: Box<Backup>,
    },
    /// The wanted backup ends after the target.
    #[error(
        "backup {} ends at {} ({}), after the target, {target}: name an earlier backup, or none", backup.name, describe_time(backup.stop_time), backup.stop
    )]
    BackupTooLate {
        /// The target, in words.
        target: String,
        /// The wanted backup.
        backup: Box<Backup>,
    },
    /// The target has not come yet.
    #[error("the target, {}, is in the future (it is {} now): to get all that is archived, use the target latest", describe_time(*target), describe_time(*now))]
    Future {
        /// The target.
        target: DateTime<Utc>,
        /// The present time.
        now: DateTime<Utc>,
    },
    /// The target lies behind the archive.
    #[error("the archive ends at {} on timeline {}, before the target, {target}: to get all that is archived, use the target latest", end.lsn, end.timeline.0)]
    AfterEnd {
        /// The target, in words.
        target: String,
        /// The end of the archive.
        end: Position,
    },
    /// The target lies behind a line of the archive that has ended.
    #[error("line {line} of the archive ends at {} on timeline {}, before the target, {target}, and no later line has a backup from before that: choose an earlier target", end.lsn, end.timeline.0)]
    AfterLine {
        /// The line.
        line: u32,
        /// The target, in words.
        target: String,
        /// The end of the line.
        end: Position,
    },
    /// Segments are missing.
    #[error(
        "{count} segments of WAL are missing in the store, the first is {first}: put them into the store, or choose a target before them or a backup after them"
    )]
    Missing {
        /// Name of the first missing segment.
        first: String,
        /// How many are missing.
        count: u64,
    },
    /// A history file is missing, so that the ancestors of a timeline are not known.
    #[error("the history file {} is missing or damaged in the store: without it, it is not known which WAL belongs to timeline {}; put it into the store", history_name(*.0), .0.0)]
    NoHistory(Timeline),
    /// All backups are of abandoned branches.
    #[error("no backup belongs to the history of timeline {}, the newest one; these belong to abandoned branches, and are used only if you name one: {}", timeline.0, backups.join(", "))]
    Abandoned {
        /// The newest timeline.
        timeline: Timeline,
        /// All backups.
        backups: Vec<String>,
    },
}

/// The name of a timeline's history file.
fn history_name(timeline: Timeline) -> String {
    format!("{:08X}.history", timeline.0)
}

/// A time as users write it.
pub(super) fn describe_time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}
