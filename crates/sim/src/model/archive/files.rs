//! The files in a member's `pg_wal` that are to be archived, and their marks.

use machine::archive::{Lineage, Mark, Progress, Segment, WalFile, newest_timeline, progress, unmarked};
use machine::protocol::{Lsn, Timeline};
use machine::units::Bytes;

use super::super::bounds::Mutant;
use super::super::names::{forks, wal};
use super::super::observe::history;
use super::super::state::{Member, Postgres, TIMELINES, Wal, World};

/// Objects of a store, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Objects {
    /// Whole segments of each timeline, by number.
    pub segments: [u16; TIMELINES],
    /// Histories, by timeline.
    pub histories: u8,
}

impl Objects {
    /// True if it has this object. The segment in which a timeline ended is in no store here: recovery never asks for it.
    pub fn has(&self, file: WalFile) -> bool {
        match file {
            WalFile::Segment(segment) => self.segments[slot(segment.timeline)] >> segment.number & 1 == 1,
            WalFile::History(timeline) => self.histories >> slot(timeline) & 1 == 1,
            WalFile::Partial(_) | WalFile::BackupNote => false,
        }
    }

    /// Creates an object, unless it is there.
    pub fn add(&mut self, file: WalFile) {
        match file {
            WalFile::Segment(segment) => self.segments[slot(segment.timeline)] |= 1 << segment.number,
            WalFile::History(timeline) => self.histories |= 1 << slot(timeline),
            WalFile::Partial(_) | WalFile::BackupNote => {}
        }
    }

    /// All objects.
    pub fn files(&self) -> Vec<WalFile> {
        let timelines = (1..TIMELINES).map(|timeline| Timeline(timeline as u32));
        let histories = timelines.clone().map(WalFile::History);
        let segments = timelines.flat_map(|timeline| {
            let segment = move |number| WalFile::Segment(Segment { number, timeline });
            (0..16).map(segment)
        });
        histories.chain(segments).filter(|file| self.has(*file)).collect()
    }
}

pub(super) fn slot(timeline: Timeline) -> usize {
    timeline.0 as usize % TIMELINES
}

/// The marks of PostgreSQL's archiver on a volume. Which files there are follows from where the WAL ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Marks {
    /// Full segments that wait, by number.
    pub ready: u16,
    /// Full segments that count as archived, by number. A segment that is in neither set has no mark.
    pub done: u16,
    /// Histories that count as archived, by timeline; all others wait.
    pub histories: u8,
    /// Timelines of which the segment in which they ended counts as archived; all others wait.
    pub halves: u8,
    /// The stream ended with a full segment so far: it is marked when the stream goes on.
    pub full: bool,
}

impl Marks {
    /// No marks.
    pub const fn new() -> Self {
        Self {
            ready: 0,
            done: 0,
            histories: 0,
            halves: 0,
            full: false,
        }
    }

    /// The marks of a copy of a server whose WAL ends at `end`: the program that copies takes all WAL for archived.
    pub fn of_copy(end: Wal, segment: u8) -> Self {
        if segment == 0 {
            return Self::new();
        }
        Self {
            done: whole(end, segment),
            histories: u8::MAX,
            halves: u8::MAX,
            ..Self::new()
        }
    }

    /// All that counts as archived waits again, as `volume::marks::ask_again` of the agent does.
    pub fn ask_again(&mut self) {
        *self = Self {
            ready: self.ready | self.done,
            ..Self::new()
        };
    }

    pub(super) fn wait(&mut self, segment: Segment) {
        self.ready |= 1 << segment.number;
    }

    /// A file counts as archived. Its name is that of a whole segment, also if its timeline ended in it.
    pub(super) fn strike_off(&mut self, file: WalFile, is_half: bool) {
        match file {
            WalFile::Segment(segment) if is_half => self.halves |= 1 << slot(segment.timeline),
            WalFile::Segment(segment) => {
                self.ready &= !(1 << segment.number);
                self.done |= 1 << segment.number;
            }
            WalFile::History(timeline) => self.histories |= 1 << slot(timeline),
            WalFile::Partial(_) | WalFile::BackupNote => {}
        }
    }
}

/// The full segments of WAL that ends at `end`.
fn whole(end: Wal, segment: u8) -> u16 {
    (1 << (end.end / segment)) - 1
}

/// A primary has written its last record: it marks each full segment at once.
pub(in super::super) fn wrote<const N: usize>(member: &mut Member<N>, segment: u8) {
    if segment > 0 && member.wal.end.is_multiple_of(segment) {
        member.marks.ready |= 1 << (member.wal.end / segment - 1);
    }
}

/// A WAL receiver has received the record after `before`. It marks a full segment when its stream goes on behind it: one
/// with which a stream has ended keeps no mark.
pub(in super::super) fn received<const N: usize>(member: &mut Member<N>, before: Wal, segment: u8) {
    if segment == 0 {
        return;
    }
    if member.marks.full {
        member.marks.ready |= 1 << (before.end / segment - 1);
    }
    member.marks.full = member.wal.end.is_multiple_of(segment);
}

/// What the state of a member's archiver depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    wal: Wal,
    marks: Marks,
    receives: bool,
    tells: bool,
}

impl Basis {
    pub(in super::super) fn of<const N: usize>(member: &Member<N>) -> Self {
        let is_primary = matches!(member.postgres, Postgres::Primary { .. });
        Self {
            wal: member.wal,
            marks: member.marks,
            receives: matches!(member.postgres, Postgres::Standby { receiving: true, .. }),
            tells: is_primary && member.confirmed.is_some(),
        }
    }
}

/// There are marks only of what is there, and no object on its way that has arrived. The worker of a primary always tells
/// how far the archive is: what it told before stays true, so that nothing can go wrong by telling it late.
///
/// `before`: what this depended on before the step. Where it is the same, nothing has changed.
pub(in super::super) fn settle<const N: usize>(world: &mut World<N>, mutant: Option<Mutant>, before: &[Basis; N]) {
    if world.segment == 0 {
        return;
    }
    for (me, before) in before.iter().enumerate() {
        let basis = Basis::of(&world.members[me]);
        if basis == *before {
            continue;
        }
        let timelines = line(world, world.members[me].wal.timeline);
        let timelines = timelines.fold(0, |set, (timeline, _)| set | 1u8 << timeline);
        let member = &mut world.members[me];
        let there = whole(member.wal, world.segment);
        let marks = &mut member.marks;
        (marks.ready, marks.done) = (marks.ready & there, marks.done & there);
        (marks.histories, marks.halves) = (marks.histories & timelines, marks.halves & timelines);
        marks.full &= basis.receives;
        let told = basis.tells.then(|| look(world, me, mutant).progress.up_to).flatten();
        world.members[me].told = told.map(wal);
    }
    let (store, pushed) = (world.store, &mut world.pushed);
    for (pushed, stored) in pushed.segments.iter_mut().zip(store.segments) {
        *pushed &= !stored;
    }
    pushed.histories &= !store.histories;
}

/// A timeline and its ancestors, oldest first; of each, where it ended.
fn line<const N: usize>(world: &World<N>, timeline: u8) -> impl Iterator<Item = (u8, u8)> {
    let mut ends = history(world, timeline);
    ends[usize::from(timeline) % TIMELINES] = u8::MAX;
    let known = (0..TIMELINES as u8).zip(ends);
    known.filter(|(timeline, end)| *timeline > 0 && *end > 0)
}

/// The files of a server whose WAL ends at `end`, in the order of PostgreSQL's archiver, histories first; of each,
/// whether its timeline ended in it. A standby that has followed its primary over the end of a timeline has that half
/// under the name of a whole segment; here, the promoted server has it too.
pub(super) fn files<const N: usize>(world: &World<N>, end: Wal) -> Vec<(WalFile, bool)> {
    let (mut files, mut next) = (Vec::new(), 0);
    if end.timeline == 0 {
        return files;
    }
    let line = || line(world, end.timeline).map(|(timeline, fork)| (timeline, fork.min(end.end)));
    for (timeline, _) in line().skip(1) {
        files.push((WalFile::History(Timeline(timeline.into())), false));
    }
    for (timeline, to) in line() {
        let file = |number: u8| {
            let (number, timeline) = (number.into(), Timeline(timeline.into()));
            WalFile::Segment(Segment { number, timeline })
        };
        let full = to / world.segment;
        files.extend((next..full).map(|number| (file(number), false)));
        next = next.max(full);
        let began_before = next * world.segment < to;
        if timeline != end.timeline && began_before {
            files.push((file(next), true));
        }
    }
    files
}

/// What the archive's worker reads on a volume, as its `volume::marks::read` does.
pub(super) struct Look {
    /// The files ([`files`]).
    pub files: Vec<(WalFile, bool)>,
    /// The places of those that wait.
    pub waiting: Vec<usize>,
    /// Files that had no mark, and wait from now on: segments only, since here each history has a mark.
    pub found: Vec<WalFile>,
    pub lineage: Lineage,
    pub progress: Progress,
}

/// Reads the marks of a member.
pub(super) fn look<const N: usize>(world: &World<N>, me: usize, mutant: Option<Mutant>) -> Look {
    let size = size(world);
    let files = files(world, world.members[me].wal);
    let marks = world.members[me].marks;
    let mark = |file: WalFile, is_half: bool| {
        let done = match file {
            WalFile::Segment(segment) if is_half => marks.halves >> slot(segment.timeline) & 1 == 1,
            WalFile::Segment(segment) if (marks.ready | marks.done) >> segment.number & 1 == 0 => return None,
            WalFile::Segment(segment) => marks.done >> segment.number & 1 == 1,
            WalFile::History(timeline) => marks.histories >> slot(timeline) & 1 == 1,
            WalFile::Partial(_) | WalFile::BackupNote => true,
        };
        Some(if done { Mark::Done } else { Mark::Ready })
    };
    let marked = files.iter().enumerate();
    let marked = marked.filter_map(|(place, (file, is_half))| Some((place, *file, mark(*file, *is_half)?)));
    let waiting = marked.clone().filter(|(.., mark)| *mark == Mark::Ready);
    let waiting = waiting.map(|(place, ..)| place).collect();
    let mut marks: Vec<(WalFile, Mark)> = marked.map(|(_, file, mark)| (file, mark)).collect();
    let timeline = newest_timeline(&marks).unwrap_or(Timeline(1));
    let ancestors = match mutant {
        Some(Mutant::HalfASegmentIsWhole) => Vec::new(),
        _ => forks(&history(world, slot(timeline) as u8)),
    };
    let lineage = Lineage { timeline, ancestors };
    let mut found = unmarked(files.iter().map(|(file, _)| *file), &marks, &lineage, size);
    match mutant {
        Some(Mutant::FullSegmentIsForgotten) => found.clear(),
        Some(Mutant::HistoryIsTakenForArchived) => {
            marks.retain(|(file, _)| !matches!(file, WalFile::History(_)));
        }
        _ => {}
    }
    marks.extend(found.iter().map(|file| (*file, Mark::Ready)));
    Look {
        progress: progress(marks, &lineage, size),
        files,
        waiting,
        found,
        lineage,
    }
}

/// How long a segment is: a record is as long as a byte.
pub(super) fn size<const N: usize>(world: &World<N>) -> Bytes {
    Bytes(world.segment.into())
}

/// The last record in a segment.
pub(super) fn last(segment: Segment, size: Bytes) -> Wal {
    let Lsn(end) = segment.end(size);
    Wal {
        timeline: slot(segment.timeline) as u8,
        end: u8::try_from(end).unwrap_or(u8::MAX),
    }
}
