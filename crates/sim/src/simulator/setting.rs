//! A change of `synchronous_standby_names`, and its proof.

use std::collections::BTreeMap;

use machine::instance::Work;
use machine::instance::observer::{Effect, Failure};
use machine::protocol::Lsn;
use machine::quorum::SyncRule;

use super::event::{Change, Inner, Task};
use super::postgres::RECORD;
use super::world::World;

/// The longest that the proof may take, in milliseconds, and the checkpoint before it.
const PROOF: u64 = 8_000;
const CHECKPOINT: u64 = 120_000;
/// For so long a new session is waited for that shows what is in force, in milliseconds.
const SESSION: u64 = 2_000;
/// The checkpointer sees to it, that commits wait or not, within so many milliseconds; it may have a checkpoint to end.
const NOTICED: u64 = 200;
/// After this time a WAL sender whose standby does not report, and that the rule does not name, is ended.
const PATIENCE: u64 = 1_000;
/// Reports that prove a setting.
const REPORTS: u64 = 2;

impl World {
    /// Rule 11: the files; each WAL sender reads them in its time; a checkpoint, where nobody was waited for; done when each WAL sender has
    /// processed two reports since, or is newer.
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

    /// A primary reads its files.
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

    /// Each WAL sender has processed two reports since, or is gone; one whose standby is silent, and not named, is ended.
    fn is_proven(&mut self, node: usize, rule: &SyncRule, streams: &BTreeMap<u64, u64>, elapsed: u64) -> bool {
        let Some(server) = self.server(node) else { return false };
        let left = |(stream, replies): (&u64, &u64)| {
            let sender = server.senders.get(stream)?;
            let stranger = !rule.names.contains(&sender.member);
            (sender.replies < *replies + REPORTS).then_some((*stream, sender.to, stranger))
        };
        let left: Vec<_> = streams.iter().filter_map(left).collect();
        let patient = elapsed <= PATIENCE;
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
