//! What was reached: each (rule, action), each fault, and named goals. A simulator in which nothing happens would find
//! nothing.

use std::collections::BTreeMap;

use machine::instance::Action;
use machine::protocol::LeaseRecord;

use super::pairs::{Decided, Pair};
use super::plan::Fault;
use super::world::World;

/// More timelines than this, reserved in a row by one holder, are not explained by failed promotions.
const SPINS: u32 = 50;

/// Counters.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Decisions of the agents, by decision rule, action, and the most recent fault that is under way.
    pub decisions: BTreeMap<(&'static str, &'static str, Option<Fault>), u64>,
    /// Decisions of the operator.
    pub operator: BTreeMap<Decided, u64>,
    /// How many of the added runs reached each pair.
    pub seeds: BTreeMap<Pair, u64>,
    /// Faults that happened.
    pub faults: BTreeMap<Fault, u64>,
    /// Named goals.
    pub reached: BTreeMap<&'static str, u64>,
    /// Events that were processed.
    pub events: u64,
    /// Promotions.
    pub promotions: u64,
    /// How often the lease moved to another member.
    pub failovers: u64,
    /// Commits that were acknowledged.
    pub acknowledged: u64,
    /// Promotions that lost acknowledged commits, where commits wait for no standby or the user has accepted it.
    pub losses: u64,
    /// Simulated time, in milliseconds.
    pub time: u64,
}

/// Goals that a run of many seeds must reach, besides every kind of fault.
pub const GOALS: &[&str] = &[
    "WAL kept aside",
    "acknowledged commits kept aside",
    "a copy promoted that has not all WAL",
    "a segment given up",
    "a segment without a mark was marked",
    "a history struck off by a standby",
    "archived in the end",
    "data kept aside",
    "bumped",
    "cloned",
    "converged",
    "dead-man killed",
    "impostor counted for a commit",
    "impostor ended",
    "excused",
    "ended beyond the fork, by its control file before it",
    "failsafe served",
    "fenced by the user and replaced",
    "handed over",
    "lost as is documented for asynchronous commits",
    "lost as the user accepted",
    "served again after the user accepted a loss",
    "opened",
    "promise written late",
    "promoted the second best",
    "pushed by a former primary",
    "relaxed",
    "released",
    "reserved again",
    "resumed",
    "rewind broken off",
    "rewound",
    "struck off by a standby",
    "was stalled",
    "tightened",
    "write of an ended run",
];

/// Decision rules of the instance machine that must have decided.
pub const RULES: &[&str] = &[
    "fence",
    "step-down",
    "renew",
    "ask-failsafe",
    "shut-down",
    "hand-over",
    "create-member",
    "store-certificate",
    "stay-fenced",
    "take",
    "promise",
    "win-election",
    "ask",
    "read-lease",
    "promote",
    "reserve-again",
    "start-to-promote",
    "start-primary",
    "open",
    "route",
    "admit",
    "change-rule",
    "drop-slots",
    "stop-diverged",
    "stop-stranded",
    "rewind",
    "clone",
    "start-standby",
    "leave-former-primary",
    "configure",
    "report",
    "wait",
];

/// Goals where an operator runs, and how often each must be reached at least.
pub const OPERATED_GOALS: &[(&str, u64)] = &[
    ("converged", 100),
    ("template changed", 20),
    ("parameter changed", 20),
    ("switchover requested", 20),
    ("preferred primary changed", 5),
    ("durability changed", 5),
    ("fence changed", 5),
    ("replicas changed", 20),
    ("hibernation changed", 5),
    ("scaled down", 20),
    ("claim deleted", 5),
    ("evicted", 10),
    ("edit during a failover", 20),
    ("edit during a change", 20),
    ("pod replaced", 50),
    ("restart permitted", 50),
    ("switchover asked for", 50),
    ("conflict met", 20),
    ("nothing taken away on an outdated view", 1),
    ("no key signed for a claim that is gone", 1),
    ("rewind broken off", 5),
    ("WAL kept aside", 20),
    ("data kept aside", 5),
    ("acknowledged commits kept aside", 5),
    ("operator killed during a request", 1),
    ("operator's write done and not answered", 1),
];

/// Decision rules of the operator that must have decided.
pub const OPERATOR_RULES: &[&str] = &[
    "label-roles",
    "record",
    "children",
    "request",
    "switch-over",
    "replace-idle",
    "replace-serving",
    "restart",
    "await-primary",
    "await-standbys",
    "await-settings",
    "await-fenced",
    "await-switchover",
    "await-durability",
    "scale",
    "removed-members",
    "await-scale",
    "hibernate",
    "wake",
    "await-waking",
    "rest",
];

impl Coverage {
    /// Notes that a goal is reached.
    pub fn reach(&mut self, goal: &'static str) {
        *self.reached.entry(goal).or_default() += 1;
    }
    /// Notes a decision of the instance machine.
    pub fn decision(&mut self, rule: &'static str, action: &Action, fault: Option<Fault>) {
        *self.decisions.entry((rule, name(action), fault)).or_default() += 1;
        match (rule, action) {
            ("hand-over", Action::WriteLease { .. }) => self.reach("handed over"),
            ("reserve-again", _) => self.reach("reserved again"),
            _ => {}
        }
    }
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Coverage) {
        for pair in other.pairs() {
            *self.seeds.entry(pair).or_default() += 1;
        }
        for (key, count) in &other.decisions {
            *self.decisions.entry(*key).or_default() += count;
        }
        for (key, count) in &other.operator {
            *self.operator.entry(key.clone()).or_default() += count;
        }
        for (key, count) in &other.faults {
            *self.faults.entry(*key).or_default() += count;
        }
        for (key, count) in &other.reached {
            *self.reached.entry(key).or_default() += count;
        }
        self.events += other.events;
        self.promotions += other.promotions;
        self.failovers += other.failovers;
        self.acknowledged += other.acknowledged;
        self.losses += other.losses;
        self.time += other.time;
    }
    /// What was not reached and should have been.
    pub fn missing(&self) -> Vec<String> {
        let goals = GOALS.iter().filter(|goal| !self.reached.contains_key(*goal));
        let decided = |rule: &str| self.decisions.keys().any(|(known, ..)| *known == rule);
        let rules = RULES.iter().filter(|rule| !decided(rule));
        let faults = Fault::ALL
            .into_iter()
            .chain([Fault::Impersonate])
            .chain(Fault::OF_STORE);
        let faults = faults.filter(|fault| !self.faults.contains_key(fault));
        goals
            .map(|goal| format!("goal {goal:?}"))
            .chain(rules.map(|rule| format!("rule {rule:?}")))
            .chain(faults.map(|fault| format!("fault {fault:?}")))
            .collect()
    }
    /// What was not reached where an operator runs, and should have been.
    pub fn missing_operated(&self) -> Vec<String> {
        let short = |(goal, least): &(&'static str, u64)| {
            let reached = self.reached.get(goal).copied().unwrap_or(0);
            (reached < *least).then(|| format!("goal {goal:?} ({reached} of {least})"))
        };
        let decided = |rule: &str| self.operator.keys().any(|known| known.rule == rule);
        let rules = OPERATOR_RULES.iter().filter(|rule| !decided(rule));
        let faults = Fault::ALL.into_iter().chain(Fault::OPERATED);
        let faults = faults.filter(|fault| !self.faults.contains_key(fault));
        let goals = OPERATED_GOALS.iter().filter_map(short);
        goals
            .chain(rules.map(|rule| format!("rule {rule:?} of the operator")))
            .chain(faults.map(|fault| format!("fault {fault:?}")))
            .collect()
    }
}

fn name(action: &Action) -> &'static str {
    match action {
        Action::Wait => "Wait",
        Action::CreateMember { .. } => "CreateMember",
        Action::StoreCertificate { .. } => "StoreCertificate",
        Action::DiscardStaging => "DiscardStaging",
        Action::TakeSnapshot => "TakeSnapshot",
        Action::Initdb { .. } => "Initdb",
        Action::Clone { .. } => "Clone",
        Action::WriteLease { .. } => "WriteLease",
        Action::ReadLease => "ReadLease",
        Action::StartPrimary { .. } => "StartPrimary",
        Action::Promise { .. } => "Promise",
        Action::Ask { .. } => "Ask",
        Action::AskFailsafe { .. } => "AskFailsafe",
        Action::Promote { .. } => "Promote",
        Action::SetSync { .. } => "SetSync",
        Action::Open => "Open",
        Action::Checkpoint => "Checkpoint",
        Action::Rewind { .. } => "Rewind",
        Action::FetchWal(_) => "FetchWal",
        Action::SetAside { .. } => "SetAside",
        Action::CancelCopy => "CancelCopy",
        Action::DiscardKept { .. } => "DiscardKept",
        Action::StartStandby { .. } => "StartStandby",
        Action::Configure { .. } => "Configure",
        Action::Stop(_) => "Stop",
        Action::EndSenders { .. } => "EndSenders",
        Action::EndImpostors { .. } => "EndImpostors",
        Action::Route { .. } => "Route",
        Action::Admit { .. } => "Admit",
        Action::DropSlots { .. } => "DropSlots",
        Action::Report { .. } => "Report",
        Action::Exit => "Exit",
        Action::GiveUp { .. } => "GiveUp",
    }
}

impl World {
    /// Notes a start of a standby whose WAL goes beyond the fork of the holder's timeline while the location in its
    /// control file does not.
    pub fn count_start(&mut self, node: usize, follows: Option<usize>) {
        let holder = self.holder().filter(|holder| *holder != node && follows.is_none());
        let theirs = holder.and_then(|holder| self.nodes[holder].volume.data.as_ref());
        let own = self.nodes[node].volume.data.as_ref().filter(|data| !data.primary);
        if let (Some(own), Some(theirs)) = (own, theirs)
            && (theirs.primary, own.consistent) == (true, None)
            && (own.redo + 1..own.end.lsn).contains(&self.wal.common(own.end, theirs.end).lsn)
        {
            self.coverage
                .reach("ended beyond the fork, by its control file before it");
        }
    }

    /// Notes what a write of the Lease did; `late`: by a run that has ended.
    pub fn count_lease(&mut self, node: usize, before: &LeaseRecord, after: &LeaseRecord, late: bool) {
        let member = |record: &LeaseRecord| record.holder.as_ref().map(|holder| holder.incarnation.member.clone());
        let released = before
            .release
            .as_ref()
            .filter(|_| before.holder.is_none())
            .map(|release| release.member.clone());
        let (old, new) = (member(before), member(after));
        let coverage = &mut self.coverage;
        if late {
            coverage.reach("write of an ended run");
        }
        if new.is_none() {
            return coverage.reach("released");
        }
        if old == new {
            if after.timeline > before.timeline {
                self.spins += 1;
                if self.spins > SPINS {
                    self.violate(format!(
                        "orders-{node} reserves {SPINS} timelines one after the other and is not promoted"
                    ));
                }
                return;
            }
            if after.timeline == before.timeline && after.epoch > before.epoch {
                coverage.reach("bumped");
            }
            if after.rule.required < before.rule.required || !before.rule.names.is_subset(&after.rule.names) {
                coverage.reach("relaxed");
            } else if after.rule != before.rule {
                coverage.reach("tightened");
            }
            return;
        }
        if released == new {
            return coverage.reach("resumed");
        }
        coverage.failovers += 1;
        self.spins = 0;
        if let Some(released) = released
            && self.api.spec.fenced.contains(&super::names::owner(&released))
        {
            coverage.reach("fenced by the user and replaced");
        }
        let epoch = after.epoch.0;
        self.note(None, || format!("orders-{node} holds the lease, epoch {epoch}"));
    }
}
