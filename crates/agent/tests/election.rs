//! Three whole agents with real PostgreSQL servers elect, fence and rejoin.

#[path = "support/api_server.rs"]
mod api_server;
#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "support/database.rs"]
#[allow(dead_code)]
mod database;
#[path = "support/unprivileged.rs"]
#[allow(dead_code)]
mod unprivileged;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::names::LEASE_MEMBERS;
use api_server::LEASES;
use cluster::{Cluster, become_agent_if_asked, in_a_cluster};
use database::{commit_row, commits, healthy, replaced, rows, spec, with_a_row, writes};
use rustix::process::Signal;

/// Not a test: an agent of the other tests.
#[test]
fn an_agent() {
    become_agent_if_asked();
}

#[test]
fn a_dead_primary_is_replaced_and_comes_back() {
    in_a_cluster(
        "a_dead_primary_is_replaced_and_comes_back",
        spec(),
        |mut cluster| async move {
            let first = healthy(&cluster, "three members, and commits wait for one", 90).await;
            assert_eq!(first, 0);
            cluster
                .sql(first, "CREATE TABLE entry (number int PRIMARY KEY)")
                .await
                .expect("a table");
            cluster
                .sql(first, "INSERT INTO entry VALUES (1)")
                .await
                .expect("a commit");
            let epoch = cluster.epoch();

            cluster.kill_agent(first);
            let replaced = async |cluster: &Cluster| writes(cluster, first, 2).await;
            let (second, took) = cluster.until("another primary writes", 30, replaced).await;
            assert!(took.as_millis() < 10_000, "sooner than the lease runs out: {took:?}");
            assert!(cluster.epoch() > epoch);
            assert_eq!(rows(&cluster, second).await, "1,2");
            let pending = "SELECT count(*) FROM pg_settings WHERE pending_restart";
            assert_eq!(
                cluster.sql(second, pending).await.expect("an answer"),
                "0",
                "a promotion asks for no restart"
            );
            let timeline = cluster
                .sql(second, "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)")
                .await;
            assert_eq!(timeline.expect("an answer"), "00000002");

            cluster.start_agent(first);
            assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
            let caught_up = async |cluster: &Cluster| (rows(cluster, first).await == "1,2").then_some(());
            cluster.until("it has what was written meanwhile", 10, caught_up).await;
        },
    );
}

#[test]
fn a_primary_that_is_cut_off_acknowledges_nothing_more() {
    in_a_cluster(
        "a_primary_that_is_cut_off_acknowledges_nothing_more",
        spec(),
        |cluster| async move {
            let first = healthy(&cluster, "three members, and commits wait for one", 90).await;
            cluster
                .sql(first, "CREATE TABLE entry (number int PRIMARY KEY)")
                .await
                .expect("a table");
            cluster
                .sql(first, "INSERT INTO entry VALUES (1)")
                .await
                .expect("a commit");

            cluster.cut_off(first);
            // Clients on the primary's machine: their commits are not acknowledged, whatever becomes of them.
            let (lost, found) = tokio::join!(
                cluster.sql(first, "INSERT INTO entry VALUES (100)"),
                cluster.until("another primary writes", 30, async |cluster: &Cluster| {
                    writes(cluster, first, 2).await
                })
            );
            assert!(lost.is_err(), "{lost:?}");
            let second = found.0;
            assert_eq!(rows(&cluster, second).await, "1,2");
            let stopped = async |cluster: &Cluster| cluster.sql(first, "SELECT 1").await.is_err().then_some(());
            cluster.until("the old one has fenced itself", 10, stopped).await;

            cluster.reconnect(first);
            assert_eq!(
                healthy(&cluster, "the old primary was rewound and follows", 90).await,
                second
            );
            let caught_up = async |cluster: &Cluster| (rows(cluster, first).await == "1,2").then_some(());
            cluster.until("what nobody acknowledged is gone", 20, caught_up).await;
        },
    );
}

#[test]
fn a_wish_moves_the_primary_and_a_stop_hands_over() {
    in_a_cluster(
        "a_wish_moves_the_primary_and_a_stop_hands_over",
        spec(),
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            let own = "SELECT pg_create_physical_replication_slot('own')::text";
            cluster.sql(first, own).await.expect("a user's slot");
            cluster.wish_for(2);
            let (second, took) = replaced(&cluster, first, 2, 30).await;
            assert_eq!(second, 2, "the wanted one");
            assert!(
                took.as_millis() < 10_000,
                "nobody waits for a lease to run out: {took:?}"
            );
            assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
            let rewound = cluster.log(first).contains("rule\":\"rewind");
            assert!(!rewound, "it stopped cleanly, and has nothing that the new one has not");
            let dropped = async |cluster: &Cluster| {
                let slots = "SELECT string_agg(slot_name, ',') FROM pg_replication_slots";
                (cluster.sql(first, slots).await.ok()? == "own").then_some(())
            };
            cluster.until("it keeps WAL for nobody but the user", 10, dropped).await;
            let cleans = async |cluster: &Cluster| {
                let newer = "SELECT bool_and(coalesce(s.xmin::text::bigint > e.xmin::text::bigint, false))
                    FROM pg_replication_slots s, entry e WHERE s.active AND e.number = 2";
                (cluster.sql(second, newer).await.ok()? == "t").then_some(())
            };
            cluster
                .until("no standby keeps rows of before the move", 20, cleans)
                .await;

            cluster.signal(second, Signal::TERM);
            let (third, took) = replaced(&cluster, second, 3, 30).await;
            assert!(took.as_millis() < 10_000, "{took:?}");
            assert_eq!(rows(&cluster, third).await, "1,2,3");
            cluster.ended(second);
            cluster.start_agent(second);
            let primary = healthy(&cluster, "three members again", 60).await;
            let caught_up = async |cluster: &Cluster| (rows(cluster, 0).await == "1,2,3").then_some(());
            cluster.until("everybody has all", 20, caught_up).await;
            assert!(primary == third || primary == 2, "the wish may bring it back");
        },
    );
}

/// The limit in force, and how many settings wait for a restart.
async fn limit(cluster: &Cluster, ordinal: u32) -> Option<(String, u32)> {
    let query = "SELECT current_setting('max_connections'), count(*) FROM pg_settings WHERE pending_restart";
    let answer = cluster.sql(ordinal, query).await.ok()?;
    let (limit, pending) = answer.split_once('|')?;
    Some((limit.to_owned(), pending.parse().ok()?))
}

async fn until_limit(cluster: &Cluster, what: &str, ordinal: u32, wanted: (&str, u32)) {
    let look = async |cluster: &Cluster| {
        let (limit, pending) = limit(cluster, ordinal).await?;
        ((limit.as_str(), pending) == wanted).then_some(())
    };
    cluster.until(what, 30, look).await;
}

#[test]
fn a_lowered_limit_reaches_the_standbys_and_costs_the_next_primary_nothing() {
    let name = "a_lowered_limit_reaches_the_standbys_and_costs_the_next_primary_nothing";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        assert_eq!(first, 0);
        cluster.set_parameter("max_connections", "50");
        until_limit(&cluster, "the primary is to restart", first, ("100", 1)).await;
        let keeps = async |cluster: &Cluster| {
            let reports = cluster.annotation(api::names::LEASE_MEMBERS);
            let keeps = |ordinal: u32| {
                let report = &reports[format!("orders-{ordinal}")];
                report["lowersLimits"] == true && report["pendingRestart"] == false
            };
            (keeps(1) && keeps(2)).then_some(())
        };
        cluster.until("the standbys keep what the primary has", 30, keeps).await;
        cluster.let_restart(first);
        until_limit(&cluster, "the primary has less", first, ("50", 0)).await;
        for standby in [2, 1] {
            until_limit(&cluster, "now a standby is to restart", standby, ("100", 1)).await;
            cluster.let_restart(standby);
            until_limit(&cluster, "it has less as well", standby, ("50", 0)).await;
        }
        assert_eq!(healthy(&cluster, "three members again", 60).await, first);
        cluster.wish_for(1);
        assert_eq!(replaced(&cluster, first, 2, 30).await.0, 1);
        assert_eq!(limit(&cluster, 1).await, Some(("50".to_owned(), 0)));
    });
}

#[test]
fn a_former_primary_makes_an_election_possible_when_its_successor_is_lost_before_it_is_rewound() {
    in_a_cluster(
        "a_former_primary_makes_an_election_possible_when_its_successor_is_lost_before_it_is_rewound",
        spec(),
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            cluster.kill_agent(first);
            let (second, _) = replaced(&cluster, first, 2, 30).await;
            cluster.kill_agent(second);
            cluster.start_agent(first);
            let noted =
                async |cluster: &Cluster| cluster.volume(first).join("agent/was-primary").exists().then_some(());
            cluster
                .until("its data is a primary's, and is started as a standby", 100, noted)
                .await;
            let (third, _) = replaced(&cluster, second, 3, 120).await;
            assert_eq!(rows(&cluster, third).await, "1,2,3");
            let asked = "an election needs to know where this member's WAL ends";
            assert!(cluster.log(first).contains(asked), "there was nobody to rewind it to");
        },
    );
}

/// Commits one row after the other on the primary `first`, until it refuses. Returns the last number that was
/// acknowledged.
async fn write_until_refused(cluster: &Cluster, first: u32) -> u32 {
    let mut last = 1;
    loop {
        let statement = format!("INSERT INTO entry VALUES ({})", last + 1);
        match cluster.sql(first, &statement).await {
            Ok(_) => last += 1,
            Err(_) => return last,
        }
    }
}

#[test]
fn a_primary_that_the_user_fences_is_replaced_and_stays_stopped_until_it_is_named_no_more() {
    in_a_cluster(
        "a_primary_that_the_user_fences_is_replaced_and_stays_stopped_until_it_is_named_no_more",
        spec(),
        |cluster| async move {
            let first = with_a_row(&cluster).await;
            let fence = async {
                let writes = async |cluster: &Cluster| (rows(cluster, first).await.len() > 8).then_some(());
                cluster.until("some rows are written", 30, writes).await;
                cluster.fence(&[first]);
            };
            let (last, ()) = tokio::join!(write_until_refused(&cluster, first), fence);
            let (second, took) = replaced(&cluster, first, 1_000, 30).await;
            assert!(
                took.as_millis() < 10_000,
                "nobody waits for a lease to run out: {took:?}"
            );
            let acknowledged: Vec<String> = (1..=last).map(|number| number.to_string()).collect();
            let all = rows(&cluster, second).await;
            assert!(
                all.starts_with(&acknowledged.join(",")),
                "{last} were acknowledged: {all}"
            );
            assert!(!cluster.runs(first), "it is stopped");

            // The other standby ends as well, and comes back; the fenced one stays stopped.
            let third = 3 - first - second;
            cluster.fence(&[first, third]);
            let stopped = async |cluster: &Cluster| (!cluster.runs(third)).then_some(());
            cluster.until("the fenced standby has stopped", 20, stopped).await;
            cluster.fence(&[first]);
            let back = async |cluster: &Cluster| (rows(cluster, third).await == all).then_some(());
            cluster.until("it is started again", 30, back).await;
            assert!(!cluster.runs(first), "it is stopped still");

            cluster.fence(&[]);
            assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
            let caught_up = async |cluster: &Cluster| (rows(cluster, first).await == all).then_some(());
            cluster.until("it has what was written meanwhile", 10, caught_up).await;
            assert!(!cluster.log(first).contains("rule\":\"rewind"), "it stopped cleanly");
        },
    );
}

#[test]
fn a_frozen_agent_is_fenced_by_its_dead_man_and_replaced() {
    in_a_cluster(
        "a_frozen_agent_is_fenced_by_its_dead_man_and_replaced",
        spec(),
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            cluster.signal(first, Signal::STOP);
            // PostgreSQL goes on. As long as the others hear it, nothing happens except that the lease runs out.
            let (second, _) = replaced(&cluster, first, 2, 40).await;
            assert!(
                cluster.sql(first, "SELECT 1").await.is_err(),
                "the dead-man has ended it"
            );
            cluster.kill_agent(first);
            cluster.start_agent(first);
            assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
            assert_eq!(rows(&cluster, second).await, "1,2");
        },
    );
}

#[test]
fn the_rule_shrinks_and_the_last_standby_is_elected_alone() {
    in_a_cluster(
        "the_rule_shrinks_and_the_last_standby_is_elected_alone",
        spec(),
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            let others: Vec<u32> = (0..3).filter(|ordinal| *ordinal != first).collect();
            cluster.kill_agent(others[0]);
            let shrunk = async |cluster: &Cluster| {
                let rule = cluster.annotation(api::names::LEASE_RULE);
                let names = rule["names"].as_array().map_or(0, Vec::len);
                (rule["required"] == 1 && names == 1).then_some(())
            };
            cluster.until("the rule names who is left", 30, shrunk).await;
            cluster
                .sql(first, "INSERT INTO entry VALUES (2)")
                .await
                .expect("a commit");
            cluster.kill_agent(first);
            let alone = async |cluster: &Cluster| {
                let pod = format!("orders-{}", others[1]);
                (cluster.annotation(api::names::LEASE_HOLDER)["pod"] == pod).then_some(())
            };
            cluster.until("the last one is elected", 30, alone).await;
            // It lets no application in before another member holds the commits in doubt.
            assert_eq!(cluster.serving(), None);
            cluster.start_agent(others[0]);
            let (second, _) = replaced(&cluster, first, 3, 60).await;
            assert_eq!(second, others[1]);
            cluster.start_agent(first);
            healthy(&cluster, "three members again", 90).await;
            assert_eq!(rows(&cluster, second).await, "1,2,3");
        },
    );
}

#[test]
fn with_too_few_members_left_the_user_can_accept_the_loss() {
    in_a_cluster(
        "with_too_few_members_left_the_user_can_accept_the_loss",
        spec(),
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            let others: Vec<u32> = (0..3).filter(|ordinal| *ordinal != first).collect();
            let (lost, left) = (others[0], others[1]);
            let has = async |cluster: &Cluster| (rows(cluster, left).await == "1").then_some(());
            cluster.until("the one that will be left has the row", 10, has).await;
            // Both at once, so that the rule cannot drop either of them before.
            cluster.kill_agent(first);
            cluster.kill_agent(lost);
            let epoch = cluster.epoch();
            cluster.accept_loss(epoch);
            let pod = format!("orders-{left}");
            let holds = async |cluster: &Cluster| {
                (cluster.annotation(api::names::LEASE_HOLDER)["pod"] == pod.as_str()).then_some(())
            };
            cluster.until("the one that is left goes on", 40, holds).await;
            assert_eq!(cluster.epoch(), epoch + 1);
            // Commits wait for one more member, as before: a lost one, or a new one in its place.
            cluster.start_agent(lost);
            assert_eq!(replaced(&cluster, first, 2, 60).await.0, left);
            assert_eq!(rows(&cluster, left).await, "1,2");
        },
    );
}

#[test]
fn a_standby_whose_wal_was_removed_is_copied_anew_by_itself() {
    let mut small = spec();
    small["postgres"]["parameters"]["max_slot_wal_keep_size"] = "16MB".into();
    small["postgres"]["parameters"]["max_wal_size"] = "32MB".into();
    small["postgres"]["parameters"]["min_wal_size"] = "32MB".into();
    small["postgres"]["parameters"]["wal_keep_size"] = "0".into();
    in_a_cluster(
        "a_standby_whose_wal_was_removed_is_copied_anew_by_itself",
        small,
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            let away = (first + 1) % 3;
            cluster.kill_agent(away);
            for number in 2..10 {
                for statement in [
                    &format!("INSERT INTO entry VALUES ({number})"),
                    "SELECT pg_switch_wal()",
                    "CHECKPOINT",
                ] {
                    cluster.sql(first, statement).await.expect(statement);
                }
            }
            cluster.start_agent(away);
            assert_eq!(healthy(&cluster, "it was copied anew, and follows", 120).await, first);
            assert_eq!(rows(&cluster, away).await, "1,2,3,4,5,6,7,8,9");
            assert!(
                cluster
                    .log(away)
                    .contains("the primary has removed WAL that this member needs"),
                "it was left behind, and noticed"
            );
        },
    );
}

#[test]
fn a_changed_password_is_taken_up_while_serving() {
    in_a_cluster(
        "a_changed_password_is_taken_up_while_serving",
        spec(),
        |cluster| async move {
            let first = with_a_row(&cluster).await;
            let stored = async || {
                let query = "SELECT rolpassword FROM pg_authid WHERE rolname = 'app'";
                cluster.sql(first, query).await.expect("a verifier")
            };
            let before = stored().await;
            let matches = |verifier: &str, password: &str| {
                agent::postgres::Verifier::parse(verifier).is_some_and(|verifier| verifier.matches(password))
            };
            assert!(matches(&before, "geheim"));
            for ordinal in 0..3 {
                cluster.write_secret(ordinal, "app/password", "another");
            }
            let changed = async |_: &Cluster| matches(&stored().await, "another").then_some(());
            cluster.until("the password of the Secret", 30, changed).await;
        },
    );
}

#[test]
fn a_crashed_server_is_restarted_in_place() {
    in_a_cluster("a_crashed_server_is_restarted_in_place", spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        let epoch = cluster.epoch();
        cluster.kill_postmaster(first);
        let again = async |cluster: &Cluster| {
            let serving = cluster.serving()?;
            commit_row(cluster, serving, 2).await.ok()
        };
        cluster.until("writes go on", 30, again).await;
        assert_eq!(
            (cluster.serving(), cluster.epoch()),
            (Some(first), epoch),
            "nobody was elected"
        );
        healthy(&cluster, "the standbys are back", 60).await;
        assert_eq!(rows(&cluster, first).await, "1,2");
    });
}

#[test]
fn a_new_pod_waits_and_a_new_container_goes_on() {
    in_a_cluster(
        "a_new_pod_waits_and_a_new_container_goes_on",
        spec(),
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            let again = async |cluster: &Cluster| {
                let serving = cluster.serving()?;
                let row = "INSERT INTO entry SELECT max(number) + 1 FROM entry";
                cluster.sql(serving, row).await.ok().map(|_| serving)
            };
            // All its processes are certainly dead: it goes on at once.
            cluster.kill_agent(first);
            cluster.start_container(first);
            let (same, took) = cluster.until("the container writes again", 30, again).await;
            assert_eq!(same, first);
            assert!(took.as_millis() < 10_000, "the lease need not run out: {took:?}");
            healthy(&cluster, "three members", 60).await;
            // The old pod may live elsewhere. So the new one does not act in its place, and the others elect one of
            // them.
            cluster.kill_agent(first);
            cluster.start_agent(first);
            let (second, took) = cluster.until("somebody writes", 30, again).await;
            assert_ne!(second, first);
            assert!(took.as_millis() < 10_000, "{took:?}");
            let second = healthy(&cluster, "three members again", 60).await;
            assert_eq!(rows(&cluster, second).await, "1,2,3");
        },
    );
}

#[test]
fn a_member_that_lost_its_volume_is_copied_again() {
    in_a_cluster(
        "a_member_that_lost_its_volume_is_copied_again",
        spec(),
        |mut cluster| async move {
            let first = with_a_row(&cluster).await;
            cluster.kill_agent(first);
            replaced(&cluster, first, 2, 30).await;
            cluster.lose_volume(first);
            cluster.start_agent(first);
            let second = healthy(&cluster, "the new member counts", 90).await;
            assert_ne!(second, first);
            let caught_up = async |cluster: &Cluster| (rows(cluster, first).await == "1,2").then_some(());
            cluster.until("it has all", 20, caught_up).await;
        },
    );
}

#[test]
fn a_primary_that_cannot_write_steps_down() {
    in_a_cluster("a_primary_that_cannot_write_steps_down", spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        // Its agent goes on and renews the lease.
        cluster.freeze_servers(first);
        let (second, _) = replaced(&cluster, first, 2, 40).await;
        assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
        assert_eq!(rows(&cluster, second).await, "1,2");
    });
}

#[test]
fn without_the_api_server_the_primary_serves_on_while_the_others_promise_to_leave_it_the_lease() {
    let name = "without_the_api_server_the_primary_serves_on_while_the_others_promise_to_leave_it_the_lease";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        let epoch = cluster.epoch();
        cluster.api.pause(true);
        let (count, longest) = commits(&cluster, first, 1_000, 20).await;
        println!("{count} commits, the longest gap {} ms", longest.as_millis());
        assert!(count > 20 && longest < Duration::from_secs(6), "{count} {longest:?}");
        // The promise of one other member is enough.
        let one = (0..3).find(|ordinal| *ordinal != first).expect("a standby");
        cluster.cut_off(one);
        let (count, longest) = commits(&cluster, first, 100_000, 10).await;
        println!("{count} commits, the longest gap {} ms", longest.as_millis());
        assert!(count > 10 && longest < Duration::from_secs(6), "{count} {longest:?}");
        cluster.reconnect(one);

        let before = cluster.api.get(LEASES);
        cluster.api.pause(false);
        let renewed = async |cluster: &Cluster| (cluster.api.get(LEASES) != before).then_some(());
        cluster.until("the lease is renewed", 20, renewed).await;
        assert_eq!(healthy(&cluster, "three members", 60).await, first);
        assert_eq!(cluster.epoch(), epoch, "nobody was elected");
        assert!(!cluster.log(first).contains("rule\":\"fence"), "it was never fenced");
    });
}

#[test]
fn without_the_api_server_and_the_others_the_primary_fences_itself_and_comes_back() {
    let name = "without_the_api_server_and_the_others_the_primary_fences_itself_and_comes_back";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        cluster.api.pause(true);
        // For this time it needs their promises.
        commits(&cluster, first, 1_000, 9).await;
        cluster.cut_off(first);
        let fenced = async |cluster: &Cluster| cluster.sql(first, "SELECT 1").await.is_err().then_some(());
        let ((), took) = cluster.until("the primary is fenced", 20, fenced).await;
        // The fence time of the default profile, less the pause between requests (1 s, and the time for which a request
        // waits for its answer).
        assert!((3_500..10_000).contains(&took.as_millis()), "{took:?}");
        cluster.reconnect(first);
        cluster.api.pause(false);
        let again = async |cluster: &Cluster| {
            let serving = cluster.serving()?;
            commit_row(cluster, serving, 2).await.ok()
        };
        cluster.until("somebody writes", 30, again).await;
        let primary = healthy(&cluster, "three members", 60).await;
        assert!(rows(&cluster, primary).await.starts_with("1,2,1000"));
    });
}

#[test]
fn without_the_api_server_nobody_takes_the_lease_of_a_dead_primary() {
    let name = "without_the_api_server_nobody_takes_the_lease_of_a_dead_primary";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        cluster.api.pause(true);
        commits(&cluster, first, 1_000, 8).await;
        cluster.kill_agent(first);
        let before = cluster.api.get(LEASES);
        // Longer than the time for which they have promised not to take the lease.
        let others: Vec<u32> = (0..3).filter(|ordinal| *ordinal != first).collect();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(14) {
            for other in &others {
                let writes = cluster.sql(*other, "SELECT NOT pg_is_in_recovery()").await;
                assert_ne!(writes.as_deref(), Ok("t"), "{other}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(cluster.api.get(LEASES), before, "nobody could write it");
        cluster.api.pause(false);
        let (second, _) = replaced(&cluster, first, 2, 30).await;
        assert!(rows(&cluster, second).await.starts_with("1,2,1000"));
        cluster.start_agent(first);
        healthy(&cluster, "three members again", 90).await;
    });
}

#[test]
fn a_renewed_certificate_is_taken_up_while_serving() {
    in_a_cluster(
        "a_renewed_certificate_is_taken_up_while_serving",
        spec(),
        |cluster| async move {
            let first = with_a_row(&cluster).await;
            let loaded = "SELECT pg_conf_load_time()::text";
            let before = cluster.sql(first, loaded).await.expect("an answer");
            (0..3).for_each(|ordinal| cluster.renew_certificate(ordinal));
            let again = async |cluster: &Cluster| (cluster.sql(first, loaded).await.ok()? != before).then_some(());
            cluster.until("PostgreSQL has read it", 30, again).await;
            let told = async |cluster: &Cluster| {
                let members = cluster.annotation(LEASE_MEMBERS);
                let loaded =
                    |ordinal| members[format!("orders-{ordinal}")]["certificates"] == cluster.certificates(ordinal);
                (0..3).all(loaded).then_some(())
            };
            cluster.until("each member tells what it has loaded", 30, told).await;
            healthy(&cluster, "agents and servers understand each other", 20).await;
        },
    );
}

/// Commits rows one after the other on the serving primary, until it is told to end. Returns the rows that were
/// acknowledged.
async fn writer(cluster: &Cluster, ends: &AtomicBool) -> Vec<u32> {
    let mut acknowledged = Vec::new();
    for number in 1_000.. {
        if ends.load(Ordering::SeqCst) {
            break;
        }
        match cluster.serving() {
            Some(serving) => {
                let row = format!("INSERT INTO entry VALUES ({number})");
                if cluster.sql(serving, &row).await.is_ok() {
                    acknowledged.push(number);
                }
            }
            None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    }
    acknowledged
}

#[test]
fn nothing_that_was_acknowledged_is_lost() {
    in_a_cluster("nothing_that_was_acknowledged_is_lost", spec(), |cluster| async move {
        with_a_row(&cluster).await;
        let ends = AtomicBool::new(false);
        let faults = async {
            for round in 0..4 {
                let primary = healthy(&cluster, "three members", 90).await;
                // Wait until some rows are written.
                let enough = async |cluster: &Cluster| {
                    let count = cluster.sql(primary, "SELECT count(*) FROM entry").await.ok()?;
                    (count.parse::<u32>().ok()? > 20 * (round + 1)).then_some(())
                };
                cluster.until("rows are written", 30, enough).await;
                match round % 2 {
                    0 => cluster.cut_off(primary),
                    _ => cluster.freeze_servers(primary),
                }
                let other = async |cluster: &Cluster| cluster.serving().filter(|serving| *serving != primary);
                cluster.until("another primary serves", 40, other).await;
                cluster.reconnect(primary);
            }
            let last = healthy(&cluster, "three members at last", 90).await;
            ends.store(true, Ordering::SeqCst);
            last
        };
        let (acknowledged, last) = tokio::join!(writer(&cluster, &ends), faults);
        let found = rows(&cluster, last).await;
        let found: BTreeSet<u32> = found
            .split(',')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let lost: Vec<_> = acknowledged.iter().filter(|number| !found.contains(number)).collect();
        println!("{} rows were acknowledged", acknowledged.len());
        assert!(lost.is_empty() && acknowledged.len() > 50, "{lost:?}");
    });
}
