//! What must hold of the archive (docs/invariants.md 16 and 36).

use std::collections::{BTreeMap, BTreeSet};

use machine::archive::{Charge, Segment, WalFile};
use machine::protocol::{Epoch, LeaseRecord, Position, Timeline};
use machine::units::Bytes;

use super::files::{File, Name};
use super::store::Created;
use crate::simulator::wal::{Branch, End, FIRST};
use crate::simulator::world::World;

/// What the checks remember.
#[derive(Clone, Debug, Default)]
pub struct Archived {
    /// Segments that may be missing: given up since a volume was about to be full, or of before a copy that was
    /// promoted.
    excused: BTreeSet<u64>,
    /// Of each branch, the number of the first segment that was not found to be archived yet.
    complete: BTreeMap<Branch, u64>,
    /// Where the WAL of the primary ended when everything else was as wanted: the archive must come to that.
    target: Option<End>,
}

impl World {
    /// A member takes a file for archived: the store must have all that it holds.
    pub fn check_struck_off(&mut self, node: usize, charge: Charge, name: Name, what: WalFile, file: File) {
        let Charge::Confirm { up_to } = charge else { return };
        let (is_stored, reached) = match what {
            WalFile::Segment(Segment { number, .. }) => {
                let stored = |content| self.wal.contains(content, file.content);
                let is_stored = self.store.of_number(number).any(stored) || self.archived.excused.contains(&number);
                (is_stored, "struck off by a standby")
            }
            WalFile::History(timeline) => {
                // That of a timeline which the holder's history left is needed by nobody (seed 2364 with `--archive`).
                let in_use = up_to
                    .and_then(|up_to| self.wal.branch(up_to.timeline.0))
                    .is_some_and(|of| {
                        let ancestors = self.wal.history(of);
                        let is_ancestor = ancestors.iter().any(|fork| fork.timeline == timeline);
                        is_ancestor || self.wal.branch(timeline.0) == Some(of)
                    });
                if !in_use {
                    return self.coverage.reach("the history of an abandoned timeline struck off");
                }
                let is_stored = self.store.history(timeline) == Some(file.content);
                (is_stored, "a history struck off by a standby")
            }
            WalFile::Partial(_) | WalFile::BackupNote => return,
        };
        if is_stored {
            return self.coverage.reach(reached);
        }
        let up_to = up_to.map(|up_to| (up_to.timeline.0, up_to.lsn.0));
        self.violate(format!(
            "orders-{node} strikes off {name}, which is not in the archive (said to be complete up to {up_to:X?})"
        ));
    }

    /// A member gives a segment up.
    pub fn count_given_up_segment(&mut self, node: usize, what: WalFile, file: File) {
        self.coverage.reach("a segment given up");
        let (number, content) = match what {
            WalFile::Segment(segment) => (segment.number, file.content),
            WalFile::History(_) | WalFile::Partial(_) | WalFile::BackupNote => return,
        };
        self.note(Some(node), || {
            format!("gives up {number:X}, which ends at {:X}", content.lsn)
        });
        self.archived.excused.insert(number);
    }

    /// A push begins: this run must have been granted this time.
    pub fn check_push(&mut self, node: usize, name: Name, epoch: Epoch) {
        let (now, granted) = (self.boot_time(node), self.nodes[node].granted);
        if now > granted {
            self.violate(format!(
                "orders-{node} begins to push {name} in epoch {}, {} after its granted time",
                epoch.0,
                now.since(granted)
            ));
        }
    }

    /// A write has arrived at the store.
    pub fn count_created(&mut self, node: usize, run: u32, created: Option<Created>) {
        if created == Some(Created::Conflict) {
            self.coverage.reach("two contents of one name");
        }
        let holds = self.holder() == Some(node) && self.nodes[node].runs == run;
        if created.is_some() && !holds {
            self.coverage.reach("pushed by a former primary");
        }
    }

    /// A promotion: of what a copy lacks, nobody knows any longer whether it is archived.
    pub fn note_begin_of_copy(&mut self, node: usize, base: End) {
        let (Some(size), Some(data)) = (self.segment(), &self.nodes[node].volume.data) else {
            return;
        };
        let (first, archive) = (data.files.first, self.complete_up_to(base, size));
        for number in archive..first.min(base.lsn / size.0) {
            if !self.is_archived(base, number, size) {
                self.archived.excused.insert(number);
                self.coverage.reach("a copy promoted that has not all WAL");
            }
        }
    }

    /// True if the store has this segment of WAL that ends at `head`, under its name.
    fn is_archived(&self, head: End, number: u64, size: Bytes) -> bool {
        let content = self.wal.at(head, (number + 1) * size.0);
        let segment = Segment {
            number,
            timeline: Timeline(self.wal.timeline(content.branch)),
        };
        self.store.segment(segment) == Some(content)
    }

    /// The first segment of WAL that ends at `head` that is neither archived nor excused.
    fn complete_up_to(&mut self, head: End, size: Bytes) -> u64 {
        let known = self.archived.complete.get(&head.branch).copied();
        let mut number = known.unwrap_or(FIRST / size.0);
        while (number + 1) * size.0 <= head.lsn
            && (self.archived.excused.contains(&number) || self.is_archived(head, number, size))
        {
            number += 1;
        }
        self.archived.complete.insert(head.branch, number);
        number
    }

    /// What the Lease says of the archive must be true.
    pub fn check_archive_record(&mut self, before: &LeaseRecord, after: &LeaseRecord) {
        let up_to = |record: &LeaseRecord| record.archive.as_ref().and_then(|archive| archive.progress.up_to);
        let (Some(size), Some(now)) = (self.segment(), up_to(after)) else {
            return;
        };
        if up_to(before) == Some(now) {
            return;
        }
        let Some(head) = self.end_of(now) else { return };
        let complete = self.complete_up_to(head, size);
        if (complete + 1) * size.0 <= head.lsn {
            self.violate(format!(
                "the Lease says that the archive is complete up to {:X} of timeline {}, and segment {complete:X} is missing",
                now.lsn.0, now.timeline.0
            ));
        }
    }

    fn end_of(&self, position: Position) -> Option<End> {
        let branch = self.wal.branch(position.timeline.0)?;
        Some(End {
            branch,
            lsn: position.lsn.0,
        })
    }

    /// Everything else is as wanted: so must the archive be soon. It has to reach what the primary has now.
    pub fn archive_as_wanted(&mut self, primary: usize) -> Result<(), String> {
        let (Some(size), Some(data)) = (self.segment(), &self.nodes[primary].volume.data) else {
            return Ok(());
        };
        let end = data.end;
        let target = *self.archived.target.get_or_insert(end);
        let full = target.lsn / size.0;
        let complete = self.complete_up_to(end, size);
        if complete < full {
            return Err(format!(
                "segment {complete:X} of {:X} is not archived, of a primary on timeline {}",
                end.lsn / size.0,
                self.wal.timeline(end.branch)
            ));
        }
        let record = self.api.lease.archive.as_ref();
        let told = record.and_then(|archive| self.end_of(archive.progress.up_to?));
        let told = told
            .filter(|told| self.wal.keeps(end, *told))
            .map_or(0, |told| told.lsn / size.0);
        if told < full {
            return Err(format!(
                "the Lease says that the archive is complete up to {told:X}, of {full:X} segments"
            ));
        }
        self.coverage.reach("archived in the end");
        Ok(())
    }
}
