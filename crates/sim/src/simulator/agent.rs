//! One run of an agent: what it knows. With `act`, `learn` and `calls` it is the agent's own loop and bookkeeping (`agent::run`, `agent::observe`)
//! over this world's events; every decision is `machine`'s.

use std::collections::BTreeMap;

use machine::instance::{Action, Configured, Memo, Observed, Own};
use machine::protocol::{LeaseRecord, PromiseReply, PromiseRequest};
use machine::timing::BootTime;

use super::event::Call;
use super::names::{address, pod};

/// One run of an agent.
#[derive(Clone, Debug)]
pub struct Agent {
    pub run: u32,
    pub observed: Observed,
    pub memo: Memo,
    /// The newest version of the Lease that it knows.
    pub version: u64,
    /// The newest version of the `ClusteredDatabase`.
    pub spec: u64,
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
    pub polled: (Option<u64>, u64, bool, BootTime),
    /// When it decided last.
    pub decided: Option<BootTime>,
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
    pub fn new(node: usize, pod_uid: String, run: u32) -> Self {
        Self {
            run,
            observed: unknown(node, pod_uid, run),
            memo: Memo::default(),
            version: 0,
            spec: 0,
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
            polled: (None, 0, false, BootTime(0)),
            decided: None,
            silent: 0,
            said: String::new(),
        }
    }

    pub fn record(&self) -> Option<&LeaseRecord> {
        self.observed.lease.record.is()
    }

    /// A request for a promise, which the machine knows of.
    pub fn hold(&mut self, request: PromiseRequest, from: usize, from_run: u32, call: u64, now: BootTime) {
        self.held.push(Held {
            request,
            from,
            from_run,
            call,
            until: now.plus(HOLD),
        });
    }

    pub fn configured(&mut self, configured: Configured) {
        self.observed.postgres.configured = Some(configured);
        self.observed.forget_overtaken_upstream();
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

fn unknown(node: usize, pod_uid: String, run: u32) -> Observed {
    Observed::nothing(Own {
        pod: pod(node),
        ordinal: node as u32,
        pod_uid,
        run: format!("run-{run}"),
        address: address(node),
        agent_version: String::new(),
    })
}
