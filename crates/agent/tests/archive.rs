//! Three whole agents with real PostgreSQL servers that archive their WAL in a store with the interface of S3.

#[path = "support/api_server.rs"]
#[allow(dead_code)]
mod api_server;
#[path = "support/certificates.rs"]
#[allow(dead_code)]
mod certificates;
#[path = "support/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "support/database.rs"]
#[allow(dead_code)]
mod database;
#[path = "support/store.rs"]
#[allow(dead_code)]
mod store;
#[path = "support/unprivileged.rs"]
#[allow(dead_code)]
mod unprivileged;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::{API_SERVER, Cluster, as_user, become_agent_if_asked, in_a_cluster};
use database::{commit_row, healthy, replaced, rows, with_a_row};
use rustix::process::Signal;
use serde_json::Value;
use store::{PORT, all_is_archived, archived, is_tried, restored, spec, store, store_with, told};
use test_store::{Effect, Fault, Options, TestStore};

/// Not a test: an agent of the other tests.
#[test]
fn an_agent() {
    become_agent_if_asked();
}

/// Commits a row, and closes the segment that it is in.
async fn fill(cluster: &Cluster, primary: u32, numbers: std::ops::Range<u32>) {
    for number in numbers {
        commit_row(cluster, primary, number).await.expect("a commit");
        cluster.sql(primary, "SELECT pg_switch_wal()").await.expect("a segment");
    }
}

/// Names of files on a member that wait for the archive.
fn waiting(cluster: &Cluster, ordinal: u32) -> BTreeSet<String> {
    let marks = cluster.volume(ordinal).join("pgdata/pg_wal/archive_status");
    let names = fs::read_dir(marks)
        .expect("marks")
        .map(|entry| entry.expect("a file").file_name());
    let ready = names.filter_map(|name| Some(name.to_str()?.strip_suffix(".ready")?.to_owned()));
    ready.collect()
}

/// The timeline that the primary writes.
async fn timeline(cluster: &Cluster, primary: u32) -> u32 {
    let file = cluster.sql(primary, "SELECT pg_walfile_name(pg_current_wal_lsn())");
    u32::from_str_radix(&file.await.expect("a name")[..8], 16).expect("a timeline")
}

/// Copies a running server's files, as PostgreSQL's documentation says: all but the WAL, which comes from the archive.
async fn base_copy(cluster: &Cluster, of: u32) -> PathBuf {
    let base = cluster.scratch().join("base");
    let (to, from) = (base.display(), cluster.volume(of).join("pgdata"));
    let from = from.display();
    let script = format!(
        "\\set ON_ERROR_STOP 1
SELECT pg_backup_start('base', true);
\\! mkdir --mode=0700 {to} && tar -C {from} --exclude='./pg_wal/*' --exclude=./postmaster.pid -cf - . | tar -C {to} -xf -
\\o {to}/backup_label
SELECT labelfile FROM pg_backup_stop();
"
    );
    let file = cluster.scratch().join("base.sql");
    fs::write(&file, script).expect("written");
    let socket = cluster.scratch().join(format!("{of}/run"));
    let (_, programs) = unprivileged::binaries();
    let psql = programs.join("psql");
    let [psql, file, socket] = [&psql, &file, &socket].map(|path| path.to_str().expect("a path"));
    let arguments = ["-X", "-At", "-U", "postgres", "-d", "app", "-h", socket, "-f", file];
    as_user(psql, &arguments).await.expect("a base copy");
    base
}

/// A standby gets its primary's stub of a timeline like any history, and PostgreSQL hands it to the archive. There it would have the
/// name of the next timeline's history.
async fn stub_is_not_archived(cluster: &Cluster, primary: u32, archived: &Path) {
    let wal = cluster.volume(primary).join("pgdata/pg_wal");
    let stub = "# No such timeline: its number was reserved and not used, or its history is not known here.\n";
    let mark = |mark: &str| wal.join(format!("archive_status/00000002.history.{mark}"));
    let (_, uid, gid) = unprivileged::user();
    for (file, content) in [(wal.join("00000002.history"), stub), (mark("ready"), "")] {
        fs::write(&file, content).expect("written");
        chown(&file, Some(uid), Some(gid)).expect("the server's own");
    }
    let wakes_the_archiver = "SELECT pg_logical_emit_message(true, '', 'x'), pg_switch_wal()";
    cluster.sql(primary, wakes_the_archiver).await.expect("a segment");
    let is_done = async |_: &Cluster| mark("done").exists().then_some(());
    cluster.until("the stub counts as archived", 90, is_done).await;
    assert!(archived.exists() && !archived.join("00000002.history").exists());
}

#[test]
fn wal_is_archived_through_a_failover_without_a_gap() {
    let name = "wal_is_archived_through_a_failover_without_a_gap";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let base = base_copy(&cluster, first).await;
        fill(&cluster, first, 2..4).await;
        all_is_archived(&cluster, first, 1).await;
        stub_is_not_archived(&cluster, first, &archived(&store)).await;

        store.inject(Fault::refuse(503, "ServiceUnavailable").method("PUT"));
        fill(&cluster, first, 4..12).await;
        let failing = async |cluster: &Cluster| {
            let told = told(cluster);
            let fault = told["fault"].as_str()?.contains("not available");
            (fault && told["waiting"].as_u64()? >= 8 * (1 << 20)).then_some(())
        };
        cluster.until("the fault is told", 60, failing).await;
        // What no standby had yet would come again on the next timeline.
        let everywhere = async |cluster: &Cluster| {
            let unarchived = waiting(cluster, first);
            let mut standbys = (0..3).filter(|member| *member != first);
            let is_kept = standbys.all(|member| unarchived.is_subset(&waiting(cluster, member)));
            is_kept.then_some(unarchived)
        };
        let (unarchived, _) = cluster.until("the standbys keep it, too", 90, everywhere).await;
        assert!(unarchived.len() >= 8, "{unarchived:?}");
        cluster.kill_agent(first);
        let (second, _) = replaced(&cluster, first, 12, 30).await;
        let kept = waiting(&cluster, second);
        let lost: Vec<_> = unarchived.difference(&kept).collect();
        assert!(lost.is_empty(), "the successor has none of these: {lost:?}");

        store.heal();
        all_is_archived(&cluster, second, 2).await;
        let rows = restored(&cluster, &base, &archived(&store), None, 2).await;
        assert_eq!(rows, "1,2,3,4,5,6,7,8,9,10,11,12");

        // The old primary pushes nothing any more, and strikes off what its successor has archived.
        cluster.start_agent(first);
        assert_eq!(healthy(&cluster, "the old primary follows", 60).await, second);
        let struck = async |cluster: &Cluster| {
            fill(cluster, second, 13..14).await;
            unarchived.is_disjoint(&waiting(cluster, first)).then_some(())
        };
        cluster.until("the old primary keeps nothing of it", 60, struck).await;
        assert!(!archived(&store).join("conflicts").exists());
    });
}

#[test]
fn a_store_that_does_not_answer_delays_no_handover() {
    let name = "a_store_that_does_not_answer_delays_no_handover";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        store.inject(Fault::new(Effect::Stall).method("PUT"));
        fill(&cluster, first, 2..6).await;
        let stalls = async |cluster: &Cluster| (store.count_requests("PUT", "/wal/") > 4).then_some(cluster.epoch());
        cluster.until("PostgreSQL waits for the archive", 30, stalls).await;
        cluster.signal(first, Signal::TERM);
        let (second, took) = replaced(&cluster, first, 6, 30).await;
        // A handover takes about a second. PostgreSQL alone would wait for its archiver, and that for the store.
        assert!(took < Duration::from_secs(8), "{took:?}");
        cluster.ended(first);
        store.heal();
        all_is_archived(&cluster, second, 2).await;
        assert_eq!(rows(&cluster, second).await, "1,2,3,4,5,6");
    });
}

/// The worker alone, then PostgreSQL alone. What was on its way reaches the store later: it is pushed again meanwhile, and counts once.
#[test]
fn a_worker_or_a_server_that_is_killed_while_it_pushes_loses_nothing() {
    let name = "a_worker_or_a_server_that_is_killed_while_it_pushes_loses_nothing";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let mut primary = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let base = base_copy(&cluster, primary).await;
        let kill: [fn(&Cluster, u32); 2] = [Cluster::kill_archive_worker, Cluster::kill_postmaster];
        for (number, kill) in (0..).zip(kill) {
            let before = store.count_requests("PUT", "/wal/");
            store.inject(Fault::new(Effect::Delay(3_000)).method("PUT"));
            fill(&cluster, primary, 2 + 4 * number..6 + 4 * number).await;
            let pushes = async |_: &Cluster| (store.count_requests("PUT", "/wal/") > before + 2).then_some(());
            cluster.until("segments are on their way", 30, pushes).await;
            kill(&cluster, primary);
            store.heal();
            primary = healthy(&cluster, "a primary serves", 60).await;
            all_is_archived(&cluster, primary, timeline(&cluster, primary).await).await;
        }
        let timeline = timeline(&cluster, primary).await;
        let rows = restored(&cluster, &base, &archived(&store), None, timeline).await;
        assert_eq!(rows, "1,2,3,4,5,6,7,8,9");
        assert!(!archived(&store).join("conflicts").exists());
    });
}

/// A recovery in place to the newest commit begins with what is in the store then, and nobody archives the rest.
#[test]
fn all_wal_is_archived_when_all_instances_stop() {
    let name = "all_wal_is_archived_when_all_instances_stop";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let base = base_copy(&cluster, first).await;
        // The segment of the last row is not full.
        fill(&cluster, first, 2..6).await;
        commit_row(&cluster, first, 6).await.expect("a commit");
        cluster.stop_all();
        let released = async |cluster: &Cluster| {
            let release = cluster.annotation(api::names::LEASE_RELEASE);
            (!release.is_null() && !cluster.runs(first)).then_some(())
        };
        cluster.until("the lease is released", 60, released).await;
        assert_eq!(waiting(&cluster, first), BTreeSet::new());
        let rows = restored(&cluster, &base, &archived(&store), None, 1).await;
        assert_eq!(rows, "1,2,3,4,5,6");
    });
}

#[test]
fn wrong_credentials_are_told_and_right_ones_are_taken_up() {
    let name = "wrong_credentials_are_told_and_right_ones_are_taken_up";
    in_a_cluster(name, spec(), |cluster| async move {
        let write = |secret: &str| cluster.write_store_secret("AWS_SECRET_ACCESS_KEY", secret);
        write("wrong");
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        let denied = async |cluster: &Cluster| told(cluster)["fault"].as_str()?.contains("denies access").then_some(());
        cluster.until("it is told", 60, denied).await;
        assert_eq!(told(&cluster)["fence"], Value::Null);
        write(test_store::SECRET);
        fill(&cluster, first, 2..4).await;
        all_is_archived(&cluster, first, 1).await;
        assert!(archived(&store).exists());

        // Those that were right become invalid while WAL is archived.
        drop(store);
        let secret = "the next secret".to_owned();
        let options = Options {
            secret: secret.clone(),
            ..Options::default()
        };
        let _store = store_with(&cluster, options).await;
        fill(&cluster, first, 4..6).await;
        cluster.until("it is told again", 60, denied).await;
        write(&secret);
        all_is_archived(&cluster, first, 1).await;
    });
}

#[test]
fn a_store_whose_authority_changes_is_told_and_the_new_authority_is_taken_up() {
    let name = "a_store_whose_authority_changes_is_told_and_the_new_authority_is_taken_up";
    let mut spec = spec();
    spec["backup"]["store"]["s3"]["endpoint"] = format!("https://{API_SERVER}:{PORT}").into();
    in_a_cluster(name, spec, |cluster| async move {
        let tls = || Options {
            tls: true,
            ..Options::default()
        };
        let trust = |store: &TestStore| cluster.write_store_secret("ca.crt", store.authority().expect("an authority"));
        let store = store_with(&cluster, tls()).await;
        trust(&store);
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let base = base_copy(&cluster, first).await;
        fill(&cluster, first, 2..4).await;
        all_is_archived(&cluster, first, 1).await;
        let before = (cluster.archive_worker(first), cluster.epoch());

        drop(store);
        let store = store_with(&cluster, tls()).await;
        fill(&cluster, first, 4..8).await;
        let refused = async |cluster: &Cluster| {
            let words = told(cluster)["fault"].as_str()?.to_owned();
            words.contains("certificate is not accepted").then_some(())
        };
        cluster.until("it is told", 60, refused).await;
        assert!(waiting(&cluster, first).len() >= 4, "nothing is archived meanwhile");
        assert_eq!(
            store.requests().len(),
            0,
            "no request, and no credentials, reach what is not trusted"
        );
        fill(&cluster, first, 8..10).await;

        trust(&store);
        all_is_archived(&cluster, first, 1).await;
        let after = (cluster.archive_worker(first), cluster.epoch());
        assert_eq!(after, before, "nothing has restarted");
        let rows = restored(&cluster, &base, &archived(&store), None, 1).await;
        assert_eq!(rows, "1,2,3,4,5,6,7,8,9");
    });
}

/// Lets a primary remove the WAL that a standby which is away needs next.
async fn removes_wal(cluster: &Cluster, primary: u32, of: u32) {
    let segments = |ordinal: u32| {
        let files = fs::read_dir(cluster.volume(ordinal).join("pgdata/pg_wal")).expect("WAL");
        let names = files.map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned());
        // Without the timeline: PostgreSQL counts on over a change of that.
        let numbers = names.filter_map(|name| Some(name.get(8..24)?.to_owned()));
        numbers.collect::<BTreeSet<String>>()
    };
    let wal = "SELECT pg_logical_emit_message(true, '', repeat('x', 1000)), pg_switch_wal()";
    let removed = async |cluster: &Cluster| {
        for _ in 0..8 {
            cluster.sql(primary, wal).await.ok()?;
        }
        cluster.sql(primary, "CHECKPOINT").await.ok()?;
        (segments(primary).first()? > segments(of).last()?).then_some(())
    };
    cluster.until("the WAL that it needs is removed", 90, removed).await;
}

#[test]
fn a_standby_gets_wal_that_its_primary_has_removed_from_the_archive() {
    let mut small = spec();
    for (name, value) in [
        ("max_slot_wal_keep_size", "8MB"),
        ("max_wal_size", "32MB"),
        ("min_wal_size", "32MB"),
        ("wal_keep_size", "0"),
    ] {
        small["postgres"]["parameters"][name] = value.into();
    }
    let name = "a_standby_gets_wal_that_its_primary_has_removed_from_the_archive";
    in_a_cluster(name, small, |mut cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let (away, second) = ((first + 1) % 3, (first + 2) % 3);
        let data = |cluster: &Cluster| fs::metadata(cluster.volume(away).join("pgdata")).expect("data").ino();
        let before = data(&cluster);
        cluster.kill_agent(away);
        fill(&cluster, first, 2..6).await;
        // What is missing lies on two timelines.
        cluster.wish_for(second);
        assert_eq!(replaced(&cluster, first, 6, 60).await.0, second);
        fill(&cluster, second, 7..9).await;
        removes_wal(&cluster, second, away).await;
        all_is_archived(&cluster, second, 2).await;
        cluster.start_agent(away);
        assert_eq!(healthy(&cluster, "it follows again", 120).await, second);
        assert_eq!(rows(&cluster, away).await, "1,2,3,4,5,6,7,8");
        assert_eq!(data(&cluster), before, "its data was not copied");
        let fetched = "segments of WAL were fetched from the archive";
        assert!(cluster.log(away).contains(fetched), "{}", cluster.log(away));

        cluster.kill_agent(away);
        fill(&cluster, second, 9..11).await;
        removes_wal(&cluster, second, away).await;
        all_is_archived(&cluster, second, 2).await;
        store.inject(Fault::refuse(403, "AccessDenied").method("GET"));
        cluster.start_agent(away);
        assert_eq!(
            healthy(&cluster, "it follows again without the archive", 120).await,
            second
        );
        assert_eq!(rows(&cluster, away).await, "1,2,3,4,5,6,7,8,9,10");
        assert_ne!(data(&cluster), before, "its data was copied anew");
    });
}
