//! Worlds with an archive of WAL.

use sim::model::state::{Data, Postgres, Wal};

use super::*;

/// One fault, and two records that fill one segment or two.
const ARCHIVING: Bounds = Bounds { epochs: 2, ..SMALL };
/// The same without a fault.
const CALM: Bounds = Bounds { faults: 0, ..ARCHIVING };

pub const WITH_HALVES: &[Event] = &[
    Event::Promoted,
    Event::PromotedSecondBest,
    Event::Rewound,
    Event::StruckOff,
    Event::AbandonedBranchArchived,
    Event::SegmentGivenUp,
];
pub const WITH_SEGMENTS: &[Event] = &[
    Event::Promoted,
    Event::ArchivedForTheLost,
    Event::StruckOff,
    Event::AbandonedBranchArchived,
    Event::UnmarkedFound,
];
const COURSES: &[Event] = &[
    Event::Promoted,
    Event::Rewound,
    Event::ArchivedForTheLost,
    Event::StruckOff,
    Event::UnmarkedFound,
    Event::SegmentGivenUp,
];

/// Segments of two records, so that a timeline may end within one; and of one record, so that a successor has to archive
/// what the lost primary had not.
#[test]
fn two_members_with_an_archive_are_searched_as_a_whole() {
    whole_to_rest(
        "2 members, 1 required, 1 fault, an archive with 2 records a segment",
        archiving(formed::<2>(1), 2),
        ARCHIVING,
        1_068_807,
        WITH_HALVES,
    );
    whole_to_rest(
        "2 members, 1 required, cut, an archive with 1 record a segment",
        archiving(cut::<2>(1), 1),
        CALM,
        409_746,
        WITH_SEGMENTS,
    );
}

#[test]
fn three_members_archive_all_wal_in_long_courses() {
    for segment in [1, 2] {
        let name = format!("3 members, 1 required, an archive with {segment} records a segment");
        let report = walked(&name, archiving(formed::<3>(1), segment), LARGE, 300);
        reached(&report, COURSES);
    }
    let name = "3 members, asynchronous, with clocks, an archive with 1 record a segment";
    let report = walked(name, archiving(formed::<3>(0), 1), TIMED, 200);
    reached(&report, COURSES);
}

/// Member 1 has no data, and is to be copied.
fn to_be_copied() -> World<2> {
    let mut world = formed(1);
    let member = &mut world.members[1];
    (member.wal, member.data) = (Wal::default(), Data::Empty);
    member.postgres = Postgres::Down { clean: false };
    world
}

/// The first sequence that shows a violation: commits wait for one member alone, and others may have more WAL.
fn hunt(mutant: Mutant) -> Option<(usize, String)> {
    let bounds = Bounds {
        faults: 4,
        records: 4,
        edits: 0,
        mutant: Some(mutant),
        ..LARGE
    };
    (0..40).find_map(|seed| {
        let start = [cut(1), left_out()][seed % 2];
        let plan = Walk {
            seed: seed as u64,
            courses: 200,
            length: 200,
            converge: 0,
        };
        told(walk(&mut Decider::<3>::new(false), archiving(start, 2), bounds, plan))
    })
}

#[test]
fn every_mutant_of_the_archive_is_found() {
    for mutant in Mutant::ARCHIVE {
        let begun = computed();
        let of = |start: World<2>, segment, bounds| searched(mutant, archiving(start, segment), bounds);
        let found = match mutant {
            Mutant::PushesWithoutLease => of(formed(1), 1, ARCHIVING),
            Mutant::UnarchivedIsStruckOff => of(formed(1), 1, CALM),
            Mutant::CopiedMarksCount => of(to_be_copied(), 1, CALM),
            Mutant::FullSegmentIsForgotten | Mutant::SegmentsGoBesideAHistory => of(cut(1), 1, CALM),
            Mutant::AnotherHistoryCounts => hunt(mutant),
            _ => of(cut(1), 2, CALM),
        };
        let took = computed() - begun;
        let (steps, what) = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
        println!("{mutant:?}: {what}, {steps} steps, {took:.1?}");
    }
}
