//! Whole runs: one run, and the smallest plan that still fails.

use std::collections::BTreeSet;

use super::coverage::Coverage;
use super::plan::{Fault, Plan};
use super::trace::Line;
use super::world::World;

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What is wrong.
    pub wrong: Option<String>,
    /// A valid reason why the database does not serve in the end.
    pub excused: Option<String>,
    /// Fingerprint of everything that happened.
    pub fingerprint: u64,
    /// What was reached.
    pub coverage: Coverage,
    /// Writes of applications: acknowledged, unknown, refused.
    pub writes: (u64, u64, u64),
    /// The table, if it was requested.
    pub lines: Vec<Line>,
}

/// Runs a plan; `explained`: with the table.
pub fn run(plan: Plan, explained: bool) -> Outcome {
    let mut world = World::new(plan, explained);
    world.run();
    let mut coverage = world.coverage;
    (coverage.acknowledged, coverage.losses, coverage.time) =
        (world.checks.acknowledged, world.checks.losses, world.now);
    let sum = |of: fn(&super::clients::Client) -> u64| world.clients.iter().map(of).sum();
    Outcome {
        wrong: world.wrong,
        excused: world.excused,
        fingerprint: world.trace.fingerprint(),
        writes: (
            sum(|client| client.acknowledged),
            sum(|client| client.unknown),
            sum(|client| client.refused),
        ),
        lines: world.trace.lines(),
        coverage,
    }
}

/// Leaves faults out, first whole kinds, then single ones, as long as something is still wrong. Returns the numbers of
/// the faults left out; `None` if nothing is wrong to begin with.
pub fn shrink(plan: &Plan) -> Option<BTreeSet<usize>> {
    let fails = |left_out: &BTreeSet<usize>| run(plan.clone().without(left_out), false).wrong.is_some();
    let mut left_out = BTreeSet::new();
    if !fails(&left_out) {
        return None;
    }
    let kinds: BTreeSet<Fault> = plan.chosen().map(|(_, fault)| fault.fault).collect();
    let of_kind = |kind: Fault| {
        plan.chosen()
            .filter(move |(_, fault)| fault.fault == kind)
            .map(|(index, _)| index)
            .collect()
    };
    let single = plan.chosen().map(|(index, _)| BTreeSet::from([index]));
    let groups: Vec<BTreeSet<usize>> = kinds.into_iter().map(of_kind).chain(single).collect();
    loop {
        let before = left_out.len();
        for group in &groups {
            let more: BTreeSet<usize> = left_out.union(group).copied().collect();
            if more.len() > left_out.len() && fails(&more) {
                left_out = more;
            }
        }
        if left_out.len() == before {
            return Some(left_out);
        }
    }
}
