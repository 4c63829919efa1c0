//! Decisions by the phase or the fault in which they were made, and which of them every run of many seeds must reach.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api::status::WaitReason;
use machine::cluster::{Action, Decision};

use super::coverage::Coverage;
use super::plan::Fault;
use super::world::World;

/// How long a fault counts as under way at least, in milliseconds: the consequences of a kill come after it.
const AFTERMATH: u64 = 10_000;
/// A pair that fewer seeds reach may be missed by chance after a change of the code.
const RELIABLE: u64 = 12;

/// A kind of decision of the operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decided {
    /// The phase after it.
    pub phase: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// The action.
    pub action: &'static str,
    /// What it waits for, if it does.
    pub reason: Option<WaitReason>,
    /// The most recent fault that is under way.
    pub fault: Option<Fault>,
}

impl Decided {
    /// The kind of this decision.
    pub fn of(decision: &Decision, fault: Option<Fault>) -> Self {
        Self {
            phase: decision.phase.as_str(),
            rule: decision.rule,
            action: decision.action.name(),
            reason: match &decision.action {
                Action::Wait(waiting) => Some(waiting.reason),
                _ => None,
            },
            fault,
        }
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, rule, action) = (self.phase, self.rule, self.action);
        write!(f, "{phase}, {}: {rule}: {action}", named(self.fault))?;
        self.reason.map_or(Ok(()), |reason| write!(f, " for {reason}"))
    }
}

fn named(fault: Option<Fault>) -> String {
    fault.map_or_else(|| "none".to_owned(), |fault| format!("{fault:?}"))
}

/// A decision (of an agent or the operator, with rule and action; by phases or faults), and one of the phases or
/// faults.
pub type Pair = (String, String);

impl Coverage {
    /// The pairs that these runs reached.
    pub fn pairs(&self) -> BTreeSet<Pair> {
        let agents = self.decisions.keys();
        let agents = agents.map(|(rule, action, fault)| (format!("agent: {rule}: {action}, faults"), named(*fault)));
        let operator = self.operator.keys().flat_map(|decided| {
            let what = format!("operator: {}: {}", decided.rule, decided.action);
            let phase = (format!("{what}, phases"), decided.phase.to_owned());
            [phase, (format!("{what}, faults"), named(decided.fault))]
        });
        agents.chain(operator).collect()
    }

    /// Pairs in `list` (as [`list`] writes it) that none of these runs reached.
    pub fn unreached(&self, list: &str) -> Vec<String> {
        let lines = list.lines().filter_map(|line| line.rsplit_once(": "));
        let listed =
            lines.flat_map(|(what, wheres)| wheres.split(' ').map(move |one| (what.to_owned(), one.to_owned())));
        let unreached = listed.filter(|pair| !self.seeds.contains_key(pair));
        unreached.map(|(what, one)| format!("{what}: {one}")).collect()
    }
}

/// What enough seeds of each of these ranges reached: one line for each decision, with its phases or faults.
pub fn list(ranges: &[Coverage]) -> String {
    let reached = |pair: &Pair, coverage: &Coverage| coverage.seeds.get(pair).is_some_and(|seeds| *seeds >= RELIABLE);
    let mut lines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pair in ranges.iter().flat_map(|coverage| coverage.seeds.keys()) {
        let known = lines.entry(&pair.0).or_default();
        if !known.contains(&pair.1.as_str()) && ranges.iter().all(|coverage| reached(pair, coverage)) {
            known.push(&pair.1);
        }
    }
    let lines = lines.iter().filter(|(_, wheres)| !wheres.is_empty());
    lines
        .map(|(what, wheres)| format!("{what}: {}\n", wheres.join(" ")))
        .collect()
}

impl World {
    /// Notes that a fault begins and lasts this many milliseconds.
    pub fn fault_begins(&mut self, fault: Fault, lasts: u64) {
        self.under_way.push((fault, self.now + lasts.max(AFTERMATH)));
    }

    /// The most recent fault that is under way.
    pub fn last_fault(&self) -> Option<Fault> {
        let last = self.under_way.iter().rev().find(|(_, until)| self.now < *until);
        last.map(|(fault, _)| *fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(rule: &'static str, fault: Option<Fault>, seeds: u64) -> Coverage {
        let mut all = Coverage::default();
        for _ in 0..seeds {
            let mut one = Coverage::default();
            one.decisions.insert((rule, "Stop", fault), 3);
            all.add(&one);
        }
        all
    }

    /// The operator's decision about three instances, of which these are not ready.
    fn decided(unready: &[u32]) -> Decided {
        let mut scene = machine::cluster::model::Scene::ready(3);
        for ordinal in unready {
            scene.pod_mut(*ordinal).ready = false;
        }
        Decided::of(&scene.decide(), None)
    }

    #[test]
    fn waits_for_the_same_reason_are_of_one_kind_whatever_they_name() {
        assert_eq!(decided(&[1]).reason, Some(WaitReason::StandbyJoining));
        assert_eq!(decided(&[1]), decided(&[1, 2]));
        assert_ne!(decided(&[1]), decided(&[0]));
    }

    #[test]
    fn what_each_range_reaches_often_is_listed_and_missed_where_it_is_not_reached() {
        let often = || coverage("fence", Some(Fault::Reboot), RELIABLE);
        let listed = list(&[often(), often()]);
        assert_eq!(listed, "agent: fence: Stop, faults: Reboot\n");
        assert_eq!(
            list(&[often(), coverage("fence", Some(Fault::Reboot), RELIABLE - 1)]),
            ""
        );
        assert_eq!(often().unreached(&listed), Vec::<String>::new());
        let other = coverage("fence", None, 1);
        assert_eq!(other.unreached(&listed), ["agent: fence: Stop, faults: Reboot"]);
    }
}
