//! Every interleaving of a small world.

use sim::model::bounds::{Bounds, Event, Mutant};
use sim::model::check::formed;
use sim::model::observe::Decider;
use sim::model::search::{Report, search, walk};

fn explain(report: &Report) -> String {
    match &report.wrong {
        None => String::new(),
        Some((course, what)) => format!("{what}\n{}", course.join("\n")),
    }
}

const BOUNDS: Bounds = Bounds {
    faults: 1,
    records: 2,
    epochs: 3,
    durability: 1,
    mutant: None,
};

#[test]
fn nothing_acknowledged_is_lost_with_one_fault() {
    let start = std::time::Instant::now();
    let report = search(formed(1), BOUNDS, 1_000_000);
    println!(
        "{:?} {} states {} steps {} decisions {:?} complete {}",
        start.elapsed(),
        report.states,
        report.steps,
        report.decisions,
        report.events,
        report.complete
    );
    assert!(report.wrong.is_none(), "{}", explain(&report));
}

const LONG: Bounds = Bounds {
    faults: 12,
    records: 6,
    epochs: 40,
    ..BOUNDS
};

#[test]
fn nothing_acknowledged_is_lost_in_long_courses_with_many_faults() {
    let courses = std::env::var("MODEL_COURSES")
        .ok()
        .and_then(|courses| courses.parse().ok())
        .unwrap_or(3_000);
    let start = std::time::Instant::now();
    let report = walk(&mut Decider::new(1), formed(1), LONG, 7, courses, 400);
    println!(
        "{:?} {} states {} steps {} decisions {:?}",
        start.elapsed(),
        report.states,
        report.steps,
        report.decisions,
        report.events
    );
    assert!(report.wrong.is_none(), "{}", explain(&report));
    for event in [
        Event::Promoted,
        Event::Bumped,
        Event::Relaxed,
        Event::Tightened,
        Event::Rewound,
        Event::Refused,
        Event::Opened,
        Event::Resumed,
        Event::Released,
    ] {
        assert!(report.events.contains_key(&event), "{event:?} never happened");
    }
}

/// Whatever rule is broken, the model notices.
#[test]
fn every_mutant_is_found() {
    let mutants = [
        Mutant::PromiseKeepsReceiving,
        Mutant::PromiseIsForgotten,
        Mutant::PositionIsNotFinal,
        Mutant::OnePromiseIsEnough,
        Mutant::AnyPositionWins,
        Mutant::RuleIsSetFirst,
        Mutant::RuleIsRecordedUnflushed,
        Mutant::ReloadIsNotProven,
        Mutant::LeaseIsOverwritten,
        Mutant::TimelineIsUsedTwice,
    ];
    let mut decider = Decider::new(1);
    let mut survivors = Vec::new();
    for mutant in mutants {
        let bounds = Bounds {
            mutant: Some(mutant),
            faults: 5,
            records: 4,
            ..LONG
        };
        let start = std::time::Instant::now();
        let found = (1..=20).find_map(|seed| {
            let report = walk(&mut decider, formed(1), bounds, seed, 5_000, 200);
            report.wrong.map(|(course, what)| (seed, course.len(), what))
        });
        match found {
            Some((seed, length, what)) => {
                let what = what.lines().next().unwrap_or_default();
                println!("{mutant:?}: {what}, seed {seed}, {length} steps, {:?}", start.elapsed());
            }
            None => {
                println!("{mutant:?}: not found, {:?}", start.elapsed());
                survivors.push(mutant);
            }
        }
    }
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}
