//! Every interleaving of a small world, and long sequences in larger worlds.

#[path = "model/archive.rs"]
mod archive;

use std::time::Duration;

use sim::computing::{computed, per_second};
use sim::model::bounds::{Bounds, Event, Mutant};
use sim::model::check::{archiving, cut, formed, given_up, left_out, parted, shrinking, strict, unanswered};
use sim::model::observe::Decider;
use sim::model::search::{Report, search, search_near, search_to_rest};
use sim::model::state::World;
use sim::model::table::table;
use sim::model::walk::{Walk, walk, way_to};

/// The bounds of worlds that are searched as a whole.
const SMALL: Bounds = Bounds {
    faults: 1,
    reboots: 0,
    unfit: 0,
    records: 2,
    epochs: 3,
    edits: 0,
    timed: false,
    losable: false,
    mutant: None,
};
/// The bounds of worlds that are walked through.
const LARGE: Bounds = Bounds {
    faults: 12,
    reboots: 1,
    records: 6,
    epochs: 40,
    edits: 2,
    ..SMALL
};
const TIMED: Bounds = Bounds { timed: true, ..LARGE };

fn figures<const N: usize>(name: &str, begun: Duration, report: &Report<N>) {
    let took = computed() - begun;
    let rate = per_second(report.states, begun);
    println!(
        "{name}: {} states, {} steps, {} decisions, {took:.1?} of one core, {rate:.0} states/s; {} converged, in {} steps \
         at most, {} of them since this world has no more epochs or timelines\n  {:?}",
        report.states, report.steps, report.decisions, report.converged, report.longest, report.spent, report.events
    );
}

/// Also for the summary of `cargo xtask test`.
fn told_whole<const N: usize>(name: &str, begun: Duration, report: &Report<N>) {
    println!(
        "figure: model, {name}: {} unique states, {:.0} a second of one core",
        report.states,
        per_second(report.states, begun)
    );
    figures(name, begun, report);
}

/// Searches all states, and compares their number. From each of them the database must serve again and become idle.
fn whole_to_rest<const N: usize>(name: &str, start: World<N>, bounds: Bounds, states: usize, goals: &[Event]) {
    let begun = computed();
    let report = search_to_rest(start, bounds, 6_000_000);
    told_whole(name, begun, &report);
    searched_whole(name, &report, states, goals);
    assert_eq!(report.converged, states, "{name}: from each state");
    assert!(report.longest <= LONGEST, "{name}: {} steps until idle", report.longest);
}

/// From any state of the small worlds, this many steps lead to an idle world, if each step helps.
const LONGEST: usize = 30;

fn searched_whole<const N: usize>(name: &str, report: &Report<N>, states: usize, goals: &[Event]) {
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
    reached(report, goals);
}

fn reached<const N: usize>(report: &Report<N>, events: &[Event]) {
    for event in events {
        assert!(report.events.contains_key(event), "{event:?} never happened");
    }
    assert!(
        !report.events.contains_key(&Event::AcknowledgedLate),
        "{}",
        report.explain()
    );
}

/// Walks this many sequences, or as many as `MODEL_COURSES` says.
fn courses(usual: usize) -> usize {
    let courses = std::env::var("MODEL_COURSES").ok();
    courses.and_then(|courses| courses.parse().ok()).unwrap_or(usual)
}

fn walked<const N: usize>(name: &str, start: World<N>, bounds: Bounds, usual: usize) -> Report<N> {
    let begun = computed();
    let plan = Walk {
        seed: 7,
        courses: courses(usual),
        length: 400,
        converge: 4,
    };
    let report = walk(&mut Decider::new(bounds.timed), start, bounds, plan);
    figures(name, begun, &report);
    assert!(report.wrong.is_none(), "{name}: {}", report.explain());
    assert!(report.converged > 0, "{name}: no sequence was seen to converge");
    report
}

const OF_TWO: &[Event] = &[
    Event::Promoted,
    Event::PromotedSecondBest,
    Event::Bumped,
    Event::Rewound,
    Event::Refused,
    Event::PromotionRefused,
    Event::StoodDown,
    Event::Opened,
    Event::Resumed,
];
const CUT: &[Event] = &[
    Event::PromotedLate,
    Event::PromotionTorn,
    Event::RewindTorn,
    Event::ReservedAgain,
    Event::KeptAside,
    Event::Cloned,
    Event::Released,
];
const REBOOTED: &[Event] = &[Event::TailLost, Event::Promoted, Event::Rewound];
const IN_ONE_EPOCH: &[Event] = &[Event::Relaxed, Event::Tightened];
const EDITED: &[Event] = &[Event::HandedOver, Event::FencedPrimaryReplaced];
const LOST: &[Event] = &[Event::LeaseDeleted, Event::LeaseScribbled, Event::LeaseRestored];
const WITH_CLOCKS: &[Event] = &[
    Event::Promoted,
    Event::Bumped,
    Event::Refused,
    Event::FailsafeServed,
    Event::Opened,
];
const WITH_CLOCKS_AND_A_FAULT: &[Event] = &[
    Event::Promoted,
    Event::PromotedLate,
    Event::PromotedSecondBest,
    Event::Released,
    Event::FailsafeServed,
    Event::StoodDown,
    Event::DeadMan,
];
const ELECTED: &[Event] = &[
    Event::Promoted,
    Event::Bumped,
    Event::Rewound,
    Event::StoodDown,
    Event::Relaxed,
    Event::Tightened,
];
/// A late promotion is not among them: one in a thousand sequences has one, and the search of two members reaches it.
const COURSES_OF_THREE: &[Event] = &[
    Event::Promoted,
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
];
const COURSES_WITH_CLOCKS: &[Event] = &[
    Event::Promoted,
    Event::LostAsAllowed,
    Event::FailsafeServed,
    Event::DeadMan,
    Event::HandedOver,
    Event::FencedPrimaryReplaced,
    Event::Tightened,
];
const COURSES_WITH_EDITS: &[Event] = &[Event::RelaxedToNobody];
const COURSES_WITH_A_LOSS: &[Event] = &[Event::LostAsAccepted, Event::RewoundAndKept];
const COURSES_OF_AN_UNFIT_ONE: &[Event] = &[Event::Inherited];
const COURSES_OF_TWO: &[Event] = &[Event::KeptAside, Event::Cloned];

/// Each event that the model can notice must be asserted by some search or walk.
#[test]
fn each_goal_is_asserted_by_a_search_or_walk() {
    let asserted = [
        OF_TWO,
        CUT,
        REBOOTED,
        IN_ONE_EPOCH,
        EDITED,
        LOST,
        WITH_CLOCKS,
        WITH_CLOCKS_AND_A_FAULT,
        ELECTED,
        COURSES_OF_THREE,
        COURSES_WITH_CLOCKS,
        COURSES_WITH_EDITS,
        COURSES_WITH_A_LOSS,
        COURSES_OF_AN_UNFIT_ONE,
        COURSES_OF_TWO,
        archive::WITH_HALVES,
        archive::WITH_SEGMENTS,
    ];
    let asserted = asserted.concat();
    for goal in Event::GOALS {
        assert!(asserted.contains(&goal), "no test asserts that {goal:?} happens");
    }
}

/// Two members: everything that one fault, two faults, or an edit may lead to. Three members: all changes of the rule
/// that one fault leads to.
#[test]
fn small_worlds_are_searched_as_a_whole() {
    whole_to_rest("2 members, 1 required, 1 fault", formed::<2>(1), SMALL, 94_853, OF_TWO);
    let bounds = Bounds { epochs: 1, ..SMALL };
    whole_to_rest(
        "3 members, 1 required, 1 fault, in one epoch",
        formed::<3>(1),
        bounds,
        1_350_861,
        IN_ONE_EPOCH,
    );
    let bounds = Bounds {
        faults: 0,
        edits: 1,
        records: 1,
        epochs: 2,
        ..SMALL
    };
    whole_to_rest("2 members, 1 required, 1 edit", formed::<2>(1), bounds, 29_710, EDITED);
    let bounds = Bounds {
        faults: 2,
        epochs: 2,
        ..SMALL
    };
    whole_to_rest(
        "2 members, 1 required, 2 faults",
        formed::<2>(1),
        bounds,
        863_844,
        &[Event::Promoted],
    );
}

/// The Lease may be lost.
const LOSABLE: Bounds = Bounds {
    losable: true,
    epochs: 2,
    ..SMALL
};

/// Two members: everything that the loss of the Lease and one fault may lead to, and two losses; and three members.
#[test]
fn members_that_lose_the_lease_are_searched_as_a_whole() {
    whole_to_rest(
        "2 members, 1 required, 1 fault or a lost Lease",
        formed::<2>(1),
        LOSABLE,
        41_375,
        LOST,
    );
    let bounds = Bounds {
        faults: 2,
        records: 1,
        ..LOSABLE
    };
    whole_to_rest(
        "2 members, 1 required, 2 faults or losses",
        formed::<2>(1),
        bounds,
        537_373,
        LOST,
    );
    let bounds = Bounds { records: 1, ..LOSABLE };
    near(
        "3 members, 1 required, cut, a lost Lease, 14 steps",
        cut::<3>(1),
        bounds,
        14,
        673_375,
        LOST,
    );
    near(
        "3 members, 1 required, shrinking, a lost Lease, 14 steps",
        shrinking::<3>(1),
        bounds,
        14,
        208_497,
        LOST,
    );
}

/// Two members: everything that one fault and one loss of power may lead to.
#[test]
fn two_members_through_a_reboot_are_searched_as_a_whole() {
    let bounds = Bounds {
        reboots: 1,
        epochs: 2,
        ..SMALL
    };
    whole_to_rest(
        "2 members, 1 required, 1 fault, 1 reboot",
        formed::<2>(1),
        bounds,
        362_627,
        REBOOTED,
    );
}

/// Two members, neither of which hears the primary, with one fault: a promotion and a rewind may be interrupted.
#[test]
fn two_members_through_interrupted_work_are_searched_as_a_whole() {
    whole_to_rest("2 members, 1 required, cut, 1 fault", cut::<2>(1), SMALL, 764_760, CUT);
}

/// Three members, none of which hears the primary: all elections of the next epoch, with commits that wait for one and
/// for both.
#[test]
fn three_members_through_an_election_are_searched_as_a_whole() {
    let bounds = Bounds {
        faults: 0,
        records: 1,
        epochs: 2,
        ..SMALL
    };
    whole_to_rest("3 members, 1 required, cut", cut::<3>(1), bounds, 1_477_644, ELECTED);
    // No name may leave this rule.
    let elected = [Event::Promoted, Event::Bumped, Event::Rewound, Event::StoodDown];
    whole_to_rest("3 members, 2 required, cut", cut::<3>(2), bounds, 1_073_169, &elected);
}

/// Searches all states within this many steps, and compares their number.
fn near<const N: usize>(name: &str, start: World<N>, bounds: Bounds, steps: usize, states: usize, goals: &[Event]) {
    let begun = computed();
    let report = search_near(start, bounds, steps, 2_000_000);
    told_whole(name, begun, &report);
    searched_whole(name, &report, states, goals);
}

/// Five members are too many to search as a whole. So all states within some steps are searched: from a healthy world,
/// from one in which no member hears the primary, and from the middle of an election.
#[test]
fn five_members_are_searched_near_the_beginning_and_near_an_election() {
    let bounds = Bounds { epochs: 2, ..SMALL };
    near(
        "5 members, 2 required, 1 fault, 12 steps",
        formed::<5>(2),
        bounds,
        12,
        420_125,
        &[Event::Relaxed, Event::Tightened, Event::Opened, Event::Resumed],
    );
    let bounds = Bounds {
        faults: 0,
        records: 1,
        ..bounds
    };
    near(
        "5 members, 2 required, cut, 10 steps",
        cut::<5>(2),
        bounds,
        10,
        696_219,
        &[Event::Bumped],
    );
    let course = Walk {
        seed: 4,
        courses: 100,
        length: 200,
        converge: 0,
    };
    let course = way_to(Event::Promoted, cut::<5>(2), bounds, course).expect("a course with a promotion");
    near(
        "5 members, 2 required, 6 steps before a promotion, 10 steps",
        course[course.len() - 7],
        bounds,
        10,
        253_959,
        &[Event::Promoted, Event::Rewound, Event::Refused, Event::StoodDown],
    );
}

/// Clocks count, and there are two epochs.
const SMALL_TIMED: Bounds = Bounds {
    timed: true,
    epochs: 2,
    ..SMALL
};
/// The same without a fault.
const CALM: Bounds = Bounds {
    faults: 0,
    records: 1,
    ..SMALL_TIMED
};

/// If commits wait for no standby, clocks are the fence. All states that two members reach without a fault, and with
/// one fault all within some steps. What they find shows that this is enough.
#[test]
fn two_members_that_clocks_keep_apart_are_searched() {
    whole_to_rest(
        "2 members, asynchronous, with clocks",
        formed::<2>(0),
        CALM,
        1_528_866,
        &[WITH_CLOCKS, &[Event::RewoundAndKept]].concat(),
    );
    let allowed = [WITH_CLOCKS_AND_A_FAULT, &[Event::LostAsAllowed]].concat();
    near(
        "2 members, asynchronous, with clocks, 1 fault, 22 steps",
        formed::<2>(0),
        SMALL_TIMED,
        22,
        1_677_261,
        &allowed,
    );
    for mutant in [
        Mutant::LeaseIsNotAwaited,
        Mutant::FailsafeIsForgotten,
        Mutant::ClockStands,
    ] {
        let broken = Bounds {
            mutant: Some(mutant),
            ..SMALL_TIMED
        };
        let report = search_near(formed::<2>(0), broken, 22, 2_000_000);
        let (course, what) = report.wrong.expect("two that acknowledge");
        println!("{mutant:?}: {what:.60}, {} steps", course.len());
    }
}

/// Old reads must have ended before another member is elected. Two members: all states without a fault, and with one
/// those near the beginning. Three members near a promotion, because with two the new primary does not open before the
/// old one has ended.
#[test]
fn members_with_strict_reads_are_searched() {
    whole_to_rest(
        "2 members, 1 required, strict reads",
        strict::<2>(1),
        CALM,
        885_788,
        &[WITH_CLOCKS, &[Event::Rewound]].concat(),
    );
    near(
        "2 members, 1 required, strict reads, 1 fault, 22 steps",
        strict::<2>(1),
        SMALL_TIMED,
        22,
        1_271_591,
        WITH_CLOCKS_AND_A_FAULT,
    );
    let parted = World {
        strict: true,
        ..cut::<3>(1)
    };
    let course = Walk {
        seed: 4,
        courses: 100,
        length: 200,
        converge: 0,
    };
    let course = way_to(Event::Promoted, parted, CALM, course).expect("a course with a promotion");
    near(
        "3 members, 1 required, strict reads, 6 steps before a promotion, 18 steps",
        course[course.len() - 7],
        CALM,
        18,
        913_430,
        &[Event::Promoted, Event::Opened],
    );
}

/// The user has accepted the loss of the WAL of members that do not answer. Three members near an election that loses
/// commits, and long sequences in which the user accepts at any time, for the present epoch or an earlier one.
#[test]
fn only_accepted_commits_are_given_up_and_their_wal_is_kept() {
    let bounds = Bounds { records: 2, ..CALM };
    near(
        "3 members, 1 required, with clocks, a loss accepted, 13 steps",
        given_up::<3>(1),
        bounds,
        13,
        1_102_270,
        &[Event::LostAsAccepted],
    );
    let report = walked(
        "3 members, 1 required, with an accepted loss",
        given_up::<3>(1),
        TIMED,
        700,
    );
    reached(&report, COURSES_WITH_A_LOSS);
}

/// What cannot be searched as a whole with three members: an election with one fault, one reboot or one edit.
#[test]
fn three_members_are_searched_near_an_election_with_one_more_fault_or_edit() {
    let bounds = Bounds {
        faults: 0,
        epochs: 2,
        ..SMALL
    };
    let elected = [
        Event::Promoted,
        Event::PromotedSecondBest,
        Event::Bumped,
        Event::Relaxed,
        Event::StoodDown,
    ];
    let goals = [
        &elected[..],
        &[Event::PromotedLate, Event::PromotionTorn, Event::Released],
    ]
    .concat();
    let fault = Bounds { faults: 1, ..bounds };
    near(
        "3 members, 1 required, cut, 1 fault, 15 steps",
        cut::<3>(1),
        fault,
        15,
        958_087,
        &goals,
    );
    let goals = [&elected[..], &[Event::TailLost]].concat();
    let reboot = Bounds { reboots: 1, ..bounds };
    near(
        "3 members, 1 required, cut, 1 reboot, 16 steps",
        cut::<3>(1),
        reboot,
        16,
        702_174,
        &goals,
    );
    let goals = [&elected[..], EDITED].concat();
    let edit = Bounds { edits: 1, ..bounds };
    near(
        "3 members, 1 required, cut, 1 edit, 15 steps",
        cut::<3>(1),
        edit,
        15,
        677_537,
        &goals,
    );
}

/// One member is elected alone while another still follows the old primary, which lives and writes.
const LEFT_OUT: Bounds = Bounds {
    faults: 0,
    epochs: 2,
    ..SMALL
};

/// A standby that was not asked for a promise follows the new primary only once the former one can send nothing more:
/// WAL that it sends in the last moment goes beyond the fork.
#[test]
fn a_standby_that_still_follows_a_former_primary_is_searched() {
    near(
        "3 members, 1 required, 1 left out, 15 steps",
        left_out::<3>(),
        LEFT_OUT,
        15,
        44_003,
        &[Event::Promoted],
    );
}

/// A search that finds a world that does not become idle shows a shortest sequence too.
#[test]
fn the_shortest_sequence_that_does_not_converge_is_shown_as_a_table() {
    let bounds = Bounds {
        faults: 0,
        mutant: Some(Mutant::EpochIsNotRaised),
        ..SMALL
    };
    let report = search_to_rest(cut::<2>(1), bounds, 100_000);
    let (course, what) = report.wrong.as_ref().expect("from where it does not converge");
    println!("{}", report.explain());
    assert!(what.contains("it does not serve again"), "{what}");
    let promised = course.iter().any(|(label, _)| label.to_string().contains("Promise"));
    assert!(promised && course.len() <= 4, "{}", table(course));
}

#[test]
fn three_members_lose_nothing_in_long_courses() {
    let report = walked("3 members, 1 required", formed::<3>(1), LARGE, 1_500);
    reached(&report, COURSES_OF_THREE);
}

#[test]
fn three_members_with_clocks_never_write_two_at_a_time() {
    let report = walked("3 members, asynchronous", formed::<3>(0), TIMED, 1_500);
    reached(&report, COURSES_WITH_CLOCKS);
    let report = walked("3 members, 1 required, with clocks", formed::<3>(1), TIMED, 700);
    reached(&report, COURSES_WITH_EDITS);
    let report = walked("3 members, 1 required, strict reads", strict::<3>(1), TIMED, 300);
    reached(&report, &[Event::Promoted]);
}

#[test]
fn two_members_and_five_members_lose_nothing_in_long_courses() {
    let report = walked("2 members, 1 required", formed::<2>(1), LARGE, 500);
    reached(&report, COURSES_OF_TWO);
    walked("2 members, asynchronous", formed::<2>(0), TIMED, 700);
    walked("5 members, 2 required", formed::<5>(2), LARGE, 400);
}

/// It serves again as long as another member has all the WAL that the elected one came with.
#[test]
fn an_elected_member_that_cannot_be_promoted_leaves_the_lease_to_another_member() {
    let bounds = Bounds {
        unfit: 1,
        faults: 4,
        edits: 0,
        ..LARGE
    };
    let report = walked(
        "3 members, 1 required, cut, 1 not to be promoted",
        cut::<3>(1),
        bounds,
        1_000,
    );
    reached(&report, COURSES_OF_AN_UNFIT_ONE);
}

/// Where a broken rule is looked for: how many standbys commits wait for, and the bounds. If they wait for none, clocks
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
        reboots: 0,
        unfit: u8::from(mutant == Mutant::HeirIsIgnored),
        records: 3,
        timed: required == 0
            || matches!(
                mutant,
                Mutant::ReadsAreNotAwaited | Mutant::AnyLossIsAccepted | Mutant::LossIsForgotten
            ),
        losable: mutant.rules() == [18],
        edits,
        ..LARGE
    };
    (required, bounds)
}

/// A search finds a shortest sequence, and shows it step by step.
#[test]
fn the_shortest_sequence_to_a_loss_is_shown_as_a_table() {
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

/// The first sequence that shows a violation. Every other round begins in a world in which no member hears the primary.
fn hunt(decider: &mut Decider<3>, mutant: Mutant) -> Option<Report<3>> {
    let (required, bounds) = looked_for(mutant);
    let starts = match mutant {
        Mutant::FailsafeOfOneIsEnough => [parted(required); 2],
        Mutant::ReadsAreNotAwaited => [strict(required); 2],
        Mutant::AnyLossIsAccepted | Mutant::LossIsForgotten => [given_up(required); 2],
        _ => [cut(required), formed(required)],
    };
    (0..300).find_map(|seed| {
        let plan = Walk {
            seed,
            courses: courses(500),
            length: 120,
            converge: match mutant {
                Mutant::EpochIsNotRaised | Mutant::RuleDoesNotGrow | Mutant::HeirIsIgnored => 4,
                _ => 0,
            },
        };
        let report = walk(decider, starts[seed as usize % 2], bounds, plan);
        report.wrong.is_some().then_some(report)
    })
}

/// The same by a search, for violations that are rare in walks.
fn searched<const N: usize>(mutant: Mutant, start: World<N>, bounds: Bounds) -> Option<(usize, String)> {
    let bounds = Bounds {
        mutant: Some(mutant),
        ..bounds
    };
    told(search(start, bounds, 2_000_000))
}

/// By the Lease commits wait for 1 alone, the answer to the primary's write is lost, and no member hears the primary.
fn relaxed() -> World<3> {
    let course = Walk {
        seed: 1,
        courses: 10_000,
        length: 5,
        converge: 0,
    };
    let calm = Bounds { faults: 0, ..LOSABLE };
    let course = way_to(Event::Relaxed, shrinking::<3>(1), calm, course).expect("a course with another rule");
    unanswered(*course.last().expect("its end"))
}

/// How many steps lead to the violation, and what it is.
fn told<const N: usize>(report: Report<N>) -> Option<(usize, String)> {
    let (course, what) = report.wrong?;
    Some((
        course.len(),
        what.split(": World").next().unwrap_or_default().to_owned(),
    ))
}

/// The model finds every broken rule of the protocol.
#[test]
fn every_mutant_is_found() {
    let mut deciders = [Decider::new(false), Decider::new(true)];
    let mut survivors = Vec::new();
    for mutant in Mutant::ALL {
        let (_, Bounds { timed, .. }) = looked_for(mutant);
        let begun = computed();
        let found = match mutant {
            Mutant::PromotionIsBegunAgain => searched(mutant, cut::<2>(1), SMALL),
            Mutant::UnflushedCounts => searched(mutant, formed::<2>(1), Bounds { reboots: 1, ..SMALL }),
            Mutant::OpensInDoubt => searched(mutant, formed::<2>(1), Bounds { faults: 2, ..SMALL }),
            Mutant::FollowedEndIsFinal => searched(mutant, left_out::<3>(), LEFT_OUT),
            Mutant::ReloadIsNotProven => searched(mutant, shrinking::<3>(1), Bounds { epochs: 2, ..SMALL }),
            Mutant::LeaseIsRestoredUnproven => searched(mutant, formed::<2>(1), Bounds { faults: 2, ..LOSABLE }),
            Mutant::OldPromisesProve => searched(mutant, formed::<2>(1), Bounds { faults: 3, ..LOSABLE }),
            Mutant::DoubtsAreForgotten => searched(mutant, relaxed(), Bounds { records: 1, ..LOSABLE }),
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
