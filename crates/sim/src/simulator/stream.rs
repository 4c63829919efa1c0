//! Streaming replication: connections, WAL, reports, and acknowledgement of commits.

use machine::instance::Mode;
use machine::protocol::MemberId;
use machine::quorum::SyncRule;

use super::archive::Writer;
use super::event::Inner;
use super::postgres::{Deaf, Receiver, SEGMENT, Sender, Server, TICK};
use super::wal::End;
use super::world::World;

/// How long until a WAL sender ends that hears nothing of its standby, in milliseconds: `wal_sender_timeout`, as the
/// agent sets it.
const SENDER_LIMIT: u64 = 5_000;
/// How long after a stream ended or failed the next one is tried, in milliseconds: `wal_retrieve_retry_interval`, as
/// the agent sets it.
const RETRY: u64 = 50;
/// How long until TCP repeats an unanswered connection request, in milliseconds.
const SYN: u64 = 1_000;

impl World {
    /// WAL senders send flushed WAL, or a keep-alive, and end when their standby is silent; WAL receivers end when the
    /// primary is silent.
    pub fn look_at_streams(&mut self, node: usize) {
        let suspect = self.plan.timing.suspect();
        let (now, boot) = (self.now, self.boot_time(node));
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return;
        };
        if server.in_recovery {
            let silent = server
                .receiver
                .as_ref()
                .filter(|receiver| !receiver.flushing && boot.since(receiver.heard) > suspect);
            if silent.is_some() {
                self.end_receiver(node);
            }
            self.connect(node);
        }
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return;
        };
        let silent: Vec<_> = server
            .senders
            .iter()
            .filter(|(_, sender)| now - sender.heard > SENDER_LIMIT)
            .map(|(stream, sender)| (*stream, sender.to))
            .collect();
        for (stream, to) in silent {
            self.end_sender(node, stream);
            self.close(node, stream, to);
        }
        // A standby requests a reply after half of the time after which silence ends its stream.
        self.send_wal_after(node, (suspect.0 / 2).saturating_sub(TICK));
    }

    pub fn end_sender(&mut self, node: usize, stream: u64) {
        if let Some(server) = self.server(node) {
            server.senders.remove(&stream);
        }
    }

    /// A standby without a WAL receiver starts one, if it has an upstream and the credential for it.
    pub fn connect(&mut self, node: usize) {
        let (stream, heard) = (self.counter + 1, self.boot_time(node));
        let place = &mut self.nodes[node];
        let Some(member) = place.volume.member.clone().filter(|_| place.volume.credential) else {
            return;
        };
        let Some(server) = place.postgres.as_mut() else { return };
        let (Some(from), Mode::Standby, None, None, None) =
            (server.upstream, server.mode, &server.receiver, server.stop, server.deaf)
        else {
            return;
        };
        server.receiver = Some(Receiver {
            stream,
            from,
            connected: false,
            heard,
            flushing: false,
            unread: None,
            ending: false,
        });
        let has = server.end;
        self.counter = stream;
        match self.travel(node, from) {
            Some(delay) if self.nodes[from].postgres.is_some() => {
                let asks = Inner::Connect {
                    from: node,
                    stream,
                    has,
                    member,
                };
                self.server_after(delay, from, asks);
            }
            Some(delay) if self.nodes[from].sandbox.is_there() => {
                self.server_after(2 * delay, node, Inner::Closed { stream });
            }
            _ => self.server_after(SYN, node, Inner::Closed { stream }),
        }
    }

    /// A WAL receiver ends once it has flushed what it has written. The next one starts soon, or at once if the
    /// upstream changed.
    pub fn end_receiver(&mut self, node: usize) {
        let Some(server) = self.server(node) else { return };
        let upstream = server.upstream;
        let Some(receiver) = server.receiver.as_mut() else {
            return self.server_after(RETRY, node, Inner::Receive);
        };
        if receiver.flushing {
            receiver.ending = true;
            return;
        }
        let (stream, from) = (receiver.stream, receiver.from);
        server.receiver = None;
        self.close(node, stream, from);
        self.server_after(if upstream == Some(from) { RETRY } else { 1 }, node, Inner::Receive);
    }

    /// A standby loses its stream, and its upstream or the means to follow it.
    pub fn lose_upstream(&mut self, node: usize, how: usize) {
        let Some(server) = self.server(node).filter(|server| server.mode == Mode::Standby) else {
            return;
        };
        match how % 3 {
            0 => server.upstream = None,
            1 => server.deaf = Some(Deaf::UntilConfigured),
            _ => server.deaf = Some(Deaf::UntilStarted),
        }
        self.end_receiver(node);
    }

    pub fn connect_arrives(&mut self, node: usize, from: usize, stream: u64, has: End, member: MemberId) {
        let now = self.now;
        let slot = self.nodes[node]
            .volume
            .data
            .as_ref()
            .is_some_and(|data| data.slots.contains(&member));
        let wal = &self.wal;
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return;
        };
        // Standbys send their WAL too.
        let serves = server.up && server.stop.is_none();
        if !serves || !slot {
            return self.close(node, stream, from);
        }
        let whole = wal.contains(server.end, has);
        let common = wal.common(has, server.end);
        if !whole && (common.branch != has.branch || common.lsn < has.lsn - has.lsn % SEGMENT) {
            return self.close(node, stream, from);
        }
        // One WAL sender per slot.
        server.senders.retain(|_, sender| sender.member != member);
        let sender = Sender {
            to: from,
            member,
            streaming: false,
            // It has not reported yet.
            flushed: 0,
            rule: server.rule.clone(),
            next: None,
            replies: 0,
            heard: now,
            sent: now,
        };
        server.senders.insert(stream, sender);
        if !whole {
            // It requests WAL from the beginning of its segment, is sent what comes before the fork, and meanwhile
            // reports that it has flushed all that it has: PostgreSQL counts that.
            self.counted_wrongly(node, from, common, has);
            self.reply_arrives(node, stream, has.lsn);
            self.end_sender(node, stream);
            return self.close(node, stream, from);
        }
        if let Some(delay) = self.travel(node, from) {
            self.server_after(delay, from, Inner::Connected { stream });
        }
        self.send_wal(node);
    }

    pub fn connected(&mut self, node: usize, stream: u64) {
        let heard = self.boot_time(node);
        if let Some(receiver) = self.server(node).and_then(|server| server.receiver.as_mut())
            && receiver.stream == stream
        {
            (receiver.connected, receiver.heard) = (true, heard);
        }
    }

    pub fn closed(&mut self, node: usize, stream: u64) {
        let Some(server) = self.server(node) else { return };
        server.senders.remove(&stream);
        if server
            .receiver
            .as_ref()
            .is_some_and(|receiver| receiver.stream == stream)
        {
            self.end_receiver(node);
        }
    }

    /// Sends flushed WAL to all standbys. Lost messages are part of the next one.
    pub fn send_wal(&mut self, node: usize) {
        self.send_wal_after(node, 0);
    }

    /// The same, only to standbys to which nothing was sent for this long.
    fn send_wal_after(&mut self, node: usize, silence: u64) {
        let now = self.now;
        let place = &mut self.nodes[node];
        let (Some(server), Some(data)) = (
            place.postgres.as_mut().filter(|server| server.up),
            place.volume.data.as_ref(),
        ) else {
            return;
        };
        let upto = data.end;
        let due = server
            .senders
            .iter_mut()
            .filter(|(_, sender)| now - sender.sent >= silence);
        let streams: Vec<_> = due
            .map(|(stream, sender)| {
                sender.sent = now;
                (*stream, sender.to)
            })
            .collect();
        for (stream, to) in streams {
            let Some(delay) = self.travel(node, to) else { continue };
            match self.is_received(to, stream) {
                true => self.server_after(delay, to, Inner::Wal { stream, upto }),
                // The kernel there knows no such connection.
                false if self.nodes[to].sandbox.is_there() => {
                    self.server_after(2 * delay, node, Inner::Closed { stream });
                }
                false => {}
            }
        }
    }

    fn is_received(&self, node: usize, stream: u64) -> bool {
        let server = self.nodes[node].postgres.as_ref();
        let receiver = server.and_then(|server| server.receiver.as_ref());
        receiver.is_some_and(|receiver| receiver.stream == stream)
    }

    pub fn wal_arrives(&mut self, node: usize, stream: u64, upto: End) {
        let (boot, full) = (self.boot_time(node), self.nodes[node].disk.full > 0);
        let delay = self.disk_delay(node);
        let wal = &self.wal;
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return;
        };
        let Some(receiver) = server.receiver.as_mut().filter(|receiver| receiver.stream == stream) else {
            return;
        };
        if receiver.flushing {
            receiver.unread = Some(upto);
            return;
        }
        (receiver.heard, receiver.connected) = (boot, true);
        if full {
            return;
        }
        if wal.contains(upto, server.end) && upto != server.end {
            server.end = upto;
        }
        receiver.flushing = true;
        let upto = server.end;
        self.server_after(delay, node, Inner::ReceivedFlushed { stream, upto });
    }

    pub fn received_flushed(&mut self, node: usize, stream: u64, upto: End) {
        if self.nodes[node].disk.hung > 0 {
            return self.server_after(50, node, Inner::ReceivedFlushed { stream, upto });
        }
        let Some(data) = self.nodes[node].volume.data.as_ref() else {
            return;
        };
        if self.wal.contains(upto, data.end) {
            self.wal_reaches_disk(node, upto, Writer::Stream(stream));
        }
        let Some(server) = self.server(node) else { return };
        let Some(receiver) = server.receiver.as_mut().filter(|receiver| receiver.stream == stream) else {
            return;
        };
        receiver.flushing = false;
        let (from, unread, ending) = (receiver.from, receiver.unread.take(), receiver.ending);
        if let Some(delay) = self.travel(node, from) {
            self.server_after(
                delay,
                from,
                Inner::Reply {
                    stream,
                    flushed: upto.lsn,
                },
            );
        }
        match unread {
            _ if ending => self.end_receiver(node),
            Some(upto) => self.wal_arrives(node, stream, upto),
            None => {}
        }
        self.send_wal(node);
    }

    /// A WAL sender processes a report, and releases the commits that waited for it, by the setting that it uses
    /// itself.
    pub fn reply_arrives(&mut self, node: usize, stream: u64, flushed: u64) {
        let now = self.now;
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return;
        };
        let Some(sender) = server.senders.get_mut(&stream) else {
            return;
        };
        match &mut sender.next {
            // It may have been about to process the report when the setting came.
            Some((_, reported @ false)) => *reported = true,
            _ => sender.read_setting(),
        }
        (sender.flushed, sender.heard) = (sender.flushed.max(flushed), now);
        (sender.streaming, sender.replies) = (true, sender.replies + 1);
        let rule = sender.rule.clone();
        if !rule.names.contains(&sender.member) {
            return;
        }
        let Some(upto) = released(server, &rule) else { return };
        self.acknowledge(node, upto);
    }

    /// Commits that wait for no standby are acknowledged once they are flushed.
    pub fn acknowledge_alone(&mut self, node: usize) {
        let place = &self.nodes[node];
        let (Some(server), Some(data)) = (&place.postgres, &place.volume.data) else {
            return;
        };
        if !server.waits && !server.in_recovery {
            let upto = data.end.lsn;
            self.acknowledge(node, upto);
        }
    }

    fn acknowledge(&mut self, node: usize, upto: u64) {
        let flushed = self.nodes[node].volume.data.as_ref().map_or(0, |data| data.end.lsn);
        let upto = upto.min(flushed);
        loop {
            let Some(server) = self.nodes[node].postgres.as_mut() else {
                return;
            };
            let branch = server.end.branch;
            let due = server.commits.front().is_some_and(|commit| commit.end <= upto);
            let Some(commit) = due.then(|| server.commits.pop_front()).flatten() else {
                return;
            };
            let end = End {
                branch,
                lsn: commit.end,
            };
            self.check_acknowledged(node, end);
            self.answer_client(node, commit.client, commit.write);
        }
    }
}

/// Up to where a WAL sender that uses `rule` releases commits: `required` standbys that count themselves in have
/// flushed that.
fn released(server: &Server, rule: &SyncRule) -> Option<u64> {
    if !rule.is_synchronous() {
        return None;
    }
    // Each WAL sender counts itself in by its own setting; the number is that of the one that processes a report.
    let counted = server
        .senders
        .values()
        .filter(|sender| sender.streaming && sender.rule.names.contains(&sender.member));
    let mut ends: Vec<u64> = counted.map(|sender| sender.flushed).collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.get(rule.required - 1).copied()
}
