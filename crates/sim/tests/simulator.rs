//! Many seeds of the simulator: nothing may be lost, and what a simulator is for must be reached.

use std::collections::BTreeSet;

use sim::simulator::{Bug, Coverage, Fault, Plan, run, shrink};

/// So many seeds are run, or as many as `SIM_SEEDS` says.
fn seeds() -> u64 {
    let seeds = std::env::var("SIM_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(2_000)
}

#[test]
fn one_seed_is_one_run() {
    let mut fingerprints = BTreeSet::new();
    for seed in 0..40 {
        let (one, two) = (run(Plan::of(seed), false), run(Plan::of(seed), true));
        assert_eq!(
            one.fingerprint, two.fingerprint,
            "seed {seed}: a run depends on something else than its seed"
        );
        fingerprints.insert(one.fingerprint);
    }
    assert_eq!(fingerprints.len(), 40, "different seeds are different runs");
}

#[test]
fn nothing_is_lost_and_all_goals_are_reached() {
    let mut coverage = Coverage::default();
    for seed in 0..seeds() {
        let outcome = run(Plan::of(seed), false);
        coverage.add(&outcome.coverage);
        if let Some(wrong) = outcome.wrong {
            panic!(
                "seed {seed}: {wrong}\nits faults and all decisions: cargo run -p sim -- explain {seed}; fewer: shrink {seed}"
            );
        }
    }
    println!(
        "{} seeds: {} failovers, {} acknowledged commits, {:.0} hours",
        seeds(),
        coverage.failovers,
        coverage.acknowledged,
        coverage.time as f64 / 3_600_000.0
    );
    let missing = coverage.missing();
    assert!(missing.is_empty(), "never reached: {}", missing.join(", "));
}

/// In how many seeds each broken rule must be found.
const BUDGETS: [(Bug, u64); 6] = [
    (Bug::FenceIsSkipped, 20),
    (Bug::StalePromiseCounts, 60),
    (Bug::AnyPositionWins, 150),
    (Bug::LeaseIsOverwritten, 20),
    (Bug::TimelineIsUsedTwice, 150),
    (Bug::EpochIsNotRaised, 60),
];

#[test]
fn broken_rules_are_found() {
    let mut unfound = Vec::new();
    for (bug, budget) in BUDGETS {
        let broken = |seed| Plan {
            bug: Some(bug),
            ..Plan::of(seed)
        };
        match (0..budget).find_map(|seed| Some((seed, run(broken(seed), false).wrong?))) {
            Some((seed, wrong)) => println!("{bug:?}: seed {seed}: {wrong}"),
            None => unfound.push(format!("{bug:?} in {budget} seeds")),
        }
    }
    assert!(unfound.is_empty(), "not found: {}", unfound.join(", "));
}

#[test]
fn what_fails_is_shrunk_to_fewer_faults_that_still_fail() {
    let broken = |seed| Plan {
        bug: Some(Bug::LeaseIsOverwritten),
        ..Plan::of(seed)
    };
    let fails = |seed: &u64| run(broken(*seed), false).wrong.is_some() && broken(*seed).faults.len() > 5;
    let seed = (0..200).find(fails).expect("a seed that fails");
    let left_out = shrink(&broken(seed)).expect("it fails");
    assert!(
        !left_out.is_empty(),
        "all {} faults were needed",
        broken(seed).faults.len()
    );
    assert!(run(broken(seed).without(&left_out), false).wrong.is_some());
}

#[test]
fn a_primary_that_is_killed_is_replaced_each_time() {
    let outcome = run(Plan::failovers(1, Fault::Reboot, 10), false);
    assert_eq!(outcome.wrong, None);
    assert_eq!(outcome.coverage.failovers, 10);
}
