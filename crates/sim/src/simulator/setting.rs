//! A change of `synchronous_standby_names`, and its proof.

use std::collections::BTreeMap;

use machine::instance::Work;
use machine::instance::observer::{Effect, Failure};
use machine::protocol::Lsn;
use machine::quorum::SyncRule;

use super::event::{Change, Inner, Task};
use super::postgres::RECORD;
use super::world::World;

/// Time limit of the proof, with the checkpoint before it, in milliseconds.
const PROOF: u64 = 8_000;
const CHECKPOINT: u64 = 120_000;
/// Time limit of a new session that shows what is in force, in milliseconds.
const SESSION: u64 = 2_000;
/// How soon the checkpointer notices that commits wait, or no longer do, in milliseconds; a checkpoint may delay it.
const NOTICED: u64 = 200;
/// How long until a WAL sender that the rule does not name is ended because its standby does not report, in
/// milliseconds.
const LIMIT: u64 = 1_000;
/// How many reports prove a setting.
const REPORTS: u64 = 2;

impl World {
    /// Rule 11: write the files; each WAL sender reads them in its time; make a checkpoint if commits waited for no
    /// standby before. It is done when each WAL sender has processed two reports since, or is newer.
    pub fn set_sync(&mut self, node: usize, change: Change) {
        let Change {
            rule,
            checkpoint,
            mut stage,
            mut begun,
            mut streams,
        } = change;
        let stalls = self.nodes[node].postgres_frozen > 0;
        let now = self.now;
        let Some(server) = self.nodes[node]
            .postgres
            .as_mut()
            .filter(|server| server.up && !server.in_recovery)
        else {
            return self.finish(node, Work::SetSync, Err(Failure::said("PostgreSQL does not answer")));
        };
        let limit = match stage {
            0 => SESSION,
            1 => CHECKPOINT,
            _ => PROOF,
        };
        if now - begun > limit {
            return self.finish(node, Work::SetSync, Err(Failure::said("no proof")));
        }
        if stage == 0 {
            server.files.0.clone_from(&rule);
        }
        match stage {
            _ if stalls => {}
            0 => {
                self.take_up(node);
                (stage, begun) = (1, now);
            }
            1 if checkpoint && !server.waits => {}
            1 => {
                server.impostors.clear();
                let senders = server.senders.iter();
                streams = senders.map(|(stream, sender)| (*stream, sender.replies)).collect();
                (stage, begun) = (2, now);
                self.append(node, RECORD);
            }
            _ if self.is_proven(node, &rule, &streams, now - begun) => return self.proven(node, rule),
            _ => {
                self.append(node, RECORD);
            }
        }
        let change = Change {
            rule,
            checkpoint,
            stage,
            begun,
            streams,
        };
        self.step_after(60, node, Task::SetSync(change));
    }

    /// A primary reads its files again.
    pub fn take_up(&mut self, node: usize) {
        let Some(server) = self.server(node) else { return };
        let (rule, open) = server.files.clone();
        if open && !std::mem::replace(&mut server.open, true) {
            self.opened(node);
        }
        let Some(server) = self.server(node) else { return };
        if server.rule == rule {
            return;
        }
        server.rule = rule.clone();
        for sender in server.senders.values_mut() {
            sender.next = Some((rule.clone(), false));
        }
        let streams: Vec<u64> = server.senders.keys().copied().collect();
        for stream in streams {
            let delay = self.random.work.between(0, 30);
            self.server_after(delay, node, Inner::Reload { stream });
        }
        let delay = self.random.work.between(0, NOTICED);
        self.server_after(delay, node, Inner::Waits);
    }

    /// The checkpointer has read the setting.
    pub fn setting_noticed(&mut self, node: usize) {
        if self.nodes[node].disk.hung > 0 {
            return self.server_after(50, node, Inner::Waits);
        }
        if let Some(server) = self.server(node) {
            server.waits = server.rule.is_synchronous();
        }
        self.acknowledge_alone(node);
    }

    /// True if each WAL sender has processed two reports since, or is gone. One that is not in the rule and whose
    /// standby is silent is ended.
    fn is_proven(&mut self, node: usize, rule: &SyncRule, streams: &BTreeMap<u64, u64>, elapsed: u64) -> bool {
        let Some(server) = self.server(node) else { return false };
        let left = |(stream, replies): (&u64, &u64)| {
            let sender = server.senders.get(stream)?;
            let stranger = !rule.names.contains(&sender.member);
            (sender.replies < *replies + REPORTS).then_some((*stream, sender.to, stranger))
        };
        let left: Vec<_> = streams.iter().filter_map(left).collect();
        let patient = elapsed <= LIMIT;
        for (stream, to, _) in left.iter().filter(|(.., stranger)| *stranger && !patient) {
            self.end_sender(node, *stream);
            self.close(node, *stream, *to);
        }
        left.is_empty()
    }

    fn proven(&mut self, node: usize, rule: SyncRule) {
        let at = Lsn(self.nodes[node].postgres.as_ref().map_or(0, |server| server.end.lsn));
        self.finish(node, Work::SetSync, Ok(Effect::Synced { rule, at }));
    }
}
