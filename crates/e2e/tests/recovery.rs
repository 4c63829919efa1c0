//! End-to-end: a backup into a store that runs on this machine, and another database from it, as it was at some time.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::backup::{BackupKind, BackupRole, StoredBackup};
use api::operation::{Action, ConfirmRecovery, OperationPhase, Recover, Switchover, UndoRecovery};
use api::spec::RecoveryTarget;
use api::status::{ArchiveFence, BackupCatalogue, FailureReason, WaitReason};
use api::{ClusteredDatabase, DatabaseBackup};
use cli::change::{Wish, plan_recovery};
use cli::cluster::{Cluster, Place};
use cli::drill::Drill;
use e2e::namespace::summary;
use e2e::store::{BUCKET, RECIPIENT, SECRET, Store, close_segment};
use e2e::wait::{Seen, until};
use e2e::{KUBECONFIG_VARIABLE, Namespace, SqlClient, connect_for_test};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use serde_json::{Value, json};
use test_store::Fault;
use testbed::POSTGRES_IMAGE;

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(240);
const NOW: &str = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
const ROWS: &str = "SELECT string_agg(v::text, ',' ORDER BY v) FROM t";

/// The spec of a database that is made from the backups in this folder, and does not encrypt its own.
fn recovered(store: &Store, folder: &str, replicas: u32, target: &Value) -> Value {
    let from = json!({"cluster": folder, "store": store.spec(), "identitySecretRef": {"name": SECRET}});
    let recovery = json!({"from": from, "target": target});
    let storage = json!({"data": {"size": "1Gi"}});
    json!({"replicas": replicas, "storage": storage, "bootstrap": {"recovery": recovery}, "backup": {"store": store.spec()}})
}

/// Of two backups, one is kept. First it is told that the other one would go.
async fn removes_old_backups(namespace: &Namespace) -> Result<()> {
    let seen = async |what: &str, fits: fn(&BackupCatalogue) -> bool| {
        until(what, BOUND, || async {
            let status = namespace.get("db").await?.status.and_then(|status| status.backup);
            let catalogue = status.and_then(|status| status.catalogue);
            Ok(match catalogue {
                Some(catalogue) if fits(&catalogue) => Seen::Yes(catalogue),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await
    };
    seen("two backups to be counted", |catalogue| catalogue.backups == 2).await?;
    let retention = |suspend: bool| json!({"backup": {"retention": {"minBackups": 1, "suspend": suspend}}});
    namespace.change("db", retention(true)).await?;
    let (planned, _) = seen("a removal to be planned", |catalogue| catalogue.removal.is_some()).await?;
    ensure!(
        planned.backups == 2 && planned.removal.as_ref().is_some_and(|removal| removal.backups == 1),
        "{planned:?}"
    );
    namespace.change("db", retention(false)).await?;
    let removed = |catalogue: &BackupCatalogue| catalogue.backups == 1 && catalogue.removal.is_none();
    let (left, took) = seen("the older backup to be removed", removed).await?;
    println!("the older backup is removed: {:.1} s", took.as_secs_f64());
    ensure!(left.first_recoverable_time > planned.first_recoverable_time, "{left:?}");
    Ok(())
}

/// Of the two instances the right one was copied.
fn is_copy_of(backup: &StoredBackup, role: BackupRole, primary: Option<&str>) -> Result<()> {
    let source = backup.source.as_ref().context("a source")?;
    println!("a copy of {source}");
    let is_primary = Some(source.member.as_str()) == primary;
    ensure!(
        source.role == role && is_primary == (role == BackupRole::Primary),
        "{source:?}, and the primary is {primary:?}"
    );
    Ok(())
}

/// What is kept is recoverable, also while the database has a failover, and the drill leaves nothing.
async fn drill(namespace: &Namespace) -> Result<()> {
    let place = place(namespace);
    let drill = Drill {
        name: "db".to_owned(),
        sql: vec![ROWS.to_owned()],
        limit: BOUND.as_secs() / 60,
        keep: false,
    };
    let said = Mutex::new(String::new());
    let say = |text: &str| {
        print!("{text}");
        said.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(0)
    };
    let fails_over = async {
        until("the drill's database to be made", BOUND, || async {
            let names = drills(namespace).await?;
            Ok(if names.is_empty() {
                Seen::NotYet("none".to_owned())
            } else {
                Seen::Yes(())
            })
        })
        .await?;
        let (holder, _) = namespace.reign("db").await?;
        let (pod, _) = holder.split_once('/').context("a holder")?;
        println!("meanwhile {pod}, the primary, is deleted");
        namespace.api::<Pod>().delete(pod, &DeleteParams::default()).await?;
        Ok(())
    };
    tokio::try_join!(cli::drill::run(&place, &drill, say), fails_over)?;
    namespace.wait_ready("db", BOUND).await?;
    let said = said.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(
        said.contains("pg_amcheck finds all tables and indexes in order"),
        "{said}"
    );
    ensure!(said.contains(&format!("{ROWS}: 3\n")), "{said}");
    drills_are_gone(namespace).await
}

/// Names of the databases that were made for drills.
async fn drills(namespace: &Namespace) -> Result<Vec<String>> {
    let databases = namespace.api::<ClusteredDatabase>();
    let all = databases.list(&ListParams::default()).await?;
    let names = all.iter().map(ResourceExt::name_any);
    Ok(names.filter(|name| machine::drill::may_be(name)).collect())
}

async fn drills_are_gone(namespace: &Namespace) -> Result<()> {
    until("the drill's database to be gone", BOUND, || async {
        let names = drills(namespace).await?;
        Ok(if names.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{names:?}"))
        })
    })
    .await?;
    Ok(())
}

/// The operator has made a drill by itself, says so, and makes no other one once none is asked for.
async fn drilled_on_schedule(namespace: &Namespace) -> Result<()> {
    let (drill, _) = until("a drill on schedule", BOUND, || async {
        let db = namespace.get("db").await?;
        let drill = db
            .status
            .as_ref()
            .and_then(|status| status.backup.as_ref()?.drill.clone());
        Ok(drill.map_or_else(|| Seen::NotYet(summary(&db)), Seen::Yes))
    })
    .await?;
    ensure!(drill.succeeded && drill.message.is_none(), "{drill:?}");
    println!("a drill on schedule: {}", drill.end_time - drill.start_time);
    let none = json!({"backup": {"drill": Value::Null}});
    namespace.change("db", none).await?;
    drills_are_gone(namespace).await
}

/// A database is not deleted before its last backup is complete, however long the store is away, and comes back from it.
async fn deletes_with_a_last_backup(namespace: &Namespace, store: &Store, sql: &SqlClient) -> Result<()> {
    let uid = namespace.get("before").await?.metadata.uid.context("a UID")?;
    let required = json!({"backup": {"onDelete": {"finalBackup": "Required"}}});
    namespace.change("before", required).await?;
    sql.sql("INSERT INTO t VALUES (11)").await?;
    store
        .test_store()
        .inject(Fault::refuse(503, "ServiceUnavailable").method("PUT"));
    let databases = namespace.api::<ClusteredDatabase>();
    databases.delete("before", &DeleteParams::default()).await?;
    until("the failed backup to be told", BOUND, || async {
        let db = namespace.get("before").await?;
        let waiting = db.status.as_ref().and_then(|status| status.waiting.as_ref());
        Ok(match waiting {
            Some(waiting) if waiting.reason == Some(WaitReason::FinalBackupRetry) => {
                println!("told: {}", waiting.what);
                Seen::Yes(())
            }
            _ => Seen::NotYet(summary(&db)),
        })
    })
    .await?;
    store.test_store().heal();
    let (_, took) = until("the database to be gone", BOUND, || async {
        let found = databases.get_opt("before").await?;
        Ok(found.map_or(Seen::Yes(()), |db| Seen::NotYet(summary(&db))))
    })
    .await?;
    println!("gone after its last backup: {:.1} s", took.as_secs_f64());
    let all = namespace.api::<DatabaseBackup>().list(&ListParams::default()).await?;
    let last = all.iter().filter(|backup| {
        let phase = backup.status.as_ref().and_then(|status| status.operation.phase);
        backup.name_any().starts_with("before-final-") && phase == Some(OperationPhase::Completed)
    });
    ensure!(last.count() == 1, "{all:?}");
    let folder = format!("before-{}", &uid[..8]);
    let mut spec = recovered(store, &folder, 1, &Value::Null);
    spec["backup"] = json!({"store": {"volume": {"claimName": CLAIM}}});
    namespace.create("again", spec).await?;
    namespace.wait_ready("again", BOUND).await?;
    let recovered_sql = SqlClient::start(namespace, "again", POSTGRES_IMAGE).await?;
    let rows = recovered_sql.sql(ROWS).await?;
    ensure!(rows == "1,2,10,11", "{rows}");
    on_a_volume(namespace, &recovered_sql).await
}

/// The claim that is a store.
const CLAIM: &str = "backups";

async fn make_claim(namespace: &Namespace) -> Result<()> {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    namespace.api().create(&PostParams::default(), &claim).await?;
    Ok(())
}

/// A volume is a store like others: `again` has its backup and its WAL there, and another database is made from them.
async fn on_a_volume(namespace: &Namespace, sql: &SqlClient) -> Result<()> {
    namespace.back_up("again", "on-a-volume").await?;
    namespace.wait_backup("on-a-volume", BOUND).await?;
    sql.sql("INSERT INTO t VALUES (12)").await?;
    close_segment(namespace, "again").await?;
    let status = namespace.get("again").await?.status.unwrap_or_default();
    let fence = status.backup.and_then(|backup| backup.archive.fence);
    ensure!(fence == Some(ArchiveFence::Enforced), "{fence:?}");
    let from = json!({"clusterRef": {"name": "again"}});
    let spec = json!({"replicas": 1, "storage": {"data": {"size": "1Gi"}}, "bootstrap": {"recovery": {"from": from}}});
    namespace.create("from-a-volume", spec).await?;
    namespace.wait_ready("from-a-volume", BOUND).await?;
    let recovered = SqlClient::start(namespace, "from-a-volume", POSTGRES_IMAGE).await?;
    let rows = recovered.sql(ROWS).await?;
    ensure!(rows == "1,2,10,11,12", "{rows}");
    Ok(())
}

#[tokio::test]
async fn a_database_is_made_from_a_backup_as_it_was_before_a_mistake() -> Result<()> {
    let store = Store::start(Path::new(
        &std::env::var(KUBECONFIG_VARIABLE).context(KUBECONFIG_VARIABLE)?,
    ))
    .await?;
    store.test_store().make_bucket(BUCKET)?;
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-recovery").await?;
    store.let_in(&namespace).await?;
    make_claim(&namespace).await?;
    let encryption = json!({"recipients": [RECIPIENT], "identitySecretRef": {"name": SECRET}});
    let backup = json!({"store": store.spec(), "encryption": encryption});
    let spec = json!({"replicas": 2, "storage": {"data": {"size": "1Gi"}}, "backup": backup});
    let made = namespace.create("db", spec).await?;
    let folder = format!("db-{}", &made.metadata.uid.context("a UID")?[..8]);
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t VALUES (1)").await?;

    namespace.back_up("db", "nightly").await?;
    let (backup, took) = namespace.wait_backup("nightly", BOUND).await?;
    println!(
        "the backup is completed: {:.1} s, {} bytes stored",
        took.as_secs_f64(),
        backup.stored_bytes
    );
    let status = namespace.get("db").await?.status.and_then(|status| status.backup);
    let last = status.and_then(|status| status.last_backup);
    ensure!(last.as_ref() == Some(&backup), "{last:?}");
    let primary = namespace
        .get("db")
        .await?
        .status
        .and_then(|status| status.current_primary);
    is_copy_of(&backup, BackupRole::Standby, primary.as_deref())?;

    let hourly = json!([{"name": "hourly", "schedule": "0 * * * *", "immediate": true, "source": "Primary"}]);
    namespace.change("db", json!({"backup": {"schedules": hourly}})).await?;
    let (scheduled, took) = until("a schedule to take a backup", BOUND, || async {
        let all = namespace.api::<DatabaseBackup>().list(&ListParams::default()).await?;
        let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        let found = names.iter().find(|name| name.starts_with("db-hourly-"));
        Ok(found.map_or_else(|| Seen::NotYet(format!("{names:?}")), |name| Seen::Yes(name.clone())))
    })
    .await?;
    println!("a schedule makes {scheduled}: {:.1} s", took.as_secs_f64());
    let (scheduled, _) = namespace.wait_backup(&scheduled, BOUND).await?;
    is_copy_of(&scheduled, BackupRole::Primary, primary.as_deref())?;

    let checks = json!({"amcheck": true, "queries": ["SELECT NOT pg_is_in_recovery()"]});
    let each_minute = json!({"schedule": "* * * * *", "maxAgeDays": 1, "checks": checks});
    namespace
        .change("db", json!({"backup": {"drill": each_minute}}))
        .await?;

    sql.sql("INSERT INTO t VALUES (2)").await?;
    let before = sql.sql(NOW).await?;
    sql.sql("DROP TABLE t").await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t VALUES (3)").await?;
    close_segment(&namespace, "db").await?;

    let mut spec = recovered(&store, "", 3, &json!({"time": before}));
    spec["bootstrap"]["recovery"]["from"] = json!({"clusterRef": {"name": "db"}});
    namespace.create("before", spec).await?;
    let (_, took) = namespace.wait_ready("before", BOUND).await?;
    println!(
        "as it was before the mistake, with three instances: Ready after {:.1} s",
        took.as_secs_f64()
    );
    let recovered_sql = SqlClient::start(&namespace, "before", POSTGRES_IMAGE).await?;
    let rows = recovered_sql.sql(ROWS).await?;
    ensure!(rows == "1,2", "{rows}");
    recovered_sql.sql("INSERT INTO t VALUES (10)").await?;
    ensure!(sql.sql(ROWS).await? == "3", "the old database is as it was");

    // It is a database of its own, with an archive of its own: it can be backed up, and be recovered once more.
    namespace.back_up("before", "again").await?;
    namespace.wait_backup("again", BOUND).await?;

    drilled_on_schedule(&namespace).await?;
    removes_old_backups(&namespace).await?;
    drill(&namespace).await?;
    deletes_with_a_last_backup(&namespace, &store, &recovered_sql).await?;

    // A target that no backup leads to is told, and nothing is made.
    let spec = recovered(&store, &folder, 1, &json!({"time": "2020-01-01T00:00:00Z"}));
    namespace.create("early", spec).await?;
    until("the refusal is told", BOUND, || async {
        let db = namespace.get("early").await?;
        let failure = db.status.as_ref().and_then(|status| status.failure.as_ref());
        Ok(match failure {
            Some(failure) if failure.reason == FailureReason::BootstrapFailed && failure.message.contains("backup") => {
                println!("told: {}", failure.message);
                Seen::Yes(())
            }
            _ => Seen::NotYet(summary(&db)),
        })
    })
    .await?;
    namespace.begin_removal().await
}

/// Names of the VolumeSnapshots.
async fn snapshots(namespace: &Namespace) -> Result<Vec<String>> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource);
    let all = api.list(&ListParams::default()).await?;
    Ok(all.iter().map(ResourceExt::name_any).collect())
}

/// The testbed's storage copies a volume file by file, while the database writes.
#[tokio::test]
async fn a_database_is_made_from_a_volume_snapshot() -> Result<()> {
    let kubeconfig = std::env::var(KUBECONFIG_VARIABLE).context(KUBECONFIG_VARIABLE)?;
    let store = Store::start(Path::new(&kubeconfig)).await?;
    store.test_store().make_bucket(BUCKET)?;
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-snapshot").await?;
    store.let_in(&namespace).await?;
    let storage = json!({"data": {"size": "1Gi", "storageClassName": "snapshots"}});
    let backup = json!({"store": store.spec()});
    let spec = json!({"replicas": 2, "storage": storage, "backup": backup});
    namespace.create("db", spec).await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    let filled = "CREATE TABLE filled AS SELECT g, repeat('x', 500) FROM generate_series(1, 100000) g";
    sql.sql(&format!("CREATE TABLE t (v int); INSERT INTO t VALUES (1); {filled}"))
        .await?;
    namespace.back_up_as("db", "snapshot", BackupKind::Snapshot).await?;
    let written = sql.sql("UPDATE filled SET g = g + 1; INSERT INTO t VALUES (2)").await;
    let (taken, took) = namespace.wait_backup("snapshot", BOUND).await?;
    written?;
    println!("a snapshot as backup {}: {:.1} s", taken.name, took.as_secs_f64());
    is_copy_of(
        &taken,
        BackupRole::Primary,
        namespace
            .get("db")
            .await?
            .status
            .and_then(|status| status.current_primary)
            .as_deref(),
    )?;
    let name = taken.snapshot.context("a VolumeSnapshot")?;
    ensure!(snapshots(&namespace).await? == [name], "it is there");

    sql.sql("INSERT INTO t VALUES (3)").await?;
    let before = sql.sql(NOW).await?;
    sql.sql("DROP TABLE t, filled").await?;
    close_segment(&namespace, "db").await?;
    let from = json!({"clusterRef": {"name": "db"}});
    let recovery = json!({"from": from, "backup": taken.name, "target": {"time": before}});
    let spec = json!({"replicas": 2, "storage": storage, "bootstrap": {"recovery": recovery}});
    namespace.create("copy", spec).await?;
    let (_, took) = namespace.wait_ready("copy", BOUND).await?;
    println!("recovered from it, with two instances: {:.1} s", took.as_secs_f64());
    let copy = SqlClient::start(&namespace, "copy", POSTGRES_IMAGE).await?;
    ensure!(copy.sql(ROWS).await? == "1,2,3", "as before the mistake");
    let whole = copy.sql("SELECT count(*), sum(g) FROM filled").await?;
    ensure!(whole == "100000|5000150000", "{whole}");

    namespace.back_up("db", "full").await?;
    namespace.wait_backup("full", BOUND).await?;
    namespace
        .change("db", json!({"backup": {"retention": {"minBackups": 1}}}))
        .await?;
    until("the VolumeSnapshot to go with its backup", BOUND, || async {
        let left = snapshots(&namespace).await?;
        Ok(if left.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{left:?}"))
        })
    })
    .await?;
    namespace.begin_removal().await
}

/// Names of the claims, each with its template: `data`, `wal1`.
async fn templates(namespace: &Namespace) -> Result<BTreeSet<String>> {
    let claims = namespace
        .api::<PersistentVolumeClaim>()
        .list(&ListParams::default())
        .await?;
    let names = claims.iter().map(ResourceExt::name_any);
    Ok(names
        .filter_map(|name| Some(name.split_once('-')?.0.to_owned()))
        .collect())
}

async fn expect_templates(namespace: &Namespace, expected: [&str; 2]) -> Result<()> {
    until(&format!("claims of {expected:?} alone"), BOUND, || async {
        let found = templates(namespace).await?;
        Ok(if found.iter().eq(expected.iter()) {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{found:?}"))
        })
    })
    .await?;
    Ok(())
}

/// Where `kubectl cdb` finds the database.
fn place(namespace: &Namespace) -> Place {
    Place {
        namespace: Some(namespace.name.clone()),
        kubeconfig: std::env::var_os(KUBECONFIG_VARIABLE).map(Into::into),
        context: None,
    }
}

/// This time, as a target.
fn at(time: &str) -> Result<Option<RecoveryTarget>> {
    Ok(Some(RecoveryTarget {
        time: Some(time.parse()?),
        ..RecoveryTarget::default()
    }))
}

/// Recovers to this target, or to the end of the archive.
async fn recovers(
    namespace: &Namespace,
    operation: &str,
    target: Option<RecoveryTarget>,
    phase: OperationPhase,
) -> Result<String> {
    let begun = Instant::now();
    let recover = Action::Recover(Recover {
        backup: None,
        target,
        dry_run: false,
        keep_hours: None,
    });
    namespace.ask("db", operation, recover).await?;
    let message = namespace.wait_operation(operation, phase, BOUND).await?;
    println!(
        "{operation}: {phase:?} after {:.1} s: {message}",
        begun.elapsed().as_secs_f64()
    );
    Ok(message)
}

#[tokio::test]
async fn a_database_is_recovered_in_place_and_goes_back() -> Result<()> {
    let kubeconfig = std::env::var(KUBECONFIG_VARIABLE).context(KUBECONFIG_VARIABLE)?;
    let store = Store::start(Path::new(&kubeconfig)).await?;
    store.test_store().make_bucket(BUCKET)?;
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-in-place").await?;
    store.let_in(&namespace).await?;
    let encryption = json!({"recipients": [RECIPIENT], "identitySecretRef": {"name": SECRET}});
    let storage = json!({"data": {"size": "1Gi"}, "wal": {"size": "1Gi"}});
    let backup = json!({"store": store.spec(), "encryption": encryption});
    namespace
        .create("db", json!({"replicas": 2, "storage": storage, "backup": backup}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t VALUES (1)").await?;
    namespace.back_up("db", "first").await?;
    namespace.wait_backup("first", BOUND).await?;
    sql.sql("INSERT INTO t VALUES (2)").await?;
    let before = sql.sql(NOW).await?;
    sql.sql("DROP TABLE t; CREATE TABLE t (v int); INSERT INTO t VALUES (3)")
        .await?;

    // The segment of all that is not full: it is archived when everything stops.
    let cluster = Cluster::connect(&place(&namespace)).await?;
    let time = Some(before.parse()?);
    let plan = plan_recovery(
        &cluster,
        "db",
        Wish::Recover {
            backup: None,
            time,
            keep_hours: None,
        },
    )
    .await?;
    println!("{plan}");
    ensure!(
        plan.contains("segments of WAL") && plan.ends_with("Nothing was changed"),
        "{plan}"
    );
    let left = cluster.operations().list(&ListParams::default()).await?;
    ensure!(left.items.is_empty(), "the operation that asked is removed");
    recovers(&namespace, "recover", at(&before)?, OperationPhase::Completed).await?;
    namespace.wait_ready("db", BOUND).await?;
    ensure!(
        sql.sql(ROWS).await? == "1,2",
        "through the same Service, with the same password"
    );
    sql.sql("INSERT INTO t VALUES (10)").await?;
    // No member of these volumes was ever elected: their timeline counts all the same.
    let holder = namespace.holder("db").await?.unwrap_or_default();
    let to = if holder.starts_with("db-0/") { "db-1" } else { "db-0" }.to_owned();
    namespace
        .ask("db", "switchover", Action::Switchover(Switchover { to }))
        .await?;
    namespace
        .wait_operation("switchover", OperationPhase::Completed, BOUND)
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let refused = recovers(&namespace, "too-early", None, OperationPhase::Failed).await?;
    ensure!(refused.contains("confirm-recovery db"), "{refused}");

    // There and back again: nothing is lost on either set of volumes.
    for (operation, rows) in [("undo", "3"), ("redo", "1,2,10")] {
        let begun = Instant::now();
        namespace
            .ask("db", operation, Action::UndoRecovery(UndoRecovery {}))
            .await?;
        namespace
            .wait_operation(operation, OperationPhase::Completed, BOUND)
            .await?;
        println!("{operation}: {:.1} s", begun.elapsed().as_secs_f64());
        namespace.wait_ready("db", BOUND).await?;
        let found = sql.sql(ROWS).await?;
        ensure!(found == rows, "{operation}: {found}");
    }
    ensure!(templates(&namespace).await?.len() == 4, "both sets are kept");
    let confirm = Action::ConfirmRecovery(ConfirmRecovery {});
    namespace.ask("db", "confirm", confirm.clone()).await?;
    namespace
        .wait_operation("confirm", OperationPhase::Completed, BOUND)
        .await?;
    expect_templates(&namespace, ["data1", "wal1"]).await?;

    // Nothing stops for what no backup leads to.
    let pods = namespace.pod_uids("db").await?;
    let early = at("2020-01-01T00:00:00Z")?;
    let failed = recovers(&namespace, "early", early, OperationPhase::Failed).await?;
    ensure!(
        failed.contains("no backup ends before the target") && failed.contains("nothing was changed"),
        "{failed}"
    );
    ensure!(namespace.pod_uids("db").await? == pods, "nothing has stopped");
    // What cannot be known before leaves the database as it was, without a trace.
    let nowhere = RecoveryTarget {
        name: Some("no-such-point".to_owned()),
        ..RecoveryTarget::default()
    };
    let failed = recovers(&namespace, "nowhere", Some(nowhere), OperationPhase::Failed).await?;
    ensure!(failed.contains("the database goes on as it was"), "{failed}");
    namespace.wait_ready("db", BOUND).await?;
    ensure!(sql.sql(ROWS).await? == "1,2,10", "as it was");
    expect_templates(&namespace, ["data1", "wal1"]).await?;

    // Once more, along the timelines of all that: from the backup of before the first recovery.
    sql.sql("INSERT INTO t VALUES (11)").await?;
    close_segment(&namespace, "db").await?;
    recovers(&namespace, "latest", None, OperationPhase::Completed).await?;
    namespace.wait_ready("db", BOUND).await?;
    ensure!(sql.sql(ROWS).await? == "1,2,10,11", "all that was archived");
    namespace.ask("db", "confirm-latest", confirm).await?;
    namespace
        .wait_operation("confirm-latest", OperationPhase::Completed, BOUND)
        .await?;
    namespace.back_up("db", "last").await?;
    namespace.wait_backup("last", BOUND).await?;
    namespace.begin_removal().await
}
