//! PostgreSQL: its starts, its ends, and its answers.

use std::collections::BTreeSet;

use super::{Following, NoAnswer, Note, Observer, Server, ServerId, Status};
use crate::instance::{Answer, Configured, Exit, Mode, PostgresView, Process, SyncSetting};
use crate::protocol::Lsn;
use crate::quorum::SyncRule;
use crate::timing::BootTime;

/// How many questions in a row must stay unanswered before PostgreSQL counts as not answering: slow is not dead.
const SILENT: u32 = 3;

impl PostgresView {
    /// True if it was started as a primary and has left recovery, by this answer.
    pub(super) fn writes(&self, answer: Answer) -> bool {
        self.process == Process::Running { mode: Mode::Primary } && !answer.in_recovery
    }
}

impl Observer {
    /// Takes an answer of `server`, or its absence. An answer to a question from before a change of settings says
    /// nothing about them, and is dropped.
    pub(super) fn answered(
        &mut self,
        server: ServerId,
        asked: BootTime,
        answer: Result<Box<Status>, NoAnswer>,
    ) -> Option<Note> {
        if self.server() != Some(server) || asked < self.configured_at {
            return None;
        }
        let words = match answer {
            Ok(status) => {
                self.take_answer(*status, asked);
                let postgres = &self.observed.postgres;
                let configured = postgres.configured.as_ref();
                let proved = configured.is_some_and(|configured| configured.settings != postgres.good_settings);
                return proved.then_some(Note::SettingsProved);
            }
            Err(NoAnswer::Silent) => {
                self.silent += 1;
                if self.silent != SILENT {
                    return None;
                }
                let postgres = &mut self.observed.postgres;
                (postgres.answer, postgres.refusal) = (None, None);
                return Some(Note::Silent);
            }
            Err(NoAnswer::Refused(words)) => Some(words),
            Err(NoAnswer::Unable) => None,
        };
        let postgres = &mut self.observed.postgres;
        postgres.refusal = words;
        postgres.answer.take().map(|_| Note::Unanswered)
    }

    /// Takes PostgreSQL's answer to a question that was sent at `asked`.
    pub(super) fn take_answer(&mut self, status: Status, asked: BootTime) {
        let answer = self.answer(&status, asked);
        self.heard = answer.heard;
        self.silent = 0;
        let postgres = &mut self.observed.postgres;
        let writes = postgres.writes(answer);
        postgres.streamed |= answer.streaming;
        (postgres.answer, postgres.refusal) = (Some(answer), None);
        postgres.receiver = status.receiver.map(|receiver| receiver.status);
        postgres.slots = status.slots;
        let end = writes.then(|| status.inserted.unwrap_or(status.position.lsn));
        postgres.take_senders(&status.senders, end, asked);
        postgres.oldest = status.oldest.filter(|_| writes);
        let Some(end) = end else { return };
        postgres.history = status.history;
        // A member whose slot has lost its WAL is admitted again, with a new slot.
        self.observed
            .admitted
            .retain(|member| !status.lost_slots.contains(member));
        if postgres.in_doubt.is_none() {
            // It has just left recovery: earlier WAL is flushed.
            postgres.in_doubt = Some(end);
            postgres.sync.proven_at = postgres.sync.proven_at.min(end);
            postgres.wrote = postgres.wrote.max(Some(asked));
        }
    }

    fn answer(&self, status: &Status, asked: BootTime) -> Answer {
        let receiver = status.receiver.as_ref();
        let age = receiver.and_then(|receiver| receiver.heard_age);
        let heard = age.map(|age| asked.minus(age));
        Answer {
            asked,
            in_recovery: status.in_recovery,
            position: Some(status.position),
            begins: status.begins,
            replayed: status.replayed,
            streaming: receiver.is_some_and(|receiver| receiver.status == "streaming"),
            waits_for_wal: status.waits_for_wal,
            other_upstream: status.in_recovery && status.following != self.following,
            heard: heard.max(self.heard),
            received_all: status.received_all,
            knows_end: status.knows_end,
            pending_restart: status.pending_restart,
            lowers_limits: status.lowers_limits,
        }
    }

    /// Takes the start of `server` in `mode`. `ended`: its end was seen before its start was reported.
    pub(super) fn started(
        &mut self,
        (server, ended): (ServerId, bool),
        mode: Mode,
        (configured, following): (Configured, Following),
        rule: SyncRule,
        now: BootTime,
    ) -> Option<Note> {
        self.following = following;
        self.raised(&configured);
        self.server = Some(Server {
            id: server,
            since: now,
            asked: false,
        });
        self.stopped(None);
        self.observed.postgres.process = Process::Running { mode };
        self.observed.postgres.configured = Some(configured);
        let note = if ended { self.exited(server, now) } else { None };
        self.observed.forget_overtaken_upstream();
        self.closed_with(rule);
        note
    }

    /// Takes the end of a server.
    pub(super) fn exited(&mut self, server: ServerId, now: BootTime) -> Option<Note> {
        let Server { since, asked, .. } = self.server.take_if(|running| running.id == server)?;
        let exit = Exit {
            at: now,
            ran: now.since(since),
            asked,
        };
        self.stopped(Some(exit));
        Some(Note::Ended { server, exit })
    }

    fn stopped(&mut self, exit: Option<Exit>) {
        let postgres = &mut self.observed.postgres;
        postgres.process = Process::Stopped { exit };
        (postgres.answer, postgres.refusal) = (None, None);
        postgres.streamed = false;
        postgres.open = false;
        postgres.in_doubt = None;
        postgres.sync = SyncSetting::default();
        postgres.standbys.clear();
        postgres.receiving.clear();
        (postgres.impostors, postgres.doubt) = (BTreeSet::new(), None);
        postgres.slots.clear();
        (postgres.wrote, postgres.greeted) = (None, None);
        postgres.history.clear();
        self.heard = None;
        self.silent = 0;
    }

    /// Takes a configuration that PostgreSQL runs with, and its answer after that.
    pub(super) fn configured(&mut self, configured: Configured, status: Status, asked: BootTime) {
        self.raised(&configured);
        self.observed.postgres.configured = Some(configured);
        self.observed.forget_overtaken_upstream();
        self.take_answer(status, asked);
        self.configured_at = asked;
    }

    /// Takes the end of a promotion.
    pub(super) fn promoted(
        &mut self,
        rule: SyncRule,
        configured: Configured,
        in_doubt: Lsn,
        status: Status,
        asked: BootTime,
    ) {
        if self.server.is_none() {
            return;
        }
        self.observed.postgres.process = Process::Running { mode: Mode::Primary };
        self.closed_with(rule);
        let postgres = &mut self.observed.postgres;
        (postgres.in_doubt, postgres.wrote) = (Some(in_doubt), Some(asked));
        postgres.sync.proven_at = in_doubt;
        self.configured(configured, status, asked);
    }

    pub(super) fn follows(&mut self, following: Following) {
        self.following = following;
    }

    /// Every WAL sender of the running server uses `rule`, proven when its WAL ended at `at`.
    pub(super) fn synced(&mut self, rule: SyncRule, at: Lsn) {
        if self.server.is_some() {
            self.observed.postgres.sync = SyncSetting {
                proven: rule,
                proven_at: at,
                pending: None,
            };
        }
    }

    /// A primary begins closed to applications, with `rule` in force from its first WAL sender on.
    fn closed_with(&mut self, rule: SyncRule) {
        self.observed.postgres.open = false;
        self.observed.postgres.sync = SyncSetting {
            proven: rule,
            // Measured when it has left recovery; no standby has flushed it yet.
            proven_at: Lsn(u64::MAX),
            pending: None,
        };
    }

    /// Notes that limits were raised to what the control file demanded.
    fn raised(&mut self, configured: &Configured) {
        let enforced = &mut self.observed.postgres.enforced;
        *enforced = configured.raised.unwrap_or(*enforced);
    }
}
