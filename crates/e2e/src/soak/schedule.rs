//! Which faults, when and for how long: all of it follows from a seed.

use std::fmt;
use std::time::Duration;

use crate::availability::scenario::{Needs, Scenario, all};
use crate::soak::random::Random;

/// Percentage of rounds with a second fault.
const PAIRS: u64 = 35;
/// Percentage of rounds that begin with a kill of the operator's pods.
const OPERATOR_KILLED: u64 = 20;

/// Times in seconds.
type Seconds = std::ops::RangeInclusive<u64>;

/// A fault that can be drawn: a scenario, how long it lasts, how often it is drawn, and what may come on top of it.
struct Kind {
    scenario: &'static str,
    lasts: Seconds,
    weight: u64,
    partners: &'static [&'static str],
}

const AT_ONCE: Seconds = 0..=0;
/// What can come on top of a stopped primary: nothing that must be done to that primary.
const ELSEWHERE: &[&str] = &["standby-cut", "api-down"];
/// What can come on top of a fault that was over at once.
const ANYTHING: &[&str] = &[
    "standby-cut",
    "api-down",
    "postmaster-kill",
    "container-kill",
    "node-cut",
    "switchover",
];

/// Omitted on purpose: a pod deleted with force while its node is cut off. docs/design.md leaves that to the person who
/// uses force.
const KINDS: [Kind; 17] = [
    kind(
        "switchover",
        5..=15,
        4,
        &[
            "standby-cut",
            "api-down",
            "postmaster-kill",
            "container-kill",
            "node-cut",
        ],
    ),
    kind("pod-delete", AT_ONCE, 4, ELSEWHERE),
    kind("pod-delete-forced", AT_ONCE, 4, ELSEWHERE),
    kind("postmaster-kill", AT_ONCE, 4, ANYTHING),
    kind("container-kill", AT_ONCE, 4, ANYTHING),
    kind("postmaster-stop", 5..=20, 3, ELSEWHERE),
    kind("agent-stop", 5..=20, 3, ELSEWHERE),
    kind(
        "node-cut",
        3..=25,
        5,
        &["postmaster-kill", "container-kill", "api-down"],
    ),
    kind(
        "api-cut",
        5..=25,
        4,
        &["postmaster-kill", "container-kill", "standby-cut"],
    ),
    kind(
        "api-down",
        5..=25,
        3,
        &["standby-cut", "postmaster-kill", "container-kill"],
    ),
    kind("freeze", 3..=25, 4, ELSEWHERE),
    kind(
        "standby-cut",
        3..=25,
        3,
        &[
            "api-down",
            "postmaster-kill",
            "container-kill",
            "node-cut",
            "switchover",
        ],
    ),
    kind("rolling-parameter", AT_ONCE, 1, ELSEWHERE),
    kind("rolling-resources", AT_ONCE, 1, ELSEWHERE),
    kind("rolling-image", AT_ONCE, 1, ELSEWHERE),
    kind("disk-hang", 5..=25, 4, ELSEWHERE),
    kind("disk-full", 5..=20, 2, &[]),
];

const fn kind(scenario: &'static str, lasts: Seconds, weight: u64, partners: &'static [&'static str]) -> Kind {
    Kind {
        scenario,
        lasts,
        weight,
        partners,
    }
}

/// One fault, or two at once; then everything must recover by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Counted from 1.
    pub number: usize,
    /// How long nothing happens before the round.
    pub pause: Duration,
    /// The operator's pods are killed at the beginning.
    pub operator_killed: bool,
    /// What happens.
    pub faults: Vec<Timed>,
}

/// A fault in its round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// From the beginning of the round.
    pub after: Duration,
    /// The fault.
    pub scenario: Scenario,
    /// When it is undone, from its own beginning.
    pub lasts: Duration,
    /// Selects one of the standbys, if the target is a standby.
    pub choice: u64,
}

/// The rounds of a seed, without an end.
pub struct Schedule {
    random: Random,
    known: Vec<Scenario>,
    number: usize,
}

impl Schedule {
    /// The rounds of this seed, with only those faults that are `possible`.
    #[must_use]
    pub fn new(seed: u64, possible: impl Fn(Needs) -> bool) -> Self {
        let mut known = all();
        known.retain(|scenario| possible(scenario.fault.needs()));
        Self {
            random: Random::new(seed),
            known,
            number: 0,
        }
    }

    /// A fault of one of the `fit` kinds, if any is possible.
    fn fault(&mut self, fit: impl Fn(&Kind) -> bool, after: Duration) -> Option<Timed> {
        let find = |kind: &Kind| self.known.iter().find(|known| known.name == kind.scenario).cloned();
        let fit: Vec<(&Kind, Scenario)> = KINDS
            .iter()
            .filter(|kind| fit(kind))
            .filter_map(|kind| Some((kind, find(kind)?)))
            .collect();
        let total: u64 = fit.iter().map(|(kind, _)| kind.weight).sum();
        let mut drawn = self.random.within(1..=total.max(1));
        let (kind, scenario) = fit.into_iter().find(|(kind, _)| {
            let found = drawn <= kind.weight;
            drawn = drawn.saturating_sub(kind.weight);
            found
        })?;
        Some(Timed {
            after,
            scenario,
            lasts: Duration::from_secs(self.random.within(kind.lasts.clone())),
            choice: self.random.draw(),
        })
    }
}

impl Iterator for Schedule {
    type Item = Round;

    fn next(&mut self) -> Option<Round> {
        let pause = Duration::from_millis(self.random.within(1_000..=8_000));
        let operator_killed = self.random.chance(OPERATOR_KILLED);
        let first = self.fault(|_| true, Duration::ZERO)?;
        let second = if self.random.chance(PAIRS) {
            let after = Duration::from_millis(self.random.within(0..=8_000));
            let partners = KINDS
                .iter()
                .find(|kind| kind.scenario == first.scenario.name)
                .map_or(&[][..], |kind| kind.partners);
            self.fault(|kind| partners.contains(&kind.scenario), after)
        } else {
            None
        };
        self.number += 1;
        Some(Round {
            number: self.number,
            pause,
            operator_killed,
            faults: std::iter::once(first).chain(second).collect(),
        })
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.number)?;
        if self.operator_killed {
            f.write_str(" operator killed,")?;
        }
        for (place, fault) in self.faults.iter().enumerate() {
            if place > 0 {
                write!(f, ", after {:.1} s", fault.after.as_secs_f64())?;
            }
            write!(f, " {}", fault.scenario.name)?;
            if !fault.lasts.is_zero() {
                write!(f, " for {} s", fault.lasts.as_secs())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::availability::scenario::Heal;

    #[test]
    fn every_scenario_can_be_drawn_and_lasts_if_it_must_be_undone() {
        let known = all();
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.scenario).collect();
        assert_eq!(names, known.iter().map(|scenario| scenario.name.as_str()).collect());
        for kind in &KINDS {
            let scenario = known.iter().find(|known| known.name == kind.scenario).unwrap();
            assert_eq!(
                kind.lasts == AT_ONCE,
                scenario.heal == Heal::Nothing,
                "{}",
                kind.scenario
            );
            assert!(kind.partners.iter().all(|partner| names.contains(partner)));
            assert!(
                !kind.partners.contains(&kind.scenario) || kind.lasts == AT_ONCE,
                "{}",
                kind.scenario
            );
        }
    }

    #[test]
    fn a_seed_repeats_its_rounds_and_all_kinds_come() {
        let rounds = |seed| Schedule::new(seed, |_| true).take(500).collect::<Vec<_>>();
        let drawn = rounds(7);
        assert_eq!(drawn, rounds(7));
        assert_ne!(drawn, rounds(8));
        let faults = drawn.iter().flat_map(|round| &round.faults);
        let names: BTreeSet<&str> = faults.map(|fault| fault.scenario.name.as_str()).collect();
        assert_eq!(names.len(), KINDS.len());
        let pairs = drawn.iter().filter(|round| round.faults.len() == 2).count();
        assert!((100..250).contains(&pairs), "{pairs}");
    }

    #[test]
    fn what_is_not_possible_is_not_drawn() {
        let rounds = Schedule::new(3, |needs| matches!(needs, Needs::Nothing | Needs::Own)).take(100);
        for round in rounds {
            for fault in &round.faults {
                assert!(
                    matches!(fault.scenario.fault.needs(), Needs::Nothing | Needs::Own),
                    "{round}"
                );
            }
        }
        assert_eq!(Schedule::new(3, |_| false).next(), None);
    }
}
