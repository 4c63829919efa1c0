//! Each rule of the failover protocol, and each invariant, has a check that would find its violation, and docs/model.md
//! says which.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sim::model::bounds::Mutant;

/// What holds in every state, or from every state on, in the words of docs/model.md.
const LOST: &str = "nothing acknowledged is lost";
const PROMISED: &str = "a member that receives WAL has promised this epoch, and none above";
const TWICE: &str = "no timeline is begun twice";
const ALONE: &str = "no two members acknowledge without a standby";
const SERVES: &str = "it serves again and becomes idle";
const HALF: &str = "nothing starts on half-rewound data";

/// A rule: its name, which of the above depend on it, and what of it is outside of the model's world.
type Row = (&'static str, &'static [&'static str], &'static str);

const RULES: [Row; 24] = [
    (
        "Members are incarnations",
        &[],
        "no two runs share a volume, and no volume is lost: `machine::instance::exploration` has two pods on one",
    ),
    ("The promise store", &[PROMISED, LOST], ""),
    (
        "Who may acknowledge",
        &[LOST],
        "certificates and slots; it has the rule that each name is one server",
    ),
    (
        "Order of a promise",
        &[PROMISED, LOST],
        "the steps within one task are one event",
    ),
    ("Position", &[LOST], ""),
    ("Adopt on follow", &[PROMISED], ""),
    ("Raise the epoch", &[SERVES], ""),
    ("The holder's own promise", &[LOST, SERVES], ""),
    ("Ranking, and number of promises", &[LOST], ""),
    ("Changing the rule", &[LOST], ""),
    ("Proof of reload", &[LOST], ""),
    ("Take by compare-and-swap", &[LOST, TWICE], ""),
    ("Names before promotion, hold-back", &[LOST], ""),
    ("One reservation, one promotion", &[TWICE], ""),
    ("Resume after an agent's crash", &[TWICE], ""),
    ("Release and switchover", &[LOST, SERVES], ""),
    (
        "Rewind",
        &[HALF, LOST],
        "WAL that the source has removed: a unit test of the machine",
    ),
    (
        "Lease missing is Unknown",
        &[TWICE, LOST],
        "the user's order to make it again: a convergence test of the machine",
    ),
    ("API outage", &[ALONE], ""),
    ("`Preferred` and `Async`", &[ALONE, LOST], ""),
    ("Availability", &[SERVES], ""),
    (
        "Scope",
        &[],
        "no clients that cancel, and no settings. A unit test of the machine checks that a fence kills waiting sessions; one of crate `api` checks that `fsync = off` is refused",
    ),
    (
        "Suspicion",
        &[],
        "a member hears the primary or does not: unit tests of the machine check how long a silence lasts",
    ),
    (
        "Clock fence",
        &[ALONE],
        "time passes in ticks: unit tests of the machine and tests of the agent check the kill time and the dead-man",
    ),
];

/// What decides a rule, and its own tests: each a file in `crates` and a function of it.
type Decided = (&'static [&'static str], &'static [&'static str]);

const DECIDED: [Decided; 24] = [
    (
        &[
            "machine/src/instance/identity.rs::create_member",
            "machine/src/instance/identity.rs::is_sound",
        ],
        &["machine/src/instance/identity.rs::an_identity_is_never_replaced_under_data"],
    ),
    (
        &[
            "machine/src/instance/facts/promises.rs::is_kept",
            "agent/src/volume/promise.rs::promise_at_least",
        ],
        &[
            "machine/src/instance/election/promise.rs::what_cannot_be_read_is_no_promise",
            "agent/src/volume/promise.rs::an_unreadable_store_is_not_an_absent_one",
        ],
    ),
    (
        &[
            "machine/src/instance/durability.rs::following",
            "agent/src/postgres/hba.rs::pg_hba",
        ],
        &[
            "agent/src/postgres/status.rs::only_members_that_stream_under_their_own_name_count",
            "agent/tests/postgres.rs::only_those_who_may_come_in",
        ],
    ),
    (
        &[
            "machine/src/instance/election/promise.rs::promise",
            "agent/src/postgres/receive.rs::promise",
        ],
        &[
            "machine/src/instance/election/promise.rs::a_promise_that_was_persisted_and_not_completed_is_made_again",
            "agent/tests/failover.rs::after_a_promise_nothing_is_acknowledged",
        ],
    ),
    (
        &[
            "machine/src/instance/facts.rs::final_position",
            "machine/src/instance/facts.rs::electable_position",
        ],
        &[
            "machine/src/instance/election/promise.rs::a_position_is_reported_only_with_the_promise_and_when_it_is_final",
            "machine/src/instance/election/promise.rs::wal_that_ends_before_its_timeline_begins_is_no_position",
        ],
    ),
    (
        &[
            "machine/src/instance/facts/following.rs::to_follow",
            "machine/src/instance/primary.rs::followers",
            "agent/src/volume/promise.rs::follow",
        ],
        &[
            "agent/src/volume/promise.rs::a_promise_takes_the_credential_away_and_following_brings_it_back",
            "sim/tests/simulator.rs::a_follower_of_an_earlier_tenure_is_not_counted",
        ],
    ),
    (
        &["machine/src/instance/lease_rules.rs::promised_above"],
        &["machine/src/instance/lease_rules.rs::a_holder_raises_its_epoch_at_once_to_what_a_member_has_promised"],
    ),
    (
        &[
            "machine/src/instance/step_down.rs::inheritor",
            "machine/src/instance/election/release.rs::covers_release",
        ],
        &[
            "machine/src/instance/step_down.rs::an_elected_holder_that_cannot_begin_leaves_the_lease_to_a_member_that_covers_its_position",
            "machine/src/instance/election/release.rs::a_released_lease_is_taken_at_once_by_a_member_that_covers_its_position",
        ],
    ),
    (
        &[
            "machine/src/instance/election/take.rs::basis",
            "machine/src/instance/election/ranking.rs::reserved",
        ],
        &[
            "machine/src/instance/ballots.rs::elections_by_table",
            "machine/src/instance/election/ranking.rs::positions_rank_by_the_timeline_first_and_only_by_one_that_is_reserved",
        ],
    ),
    (
        &[
            "machine/src/quorum.rs::next_step",
            "machine/src/quorum.rs::is_safe_record",
        ],
        &[
            "machine/src/quorum.rs::every_change_is_safe_and_ends",
            "machine/src/quorum.rs::whatever_a_covered_setting_acknowledges_meets_every_election",
        ],
    ),
    (
        &[
            "machine/src/instance/durability.rs::change",
            "agent/src/postgres/sync.rs::set_sync",
        ],
        &["agent/tests/failover.rs::the_rule_grows_and_shrinks_with_proof"],
    ),
    (
        &[
            "machine/src/instance/election/take.rs::win_election",
            "machine/src/instance/election/take.rs::rule_at_take",
        ],
        &[
            "machine/src/instance/ballots.rs::no_input_lets_two_members_take_one_epoch",
            "machine/src/instance/election/take.rs::a_promise_of_another_epoch_does_not_count",
        ],
    ),
    (
        &[
            "machine/src/instance/durability.rs::open",
            "machine/src/instance/durability.rs::is_replicated",
        ],
        &[
            "machine/src/instance/durability.rs::applications_wait_until_enough_members_hold_what_is_in_doubt",
            "agent/tests/failover.rs::a_closed_primary_lets_only_members_in",
        ],
    ),
    (
        &[
            "machine/src/instance/primary.rs::promote",
            "machine/src/instance/primary.rs::reserve_again",
        ],
        &[
            "machine/src/instance/primary.rs::a_standby_that_was_elected_is_promoted_to_the_reserved_timeline_once",
            "machine/src/instance/lease_rules.rs::a_promotion_that_was_begun_is_not_begun_again_under_its_number",
        ],
    ),
    (
        &[
            "machine/src/instance/lease_rules.rs::basis",
            "machine/src/instance/lease_rules.rs::timeline_again",
        ],
        &[
            "machine/src/instance/lease_rules.rs::a_new_run_in_the_same_pod_takes_over_at_once",
            "machine/src/instance/lease_rules.rs::a_run_that_once_held_the_lease_does_not_treat_a_later_run_as_dead",
        ],
    ),
    (
        &[
            "machine/src/instance/shutdown.rs::hand_over",
            "machine/src/instance/lease_rules.rs::release",
            "machine/src/instance/election/release.rs::may_succeed",
        ],
        &[
            "machine/src/instance/shutdown.rs::a_primary_stops_fast_then_releases_with_its_position_then_ends",
            "machine/src/instance/shutdown.rs::no_position_is_claimed_after_a_stop_that_was_not_clean",
        ],
    ),
    (
        &[
            "machine/src/instance/rejoin.rs::rewind",
            "machine/src/instance/rejoin.rs::opens_soon",
        ],
        &[
            "machine/src/instance/rejoin.rs::data_within_the_primarys_history_follows_and_other_data_is_rewound",
            "machine/src/instance/rejoin.rs::wal_is_kept_before_a_rewind_if_it_may_have_commits_that_were_lost",
        ],
    ),
    (
        &[
            "machine/src/instance/lease_rules.rs::is_first",
            "machine/src/instance/restore.rs::is_proven",
            "machine/src/cluster/failure.rs::lost",
            "machine/src/protocol.rs::to_be_heard",
        ],
        &[
            "machine/src/instance/election/ranking.rs::a_lease_that_was_made_again_is_taken_by_the_member_with_the_most_wal",
            "machine/src/instance/restore.rs::nothing_is_restored_that_is_not_proven",
            "machine/src/instance/fence.rs::a_missing_lease_fences_at_the_deadline_and_not_before",
            "machine/src/cluster/drift/lost.rs::lost_secrets_and_leases_fail_with_the_way_back",
        ],
    ),
    (
        &[
            "machine/src/instance/facts.rs::sent_under",
            "machine/src/instance/failsafe.rs::answer",
        ],
        &[
            "machine/src/instance/failsafe.rs::as_many_names_as_commits_wait_for_move_the_fence",
            "machine/src/instance/failsafe.rs::a_member_that_has_promised_an_election_or_does_not_stream_or_suspects_refuses",
        ],
    ),
    (
        &[
            "machine/src/instance/election/promise.rs::stands",
            "machine/src/instance/election/suspicion.rs::is_alone",
        ],
        &[
            "machine/src/instance/election/take.rs::without_a_rule_the_best_member_that_answers_is_elected_by_the_clock",
            "machine/src/instance/election/suspicion.rs::a_standby_that_may_elect_itself_alone_waits_longer",
        ],
    ),
    (
        &["machine/src/instance/durability.rs::goal"],
        &[
            "machine/src/instance/durability.rs::under_required_no_name_leaves_while_too_few_stream",
            "agent/tests/election.rs::the_rule_shrinks_and_the_last_standby_is_elected_alone",
        ],
    ),
    (
        &[
            "machine/src/cluster/durability.rs::loss_bound",
            "machine/src/instance/fence.rs::stop_now",
        ],
        &[
            "machine/src/cluster/durability.rs::the_status_says_what_is_in_force",
            "machine/src/instance/fence.rs::a_fast_stop_does_not_delay_the_fence",
        ],
    ),
    (
        &[
            "machine/src/instance/election/suspicion.rs::suspicion",
            "machine/src/timing.rs::suspect",
        ],
        &[
            "machine/src/instance/election/suspicion.rs::silence_of_stream_and_agent_leads_to_suspicion_and_requests",
            "machine/src/instance/election/suspicion.rs::a_refused_connection_is_suspected_sooner",
            "machine/src/instance/election/suspicion.rs::a_standby_that_may_elect_itself_alone_waits_longer",
        ],
    ),
    (
        &[
            "machine/src/instance/fence.rs::fence",
            "machine/src/instance/fence.rs::dead_man",
            "machine/src/timing.rs::check",
        ],
        &[
            "machine/src/instance/fence.rs::past_the_deadline_everything_stops_and_then_is_killed",
            "machine/src/instance/lease_rules.rs::the_shorter_fence_counts_while_the_times_change",
            "machine/src/timing.rs::a_fence_after_the_lease_is_refused",
            "machine/src/instance/exploration.rs::two_pods_on_one_volume_never_write_at_the_same_time",
        ],
    ),
];

/// An invariant: its name; where it should be checked (M: decisions, model and simulator; A: agents with a real
/// PostgreSQL; E: end to end); tests that fail if it is violated; and what none of these sees. A test is a file in
/// `crates` and a function.
type Invariant = (&'static str, &'static str, &'static [&'static str], &'static str);

const MODEL: &str = "sim/tests/model.rs::three_members_lose_nothing_in_long_courses";
const CLOCKS: &str = "sim/tests/model.rs::three_members_with_clocks_never_write_two_at_a_time";
const WORLDS: &str = "sim/tests/model.rs::small_worlds_are_searched_as_a_whole";
const SEEDS: &str = "sim/tests/simulator.rs::nothing_is_lost_and_all_goals_are_reached";
const OPERATED: &str = "sim/tests/operator.rs::every_edit_is_carried_out_and_nothing_is_lost";
const AGENT: &str = "machine/src/instance/properties.rs::every_action_has_its_proof";
const OPERATOR: &str = "machine/tests/properties/main.rs::every_decision_keeps_the_rules";
const WALKS: &str = "machine/tests/convergence/walks.rs::every_walk_ends_in_ready";
const FAILOVERS: &str = "e2e/tests/failover.rs::nothing_acknowledged_is_lost_and_writes_come_back";
const SOAK: &str = "e2e/tests/soak.rs::random_faults_leave_a_valid_history";

const INVARIANTS: [Invariant; 42] = [
    (
        "A later primary has all that an old one acknowledges",
        "M A E",
        &[
            MODEL,
            SEEDS,
            "agent/tests/election.rs::a_primary_that_is_cut_off_acknowledges_nothing_more",
            FAILOVERS,
        ],
        "",
    ),
    ("No timeline has two contents", "M E", &[MODEL, SEEDS, SOAK], ""),
    ("Acknowledged commits survive", "M E", &[MODEL, SEEDS, FAILOVERS], ""),
    (
        "No promotion without the Lease",
        "M A",
        &[
            AGENT,
            "machine/src/instance/ballots.rs::no_input_lets_two_members_take_one_epoch",
            "agent/tests/election.rs::without_the_api_server_nobody_takes_the_lease_of_a_dead_primary",
        ],
        "",
    ),
    (
        "The holder stops in time",
        "M A",
        &[
            "machine/src/instance/fence.rs::past_the_deadline_everything_stops_and_then_is_killed",
            "machine/src/instance/fence.rs::the_dead_man_acts_within_the_kill_budget",
            "machine/src/instance/properties.rs::whatever_may_write_without_the_lease_is_stopped",
            "machine/src/instance/properties.rs::whatever_may_write_is_watched_by_the_dead_man",
            CLOCKS,
            "agent/tests/deadman.rs::a_stopped_agents_processes_die_at_the_deadline",
        ],
        "",
    ),
    (
        "A release needs proof",
        "M A",
        &[
            "machine/src/instance/exploration.rs::two_pods_on_one_volume_never_write_at_the_same_time",
            AGENT,
        ],
        "",
    ),
    (
        "Only a member that covers everything is promoted",
        "M E",
        &[
            "machine/src/quorum.rs::whatever_a_covered_setting_acknowledges_meets_every_election",
            MODEL,
            FAILOVERS,
        ],
        "",
    ),
    (
        "A diverged member is neither read nor counted",
        "M A",
        &[
            MODEL,
            SEEDS,
            "machine/src/instance/report.rs::a_standby_whose_data_has_diverged_is_not_ready",
        ],
        "neither the model nor the simulator has readers",
    ),
    (
        "The rule is recorded before it is relaxed",
        "M",
        &["machine/src/quorum.rs::every_change_is_safe_and_ends", MODEL],
        "",
    ),
    (
        "Applications see nothing in doubt",
        "A E",
        &[MODEL, "agent/tests/failover.rs::a_closed_primary_lets_only_members_in"],
        "",
    ),
    (
        "One initdb",
        "M E",
        &[
            "machine/tests/exploration/main.rs::a_creation_of_three_that_loses_pods_and_primaries",
            OPERATOR,
        ],
        "",
    ),
    (
        "Claims go as the policy says",
        "M E",
        &[
            OPERATOR,
            "e2e/tests/lifecycle.rs::deletion_keeps_or_removes_volumes_as_the_spec_says",
        ],
        "",
    ),
    ("The only copy is not wiped", "M", &[AGENT, MODEL], ""),
    (
        "Half a rewind is not started",
        "A",
        &[
            WORLDS,
            "agent/tests/failover.rs::a_rewind_before_the_new_primarys_first_checkpoint_is_whole_or_none",
        ],
        "",
    ),
    (
        "A standby follows only a history that contains its own WAL",
        "A",
        &[
            MODEL,
            "agent/tests/failover.rs::a_timeline_that_was_torn_off_before_it_begins_hides_nothing",
        ],
        "",
    ),
    (
        "The archive is not overwritten",
        "M A",
        &[
            "sim/tests/model/archive.rs::two_members_with_an_archive_are_searched_as_a_whole",
            "sim/tests/simulator.rs::the_archive_has_all_wal",
            "backup/tests/faults.rs::two_writers_with_lost_replies_have_one_winner",
            "agent/tests/archive.rs::wal_is_archived_through_a_failover_without_a_gap",
        ],
        "",
    ),
    (
        "`-rw` points at the holder",
        "M E",
        &[AGENT, FAILOVERS],
        "the model has no clients to route",
    ),
    (
        "Deletes name their object",
        "by type",
        &[
            "machine/tests/exploration/main.rs::an_api_server_that_does_not_compare_versions_is_found",
            OPERATOR,
        ],
        "",
    ),
    (
        "Decisions are functions",
        "M",
        &[
            "machine/tests/purity.rs::nothing_below_does_io",
            "machine/tests/properties/main.rs::a_status_is_stable",
            OPERATOR,
        ],
        "",
    ),
    (
        "It comes to `Ready`, and stays",
        "M",
        &[WORLDS, WALKS, SEEDS, OPERATED],
        "",
    ),
    (
        "Every edit can be reverted",
        "M E",
        &[
            "machine/tests/exploration/main.rs::edits_that_are_reverted",
            WALKS,
            OPERATED,
        ],
        "",
    ),
    (
        "One member away at a time, the primary last",
        "M E",
        &[OPERATOR, OPERATED],
        "",
    ),
    (
        "Data is as safe without the operator",
        "E",
        &[
            SEEDS,
            "e2e/tests/failover.rs::nothing_acknowledged_is_lost_if_the_operator_is_killed_at_the_same_moment",
        ],
        "",
    ),
    (
        "A lost status comes back",
        "M E",
        &["machine/tests/convergence/loss.rs::a_wiped_status_comes_back"],
        "",
    ),
    (
        "No secret leaks",
        "E",
        &["cli/tests/report.rs::a_report_holds_no_secret"],
        "",
    ),
    (
        "`Ready` is true",
        "M E",
        &["machine/tests/properties/main.rs::ready_is_true_only_of_the_present_spec"],
        "",
    ),
    (
        "The only claim stays",
        "M",
        &["machine/tests/properties/main.rs::the_only_copy_of_the_data_stays"],
        "",
    ),
    (
        "A member that does not serve may be replaced",
        "M",
        &[
            "machine/src/cluster/rollout.rs::an_outdated_member_that_does_not_serve_goes_first_even_if_all_fail",
            OPERATED,
        ],
        "",
    ),
    (
        "A serving member stays while others fail",
        "M E",
        &[OPERATOR, OPERATED],
        "",
    ),
    (
        "No repetition without a pause",
        "M",
        &[
            "machine/src/cluster/failure.rs::a_failed_action_rests_longer_each_time_and_says_why",
            OPERATOR,
        ],
        "",
    ),
    (
        "Every reported wait is true",
        "M",
        &[OPERATOR, "machine/tests/exploration/waits.rs::is_so"],
        "the form of each wait is checked (its reason, its actor, its deadline). Its truth is checked for the operator's most common waits: for pods, for the primary, and until idle",
    ),
    (
        "One tenant's object disturbs no other tenant",
        "E, and in memory",
        &[
            "operator/tests/simulated/unreadable.rs::an_object_of_any_kind_that_cannot_be_read_holds_up_its_own_database_alone",
            "operator/tests/simulated/panics.rs::a_decision_that_panics_rests_its_database_alone",
        ],
        "no object of another tenant is in its world",
    ),
    (
        "No accepted setting blinds an agent",
        "A E",
        &[
            "agent/tests/settings.rs::first_half_of_the_settings_stops_no_agent",
            "agent/tests/settings.rs::second_half_of_the_settings_stops_no_agent",
        ],
        "no settings of PostgreSQL are in its world",
    ),
    (
        "Only a proven member counts as a standby",
        "A M",
        &[
            "machine/src/instance/impostors.rs::only_the_role_decides_which_wal_sender_counts_as_a_member",
            "agent/tests/faults.rs::a_role_under_a_members_name_counts_for_nobody",
            "sim/tests/model.rs::every_mutant_is_found",
        ],
        "",
    ),
    (
        "A lost Lease comes back only by proof",
        "M E",
        &[
            "machine/src/instance/restore.rs::nothing_is_restored_that_is_not_proven",
            "sim/tests/model.rs::members_that_lose_the_lease_are_searched_as_a_whole",
            "sim/tests/simulator.rs::a_lost_lease_heals_without_an_outage_if_the_holder_can_prove_its_right",
        ],
        "",
    ),
    (
        "The archive has no gap",
        "M A E",
        &[
            "sim/tests/model/archive.rs::two_members_with_an_archive_are_searched_as_a_whole",
            "sim/tests/simulator.rs::the_archive_has_all_wal",
            "agent/tests/archive.rs::wal_is_archived_through_a_failover_without_a_gap",
            "e2e/tests/archive.rs::wal_is_archived_from_a_running_database_on_and_through_a_failover",
        ],
        "in the model a copy has all WAL of its source",
    ),
    (
        "Recovery opens nothing on less than was asked for",
        "A",
        &[
            "agent/tests/recovery.rs::a_backup_is_recovered_to_each_kind_of_target",
            "e2e/tests/recovery.rs::a_database_is_made_from_a_backup_as_it_was_before_a_mistake",
        ],
        "there is no recovery in the model or the simulator",
    ),
    (
        "A backup is complete, and its end is final",
        "A O",
        &[
            "agent/tests/base.rs::a_backup_that_is_cut_off_is_none_and_the_next_succeeds",
            "agent/tests/base.rs::of_two_attempts_at_once_only_the_later_one_becomes_a_backup",
            "agent/tests/base.rs::the_primary_takes_the_backup_that_the_resource_asks_for_and_its_successor_goes_on",
            "operator/tests/simulated/backups.rs::backups_of_one_database_are_taken_one_after_the_other_each_once",
        ],
        "there are no backups in the model or the simulator",
    ),
    (
        "Retention takes nothing that is needed",
        "A",
        &[
            "machine/src/retention/tests.rs::every_kept_backup_stays_recoverable",
            "agent/tests/base.rs::what_the_retention_does_not_keep_is_told_and_then_removed",
            "backup/tests/base.rs::a_backup_that_is_removed_while_it_is_made_is_never_complete",
        ],
        "there are no backups in the model or the simulator",
    ),
    (
        "An operation that is taken back leaves nothing",
        "M E",
        &[
            "machine/tests/convergence/in_place.rs::taken_back_at_any_time_the_database_is_as_it_was_or_recovered",
            "machine/tests/convergence/in_place.rs::a_crash_after_any_write_changes_no_outcome",
            "e2e/tests/recovery.rs::a_database_is_recovered_in_place_and_goes_back",
        ],
        "there is no recovery in place in the model or the simulator",
    ),
    (
        "Data outside the cluster goes only by an order with its UID",
        "M A",
        &[
            "machine/src/cluster/delete_archive/tests.rs::nothing_is_deleted_before_the_user_confirms",
            "agent/tests/base.rs::a_database_of_the_same_name_touches_nothing_of_the_one_before_it",
        ],
        "no store is deleted in the model or the simulator",
    ),
    (
        "Nobody presents a certificate that a living verifier does not trust",
        "M A E",
        &[
            "machine/src/rotation/tests.rs::nobody_presents_what_a_living_verifier_does_not_trust_and_each_rotation_ends",
            "agent/tests/postgres.rs::a_certificate_counts_as_loaded_when_postgresql_presents_it",
            "e2e/tests/operations.rs::another_authority_takes_over_under_writes_and_nobody_restarts",
        ],
        "certificates have a small model of their own, and are not in the simulator",
    ),
];

/// A row of docs/mutants.md: the mutant, what it breaks, and which check finds it.
struct Found {
    name: String,
    rung: String,
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The machine's mutants by the number of the "protocol" rule, or the "invariant", that they break.
fn of_machine(what: &str) -> BTreeMap<usize, Vec<Found>> {
    let mut found: BTreeMap<usize, Vec<Found>> = BTreeMap::new();
    for row in page("mutants.md").lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let rule = cells[3].strip_prefix(what).and_then(|rule| rule.trim().parse().ok());
        if let Some(rule) = rule {
            found.entry(rule).or_default().push(Found {
                name: cells[1].to_owned(),
                rung: cells[4].to_owned(),
            });
        }
    }
    found
}

fn of_model(rule: usize) -> Vec<String> {
    let breaks = |mutant: &&Mutant| mutant.rules().iter().any(|broken| usize::from(*broken) == rule);
    Mutant::ALL
        .iter()
        .filter(breaks)
        .map(|mutant| format!("`{mutant:?}`"))
        .collect()
}

/// For each omitted rule a check of whole sequences fails. If the world cannot express a rule, the page says which
/// check fails instead.
#[test]
fn each_rule_has_a_check_that_finds_its_violation() {
    let machine = of_machine("protocol");
    for (number, (name, always, outside)) in (1..).zip(RULES) {
        let of_machine = machine.get(&number).map_or(&[][..], Vec::as_slice);
        let courses = ["model", "exploration", "convergence test"];
        let whole = of_machine.iter().any(|found| courses.contains(&found.rung.as_str()));
        assert!(
            whole || !of_model(number).is_empty() || !outside.is_empty() && !of_machine.is_empty(),
            "rule {number} ({name}): no mutant of the model's or the machine's breaks it"
        );
        assert!(
            of_model(number).is_empty() || !always.is_empty(),
            "rule {number} ({name}): by what is its mutant found?"
        );
    }
}

/// True if a function exists, given as a file in `crates` and a name, such as `machine/src/quorum.rs::next_step`. A
/// unit test may also be in the file's sibling, `machine/src/quorum/tests.rs`.
fn is_there(function: &str) -> bool {
    let (file, name) = function.split_once("::").expect("a file and a function");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let sibling = fs::read_to_string(path.with_extension("").join("tests.rs")).unwrap_or_default();
    ["(", "<"].iter().any(|after| {
        let text = format!("fn {name}{after}");
        source.contains(&text) || sibling.contains(&text)
    })
}

#[test]
fn each_rule_has_functions_and_tests_of_its_own() {
    for (number, (functions, tests)) in (1..).zip(DECIDED) {
        assert!(!functions.is_empty() && !tests.is_empty(), "rule {number}");
        for named in functions.iter().chain(tests) {
            assert!(is_there(named), "rule {number}: no {named}");
        }
    }
}

/// Each invariant is checked on each possible level: by tests that exist, or by a broken rule that must be found.
#[test]
fn each_invariant_has_a_check_that_finds_its_violation() {
    let broken = of_machine("invariant");
    for (number, (name, wanted, tests, outside)) in (1..).zip(INVARIANTS) {
        let found = !tests.is_empty() || broken.contains_key(&number);
        let excused = !wanted.contains('M') && !outside.is_empty();
        assert!(
            found || excused,
            "invariant {number} ({name}): no check would find its violation"
        );
        for test in tests {
            assert!(is_there(test), "invariant {number}: no {test}");
        }
    }
    assert!(broken.keys().all(|number| (1..=INVARIANTS.len()).contains(number)));
}

/// docs/protocol.md and docs/invariants.md have a heading for each, with its number and name.
#[test]
fn the_pages_have_a_heading_for_each() {
    let rules: Vec<_> = RULES.iter().map(|(name, ..)| *name).collect();
    let invariants: Vec<_> = INVARIANTS.iter().map(|(name, ..)| *name).collect();
    for (file, names) in [("protocol.md", rules), ("invariants.md", invariants)] {
        let page = page(file);
        let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        let wanted: Vec<_> = (1..)
            .zip(names)
            .map(|(number, name)| format!("{number}. {name}"))
            .collect();
        assert_eq!(headings, wanted, "docs/{file}");
    }
}

fn code(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

fn invariants() -> String {
    let broken = of_machine("invariant");
    let mut table =
        "\n| Invariant | To be checked by | Tests | Mutants of the machine | Not seen |\n|---|---|---|---|---|\n"
            .to_owned();
    for (number, (name, wanted, tests, outside)) in (1..).zip(INVARIANTS) {
        let broken = broken.get(&number).map_or(&[][..], Vec::as_slice);
        let broken: Vec<_> = broken.iter().map(|found| found.name.as_str()).collect();
        let (tests, broken) = (code(tests), broken.join(", "));
        table += &format!("| {number} {name} | {wanted} | {tests} | {broken} | {outside} |\n");
    }
    table
}

const BEGIN: &str = "<!-- Rules: written by `UPDATE=1 cargo test -p sim --test rules`. -->\n";
const END: &str = "<!-- End of rules. -->\n";
const INVARIANTS_BEGIN: &str = "<!-- Invariants: written by `UPDATE=1 cargo test -p sim --test rules`. -->\n";
const INVARIANTS_END: &str = "<!-- End of invariants. -->\n";

#[test]
fn the_page_names_the_checks_of_each_rule() {
    let machine = of_machine("protocol");
    let mut table =
        "\n| Rule | Decided by | Always | Mutants of the model | Mutants of the machine | Not in this world | Tests of it alone |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for ((number, (name, always, outside)), (functions, tests)) in (1..).zip(RULES).zip(DECIDED) {
        let of_machine = machine.get(&number).map_or(&[][..], Vec::as_slice);
        let of_machine: Vec<_> = of_machine
            .iter()
            .map(|found| format!("{} ({})", found.name, found.rung))
            .collect();
        let cells = [
            format!("{number} {name}"),
            code(functions),
            always.join("; "),
            of_model(number).join(", "),
            of_machine.join(", "),
            outside.to_owned(),
            code(tests),
        ];
        table += &format!("| {} |\n", cells.join(" | "));
    }
    compare(BEGIN, &format!("{table}\n"), END);
    compare(INVARIANTS_BEGIN, &format!("{}\n", invariants()), INVARIANTS_END);
}

/// Compares, or with `UPDATE` writes, the text between two lines of docs/model.md.
fn compare(begin: &str, table: &str, end: &str) {
    let page = page("model.md");
    let (before, rest) = page.split_once(begin).expect("where the table begins");
    let (written, after) = rest.split_once(end).expect("where the table ends");
    if std::env::var_os("UPDATE").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/model.md");
        fs::write(path, format!("{before}{begin}{table}{end}{after}")).expect("write docs/model.md");
    } else {
        assert_eq!(written, table, "UPDATE=1 cargo test -p sim --test rules");
    }
}
