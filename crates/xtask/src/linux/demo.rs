//! `cargo xtask demo`: the main job, from nothing to a recovered primary.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::backup::BackupKind;
use api::declared::DeclaredPhase;
use api::names::CONTAINER;
use api::operation::{Action, ConfirmRecovery, OperationPhase, Recover, Restart, Switchover};
use api::spec::RecoveryTarget;
use api::{ClusteredDatabase, Database, Pooler};
use clap::Args;
use e2e::load::Load;
use e2e::store::{BUCKET, Store, close_segment};
use e2e::wait::{Seen, until};
use e2e::{Images, Namespace, SqlClient, namespace};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use machine::units::Bytes;
use serde_json::json;
use suites::shell;
use testbed::{Options, POOLER_IMAGE, POSTGRES_IMAGE, Testbed, progress};

use super::background::Background;
use super::image;

/// The demo's namespace.
const NAMESPACE: &str = "cdb-demo";
/// The demo's database.
const DATABASE: &str = "demo";
/// How many rows are written first.
const ROWS: u32 = 1000;
/// Bound of each step; far more than it takes, so that a slow machine passes and a stuck one does not.
const BOUND: Duration = Duration::from_secs(180);

/// Shows a database being made, used, changed, hurt and removed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Use the cluster of this context of your kubeconfig instead of bringing one up. It must be able to pull the images.
    #[arg(long)]
    context: Option<String>,
    /// Operator image, with --context.
    #[arg(long, default_value = "clustereddatabase/operator:latest", requires = "context")]
    operator_image: String,
    /// PostgreSQL 17 image, with --context.
    #[arg(long, default_value = "clustereddatabase/postgres:17", requires = "context")]
    postgres_image: String,
    /// PgBouncer image, with --context.
    #[arg(long, default_value = "clustereddatabase/pooler:1.24", requires = "context")]
    pooler_image: String,
    /// Leave the database running at the end.
    #[arg(long)]
    keep: bool,
}

/// Runs the demo.
///
/// # Errors
/// When a step fails or takes longer than its bound; the error has the last observed state.
pub async fn run(arguments: Arguments) -> Result<()> {
    let start = Instant::now();
    let (client, images, kubeconfig) = prepare(&arguments).await?;
    say("installing the operator");
    e2e::install::install(&client, &shell::repository()?, &images).await?;
    let namespace = Namespace::fresh(client, NAMESPACE).await?;
    let store = match &kubeconfig {
        Some(path) => Some(store(&namespace, path).await?),
        None => None,
    };
    println!("    set-up took {:.0} s\n", start.elapsed().as_secs_f64());

    let mut summary = Vec::new();
    create(&namespace, store.as_ref(), &mut summary).await?;
    let sql = write(&namespace, &images, &mut summary).await?;
    declare_user(&namespace, &sql, &mut summary).await?;
    declare_database(&namespace, &mut summary).await?;
    declare_pooler(&namespace, &sql, &mut summary).await?;
    change(&namespace, &mut summary).await?;
    let rows = ROWS + operate(&namespace, &sql, &mut summary).await?;
    kill_primary(&namespace, &sql, rows, &mut summary).await?;
    bring_back(&namespace, &sql, &mut summary).await?;
    match &store {
        Some(store) => recover(&namespace, &images, store, &sql, &mut summary).await?,
        None => summary.push("No backup was taken: that needs a store which your cluster reaches.".to_owned()),
    }
    if arguments.keep {
        summary.push(format!(
            "The database {DATABASE} in namespace {NAMESPACE} is left running."
        ));
    } else {
        remove(&namespace, &mut summary).await?;
    }

    println!("\nSummary");
    for line in &summary {
        println!("  {line}");
    }
    if let Some(path) = kubeconfig {
        println!("\nThe cluster is still up: export KUBECONFIG={}", path.display());
        println!("Remove all of it with: cargo xtask testbed down");
    }
    Ok(())
}

/// The spec of a small database whose volumes go with it.
pub fn small(replicas: i32) -> serde_json::Value {
    json!({"replicas": replicas, "storage": {"data": {"size": "1Gi"}, "retentionPolicy": {"whenDeleted": "Delete"}}})
}

fn say(what: &str) {
    println!("==> {what}");
}

async fn prepare(arguments: &Arguments) -> Result<(kube::Client, Images, Option<PathBuf>)> {
    if let Some(context) = &arguments.context {
        let client = e2e::connect(None, Some(context)).await?;
        let images = Images {
            operator: arguments.operator_image.clone(),
            postgres: arguments.postgres_image.clone(),
            pooler: arguments.pooler_image.clone(),
        };
        return Ok((client, images, None));
    }
    say("bringing up a local three-node Kubernetes, and compiling the operator beside it");
    let (what, mut build) = image::build(&[image::OPERATOR]);
    build.arg("--quiet");
    let mut build = Background::start([(what, build)]);
    let compiled = progress::step("compiling operator and agent (Rust, usually 5 minutes)", build.finish());
    let ((testbed, _), ()) = tokio::try_join!(Testbed::up(Options::from_env()?), compiled)?;
    let [operator] = image::into_testbed(&testbed, [image::OPERATOR]).await?;
    let images = Images {
        operator,
        postgres: POSTGRES_IMAGE.to_owned(),
        pooler: POOLER_IMAGE.to_owned(),
    };
    let path = testbed.kubeconfig_path().to_owned();
    Ok((e2e::connect(Some(&path), None).await?, images, Some(path)))
}

/// A store for backups on this machine, which the local cluster reaches.
async fn store(namespace: &Namespace, kubeconfig: &Path) -> Result<Store> {
    let store = Store::start(kubeconfig).await?;
    store.test_store().make_bucket(BUCKET)?;
    store.let_in(namespace).await?;
    Ok(store)
}

async fn create(namespace: &Namespace, store: Option<&Store>, summary: &mut Vec<String>) -> Result<()> {
    let mut spec = small(3);
    if let Some(store) = store {
        say("creating a database of three instances, whose WAL is archived in an S3 store on this machine");
        spec["backup"] = json!({"store": store.spec()});
        // The local cluster's class whose volumes can have VolumeSnapshots.
        spec["storage"]["data"]["storageClassName"] = json!("snapshots");
    } else {
        say("creating a database of three instances");
    }
    namespace.create(DATABASE, spec).await?;
    let (database, time) = watched(namespace, namespace.wait_ready(DATABASE, BOUND)).await?;
    println!("{}", table(&database));
    summary.push(format!("Creating -> Ready (3 instances): {:.1} s", time.as_secs_f64()));
    Ok(())
}

async fn write(namespace: &Namespace, images: &Images, summary: &mut Vec<String>) -> Result<SqlClient> {
    say("writing through the Service demo-rw, with the Secret's uri, from another pod");
    let sql = SqlClient::start(namespace, DATABASE, &images.postgres).await?;
    let table = "CREATE TABLE visits (id serial PRIMARY KEY, at timestamptz DEFAULT now())";
    sql.sql(&format!(
        "{table}; INSERT INTO visits SELECT FROM generate_series(1, {ROWS})"
    ))
    .await?;
    let rows = sql.sql("SELECT count(*) FROM visits").await?;
    let (read, time) = until("the rows on a standby", BOUND, || async {
        let read = sql
            .sql_at(&format!("{DATABASE}-ro"), "SELECT count(*) FROM visits")
            .await?;
        Ok(if read == rows {
            Seen::Yes(read)
        } else {
            Seen::NotYet(format!("{read} rows"))
        })
    })
    .await?;
    summary.push(format!(
        "{rows} rows written through {DATABASE}-rw, {read} read through {DATABASE}-ro after {:.1} s",
        time.as_secs_f64()
    ));
    Ok(sql)
}

/// Makes a second SQL database with an extension, and shows that it belongs to the role that was named.
async fn declare_database(namespace: &Namespace, summary: &mut Vec<String>) -> Result<()> {
    say("a Database with a schema and an extension, which belongs to the role `app`");
    let spec = json!({
        "clusterRef": {"name": DATABASE}, "name": "reports", "owner": "app",
        "schemas": [{"name": "sales"}], "extensions": [{"name": "pg_trgm"}],
    });
    let database = Database::new("demo-reports", serde_json::from_value(spec)?);
    namespace.api().create(&PostParams::default(), &database).await?;
    let (_, time) = namespace
        .wait_database("demo-reports", DeclaredPhase::Ready, BOUND)
        .await?;
    let holder = namespace.holder(DATABASE).await?.context("a holder")?;
    let primary = holder.split('/').next().unwrap_or_default();
    let query = "SELECT datdba::regrole || ' ' || (SELECT string_agg(extname, ',' ORDER BY extname) FROM pg_extension) \
                 FROM pg_database WHERE datname = current_database()";
    let command = ["psql", "-d", "reports", "-Atc", query];
    let said = e2e::client::exec(namespace, primary, CONTAINER, &command).await?;
    anyhow::ensure!(said.trim() == "app pg_trgm,plpgsql", "it is otherwise: {said}");
    println!("    it belongs to app, and has pg_trgm");
    summary.push(format!(
        "database made: Ready after {:.1} s, belongs to app, has pg_trgm",
        time.as_secs_f64()
    ));
    Ok(())
}

/// Puts PgBouncer in front of the database, and shows that many clients share few connections.
async fn declare_pooler(namespace: &Namespace, sql: &SqlClient, summary: &mut Vec<String>) -> Result<()> {
    say("a Pooler: two pods of PgBouncer, which share ten connections to PostgreSQL");
    let limits = json!({"poolSize": 5, "maxServerConnections": 10});
    let spec = json!({"clusterRef": {"name": DATABASE}, "limits": limits});
    let pooler = Pooler::new("demo-pool", serde_json::from_value(spec)?);
    namespace.api().create(&PostParams::default(), &pooler).await?;
    let (_, time) = namespace
        .wait_declared("demo-pool", DeclaredPhase::Ready, BOUND, |pooler: &Pooler| {
            Some(&pooler.status.as_ref()?.declared)
        })
        .await?;
    let uri = namespace.secret_text(&format!("{DATABASE}-app"), "uri").await?;
    let uri = uri.replace(&format!("@{DATABASE}-rw."), "@demo-pool.");
    // Forty sessions at once, each of which works for a moment.
    let clients = "for i in $(seq 40); do psql \"$1\" -Atc 'SELECT pg_backend_pid() FROM pg_sleep(0.2)' & done; wait";
    let answers = sql.run(&["sh", "-c", clients, "sh", &uri]).await?;
    let backends: std::collections::BTreeSet<&str> = answers.lines().collect();
    let (answered, shared) = (answers.lines().count(), backends.len());
    anyhow::ensure!(
        answered == 40 && shared <= 10,
        "{answered} answers from {shared} backends"
    );
    println!("    40 clients at once were served by {shared} connections");
    say("another primary, while 20 clients of the pooler write");
    let load = Load::begin(sql, &uri, 20, Duration::from_millis(50)).await?;
    let switchover = Action::Switchover(Switchover {
        to: successor(namespace).await?,
    });
    namespace.ask(DATABASE, "demo-pooled-move", switchover).await?;
    let completed = namespace.wait_operation("demo-pooled-move", OperationPhase::Completed, BOUND);
    watched(namespace, completed).await?;
    watched(namespace, namespace.wait_ready(DATABASE, BOUND)).await?;
    let felt = load.end().await?;
    anyhow::ensure!((felt.cut_off, felt.refused) == (0, 0), "{felt}");
    println!("    {felt}");
    summary.push(format!(
        "pooler made: Ready after {:.1} s, 40 clients shared {shared} connections; a switchover cut off none of 20 clients, the longest \
         transaction took {:.1} s",
        time.as_secs_f64(),
        felt.longest.as_secs_f64()
    ));
    Ok(())
}

/// Makes a user that may read the table, and shows that it may do no more.
async fn declare_user(namespace: &Namespace, sql: &SqlClient, summary: &mut Vec<String>) -> Result<()> {
    say("a DatabaseUser that may read all tables, with a password of its own");
    let reader = json!({"database": "app", "permissions": ["SELECT"]});
    namespace.declare_user(DATABASE, "demo-reader", reader).await?;
    let (user, time) = namespace.wait_user("demo-reader", DeclaredPhase::Ready, BOUND).await?;
    let status = user.status.unwrap_or_default();
    let uri = namespace
        .secret_text(&status.secret_name.context("a Secret")?, "uri")
        .await?;
    let rows = sql.sql_as(&uri, "SELECT count(*) FROM visits").await?;
    let refused = sql.sql_as(&uri, "DELETE FROM visits").await;
    let why = refused.map_or_else(|error| format!("{error:#}"), |_| String::new());
    anyhow::ensure!(why.contains("permission denied"), "it could delete rows: {why}");
    println!("    it reads {rows} rows, and may delete none");
    summary.push(format!(
        "user made: Ready after {:.1} s, reads {rows} rows, may delete none",
        time.as_secs_f64()
    ));
    Ok(())
}

/// An instance that is not the primary.
async fn successor(namespace: &Namespace) -> Result<String> {
    let status = namespace.get(DATABASE).await?.status.unwrap_or_default();
    let other = match status.current_primary.as_deref() {
        Some("demo-1") => "demo-2",
        _ => "demo-1",
    };
    Ok(other.to_owned())
}

async fn change(namespace: &Namespace, summary: &mut Vec<String>) -> Result<()> {
    say("changing a parameter that needs a restart: standbys first, the primary last");
    namespace
        .change(
            DATABASE,
            json!({"postgres": {"parameters": {"max_connections": "150"}}}),
        )
        .await?;
    let (_, time) = watched(namespace, namespace.wait_ready(DATABASE, BOUND)).await?;
    summary.push(format!(
        "max_connections changed on all instances: {:.1} s",
        time.as_secs_f64()
    ));
    Ok(())
}

/// Asks for another primary, and for a restart of all instances; returns how many rows were acknowledged meanwhile.
async fn operate(namespace: &Namespace, sql: &SqlClient, summary: &mut Vec<String>) -> Result<u32> {
    let to = successor(namespace).await?;
    say(&format!(
        "asking for {to} as the primary, by a ClusteredDatabaseOperation"
    ));
    let switchover = Action::Switchover(Switchover { to });
    let mut acknowledged = operation(namespace, sql, "demo-move", switchover, summary).await?;
    say("asking for other pods of all instances, by another one: standbys first, the primary last");
    let restart = Action::Restart(Restart {});
    acknowledged += operation(namespace, sql, "demo-restart", restart, summary).await?;
    Ok(acknowledged)
}

/// Makes an operation that moves the primary, while rows are written, and waits for its end.
async fn operation(
    namespace: &Namespace,
    sql: &SqlClient,
    name: &str,
    action: Action,
    summary: &mut Vec<String>,
) -> Result<u32> {
    let before = namespace.holder(DATABASE).await?;
    let (what, start) = (action.name(), Instant::now());
    namespace.ask(DATABASE, name, action).await?;
    let (acknowledged, outage) = write_until_new_holder(namespace, sql, before.as_deref()).await?;
    let completed = namespace.wait_operation(name, OperationPhase::Completed, BOUND);
    let message = watched(namespace, completed).await?;
    println!("    operation {name} is Completed: {message}");
    let time = start.elapsed();
    watched(namespace, namespace.wait_ready(DATABASE, BOUND)).await?;
    summary.push(format!(
        "{what} by an operation: {:.1} s, longest time without a write {:.1} s",
        time.as_secs_f64(),
        outage.as_secs_f64()
    ));
    Ok(acknowledged)
}

async fn kill_primary(namespace: &Namespace, sql: &SqlClient, before_it: u32, summary: &mut Vec<String>) -> Result<()> {
    let database = namespace.get(DATABASE).await?;
    let status = database.status.unwrap_or_default();
    let primary = status.current_primary.context("a Ready database has a primary")?;
    say(&format!("killing the primary: deleting pod {primary} without grace"));
    let before = namespace.holder(DATABASE).await?;
    let pods: Api<Pod> = namespace.api();
    pods.delete(&primary, &DeleteParams::default().grace_period(0)).await?;
    let start = Instant::now();
    let (acknowledged, outage) = write_until_new_holder(namespace, sql, before.as_deref()).await?;
    let (database, _) = watched(namespace, namespace.wait_ready(DATABASE, BOUND)).await?;
    println!("{}", table(&database));
    let rows = sql.sql("SELECT count(*) FROM visits").await?;
    let expected = before_it + acknowledged;
    summary.push(format!(
        "primary killed: longest time without a write {:.1} s, Ready after {:.1} s, {rows} rows there ({expected} acknowledged)",
        outage.as_secs_f64(),
        start.elapsed().as_secs_f64()
    ));
    // A write that was under way when the primary died may be there without having been acknowledged.
    anyhow::ensure!(
        rows.parse::<u32>()? >= expected,
        "{rows} rows, but {expected} were acknowledged"
    );
    Ok(())
}

/// Writes row after row until the lease has another holder than `before` and a row was taken since. Returns how many rows
/// were acknowledged, and the longest time between two.
async fn write_until_new_holder(
    namespace: &Namespace,
    sql: &SqlClient,
    before: Option<&str>,
) -> Result<(u32, Duration)> {
    let (start, mut last) = (Instant::now(), Instant::now());
    let (mut acknowledged, mut longest) = (0, Duration::ZERO);
    loop {
        anyhow::ensure!(start.elapsed() < BOUND, "nobody else has taken the lease");
        let holder = namespace.holder(DATABASE).await?;
        let held = holder.is_some() && holder.as_deref() != before;
        match sql.try_sql("INSERT INTO visits DEFAULT VALUES").await {
            Ok(_) => {
                acknowledged += 1;
                longest = longest.max(last.elapsed());
                last = Instant::now();
                if held {
                    return Ok((acknowledged, longest));
                }
            }
            Err(error) if start.elapsed() > BOUND => return Err(error).context("write again"),
            Err(_) => {}
        }
    }
}

/// Deletes the database and makes it again from what that leaves.
async fn bring_back(namespace: &Namespace, sql: &SqlClient, summary: &mut Vec<String>) -> Result<()> {
    say("deleting the database by accident, and bringing it back");
    const COUNT: &str = "SELECT count(*) FROM visits";
    let before = sql.sql(COUNT).await?;
    let retain = json!({"storage": {"retentionPolicy": {"whenDeleted": "Retain"}}});
    namespace.change(DATABASE, retain).await?;
    let spec = namespace.get(DATABASE).await?.spec;
    let databases = namespace.api::<ClusteredDatabase>();
    databases.delete(DATABASE, &DeleteParams::default()).await?;
    namespace.wait_gone(DATABASE, BOUND).await?;
    let mut spec = serde_json::to_value(&spec).context("write the spec")?;
    spec["bootstrap"]["volumes"] = json!({"adopt": "Newest"});
    namespace.create(DATABASE, spec).await?;
    let (_, time) = watched(namespace, namespace.wait_ready(DATABASE, BOUND)).await?;
    let after = sql.sql(COUNT).await?;
    anyhow::ensure!(after == before, "{after} rows, and there were {before}");
    summary.push(format!(
        "deleted and made again: Ready after {:.1} s, all {after} rows there, with the same password",
        time.as_secs_f64()
    ));
    Ok(())
}

/// Takes a backup, loses a table by a mistake, and makes another database as this one was just before.
async fn recover(
    namespace: &Namespace,
    images: &Images,
    store: &Store,
    sql: &SqlClient,
    summary: &mut Vec<String>,
) -> Result<()> {
    const COUNT: &str = "SELECT count(*) FROM visits";
    const NEW: &str = "demo-before";
    const NOW: &str = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    say("taking a backup");
    namespace.back_up(DATABASE, "demo-backup").await?;
    let (backup, time) = namespace.wait_backup("demo-backup", BOUND).await?;
    println!("    {} is in the store", backup.name);
    summary.push(format!(
        "backup: {:.1} s, {} of files, {} stored",
        time.as_secs_f64(),
        Bytes(backup.data_bytes).rounded(),
        Bytes(backup.stored_bytes).rounded()
    ));
    say("taking another one as a VolumeSnapshot, for which no file is copied");
    namespace
        .back_up_as(DATABASE, "demo-snapshot", BackupKind::Snapshot)
        .await?;
    let (backup, time) = namespace.wait_backup("demo-snapshot", BOUND).await?;
    let snapshot = backup.snapshot.context("a VolumeSnapshot")?;
    println!("    {} is VolumeSnapshot {snapshot}", backup.name);
    summary.push(format!("backup as a VolumeSnapshot: {:.1} s", time.as_secs_f64()));
    sql.sql("INSERT INTO visits DEFAULT VALUES").await?;
    let (before, at) = (sql.sql(COUNT).await?, sql.sql(NOW).await?);
    say(&format!(
        "DROP TABLE visits, by mistake, and another database as this one was at {at}"
    ));
    sql.sql("DROP TABLE visits").await?;
    close_segment(namespace, DATABASE).await?;
    let uid = namespace.get(DATABASE).await?.metadata.uid.unwrap_or_default();
    let folder = format!("{DATABASE}-{}", uid.get(..8).context("a UID")?);
    let mut spec = small(1);
    spec["bootstrap"]["recovery"] = json!({"from": {"cluster": folder, "store": store.spec()}, "target": {"time": at}});
    namespace.create(NEW, spec).await?;
    let (_, time) = namespace.wait_ready(NEW, BOUND).await?;
    let recovered = SqlClient::start(namespace, NEW, &images.postgres).await?;
    let rows = recovered.sql(COUNT).await?;
    anyhow::ensure!(rows == before, "{rows} rows, and there were {before}");
    summary.push(format!(
        "table dropped, and recovered to the second before: Ready after {:.1} s, all {rows} rows there",
        time.as_secs_f64()
    ));
    namespace
        .api::<ClusteredDatabase>()
        .delete(NEW, &DeleteParams::default())
        .await?;
    namespace.wait_gone(NEW, BOUND).await?;

    say(&format!("{DATABASE} itself, in place, as it was at {at}"));
    let target = RecoveryTarget {
        time: Some(at.parse().context("the time")?),
        ..RecoveryTarget::default()
    };
    let in_place = Action::Recover(Recover {
        backup: None,
        target: Some(target),
        dry_run: false,
        keep_hours: None,
    });
    let begun = Instant::now();
    namespace.ask(DATABASE, "demo-in-place", in_place).await?;
    let recovered = namespace.wait_operation("demo-in-place", OperationPhase::Completed, BOUND);
    watched(namespace, recovered).await?;
    let rows = sql.sql(COUNT).await?;
    anyhow::ensure!(rows == before, "{rows} rows, and there were {before}");
    summary.push(format!(
        "recovered in place, under the same name: serves after {:.1} s, all {rows} rows there",
        begun.elapsed().as_secs_f64()
    ));
    let confirm = Action::ConfirmRecovery(ConfirmRecovery {});
    namespace.ask(DATABASE, "demo-confirm", confirm).await?;
    namespace
        .wait_operation("demo-confirm", OperationPhase::Completed, BOUND)
        .await?;
    namespace.wait_ready(DATABASE, BOUND).await?;
    Ok(())
}

async fn remove(namespace: &Namespace, summary: &mut Vec<String>) -> Result<()> {
    say("deleting the database, its volumes too");
    namespace
        .change(
            DATABASE,
            json!({"storage": {"retentionPolicy": {"whenDeleted": "Delete"}}}),
        )
        .await?;
    namespace
        .api::<ClusteredDatabase>()
        .delete(DATABASE, &DeleteParams::default())
        .await?;
    let time = namespace.wait_gone(DATABASE, BOUND).await?;
    let ((), _) = until("pods and claims to be gone", BOUND, || async {
        let left = (
            namespace.pod_uids(DATABASE).await?,
            namespace.claim_uids(DATABASE).await?,
        );
        Ok(if left.0.is_empty() && left.1.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{left:?}"))
        })
    })
    .await?;
    namespace.remove().await?;
    summary.push(format!("deleted cleanly: {:.1} s", time.as_secs_f64()));
    Ok(())
}

/// Prints every change of phase and step during `work`.
async fn watched<T>(namespace: &Namespace, work: impl Future<Output = Result<T>>) -> Result<T> {
    let start = Instant::now();
    let follow = async {
        let mut last = String::new();
        loop {
            if let Ok(database) = namespace.get(DATABASE).await {
                let now = namespace::summary(&database);
                if now != last {
                    println!("    {:5.1} s  {now}", start.elapsed().as_secs_f64());
                    last = now;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        done = work => done,
        () = follow => unreachable!("following never ends"),
    }
}

/// What `kubectl get clustereddatabase` shows.
fn table(database: &ClusteredDatabase) -> String {
    let status = database.status.clone().unwrap_or_default();
    format!(
        "    NAME  PHASE  READY  PRIMARY  VERSION\n    {DATABASE}  {}  {}    {}   {}",
        status.phase.map_or("-", api::Phase::as_str),
        status.ready,
        status.current_primary.as_deref().unwrap_or("-"),
        status.version.as_deref().unwrap_or("-"),
    )
}
