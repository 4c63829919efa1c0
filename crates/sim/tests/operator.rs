//! Many seeds of the simulator with an operator: `machine::cluster` above the agents, users who change their minds, and
//! faults of both.

#[path = "support/seeds.rs"]
mod seeds;

use sim::simulator::{Bug, Fault, Injection, Plan, Target, run};

#[test]
fn one_seed_is_one_run() {
    seeds::one_seed_is_one_run(Plan::whole, 20);
}

#[test]
fn every_edit_is_carried_out_and_nothing_is_lost() {
    let coverage = seeds::nothing_is_wrong(Plan::whole, 1_000, " --whole");
    println!("{:?}", coverage.reached);
    let missing = coverage.missing_operated();
    assert!(missing.is_empty(), "never reached: {}", missing.join(", "));
    seeds::pairs_are_reached("operator", coverage, Plan::whole, 1_000);
}

/// Within how many seeds each broken rule of the operator must be found.
const BUDGETS: [(Bug, u64); 2] = [(Bug::OperatorExpectsNothing, 400), (Bug::OperatorTrustsAll, 60)];

#[test]
fn broken_rules_are_found() {
    seeds::broken_rules_are_found(Plan::whole, &BUDGETS);
}

/// Two of three volumes are lost at once, and nothing else happens. In the end the user accepts the loss.
fn two_volumes_lost(seed: u64) -> Plan {
    let lost = |node| Injection {
        fault: Fault::LoseVolume,
        at: 8_000 + seed * 7 % 100,
        lasts: 0,
        target: Target::Node(node),
        other: 0,
    };
    let mut plan = Plan::whole(seed);
    (plan.members, plan.replicas, plan.rates, plan.gone) = (3, 3, vec![0; 3], None);
    plan.length = 20_000;
    plan.faults = vec![lost(0), lost(1)];
    plan
}

/// The new primary may serve only once there is a standby, and its standbys have nothing yet.
#[test]
fn new_members_are_filled_from_the_last_one_after_a_loss_was_accepted() {
    let mut accepted = 0;
    for seed in 0..20 {
        let outcome = run(two_volumes_lost(seed), false);
        assert_eq!(outcome.wrong, None, "seed {seed}");
        assert_eq!(outcome.excused, None, "seed {seed}");
        let served = outcome
            .coverage
            .reached
            .get("served again after the user accepted a loss");
        accepted += served.copied().unwrap_or_default();
    }
    println!("accepted {accepted} times");
    assert!(accepted > 5);
}

/// All pods are replaced one after the other. The operator is stopped for so long that another one leads: after it has
/// read everything that it reads before a delete, or at another moment.
fn stopped_while_it_deletes(seed: u64) -> Plan {
    let strike = |fault, at, lasts| Injection {
        fault,
        at,
        lasts,
        target: Target::Node(0),
        other: 0,
    };
    let mut plan = Plan::whole(seed);
    (plan.members, plan.replicas, plan.rates, plan.gone) = (3, 3, vec![0; 3], None);
    plan.length = 60_000;
    plan.faults = vec![
        strike(Fault::EditTemplate, 8_000, 0),
        strike(Fault::ReplaceOperator, 8_000 + seed * 7 % 100, 17_000),
    ];
    plan
}

#[test]
fn an_operator_that_was_stopped_takes_nothing_away_once_another_may_lead() {
    let (mut held_back, mut found) = (0, None);
    for seed in 0..60 {
        let outcome = run(stopped_while_it_deletes(seed), false);
        assert_eq!(outcome.wrong, None, "seed {seed}");
        let held = outcome
            .coverage
            .reached
            .get("nothing taken away by an operator that may not lead");
        held_back += held.copied().unwrap_or_default();
        let bug = Some(Bug::OperatorActsLate);
        let broken = run(
            Plan {
                bug,
                ..stopped_while_it_deletes(seed)
            },
            false,
        )
        .wrong;
        found = found.or(broken.map(|wrong| (seed, wrong)));
    }
    println!("held back {held_back} times; {found:?}");
    assert!(held_back > 0);
    let (seed, wrong) = found.expect("the broken rule is found");
    assert!(wrong.contains("away, and operator 1 leads"), "seed {seed}: {wrong}");
}
