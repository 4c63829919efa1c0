//! PostgreSQL's archiver: it asks about one file after the other.

use machine::archive::{Answer, Progress, Room, answer};
use machine::units::Bytes;

use super::files::{Name, Writer};
use crate::simulator::event::Inner;
use crate::simulator::wal::End;
use crate::simulator::world::World;

/// PostgreSQL's archiver asks so often about one file, with this pause in milliseconds.
const TRIES: u8 = 3;
const AGAIN: u64 = 1_000;
/// Then it waits for this long, or until another file is to be archived, in milliseconds.
const IDLE: u64 = 60_000;

/// PostgreSQL's archiver, a process of the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Archiver {
    /// How often it was told in a row that a file is not archived.
    tries: u8,
    /// It was asked to end.
    has_ended: bool,
    /// Counts what it waits for: only the last wake-up counts.
    wake: u64,
}

impl World {
    /// WAL has reached a member's disk: its data ends at `to` now.
    pub fn wal_reaches_disk(&mut self, node: usize, to: End, writer: Writer) {
        let size = self.segment();
        let Some(data) = self.nodes[node].volume.data.as_mut() else {
            return;
        };
        let from = std::mem::replace(&mut data.end, to);
        let Some(size) = size else { return };
        if from.branch == to.branch && from.lsn / size.0 == to.lsn / size.0 {
            return;
        }
        data.files.grow(&self.wal, size, (from, to), writer);
        self.wake_archiver(node);
    }

    /// There may be something to archive.
    pub fn wake_archiver(&mut self, node: usize) {
        let waits = |archiver: &Archiver| archiver.tries == 0 && !archiver.has_ended;
        if self.server(node).is_some_and(|server| waits(&server.archiver)) {
            self.ask_after(1, node);
        }
    }

    fn ask_after(&mut self, delay: u64, node: usize) {
        let Some(server) = self.server(node) else { return };
        server.archiver.wake += 1;
        let wake = server.archiver.wake;
        self.server_after(delay, node, Inner::Archive { wake });
    }

    /// PostgreSQL's archiver asks the worker about the next file.
    pub fn archiver_asks(&mut self, node: usize, wake: u64) {
        let is_due = |archiver: &Archiver| archiver.wake == wake && !archiver.has_ended;
        let server = self.server(node).filter(|server| is_due(&server.archiver));
        let Some(id) = server
            .filter(|server| server.up && server.stop.is_none())
            .map(|server| server.id)
        else {
            return;
        };
        if self.nodes[node].archive.asked.is_some_and(|(_, asking)| asking == id) {
            return;
        }
        let data = self.nodes[node].volume.data.as_ref();
        let Some((name, file)) = data.and_then(|data| data.files.waiting().next()) else {
            return;
        };
        let (Some(archive), Some(charge)) = (self.plan.archive, self.nodes[node].archive.order) else {
            return self.not_archived(node);
        };
        let (Progress { waiting, .. }, lineage) = self.read_marks(node, archive.segment);
        let left = match self.nodes[node].disk.full {
            0 => archive.room.0.saturating_sub(waiting.0),
            _ => 0,
        };
        let room = Room {
            left: Bytes(left),
            waiting,
        };
        let what = lineage.file(name.file(), archive.segment);
        match answer(charge, what, archive.segment, room, self.boot_time(node)) {
            Answer::Archived => {
                self.check_struck_off(node, charge, name, what, file);
                self.archived(node, name);
            }
            Answer::GiveUp => {
                self.nodes[node].archive.given_up += 1;
                self.count_given_up_segment(node, what, file);
                self.archived(node, name);
            }
            Answer::Later => self.not_archived(node),
            Answer::End => self.end_archiver(node),
            Answer::Push(epoch) => {
                self.nodes[node].archive.asked = Some((name, id));
                self.push(node, name, epoch, &lineage);
            }
        }
    }

    /// The file is struck off, and the next one is asked about.
    pub(super) fn archived(&mut self, node: usize, name: Name) {
        self.note(Some(node), || format!("{name} counts as archived"));
        if let Some(data) = self.nodes[node].volume.data.as_mut() {
            data.files.done(name);
        }
        if let Some(server) = self.server(node) {
            server.archiver.tries = 0;
        }
        self.ask_after(5, node);
    }

    pub(super) fn not_archived(&mut self, node: usize) {
        let Some(server) = self.server(node) else { return };
        server.archiver.tries += 1;
        let idle = server.archiver.tries >= TRIES;
        if idle {
            server.archiver.tries = 0;
        }
        self.ask_after(if idle { IDLE } else { AGAIN }, node);
    }

    pub(super) fn end_archiver(&mut self, node: usize) {
        if let Some(server) = self.server(node) {
            server.archiver.has_ended = true;
        }
    }
}
