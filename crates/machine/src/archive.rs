//! The WAL archive: which files PostgreSQL's archiver may strike off its list, and up to where the archive is complete.
//!
//! Each member keeps `archive_mode = always`, so that a segment stays on each volume until it is in the archive. Only the holder of the
//! lease writes to the archive. The others strike off what the Lease says is there. Whoever is promoted then pushes what the lost
//! primary had not, and no segment is missing.

mod forecast;

use std::collections::BTreeSet;

use api::backup::BackupTask;
use api::moment;
pub use api::status::{ArchiveFence, ArchiveLine, BackupCatalogue};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::protocol::{Epoch, Fork, Lsn, Position, Timeline};
use crate::timing::BootTime;
use crate::units::Bytes;

pub use forecast::Forecast;

/// A segment of WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Segment {
    /// Its place in the WAL: its first position, divided by the size of a segment.
    pub number: u64,
    /// The timeline in its name.
    pub timeline: Timeline,
}

impl Segment {
    /// Its first position.
    pub const fn start(self, size: Bytes) -> Lsn {
        Lsn(self.number.saturating_mul(size.0))
    }

    /// The position after its last one.
    pub const fn end(self, size: Bytes) -> Lsn {
        Lsn(self.number.saturating_add(1).saturating_mul(size.0))
    }

    /// Its file's name: 24 hexadecimal digits.
    pub fn name(self, size: Bytes) -> String {
        let start = self.start(size).0;
        let (file, within) = (start >> 32, (start & 0xFFFF_FFFF) / size.0.max(1));
        format!("{:08X}{file:08X}{within:08X}", self.timeline.0)
    }
}

/// A file that PostgreSQL's archiver hands over, by its name in `pg_wal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WalFile {
    /// The history of a timeline, which says where it left its ancestors. PostgreSQL archives these first.
    History(Timeline),
    /// A complete segment.
    Segment(Segment),
    /// The segment in which a timeline ended, as far as it was written. Recovery never asks for it: the next timeline's segment has the
    /// same content, and more.
    Partial(Segment),
    /// The note about a base backup that was taken from this server.
    BackupNote,
}

impl WalFile {
    /// Reads a file's name; `None` if PostgreSQL's archiver hands over no such file.
    pub fn parse(name: &str, size: Bytes) -> Option<Self> {
        if let Some(timeline) = name.strip_suffix(".history") {
            let digits = (timeline.len() == 8).then(|| hexadecimal(timeline))??;
            return Timeline::new(digits).ok().map(Self::History);
        }
        let (segment, rest) = name.split_at_checked(24)?;
        let [timeline, file, within] = [0, 8, 16].map(|from| hexadecimal(&segment[from..from + 8]));
        let per_file = (1u64 << 32).checked_div(size.0)?;
        let segment = Segment {
            timeline: Timeline::new(timeline?).ok()?,
            number: file? * per_file + within.filter(|within| *within < per_file)?,
        };
        match rest {
            "" => Some(Self::Segment(segment)),
            ".partial" => Some(Self::Partial(segment)),
            note if note.ends_with(".backup") => Some(Self::BackupNote),
            _ => None,
        }
    }

    /// The complete segment that it is.
    pub fn segment(self) -> Option<Segment> {
        match self {
            Self::Segment(segment) => Some(segment),
            Self::History(_) | Self::Partial(_) | Self::BackupNote => None,
        }
    }
}

/// A number of upper-case hexadecimal digits, as PostgreSQL writes them.
fn hexadecimal(digits: &str) -> Option<u64> {
    let fine = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte));
    u64::from_str_radix(digits, 16).ok().filter(|_| fine)
}

/// What PostgreSQL's archiver has noted about a file, in `archive_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `.ready`: it is to be archived.
    Ready,
    /// `.done`: it is in the archive.
    Done,
}

/// How far the archive is complete, by the marks of the server that fills it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// All WAL before this position, in the history of its timeline, is archived, and so is this history. `None` while nothing has been
    /// archived.
    pub up_to: Option<Position>,
    /// Complete WAL that waits for the archive.
    pub waiting: Bytes,
}

/// The history that a server's WAL is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lineage {
    /// Its newest timeline.
    pub timeline: Timeline,
    /// The ancestors of that, oldest first.
    pub ancestors: Vec<Fork>,
}

impl Lineage {
    /// What a file is in this history. A standby that follows its primary to a new timeline marks the segment in which the old one ended
    /// under the name of a complete one: PostgreSQL's archiver would put half a segment where another server may have put a whole one.
    pub fn file(&self, file: WalFile, size: Bytes) -> WalFile {
        match file {
            WalFile::Segment(segment)
                if self
                    .fork(segment.timeline)
                    .is_some_and(|fork| fork.end < segment.end(size)) =>
            {
                WalFile::Partial(segment)
            }
            WalFile::Segment(_) | WalFile::History(_) | WalFile::Partial(_) | WalFile::BackupNote => file,
        }
    }

    /// The complete segment of this number. That in which a timeline ended is one of its successor's, which begins with the same WAL.
    pub fn segment(&self, number: u64, size: Bytes) -> Segment {
        let complete = |timeline| Segment { number, timeline };
        let end = complete(self.timeline).end(size);
        let fork = self.ancestors.iter().find(|fork| end <= fork.end);
        complete(fork.map_or(self.timeline, |fork| fork.timeline))
    }

    /// A position of this history, told of the newest timeline before `waiting`. A statement about a timeline says that its history is
    /// archived, too ([`answer`]).
    fn before(&self, waiting: Timeline, position: Position) -> Option<Position> {
        if position.timeline < waiting {
            return Some(position);
        }
        let ancestor = self.ancestors.iter().rfind(|fork| fork.timeline < waiting)?;
        Some(Position {
            timeline: ancestor.timeline,
            lsn: position.lsn.min(ancestor.end),
        })
    }

    /// Where an ancestor ended.
    fn fork(&self, timeline: Timeline) -> Option<&Fork> {
        self.ancestors.iter().find(|fork| fork.timeline == timeline)
    }
}

/// WAL in the archive that a member needs and its primary has removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The member has the WAL before this position.
    pub from: Lsn,
    /// The archive has the WAL before this position, and the primary has what comes behind.
    pub to: Lsn,
    /// The primary's history.
    pub lineage: Lineage,
}

impl Fetch {
    /// The segments that are needed, in the order of their places.
    pub fn segments(&self, size: Bytes) -> impl Iterator<Item = Segment> {
        let each = size.0.max(1);
        (self.from.0 / each..self.to.0.div_ceil(each)).map(move |number| self.lineage.segment(number, size))
    }
}

/// The newest timeline of which there is a mark. PostgreSQL has the histories of all timelines that it follows.
pub fn newest_timeline(marks: &[(WalFile, Mark)]) -> Option<Timeline> {
    let timeline = |file: &WalFile| match file {
        WalFile::History(timeline) => Some(*timeline),
        WalFile::Segment(segment) | WalFile::Partial(segment) => Some(segment.timeline),
        WalFile::BackupNote => None,
    };
    marks.iter().filter_map(|(file, _)| timeline(file)).max()
}

/// How far the archive is complete, by the marks of all files.
pub fn progress(marks: impl IntoIterator<Item = (WalFile, Mark)>, lineage: &Lineage, size: Bytes) -> Progress {
    let (mut first_ready, mut last_done, mut waiting) = (None::<Segment>, None::<Segment>, Bytes::ZERO);
    let mut first_history = None::<Timeline>;
    for (file, mark) in marks {
        match (lineage.file(file, size), mark) {
            (WalFile::Segment(segment), Mark::Ready) => {
                waiting.0 = waiting.0.saturating_add(size.0);
                first_ready = Some(first_ready.map_or(segment, |first| first.min(segment)));
            }
            (WalFile::Segment(segment), Mark::Done) => last_done = last_done.max(Some(segment)),
            (WalFile::History(timeline), Mark::Ready) => {
                first_history = Some(first_history.map_or(timeline, |first| first.min(timeline)));
            }
            (WalFile::History(_) | WalFile::Partial(_) | WalFile::BackupNote, _) => {}
        }
    }
    let position = |segment: Segment, lsn| Position {
        timeline: segment.timeline,
        lsn,
    };
    let up_to = match (first_ready, last_done) {
        (Some(ready), _) => Some(position(ready, ready.start(size))),
        (None, Some(done)) => Some(position(done, done.end(size))),
        (None, None) => None,
    };
    let up_to = match first_history {
        Some(history) => up_to.and_then(|up_to| lineage.before(history, up_to)),
        None => up_to,
    };
    Progress { up_to, waiting }
}

/// Complete segments and histories that have no mark: they are to be marked as ready. A WAL receiver that ends just when a segment is full
/// marks it never; PostgreSQL itself does so only when it would remove the segment, and meanwhile the marks of later ones would hide the
/// gap. A loss of power takes marks that were not flushed. That of a history PostgreSQL makes never again.
///
/// `files` are those that are there. A segment that has no marked one behind it may be incomplete, or may be a file that PostgreSQL has laid
/// out for later. A history of which no WAL follows here may be that of a timeline that was only reserved.
pub fn unmarked(
    files: impl IntoIterator<Item = WalFile>,
    marks: &[(WalFile, Mark)],
    lineage: &Lineage,
    size: Bytes,
) -> Vec<WalFile> {
    let newest = newest(marks);
    let marked: BTreeSet<WalFile> = marks.iter().map(|(file, _)| *file).collect();
    let is_complete = |segment: Segment| {
        let Some(newest) = newest else { return false };
        let fork = lineage.fork(segment.timeline);
        let within = segment.timeline == newest.timeline || fork.is_some_and(|fork| segment.end(size) <= fork.end);
        within && segment.number < newest.number
    };
    let is_to_be_archived = |file: WalFile| match file {
        WalFile::Segment(segment) => is_complete(segment),
        WalFile::History(timeline) => timeline == lineage.timeline || lineage.fork(timeline).is_some(),
        WalFile::Partial(_) | WalFile::BackupNote => false,
    };
    let missing = |file: &WalFile| is_to_be_archived(*file) && !marked.contains(file);
    files.into_iter().filter(missing).collect()
}

/// The newest segment that has a mark: on the newest timeline, the last.
fn newest(marks: &[(WalFile, Mark)]) -> Option<Segment> {
    let segments = marks.iter().filter_map(|(file, _)| file.segment());
    segments.max_by_key(|segment| (segment.timeline, segment.number))
}

/// What the machine lets the archiver of this member's PostgreSQL do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Charge {
    /// There is no archive: all counts as archived, and PostgreSQL keeps nothing for it.
    Nowhere,
    /// This member holds the lease and serves: it fills the archive.
    Push {
        /// The epoch of its lease; it stands in each object.
        epoch: Epoch,
        /// No write to the archive begins after this time, unless the lease is renewed before.
        until: BootTime,
    },
    /// This member follows: what the Lease says is archived is struck off.
    Confirm {
        /// [`Progress::up_to`] of the holder.
        up_to: Option<Position>,
    },
    /// It is not known yet which of them. PostgreSQL asks again.
    Wait,
    /// PostgreSQL is being stopped, which waits for its archiver: that ends at once. What is left is archived after the next start, or
    /// by the next primary.
    End,
}

/// Space on the file system of `pg_wal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free bytes.
    pub left: Bytes,
    /// WAL that waits for the archive.
    pub waiting: Bytes,
}

impl Room {
    /// How much of the space beside everything else waits for the archive, in percent.
    fn used(self) -> u64 {
        let space = self.left.0.saturating_add(self.waiting.0).max(1);
        self.waiting.0.saturating_mul(100) / space
    }
}

/// A standby gives segments up when those that wait use more than this share of the space that is left for them: the primary still has
/// them.
pub const STANDBY_GIVES_UP: u64 = 70;
/// A primary gives segments up later: then nobody has them.
pub const PRIMARY_GIVES_UP: u64 = 90;

/// The answer to PostgreSQL's archiver about one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is in the archive, or is not for it.
    Archived,
    /// It is to be written into the archive first.
    Push(Epoch),
    /// It is struck off although nobody knows that it is archived: the volume is about to be full, and the database matters more. The
    /// archive has a gap from here on, unless another member fills it.
    GiveUp,
    /// Not now: PostgreSQL asks again.
    Later,
    /// The archiver ends.
    End,
}

/// Answers PostgreSQL's archiver.
pub fn answer(charge: Charge, file: WalFile, size: Bytes, room: Room, now: BootTime) -> Answer {
    let (pushes, gives_up) = match charge {
        Charge::Nowhere => return Answer::Archived,
        Charge::End => return Answer::End,
        Charge::Push { epoch, until } if now < until => (Some(epoch), PRIMARY_GIVES_UP),
        Charge::Push { .. } | Charge::Wait => (None, PRIMARY_GIVES_UP),
        Charge::Confirm { .. } => (None, STANDBY_GIVES_UP),
    };
    let is_archived = match (file, charge) {
        (WalFile::BackupNote, _) => true,
        // The holder tells of no timeline whose history it has not archived.
        (WalFile::History(timeline), Charge::Confirm { up_to }) => {
            up_to.is_some_and(|up_to| timeline <= up_to.timeline)
        }
        (WalFile::Partial(_), Charge::Confirm { .. }) => true,
        (WalFile::Segment(segment), Charge::Confirm { up_to }) => {
            up_to.is_some_and(|up_to| segment.timeline <= up_to.timeline && segment.end(size) <= up_to.lsn)
        }
        (WalFile::History(_) | WalFile::Partial(_) | WalFile::Segment(_), _) => false,
    };
    match (is_archived, pushes) {
        (true, _) => Answer::Archived,
        (false, _) if matches!(file, WalFile::Segment(_)) && room.used() > gives_up => Answer::GiveUp,
        (false, Some(epoch)) => Answer::Push(epoch),
        (false, None) => Answer::Later,
    }
}

/// What the holder writes about the archive into the Lease ([`api::names::LEASE_ARCHIVE`]), with each renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveRecord {
    /// The line that WAL is archived in.
    #[serde(default, skip_serializing_if = "ArchiveLine::is_first")]
    pub line: ArchiveLine,
    /// A line that takes no more WAL: a segment's name is taken there by other content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<ArchiveLine>,
    /// How far it is complete.
    #[serde(flatten)]
    pub progress: Progress,
    /// Whether the store refuses to write a name twice, by the last probe; `None` before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<ArchiveFence>,
    /// All that this database had in the store is deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// How many segments were given up since the agent started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub given_up: u64,
    /// Why nothing is archived at present, in the store's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// When segments will be given up if what waits goes on growing ([`Forecast`]).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub full_time: Option<DateTime<Utc>>,
    /// The backup that is taken, or was taken last, as the holder at that time knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupTask>,
    /// The backups in the store, as a holder has seen them last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<BackupCatalogue>,
    /// The recovery in place that the store was looked through for last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<RecoveryChecked>,
}

impl ArchiveRecord {
    /// True for a line after the first in which no backup is known.
    pub fn lacks_backup(&self) -> bool {
        let known = self.catalogue.as_ref().filter(|known| known.line == self.line);
        !self.line.is_first() && known.is_none_or(|known| known.backups == 0)
    }
}

/// Whether a store has all that a recovery needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryChecked {
    /// UID of the operation that asks for the recovery.
    pub uid: String,
    /// Why it cannot be recovered; `None` if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// What it would be made from; `None` if the target lies behind what is archived by now: the rest is archived while all instances stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outline: Option<RecoveryOutline>,
}

/// What a recovery is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryOutline {
    /// Name of the backup.
    pub backup: String,
    /// When it was consistent.
    #[serde(deserialize_with = "moment::deserialize")]
    pub stop_time: DateTime<Utc>,
    /// Bytes of the database's files in it.
    pub data_bytes: u64,
    /// Bytes of them in the store.
    pub stored_bytes: u64,
    /// How many segments of WAL PostgreSQL may replay.
    pub segments: u64,
    /// Size of a segment.
    pub segment_size: Bytes,
    /// The timeline that is followed.
    pub timeline: Timeline,
    /// End of the last of these segments.
    pub end: Lsn,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests;
