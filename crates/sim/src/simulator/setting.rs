//! A change of `synchronous_standby_names`, and its proof.

use std::collections::BTreeMap;

use machine::instance::Work;
use machine::protocol::Lsn;
use machine::quorum::SyncRule;

use super::event::{Inner, Task};
use super::postgres::RECORD;
use super::world::World;

/// The longest that the proof may take, in milliseconds.
const PROOF: u64 = 8_000;
/// After this time a WAL sender whose standby does not report, and that the rule does not name, is ended.
const PATIENCE: u64 = 1_000;
/// Reports that prove a setting.
const REPORTS: u64 = 2;

impl World {
    /// Rule 11: the files; each WAL sender reads them in its time; done when each has processed two reports since, or is newer.
    pub fn set_sync(&mut self, node: usize, rule: SyncRule, stage: u8, begun: u64, mut streams: BTreeMap<u64, u64>) {
        let stalls = self.nodes[node].postgres_frozen > 0;
        let elapsed = self.now - begun;
        let Some(server) = self.nodes[node]
            .postgres
            .as_mut()
            .filter(|server| server.up && !server.in_recovery)
        else {
            return self.finish(node, Work::SetSync, Err("PostgreSQL does not answer".to_owned()));
        };
        if stage == 0 && !stalls {
            server.rule = rule.clone();
            server.waits = rule.is_synchronous();
            streams = server
                .senders
                .iter()
                .map(|(stream, sender)| (*stream, sender.replies))
                .collect();
            for stream in streams.keys() {
                let delay = self.random.work.between(0, 30);
                self.server_after(
                    delay,
                    node,
                    Inner::Reload {
                        stream: *stream,
                        rule: rule.clone(),
                    },
                );
            }
            if !rule.is_synchronous() {
                self.acknowledge_alone(node);
            }
            return self.step_after(
                40,
                node,
                Task::SetSync {
                    rule,
                    stage: 1,
                    begun,
                    streams,
                },
            );
        }
        let left = streams.iter().filter(|(stream, replies)| {
            server
                .senders
                .get(stream)
                .is_some_and(|sender| sender.rule != rule || sender.replies < *replies + REPORTS)
        });
        let left: Vec<u64> = left.map(|(stream, _)| *stream).collect();
        if stage == 1 && left.is_empty() && !stalls {
            let at = server.end.lsn;
            let Some(agent) = self.nodes[node].agent.as_mut() else {
                return;
            };
            agent.observed.postgres.sync = machine::instance::SyncSetting {
                proven: rule,
                proven_at: Lsn(at),
                pending: None,
            };
            return self.finish(node, Work::SetSync, Ok(()));
        }
        if elapsed > PROOF {
            return self.finish(node, Work::SetSync, Err("no proof".to_owned()));
        }
        let mut ended = Vec::new();
        if elapsed > PATIENCE && !stalls {
            for stream in left {
                let stranger = server
                    .senders
                    .get(&stream)
                    .is_some_and(|sender| !rule.names.contains(&sender.member));
                if let (true, Some(sender)) = (stranger, server.senders.remove(&stream)) {
                    ended.push((stream, sender.to));
                }
            }
        }
        for (stream, to) in ended {
            self.close(node, stream, to);
        }
        if !stalls {
            self.append(node, RECORD);
        }
        self.step_after(
            60,
            node,
            Task::SetSync {
                rule,
                stage,
                begun,
                streams,
            },
        );
    }
}
