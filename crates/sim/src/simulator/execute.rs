//! Executes one action of an agent, at once or as a task that takes time. No choice is made here.

use machine::instance::observer::{self, Done, Effect, Failure};
use machine::instance::steps::{self, Walk};
use machine::instance::{Action, Purpose, Stop, Work, heard};
use machine::lease_object::LeaseContent;
use machine::timing::Timing;
use std::collections::{BTreeMap, BTreeSet};

use super::archive::Worker;
use super::distort::{Bug, reserved};
use super::event::{Body, Call, Change, Event, News, Task};
use super::names::number;
use super::world::World;

/// Time limit of a write of the Lease and of requests for promises of either kind, in milliseconds, as in the agent.
const REQUEST: u64 = 2_000;
const PROMISE: u64 = 2_000;
/// Time limit of a round of requests for promises, in milliseconds. Members that answer later are still heard.
const ROUND_LIMIT: u64 = 400;
/// Time limit of a report, in milliseconds.
const REPORT: u64 = 1_000;

impl World {
    /// Carries out `action` of a member's agent.
    pub fn execute(&mut self, node: usize, action: Action) {
        let begun = self.now;
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let waits = agent.observed().postgres.sync.waits();
        agent.observer.begins(&action);
        let task = match action {
            // A copy of a stalled source ends at once here.
            Action::Wait | Action::CancelCopy | Action::Exit | Action::GiveUp { .. } => return,
            Action::Stop(stop) => return self.stop(node, stop),
            Action::EndSenders { keep } => return self.end_senders(node, &keep),
            Action::EndImpostors { impostors } => return self.end_impostors(node, &impostors),
            Action::WriteLease {
                content,
                purpose,
                timing,
            } => return self.write_lease(node, *content, purpose, timing),
            Action::ReadLease => return self.read_lease(node),
            Action::Report { address, request } => return self.report(node, number(&address), request),
            Action::Ask { peers, request } => return self.round(node, Work::Ask, &peers, &Body::Promise(request)),
            Action::AskFailsafe { peers, request } => {
                return self.round(node, Work::Failsafe, &peers, &Body::Failsafe(request));
            }
            Action::CreateMember { claim_uid } => Task::CreateMember { claim_uid },
            Action::StoreCertificate { .. } => Task::StoreCertificate,
            Action::Clone { upstream, .. } => Task::Clone {
                from: number(&upstream),
                begun: None,
            },
            Action::StartPrimary {
                rule, until, settings, ..
            } => {
                self.allow_writing(node, Some(until));
                Task::StartPrimary { rule, settings }
            }
            Action::StartStandby {
                upstream,
                settings,
                was_primary,
            } => {
                self.allow_writing(node, None);
                Task::StartStandby {
                    was_primary,
                    upstream,
                    settings,
                }
            }
            Action::Promise { epoch } => Task::Promise {
                epoch: epoch.0,
                walk: Walk::new(steps::PROMISE),
                begun,
            },
            Action::Promote {
                until,
                timeline,
                rule,
                members,
                ..
            } => {
                self.allow_writing(node, Some(until));
                let timeline = reserved(self.plan.bug, timeline.0, self.own_timeline(node));
                Task::Promote {
                    timeline,
                    rule,
                    members,
                    walk: Walk::new(steps::PROMOTION),
                    begun,
                }
            }
            Action::SetSync { rule } => Task::SetSync(Change {
                checkpoint: rule.is_synchronous() && !waits,
                rule,
                stage: 0,
                begun,
                streams: BTreeMap::new(),
            }),
            Action::Open => Task::Open,
            Action::Checkpoint => Task::Checkpoint,
            Action::Rewind { upstream, keep, .. } => {
                if let Some(history) = keep {
                    self.keep_tail(node, &history);
                }
                Task::Rewind { upstream, stage: 0 }
            }
            Action::SetAside { keep } => Task::SetAside { keep },
            Action::Configure { upstream, settings } => Task::Configure { upstream, settings },
            Action::Route { epoch, .. } => Task::Route { epoch: epoch.0 },
            Action::Admit { member } => Task::Admit { member },
            Action::DropSlots { keep } => Task::DropSlots { keep },
            // No volume here is empty without a database that it could copy.
            Action::Initdb { .. } => return self.finish(node, Work::Initdb, Err(Failure::said("there is a database"))),
            Action::DiscardKept { .. } => {
                return self.finish(node, Work::DiscardKept, Err(Failure::said("nothing is kept")));
            }
            Action::FetchWal(_) => {
                return self.finish(node, Work::FetchWal, Err(Failure::said("no primary removes WAL")));
            }
            Action::TakeSnapshot => {
                return self.finish(
                    node,
                    Work::TakeSnapshot,
                    Err(Failure::said("no volume is made from a snapshot")),
                );
            }
            Action::DiscardStaging => {
                return self.finish(node, Work::DiscardStaging, Err(Failure::said("nothing is there")));
            }
        };
        let delay = self.random.work.between(2, 30);
        self.step_after(delay, node, task);
    }

    fn own_timeline(&self, node: usize) -> u32 {
        let server = self.nodes[node].postgres.as_ref();
        server.map_or(0, |server| self.wal.timeline(server.end.branch))
    }

    pub fn step_after(&mut self, delay: u64, node: usize, task: Task) {
        if let Some(run) = self.nodes[node].agent.as_ref().map(|agent| agent.run) {
            self.after(delay, Event::Step { node, run, task });
        }
    }

    fn allow_writing(&mut self, node: usize, until: Option<machine::timing::BootTime>) {
        if let Some(agent) = self.nodes[node].agent.as_mut() {
            agent.undo_start = false;
            agent.deadline = until.or(agent.deadline);
        }
    }

    fn stop(&mut self, node: usize, stop: Stop) {
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        agent.undo_start = true;
        if stop == Stop::Kill {
            if !std::mem::replace(&mut agent.killing, true) {
                let delay = self.random.work.between(2, 20);
                self.step_after(delay, node, Task::Kill);
            }
        } else {
            self.stop_server(node, stop);
        }
    }

    fn write_lease(&mut self, node: usize, content: LeaseContent, purpose: Purpose, timing: Timing) {
        let (sent, call) = (self.boot_time(node), self.number());
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        agent.calls.insert(call, Call::Lease { sent, purpose, timing });
        let run = agent.run;
        self.tell(REQUEST.min(timing.renew.0), node, News::Late { call });
        // The request may be lost, refused, executed without an answer, or late.
        let fault = self
            .random
            .api
            .chance(self.api.errors)
            .then(|| self.random.api.below(4));
        let delay = 1 + self.random.api.below(6);
        let reaches = self.api.down == 0 && self.net.reaches_api(node);
        let arrives = |delay, answer| {
            let content = Box::new(content);
            (
                delay,
                Event::LeaseWrite {
                    node,
                    run,
                    call,
                    content,
                    answer,
                },
            )
        };
        let (delay, event) = match fault {
            _ if !reaches => return,
            Some(0) => return,
            Some(1) => {
                return self.tell(
                    delay * 2,
                    node,
                    News::Written {
                        call,
                        outcome: Err(None),
                    },
                );
            }
            Some(2) => arrives(delay, false),
            Some(_) => arrives(delay + self.random.api.below(5_000), true),
            None => arrives(delay, true),
        };
        self.after(delay, event);
    }

    fn read_lease(&mut self, node: usize) {
        let call = self.number();
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        agent.calls.insert(call, Call::Read);
        let run = agent.run;
        self.tell(REQUEST, node, News::Late { call });
        let fails = self.random.api.chance(self.api.errors);
        if self.api.down == 0 && self.net.reaches_api(node) && !fails {
            let delay = 1 + self.random.api.below(6);
            self.after(delay, Event::LeaseRead { node, run, call });
        }
    }

    fn report(&mut self, node: usize, to: usize, request: Box<machine::protocol::ReportRequest>) {
        let (sent, call) = (self.boot_time(node), self.number());
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let holder = agent.record().and_then(|record| record.holder.as_ref());
        let holder_run = holder.map(|holder| holder.incarnation.run.clone());
        let holders_key = heard::holders_key(agent.observed(), sent);
        let body = Body::Report(request.clone());
        agent.calls.insert(
            call,
            Call::Report {
                sent,
                holder_run,
                holders_key,
                request,
            },
        );
        self.tell(REPORT, node, News::Late { call });
        self.ask_peer(node, to, call, body);
    }

    fn round(&mut self, node: usize, work: Work, peers: &BTreeMap<String, String>, body: &Body) {
        let (sent, call) = (self.boot_time(node), self.number());
        let open: BTreeSet<usize> = peers.values().map(|address| number(address)).collect();
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let answered = false;
        agent.calls.insert(
            call,
            Call::Round {
                work,
                sent,
                open: open.clone(),
                answered,
                over: false,
            },
        );
        for limit in [ROUND_LIMIT, PROMISE] {
            self.tell(limit, node, News::Late { call });
        }
        for to in open {
            self.ask_peer(node, to, call, body.clone());
        }
    }

    /// A task has ended: the agent notes it, and decides.
    pub fn finish(&mut self, node: usize, work: Work, result: Result<Effect, Failure>) {
        self.finish_after(0, node, work, result);
    }

    /// The same, some time later.
    pub fn finish_after(&mut self, delay: u64, node: usize, work: Work, result: Result<Effect, Failure>) {
        let done = Box::new(Done { work, result });
        self.tell(delay, node, News::Seen(observer::Event::Done(done)));
    }

    /// A task has failed that may have written a promise: its failure carries the promise that is on the volume now.
    pub fn telling_promise(&self, node: usize, message: impl Into<String>) -> Failure {
        Failure {
            message: message.into(),
            news: Some(observer::News::Promise(self.promise_on(node))),
        }
    }

    /// True with the mutant that does not compare versions of the Lease.
    pub fn overwrites_lease(&self) -> bool {
        self.plan.bug == Some(Bug::LeaseIsOverwritten)
    }

    /// True if a start that is in progress may still happen.
    pub fn may_start(&self, node: usize, writing: bool) -> bool {
        let now = self.boot_time(node);
        self.nodes[node].agent.as_ref().is_some_and(|agent| {
            !agent.undo_start && (!writing || agent.deadline.is_some_and(|deadline| now < deadline))
        })
    }

    /// The agent ends by itself, and its container with it.
    pub fn end_container(&mut self, node: usize) {
        self.note(Some(node), || "the container ends".to_owned());
        self.kill_container(node);
        let delay = self.random.work.between(500, 3_000);
        self.after(delay, Event::Boot { node });
        if self.plan.whole {
            self.kubelet_soon(node);
        }
    }

    /// All processes of the container are gone.
    pub fn kill_container(&mut self, node: usize) {
        self.end_server(node, super::postgres::Ends::Killed);
        let forgets = self.plan.bug == Some(Bug::PromiseIsForgotten);
        let place = &mut self.nodes[node];
        if forgets {
            (place.volume.promise, place.volume.promoting) = (0, None);
        }
        (place.agent, place.armed, place.late_promise) = (None, None, None);
        place.archive = Worker::default();
        place.agent_waits.clear();
    }
}
