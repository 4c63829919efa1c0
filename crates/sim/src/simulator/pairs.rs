//! What decided when: each decision by the phase or the fault that it was made in, and what of it every run of many seeds must reach.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use machine::cluster::Decision;

use super::coverage::Coverage;
use super::plan::Fault;
use super::world::World;

/// A fault counts as under way for so long at least, in milliseconds: what a kill brings about comes after it.
const AFTERMATH: u64 = 10_000;
/// What fewer seeds than this reach may be missed by chance, once a change has made other runs of them.
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
    /// The reason, without names and numbers.
    pub because: String,
    /// The fault that began last of those under way.
    pub fault: Option<Fault>,
}

impl Decided {
    /// What kind of decision that is.
    pub fn of(decision: &Decision, fault: Option<Fault>) -> Self {
        Self {
            phase: decision.phase.as_str(),
            rule: decision.rule,
            action: decision.action.name(),
            because: kind_of(&decision.because.0),
            fault,
        }
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, rule, action) = (self.phase, self.rule, self.action);
        write!(f, "{phase}, {}: {rule}: {action} — {}", named(self.fault), self.because)
    }
}

/// Words with a digit, or what is in quotes, are names, times and numbers; several in a row are as one.
fn kind_of(text: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in text.split_whitespace() {
        let name = word.contains(|letter: char| letter.is_ascii_digit() || letter == '"');
        match (name, words.last()) {
            (true, Some(&"…")) => {}
            (true, _) => words.push("…"),
            (false, _) => words.push(word),
        }
    }
    words.join(" ")
}

fn named(fault: Option<Fault>) -> String {
    fault.map_or_else(|| "none".to_owned(), |fault| format!("{fault:?}"))
}

/// A decision (whose, rule, action; of the phases, or of the faults), and one of the phases or faults.
pub type Pair = (String, String);

impl Coverage {
    /// What these runs reached.
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

    /// What is in `list` (as [`list`] writes it), and none of these runs reached.
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
    /// A fault begins that lasts so many milliseconds.
    pub fn fault_begins(&mut self, fault: Fault, lasts: u64) {
        self.under_way.push((fault, self.now + lasts.max(AFTERMATH)));
    }

    /// The fault that began last of those that are under way.
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

    #[test]
    fn reasons_are_compared_without_names_and_numbers() {
        assert_eq!(
            kind_of("orders-1, orders-2 are away for 12 s: waiting"),
            "… are away for … s: waiting"
        );
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
