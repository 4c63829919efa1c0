//! The end of a PostgreSQL.

use std::collections::BTreeSet;

use machine::instance::Stop;
use machine::instance::observer::{Event as Seen, ServerId};
use machine::protocol::MemberId;

use super::archive::Writer;
use super::event::{Inner, News};
use super::postgres::{Ends, RECORD};
use super::world::World;

impl World {
    /// Asks a PostgreSQL to stop.
    pub fn stop_server(&mut self, node: usize, stop: Stop) {
        let place = &mut self.nodes[node];
        let Some(server) = place.postgres.as_mut() else { return };
        match stop {
            Stop::Kill => {
                self.trace.mark(77);
                self.end_server(node, Ends::Killed);
            }
            Stop::Fast | Stop::Immediate => {
                if server.stop.is_none_or(|before| before < stop) {
                    server.stop = Some(stop);
                    server.commits.clear();
                    let delay = self.random.work.between(5, 40);
                    self.server_after(delay, node, Inner::Stopping);
                }
            }
        }
    }

    /// Ends all WAL senders except those of `keep`.
    pub fn end_senders(&mut self, node: usize, keep: &BTreeSet<MemberId>) {
        let server = self.nodes[node].postgres.as_ref();
        let senders = server.into_iter().flat_map(|server| &server.senders);
        let ended = senders.filter(|(_, sender)| !keep.contains(&sender.member));
        for (stream, to) in ended.map(|(stream, sender)| (*stream, sender.to)).collect::<Vec<_>>() {
            self.end_sender(node, stream);
            self.close(node, stream, to);
        }
    }

    pub fn stopping(&mut self, node: usize) {
        let hung = self.nodes[node].disk.hung > 0;
        let place = &mut self.nodes[node];
        let (Some(server), Some(data)) = (place.postgres.as_mut(), place.volume.data.as_mut()) else {
            return;
        };
        if server.stop == Some(Stop::Immediate) || !server.up {
            return self.end_server(node, Ends::Killed);
        }
        if hung {
            return self.server_after(50, node, Inner::Stopping);
        }
        if server.in_recovery {
            let end = server.end;
            data.redo = end.lsn;
            self.wal_reaches_disk(node, end, Writer::Kernel);
            return self.end_server(node, Ends::Killed);
        }
        if !server.final_record {
            server.final_record = true;
            if self.plan.archive.is_some() {
                self.switch_wal(node);
            }
            self.append(node, RECORD);
            return self.server_after(20, node, Inner::Stopping);
        }
        let sent = server
            .senders
            .values()
            .all(|sender| !sender.streaming || sender.flushed >= server.end.lsn);
        if data.end != server.end || !sent {
            return self.server_after(20, node, Inner::Stopping);
        }
        self.end_server(node, Ends::Clean);
    }

    /// A PostgreSQL ends; its agent, if it lives, is told.
    pub fn end_server(&mut self, node: usize, how: Ends) {
        let keeps = self.random.disk.chance(500);
        let place = &mut self.nodes[node];
        let Some(server) = place.postgres.take() else { return };
        place.postgres_waits.clear();
        let mut reaches_disk = None;
        if let Some(data) = place.volume.data.as_mut() {
            data.clean = how == Ends::Clean;
            if how == Ends::Clean {
                data.redo = data.end.lsn;
            } else if how == Ends::Killed && server.in_recovery
                || how == Ends::Killed && keeps && data.end.branch == server.end.branch
            {
                // WAL that was written and not flushed is in the kernel: of a standby, all that it received. Of a
                // primary's, no other server has seen it.
                reaches_disk = Some(server.end);
            } else if how == Ends::PowerLost && keeps {
                data.files.forget_last_mark();
            }
        }
        if let Some(end) = reaches_disk {
            self.wal_reaches_disk(node, end, Writer::Kernel);
        }
        for sender in server.senders.iter() {
            self.close(node, *sender.0, sender.1.to);
        }
        if let Some(receiver) = &server.receiver {
            self.close(node, receiver.stream, receiver.from);
        }
        let id = server.id;
        self.note(Some(node), || format!("PostgreSQL has ended: {how:?}"));
        self.tell(1, node, News::Seen(Seen::Exited(ServerId(id))));
    }

    /// The other end of a stream learns that it was closed, if it can be reached.
    pub fn close(&mut self, node: usize, stream: u64, other: usize) {
        if let Some(delay) = self.travel(node, other) {
            self.server_after(delay, other, Inner::Closed { stream });
        }
    }
}
