//! Many seeds of the simulator: nothing may be lost, and what a simulator is for must be reached.

#[path = "support/seeds.rs"]
mod seeds;

use sim::simulator::{Bug, Fault, Plan, run, shrink};

#[test]
fn one_seed_is_one_run() {
    seeds::one_seed_is_one_run(Plan::of, 40);
}

#[test]
fn nothing_is_lost_and_all_goals_are_reached() {
    let missing = seeds::nothing_is_wrong(Plan::of, 2_000, "").missing();
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
    seeds::broken_rules_are_found(Plan::of, &BUDGETS);
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
