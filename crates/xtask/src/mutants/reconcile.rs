//! Broken rules of the reconcile kernel and of operations.

use super::{Mutant, property, unit};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "nothing-is-read-once-more",
        planted: "What takes something away is carried out without a second look at resource and Lease.",
        breaks: "invariant 18",
        file: "reconcile/pass.rs",
        text: "C::confirms(observed, action)",
        instead: "false",
        found_by: unit(
            "reconcile::pass::tests::a_promise_is_written_before_the_action_and_what_takes_something_away_is_confirmed",
        ),
    },
    Mutant {
        name: "the-action-before-its-status",
        planted: "An action is carried out although the status that it relies on met a conflict.",
        breaks: "status before effect",
        file: "reconcile/pass.rs",
        text: "(due, refused)",
        instead: "(Due::Never, refused)",
        found_by: unit("reconcile::pass::tests::what_relies_on_a_status_that_met_a_conflict_waits_for_it"),
    },
    Mutant {
        name: "a-restless-status-holds-all-up",
        planted: "A status that differs each time is written without end, and the action never comes.",
        breaks: "status before effect",
        file: "reconcile/pass.rs",
        text: "self.status_writes < MAX_STATUS_WRITES",
        instead: "true",
        found_by: unit("reconcile::pass::tests::a_status_that_never_comes_to_rest_does_not_hold_up_the_action"),
    },
    Mutant {
        name: "an-operation-begins-again",
        planted: "An operation that has ended may be done again.",
        breaks: "terminal phases are absorbing",
        file: "operation/mod.rs",
        text: "facts.phase().is_some_and(OperationPhase::is_final)",
        instead: "false",
        found_by: property("operation::tests::phases_go_forward_only_and_final_ones_stay"),
    },
    Mutant {
        name: "an-older-operation-cuts-in",
        planted: "An operation that the cluster has begun is taken back because an older one appears.",
        breaks: "each operation is done once",
        file: "operation/mod.rs",
        text: "(!begun(candidate), candidate.created, candidate.name.clone())",
        instead: "(false, candidate.created, candidate.name.clone())",
        found_by: unit("operation::tests::the_oldest_comes_first_unless_another_has_begun"),
    },
    Mutant {
        name: "anybodys-outcome",
        planted: "An operation takes the outcome of another one for its own.",
        breaks: "each operation is done once",
        file: "operation/mod.rs",
        text: "cluster.request.as_ref().filter(|noted| noted.value == value)",
        instead: "cluster.request.as_ref().filter(|_| true)",
        found_by: unit("operation::tests::an_operation_is_pending_then_runs_and_ends_as_the_cluster_notes"),
    },
];
