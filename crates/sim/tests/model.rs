//! Every interleaving of a small world, and long courses in larger ones.

use std::collections::BTreeMap;
use std::time::Duration;

use sim::model::bounds::{Bounds, Event, Mutant};
use sim::model::check::{cut, formed, parted, shrinking};
use sim::model::observe::Decider;
use sim::model::search::{Report, search};
use sim::model::state::World;
use sim::model::table::table;
use sim::model::walk::{Walk, walk};

/// What is searched as a whole.
const SMALL: Bounds = Bounds {
    faults: 1,
    records: 2,
    epochs: 3,
    edits: 0,
    timed: false,
    deletable: false,
    mutant: None,
};
/// What is walked through.
const LARGE: Bounds = Bounds {
    faults: 12,
    records: 6,
    epochs: 40,
    edits: 2,
    ..SMALL
};
const TIMED: Bounds = Bounds { timed: true, ..LARGE };

/// How long this thread has computed; the machine may do other things as well.
fn computed() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = schedstat
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn figures<const N: usize>(name: &str, begun: Duration, report: &Report<N>) {
    let took = computed() - begun;
    let rate = report.states as f64 / took.as_secs_f64();
    println!(
        "{name}: {} states, {} steps, {} decisions, {took:.1?} of one core, {rate:.0} states/s; {} converged, in {} steps \
         at most\n  {:?}",
        report.states, report.steps, report.decisions, report.converged, report.longest, report.events
    );
}

/// Searches all states, and compares their number.
fn whole<const N: usize>(name: &str, start: World<N>, bounds: Bounds, states: usize) -> BTreeMap<Event, u64> {
    let begun = computed();
    let report = search(start, bounds, 6_000_000);
    figures(name, begun, &report);
    assert!(report.wrong.is_none(), "{name}: {}", report.explain());
    assert!(
        report.complete,
        "{name}: it has grown beyond what can be searched in a test"
    );
    assert_eq!(
        report.states, states,
        "{name}: the machine or the model reaches other states than before. If that is what the change is for, and the events \
         above are as expected, write the new number into this test and into docs/model.md"
    );
    report.events
}

fn reached<const N: usize>(report: &Report<N>, events: &[Event]) {
    for event in events {
        assert!(report.events.contains_key(event), "{event:?} never happened");
    }
}

/// Walks so many courses, or as many as `MODEL_COURSES` says.
fn courses(usual: usize) -> usize {
    let courses = std::env::var("MODEL_COURSES").ok();
    courses.and_then(|courses| courses.parse().ok()).unwrap_or(usual)
}

fn walked<const N: usize>(name: &str, required: u8, bounds: Bounds, usual: usize) -> Report<N> {
    let begun = computed();
    let plan = Walk {
        seed: 7,
        courses: courses(usual),
        length: 400,
        converge: 4,
    };
    let report = walk(&mut Decider::new(bounds.timed), formed::<N>(required), bounds, plan);
    figures(name, begun, &report);
    assert!(report.wrong.is_none(), "{name}: {}", report.explain());
    assert!(report.converged > 0, "{name}: no course was seen to converge");
    report
}

/// Two members in all that one fault may bring; three in all changes of the rule that one fault brings about.
#[test]
fn small_worlds_are_searched_as_a_whole() {
    let events = whole("2 members, 1 required, 1 fault", formed::<2>(1), SMALL, 168_349);
    for event in [
        Event::Promoted,
        Event::PromotedSecondBest,
        Event::Bumped,
        Event::Rewound,
        Event::Refused,
        Event::StoodDown,
        Event::Opened,
        Event::Resumed,
    ] {
        assert!(events.contains_key(&event), "{event:?} never happened");
    }
    let bounds = Bounds { epochs: 1, ..SMALL };
    let events = whole(
        "3 members, 1 required, 1 fault, in one epoch",
        formed::<3>(1),
        bounds,
        760_587,
    );
    assert!(events.contains_key(&Event::Relaxed) && events.contains_key(&Event::Tightened));
    let bounds = Bounds {
        faults: 0,
        edits: 1,
        records: 1,
        epochs: 2,
        ..SMALL
    };
    let events = whole("2 members, 1 required, 1 edit", formed::<2>(1), bounds, 80_473);
    assert!(events.contains_key(&Event::HandedOver) && events.contains_key(&Event::FencedPrimaryReplaced));
}

/// Where a promotion and a rewind are broken off.
#[test]
fn what_was_broken_off_is_searched_as_a_whole() {
    let events = whole("2 members, 1 required, cut, 1 fault", cut::<2>(1), SMALL, 835_121);
    for event in [Event::PromotionTorn, Event::ReservedAgain] {
        assert!(events.contains_key(&event), "{event:?} never happened");
    }
}

#[test]
fn three_members_lose_nothing_in_long_courses() {
    let report = walked::<3>("3 members, 1 required", 1, LARGE, 1_500);
    reached(
        &report,
        &[
            Event::Promoted,
            Event::PromotedLate,
            Event::PromotedSecondBest,
            Event::Bumped,
            Event::Relaxed,
            Event::Tightened,
            Event::Rewound,
            Event::Released,
            Event::HandedOver,
            Event::FencedPrimaryReplaced,
            Event::Refused,
            Event::StoodDown,
            Event::ReservedAgain,
            Event::Opened,
            Event::Resumed,
        ],
    );
}

#[test]
fn three_members_with_clocks_never_write_two_at_a_time() {
    let report = walked::<3>("3 members, asynchronous", 0, TIMED, 1_500);
    reached(
        &report,
        &[
            Event::Promoted,
            Event::LostAsAllowed,
            Event::FailsafeServed,
            Event::DeadMan,
            Event::HandedOver,
            Event::FencedPrimaryReplaced,
            Event::Tightened,
        ],
    );
    walked::<3>("3 members, 1 required, with clocks", 1, TIMED, 700);
}

#[test]
fn two_members_and_five_members_lose_nothing_in_long_courses() {
    let report = walked::<2>("2 members, 1 required", 1, LARGE, 500);
    reached(&report, &[Event::KeptAside, Event::Cloned]);
    walked::<2>("2 members, asynchronous", 0, TIMED, 700);
    walked::<5>("5 members, 2 required", 2, LARGE, 400);
}

/// Where a broken rule is looked for: for how many standbys commits wait, and within what. Where they wait for nobody, clocks
/// count.
fn looked_for(mutant: Mutant) -> (u8, Bounds) {
    let required = match mutant {
        Mutant::FailsafeIsForgotten
        | Mutant::FailsafeOfOneIsEnough
        | Mutant::LeaseIsNotAwaited
        | Mutant::ClockStands => 0,
        _ => 1,
    };
    let edits = match mutant {
        Mutant::ReleasesBeforeStop | Mutant::SuccessorDoesNotWait | Mutant::ReleasedPositionIsIgnored => 1,
        _ => 0,
    };
    let bounds = Bounds {
        mutant: Some(mutant),
        faults: 4,
        records: 3,
        timed: required == 0,
        deletable: mutant == Mutant::LeaseIsMadeAgain,
        edits,
        ..LARGE
    };
    (required, bounds)
}

/// What a search finds is a shortest course, and it is told step by step.
#[test]
fn the_shortest_course_to_a_loss_is_told_as_a_table() {
    let mutant = Mutant::OnePromiseIsEnough;
    let bounds = Bounds {
        faults: 0,
        mutant: Some(mutant),
        ..SMALL
    };
    let report = search(cut::<3>(1), bounds, 3_000_000);
    let (course, what) = report.wrong.as_ref().expect("what is wrong");
    let told = table(course);
    println!("{what}, after {} states\n{told}", report.states);
    assert_eq!(
        told.lines().count(),
        course.len() + 1,
        "a line for each step, and one above"
    );
    assert!(told.starts_with("step | event"), "{told}");
    let longer = hunt(&mut Decider::new(false), mutant);
    let longer = longer
        .and_then(|report| report.wrong)
        .map_or(0, |(course, _)| course.len());
    assert!(course.len() < longer, "{} steps; a walk took {longer}", course.len());
}

/// The first course that shows what is wrong; every other round begins where nobody hears the primary.
fn hunt(decider: &mut Decider<3>, mutant: Mutant) -> Option<Report<3>> {
    let (required, bounds) = looked_for(mutant);
    let starts = match mutant {
        Mutant::FailsafeOfOneIsEnough => [parted(required); 2],
        _ => [cut(required), formed(required)],
    };
    (0..100).find_map(|seed| {
        let plan = Walk {
            seed,
            courses: courses(500),
            length: 120,
            converge: match mutant {
                Mutant::EpochIsNotRaised | Mutant::RuleDoesNotGrow => 4,
                _ => 0,
            },
        };
        let report = walk(decider, starts[seed as usize % 2], bounds, plan);
        report.wrong.is_some().then_some(report)
    })
}

/// The same by a search, where what is wrong is rare in walks.
fn searched<const N: usize>(mutant: Mutant, start: World<N>) -> Option<(usize, String)> {
    let bounds = Bounds {
        mutant: Some(mutant),
        epochs: 2,
        ..SMALL
    };
    told(search(start, bounds, 2_000_000))
}

/// How many steps lead to what is wrong, and what that is.
fn told<const N: usize>(report: Report<N>) -> Option<(usize, String)> {
    let (course, what) = report.wrong?;
    Some((
        course.len(),
        what.split(": World").next().unwrap_or_default().to_owned(),
    ))
}

/// Whatever rule is broken, the model notices.
#[test]
fn every_mutant_is_found() {
    let mut deciders = [Decider::new(false), Decider::new(true)];
    let mut survivors = Vec::new();
    for mutant in Mutant::ALL {
        let (_, Bounds { timed, .. }) = looked_for(mutant);
        let begun = computed();
        let found = match mutant {
            Mutant::PromotionIsBegunAgain => searched(mutant, cut::<2>(1)),
            Mutant::ReloadIsNotProven => searched(mutant, shrinking::<3>(1)),
            _ => hunt(&mut deciders[usize::from(timed)], mutant).and_then(told),
        };
        let took = computed() - begun;
        match found {
            Some((steps, what)) => println!("{mutant:?}: {what}, {steps} steps, {took:.1?}"),
            None => {
                println!("{mutant:?}: not found, {took:.1?}");
                survivors.push(mutant);
            }
        }
    }
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}
