//! The files in a member's `pg_wal` that are full or were ended, and the marks of PostgreSQL's archiver
//! (`archive_status`).

use std::collections::BTreeMap;
use std::fmt;

use machine::archive::{Mark, Segment, WalFile};
use machine::protocol::Timeline;
use machine::units::Bytes;

use crate::simulator::wal::{End, Wal};

/// A file's name, in the order in which PostgreSQL's archiver takes them: histories first, then by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    kind: Kind,
    timeline: u32,
    number: u64,
    is_partial: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    History,
    Segment,
}

impl Name {
    fn history(timeline: u32) -> Self {
        Self {
            kind: Kind::History,
            timeline,
            number: 0,
            is_partial: false,
        }
    }

    fn segment(timeline: u32, number: u64) -> Self {
        Self {
            kind: Kind::Segment,
            timeline,
            number,
            is_partial: false,
        }
    }

    /// The same for the machine.
    pub fn file(self) -> WalFile {
        let timeline = Timeline(self.timeline);
        let segment = Segment {
            number: self.number,
            timeline,
        };
        match (self.kind, self.is_partial) {
            (Kind::History, _) => WalFile::History(timeline),
            (Kind::Segment, false) => WalFile::Segment(segment),
            (Kind::Segment, true) => WalFile::Partial(segment),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (timeline, number) = (self.timeline, self.number);
        match (self.kind, self.is_partial) {
            (Kind::History, _) => write!(f, "the history of timeline {timeline}"),
            (Kind::Segment, false) => write!(f, "segment {number:X} of timeline {timeline}"),
            (Kind::Segment, true) => write!(f, "the partial segment {number:X} of timeline {timeline}"),
        }
    }
}

/// A file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Where its WAL ends.
    pub content: End,
    pub mark: Option<Mark>,
}

/// Who writes WAL into these files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A primary: each full segment is marked at once.
    Primary,
    /// A WAL receiver with this stream: it marks a full segment when the stream goes on behind it, and the segment in
    /// which a timeline ends.
    Stream(u64),
    /// The kernel, after its process was killed: nothing is marked.
    Kernel,
}

/// The files of one volume.
#[derive(Clone, Debug, Default)]
pub struct WalFiles {
    files: BTreeMap<Name, File>,
    /// A copy has no segment before this one.
    pub first: u64,
    /// The last segment, if it is full and the stream ended with it so far.
    full: Option<(u64, Name)>,
}

impl WalFiles {
    /// WAL was written: it ended at `from`, and ends at `to` now.
    pub fn grow(&mut self, wal: &Wal, size: Bytes, (from, to): (End, End), writer: Writer) {
        if let (Some((of, name)), true) = (self.full.take(), to.lsn > from.lsn)
            && writer == Writer::Stream(of)
        {
            self.note(name);
        }
        for number in from.lsn / size.0..to.lsn / size.0 {
            let content = wal.at(to, (number + 1) * size.0);
            let name = Name::segment(wal.timeline(content.branch), number);
            let mark = match writer {
                Writer::Stream(stream) if content.lsn == to.lsn => {
                    self.full = Some((stream, name));
                    None
                }
                Writer::Primary | Writer::Stream(_) => Some(Mark::Ready),
                Writer::Kernel => None,
            };
            self.add(name, content, mark);
        }
        let (mut branch, mark) = (to.branch, (writer != Writer::Kernel).then_some(Mark::Ready));
        while branch != from.branch
            && let Some(base) = wal.0[branch].base
        {
            self.add(Name::history(wal.timeline(branch)), base, mark);
            if !base.lsn.is_multiple_of(size.0) {
                let name = Name::segment(wal.timeline(base.branch), base.lsn / size.0);
                self.add(name, base, mark);
            }
            branch = base.branch;
        }
    }

    fn add(&mut self, name: Name, content: End, mark: Option<Mark>) {
        let file = self.files.entry(name).or_insert(File { content, mark });
        file.mark = file.mark.or(mark);
    }

    fn note(&mut self, name: Name) {
        if let Some(file) = self.files.get_mut(&name) {
            file.mark = file.mark.or(Some(Mark::Ready));
        }
    }

    /// A promotion ends the timeline at `base` and begins `timeline`. The unfinished segment is renamed, unless it has
    /// a mark.
    pub fn promote(&mut self, wal: &Wal, size: Bytes, base: End, timeline: u32) {
        self.add(Name::history(timeline), base, Some(Mark::Ready));
        if base.lsn.is_multiple_of(size.0) {
            return;
        }
        let name = Name::segment(wal.timeline(base.branch), base.lsn / size.0);
        if self.files.get(&name).is_none_or(|file| file.mark.is_none()) {
            self.files.remove(&name);
            let partial = Name {
                is_partial: true,
                ..name
            };
            self.add(partial, base, Some(Mark::Ready));
        }
    }

    /// A checkpoint removes archived segments before `redo`, and marks those that nobody has marked.
    pub fn checkpoint(&mut self, size: Bytes, redo: u64) {
        self.files.retain(|name, file| {
            let is_old = name.kind == Kind::Segment && (name.number + 1) * size.0 <= redo;
            if is_old {
                file.mark = file.mark.or(Some(Mark::Ready));
            }
            !is_old || file.mark == Some(Mark::Ready)
        });
    }

    /// All marks become waiting again, as `volume::marks::ask_again` does before a standby starts.
    pub fn ask_again(&mut self) {
        for file in self.files.values_mut() {
            file.mark = file.mark.map(|_| Mark::Ready);
        }
    }

    /// The files of a copy: the segments from `first` on, which the program that copies marks as archived.
    pub fn copied(&self, first: u64) -> Self {
        let files = self
            .files
            .iter()
            .filter(|(name, _)| name.kind == Kind::History || name.number >= first);
        let done = |(name, file): (&Name, &File)| {
            let mark = Some(Mark::Done);
            (*name, File { mark, ..*file })
        };
        Self {
            files: files.map(done).collect(),
            first,
            full: None,
        }
    }

    /// Power was lost: a mark that was made last is not on the disk.
    pub fn forget_last_mark(&mut self) {
        let last = self
            .files
            .values_mut()
            .rev()
            .find(|file| file.mark == Some(Mark::Ready));
        if let Some(last) = last {
            last.mark = None;
        }
    }

    /// The archiver strikes a file off.
    pub fn done(&mut self, name: Name) {
        if let Some(file) = self.files.get_mut(&name) {
            file.mark = Some(Mark::Done);
        }
    }

    /// A file is marked as waiting.
    pub fn ready(&mut self, file: WalFile) {
        if let Some(name) = self.files.keys().copied().find(|name| name.file() == file) {
            self.note(name);
        }
    }

    /// The files that wait, in the archiver's order.
    pub fn waiting(&self) -> impl Iterator<Item = (Name, File)> + '_ {
        let all = self.files.iter().map(|(name, file)| (*name, *file));
        all.filter(|(_, file)| file.mark == Some(Mark::Ready))
    }

    /// The file of this name.
    pub fn get(&self, name: Name) -> Option<File> {
        self.files.get(&name).copied()
    }

    /// All marks.
    pub fn marks(&self) -> Vec<(WalFile, Mark)> {
        let marked = self
            .files
            .iter()
            .filter_map(|(name, file)| Some((name.file(), file.mark?)));
        marked.collect()
    }

    /// The files that are there.
    pub fn all(&self) -> impl Iterator<Item = WalFile> + '_ {
        self.files.keys().map(|name| name.file())
    }
}
