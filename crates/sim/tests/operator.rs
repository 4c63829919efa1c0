//! Many seeds of the simulator with an operator: `machine::cluster` over the agents, users who change their minds, and faults of both.

#[path = "support/seeds.rs"]
mod seeds;

use sim::simulator::{Bug, Plan};

#[test]
fn one_seed_is_one_run() {
    seeds::one_seed_is_one_run(Plan::whole, 20);
}

#[test]
fn every_edit_comes_about_and_nothing_is_lost() {
    let coverage = seeds::nothing_is_wrong(Plan::whole, 1_000, " --whole");
    println!("{:?}", coverage.reached);
    let missing = coverage.missing_operated();
    assert!(missing.is_empty(), "never reached: {}", missing.join(", "));
    seeds::pairs_are_reached("operator", coverage, Plan::whole, 1_000);
}

/// In how many seeds each broken rule of the operator must be found.
const BUDGETS: [(Bug, u64); 2] = [(Bug::OperatorExpectsNothing, 400), (Bug::OperatorTrustsAll, 60)];

#[test]
fn broken_rules_are_found() {
    seeds::broken_rules_are_found(Plan::whole, &BUDGETS);
}
