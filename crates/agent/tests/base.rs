//! Base backups of a real PostgreSQL in a store with the interface of S3, and what is restored from them.

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

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::archive::Target;
use agent::base::{Order, Told};
use api::backup::{BackupKind, BackupOrigin, BackupRole, BackupSource, SnapshotState, StoredBackup};
use backup::base::{BackupInfo, backups, format_lsn, unpack};
use backup::layout::ClusterFolder;
use backup::{Access, Identities, Place, S3, Store};
use cluster::{AGENTS, API_SERVER, Cluster, as_user, become_agent_if_asked, in_a_cluster, user_command};
use database::{commit_row, commits, replaced, rows, with_a_row};
use machine::archive::ArchiveLine;
use machine::instance::backup::BackupCopy;
use serde_json::{Value, json};
use store::{PORT, all_is_archived, archived, by_hand, is_tried, restored, spec, store, told};
use test_store::{Effect, Fault, TestStore};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// Not a test: an agent of the other tests.
#[test]
fn an_agent() {
    become_agent_if_asked();
}

const FOLDER: &str = "default/orders-c0ffee00";
const UID: &str = "ab12cd34-0000-0000-0000-000000000000";

fn place() -> Place {
    Place::S3(S3 {
        bucket: "wal".to_owned(),
        path: "eu".to_owned(),
        endpoint: Some(format!("http://{API_SERVER}:{PORT}")),
        ..S3::default()
    })
}

/// An order for the primary's agent.
async fn order(cluster: &Cluster, ordinal: u32, attempt: u32) -> Order {
    let ask = async |question: &str| cluster.sql(ordinal, question).await.expect("an answer");
    let root = cluster.scratch().join(ordinal.to_string());
    Order {
        target: Target {
            place: place(),
            folder: FOLDER.to_owned(),
            line: ArchiveLine::default(),
            cluster_uid: "c0ffee00-0000-0000-0000-000000000000".to_owned(),
            system_id: ask("SELECT system_identifier FROM pg_control_system()").await,
            pod_uid: format!("pod-{ordinal}-{ordinal}"),
            recipients: Vec::new(),
        },
        access: root.join("store"),
        copy: BackupCopy {
            uid: UID.to_owned(),
            attempt,
            origin: BackupOrigin {
                member: format!("orders-{ordinal}"),
                role: BackupRole::Primary,
            },
            kind: BackupKind::Full,
            accepts_damage: false,
        },
        snapshot: None,
        socket_directory: root.join("run"),
        port: 5432,
    }
}

/// The process that makes a backup.
struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    async fn start(cluster: &Cluster, order: &Order) -> Self {
        let log = File::options()
            .create(true)
            .append(true)
            .open(cluster.scratch().join("base.log"))
            .expect("a log");
        let mut child = user_command(&cluster.scratch().join("agent"))
            .arg("base-backup")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("a worker");
        let (mut stdin, stdout) = (
            child.stdin.take().expect("a pipe"),
            child.stdout.take().expect("a pipe"),
        );
        let line = serde_json::to_string(order).expect("JSON") + "\n";
        stdin.write_all(line.as_bytes()).await.expect("written");
        Self {
            child,
            stdin,
            lines: BufReader::new(stdout).lines(),
        }
    }

    async fn next(&mut self) -> Option<Told> {
        let line = self.lines.next_line().await.expect("a line")?;
        Some(serde_json::from_str(&line).expect("JSON"))
    }

    /// All that it says until it ends, and if it has succeeded.
    async fn end(mut self) -> (Vec<Told>, bool) {
        let mut told = Vec::new();
        while let Some(next) = self.next().await {
            println!("{next:?}");
            told.push(next);
        }
        let status = self.child.wait().await.expect("an end");
        (told, status.success())
    }

    /// What the kernel says of its memory, in KiB.
    fn peak_memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

fn folder_of_backups(store: &TestStore) -> PathBuf {
    store.directory().join("wal/eu").join(FOLDER).join("lines/1/backups")
}

async fn known(cluster: &Cluster) -> (Store, Vec<BackupInfo>) {
    let access = Access::read(&cluster.scratch().join("0/store")).expect("credentials");
    let store = Store::open(&place(), &access).expect("a store");
    let known = backups(&store, &folder(), 1, Duration::from_secs(10)).await;
    (store, known.expect("a list"))
}

fn folder() -> ClusterFolder {
    FOLDER.parse().expect("a folder")
}

/// Closes the segment that the primary writes, and waits for its object, whose name ends so.
async fn last_row_is_archived(cluster: &Cluster, store: &TestStore, primary: u32, end: &str) {
    let close = "SELECT pg_walfile_name(pg_switch_wal())";
    let last = cluster.sql(primary, close).await.expect("a segment");
    let object = archived(store).join(&last[..16]).join(format!("{last}{end}"));
    let there = async |_: &Cluster| object.exists().then_some(());
    cluster.until("the last row is archived", 60, there).await;
}

/// Restores the parts, and has PostgreSQL compare them with the manifest, with the lines that are published for that.
async fn unpacked_by_hand(cluster: &Cluster, backup: &Path, key: Option<&Path>) -> PathBuf {
    let to = cluster.scratch().join("by-hand");
    let folder = to.to_str().expect("a path");
    as_user("mkdir", &["-m", "700", folder]).await.expect("a folder");
    let lines = by_hand(key.is_some()).unpack;
    let verifies = lines.iter().any(|line| line.contains("pg_verifybackup "));
    assert!(verifies, "{lines:?}");
    let lines: String = lines.iter().map(|line| format!("( {line} ) || exit 1\n")).collect();
    let script = format!(
        "PATH={programs}:$PATH PGDATA={folder} BACKUP={backup} KEY={key}\n{lines}",
        programs = unprivileged::binaries().1.display(),
        backup = backup.display(),
        key = key.unwrap_or(Path::new("no-key")).display(),
    );
    as_user("sh", &["-c", &script]).await.expect("unpacked and verified");
    to
}

/// Unpacks the backup, and has PostgreSQL's own program compare it with the manifest.
async fn is_verified(cluster: &Cluster, store: &Store, info: &BackupInfo) {
    let into = cluster.scratch().join("unpacked");
    fs::create_dir(&into).expect("a directory");
    let begun = Instant::now();
    let identities = Arc::new(Identities::parse(PRIVATE, "key").expect("a private key"));
    unpack(store, &folder(), 1, info, Some(&identities), &into, |_| {})
        .await
        .expect("unpacked");
    println!(
        "unpacked {} bytes in {} ms",
        info.raw_bytes,
        begun.elapsed().as_millis()
    );
    let program = unprivileged::binaries().1.join("pg_verifybackup");
    let verified = tokio::process::Command::new(program)
        .arg("--no-parse-wal")
        .arg(&into)
        .output()
        .await;
    let verified = verified.expect("it runs");
    let words = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success(), "{words}");
}

#[test]
fn a_backup_is_made_under_writes_and_restored() {
    let name = "a_backup_is_made_under_writes_and_restored";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        commit_row(&cluster, first, 2).await.expect("a commit");

        let order = order(&cluster, first, 1).await;
        let worker = Worker::start(&cluster, &order).await;
        let ((told, succeeded), (count, _)) = tokio::join!(worker.end(), commits(&cluster, first, 100, 3));
        assert!(succeeded, "{told:?}");
        assert!(count > 0);
        let Some(Told::Completed(StoredBackup { name, timeline: 1, .. })) = told.last() else {
            panic!("{told:?}");
        };
        assert!(matches!(&told[0], Told::Copying { name: of, bytes: 0, total } if of == name && *total > 1 << 20));
        assert!(
            told.iter()
                .any(|told| matches!(told, Told::WaitingForWal { name: of, .. } if of == name))
        );
        assert!(name.ends_with("-F-ab12"), "{name}");

        let worker = Worker::start(&cluster, &order).await;
        let again = worker.end().await;
        assert_eq!(again, (told[told.len() - 1..].to_vec(), true), "the same backup");
        let (opened, known) = known(&cluster).await;
        assert_eq!(known.len(), 1);
        assert_eq!((&known[0].name.to_string(), known[0].uid.as_str()), (name, UID));
        is_verified(&cluster, &opened, &known[0]).await;

        last_row_is_archived(&cluster, &store, first, ".zst").await;
        let base = unpacked_by_hand(&cluster, &folder_of_backups(&store).join(name), None).await;
        let restored = restored(&cluster, &base, &archived(&store), None, 1).await;
        assert!(restored.starts_with("1,2,100,"), "{restored}");
        assert_eq!(restored, rows(&cluster, first).await);
    });
}

/// The volume is copied file by file under writes: the storage need not show all files at the same moment.
#[test]
fn a_snapshot_is_taken_in_backup_mode_under_writes_and_restored() {
    let name = "a_snapshot_is_taken_in_backup_mode_under_writes_and_restored";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        cluster.snapshot(UID);
        let waits = async |cluster: &Cluster| {
            let told = backup_told(cluster);
            told["snapshot"].is_string().then_some(told)
        };
        let (told, _) = cluster.until("PostgreSQL is in backup mode", 60, waits).await;
        assert_eq!(told["source"]["role"], "Primary", "{told}");
        let snapshot = told["snapshot"].as_str().expect("a name").to_owned();
        assert!(
            snapshot.starts_with("orders-c0ffee00-") && snapshot.ends_with("z-s-ab12"),
            "{told}"
        );

        let base = cluster.scratch().join("snapshot");
        let pgdata = cluster.volume(first).join("pgdata");
        let copy = format!("cp -a {} {} || test $? = 1", pgdata.display(), base.display());
        let copy = ["-c", copy.as_str()];
        let copied = as_user("sh", &copy);
        let (copied, (count, _)) = tokio::join!(copied, commits(&cluster, first, 100, 3));
        copied.expect("copied");
        assert!(count > 0);
        cluster.tell_of_snapshot("another", SnapshotState::Ready);
        cluster.tell_of_snapshot(&snapshot, SnapshotState::Taken);
        let ended = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cdb_base_backup'";
        let ended = async |cluster: &Cluster| (cluster.sql(first, ended).await == Ok("0".to_owned())).then_some(());
        cluster.until("backup mode has ended", 60, ended).await;
        assert!(backup_told(&cluster)["snapshot"].is_string(), "it is not ready");
        assert_eq!(
            known(&cluster).await.1.len(),
            0,
            "a snapshot that is not ready is no backup"
        );
        cluster.tell_of_snapshot(&snapshot, SnapshotState::Ready);
        let done = async |cluster: &Cluster| (backup_told(cluster)["state"] == "Completed").then_some(());
        cluster.until("it is complete", 120, done).await;
        let (_, known) = known(&cluster).await;
        let info = known.into_iter().next().expect("a backup");
        let stored = info.snapshot.clone().expect("a snapshot");
        assert_eq!((stored.name, info.parts.len()), (snapshot, 0));

        for left in ["postmaster.pid", "pg_wal", "pg_replslot"] {
            let path = base.join(left);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
        let label = stored.label;
        let made = format!(
            "mkdir -m 0700 {base}/pg_wal {base}/pg_replslot && printf %s '{label}' > {base}/backup_label",
            base = base.display()
        );
        as_user("sh", &["-c", &made]).await.expect("written");
        commit_row(&cluster, first, 2).await.expect("a commit");
        last_row_is_archived(&cluster, &store, first, ".zst").await;
        let restored = restored(&cluster, &base, &archived(&store), None, 1).await;
        assert_eq!(restored, rows(&cluster, first).await);
    });
}

#[test]
fn a_snapshot_that_fails_is_told_and_ends_backup_mode() {
    let name = "a_snapshot_that_fails_is_told_and_ends_backup_mode";
    in_a_cluster(name, spec(), |cluster| async move {
        let _store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        cluster.snapshot(UID);
        let waits = async |cluster: &Cluster| {
            let told = backup_told(cluster);
            told["snapshot"].as_str().map(str::to_owned)
        };
        let (snapshot, _) = cluster.until("PostgreSQL is in backup mode", 60, waits).await;
        cluster.tell_of_snapshot(&snapshot, SnapshotState::Failed);
        let done = async |cluster: &Cluster| (backup_told(cluster)["state"] == "Failed").then_some(());
        cluster.until("it has failed", 60, done).await;
        let told = backup_told(&cluster);
        assert!(
            told["message"].as_str().expect("words").contains("no such class"),
            "{told}"
        );
        let in_mode = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cdb_base_backup'";
        assert_eq!(cluster.sql(first, in_mode).await.as_deref(), Ok("0"));
        assert!(!cluster.volume(first).join("pgdata/backup_label").exists());
    });
}

const PUBLIC: &str = "age1tajya78yex7e54lmyq5z89vw4n29epr96nj3f7z3upjpahujeaescwdf4s";
const PRIVATE: &str = "AGE-SECRET-KEY-1T299XPA2EYKG75LP4LU6YCRSXFQJHXCF75RDF60Z004VYJZCE4LQY8K4SD";

#[test]
fn an_encrypted_backup_is_restored_by_hand_with_its_wal() {
    let name = "an_encrypted_backup_is_restored_by_hand_with_its_wal";
    let mut spec = spec();
    spec["backup"]["encryption"] = json!({"recipients": [PUBLIC]});
    in_a_cluster(name, spec, |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        cluster.back_up(Some(UID), BackupSource::PreferStandby);
        let done = async |cluster: &Cluster| (backup_told(cluster)["state"] == "Completed").then_some(());
        cluster.until("it is taken", 120, done).await;
        commit_row(&cluster, first, 2).await.expect("a commit");
        last_row_is_archived(&cluster, &store, first, ".zst.age").await;
        let (opened, known) = known(&cluster).await;
        assert_eq!(known[0].recipients, [PUBLIC]);
        is_verified(&cluster, &opened, &known[0]).await;
        let key = cluster.scratch().join("key");
        fs::write(&key, PRIVATE).expect("written");
        assert!(
            as_user("age", &["--version"]).await.is_ok(),
            "this test needs the program `age` of Debian's package `age`"
        );
        let backup = folder_of_backups(&store).join(known[0].name.to_string());
        let base = unpacked_by_hand(&cluster, &backup, Some(&key)).await;
        let restored = restored(&cluster, &base, &archived(&store), Some(&key), 1).await;
        assert_eq!(restored, "1,2");
    });
}

/// A page is overwritten on the primary's disk.
#[test]
fn damaged_pages_are_told_and_keep_nobody_from_backups() {
    let name = "damaged_pages_are_told_and_keep_nobody_from_backups";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let filled = "CREATE TABLE cold AS SELECT generate_series(1, 10000) AS v; CHECKPOINT";
        cluster.sql(first, filled).await.expect("a table");
        let path = cluster.sql(first, "SELECT pg_relation_filepath('cold')").await;
        let path = path.expect("a path");
        let file = File::options()
            .write(true)
            .open(cluster.volume(first).join("pgdata").join(&path));
        file.expect("its file")
            .write_all_at(&[0xA5; 64], 3 * 8192 + 4000)
            .expect("written");

        cluster.back_up(Some(UID), BackupSource::Primary);
        let done = async |cluster: &Cluster| (backup_told(cluster)["state"] == "Completed").then_some(());
        cluster.until("it is taken all the same", 120, done).await;
        let told = backup_told(&cluster);
        let words = told["message"].as_str().expect("words");
        assert!(words.contains("wrong checksums") && words.contains(&path), "{told}");
        assert_eq!(
            (&told["attempt"], &told["backup"]["damagedPages"]),
            (&json!(2), &json!(true))
        );
        let (opened, known) = known(&cluster).await;
        assert!(known[0].damaged_pages);
        is_verified(&cluster, &opened, &known[0]).await;

        cluster.back_up(Some("cd34"), BackupSource::PreferStandby);
        let done = async |cluster: &Cluster| {
            let told = backup_told(cluster);
            (told["uid"] == "cd34" && told["state"] == "Completed").then_some(told)
        };
        let (told, _) = cluster.until("a standby has whole pages", 120, done).await;
        assert_eq!(told["backup"]["damagedPages"], Value::Null, "{told}");
        drop(store);
    });
}

#[test]
fn a_backup_that_is_cut_off_is_none_and_the_next_succeeds() {
    let name = "a_backup_that_is_cut_off_is_none_and_the_next_succeeds";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let order = order(&cluster, first, 1).await;

        let stall = Fault {
            path: "/pgdata-".to_owned(),
            ..Fault::new(Effect::Stall).method("PUT")
        };
        store.inject(stall);
        let in_the_middle = async |cluster: &Cluster, order: &Order| {
            let before = store.count_requests("PUT", "/pgdata-");
            let mut worker = Worker::start(cluster, order).await;
            assert!(matches!(worker.next().await, Some(Told::Copying { .. })));
            let sends = async |_: &Cluster| (store.count_requests("PUT", "/pgdata-") > before).then_some(());
            cluster.until("it sends", 30, sends).await;
            worker
        };
        let mut worker = in_the_middle(&cluster, &order).await;
        worker.child.kill().await.expect("killed");
        let gone = async |cluster: &Cluster| (!cluster.sends_a_copy()).then_some(());
        cluster.until("PostgreSQL ends the copy", 10, gone).await;

        let mut worker = in_the_middle(&cluster, &order).await;
        println!("peak memory: {:?} KiB", worker.peak_memory());
        drop(worker.stdin);
        let status = worker.child.wait().await.expect("an end");
        assert!(!status.success());
        cluster.until("PostgreSQL ends the copy", 10, gone).await;
        store.heal();
        assert_eq!(known(&cluster).await.1, []);

        let (told, succeeded) = Worker::start(&cluster, &order).await.end().await;
        assert!(succeeded, "{told:?}");
        assert_eq!(known(&cluster).await.1.len(), 1);
    });
}

/// A process that nobody hears any more may come to its end when another attempt has begun.
#[test]
fn of_two_attempts_at_once_only_the_later_one_becomes_a_backup() {
    let name = "of_two_attempts_at_once_only_the_later_one_becomes_a_backup";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let refuse = Fault {
            path: "/1/wal/".to_owned(),
            ..Fault::refuse(503, "ServiceUnavailable").method("PUT")
        };
        store.inject(refuse);
        let mut earlier = Worker::start(&cluster, &order(&cluster, first, 1).await).await;
        while !matches!(earlier.next().await.expect("no end"), Told::WaitingForWal { .. }) {}
        let mut later = Worker::start(&cluster, &order(&cluster, first, 2).await).await;
        assert!(matches!(later.next().await, Some(Told::Copying { .. })));
        store.heal();
        let (earlier, later, ()) = tokio::join!(earlier.end(), later.end(), all_is_archived(&cluster, first, 1));
        let why = "another attempt at this backup has begun".to_owned();
        assert_eq!(
            earlier.0.last(),
            Some(&Told::Failed {
                message: why,
                damaged_pages: false
            })
        );
        let Some(Told::Completed(StoredBackup { name, .. })) = later.0.last() else {
            panic!("{later:?}");
        };
        let (_, known) = known(&cluster).await;
        let [info] = &known[..] else { panic!("{known:?}") };
        assert_eq!(info.name.to_string(), *name);
    });
}

/// What the Lease tells of the backup.
fn backup_told(cluster: &Cluster) -> Value {
    cluster.annotation(api::names::LEASE_ARCHIVE)["backup"].clone()
}

/// The whole way: the agents see in the resource which backup is wanted, and tell in the Lease what became of it.
#[test]
fn the_primary_takes_the_backup_that_the_resource_asks_for_and_its_successor_goes_on() {
    let name = "the_primary_takes_the_backup_that_the_resource_asks_for_and_its_successor_goes_on";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let stall = Fault {
            path: "/pgdata-".to_owned(),
            ..Fault::new(Effect::Stall).method("PUT")
        };
        store.inject(stall);
        cluster.back_up(Some(UID), BackupSource::Primary);
        let copies = async |cluster: &Cluster| {
            let sends = store.count_requests("PUT", "/pgdata-") > 0;
            (sends && backup_told(cluster)["state"] == "Copying").then_some(())
        };
        cluster.until("it copies", 60, copies).await;
        cluster.kill_agent(first);
        replaced(&cluster, first, 2, 30).await;
        store.heal();
        let done = async |cluster: &Cluster| (backup_told(cluster)["state"] == "Completed").then_some(());
        cluster.until("the successor has taken it", 120, done).await;
        let told = backup_told(&cluster);
        assert_eq!((&told["uid"], &told["backup"]["timeline"]), (&json!(UID), &json!(2)));
        let (_, known) = known(&cluster).await;
        assert_eq!(known.len(), 1, "what the first primary left is no backup");
        assert_eq!(known[0].name.to_string(), told["backup"]["name"]);

        // What the store lacks for a recovery in place is told before anything stops for it.
        let no_backup = "20260101T000000Z-F-0000";
        for (check, expected) in [
            (
                json!({"uid": "r1", "target": {"time": "2020-01-01T00:00:00Z"}}),
                Some("no backup ends before"),
            ),
            (
                json!({"uid": "r2", "backup": no_backup}),
                Some("there is no backup 20260101T000000Z-F-0000"),
            ),
            (json!({"uid": "r3"}), None),
        ] {
            cluster.check_recovery(check.clone());
            let told = async |cluster: &Cluster| {
                let told = cluster.annotation(api::names::LEASE_ARCHIVE)["checked"].clone();
                (told["uid"] == check["uid"]).then_some(told)
            };
            let (told, _) = cluster.until("the store was looked through", 30, told).await;
            let refusal = told["refusal"].as_str();
            assert!(
                refusal.is_some() == expected.is_some() && refusal.unwrap_or("").contains(expected.unwrap_or("")),
                "{told}"
            );
        }

        // One that is taken back is ended.
        store.inject(Fault {
            path: "/pgdata-".to_owned(),
            ..Fault::new(Effect::Stall).method("PUT")
        });
        cluster.back_up(Some("ef56ab78-0000-0000-0000-000000000000"), BackupSource::Primary);
        let copies = async |cluster: &Cluster| cluster.sends_a_copy().then_some(());
        cluster.until("it copies", 60, copies).await;
        cluster.back_up(None, BackupSource::Primary);
        let gone = async |cluster: &Cluster| (!cluster.sends_a_copy()).then_some(());
        cluster.until("it is ended", 30, gone).await;
    });
}

/// Waits until the backup is complete. Returns what the Lease tells.
async fn completed(cluster: &Cluster) -> Value {
    let done = async |cluster: &Cluster| Some(backup_told(cluster)).filter(|told| told["state"] == "Completed");
    cluster.until("the backup is complete", 180, done).await.0
}

#[test]
fn a_backup_of_a_standby_is_made_under_writes_and_restored() {
    let name = "a_backup_of_a_standby_is_made_under_writes_and_restored";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        cluster.back_up(Some(UID), BackupSource::PreferStandby);
        let begun = Instant::now();
        let (told, (count, _)) = tokio::join!(completed(&cluster), commits(&cluster, first, 100, 5));
        println!(
            "complete after {} ms, beside {count} commits",
            begun.elapsed().as_millis()
        );
        // Far below `archive_timeout`: the primary closes the last segment, and the standby waits for the Lease to tell it.
        assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
        let source = &told["source"];
        assert_eq!((&told["attempt"], &source["role"]), (&json!(1), &json!("Standby")));
        assert_ne!(source["member"], format!("orders-{first}"));
        assert_eq!(&told["backup"]["source"], source);

        let (opened, known) = known(&cluster).await;
        let [info] = &known[..] else { panic!("{known:?}") };
        assert_eq!(json!(info.source), *source);
        let folder = folder_of_backups(&store).join(info.name.to_string());
        let label = fs::read_to_string(folder.join("backup_label")).expect("a label");
        assert!(label.contains("BACKUP FROM: standby"), "{label}");
        let begins = format!("START WAL LOCATION: {} ", format_lsn(info.start_lsn));
        assert!(
            label.contains(&begins) && info.stop_lsn >= info.start_lsn,
            "{label}{info:?}"
        );
        is_verified(&cluster, &opened, info).await;

        last_row_is_archived(&cluster, &store, first, ".zst").await;
        let base = unpacked_by_hand(&cluster, &folder, None).await;
        let restored = restored(&cluster, &base, &archived(&store), None, 1).await;
        assert!(restored.starts_with("1,100,"), "{restored}");
        assert_eq!(restored, rows(&cluster, first).await);
    });
}

/// Begins a backup of a standby whose store stalls. Returns the standby.
async fn stalled_in_the_middle(cluster: &Cluster, store: &TestStore) -> u32 {
    store.inject(Fault {
        path: "/pgdata-".to_owned(),
        ..Fault::new(Effect::Stall).method("PUT")
    });
    cluster.back_up(Some(UID), BackupSource::PreferStandby);
    let copies = async |cluster: &Cluster| {
        let told = backup_told(cluster);
        let member = told["source"]["member"]
            .as_str()?
            .strip_prefix("orders-")?
            .parse()
            .ok()?;
        // The holder has heard from it, too.
        let sends = store.count_requests("PUT", "/pgdata-") > 0 && told["copiedBytes"].is_u64();
        (sends && told["source"]["role"] == "Standby").then_some(member)
    };
    cluster.until("a standby is copied", 60, copies).await.0
}

#[test]
fn a_standby_that_dies_while_it_is_copied_is_replaced_by_the_other() {
    let name = "a_standby_that_dies_while_it_is_copied_is_replaced_by_the_other";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let lost = stalled_in_the_middle(&cluster, &store).await;
        cluster.kill_agent(lost);
        let again = async |cluster: &Cluster| Some(backup_told(cluster)).filter(|told| told["attempt"] == 2);
        let (told, took) = cluster.until("another attempt begins", 60, again).await;
        assert!(took > Duration::from_secs(20), "{took:?}");
        let why = format!("attempt 2: orders-{lost}: it has not reported for 30 s");
        assert_eq!((&told["message"], &told["state"]), (&json!(why), &json!("Copying")));
        assert_eq!(known(&cluster).await.1, [], "nothing came of the first");
        store.heal();
        let told = completed(&cluster).await;
        let other = json!({"member": format!("orders-{}", 3 - first - lost), "role": "Standby"});
        assert_eq!((&told["attempt"], &told["source"]), (&json!(2), &other));
        assert_eq!(known(&cluster).await.1.len(), 1);
    });
}

/// PostgreSQL stops and its agent goes on, as for a rewind or a restart. The store stalls, so that the copy's process does not notice.
#[test]
fn a_standby_that_is_stopped_while_it_is_copied_is_replaced_by_the_other() {
    let name = "a_standby_that_is_stopped_while_it_is_copied_is_replaced_by_the_other";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let stopped = stalled_in_the_middle(&cluster, &store).await;
        cluster.fence(&[stopped]);
        let again = async |cluster: &Cluster| Some(backup_told(cluster)).filter(|told| told["attempt"] == 2);
        cluster.until("another attempt begins", 60, again).await;
        assert!(!cluster.runs(stopped));
        store.heal();
        let told = completed(&cluster).await;
        let other = json!({"member": format!("orders-{}", 3 - first - stopped), "role": "Standby"});
        assert_eq!((&told["attempt"], &told["source"]), (&json!(2), &other));
        assert_eq!(known(&cluster).await.1.len(), 1, "nothing came of the first");
    });
}

#[test]
fn a_standby_that_is_promoted_while_it_is_copied_begins_the_next_attempt() {
    let name = "a_standby_that_is_promoted_while_it_is_copied_begins_the_next_attempt";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let promoted = stalled_in_the_middle(&cluster, &store).await;
        cluster.wish_for(promoted);
        assert_eq!(replaced(&cluster, first, 2, 60).await.0, promoted);
        let again = async |cluster: &Cluster| Some(backup_told(cluster)).filter(|told| told["attempt"] == 2);
        let (told, _) = cluster.until("another attempt begins", 60, again).await;
        assert_ne!(
            told["source"]["member"],
            format!("orders-{promoted}"),
            "a standby follows"
        );
        store.heal();
        let told = completed(&cluster).await;
        let backup = &told["backup"];
        assert_eq!(
            (&told["attempt"], &backup["timeline"], &backup["source"]["role"]),
            (&json!(2), &json!(2), &json!("Standby"))
        );
        assert_eq!(known(&cluster).await.1.len(), 1);
    });
}

/// What the Lease tells of all backups.
fn catalogue(cluster: &Cluster) -> Value {
    cluster.annotation(api::names::LEASE_ARCHIVE)["catalogue"].clone()
}

#[test]
fn what_the_retention_does_not_keep_is_told_and_then_removed() {
    let name = "what_the_retention_does_not_keep_is_told_and_then_removed";
    in_a_cluster(name, spec(), |cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let mut names = Vec::new();
        for number in 2..4_u32 {
            let uid = format!("{number:08x}-0000-0000-0000-000000000000");
            cluster.back_up(Some(&uid), BackupSource::Primary);
            let done = async |cluster: &Cluster| {
                let told = backup_told(cluster);
                let is_done = told["uid"] == *uid && told["state"] == "Completed";
                is_done.then(|| told["backup"]["name"].as_str().expect("a name").to_owned())
            };
            names.push(cluster.until("it is taken", 120, done).await.0);
            commit_row(&cluster, first, number).await.expect("a commit");
            cluster.sql(first, "SELECT pg_switch_wal()").await.expect("a segment");
        }
        all_is_archived(&cluster, first, 1).await;
        let counted = async |cluster: &Cluster| (catalogue(cluster)["backups"] == 2).then(|| catalogue(cluster));
        let (both, _) = cluster.until("both are counted", 60, counted).await;
        let (_, backups) = known(&cluster).await;
        assert_eq!(both["firstRecoverableTime"], json!(backups[0].stop_time));
        assert_eq!(both.get("removal"), None);

        let removal = |cluster: &Cluster| catalogue(cluster)["removal"].clone();
        cluster.retain(json!({"minBackups": 1, "suspend": true}));
        let planned = async |cluster: &Cluster| removal(cluster).is_object().then(|| removal(cluster));
        let (planned, _) = cluster.until("it is told what would be removed", 60, planned).await;
        assert_eq!(
            (&planned["backups"], &planned["oldestKept"]),
            (&json!(1), &json!(names[1]))
        );
        assert!(planned["walSegments"].as_u64().expect("a number") >= 1, "{planned}");
        assert_eq!(known(&cluster).await.1, backups, "suspended");
        // What a drill has recovered stays, whatever comes after it.
        cluster.tell_of_drill(Some(&names[0]));
        let stays = async |cluster: &Cluster| (removal(cluster)["backups"] != 1).then_some(());
        cluster.until("a proven backup is kept", 60, stays).await;
        cluster.tell_of_drill(Some(&names[1]));
        let goes = async |cluster: &Cluster| (removal(cluster) == planned).then_some(());
        cluster.until("another one is proven", 60, goes).await;

        store.inject(Fault::refuse(403, "AccessDenied").method("DELETE"));
        cluster.retain(json!({"minBackups": 1}));
        let denied = async |cluster: &Cluster| {
            let told = catalogue(cluster);
            told["fault"].as_str()?.contains("denies access").then_some(told)
        };
        let (told, _) = cluster
            .until("it is told that nothing can be removed", 60, denied)
            .await;
        assert_eq!(told["removal"], planned);

        store.heal();
        // Any change has it look at once, and not only after a while.
        cluster.retain(json!({"minBackups": 1, "windowDays": 9000}));
        cluster
            .until("nothing is removed", 60, async |cluster: &Cluster| {
                removal(cluster).is_null().then_some(())
            })
            .await;
        cluster.retain(json!({"minBackups": 1}));
        let removed = async |cluster: &Cluster| {
            let of_first = folder_of_backups(&store).join(&names[0]).join("backup.json");
            (catalogue(cluster)["backups"] == 1 && !of_first.exists()).then_some(())
        };
        cluster.until("the first backup is removed", 60, removed).await;
        let (opened, left) = known(&cluster).await;
        assert_eq!(left, &backups[1..]);
        let parts = |name: &str| fs::read_dir(folder_of_backups(&store).join(name)).map_or(0, Iterator::count);
        assert!(parts(&names[0]) <= 1, "at most its deleted.json");
        is_verified(&cluster, &opened, &left[0]).await;

        // What is left can be restored, with all that came after it.
        let base = unpacked_by_hand(&cluster, &folder_of_backups(&store).join(&names[1]), None).await;
        assert_eq!(
            restored(&cluster, &base, &archived(&store), None, 1).await,
            rows(&cluster, first).await
        );
        let segments = |folder: &Path| fs::read_dir(folder).expect("segments").count();
        let wal: usize = fs::read_dir(archived(&store))
            .expect("folders")
            .map(|folder| folder.expect("one").path())
            .filter(|folder| folder.is_dir())
            .map(|folder| segments(&folder))
            .sum();
        println!(
            "{wal} segments are left of {}",
            wal + usize::try_from(planned["walSegments"].as_u64().expect("a number")).expect("few")
        );
    });
}

/// Waits until a backup of this UID is complete; its name.
async fn taken(cluster: &Cluster, uid: &str) -> String {
    cluster.back_up(Some(uid), BackupSource::Primary);
    let done = async |cluster: &Cluster| {
        let told = backup_told(cluster);
        let is_done = told["uid"] == uid && told["state"] == "Completed";
        is_done.then(|| told["backup"]["name"].as_str().expect("a name").to_owned())
    };
    cluster.until("the backup is complete", 120, done).await.0
}

/// Why there can be no recovery of this backup, or to this target.
async fn refusal(cluster: &Cluster, check: Value) -> Option<String> {
    cluster.check_recovery(check.clone());
    let told = async |cluster: &Cluster| {
        let told = told(cluster)["checked"].clone();
        (told["uid"] == check["uid"]).then_some(told)
    };
    let (told, _) = cluster.until("the store was looked through", 60, told).await;
    told["refusal"].as_str().map(str::to_owned)
}

#[test]
fn a_name_that_is_taken_ends_a_line_of_the_archive_and_the_next_one_has_all_that_follows() {
    let name = "a_name_that_is_taken_ends_a_line_of_the_archive_and_the_next_one_has_all_that_follows";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let old = taken(&cluster, UID).await;
        commit_row(&cluster, first, 2).await.expect("a commit");
        all_is_archived(&cluster, first, 1).await;

        // Somebody else's WAL has the name of the next segment.
        let next = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())";
        let next = cluster.sql(first, next).await.expect("a name");
        let folder = archived(&store).join(&next[..16]);
        let foreign = folder.join(format!("{next}.zst"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(&foreign, "of another server").expect("written");
        commit_row(&cluster, first, 3).await.expect("a commit");
        let in_next = async |cluster: &Cluster| (told(cluster)["line"] == 2).then_some(());
        cluster.sql(first, "SELECT pg_switch_wal()").await.expect("a segment");
        cluster.until("the next line has begun", 90, in_next).await;
        all_is_archived(&cluster, first, 1).await;
        let second_line = store.directory().join("wal/eu").join(FOLDER).join("lines/2");
        let object = second_line.join("wal").join(&next[..16]).join(format!("{next}.zst"));
        assert!(object.exists(), "the segment is in the second line");
        assert_eq!(
            fs::read(&foreign).expect("there"),
            b"of another server",
            "nothing is overwritten"
        );
        let kept = fs::read_dir(archived(&store).join("conflicts")).expect("a folder");
        assert_eq!(kept.count(), 1, "what this server has is kept beside it, too");

        let all = || json!({"uid": "r1"});
        let words = refusal(&cluster, all()).await.expect("no backup yet");
        assert!(
            words.contains("line 2 of the archive holds no complete backup"),
            "{words}"
        );
        let of_old = refusal(
            &cluster,
            json!({"uid": "r2", "backup": old, "target": {"immediate": true}}),
        )
        .await;
        assert_eq!(of_old, None, "the first line can still be recovered");
        let new = taken(&cluster, "cd34ab12-0000-0000-0000-000000000000").await;
        assert!(second_line.join("backups").join(&new).exists());
        assert_eq!(refusal(&cluster, json!({"uid": "r3"})).await, None);

        // A successor goes on there, after a change of the timeline, too.
        cluster.kill_agent(first);
        let (second, _) = replaced(&cluster, first, 4, 60).await;
        all_is_archived(&cluster, second, 2).await;
        assert!(second_line.join("wal/00000002.history").exists());
        assert_eq!(refusal(&cluster, json!({"uid": "r4"})).await, None);

        // All of it goes with the database, if the user wants that.
        store.inject(Fault::refuse(403, "AccessDenied").method("DELETE"));
        let others = store.directory().join("wal/eu").join(FOLDER).join("lines/7/line.json");
        let of_another = json!({"v": 1, "clusterUid": "another", "systemId": "7", "walSegmentSize": 1});
        fs::create_dir_all(others.parent().expect("a folder")).expect("a folder");
        fs::write(&others, of_another.to_string()).expect("written");
        cluster.delete_archive();
        let fault = async |cluster: &Cluster, words: &str| {
            let fault = told(cluster)["fault"].as_str()?.to_owned();
            (fault.contains("cannot be deleted") && fault.contains(words)).then_some(())
        };
        let refused = async |cluster: &Cluster| fault(cluster, "was written by another database").await;
        cluster
            .until("what another database has is left alone", 60, refused)
            .await;
        fs::remove_file(&others).expect("removed");
        let denied = async |cluster: &Cluster| fault(cluster, "denies access").await;
        cluster
            .until("it is told that nothing can be deleted", 60, denied)
            .await;
        store.heal();
        let deleted = async |cluster: &Cluster| (told(cluster)["deleted"] == true).then_some(());
        cluster.until("all is deleted", 60, deleted).await;
        let own = store.directory().join("wal/eu").join(FOLDER);
        assert_eq!(objects(&own).len(), 0);
        commit_row(&cluster, second, 5).await.expect("PostgreSQL still runs");
        cluster.sql(second, "SELECT pg_switch_wal()").await.expect("a segment");
        assert_eq!(objects(&own).len(), 0, "nothing is archived any more");
    });
}

/// It archives, makes backups, removes those that it need not keep, and in the end deletes all that it has in the store.
#[test]
fn a_database_of_the_same_name_touches_nothing_of_the_one_before_it() {
    let name = "a_database_of_the_same_name_touches_nothing_of_the_one_before_it";
    in_a_cluster(name, spec(), |mut cluster| async move {
        let store = store(&cluster).await;
        let first = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        taken(&cluster, UID).await;
        commit_row(&cluster, first, 2).await.expect("a commit");
        all_is_archived(&cluster, first, 1).await;
        (0..AGENTS).for_each(|ordinal| cluster.kill_agent(ordinal));
        let place = store.directory().join("wal/eu");
        let before = objects(&place);
        assert!(
            before.keys().all(|path| path.starts_with(place.join(FOLDER))),
            "{:?}",
            before.keys()
        );

        cluster.make_again("decade00-0000-0000-0000-000000000000");
        let own = place.join("default/orders-decade00");
        let primary = with_a_row(&cluster).await;
        is_tried(&cluster).await;
        let mut names = Vec::new();
        for uid in [
            "cd34ab12-0000-0000-0000-000000000000",
            "ef56ab78-0000-0000-0000-000000000000",
        ] {
            names.push(taken(&cluster, uid).await);
            commit_row(&cluster, primary, 2).await.expect("a commit");
            all_is_archived(&cluster, primary, 1).await;
        }
        let backups = own.join("lines/1/backups");
        let [removed, kept] = [0, 1].map(|number| backups.join(&names[number]).join("backup.json"));
        assert!(removed.exists() && kept.exists() && own.join("lines/1/wal").exists());
        cluster.retain(json!({"minBackups": 1}));
        let is_removed = async |_: &Cluster| (!removed.exists()).then_some(());
        cluster.until("its first backup is removed", 60, is_removed).await;
        assert!(kept.exists());
        cluster.delete_archive();
        let deleted = async |cluster: &Cluster| (told(cluster)["deleted"] == true).then_some(());
        cluster.until("all that it has is deleted", 60, deleted).await;
        let after = objects(&place);
        assert!(after == before, "{:?}\nbefore: {:?}", after.keys(), before.keys());
    });
}

/// The bytes of all objects below a folder.
fn objects(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(objects(&path)),
            false => drop(found.insert(path.clone(), fs::read(&path).expect("an object"))),
        }
    }
    found
}
