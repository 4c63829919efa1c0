//! Recovery of a backup to a point in time: which backup, which files of the archive, and whether recovery stopped where it should.
//!
//! PostgreSQL takes a missing file for the end of the archive, and opens the database there. So [`plan`] proves beforehand, by a list of
//! the store, that everything is there. PostgreSQL then gets the files of the plan, and nothing else ([`Plan::serves`]).
//!
//! The newest timeline is the one with the highest number that has a segment or a backup of its own. Each election reserves a number that
//! no other timeline has had (protocol.md rule 7), so an abandoned branch has a lower number than the branch that replaced it.
//! - A higher number than the fork's does not make an ancestor: only the history of the newest timeline names the ancestors.
//! - A history file alone does not make a timeline the newest: no WAL of that timeline was archived, so nothing of it can be restored.
//! - A backup of an abandoned branch is used only if the user names it. Then the newest timeline is the one that contains this backup.

mod refusal;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api::spec::RecoveryTarget;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::archive::{Segment, WalFile};
use crate::protocol::{Fork, Lsn, Position, Timeline};
use crate::units::Bytes;

pub use refusal::Refusal;
use refusal::describe_time;

/// Where recovery stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// At the end of the archive, as far as the plan has proven it.
    Latest,
    /// As soon as the backup is consistent.
    Immediate,
    /// Before the first commit after this time.
    Time(DateTime<Utc>),
    /// At this position.
    Lsn(Lsn),
    /// At the end of this transaction.
    Xid(u64),
    /// At the restore point that `pg_create_restore_point` made under this name.
    Name(String),
}

impl Target {
    /// The target of a spec, and whether recovery stops just before it.
    ///
    /// # Errors
    /// Fails if the spec names none or several, or a position that is none: the API's rules allow neither.
    pub fn of_spec(spec: Option<&RecoveryTarget>) -> Result<(Self, bool), String> {
        let Some(spec) = spec else {
            return Ok((Self::Latest, false));
        };
        let lsn = spec.lsn.as_deref().map(str::parse::<Lsn>).transpose();
        let lsn = lsn.map_err(|error| format!("bootstrap.recovery.target.lsn: {error}"))?;
        let mut all = [
            spec.time.map(Self::Time),
            lsn.map(Self::Lsn),
            spec.xid.map(|xid| Self::Xid(xid.into())),
            spec.name.clone().map(Self::Name),
            spec.immediate.then_some(Self::Immediate),
        ]
        .into_iter()
        .flatten();
        match (all.next(), all.next()) {
            (Some(target), None) => Ok((target, spec.exclusive)),
            _ => Err("bootstrap.recovery.target must name one target".to_owned()),
        }
    }
}

/// What planning needs to know of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    /// Its name in the store.
    pub name: String,
    /// The timeline on which it was taken.
    pub timeline: Timeline,
    /// The position from which recovery replays.
    pub start: Lsn,
    /// The position at which it is consistent.
    pub stop: Lsn,
    /// When it was consistent.
    pub stop_time: DateTime<Utc>,
    /// It has pages with wrong checksums.
    #[serde(default)]
    pub damaged_pages: bool,
    /// Its files are in a VolumeSnapshot, which the volume must have been made from: it is used only if the user names it.
    #[serde(default)]
    pub is_snapshot: bool,
}

/// The ancestors that the history file of a timeline names, oldest first.
pub type History = Vec<Fork>;

/// The WAL that a store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// All complete segments.
    pub segments: BTreeSet<Segment>,
    /// All history files.
    pub histories: BTreeMap<Timeline, History>,
}

/// How a backup is recovered. Nothing is left to be decided later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The backup.
    pub backup: Backup,
    /// The timeline that recovery follows; never "latest".
    pub timeline: Timeline,
    /// The segments that PostgreSQL may have: without a gap from the backup's start on.
    pub files: Vec<Files>,
    /// The timelines whose history files PostgreSQL may have.
    pub histories: BTreeSet<Timeline>,
    /// The end of the last of these segments.
    pub end: Position,
    /// The size of a segment.
    pub segment_size: Bytes,
}

/// Segments of one timeline, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Files {
    /// The timeline in their names.
    pub timeline: Timeline,
    /// Number of the first segment.
    pub first: u64,
    /// Number of the last segment.
    pub last: u64,
}

/// Where recovery has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// End of the last record that was replayed.
    pub lsn: Lsn,
    /// Time of the last commit that was replayed; `None` if there was none.
    pub last_commit_time: Option<DateTime<Utc>>,
    /// Recovery is paused: PostgreSQL has found the target. After [`Target::Latest`] it is never paused.
    pub paused: bool,
}

/// Plans a recovery.
///
/// The backup is the newest one that ends before the target; `wanted_backup` overrides that. Where transactions and restore points lie
/// is not known, so for those it is the newest one of all: to reach an earlier one, name a backup before it.
///
/// # Errors
/// Fails if the target cannot be reached for sure: [`Refusal`] says why.
pub fn plan(
    backups: &[Backup],
    wanted_backup: Option<&str>,
    target: &Target,
    stored: &Stored,
    segment_size: Bytes,
    now: DateTime<Utc>,
) -> Result<Plan, Refusal> {
    if let Target::Time(time) = *target
        && time > now
    {
        return Err(Refusal::Future { target: time, now });
    }
    if backups.is_empty() {
        return Err(Refusal::NoBackup);
    }
    if wanted_backup.is_none() && backups.iter().all(|backup| backup.is_snapshot) {
        return Err(Refusal::OnlySnapshots(names(backups)));
    }
    let size = segment_size.0.max(1);
    let timelines = timelines(backups, stored);
    let (backup, line) = match wanted_backup {
        Some(wanted) => named(backups, wanted, target, stored, &timelines)?,
        None => newest(backups, target, stored, &timelines)?,
    };
    line.check_histories(backup, stored)?;
    let first = backup.start.0 / size;
    let last = last_segment(backup, &line, target, stored, size)?;
    let on_line = std::iter::once(&line.timeline).chain(line.ancestors.iter().map(|fork| &fork.timeline));
    Ok(Plan {
        backup: backup.clone(),
        timeline: line.timeline,
        files: line.files(first, last, size),
        histories: on_line
            .copied()
            .filter(|of| stored.histories.contains_key(of))
            .collect(),
        end: line.end_of(last, size),
        segment_size,
    })
}

/// Whether what is wanted may be in an earlier line of the archive, since a line refuses it so. All that is archived
/// ([`Target::Latest`]) is in the newest line, unless a backup is named.
pub fn may_be_in_earlier_line(refused: &Refusal, wanted_backup: Option<&str>, target: &Target) -> bool {
    match refused {
        Refusal::NoBackup | Refusal::OnlySnapshots(_) => wanted_backup.is_some() || *target != Target::Latest,
        Refusal::UnknownBackup { .. } | Refusal::BeforeFirst { .. } => true,
        Refusal::LineWithoutBackup(_)
        | Refusal::BackupTooLate { .. }
        | Refusal::Future { .. }
        | Refusal::AfterEnd { .. }
        | Refusal::AfterLine { .. }
        | Refusal::Missing { .. }
        | Refusal::NoHistory(_)
        | Refusal::Abandoned { .. } => false,
    }
}

/// Tells whether recovery has stopped at the target.
///
/// # Errors
/// Fails with an explanation for the user if it has not.
pub fn reached(target: &Target, exclusive: bool, replayed: Replayed, plan: &Plan) -> Result<(), String> {
    let Replayed {
        lsn,
        last_commit_time,
        paused,
    } = replayed;
    let last = last_commit_time.map_or_else(
        || "no commit was replayed".to_owned(),
        |time| format!("the last commit that was replayed is of {}", describe_time(time)),
    );
    if lsn < plan.backup.stop {
        return Err(format!(
            "recovery stopped at {lsn}, before the backup is consistent ({})",
            plan.backup.stop
        ));
    }
    match *target {
        // The last record may go on behind the archive. It is rarely larger than a segment.
        Target::Latest if lsn.0 < plan.end.lsn.0.saturating_sub(plan.segment_size.0) => Err(format!(
            "recovery stopped at {lsn} although the archive goes on to {}: the WAL is damaged there ({last}); to get what is before, use the target lsn {lsn}, exclusive",
            plan.end.lsn
        )),
        Target::Latest => Ok(()),
        _ if !paused => Err(format!(
            "the archive ends at {lsn} before the target, {target}: {last}; to get all that is archived, use the target latest, or name an earlier backup if the target lies before backup {}",
            plan.backup.name
        )),
        Target::Time(time) => match last_commit_time {
            Some(last) if last > time || (exclusive && last == time) => Err(format!(
                "recovery stopped at {lsn}, and has replayed a commit of {}, which is after the target, {target}",
                describe_time(last)
            )),
            _ => Ok(()),
        },
        Target::Immediate | Target::Lsn(_) | Target::Xid(_) | Target::Name(_) => Ok(()),
    }
}

impl Plan {
    /// True if PostgreSQL may have this file: it belongs to the history that is restored, and the plan has found it in the store.
    pub fn serves(&self, file: WalFile) -> bool {
        match file {
            WalFile::History(timeline) => self.histories.contains(&timeline),
            WalFile::Segment(segment) => self.files.iter().any(|files| {
                files.timeline == segment.timeline && (files.first..=files.last).contains(&segment.number)
            }),
            WalFile::Partial(_) | WalFile::BackupNote => false,
        }
    }

    /// True if PostgreSQL asks for this file only when it has replayed all segments of the plan.
    pub fn is_past_end(&self, file: WalFile) -> bool {
        let last = self.files.last().map(|files| files.last);
        file.segment().is_some_and(|segment| Some(segment.number) > last)
    }
}

/// A timeline and its ancestors, oldest first.
struct Line {
    timeline: Timeline,
    ancestors: History,
}

impl Line {
    /// The timeline whose file of this segment recovery reads. A segment with a fork in it is the new timeline's: it begins with a copy
    /// of the old one's content, and the old one's may hold other records behind the fork.
    fn timeline_at(&self, number: u64, size: u64) -> Timeline {
        let ended_later = self.ancestors.iter().find(|fork| number < fork.end.0 / size);
        ended_later.map_or(self.timeline, |fork| fork.timeline)
    }

    fn segment(&self, number: u64, size: u64) -> Segment {
        let timeline = self.timeline_at(number, size);
        Segment { number, timeline }
    }

    fn end_of(&self, number: u64, size: u64) -> Position {
        let segment = self.segment(number, size);
        Position {
            timeline: segment.timeline,
            lsn: segment.end(Bytes(size)),
        }
    }

    /// True if all of the backup lies in this history.
    fn contains(&self, backup: &Backup) -> bool {
        let before_fork = |fork: &Fork| fork.timeline == backup.timeline && backup.stop <= fork.end;
        backup.timeline == self.timeline || self.ancestors.iter().any(before_fork)
    }

    /// Each timeline that the line has reached after the backup was promoted in this store, which archived its history first. Those
    /// before the backup may be another store's: a database that was itself restored begins on a high timeline.
    fn check_histories(&self, backup: &Backup, stored: &Stored) -> Result<(), Refusal> {
        let all = self.ancestors.iter().map(|fork| fork.timeline).chain([self.timeline]);
        let mut later = all.filter(|timeline| *timeline > backup.timeline);
        let missing = later.find(|timeline| !stored.histories.contains_key(timeline));
        missing.map_or(Ok(()), |timeline| Err(Refusal::NoHistory(timeline)))
    }

    /// The segments, by timeline.
    fn files(&self, first: u64, last: u64, size: u64) -> Vec<Files> {
        let mut files: Vec<Files> = Vec::new();
        let mut from = first;
        for fork in &self.ancestors {
            let end = (fork.end.0 / size).min(last + 1);
            if from < end {
                let (first, last) = (from, end - 1);
                files.push(Files {
                    timeline: fork.timeline,
                    first,
                    last,
                });
                from = end;
            }
        }
        if from <= last {
            files.push(Files {
                timeline: self.timeline,
                first: from,
                last,
            });
        }
        files
    }
}

/// The timelines that have a segment or a backup of their own.
fn timelines(backups: &[Backup], stored: &Stored) -> BTreeSet<Timeline> {
    let of_segments = stored.segments.iter().map(|segment| segment.timeline);
    of_segments
        .chain(backups.iter().map(|backup| backup.timeline))
        .collect()
}

/// The line of a timeline. Without its history, only its own backups are known to belong to it.
///
/// A recovery that stops before the last fork of its timeline writes a history in which positions go back: PostgreSQL copies the whole
/// history of the timeline that it followed. Nothing behind a later entry's position belongs to the line.
fn line(timeline: Timeline, stored: &Stored) -> Line {
    let mut ancestors = stored.histories.get(&timeline).cloned().unwrap_or_default();
    let mut earliest = Lsn(u64::MAX);
    for fork in ancestors.iter_mut().rev() {
        earliest = earliest.min(fork.end);
        fork.end = earliest;
    }
    Line { timeline, ancestors }
}

/// The backups in the history of the newest timeline, as far as that is known.
pub(crate) fn of_newest_timeline<'a>(backups: &'a [Backup], stored: &Stored) -> Vec<&'a Backup> {
    let newest = timelines(backups, stored).last().copied();
    let line = newest.map(|timeline| line(timeline, stored));
    let is_own = |backup: &&Backup| line.as_ref().is_some_and(|line| line.contains(backup));
    backups.iter().filter(is_own).collect()
}

/// The newest backup of the newest timeline that ends before the target.
fn newest<'a>(
    backups: &'a [Backup],
    target: &Target,
    stored: &Stored,
    timelines: &BTreeSet<Timeline>,
) -> Result<(&'a Backup, Line), Refusal> {
    let timeline = *timelines.last().ok_or(Refusal::NoBackup)?;
    let line = line(timeline, stored);
    let is_known = stored.histories.contains_key(&timeline) || timelines.len() == 1;
    let fitting = || {
        let of_line = backups.iter().filter(|backup| line.contains(backup));
        of_line.filter(|backup| !backup.is_snapshot)
    };
    let before = fitting().filter(|backup| ends_before(backup, target));
    match (
        before.max_by_key(|backup| backup.stop),
        fitting().min_by_key(|backup| backup.stop),
    ) {
        (Some(backup), _) => Ok((backup, line)),
        (None, _) if !is_known => Err(Refusal::NoHistory(timeline)),
        (None, Some(earliest)) => Err(Refusal::BeforeFirst {
            target: target.to_string(),
            earliest: Box::new(earliest.clone()),
        }),
        (None, None) => Err(Refusal::Abandoned {
            timeline,
            backups: names(backups),
        }),
    }
}

/// The backup that the user names, and the newest timeline that contains it.
fn named<'a>(
    backups: &'a [Backup],
    wanted: &str,
    target: &Target,
    stored: &Stored,
    timelines: &BTreeSet<Timeline>,
) -> Result<(&'a Backup, Line), Refusal> {
    let backup = backups.iter().find(|backup| backup.name == wanted);
    let backup = backup.ok_or_else(|| Refusal::UnknownBackup {
        wanted: wanted.to_owned(),
        there: names(backups),
    })?;
    if !ends_before(backup, target) {
        return Err(Refusal::BackupTooLate {
            target: target.to_string(),
            backup: Box::new(backup.clone()),
        });
    }
    for &timeline in timelines.range(backup.timeline..).rev() {
        if timeline > backup.timeline && !stored.histories.contains_key(&timeline) {
            return Err(Refusal::NoHistory(timeline));
        }
        let line = line(timeline, stored);
        if line.contains(backup) {
            return Ok((backup, line));
        }
    }
    Ok((backup, line(backup.timeline, stored)))
}

/// True if recovery can stop at the target: a backup is consistent only at its end.
fn ends_before(backup: &Backup, target: &Target) -> bool {
    match target {
        Target::Time(time) => backup.stop_time <= *time,
        Target::Lsn(lsn) => backup.stop <= *lsn,
        Target::Latest | Target::Immediate | Target::Xid(_) | Target::Name(_) => true,
    }
}

/// Number of the last segment that is there without a gap from the backup's start on.
///
/// A gap in front of what is needed is refused. For a position, WAL is needed up to the segment in which it lies. For an immediate end, up
/// to the end of the backup. Else a gap may be in front of the target, and is refused if anything lies behind it.
fn last_segment(backup: &Backup, line: &Line, target: &Target, stored: &Stored, size: u64) -> Result<u64, Refusal> {
    let first = backup.start.0 / size;
    let is_on_line = |segment: &&Segment| segment.number >= first && **segment == line.segment(segment.number, size);
    let there: BTreeSet<u64> = stored
        .segments
        .iter()
        .filter(is_on_line)
        .map(|segment| segment.number)
        .collect();
    let consistent = (backup.stop.0.max(backup.start.0 + 1) - 1) / size;
    let newest = there.last().copied().unwrap_or(first).max(consistent);
    let needed = match *target {
        Target::Immediate => consistent,
        Target::Lsn(lsn) => (lsn.0 / size).min(newest),
        Target::Latest | Target::Time(_) | Target::Xid(_) | Target::Name(_) => newest,
    };
    let contiguous = (first..)
        .zip(&there)
        .take_while(|(number, there)| number == *there)
        .count() as u64;
    let missing_from = first + contiguous;
    if missing_from <= needed {
        let count = (needed - first + 1) - there.range(first..=needed).count() as u64;
        return Err(Refusal::Missing {
            first: line.segment(missing_from, size).name(Bytes(size)),
            count,
        });
    }
    if let Target::Lsn(lsn) = *target
        && lsn.0 / size > newest
    {
        return Err(Refusal::AfterEnd {
            target: target.to_string(),
            end: line.end_of(newest, size),
        });
    }
    Ok(missing_from - 1)
}

fn names(backups: &[Backup]) -> Vec<String> {
    backups.iter().map(|backup| backup.name.clone()).collect()
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Immediate => f.write_str("immediate"),
            Self::Time(time) => write!(f, "time {}", describe_time(*time)),
            Self::Lsn(lsn) => write!(f, "lsn {lsn}"),
            Self::Xid(xid) => write!(f, "xid {xid}"),
            Self::Name(name) => write!(f, "name {name:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
