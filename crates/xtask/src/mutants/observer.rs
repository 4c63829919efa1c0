//! Broken rules of the bookkeeping: what an agent makes of what it sees.

use super::{Mutant, unit};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a-slow-postgres-does-not-answer",
        planted: "One question without an answer in time is enough for PostgreSQL to count as not answering.",
        breaks: "invariant 20",
        file: "instance/observer/postgres.rs",
        text: "self.silent != SILENT",
        instead: "self.silent != 1",
        found_by: unit("instance::observer::tests::a_slow_answer_is_none_only_after_three_in_a_row"),
    },
    Mutant {
        name: "an-answer-from-before-a-promise-counts",
        planted: "An answer of PostgreSQL from before a promise ended its WAL receiver still counts as the end of its WAL.",
        breaks: "protocol 5",
        file: "instance/observer/postgres.rs",
        text: "asked < self.configured_at",
        instead: "false",
        found_by: unit("instance::observer::tests::a_position_from_before_a_promise_counts_for_nothing"),
    },
    Mutant {
        name: "a-lost-slot-is-as-good-as-any",
        planted: "A member whose slot has lost its WAL stays admitted, and gets no other slot.",
        breaks: "rule `admit`",
        file: "instance/observer/postgres.rs",
        text: "!status.lost_slots.contains(member)",
        instead: "true",
        found_by: unit("instance::observer::tests::a_member_whose_slot_has_lost_its_wal_is_admitted_anew"),
    },
    Mutant {
        name: "slots-outlive-a-copy",
        planted: "After a rewind or a copy the members still count as admitted, though no slot was copied.",
        breaks: "rule `admit`",
        file: "instance/observer/task.rs",
        text: "matches!(work, Work::Rewind | Work::Clone | Work::SetAside)",
        instead: "matches!(work, Work::SetAside)",
        found_by: unit("instance::observer::tests::no_member_counts_as_admitted_after_its_slot_is_gone"),
    },
    Mutant {
        name: "refused-settings-are-failures",
        planted: "A start with settings that PostgreSQL refuses delays the start with the previous settings.",
        breaks: "rule `configure`",
        file: "instance/observer/task.rs",
        text: "matches!(news, Some(News::Refused(_)))",
        instead: "false",
        found_by: unit("instance::observer::tests::refused_settings_are_no_failed_tries"),
    },
    Mutant {
        name: "an-older-lease-counts",
        planted: "A version of the Lease that arrives late replaces a newer one.",
        breaks: "invariant 4",
        file: "instance/observer/lease.rs",
        text: "version.uid == known.uid && number < known_number",
        instead: "false",
        found_by: unit("instance::observer::tests::an_older_version_that_comes_late_changes_nothing"),
    },
    Mutant {
        name: "an-old-reading-forgets-a-promise",
        planted: "A reading of the volume that began before a promise replaces that promise.",
        breaks: "protocol 2",
        file: "instance/observer/mod.rs",
        text: "self.promised_at > view.read",
        instead: "false",
        found_by: unit("instance::observer::tests::a_promise_outlives_a_reading_of_the_volume_that_began_before_it"),
    },
];
