//! Broken rules of what is believed: numbers from outside, and what other members say.

use super::{Mutant, property, unit};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "any-epoch-is-believed",
        planted: "A report or a request for a promise may name any epoch: one message uses them all up.",
        breaks: "protocol 7",
        file: "instance/heard.rs",
        text: "epoch.is_in_reach_of(record.epoch)",
        instead: "true",
        found_by: unit("instance::heard::tests::a_promise_in_reach_is_taken_up_and_one_beyond_it_is_refused"),
    },
    Mutant {
        name: "only-the-next-epoch-is-believed",
        planted: "A promise above the next epoch is refused: the member that gave it never follows again.",
        breaks: "protocol 7",
        file: "instance/heard.rs",
        text: "epoch.is_in_reach_of(record.epoch)",
        instead: "record.epoch.next().is_some_and(|next| epoch <= next)",
        found_by: unit("instance::heard::tests::a_promise_in_reach_is_taken_up_and_one_beyond_it_is_refused"),
    },
    Mutant {
        name: "any-timeline-is-believed",
        planted: "A member's position may be on any timeline.",
        breaks: "protocol 9",
        file: "instance/heard.rs",
        text: "timeline.is_in_reach_of(known)",
        instead: "true",
        found_by: unit("instance::heard::tests::a_position_on_a_timeline_out_of_reach_is_refused"),
    },
    Mutant {
        name: "pods-are-never-forgotten",
        planted: "The holder remembers each pod that has ever reported.",
        breaks: "invariant 32",
        file: "instance/heard.rs",
        text: "!gone.contains(pod)",
        instead: "true",
        found_by: unit("instance::heard::tests::a_pod_that_is_not_wanted_is_forgotten_when_it_is_not_heard"),
    },
    Mutant {
        name: "any-timeline-is-reserved-next",
        planted: "An election goes on from whatever timeline the Lease names, and writes a file for each before it.",
        breaks: "protocol 14",
        file: "instance/election/take.rs",
        text: "newest.0 - own.0 <= UNUSED",
        instead: "true",
        found_by: unit(
            "instance::extremes::a_lease_with_a_number_that_has_no_successor_is_taken_by_nobody_and_that_is_told",
        ),
    },
    Mutant {
        name: "an-epoch-beyond-the-last-is-none",
        planted: "An epoch that does not fit into the Lease is written as 0.",
        breaks: "protocol 12",
        file: "numbers.rs",
        text: "i32::try_from(self.0).unwrap_or(i32::MAX)",
        instead: "i32::try_from(self.0).unwrap_or(0)",
        found_by: unit("numbers::tests::the_last_number_has_no_successor"),
    },
    Mutant {
        name: "a-negative-epoch-is-zero",
        planted: "A Lease with a negative number reads as one that nobody has held.",
        breaks: "protocol 18",
        file: "lease_object.rs",
        text: "u64::try_from(value).map_err(|_| InvalidLease::OutOfRange { field, value })",
        instead: "Ok::<u64, InvalidLease>(u64::try_from(value).unwrap_or(0))",
        found_by: property("instance::extremes::the_numbers_of_its_spec"),
    },
];
