//! One run of an agent. Together with `act`, `learn` and `calls` it is the agent's own loop (`agent::run`) over the
//! events of this world. Its knowledge is kept by the shipped observer, and every decision is `machine`'s.

use std::collections::BTreeMap;

use machine::instance::observer::{Done, Effect, Event, Failure, HeldRequests, Note, Observer, Polling};
use machine::instance::{Action, Memo, Observed, Own, Work};
use machine::protocol::LeaseRecord;
use machine::timing::BootTime;

use super::event::Call;
use super::names::{CLUSTER, address, pod};

/// One run of an agent.
#[derive(Clone, Debug)]
pub struct Agent {
    pub run: u32,
    pub observer: Observer,
    pub memo: Memo,
    /// The newest version of the `ClusteredDatabase`.
    pub spec: u64,
    /// Until when PostgreSQL may be started for writing.
    pub deadline: Option<BootTime>,
    /// True if a start in flight must be undone.
    pub undo_start: bool,
    pub killing: bool,
    pub look_again: bool,
    pub looking: bool,
    pub calls: BTreeMap<u64, Call>,
    /// Requests for promises: from which member, from which run of it, and in which call.
    pub held: HeldRequests<(usize, u32, u64)>,
    pub wake: u64,
    pub poll: u64,
    pub polled: Option<Polling>,
    /// A question to a stalled PostgreSQL: when it was asked, and by which poll.
    pub question: Option<(BootTime, u64)>,
    /// When it last decided.
    pub decided: Option<BootTime>,
    pub said: String,
}

impl Agent {
    pub fn new(node: usize, pod_uid: String, run: u32) -> Self {
        let own = Own {
            pod: pod(node),
            ordinal: node as u32,
            pod_uid,
            run: format!("run-{run}"),
            address: address(node),
            agent_version: String::new(),
        };
        Self {
            run,
            observer: Observer::new(own, CLUSTER.to_owned()),
            memo: Memo::default(),
            spec: 0,
            deadline: None,
            undo_start: false,
            killing: false,
            look_again: false,
            looking: false,
            calls: BTreeMap::new(),
            held: HeldRequests::default(),
            wake: 0,
            poll: 0,
            polled: None,
            question: None,
            decided: None,
            said: String::new(),
        }
    }

    pub fn observed(&self) -> &Observed {
        self.observer.observed()
    }

    pub fn record(&self) -> Option<&LeaseRecord> {
        self.observed().lease.record.is()
    }

    /// Takes an event. Notes settings that prove good, as the agent does.
    pub fn take(&mut self, event: Event, now: BootTime) {
        if self.observer.observe(event, now) != Some(Note::SettingsProved) {
            return;
        }
        let configured = self.observed().postgres.configured.as_ref();
        if let Some(settings) = configured.map(|configured| configured.settings.clone()) {
            self.observer.observe(Event::GoodSettings(settings), now);
        }
    }

    /// A task has ended.
    pub fn ended(&mut self, work: Work, result: Result<Effect, Failure>, now: BootTime) {
        self.take(Event::Done(Box::new(Done { work, result })), now);
    }
}

/// The name of an action.
pub fn action_name(action: &Action) -> String {
    let text = format!("{action:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}
