//! `pg_rewind` and `pg_basebackup`.

use std::collections::BTreeSet;

use machine::instance::Upstream;
use machine::protocol::{Fork, Timeline, parting};

use super::archive::WalFiles;
use super::event::Task;
use super::names::number;
use super::node::{Aside, Data};
use super::wal::End;
use super::world::World;

impl World {
    /// The end of a primary's WAL that this member can copy.
    fn source(&self, node: usize, from: usize) -> Result<End, String> {
        let place = self.nodes.get(from).ok_or("no such member")?;
        let serves = place
            .postgres
            .as_ref()
            .filter(|server| server.up && !server.in_recovery && server.stop.is_none());
        let reached = place.on && place.postgres_frozen == 0 && self.net.joined(node, from);
        match (serves, &place.volume.data) {
            (Some(_), Some(data)) if reached => Ok(data.end),
            _ => Err("the primary cannot be reached, or does not serve".to_owned()),
        }
    }

    /// `None`: it continues.
    pub fn rewind(&mut self, node: usize, upstream: Upstream, stage: u8) -> Option<Result<(), String>> {
        let source = self.source(node, number(&upstream.address));
        let volume = &mut self.nodes[node].volume;
        if stage == 0 {
            if volume.rewinding || upstream.epoch.0 < volume.promise {
                return Some(Err("it was torn, or a higher epoch is promised".to_owned()));
            }
            (volume.promise, volume.promoting, volume.credential) = (upstream.epoch.0, None, false);
            let end = match source {
                Ok(end) => end,
                Err(error) => return Some(Err(error)),
            };
            if let Some(data) = &volume.data
                && (data.clean || !data.primary)
                && self.wal.contains(end, data.consistent.unwrap_or(data.end))
                && self.wal.contains(end, data.end)
            {
                // "no rewind required"
                return Some(Ok(()));
            }
            self.check_thrown_away(node, end);
            self.nodes[node].volume.rewinding = true;
            let delay = self.random.work.between(300, 3_000);
            self.step_after(delay, node, Task::Rewind { upstream, stage: 1 });
            return None;
        }
        // From here on the data is being changed: an interrupted rewind leaves it useless.
        let end = match source {
            Ok(end) => end,
            Err(error) => {
                self.coverage.reach("rewind broken off");
                return Some(Err(error));
            }
        };
        let files = self.files_of(number(&upstream.address));
        let data = self.nodes[node].volume.data.as_mut()?;
        if stage == 1 {
            // The source's WAL is copied up to its present end, and replayed from the last common position.
            *data = Data {
                end,
                redo: self.wal.common(data.end, end).lsn,
                consistent: Some(end),
                primary: false,
                clean: false,
                slots: BTreeSet::new(),
                // With their marks, and no others.
                files,
            };
            let delay = self.random.work.between(5, 100);
            self.step_after(delay, node, Task::Rewind { upstream, stage: 2 });
            return None;
        }
        // WAL that the source has written meanwhile may be in the pages that were copied.
        data.consistent = Some(end);
        self.nodes[node].volume.rewinding = false;
        self.coverage.reach("rewound");
        Some(Ok(()))
    }

    /// Copies WAL that is not in `history` aside before a rewind.
    pub fn keep_tail(&mut self, node: usize, history: &[Fork]) {
        let volume = &mut self.nodes[node].volume;
        if let Some(data) = &volume.data {
            let (branch, end) = (data.end.branch, data.end);
            let timeline = Timeline(self.wal.timeline(branch));
            let from = parting(&self.wal.history(branch), timeline, history).0;
            volume.aside.push(Aside { from, end });
            self.coverage.reach("WAL kept aside");
        }
    }

    /// Moves the data aside, for a copy of the newest timeline.
    pub fn set_aside(&mut self, node: usize, keep: bool) {
        let newest = self.wal.0.len() - 1;
        if keep {
            let data = self.nodes[node].volume.data.as_ref();
            let kept = data.map(|data| Aside { from: 0, end: data.end });
            self.nodes[node].volume.aside.extend(kept);
            self.coverage.reach("data kept aside");
        }
        self.check_thrown_away(
            node,
            End {
                branch: newest,
                lsn: u64::MAX,
            },
        );
        let volume = &mut self.nodes[node].volume;
        (volume.data, volume.rewinding, volume.was_primary) = (None, false, false);
    }

    fn files_of(&self, node: usize) -> WalFiles {
        let data = self.nodes.get(node).and_then(|place| place.volume.data.as_ref());
        data.map(|data| data.files.clone()).unwrap_or_default()
    }

    /// A copy begins with a new segment: returns where.
    pub fn begin_copy(&mut self, node: usize, from: usize) -> u64 {
        if self.source(node, from).is_ok() {
            self.switch_wal(from);
        }
        self.server(from).map_or(0, |server| server.end.lsn)
    }

    /// A copy of the primary, as of the end of the copy.
    pub fn copy(&mut self, node: usize, from: usize, begun: u64) -> Result<(), String> {
        let end = self.source(node, from)?;
        if self.nodes[node].disk.full > 0 {
            return Err("no space left on device".to_owned());
        }
        let slots = self.nodes[from].volume.data.as_ref().map(|data| &data.slots);
        let own = self.nodes[node].volume.member.as_ref();
        if !slots.zip(own).is_some_and(|(slots, own)| slots.contains(own)) {
            return Err("there is no slot for it".to_owned());
        }
        self.coverage.reach("cloned");
        let first = self.segment().map_or(0, |size| begun / size.0);
        let files = self.files_of(from).copied(first);
        self.nodes[node].volume.data = Some(Data {
            end,
            redo: end.lsn,
            consistent: Some(end),
            primary: false,
            clean: false,
            slots: BTreeSet::new(),
            files,
        });
        Ok(())
    }
}
