//! One run of an agent: what it knows, and its loop. It is the agent's own loop and bookkeeping (`agent::run`, `agent::observe`)
//! over this world's events; every decision is `machine`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use machine::instance::{
    Action, Configured, Contact, LeaseView, Memo, Mode, Observed, Own, PostgresView, Process, Reading, SyncSetting,
    Tasks, decide, election, fence,
};
use machine::protocol::{LeaseRecord, PromiseReply, PromiseRequest};
use machine::timing::BootTime;

use super::distort;
use super::event::{Answered, Call, Event, Inner, News};
use super::names::{SETTINGS, address, pod, pod_uid};
use super::world::World;

/// One run of an agent.
#[derive(Clone, Debug)]
pub struct Agent {
    pub run: u32,
    pub observed: Observed,
    pub memo: Memo,
    /// The newest version of the Lease that it knows.
    pub version: u64,
    /// When the WAL receiver heard the primary last.
    pub heard: Option<BootTime>,
    /// When the promise was known.
    pub promised_at: BootTime,
    /// When PostgreSQL was asked, right after its settings had changed last.
    pub configured_at: BootTime,
    /// The server that it started, when, and whether it has asked it to stop.
    pub server: Option<(u64, BootTime, bool)>,
    /// Until when something may be started for writing.
    pub deadline: Option<BootTime>,
    /// A start in flight is to be undone.
    pub undo_start: bool,
    pub killing: bool,
    pub look_again: bool,
    pub looking: bool,
    pub calls: BTreeMap<u64, Call>,
    pub held: Vec<Held>,
    wake: u64,
    pub poll: u64,
    polled: (Option<u64>, bool, bool),
    /// Answers that did not come, in a row.
    pub silent: u32,
    said: String,
}

/// A request for a promise that waits for its answer.
#[derive(Clone, Debug)]
pub struct Held {
    pub request: PromiseRequest,
    pub from: usize,
    pub from_run: u32,
    pub call: u64,
    until: BootTime,
}

/// The longest sleep, in milliseconds, as in the agent.
const LONGEST_SLEEP: u64 = 500;
/// More actions than this without a pause are a defect.
const MOST_ACTIONS: usize = 32;
/// For so long a request is held while the promise is being made, in milliseconds, as in the agent.
const HOLD: u64 = 200;
/// Distance between questions to PostgreSQL while it serves in its role, and while something is expected, in milliseconds.
const STEADY: u64 = 1_000;
const EXPECTING: u64 = 100;

impl World {
    /// A container starts: a new run, which knows nothing.
    pub fn boot(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        if !place.on || place.agent.is_some() {
            return;
        }
        place.runs += 1;
        (place.armed, place.granted, place.agent_frozen) = (None, BootTime(0), 0);
        place.agent_waits.clear();
        let run = place.runs;
        place.agent = Some(Agent::new(node, run));
        self.note(Some(node), || format!("the agent starts, run {run}"));
        let (spec, lease) = (Rc::new(self.api.spec.clone()), Rc::clone(&self.api.lease));
        self.tell_if_api(node, News::Cluster(spec));
        self.tell_if_api(node, News::Lease(lease));
        self.wake_now(node);
    }

    fn tell_if_api(&mut self, node: usize, news: News) {
        if self.api.down == 0 && self.net.hears_api(node) && self.net.reaches_api(node) {
            let delay = 20 + self.random.api.below(60);
            self.tell(delay, node, news);
        } else if !std::mem::replace(&mut self.nodes[node].watch_broken, true) {
            self.after(1_000, Event::Relist { node });
        }
    }

    fn wake_now(&mut self, node: usize) {
        if let Some(agent) = &self.nodes[node].agent {
            let (run, generation) = (agent.run, agent.wake);
            self.after(0, Event::Wake { node, run, generation });
        }
    }

    /// Time to decide again.
    pub fn wake(&mut self, node: usize, generation: u64) {
        if self.nodes[node]
            .agent
            .as_ref()
            .is_some_and(|agent| agent.wake == generation)
        {
            self.act(node);
        }
    }

    /// Something is heard; then it decides.
    pub fn news(&mut self, node: usize, news: News) {
        self.learn(node, news);
        if self.nodes[node].agent.is_some() {
            self.act(node);
        }
    }

    /// Decides and acts until the machine waits.
    fn act(&mut self, node: usize) {
        let mut wake = None;
        for _ in 0..MOST_ACTIONS {
            self.look(node);
            let now = self.boot_time(node);
            let Some(agent) = self.nodes[node].agent.as_mut() else {
                return;
            };
            let shown = distort::shown(self.plan.bug, &agent.observed, now);
            let decision = decide(&shown, &agent.memo, now);
            let decision = distort::decided(self.plan.bug, decision);
            agent.deadline = fence::held_until(&shown, now);
            let granted = fence::held_until(&agent.observed, now);
            self.trace.mark_text(decision.rule);
            self.coverage.decision(decision.rule, &decision.action);
            let agent = self.nodes[node].agent.as_mut();
            let Some(agent) = agent else { return };
            agent.memo = decision.memo;
            wake = decision.wake;
            if self.trace.explains() && agent.said != decision.because {
                agent.said = decision.because.clone().into_owned();
                let what = format!(
                    "{}: {} — {}",
                    decision.rule,
                    action_name(&decision.action),
                    decision.because
                );
                self.note(Some(node), || what);
            }
            if let Some(granted) = granted {
                self.nodes[node].granted = self.nodes[node].granted.max(granted);
            }
            self.arm(node, decision.dead_man);
            let waits = decision.action == Action::Wait;
            if decision.action == Action::Exit {
                return self.end_container(node);
            }
            self.execute(node, decision.action);
            if waits {
                break;
            }
        }
        let held = self.answer_held(node);
        self.publish(node);
        let now = self.boot_time(node);
        let clock = self.nodes[node].clock;
        let at = [wake, held].into_iter().flatten().min();
        let at = at.map_or(now.plus(LONGEST_SLEEP), |at| at.min(now.plus(LONGEST_SLEEP)));
        let when = clock.when(at).max(self.now + 1);
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        agent.wake += 1;
        let (run, generation) = (agent.run, agent.wake);
        self.queue.push(when, Event::Wake { node, run, generation });
    }

    fn arm(&mut self, node: usize, deadline: Option<BootTime>) {
        let place = &mut self.nodes[node];
        if place.armed == deadline {
            return;
        }
        place.armed = deadline;
        if let (Some(at), Some(agent)) = (deadline, &place.agent) {
            let when = place.clock.when(at).max(self.now);
            let run = agent.run;
            self.queue.push(when, Event::DeadMan { node, run, at });
        }
    }

    /// The dead-man's deadline: if it has not been moved, everything is killed. Whether the agent lives does not matter.
    pub fn dead_man(&mut self, node: usize, run: u32, at: BootTime) {
        let place = &self.nodes[node];
        let same = place.agent.as_ref().is_some_and(|agent| agent.run == run);
        if same && place.armed == Some(at) && place.postgres.is_some() {
            self.coverage.reach("dead-man killed");
            self.note(Some(node), || "the dead-man kills everything".to_owned());
            self.end_server(node, super::postgres::Ends::Killed);
        }
    }

    /// What is known by looking: what has outlived its postmaster, and the volume when it changed.
    fn look(&mut self, node: usize) {
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let busy = agent.observed.tasks.volume.running.is_some() || agent.killing;
        let wanted = agent.look_again || agent.observed.volume.is().is_none();
        if wanted && !busy && !agent.looking {
            (agent.looking, agent.look_again) = (true, false);
            let run = agent.run;
            let delay = self.random.work.between(5, 40);
            self.after(
                delay,
                Event::Step {
                    node,
                    run,
                    task: super::event::Task::Scan,
                },
            );
        }
    }

    /// Requests for promises are answered when the answer is final, or after a moment.
    fn answer_held(&mut self, node: usize) -> Option<BootTime> {
        let now = self.boot_time(node);
        let agent = self.nodes[node].agent.as_mut()?;
        let mut answers = Vec::new();
        let observed = &agent.observed;
        agent.held.retain(|held| {
            let answer = election::answer(observed, now, &held.request);
            let ends = is_final(&answer, &held.request) || now >= held.until;
            if ends {
                answers.push((held.from, held.from_run, held.call, answer));
            }
            !ends
        });
        let until = agent.held.iter().map(|held| held.until).min();
        for (from, run, call, answer) in answers {
            self.answer_peer(node, from, run, call, Answered::Promise(answer));
        }
        until
    }

    /// How often PostgreSQL is asked, and whether the canary writes.
    fn publish(&mut self, node: usize) {
        let now = self.boot_time(node);
        let Some(agent) = self.nodes[node].agent.as_mut() else {
            return;
        };
        let postgres = &agent.observed.postgres;
        let writes = postgres.process == (Process::Running { mode: Mode::Primary })
            && postgres.answer.is_some_and(|answer| !answer.in_recovery);
        let wanted = (agent.server.map(|server| server.0), agent.is_steady(now), writes);
        let before = std::mem::replace(&mut agent.polled, wanted);
        if before == wanted {
            return;
        }
        agent.poll += 1;
        let (run, generation) = (agent.run, agent.poll);
        if wanted.0.is_some() {
            self.after(1, Event::Poll { node, run, generation });
        }
        if writes && !before.2 {
            self.server_after(1, node, Inner::Canary { node_run: run });
        }
    }

    /// PostgreSQL is asked how it is.
    pub fn poll(&mut self, node: usize, generation: u64) {
        let asked = self.boot_time(node);
        let status = self.status(node).map(Box::new);
        let frozen = self.nodes[node].postgres_frozen > 0;
        let Some(agent) = self.nodes[node].agent.as_mut().filter(|agent| agent.poll == generation) else {
            return;
        };
        let Some((server, ..)) = agent.server else { return };
        let run = agent.run;
        if frozen {
            // No answer within two seconds: three in a row are silence.
            agent.silent += 1;
            if agent.silent == 3 {
                self.tell(
                    0,
                    node,
                    News::Status {
                        server,
                        asked,
                        status: None,
                    },
                );
            }
            return self.after(2_000, Event::Poll { node, run, generation });
        }
        agent.silent = 0;
        let pause = if agent.polled.1 { STEADY } else { EXPECTING };
        self.tell(2, node, News::Status { server, asked, status });
        self.after(pause, Event::Poll { node, run, generation });
    }
}

impl Agent {
    fn new(node: usize, run: u32) -> Self {
        Self {
            run,
            observed: unknown(node, run),
            memo: Memo::default(),
            version: 0,
            heard: None,
            promised_at: BootTime(0),
            configured_at: BootTime(0),
            server: None,
            deadline: None,
            undo_start: false,
            killing: false,
            look_again: false,
            looking: false,
            calls: BTreeMap::new(),
            held: Vec::new(),
            wake: 0,
            poll: 0,
            polled: (None, false, false),
            silent: 0,
            said: String::new(),
        }
    }

    pub fn record(&self) -> Option<&LeaseRecord> {
        self.observed.lease.record.is()
    }

    /// A request for a promise: the machine is to know of it before it is answered.
    pub fn hold(&mut self, request: PromiseRequest, from: usize, from_run: u32, call: u64, now: BootTime) {
        if self.record().is_some_and(|record| record.uid == request.lease) {
            self.observed.asked_for = self.observed.asked_for.max(Some(request.epoch));
        }
        self.held.push(Held {
            request,
            from,
            from_run,
            call,
            until: now.plus(HOLD),
        });
    }

    /// PostgreSQL serves in its role, and the primary is heard.
    fn is_steady(&self, now: BootTime) -> bool {
        let observed = &self.observed;
        let Tasks {
            start,
            promise,
            ask,
            sync,
            ..
        } = &observed.tasks;
        if [start, promise, ask, sync].iter().any(|task| task.running.is_some()) {
            return false;
        }
        let Some(answer) = observed.postgres.answer else {
            return false;
        };
        if !answer.in_recovery {
            return observed.postgres.open;
        }
        let timing = observed.cluster.is().map(|cluster| cluster.timing.suspect());
        let heard = answer
            .heard
            .is_some_and(|heard| Some(now.since(heard)) <= timing.map(|suspect| suspect / 2));
        answer.streaming && heard
    }

    /// A configuration that was begun before a promise ended what it follows has been overtaken by it.
    pub fn forget_overtaken_upstream(&mut self) {
        let promised = self.observed.volume.is().and_then(|volume| volume.promise);
        if let (Some(promise), Some(configured)) = (promised, &mut self.observed.postgres.configured) {
            configured.upstream.take_if(|upstream| upstream.epoch < promise.epoch);
        }
    }

    pub fn configured(&mut self, configured: Configured) {
        self.observed.postgres.configured = Some(configured);
        self.forget_overtaken_upstream();
    }
}

fn is_final(answer: &Result<PromiseReply, String>, request: &PromiseRequest) -> bool {
    answer
        .as_ref()
        .map_or(true, |reply| match reply.promised >= request.epoch {
            true => reply.position.is_some(),
            false => !reply.suspects,
        })
}

/// The name of an action.
pub fn action_name(action: &Action) -> String {
    let text = format!("{action:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

fn unknown(node: usize, run: u32) -> Observed {
    Observed {
        own: Own {
            pod: pod(node),
            ordinal: node as u32,
            pod_uid: pod_uid(node),
            run: format!("run-{run}"),
            address: address(node),
            agent_version: String::new(),
        },
        cluster: Reading::Unknown,
        lease: LeaseView::default(),
        volume: Reading::Unknown,
        postgres: PostgresView {
            process: Process::Stopped { exit: None },
            strays: 0,
            configured: None,
            refused: None,
            good_settings: SETTINGS.to_owned(),
            answer: None,
            streamed: false,
            version: None,
            open: false,
            in_doubt: None,
            sync: SyncSetting::default(),
            standbys: BTreeMap::new(),
            receiving: BTreeSet::new(),
            wrote: None,
            history: Vec::new(),
            oldest: None,
        },
        peers: BTreeMap::new(),
        admitted: BTreeSet::new(),
        route: None,
        reply: None,
        contact: Contact::default(),
        asked_for: None,
        promises: BTreeMap::new(),
        failsafe: BTreeMap::new(),
        failsafe_given: None,
        tasks: Tasks::default(),
        terminating: false,
    }
}
