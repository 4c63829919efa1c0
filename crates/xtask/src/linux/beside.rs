//! Which end-to-end tests may run beside others: those that hurt nothing but their own database and measure no bound of an outage.
//!
//! A test that cuts a node, stops the API server or the operator, cordons a node, fills a disk or measures how long writes stop runs
//! alone. So does a test that is not in this list.

/// Suites and their tests.
const BESIDE: [(&str, &[&str]); 13] = [
    (
        "admission",
        &[
            "the_api_server_refuses_bad_resources_with_our_messages",
            "the_api_server_accepts_every_example",
            "what_was_applied_may_be_applied_empty",
        ],
    ),
    (
        "archive",
        &["wal_is_archived_from_a_running_database_on_and_through_a_failover"],
    ),
    ("conformance", &["a_real_api_server_answers_as_the_one_in_memory_does"]),
    ("disks", &["a_wal_volume_is_added_to_a_running_database"]),
    (
        "lifecycle",
        &[
            "a_namespace_with_a_ready_database_can_be_deleted",
            "an_only_instance_that_is_killed_comes_back_with_every_row",
            "deletion_keeps_or_removes_volumes_as_the_spec_says",
            "one_two_and_three_instances_come_up_and_replicate",
            "parameters_are_reloaded_or_restarted_in_place_standbys_first",
            "scales_and_changes_its_image_one_pod_at_a_time",
        ],
    ),
    (
        "operator",
        &[
            "a_foreign_object_is_named_and_never_touched",
            "a_missing_storage_class_and_a_bad_image_are_explained_and_can_be_corrected",
            "creation_takes_few_writes_and_an_idle_database_none",
            "decisions_of_a_failover_are_recorded_and_replay_to_the_same",
        ],
    ),
    (
        "operations",
        &[
            "a_lost_lease_is_made_again_and_quarantined_data_is_removed_on_request",
            "a_restart_replaces_each_pod_once_under_writes",
            "another_authority_takes_over_under_writes_and_nobody_restarts",
            "the_loss_of_two_volumes_is_accepted_and_new_members_are_filled_from_the_last_one",
        ],
    ),
    (
        "planned",
        &[
            "a_requested_switchover_happens_once",
            "a_supervised_change_stops_and_says_what_to_do",
            "a_switchover_to_an_instance_that_stays_behind_is_given_up_and_interrupts_nothing",
            "cpu_and_memory_are_changed_in_place_and_what_kubernetes_cannot_is_done_by_replacement",
        ],
    ),
    (
        "recovery",
        &[
            "a_database_is_made_from_a_backup_as_it_was_before_a_mistake",
            "a_database_is_made_from_a_volume_snapshot",
            "a_database_is_recovered_in_place_and_goes_back",
        ],
    ),
    (
        "repair",
        &[
            "objects_that_are_deleted_are_made_again_and_no_pod_restarts",
            "edited_objects_are_corrected",
        ],
    ),
    (
        "rest",
        &[
            "a_database_hibernates_and_wakes_with_its_rows",
            "a_fenced_primary_is_replaced_and_its_pod_and_volume_stay",
        ],
    ),
    (
        "pooler",
        &["a_pooler_serves_through_a_move_of_the_primary_and_is_changed_without_a_restart"],
    ),
    (
        "users",
        &[
            "the_shortest_user_can_do_what_it_says_through_failovers_and_until_it_is_deleted",
            "who_may_do_nothing_but_make_users_makes_them_and_bad_ones_are_told_what_to_change",
        ],
    ),
];

/// End-to-end tests that only `--long` runs, or whoever asks for them by name: a lower rung sees the same faults, and these show that
/// it does so for the right reason.
const LONG: [(&str, &[&str]); 7] = [
    // Drivers from other languages' registries.
    ("clients", &["drivers_connect_as_the_documentation_says"]),
    // The same with one volume for all: `a_database_whose_volumes_are_all_full_heals_when_they_grow`, and `machine`'s `cluster::wal_claims`.
    (
        "disks",
        &["a_database_whose_wal_volumes_are_all_full_names_them_and_heals_when_they_grow"],
    ),
    // The case `postmaster-kill` of `failover`, in which the operator is killed, too.
    (
        "fencing",
        &["a_killed_postmaster_is_restarted_in_place_without_the_operator"],
    ),
    // It checks the benchmark, not the product.
    ("failover", &["any_postgresql_behind_a_service_can_be_measured"]),
    // `operator/tests/simulated` ends the operator at each write of a creation.
    (
        "operator",
        &["an_operator_killed_after_every_write_reaches_the_same_end"],
    ),
    // `machine`'s `cluster::hibernation`, and the agents' dead-man with real servers.
    ("rest", &["a_database_with_a_frozen_instance_hibernates"]),
    // Thousands of seeds of the simulator, and the cases of `failover` one by one. `cargo xtask soak` runs it for as long as one likes.
    ("soak", &["random_faults_leave_a_valid_history"]),
];

/// Whether only `--long` runs this test.
#[must_use]
pub fn is_long(suite: &str, test: &str) -> bool {
    has(&LONG, suite, test)
}

/// Whether a test of this suite may run beside others.
#[must_use]
pub fn may(suite: &str, test: &str) -> bool {
    has(&BESIDE, suite, test)
}

fn has(list: &[(&str, &[&str])], suite: &str, test: &str) -> bool {
    list.iter()
        .any(|(known, tests)| *known == suite && tests.contains(&test))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use super::*;

    fn suites() -> Vec<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tests");
        let files = std::fs::read_dir(folder)
            .expect("the end-to-end tests")
            .map(|entry| entry.expect("a file").path());
        let name = |path: &PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
        let sources = files.filter(|path| path.extension().is_some_and(|end| end == "rs"));
        sources
            .map(|path| (name(&path), std::fs::read_to_string(path).expect("its source")))
            .collect()
    }

    #[test]
    fn every_test_that_is_listed_is_there() {
        let sources: BTreeMap<_, _> = suites().into_iter().collect();
        for (suite, tests) in BESIDE.into_iter().chain(LONG) {
            for test in tests {
                let found = sources[suite].contains(&format!("#[tokio::test]\nasync fn {test}()"));
                assert!(found, "e2e/tests/{suite}.rs has no test {test}");
            }
        }
        assert!(may("rest", "a_database_hibernates_and_wakes_with_its_rows"));
        assert!(!may("planned", "a_drain_ends_without_anybodys_help"));
    }

    /// Tests that run beside each other would share it, and the second would remove what the first has made.
    #[test]
    fn no_two_tests_use_one_namespace() {
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for (suite, source) in suites() {
            for maker in ["fresh(", "ready(", "with_rows(", "primary("] {
                for call in source.split(maker).skip(1) {
                    let arguments = call.split([';', '{']).next().unwrap_or_default();
                    let Some(name) = arguments.split('"').nth(1) else {
                        continue;
                    };
                    let is_name = name.len() > 2
                        && name
                            .chars()
                            .all(|letter| letter == '-' || letter.is_ascii_alphanumeric());
                    if !is_name {
                        continue;
                    }
                    let other = found.insert(name.to_owned(), suite.clone());
                    assert_eq!(other, None, "namespace {name} is used in {suite} and elsewhere");
                }
            }
        }
        assert!(found.len() > 30, "{found:?}");
    }
}
