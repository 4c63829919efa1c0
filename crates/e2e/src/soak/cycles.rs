//! Transactions that depend on each other in a circle: no order of them one after another explains what they saw.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::soak::record::Key;

/// At most this many transactions are tried as the start of a cycle. In a history with so many, any cycle will do.
const STARTS: usize = 1_000;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Because {
    /// It appended to the list right before the other did.
    AppendedBefore(Key),
    /// The other read what it appended.
    WasRead(Key),
    /// It read the list without what the other appended.
    DidNotSee(Key),
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AppendedBefore(key) => write!(f, "appended to {key} before"),
            Self::WasRead(key) => write!(f, "appended to {key} what was read by"),
            Self::DidNotSee(key) => write!(f, "read {key} without what was appended by"),
        }
    }
}

/// Which transaction comes before which.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    after: BTreeMap<usize, BTreeMap<usize, Because>>,
}

impl Graph {
    /// Notes that `first` comes before `then`. No transaction comes before itself.
    pub fn add(&mut self, first: usize, then: usize, because: Because) {
        if first != then {
            self.after.entry(first).or_default().entry(then).or_insert(because);
        }
    }

    /// A shortest cycle: each transaction, and why it comes before the next (the last before the first).
    #[must_use]
    pub fn shortest_cycle(&self) -> Option<Vec<(usize, Because)>> {
        let core = self.core();
        let cycles = core
            .after
            .keys()
            .take(STARTS)
            .filter_map(|start| core.cycle_from(*start));
        cycles.min_by_key(Vec::len)
    }

    /// The same without transactions that are certainly on no cycle: those without a predecessor, or without a successor.
    fn core(&self) -> Self {
        let mut core = self.clone();
        for _ in 0..2 {
            // Once forwards and once backwards.
            core = core.without_ends().reversed();
        }
        core
    }

    fn without_ends(mut self) -> Self {
        let before = self.reversed();
        let count = |graph: &Self, at: usize| graph.after.get(&at).map_or(0, BTreeMap::len);
        let mut left: BTreeMap<usize, usize> = before.after.keys().map(|at| (*at, count(&self, *at))).collect();
        let mut ends: Vec<usize> = left.iter().filter(|(_, n)| **n == 0).map(|(at, _)| *at).collect();
        while let Some(end) = ends.pop() {
            for first in before.after.get(&end).into_iter().flatten().map(|(first, _)| *first) {
                if let Some(followers) = self.after.get_mut(&first) {
                    followers.remove(&end);
                    if followers.is_empty() {
                        self.after.remove(&first);
                    }
                }
                if let Some(n) = left.get_mut(&first) {
                    *n -= 1;
                    if *n == 0 {
                        ends.push(first);
                    }
                }
            }
        }
        self
    }

    fn reversed(&self) -> Self {
        let mut reversed = Self::default();
        for (first, followers) in &self.after {
            for (then, because) in followers {
                reversed.add(*then, *first, *because);
            }
        }
        reversed
    }

    /// The shortest path from `start` back to it.
    fn cycle_from(&self, start: usize) -> Option<Vec<(usize, Because)>> {
        let mut came: BTreeMap<usize, (usize, Because)> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for (then, because) in self.after.get(&at).into_iter().flatten() {
                if *then == start {
                    return Some(way(&came, start, at, *because));
                }
                if !came.contains_key(then) {
                    came.insert(*then, (at, *because));
                    queue.push_back(*then);
                }
            }
        }
        None
    }
}

/// From `start` to `last`, which leads back by `because`.
fn way(came: &BTreeMap<usize, (usize, Because)>, start: usize, last: usize, because: Because) -> Vec<(usize, Because)> {
    let mut cycle = vec![(last, because)];
    let mut at = last;
    while at != start
        && let Some((before, because)) = came.get(&at)
    {
        cycle.push((*before, *because));
        at = *before;
    }
    cycle.reverse();
    cycle
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BECAUSE: Because = Because::AppendedBefore(0);

    fn graph(edges: &[(usize, usize)]) -> Graph {
        let mut graph = Graph::default();
        for (first, then) in edges {
            graph.add(*first, *then, BECAUSE);
        }
        graph
    }

    fn nodes(cycle: &[(usize, Because)]) -> Vec<usize> {
        cycle.iter().map(|(node, _)| *node).collect()
    }

    #[test]
    fn the_shortest_cycle_is_found_among_others_and_dead_ends() {
        let edges = [(9, 1), (1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (5, 6), (6, 7)];
        assert_eq!(nodes(&graph(&edges).shortest_cycle().unwrap()), [4, 5]);
    }

    #[test]
    fn there_is_none_in_a_history_that_has_an_order() {
        assert_eq!(graph(&[(1, 2), (2, 3), (1, 3), (4, 3)]).shortest_cycle(), None);
        assert_eq!(graph(&[(1, 1)]).shortest_cycle(), None);
    }

    proptest! {
        #[test]
        fn edges_in_one_direction_make_no_cycle_and_one_back_does(
            edges in proptest::collection::vec((0usize..30, 0usize..30), 0..80),
        ) {
            let forward: Vec<_> = edges.iter().map(|(a, b)| (*a.min(b), *a.max(b))).filter(|(a, b)| a != b).collect();
            prop_assert_eq!(graph(&forward).shortest_cycle(), None);
            if let Some((first, then)) = forward.first() {
                let mut back = forward.clone();
                back.push((*then, *first));
                let cycle = graph(&back).shortest_cycle().unwrap();
                prop_assert_eq!(cycle.len(), 2);
            }
        }

        #[test]
        fn every_reported_cycle_is_one(
            edges in proptest::collection::vec((0usize..12, 0usize..12), 0..40),
        ) {
            let graph = graph(&edges);
            if let Some(cycle) = graph.shortest_cycle() {
                let found = nodes(&cycle);
                for (at, then) in found.iter().zip(found.iter().cycle().skip(1)) {
                    prop_assert!(graph.after[at].contains_key(then));
                }
            }
        }
    }
}
