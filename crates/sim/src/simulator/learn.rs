//! What an agent makes of what it hears: the bookkeeping of `agent::observe`.

use std::rc::Rc;

use machine::instance::{
    Answer, Contact, Exit, LeaseVersion, Mode, Process, Promise, Proven, Reading, Route, SyncSetting, Work, heard,
};
use machine::protocol::{Epoch, LeaseRecord, Lsn, Volume};
use machine::timing::BootTime;

use super::agent::Agent;
use super::api::{Loss, LostLease};
use super::event::{Answered, Body, News};
use super::names::{CLUSTER, number};
use super::status::Status;
use super::world::World;

impl World {
    /// An agent takes in what it hears.
    pub fn learn(&mut self, node: usize, news: News) {
        let now = self.boot_time(node);
        let route = self.api.route;
        let full = self.nodes[node].disk.full > 0;
        let view = match &news {
            News::Done { .. } => Some(self.promise_on(node)),
            _ => None,
        };
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        match news {
            News::Lease(record) => agent.lease_version(&record, now),
            News::LostLease(lost) => agent.lease_is_lost(&lost, now),
            // What a watch begins with may come later than what it tells then.
            News::Cluster(spec) if spec.version < agent.spec => {}
            News::Cluster(spec) => {
                (agent.spec, agent.observed.cluster) = (spec.version, Reading::Is(spec.view(node)));
            }
            News::Written { call, outcome } => agent.lease_written(call, outcome, now),
            News::Read { call, record } => {
                if agent.calls.remove(&call).is_some() {
                    agent.ended(Work::ReadLease, Ok(()), now);
                    agent.lease_version(&record, now);
                }
            }
            News::Late { call } => agent.late(call, now),
            News::Scanned(view) => {
                agent.looking = false;
                if agent.observed.tasks.volume.running.is_none() {
                    agent.scanned(*view);
                }
            }
            News::Exited { server } => agent.exited(server, now),
            News::Status { server, asked, status } => agent.answered(server, asked, status),
            News::Wrote { server, begun } => {
                if agent.server.is_some_and(|(id, ..)| id == server) {
                    let wrote = &mut agent.observed.postgres.wrote;
                    *wrote = (*wrote).max(Some(begun));
                }
            }
            News::Done { work, result } => {
                if work == Work::Route && result.is_ok() {
                    agent.observed.route = route.map(|(to, epoch)| Route {
                        address: super::names::address(to),
                        epoch: Epoch(epoch),
                    });
                }
                if result.is_err()
                    && let Some(promise) = view
                {
                    agent.promised(promise, now);
                }
                agent.ended(work, result, now);
            }
            News::VolumeDone { work, view, result } => {
                if matches!(work, Work::Rewind | Work::Clone | Work::SetAside) {
                    // Slots are not copied.
                    agent.observed.admitted.clear();
                }
                agent.ended(work, result, now);
                agent.scanned(*view);
            }
            News::Answer { call, from, body, key } => agent.peer_answered(call, from, *body, key.as_deref(), now),
            News::Request {
                from,
                from_run,
                call,
                body,
                key,
            } => {
                let sender = (from, from_run, call);
                self.asked(node, sender, *body, key.as_deref(), now);
            }
            News::Look => agent.killing = false,
            News::Room => agent.observed.full = full.then_some(Volume::Wal).into_iter().collect(),
            News::Terminate => agent.observed.terminating = true,
        }
    }

    fn asked(
        &mut self,
        node: usize,
        (from, from_run, call): (usize, u32, u64),
        body: Body,
        proven: Proven,
        now: BootTime,
    ) {
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let answer = match body {
            Body::Report(request) => {
                Answered::Report(heard::report(&mut agent.observed, &agent.memo, now, *request, proven))
            }
            Body::Promise(request) => match heard::candidate(&mut agent.observed, &request, proven, now) {
                Ok(()) => return agent.hold(request, from, from_run, call, now),
                Err(reason) => Answered::Promise(Err(reason)),
            },
            Body::Failsafe(request) => Answered::Failsafe(heard::holder(&mut agent.observed, now, &request, proven)),
        };
        self.answer_peer(node, from, from_run, call, answer);
    }
}

fn place(uid: &str, version: u64) -> LeaseVersion {
    LeaseVersion {
        uid: uid.to_owned(),
        version: version.to_string(),
        owner: Some(CLUSTER.to_owned()),
    }
}

impl Agent {
    /// Takes a version of the Lease, unless a newer one is known.
    pub fn lease_version(&mut self, record: &Rc<LeaseRecord>, now: BootTime) {
        let version = record.version.parse().unwrap_or(0);
        if version < self.version {
            return;
        }
        self.version = version;
        let lease = &mut self.observed.lease;
        let before = lease.record.clone();
        lease.see(
            Some((place(&record.uid, version), Some(LeaseRecord::clone(record)))),
            now,
        );
        let (before, Reading::Is(record)) = (before.is(), &lease.record) else {
            return;
        };
        let tenancy = |record: &LeaseRecord| {
            (
                record.holder.as_ref().map(|holder| holder.incarnation.run.clone()),
                record.epoch,
            )
        };
        let life = |record: &LeaseRecord| {
            (
                record.holder.as_ref().map(|holder| holder.incarnation.identity()),
                record.renewal.clone(),
                record.epoch,
            )
        };
        if before.is_none_or(|before| tenancy(before) != tenancy(record)) {
            lease.holder_since = now;
            self.observed.contact = Contact::default();
        }
        if before.is_none_or(|before| life(before) != life(record)) {
            lease.changed = now;
        }
    }

    /// The Lease is gone, or there is one that says nothing that can be understood.
    fn lease_is_lost(&mut self, lost: &LostLease, now: BootTime) {
        if lost.version < self.version {
            return;
        }
        self.version = lost.version;
        let place = place(&lost.uid, lost.version);
        let found = match lost.how {
            Loss::Gone => None,
            Loss::Scribbled => Some((place, None)),
            Loss::Empty => {
                let record = LeaseRecord::empty(&place.uid, &place.version);
                Some((place, Some(record)))
            }
        };
        self.observed.lease.see(found, now);
    }

    /// Work has ended.
    pub fn ended(&mut self, work: Work, result: Result<(), String>, now: BootTime) {
        let task = self.observed.tasks.of_mut(work);
        (task.running, task.ended) = (None, now);
        match result {
            Ok(()) => (task.failures, task.error) = (0, None),
            Err(error) => (task.failures, task.error) = (task.failures.saturating_add(1), Some(error)),
        }
        if work == Work::Promote
            && task.failures > 0
            && let Some(configured) = &mut self.observed.postgres.configured
        {
            configured.settings.clear();
            configured.upstream = None;
        }
    }

    pub fn scanned(&mut self, mut view: machine::instance::VolumeView) {
        if self.observed.volume.is().is_some_and(|known| known.read > view.read) {
            return;
        }
        if let Some(known) = self.observed.volume.is().filter(|_| self.promised_at > view.read) {
            view.promise = known.promise;
        }
        self.observed.volume = Reading::Is(view);
        self.observed.forget_overtaken_upstream();
    }

    /// What has just been promised durably.
    pub fn promised(&mut self, promise: Promise, now: BootTime) {
        let Some(new) = self.observed.promised(promise) else {
            return;
        };
        self.promised_at = now;
        if new {
            self.configured_at = now;
        }
    }

    fn exited(&mut self, server: u64, now: BootTime) {
        let Some((_, since, asked)) = self.server.take_if(|(id, ..)| *id == server) else {
            return;
        };
        self.look_again = true;
        let exit = Exit {
            at: now,
            ran: now.since(since),
            asked,
        };
        self.stopped(Some(exit));
    }

    pub fn stopped(&mut self, exit: Option<Exit>) {
        let postgres = &mut self.observed.postgres;
        postgres.process = Process::Stopped { exit };
        (postgres.answer, postgres.in_doubt) = (None, None);
        (postgres.wrote, postgres.greeted) = (None, None);
        (postgres.streamed, postgres.open) = (false, false);
        postgres.sync = SyncSetting::default();
        postgres.standbys.clear();
        postgres.receiving.clear();
        (postgres.impostors, postgres.doubt) = (std::collections::BTreeSet::new(), None);
        postgres.slots.clear();
        postgres.history.clear();
        (self.heard, self.silent) = (None, 0);
    }

    fn answered(&mut self, server: u64, asked: BootTime, status: Option<Box<Status>>) {
        if self.server.is_none_or(|(id, ..)| id != server) || asked < self.configured_at {
            return;
        }
        match status {
            Some(status) => self.take_answer(*status, asked),
            None => self.observed.postgres.answer = None,
        }
    }

    pub fn take_answer(&mut self, status: Status, asked: BootTime) {
        self.heard = status.heard.max(self.heard);
        let configured = self.observed.postgres.configured.as_ref();
        let written = configured.and_then(|configured| configured.upstream.as_ref());
        let answer = Answer {
            asked,
            in_recovery: status.in_recovery,
            position: Some(status.position),
            begins: (!status.receiver).then_some(status.begins),
            replayed: status.in_recovery.then_some(status.position.lsn),
            streaming: status.streaming,
            waits_for_wal: status.in_recovery && !status.streaming,
            other_upstream: status.in_recovery && status.upstream != written.map(|upstream| number(&upstream.address)),
            heard: self.heard,
            received_all: status.in_recovery && !status.receiver,
            knows_end: true,
            pending_restart: status.pending_restart,
            lowers_limits: status.lowers_limits,
        };
        let postgres = &mut self.observed.postgres;
        let writes = postgres.process == (Process::Running { mode: Mode::Primary }) && !answer.in_recovery;
        postgres.streamed |= answer.streaming;
        postgres.answer = Some(answer);
        postgres.slots = status.slots;
        postgres.take_senders(&status.senders, writes.then_some(status.inserted), asked);
        if writes {
            postgres.history = status.history;
            if postgres.in_doubt.is_none() {
                postgres.in_doubt = Some(status.inserted);
                postgres.sync.proven_at = postgres.sync.proven_at.min(status.inserted);
                postgres.wrote = postgres.wrote.max(Some(asked));
            }
        }
    }

    /// A primary begins closed to applications, with `rule` in force from its first WAL sender on.
    pub fn closed_with(&mut self, rule: machine::quorum::SyncRule) {
        self.observed.postgres.open = false;
        self.observed.postgres.sync = SyncSetting {
            proven: rule,
            proven_at: Lsn(u64::MAX),
            pending: None,
        };
    }
}
