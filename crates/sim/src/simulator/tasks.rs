//! Tasks of a member, step by step, in the order of the agent's execution (`agent::execute`, `agent::postgres`).

use std::collections::BTreeSet;

use machine::instance::observer::{self, Effect, Event as Seen, Failure, ServerId};
use machine::instance::steps::{PROMISE_WRITES, PromiseStep, PromiseWrite, Walk};
use machine::instance::{Configured, Mode, Promise, Upstream, Work};
use machine::protocol::MemberId;
use machine::quorum::SyncRule;

use super::distort::Bug;
use super::event::{Event, News, Task};
use super::names::number;
use super::postgres::Deaf;
use super::status::following;
use super::world::World;

/// Time limit of a promise, including the end of a WAL receiver, in milliseconds, as in the agent.
const PROMISE: u64 = 10_000;
const RECEIVER: u64 = 5_000;

impl World {
    /// The next step of a task.
    pub fn step(&mut self, node: usize, task: Task) {
        let hung = self.nodes[node].disk.hung > 0;
        match task {
            Task::Scan { read } if hung => self.step_after(50, node, Task::Scan { read }),
            Task::Scan { read } => {
                // What is read first may be outdated when everything is read.
                let scan = self.scan(node, read);
                let delay = self.random.work.between(0, 20);
                self.tell(delay, node, News::Seen(Seen::Scanned(scan)));
            }
            Task::Kill => {
                self.end_server(node, super::postgres::Ends::Killed);
                self.tell(2, node, News::Look);
            }
            Task::Promise { epoch, walk, begun } => self.promise(node, epoch, walk, begun),
            Task::Promote {
                timeline,
                rule,
                members,
                walk,
                begun,
            } => self.promote(node, timeline, rule, members, walk, begun),
            Task::StartPrimary { rule, settings } if !hung => self.start(node, Mode::Primary, None, (rule, settings)),
            Task::StartStandby {
                was_primary,
                upstream,
                settings,
            } if !hung => {
                self.nodes[node].volume.was_primary = was_primary;
                self.start(node, Mode::Standby, upstream, (SyncRule::default(), settings));
            }
            Task::Configure { upstream, settings } if !hung => self.configure(node, upstream, settings),
            Task::SetSync(change) => self.set_sync(node, change),
            Task::Open => self.open(node),
            Task::Checkpoint if !hung => {
                self.checkpoint_now(node);
                self.finish(node, Work::Checkpoint, Ok(Effect::Checkpointed));
            }
            Task::Admit { member } => {
                let result = self.admit(node, member.clone()).map(|()| Effect::Admitted(member));
                self.finish(node, Work::Admit, result.map_err(Failure::said));
            }
            Task::DropSlots { keep } => {
                let result = self.drop_slots(node, &keep).map(|()| Effect::Kept(keep));
                self.finish(node, Work::DropSlots, result.map_err(Failure::said));
            }
            Task::Route { epoch } => self.write_route(node, epoch),
            task if hung => self.step_after(50, node, task),
            task => self.volume_step(node, task),
        }
    }

    fn write_route(&mut self, node: usize, epoch: u64) {
        if self.api.down > 0 || !self.net.reaches_api(node) {
            return self.finish_after(2_000, node, Work::Route, Err(Failure::said("no answer")));
        }
        let Some(run) = self.nodes[node].agent.as_ref().map(|agent| agent.run) else {
            return;
        };
        self.after(3, Event::RouteWrite { node, run, epoch });
        if !self.net.hears_api(node) {
            self.finish_after(2_000, node, Work::Route, Err(Failure::said("no answer")));
        }
    }

    /// A promise, by the steps that the agent takes (protocol.md rule 4).
    fn promise(&mut self, node: usize, epoch: u64, mut walk: Walk<PromiseStep>, begun: u64) {
        let (hung, forgetful) = (
            self.nodes[node].disk.hung > 0,
            self.plan.bug == Some(Bug::PromiseKeepsReceiving),
        );
        let frozen = self.nodes[node].postgres_frozen > 0;
        let (limit, writes) = match walk.next_step() {
            Some(PromiseStep::Write) => (PROMISE, true),
            Some(PromiseStep::EndReceiver | PromiseStep::EmptyUpstream) | None => (RECEIVER, false),
        };
        if self.now - begun > limit {
            if writes {
                self.nodes[node].late_promise = Some(epoch);
            }
            let failure = self.telling_promise(node, "it did not end in time");
            return self.finish(node, Work::Promise, Err(failure));
        }
        while let Some(step) = walk.next_step() {
            let again = |walk, begun| Task::Promise { epoch, walk, begun };
            match step {
                PromiseStep::Write if hung => return self.step_after(50, node, again(walk, begun)),
                PromiseStep::Write => {
                    self.write_promise(node, epoch);
                    walk.take(step).expect("it is the next one");
                    let delay = self.disk_delay(node);
                    let begun = self.now.min(begun + PROMISE - RECEIVER);
                    return self.step_after(delay, node, again(walk, begun));
                }
                PromiseStep::EndReceiver => {
                    if !forgetful && !frozen {
                        self.end_receiver(node);
                    }
                    let receives = self.server(node).is_some_and(|server| server.receiver.is_some());
                    if receives && !forgetful {
                        // It ends when it has flushed what it has received.
                        return self.step_after(10, node, again(walk, begun));
                    }
                }
                PromiseStep::EmptyUpstream => {
                    // Another primary may have been followed since.
                    let away = !self.nodes[node].volume.credential;
                    if let Some(server) = self.server(node).filter(|_| away) {
                        server.upstream = None;
                    }
                }
            }
            walk.take(step).expect("it is the next one");
        }
        let promise = self.promise_on(node);
        self.finish(node, Work::Promise, Ok(Effect::Promised(promise)));
    }

    /// The disk works again: a write that hung in it completes before all others, even if its task was given up.
    pub fn disk_goes_on(&mut self, node: usize) {
        if let Some(epoch) = self.nodes[node].late_promise.take() {
            self.coverage.reach("promise written late");
            self.write_promise(node, epoch);
        }
    }

    /// The epoch is on the volume, and the credential is removed.
    fn write_promise(&mut self, node: usize, epoch: u64) {
        let forgetful = self.plan.bug == Some(Bug::PromiseKeepsReceiving);
        let volume = &mut self.nodes[node].volume;
        for write in PROMISE_WRITES {
            match write.step {
                PromiseWrite::Epoch => volume.promise = volume.promise.max(epoch),
                PromiseWrite::RemoveCredential => volume.credential &= forgetful,
            }
        }
    }

    /// Promises the epoch of the primary to follow, and writes the credential.
    fn follow(&mut self, node: usize, upstream: Option<&Upstream>) -> Result<Option<Promise>, String> {
        let Some(upstream) = upstream else { return Ok(None) };
        let volume = &mut self.nodes[node].volume;
        if upstream.epoch.0 < volume.promise {
            return Err("a higher epoch is promised".to_owned());
        }
        (volume.promise, volume.promoting, volume.credential) = (upstream.epoch.0, None, true);
        Ok(Some(self.promise_on(node)))
    }

    /// A task that follows a primary has failed: it may have promised that primary's epoch.
    fn failed_to_follow(&self, node: usize, upstream: Option<&Upstream>, message: String) -> Failure {
        match upstream {
            Some(_) => self.telling_promise(node, message),
            None => Failure::said(message),
        }
    }

    fn start(&mut self, node: usize, mode: Mode, upstream: Option<Upstream>, (rule, settings): (SyncRule, String)) {
        let work = match mode {
            Mode::Primary => Work::StartPrimary,
            Mode::Standby => Work::StartStandby,
        };
        let follows = upstream.as_ref().map(|upstream| number(&upstream.address));
        let result = self.follow(node, upstream.as_ref()).and_then(|promise| {
            if !self.may_start(node, mode == Mode::Primary) {
                return Err("it was called off".to_owned());
            }
            self.count_start(node, follows);
            let server = self.start_server(node, mode, follows, rule.clone())?;
            Ok((server, promise))
        });
        if let (Ok(_), Some(server)) = (&result, self.server(node)) {
            (server.configured, server.started_with) = (settings.clone(), settings.clone());
        }
        let result = match result {
            Ok((server, promise)) => Ok(Effect::Started {
                server: ServerId(server),
                ended: false,
                mode,
                configured: Configured {
                    settings,
                    upstream,
                    raised: None,
                },
                following: following(follows),
                rule,
                promise,
            }),
            Err(message) => Err(self.failed_to_follow(node, upstream.as_ref(), message)),
        };
        self.finish(node, work, result);
    }

    fn configure(&mut self, node: usize, upstream: Option<Upstream>, settings: String) {
        let result = self.follow(node, upstream.as_ref());
        let follows = upstream.as_ref().map(|upstream| number(&upstream.address));
        let asked = self.boot_time(node);
        let running = self.nodes[node].postgres_frozen == 0;
        let result = result.and_then(|promise| {
            let server = self.server(node).filter(|server| running && server.up);
            let server = server.ok_or("PostgreSQL does not answer")?;
            server.configured.clone_from(&settings);
            server.deaf.take_if(|deaf| *deaf == Deaf::UntilConfigured);
            if server.upstream != follows {
                server.upstream = follows;
                self.end_receiver(node);
            }
            if self.server(node).is_some_and(|server| !server.in_recovery) {
                self.take_up(node);
            }
            Ok((promise, self.status(node).ok_or("PostgreSQL does not answer")?))
        });
        let result = match result {
            Ok((promise, status)) => Ok(Effect::Configured {
                configured: Configured {
                    settings,
                    upstream,
                    raised: None,
                },
                following: following(follows),
                status: Box::new(status),
                asked,
                promise,
            }),
            Err(message) => Err(self.failed_to_follow(node, upstream.as_ref(), message)),
        };
        self.finish(node, Work::Configure, result);
    }

    pub fn admit(&mut self, node: usize, member: MemberId) -> Result<(), String> {
        let recovers = self.server(node).is_none_or(|server| server.in_recovery);
        if recovers {
            return Err("PostgreSQL cannot make roles".to_owned());
        }
        self.slots(node, |slots| {
            slots.insert(member);
        })
    }

    pub fn drop_slots(&mut self, node: usize, keep: &BTreeSet<MemberId>) -> Result<(), String> {
        let senders = self.nodes[node]
            .postgres
            .iter()
            .flat_map(|server| server.senders.values());
        let used: BTreeSet<_> = senders.map(|sender| sender.member.clone()).collect();
        self.slots(node, |slots| {
            slots.retain(|member| keep.contains(member) || used.contains(member))
        })?;
        let left = used.difference(keep).count();
        (left == 0)
            .then_some(())
            .ok_or_else(|| "slots of former members are still in use".to_owned())
    }

    fn slots(&mut self, node: usize, change: impl FnOnce(&mut BTreeSet<MemberId>)) -> Result<(), String> {
        let place = &mut self.nodes[node];
        let able = place.postgres_frozen == 0 && place.postgres.as_ref().is_some_and(|server| server.up);
        let data = place.volume.data.as_mut().filter(|_| able);
        data.map(|data| change(&mut data.slots))
            .ok_or_else(|| "PostgreSQL does not answer".to_owned())
    }

    fn open(&mut self, node: usize) {
        let able = self.nodes[node].postgres_frozen == 0;
        let server = self
            .server(node)
            .filter(|server| server.up && !server.in_recovery && server.stop.is_none());
        // The setting stays in the files, even if they are not read now.
        let open = server.map(|server| server.files.1 = true).filter(|()| able);
        if open.is_none() {
            return self.finish(node, Work::Open, Err(Failure::said("PostgreSQL does not answer")));
        }
        self.take_up(node);
        self.finish(node, Work::Open, Ok(Effect::Opened));
    }

    /// A task that changes the content of the volume.
    fn volume_step(&mut self, node: usize, task: Task) {
        let (work, result) = match task {
            Task::Rewind { upstream, stage } => match self.rewind(node, upstream, stage) {
                None => return,
                Some(result) => (Work::Rewind, result),
            },
            Task::Clone { from, begun: None } => {
                let begun = Some(self.begin_copy(node, from));
                let delay = self.random.work.between(1_000, 8_000);
                return self.step_after(delay, node, Task::Clone { from, begun });
            }
            Task::Clone {
                from,
                begun: Some(begun),
            } => (Work::Clone, self.copy(node, from, begun)),
            Task::SetAside { keep } => {
                self.set_aside(node, keep);
                (Work::SetAside, Ok(()))
            }
            Task::CreateMember { claim_uid } => {
                let volume = &mut self.nodes[node].volume;
                volume.member = Some(MemberId::new(node as u32, &claim_uid, volume.number));
                volume.claim = claim_uid;
                volume.certificate = false;
                (Work::CreateMember, Ok(()))
            }
            Task::StoreCertificate => {
                self.nodes[node].volume.certificate = true;
                (Work::StoreCertificate, Ok(()))
            }
            _ => return,
        };
        let scan = self.scan(node, self.boot_time(node));
        let delay = self.random.work.between(0, 20);
        let result = match result {
            Ok(()) => Ok(Effect::Volume(scan)),
            Err(message) => Err(Failure {
                message,
                news: Some(observer::News::Volume(scan)),
            }),
        };
        self.finish_after(delay, node, work, result);
    }
}
