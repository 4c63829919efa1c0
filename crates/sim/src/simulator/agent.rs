//! One run of an agent: what it knows. With `act`, `learn` and `calls` it is the agent's own loop and bookkeeping (`agent::run`, `agent::observe`)
//! over this world's events; every decision is `machine`'s.

use std::collections::{BTreeMap, BTreeSet};

use machine::instance::{
    Action, Configured, Contact, LeaseView, Memo, Observed, Own, PostgresView, Process, Reading, SyncSetting, Tasks,
};
use machine::protocol::{LeaseRecord, PromiseReply, PromiseRequest};
use machine::timing::BootTime;

use super::event::Call;
use super::names::{SETTINGS, address, pod, pod_uid};

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
    pub wake: u64,
    pub poll: u64,
    pub polled: (Option<u64>, bool, bool),
    /// Answers that did not come, in a row.
    pub silent: u32,
    pub said: String,
}

/// A request for a promise that waits for its answer.
#[derive(Clone, Debug)]
pub struct Held {
    pub request: PromiseRequest,
    pub from: usize,
    pub from_run: u32,
    pub call: u64,
    pub until: BootTime,
}

/// For so long a request is held while the promise is being made, in milliseconds, as in the agent.
const HOLD: u64 = 200;

impl Agent {
    pub fn new(node: usize, run: u32) -> Self {
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
    pub fn is_steady(&self, now: BootTime) -> bool {
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

/// Waiting would not change the answer.
pub fn is_final(answer: &Result<PromiseReply, String>, request: &PromiseRequest) -> bool {
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
        went_on: None,
        asked_for: None,
        promises: BTreeMap::new(),
        failsafe: BTreeMap::new(),
        failsafe_given: None,
        tasks: Tasks::default(),
        terminating: false,
    }
}
