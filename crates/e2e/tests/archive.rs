//! End-to-end: WAL is archived in a store that runs on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::ClusteredDatabase;
use api::names::ANNOTATION_DELETE_ARCHIVE;
use api::status::{ArchiveFence, WaitReason};
use e2e::namespace::summary;
use e2e::store::{BUCKET, Store, close_segment};
use e2e::wait::{Seen, until};
use e2e::{KUBECONFIG_VARIABLE, Namespace, SqlClient, connect_for_test};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use test_store::Fault;
use testbed::POSTGRES_IMAGE;

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(240);

/// Numbers of the archived segments by timeline: PostgreSQL's segments of 4 MiB, as the operator makes them.
fn archived(folder: &Path) -> Result<BTreeMap<u64, BTreeSet<u64>>> {
    let mut found: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let segments = std::fs::read_dir(folder)?
        .flatten()
        .filter(|entry| entry.path().is_dir());
    let names = segments
        .filter_map(|entry| std::fs::read_dir(entry.path()).ok())
        .flatten()
        .flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(digits) = name.strip_suffix(".zst").filter(|digits| digits.len() == 24) else {
            continue;
        };
        let number = |from: usize| u64::from_str_radix(&digits[from..from + 8], 16);
        found
            .entry(number(0)?)
            .or_default()
            .insert(number(8)? * 1024 + number(16)?);
    }
    Ok(found)
}

/// The numbers between these that are not among them.
fn missing(numbers: BTreeSet<u64>) -> Vec<u64> {
    let all = numbers.first().copied().unwrap_or(0)..numbers.last().copied().unwrap_or(0);
    all.filter(|number| !numbers.contains(number)).collect()
}

async fn wait(
    namespace: &Namespace,
    what: &str,
    look: impl Fn(&ClusteredDatabase) -> Option<String>,
) -> Result<ClusteredDatabase> {
    let (db, took) = until(what, BOUND, || async {
        let db = namespace.get("db").await?;
        Ok(match look(&db) {
            None => Seen::Yes(db),
            Some(missing) => Seen::NotYet(format!("{missing}; {}", summary(&db))),
        })
    })
    .await?;
    println!("{what}: {:.1} s", took.as_secs_f64());
    Ok(db)
}

/// Why the condition has not this status and reason; `None` if it has.
fn healthy(db: &ClusteredDatabase, status: &str, reason: &str) -> Option<String> {
    let mut conditions = db.status.iter().flat_map(|status| &status.conditions);
    let found = conditions.find(|found| found.type_ == "BackupHealthy");
    match found {
        Some(found) if found.status == status && found.reason == reason => None,
        found => Some(format!("{found:?}")),
    }
}

/// The pod of the primary.
async fn primary(namespace: &Namespace) -> Result<String> {
    let holder = namespace.holder("db").await?.context("a holder")?;
    Ok(holder.split('/').next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn wal_is_archived_from_a_running_database_on_and_through_a_failover() -> Result<()> {
    let store = Store::start(Path::new(
        &std::env::var(KUBECONFIG_VARIABLE).context(KUBECONFIG_VARIABLE)?,
    ))
    .await?;
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-archive").await?;
    let made = namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;

    // There is no bucket yet.
    store.let_in(&namespace).await?;
    let parameters = json!({"parameters": {"archive_timeout": "5s"}});
    let change = json!({"backup": {"store": store.spec()}, "postgres": parameters});
    namespace.change("db", change).await?;
    let refused = |db: &ClusteredDatabase| healthy(db, "False", "ArchiveFails");
    wait(&namespace, "a store without the bucket is told", refused).await?;
    store.test_store().make_bucket(BUCKET)?;
    wait(&namespace, "WAL is archived, without a backup", |db| {
        healthy(db, "False", "NoBackup")
    })
    .await?;
    let (db, _) = namespace.wait_ready("db", BOUND).await?;
    let archive = db
        .status
        .and_then(|status| status.backup)
        .context("status.backup")?
        .archive;
    ensure!(archive.fence == Some(ArchiveFence::Enforced), "{archive:?}");

    // The store fails, and with it what the primary has not archived yet is only on volumes.
    store
        .test_store()
        .inject(Fault::refuse(503, "ServiceUnavailable").method("PUT"));
    for _ in 0..5 {
        sql.sql("INSERT INTO t VALUES (1)").await?;
        close_segment(&namespace, "db").await?;
    }
    wait(&namespace, "the store's fault is told", refused).await?;
    let primary = primary(&namespace).await?;
    let pods = namespace.api::<Pod>();
    pods.delete(&primary, &DeleteParams::default().grace_period(0)).await?;
    let replaced = |db: &ClusteredDatabase| {
        let timeline = db.status.as_ref().and_then(|status| status.timeline);
        (timeline < Some(2)).then(|| format!("timeline {timeline:?}"))
    };
    wait(&namespace, "another primary serves", replaced).await?;
    store.test_store().heal();

    let folder = |uid: &str| -> PathBuf {
        let database = format!("db-{}", &uid[..8]);
        ["wal/databases/e2e-archive", &database, "lines/1/wal"]
            .iter()
            .fold(store.directory().to_owned(), |folder, part| folder.join(part))
    };
    let wal = folder(made.metadata.uid.as_deref().context("a UID")?);
    let ((), took) = until("all WAL is archived, on two timelines", BOUND, || async {
        sql.sql("INSERT INTO t VALUES (2)").await?;
        close_segment(&namespace, "db").await?;
        let found = archived(&wal).unwrap_or_default();
        let newest = found.values().next_back().map_or(0, BTreeSet::len);
        // Several are pushed at once: a later one may be there before an earlier one.
        let missing = missing(found.values().flatten().copied().collect());
        Ok(match found.len() > 1 && newest > 2 && missing.is_empty() {
            true => Seen::Yes(()),
            false => Seen::NotYet(format!("segments {missing:?} are missing of {found:?}")),
        })
    })
    .await?;
    println!("all WAL is archived, on two timelines: {:.1} s", took.as_secs_f64());
    wait(&namespace, "the archive is healthy again", |db| {
        healthy(db, "False", "NoBackup")
    })
    .await?;

    // It is deleted with all that it has in the store, once that is confirmed.
    let on_delete = json!({"backup": {"onDelete": {"finalBackup": "None", "data": "Delete"}}});
    namespace.change("db", on_delete).await?;
    let databases = namespace.api::<ClusteredDatabase>();
    databases.delete("db", &DeleteParams::default()).await?;
    let asks = |db: &ClusteredDatabase| {
        let waiting = db.status.as_ref().and_then(|status| status.waiting.as_ref());
        let asked = waiting.is_some_and(|waiting| waiting.reason == Some(WaitReason::ArchiveDeletionConfirmation));
        (!asked).then(|| format!("{waiting:?}"))
    };
    wait(&namespace, "the user is asked to confirm", asks).await?;
    ensure!(wal.exists(), "nothing is deleted before that");
    let confirmed = json!({"metadata": {"annotations": {ANNOTATION_DELETE_ARCHIVE: made.metadata.uid}}});
    databases
        .patch("db", &PatchParams::default(), &Patch::Merge(confirmed))
        .await?;
    let took = namespace.wait_gone("db", BOUND).await?;
    println!("deleted with its archive: {:.1} s", took.as_secs_f64());
    let left = archived(&wal).unwrap_or_default();
    ensure!(left.is_empty(), "{left:?} are left");
    namespace.begin_removal().await
}
