//! A promotion, step by step.

use std::collections::BTreeSet;

use machine::instance::observer::Effect;
use machine::instance::steps::{PromotionStep, Walk};
use machine::instance::{Configured, Mode, Work};
use machine::protocol::{Lsn, MemberId};
use machine::quorum::SyncRule;

use super::archive::Writer;
use super::event::Task;
use super::postgres::{Ends, RECORD};
use super::wal::{End, Written};
use super::world::World;

/// Time limit of a promotion, in milliseconds.
const PROMOTE: u64 = 30_000;

impl World {
    /// A promotion, by the steps of the agent (protocol.md rules 13 and 14); after them the note is removed.
    pub fn promote(
        &mut self,
        node: usize,
        timeline: u32,
        rule: SyncRule,
        members: BTreeSet<MemberId>,
        mut walk: Walk<PromotionStep>,
        begun: u64,
    ) {
        let place = &self.nodes[node];
        let stalls = place.disk.hung > 0 || place.postgres_frozen > 0;
        let standby = place
            .postgres
            .as_ref()
            .is_some_and(|server| server.up && server.in_recovery);
        let is_promoted = walk.has_ended(PromotionStep::Promote);
        if self.now - begun > PROMOTE || !is_promoted && !standby || is_promoted && place.postgres.is_none() {
            // After the promotion is requested, an error stops the server.
            if walk.has_ended(PromotionStep::CheckLease) {
                self.stop_server(node, machine::instance::Stop::Immediate);
            }
            let failure = self.telling_promise(node, "PostgreSQL does not run, or it took too long");
            return self.finish(node, Work::Promote, Err(failure));
        }
        let next = |walk| Task::Promote {
            timeline,
            rule: rule.clone(),
            members: members.clone(),
            walk,
            begun,
        };
        if stalls {
            return self.step_after(50, node, next(walk));
        }
        while let Some(step) = walk.next_step() {
            let delay = match step {
                // The data to be promoted was checked before; a replay takes no time here.
                PromotionStep::CheckStandby | PromotionStep::AwaitReplay => None,
                PromotionStep::KeepSlots => {
                    if let Some(data) = self.nodes[node].volume.data.as_mut() {
                        data.slots.clone_from(&members);
                    }
                    None
                }
                PromotionStep::Note => {
                    self.nodes[node].volume.promoting = Some(timeline);
                    None
                }
                PromotionStep::WriteConfiguration => {
                    self.close_to_all(node, &rule, &members);
                    None
                }
                // The time of all steps that run beside it.
                PromotionStep::ReserveTimeline => Some(self.random.work.between(10, 80)),
                PromotionStep::ProveConfiguration | PromotionStep::EndSessions => None,
                PromotionStep::CheckLease if !self.may_start(node, true) => {
                    let failure = self.telling_promise(node, "it was called off");
                    return self.finish(node, Work::Promote, Err(failure));
                }
                PromotionStep::CheckLease => Some(self.random.work.between(20, 150)),
                PromotionStep::Promote => {
                    self.leave_recovery(node, timeline, &rule);
                    Some(self.disk_delay(node))
                }
                // The oracle has checked it (`check_promotion`).
                PromotionStep::CheckTimeline => None,
            };
            walk.take(step).expect("it is the next one");
            if let Some(delay) = delay {
                return self.step_after(delay, node, next(walk));
            }
        }
        self.nodes[node].volume.promoting = None;
        self.promoted(node, rule);
    }

    /// A primary's configuration, closed: it follows no primary, and only members that keep their slots stay connected.
    fn close_to_all(&mut self, node: usize, rule: &SyncRule, members: &BTreeSet<MemberId>) {
        let place = &mut self.nodes[node];
        let Some(server) = place.postgres.as_mut() else { return };
        (server.rule, server.waits, server.upstream) = (rule.clone(), rule.is_synchronous(), None);
        server.files = (rule.clone(), false);
        let receiver = server.receiver.take().map(|receiver| (receiver.stream, receiver.from));
        let mut streams = Vec::from_iter(receiver);
        server.senders.retain(|stream, sender| {
            let stays = members.contains(&sender.member);
            if !stays {
                streams.push((*stream, sender.to));
            }
            stays
        });
        for sender in server.senders.values_mut() {
            sender.rule.clone_from(rule);
            sender.next = None;
        }
        for (stream, other) in streams {
            self.close(node, stream, other);
        }
    }

    fn leave_recovery(&mut self, node: usize, timeline: u32, rule: &SyncRule) {
        let Some(base) = self.nodes[node].postgres.as_ref().map(|server| server.end) else {
            return;
        };
        if self.nodes[node].disk.full > 0 {
            // FATAL: could not write the history of the new timeline. The data stays a standby's.
            return self.end_server(node, Ends::Killed);
        }
        self.check_promotion(node, base, timeline, rule);
        self.wal_reaches_disk(node, base, Writer::Kernel);
        self.note_begin_of_copy(node, base);
        let branch = self.wal.0.len();
        self.wal.0.push(Written {
            timeline,
            base: Some(base),
            acknowledged: 0,
            ever: 0,
        });
        let end = End { branch, lsn: base.lsn };
        let size = self.segment();
        let place = &mut self.nodes[node];
        if let (Some(server), Some(data)) = (place.postgres.as_mut(), place.volume.data.as_mut()) {
            (server.end, server.in_recovery, server.mode, server.flushing) = (end, false, Mode::Primary, false);
            server.in_doubt = end.lsn;
            (data.end, data.primary, data.redo) = (end, true, end.lsn);
            if let Some(size) = size {
                data.files.promote(&self.wal, size, base, timeline);
            }
        }
        self.note(Some(node), || {
            format!("promoted to timeline {timeline} at {:X}", base.lsn)
        });
        self.wake_archiver(node);
        self.append(node, RECORD);
    }

    fn promoted(&mut self, node: usize, rule: SyncRule) {
        let (promise, asked, status) = (self.promise_on(node), self.boot_time(node), self.status(node));
        let server = self.nodes[node].postgres.as_ref();
        let (Some(status), Some(server)) = (status, server) else {
            let failure = self.telling_promise(node, "PostgreSQL does not answer");
            return self.finish(node, Work::Promote, Err(failure));
        };
        let promoted = Effect::Promoted {
            rule,
            configured: Configured {
                settings: server.configured.clone(),
                upstream: None,
                raised: None,
            },
            in_doubt: Lsn(server.in_doubt),
            promise,
            status: Box::new(status),
            asked,
        };
        self.finish(node, Work::Promote, Ok(promoted));
    }
}
