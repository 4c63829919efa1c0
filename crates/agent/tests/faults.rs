//! Three whole agents with real PostgreSQL servers, and faults that coincide or come at a bad time.

#[path = "support/api_server.rs"]
#[allow(dead_code)]
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

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use agent::peer::{Client, MemberKey, Signer, Tls};
use certificates::NAME;
use cluster::{Cluster, address, become_agent_if_asked, in_a_cluster};
use database::{commits, healthy, replaced, rows, spec, with_a_row};
use machine::protocol::{Epoch, PromiseRequest, ReportRequest};
use rcgen::KeyPair;
use rustix::process::{Signal, kill_process};
use serde_json::json;
use tokio::process::{Child, Command};

/// Not a test: an agent of the other tests.
#[test]
fn an_agent() {
    become_agent_if_asked();
}

fn others(first: u32) -> [u32; 2] {
    [(first + 1) % 3, (first + 2) % 3]
}

/// Waits until an instance has these rows.
async fn has(cluster: &Cluster, ordinal: u32, all: &str) {
    let look = async |cluster: &Cluster| (rows(cluster, ordinal).await == all).then_some(());
    cluster.until("it has all rows", 30, look).await;
}

/// The epoch, and when the primary's PostgreSQL was started.
async fn reign(cluster: &Cluster, first: u32) -> (u64, String) {
    let started = cluster.sql(first, "SELECT pg_postmaster_start_time()").await;
    (cluster.epoch(), started.expect("an answer"))
}

/// Commits rows from `row` on for this many seconds, without a long pause.
async fn commits_go_on(cluster: &Cluster, first: u32, row: u32, seconds: u64) {
    let (count, longest) = commits(cluster, first, row, seconds).await;
    println!("{count} commits, the longest gap {} ms", longest.as_millis());
    assert!(count > 10 && longest < Duration::from_secs(6), "{count} {longest:?}");
}

#[test]
fn a_commit_whose_wait_was_cancelled_is_not_acknowledged_and_vanishes() {
    let name = "a_commit_whose_wait_was_cancelled_is_not_acknowledged_and_vanishes";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        others(first).into_iter().for_each(|other| cluster.cut_off(other));
        let cancelled = async |cluster: &Cluster| {
            let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            (cluster.sql(first, cancel).await.as_deref() == Ok("t")).then_some(())
        };
        let (committed, _) = tokio::join!(
            cluster.sql(first, "INSERT INTO entry VALUES (2)"),
            cluster.until("its wait is cancelled", 15, cancelled)
        );
        let words = committed.expect_err("a warning is no acknowledgement");
        assert!(words.contains("canceling wait for synchronous replication"), "{words}");
        assert_eq!(rows(&cluster, first).await, "1,2", "it is there all the same");

        // The kernel goes on sending data that a killed process has left.
        cluster.cut_off(first);
        cluster.kill_agent(first);
        others(first).into_iter().for_each(|other| cluster.reconnect(other));
        let (second, _) = replaced(&cluster, first, 3, 60).await;
        assert_eq!(rows(&cluster, second).await, "1,3");
        cluster.start_agent(first);
        assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
        has(&cluster, first, "1,3").await;
    });
}

#[test]
fn a_slow_standby_holds_up_nobody_and_deposes_nobody() {
    let name = "a_slow_standby_holds_up_nobody_and_deposes_nobody";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        let before = reign(&cluster, first).await;
        let slow = others(first)[0];
        cluster.signal_receiver(slow, Signal::STOP);
        commits_go_on(&cluster, first, 1_000, 10).await;
        cluster.signal_receiver(slow, Signal::CONT);
        assert_eq!(healthy(&cluster, "three members", 60).await, first);
        assert_eq!(
            reign(&cluster, first).await,
            before,
            "nobody was elected, and the primary went on"
        );
        has(&cluster, slow, &rows(&cluster, first).await).await;
    });
}

#[test]
fn a_standby_behind_a_slow_network_holds_up_nobody_and_deposes_nobody() {
    let name = "a_standby_behind_a_slow_network_holds_up_nobody_and_deposes_nobody";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        let before = reign(&cluster, first).await;
        let slow = others(first)[0];
        cluster.slow_down(slow, Some(64_000));
        // The slow standby needs half a minute for it.
        let many = "INSERT INTO entry SELECT generate_series(10, 2000)";
        cluster.sql(first, many).await.expect("a commit");
        commits_go_on(&cluster, first, 10_000, 15).await;
        let count = async |of: u32| {
            let count = cluster.sql(of, "SELECT count(*) FROM entry").await.expect("an answer");
            count.parse::<u32>().expect("a number")
        };
        let (behind, all) = (count(slow).await, count(first).await);
        assert!(behind + 1_000 < all, "it is slow: {behind} of {all}");
        cluster.slow_down(slow, None);
        assert_eq!(healthy(&cluster, "three members", 60).await, first);
        assert_eq!(
            reign(&cluster, first).await,
            before,
            "nobody was elected, and the primary went on"
        );
        has(&cluster, slow, &rows(&cluster, first).await).await;
    });
}

/// Makes `slow` far slower than the others, and gives it more WAL than it receives in two minutes.
async fn fall_behind(cluster: &Cluster, primary: u32, slow: u32) {
    cluster.slow_down(slow, Some(2_000_000));
    let many = "INSERT INTO entry SELECT max(number) + generate_series(1, 300000) FROM entry";
    cluster.sql(primary, many).await.expect("a commit");
}

#[test]
fn a_planned_stop_waits_for_no_slow_standby() {
    let name = "a_planned_stop_waits_for_no_slow_standby";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        let [slow, second] = others(first);
        fall_behind(&cluster, first, slow).await;
        cluster.wish_for(second);
        let (found, took) = replaced(&cluster, first, 1_000_000, 60).await;
        assert_eq!(found, second);
        assert!(took < Duration::from_secs(6), "it takes a switchover's time: {took:?}");
        let released = "the lease is released with the last position";
        assert!(cluster.log(first).contains(released), "its stop was a clean one");

        // The same holds when its container is asked to end.
        cluster.slow_down(slow, None);
        healthy(&cluster, "the slow one and the old primary follow", 90).await;
        fall_behind(&cluster, second, slow).await;
        cluster.signal(second, Signal::TERM);
        let look = async |cluster: &Cluster| cluster.log(second).contains(released).then_some(());
        let ((), took) = cluster.until("the lease is released", 60, look).await;
        assert!(took < Duration::from_secs(6), "{took:?}");
        cluster.ended(second);
        cluster.slow_down(slow, None);
        cluster.start_agent(second);
        healthy(&cluster, "all follow", 90).await;
        for ordinal in [slow, second] {
            let copies = cluster.log(ordinal).matches("rule\":\"clone").count();
            assert_eq!(copies, usize::from(ordinal != 0), "what it lacked it was sent");
        }
    });
}

#[test]
fn a_primary_whose_postmaster_stands_still_steps_down() {
    let name = "a_primary_whose_postmaster_stands_still_steps_down";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        // Its sessions go on, as do its WAL senders and the agent's canary.
        cluster.stop_postmaster(first);
        let (second, _) = replaced(&cluster, first, 2, 40).await;
        assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
        assert_eq!(rows(&cluster, second).await, "1,2");
    });
}

#[test]
fn where_the_agents_port_is_blocked_whoever_hears_the_primary_promises_nothing() {
    let name = "where_the_agents_port_is_blocked_whoever_hears_the_primary_promises_nothing";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        let epoch = cluster.epoch();
        let promised = || others(first).map(|other| fs::read(cluster.volume(other).join("agent/promise.json")).ok());
        let before = promised();
        cluster.block_agents(true);
        let said = async |cluster: &Cluster| {
            let members = cluster.annotation(api::names::LEASE_MEMBERS);
            let silent = |other: u32| !members[format!("orders-{other}")]["fault"].is_null();
            others(first).into_iter().all(silent).then_some(())
        };
        // Longer than the lease, and than the time after which a silent primary is suspected.
        tokio::join!(
            cluster.until("it is said who does not report", 30, said),
            commits_go_on(&cluster, first, 1_000, 13)
        );
        assert_eq!(promised(), before, "nothing was promised");
        cluster.block_agents(false);
        assert_eq!(healthy(&cluster, "three members", 60).await, first);
        assert_eq!(cluster.epoch(), epoch, "nobody was elected");
    });
}

#[test]
fn a_copy_whose_primary_is_lost_is_made_anew_from_the_next_one() {
    let name = "a_copy_whose_primary_is_lost_is_made_anew_from_the_next_one";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        let [copied, left] = others(first);
        cluster.kill_agent(copied);
        let shrunk = async |cluster: &Cluster| {
            let names = cluster.annotation(api::names::LEASE_RULE)["names"].as_array()?.len();
            (names == 1).then_some(())
        };
        cluster.until("the rule names who is left", 30, shrunk).await;
        cluster.lose_volume(copied);
        cluster.start_agent(copied);
        let copying = async |cluster: &Cluster| cluster.copying();
        let (copying, _) = cluster.until("it is copied", 60, copying).await;
        kill_process(copying, Signal::STOP).expect("a signal");
        cluster.kill_agent(first);
        let pod = format!("orders-{left}");
        let holds = async |cluster: &Cluster| {
            (cluster.annotation(api::names::LEASE_HOLDER)["pod"] == pod.as_str()).then_some(())
        };
        cluster.until("the one that is left is elected", 30, holds).await;
        kill_process(copying, Signal::CONT).expect("a signal");
        // It writes only once another member has the commits in doubt: the new copy.
        assert_eq!(replaced(&cluster, first, 2, 90).await.0, left);
        has(&cluster, copied, "1,2").await;
        cluster.start_agent(first);
        assert_eq!(healthy(&cluster, "three members again", 90).await, left);
    });
}

#[test]
fn a_rewind_for_which_wal_is_missing_gives_way_to_a_copy() {
    let name = "a_rewind_for_which_wal_is_missing_gives_way_to_a_copy";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        cluster.cut_off(first);
        // It diverges and makes a checkpoint: its recovery needs no earlier WAL.
        for statement in [
            "SET synchronous_commit TO local; INSERT INTO entry VALUES (100)",
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
        ] {
            cluster.sql(first, statement).await.expect(statement);
        }
        let redo = cluster.sql(first, "SELECT pg_walfile_name(redo_lsn) FROM pg_control_checkpoint()");
        let redo = redo.await.expect("an answer");
        cluster.kill_agent(first);
        let (second, _) = replaced(&cluster, first, 2, 30).await;
        let mut removed = 0;
        for entry in fs::read_dir(cluster.volume(first).join("pgdata/pg_wal")).expect("pg_wal") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.len() == 24 && name < redo {
                fs::remove_file(entry.path()).expect("removed");
                removed += 1;
            }
        }
        assert!(removed > 0, "{redo}");
        cluster.start_agent(first);
        assert_eq!(healthy(&cluster, "it was copied anew, and follows", 120).await, second);
        has(&cluster, first, "1,2").await;
        assert!(
            cluster
                .log(first)
                .contains("the data cannot be rewound: it is moved aside")
        );
        let aside = fs::read_dir(cluster.volume(first).join("aside")).expect("what was moved aside");
        let kept: Vec<_> = aside.map(|entry| entry.expect("an entry").path()).collect();
        assert!(kept.len() == 1 && kept[0].join("PG_VERSION").exists(), "{kept:?}");

        // It is reported, and removed only when the user says so.
        let name = kept[0].file_name().expect("a name").to_string_lossy().into_owned();
        let told = |cluster: &Cluster| {
            let members = cluster.annotation(api::names::LEASE_MEMBERS);
            members[format!("orders-{first}")]["kept"].clone()
        };
        let listed = async |cluster: &Cluster| (told(cluster) == json!([name])).then_some(());
        cluster.until("what is kept is told", 40, listed).await;
        cluster.discard_quarantined(first, &name);
        let gone = async |cluster: &Cluster| (told(cluster).is_null() && !kept[0].exists()).then_some(());
        cluster.until("it is gone", 20, gone).await;
    });
}

#[test]
fn wal_that_may_be_the_only_copy_of_commits_is_kept_when_their_data_is_rewound() {
    let name = "wal_that_may_be_the_only_copy_of_commits_is_kept_when_their_data_is_rewound";
    let mut spec = spec();
    spec["durability"] = json!({"mode": "Async"});
    in_a_cluster(name, spec, |mut cluster| async move {
        let replicated = async |cluster: &Cluster| {
            let serving = cluster.serving()?;
            let streaming =
                "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name LIKE 'cdb%'";
            (cluster.sql(serving, streaming).await.as_deref() == Ok("2")).then_some(serving)
        };
        let (first, _) = cluster.until("two members stream", 90, replicated).await;
        for statement in [
            "CREATE TABLE entry (number int PRIMARY KEY)",
            "INSERT INTO entry VALUES (1)",
        ] {
            cluster.sql(first, statement).await.expect(statement);
        }
        // A commit waits for nobody: only the row that is written while the primary is alone may be lost.
        for other in others(first) {
            has(&cluster, other, "1").await;
        }
        cluster.cut_off(first);
        let lost = "WITH lost AS (INSERT INTO entry VALUES (100) RETURNING 1) SELECT pg_current_xact_id() FROM lost";
        let lost = cluster.sql(first, lost).await.expect("it waits for nobody");
        cluster.kill_agent(first);
        let (second, _) = replaced(&cluster, first, 2, 60).await;
        cluster.start_agent(first);
        let (serving, _) = cluster.until("the old primary follows", 90, replicated).await;
        assert_eq!(serving, second);
        has(&cluster, first, "1,2").await;

        let aside = fs::read_dir(cluster.volume(first).join("aside")).expect("what is kept");
        let kept: Vec<_> = aside.map(|entry| entry.expect("an entry").path()).collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        let name = kept[0].file_name().expect("a name").to_string_lossy().into_owned();
        let from = name.strip_prefix("wal-1-").expect("timeline 1").replace('_', "/");
        let (_, binaries) = unprivileged::binaries();
        let mut dump = std::process::Command::new(binaries.join("pg_waldump"));
        let dump = dump.arg("--path").arg(kept[0].join("pg_wal")).args(["--start", &from]);
        let records = dump.output().expect("pg_waldump");
        let records = String::from_utf8_lossy(&records.stdout).into_owned();
        let is_there = |record: &str| record.contains(&format!(" tx: {lost:>10},")) && record.contains("COMMIT");
        assert!(records.lines().any(is_there), "transaction {lost}: {records}");
        let listed = async |cluster: &Cluster| {
            let members = cluster.annotation(api::names::LEASE_MEMBERS);
            (members[format!("orders-{first}")]["kept"] == json!([name])).then_some(())
        };
        cluster.until("what is kept is told", 40, listed).await;
        cluster.discard_quarantined(first, &name);
        cluster
            .until("it is gone", 20, async |_: &Cluster| (!kept[0].exists()).then_some(()))
            .await;
    });
}

#[test]
fn certificates_are_renewed_and_end_during_a_failover() {
    let name = "certificates_are_renewed_and_end_during_a_failover";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let first = with_a_row(&cluster).await;
        cluster.kill_agent(first);
        (0..3).for_each(|ordinal| cluster.renew_certificate(ordinal));
        let (second, took) = replaced(&cluster, first, 2, 30).await;
        assert!(took.as_millis() < 10_000, "sooner than the lease runs out: {took:?}");
        cluster.start_agent(first);
        assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);

        let epoch = cluster.epoch();
        let before = others(second).map(|other| (other, cluster.log(other).len()));
        (0..3).for_each(|ordinal| cluster.end_certificate(ordinal));
        cluster.kill_agent(second);
        let alone = async |cluster: &Cluster| {
            let says = |(other, before): (u32, usize)| cluster.log(other)[before..].contains("nobody answers");
            before.into_iter().all(says).then_some(())
        };
        cluster.until("each asks in vain", 30, alone).await;
        assert_eq!(cluster.epoch(), epoch, "nobody has promised anything to a stranger");
        (0..3).for_each(|ordinal| cluster.renew_certificate(ordinal));
        let (third, _) = replaced(&cluster, second, 3, 30).await;
        cluster.start_agent(second);
        assert_eq!(healthy(&cluster, "three members again", 60).await, third);
        has(&cluster, second, "1,2,3").await;
    });
}

#[test]
fn a_standby_that_loses_its_stream_behind_its_agents_back_streams_again() {
    let name = "a_standby_that_loses_its_stream_behind_its_agents_back_streams_again";
    in_a_cluster(name, spec(), |cluster| async move {
        let first = with_a_row(&cluster).await;
        let lost = others(first)[0];
        let noticed = async |words: &str| {
            let look = async |cluster: &Cluster| cluster.log(lost).contains(words).then_some(());
            cluster.until(words, 60, look).await;
            assert_eq!(healthy(&cluster, "it streams again", 60).await, first);
        };
        // As ALTER SYSTEM does, where that is allowed.
        let altered = cluster.volume(lost).join("pgdata/postgresql.auto.conf");
        fs::write(altered, "primary_conninfo = ''\n").expect("written");
        cluster.sql(lost, "SELECT pg_reload_conf()").await.expect("read");
        noticed("PostgreSQL does not use the primary's address that was written").await;
        // Its settings are as the agent wrote them, so writing them again does not help.
        let credential = cluster.volume(lost).join("agent/replication.key.active");
        fs::remove_file(credential).expect("removed");
        cluster.signal_receiver(lost, Signal::TERM);
        noticed("it follows the primary, but has not streamed for long").await;
        cluster
            .sql(first, "INSERT INTO entry VALUES (2)")
            .await
            .expect("a commit");
        has(&cluster, lost, "1,2").await;
    });
}

/// Receives the changes that slot `slot` decodes, as role `cdc` under this name. Reports its position every three
/// seconds.
fn receive(ordinal: u32, slot: &str, name: &str) -> Child {
    let (_, programs) = unprivileged::binaries();
    let source = format!(
        "host={} user=cdc dbname=app sslmode=require application_name={name}",
        address(ordinal)
    );
    Command::new(programs.join("pg_recvlogical"))
        .args(["--dbname", &source, "--slot", slot, "--start", "--file", "/dev/null"])
        .args(["--status-interval=3", "--fsync-interval=1"])
        .env("PGPASSWORD", "geheim")
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("pg_recvlogical")
}

/// How often a WAL sender under a member's name was ended.
fn ended(cluster: &Cluster, ordinal: u32) -> usize {
    cluster
        .log(ordinal)
        .matches("ending a WAL sender that bears a member's name")
        .count()
}

/// An attacker has the TLS key that all agents share, and no member's key. Its messages in a member's name count as
/// nothing.
async fn the_shared_tls_key_speaks_for_no_member(cluster: &Cluster, first: u32) {
    let tls = cluster.volume(first).with_file_name("tls");
    let signer = Signer::default();
    let client = Client::new(Tls::open(tls, NAME).expect("the shared key")).signed_by(signer.clone());
    let [one, other] = others(first).map(|ordinal| format!("orders-{ordinal}"));
    let mut report = cluster.annotation(api::names::LEASE_MEMBERS)[&one].clone();
    report["fault"] = "planted".into();
    let report = json!({"epoch": cluster.epoch(), "pod": one, "report": report});
    let report: ReportRequest = serde_json::from_value(report).expect("a report");
    let request = PromiseRequest {
        epoch: Epoch(cluster.epoch() + 1),
        pod: one,
        lease: "lease".to_owned(),
    };
    let at = |ordinal: u32| (address(ordinal), api::names::PEER_PORT).into();
    for key in [None, Some(MemberKey::from(KeyPair::generate().expect("a key")))] {
        signer.set(key);
        let reported = client.report(at(first), &report).await.map(|reply| reply.message);
        let asked = client.promise(&other, at(others(first)[1]), &request).await;
        for refused in [reported.err(), asked.err()] {
            let refused = refused.expect("it is refused").to_string();
            assert!(refused.contains("signed"), "{refused}");
        }
    }
}

#[test]
fn a_role_under_a_members_name_counts_for_nobody() {
    let name = "a_role_under_a_members_name_counts_for_nobody";
    let mut spec = spec();
    spec["postgres"]["parameters"]["wal_level"] = "logical".into();
    in_a_cluster(name, spec, |cluster| async move {
        let first = with_a_row(&cluster).await;
        for statement in [
            "CREATE ROLE cdc LOGIN REPLICATION PASSWORD 'geheim'",
            "SELECT pg_create_logical_replication_slot('honest', 'test_decoding')",
            "SELECT pg_create_logical_replication_slot('false', 'test_decoding')",
        ] {
            cluster.sql(first, statement).await.expect("done");
        }
        let _honest = receive(first, "honest", "debezium");
        let own = "SELECT pid FROM pg_stat_replication WHERE application_name = 'debezium'";
        let streams = async |cluster: &Cluster| cluster.sql(first, own).await.ok().filter(|pid| !pid.is_empty());
        let (honest, _) = cluster.until("the honest one streams", 20, streams).await;

        let signal = |signal| {
            others(first)
                .into_iter()
                .for_each(|other| cluster.signal_receiver(other, signal));
        };
        // The standbys' agents hear the primary's agent, so nobody is elected.
        signal(Signal::STOP);
        let rule = cluster.annotation(api::names::LEASE_RULE);
        let member = rule["names"][0].as_str().expect("a name").to_ascii_uppercase();
        let mut other = receive(first, "false", &member);
        let again = async |cluster: &Cluster| (ended(cluster, first) > 1).then_some(());
        let insert = "INSERT INTO entry VALUES (2)";
        let committed = tokio::select! {
            committed = cluster.sql(first, insert) => Some(committed),
            _ = cluster.until("it is ended twice", 18, again) => None,
        };
        assert_eq!(committed, None, "no standby has it");
        let told = async |cluster: &Cluster| {
            let report = &cluster.annotation(api::names::LEASE_MEMBERS)[format!("orders-{first}")];
            (report["impostors"][0] == "cdc").then_some(())
        };
        cluster.until("it is told", 10, told).await;
        other.kill().await.expect("killed");
        signal(Signal::CONT);
        assert_eq!(healthy(&cluster, "three members", 60).await, first);
        assert_eq!(cluster.sql(first, own).await, Ok(honest), "it streams on");
        the_shared_tls_key_speaks_for_no_member(&cluster, first).await;
    });
}
