//! Many seeds of the simulator with an operator: `machine::cluster` over the agents, users who change their minds, and faults of both.

use std::collections::BTreeSet;

use sim::simulator::{Bug, Coverage, Plan, run};

/// So many seeds are run, or as many as `SIM_SEEDS` says.
fn seeds() -> u64 {
    let seeds = std::env::var("SIM_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(1_000)
}

#[test]
fn one_seed_is_one_run() {
    let mut fingerprints = BTreeSet::new();
    for seed in 0..20 {
        let (one, two) = (run(Plan::whole(seed), false), run(Plan::whole(seed), true));
        assert_eq!(
            one.fingerprint, two.fingerprint,
            "seed {seed}: a run depends on something else than its seed"
        );
        fingerprints.insert(one.fingerprint);
    }
    assert_eq!(fingerprints.len(), 20, "different seeds are different runs");
}

#[test]
fn every_edit_comes_about_and_nothing_is_lost() {
    let mut coverage = Coverage::default();
    for seed in 0..seeds() {
        let outcome = run(Plan::whole(seed), false);
        coverage.add(&outcome.coverage);
        if let Some(wrong) = outcome.wrong {
            panic!(
                "seed {seed}: {wrong}\nits faults and all decisions: cargo run -p sim -- explain {seed} --whole; fewer: shrink {seed} --whole"
            );
        }
    }
    println!(
        "{} seeds: {} failovers, {} acknowledged commits, {:.0} hours; {:?}",
        seeds(),
        coverage.failovers,
        coverage.acknowledged,
        coverage.time as f64 / 3_600_000.0,
        coverage.reached
    );
    let missing = coverage.missing_operated();
    assert!(missing.is_empty(), "never reached: {}", missing.join(", "));
}

/// In how many seeds each broken rule of the operator must be found.
const BUDGETS: [(Bug, u64); 2] = [(Bug::OperatorExpectsNothing, 60), (Bug::OperatorTrustsAll, 60)];

#[test]
fn broken_rules_are_found() {
    let mut unfound = Vec::new();
    for (bug, budget) in BUDGETS {
        let broken = |seed| Plan {
            bug: Some(bug),
            ..Plan::whole(seed)
        };
        match (0..budget).find_map(|seed| Some((seed, run(broken(seed), false).wrong?))) {
            Some((seed, wrong)) => println!("{bug:?}: seed {seed}: {wrong}"),
            None => unfound.push(format!("{bug:?} in {budget} seeds")),
        }
    }
    assert!(unfound.is_empty(), "not found: {}", unfound.join(", "));
}
