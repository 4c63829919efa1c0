//! Broken rules of poolers.

use super::{Mutant, property, unit};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the-former-primary-is-pooled",
        planted: "PgBouncer is not told of another primary.",
        breaks: "a pod comes to the wanted configuration",
        file: "pooler/pod.rs",
        text: "read.as_ref() != Some(&present)",
        instead: "read.is_none()",
        found_by: property("pooler::tests::a_pod_comes_to_rest"),
    },
    Mutant {
        name: "a-pod-that-is-still-found-refuses",
        planted: "A pod that goes refuses clients at once, while nodes still lead them to it.",
        breaks: "a pod that goes cuts off nobody who could have finished",
        file: "pooler/pod.rs",
        text: "STILL_FOUND_MS.saturating_add(observed.drain_ms)",
        instead: "0",
        found_by: unit("pooler::tests::a_pod_that_goes_lets_clients_finish_then_transactions"),
    },
    Mutant {
        name: "the-lookup-of-somebody-else",
        planted: "The function that looks passwords up is left as somebody has changed it.",
        breaks: "poolers have all they need",
        file: "access/pooler.rs",
        text: "!catalogue.has_lookup",
        instead: "false",
        found_by: property("access::pooler::tests::what_is_planned_for_poolers_is_all_that_is_missing"),
    },
    Mutant {
        name: "a-pooler-with-the-agents-name",
        planted: "A pooler may have the name by which agents know each other, and gets a certificate with it.",
        breaks: "rule `fits`",
        file: "pooler/mod.rs",
        text: "suffix.is_some_and(is_taken)",
        instead: "false",
        found_by: unit("pooler::tests::a_pooler_that_does_not_fit_fails_and_nothing_is_made"),
    },
];
