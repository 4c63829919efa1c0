//! The store: objects that are created once. It is reached from every node that has power, also from one that is cut
//! off from everything else: that is the worse case.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use machine::archive::{Segment, WalFile};
use machine::protocol::Timeline;

use crate::simulator::wal::End;

/// The objects, by what they are; of each, where its WAL ends.
#[derive(Clone, Debug, Default)]
pub struct Store {
    segments: BTreeMap<Segment, End>,
    histories: BTreeMap<Timeline, End>,
    partial: BTreeMap<Segment, End>,
    /// How many faults keep it from answering.
    pub down: u8,
    /// Of a thousand requests this many fail.
    pub errors: u64,
    /// Additional time of a request, in milliseconds.
    pub slow: u64,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object is there with this content.
    Stored,
    /// The name has another content, which stays.
    Conflict,
}

impl Store {
    /// Creates an object; never changes one.
    pub fn create(&mut self, file: WalFile, content: End) -> Created {
        let stored = match file {
            WalFile::Segment(segment) => create(&mut self.segments, segment, content),
            WalFile::History(timeline) => create(&mut self.histories, timeline, content),
            WalFile::Partial(segment) => {
                // For inspection only: the first one is enough.
                self.partial.entry(segment).or_insert(content);
                content
            }
            WalFile::BackupNote => content,
        };
        match stored == content {
            true => Created::Stored,
            false => Created::Conflict,
        }
    }

    /// The segment of this name.
    pub fn segment(&self, segment: Segment) -> Option<End> {
        self.segments.get(&segment).copied()
    }

    /// Where the WAL of the ancestors ends in the history of this timeline.
    pub fn history(&self, timeline: Timeline) -> Option<End> {
        self.histories.get(&timeline).copied()
    }

    /// What is stored of the segment with this number, on all timelines.
    pub fn of_number(&self, number: u64) -> impl Iterator<Item = End> + '_ {
        let name = |timeline| Segment {
            number,
            timeline: Timeline(timeline),
        };
        let stored = self.segments.range(name(0)..=name(u32::MAX));
        stored.map(|(_, content)| *content)
    }
}

fn create<K: Ord>(objects: &mut BTreeMap<K, End>, name: K, content: End) -> End {
    match objects.entry(name) {
        Entry::Occupied(stored) => *stored.get(),
        Entry::Vacant(free) => *free.insert(content),
    }
}
