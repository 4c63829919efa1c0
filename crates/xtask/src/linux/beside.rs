//! Which end-to-end tests may run beside others: those that hurt nothing but their own database and measure no bound of an outage.
//!
//! A test that cuts a node, stops the API server or the operator, cordons a node, fills a disk or measures how long writes stop runs
//! alone. So does one that is not listed here.

/// Suites and their tests.
const BESIDE: [(&str, &[&str]); 8] = [
    (
        "admission",
        &[
            "the_api_server_refuses_bad_resources_in_our_words",
            "the_api_server_takes_every_example",
            "what_was_applied_may_be_applied_empty",
        ],
    ),
    ("conformance", &["a_real_api_server_answers_as_the_one_in_memory_does"]),
    ("disks", &["a_wal_volume_is_added_to_a_running_database"]),
    (
        "lifecycle",
        &[
            "a_namespace_goes_with_a_ready_database_in_it",
            "an_only_instance_that_is_killed_comes_back_with_every_row",
            "deletion_keeps_or_removes_volumes_as_told",
            "one_two_and_three_instances_come_up_and_replicate",
            "parameters_are_reloaded_or_restarted_in_place_standbys_first",
            "repairs_what_is_deleted_or_edited_by_hand",
            "scales_and_changes_its_image_one_pod_at_a_time",
        ],
    ),
    (
        "operator",
        &[
            "a_foreign_object_is_named_and_never_touched",
            "a_missing_storage_class_and_a_bad_image_are_explained_and_mended",
            "creation_takes_few_writes_and_an_idle_database_none",
            "what_was_decided_in_a_failover_is_recorded_and_replays_to_the_same",
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
        "repair",
        &[
            "objects_that_are_deleted_are_made_again_and_no_pod_restarts",
            "objects_that_are_edited_are_set_right",
        ],
    ),
    (
        "rest",
        &[
            "a_database_hibernates_and_wakes_with_its_rows",
            "a_database_with_a_frozen_instance_hibernates",
            "a_fenced_primary_is_replaced_and_its_pod_and_volume_stay",
        ],
    ),
];

/// Whether a test of this suite may run beside others.
#[must_use]
pub fn may(suite: &str, test: &str) -> bool {
    BESIDE
        .iter()
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
        for (suite, tests) in BESIDE {
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
