//! End-to-end: poolers. PgBouncer in front of a cluster, with the real program.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::declared::DeclaredPhase;
use api::operation::{Action, OperationPhase, Switchover};
use api::pooler::Pooler;
use e2e::client::exec;
use e2e::load::Load;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::POSTGRES_IMAGE;

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);

async fn wait(namespace: &Namespace, name: &str, phase: DeclaredPhase) -> Result<(Pooler, Duration)> {
    namespace
        .wait_declared(name, phase, BOUND, |pooler: &Pooler| {
            Some(&pooler.status.as_ref()?.declared)
        })
        .await
}

async fn make(namespace: &Namespace, name: &str, spec: Value) -> Result<Pooler> {
    let mut spec = spec;
    spec["clusterRef"] = json!({"name": "db"});
    let pooler = Pooler::new(name, serde_json::from_value(spec).context("read the spec")?);
    let made = namespace.api().create(&PostParams::default(), &pooler).await;
    made.with_context(|| format!("create pooler {name}"))
}

async fn change(namespace: &Namespace, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": spec }));
    let poolers = namespace.api::<Pooler>();
    let changed = poolers.patch(name, &PatchParams::default(), &patch).await;
    changed.map(drop).with_context(|| format!("change pooler {name}"))
}

/// UIDs and restarts of the pods of a pooler.
async fn pods(namespace: &Namespace, name: &str) -> Result<BTreeMap<String, (String, i32)>> {
    let of_pooler = ListParams::default().labels(&format!("clustereddatabase.io/pooler={name}"));
    let pods = namespace.api::<Pod>().list(&of_pooler).await?;
    let restarts = |pod: &Pod| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        statuses.map(|status| status.restart_count).sum()
    };
    let found = pods
        .into_iter()
        .map(|pod| (pod.name_any(), (pod.uid().unwrap_or_default(), restarts(&pod))));
    Ok(found.collect())
}

/// Runs a statement until it succeeds.
async fn run(sql: &SqlClient, uri: &str, statement: &str) -> Result<String> {
    let (said, _) = until(&format!("{statement} to be run"), BOUND, || async {
        let said = sql.sql_as(uri, statement).await;
        Ok(said.map_or_else(|error| Seen::NotYet(format!("{error:#}")), Seen::Yes))
    })
    .await?;
    Ok(said)
}

async fn is_refused(sql: &SqlClient, uri: &str, words: &str) -> Result<()> {
    match sql.sql_as(uri, "SELECT 1").await {
        Ok(_) => anyhow::bail!("{uri} is let in"),
        Err(error) => ensure!(format!("{error:#}").contains(words), "{error:#}"),
    }
    Ok(())
}

/// A transaction may take this long while the primary moves, on a busy machine: less than the longest pause, which a primary that serves
/// ends. docs/measurements.md has the times of a quiet one.
const LONGEST: Duration = Duration::from_secs(6);

async fn switch_over(namespace: &Namespace, operation: &str) -> Result<()> {
    let holder = namespace.holder("db").await?.context("a primary")?;
    let mut others = ["db-0", "db-1"].into_iter().filter(|pod| !holder.starts_with(pod));
    let to = others.next().context("another")?.to_owned();
    namespace
        .ask("db", operation, Action::Switchover(Switchover { to }))
        .await?;
    namespace
        .wait_operation(operation, OperationPhase::Completed, BOUND)
        .await?;
    namespace.wait_ready("db", BOUND).await.map(drop)
}

/// Clients write while `change` is made, and nobody is cut off.
async fn under_load(sql: &SqlClient, uri: &str, what: &str, change: impl Future<Output = Result<()>>) -> Result<()> {
    let load = Load::begin(sql, uri, 20, Duration::from_millis(20)).await?;
    change.await?;
    let felt = load.end().await?;
    println!("{what}: {felt}");
    ensure!(
        (felt.cut_off, felt.refused) == (0, 0) && felt.longest < LONGEST,
        "{what}: {felt}"
    );
    Ok(())
}

#[tokio::test]
async fn a_pooler_serves_through_a_move_of_the_primary_and_is_changed_without_a_restart() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-pooler").await?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    // It waits for its cluster, however long that takes.
    make(&namespace, "pool", json!({"processes": 2})).await?;
    make(&namespace, "standbys", json!({"role": "ReadOnly", "replicas": 1})).await?;
    namespace.wait_ready("db", BOUND).await?;
    let (_, took) = wait(&namespace, "pool", DeclaredPhase::Ready).await?;
    println!("a pooler is Ready {:.1} s after its cluster", took.as_secs_f64());
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (n int)").await?;

    // With the password of PostgreSQL, and the server's certificate is one of the cluster's authority.
    let direct = namespace.secret_text("db-app", "uri").await?;
    let pooled = direct.replace("@db-rw.", "@pool.");
    let authority = namespace.secret_text("db-app", "ca.crt").await?;
    sql.run(&["sh", "-c", "printf %s \"$1\" > /tmp/ca.crt", "sh", &authority])
        .await?;
    let verified = format!("{pooled}?sslmode=verify-full&sslrootcert=/tmp/ca.crt");
    ensure!(run(&sql, &verified, "SELECT current_user").await? == "app");
    run(&sql, &verified, "INSERT INTO t VALUES (1)").await?;
    is_refused(&sql, &format!("{pooled}?sslmode=disable"), "SSL required").await?;
    is_refused(
        &sql,
        &pooled.replacen("app:", "app:wrong", 1),
        "SASL authentication failed",
    )
    .await?;
    for (role, words) in [
        ("postgres", "no such user"),
        ("cdb_pooler", "SASL authentication failed"),
    ] {
        is_refused(&sql, &pooled.replacen("//app:", &format!("//{role}:"), 1), words).await?;
    }

    // Prepared statements outlive the transaction, on whatever connection the next one runs; and a statement can be cancelled,
    // whichever process of the pod the request comes to.
    let script = "echo 'SELECT count(*) FROM t;' > /tmp/s.sql; pgbench -n -M prepared -c 12 -j 2 -t 50 -f /tmp/s.sql \"$1\" 2>&1";
    let said = sql.run(&["sh", "-c", script, "sh", &pooled]).await?;
    ensure!(
        said.contains("number of transactions actually processed: 600/600"),
        "{said}"
    );
    for _ in 0..6 {
        // Connecting may take a while.
        let mut said = String::new();
        for seconds in ["1", "5", "15"] {
            let script = "timeout -s INT $2 psql \"$1\" -c 'SELECT pg_sleep(20)' 2>&1; true";
            said = sql.run(&["sh", "-c", script, "sh", &pooled, seconds]).await?;
            if !said.is_empty() {
                break;
            }
        }
        ensure!(said.contains("canceling statement due to user request"), "{said:?}");
    }

    // Standbys are read only.
    wait(&namespace, "standbys", DeclaredPhase::Ready).await?;
    let standbys = direct.replace("@db-rw.", "@standbys.");
    ensure!(run(&sql, &standbys, "SELECT pg_is_in_recovery()").await? == "t");

    // The primary moves, and is restarted for a setting. Nobody is cut off, and no pod of the pooler restarts.
    let before = pods(&namespace, "pool").await?;
    ensure!(before.len() == 2, "{before:?}");
    under_load(&sql, &pooled, "a switchover", switch_over(&namespace, "move")).await?;
    let restarts = async {
        let parameters = json!({"max_connections": "99"});
        namespace
            .change("db", json!({"postgres": {"parameters": parameters}}))
            .await?;
        namespace.wait_ready("db", BOUND).await.map(drop)
    };
    under_load(&sql, &pooled, "a restart", restarts).await?;
    ensure!(run(&sql, &pooled, "SHOW max_connections").await? == "99");

    // Limits and settings are read again.
    let limits = json!({"limits": {"poolSize": 7}, "parameters": {"server_idle_timeout": "11"}});
    change(&namespace, "pool", limits).await?;
    let pod = before.keys().next().context("a pod")?.clone();
    until("PgBouncer's file to change", BOUND, || async {
        let text = exec(&namespace, &pod, "pgbouncer", &["cat", "/cdb/run/2.ini"]).await?;
        let is_new = text.contains("default_pool_size = 3\n") && text.contains("server_idle_timeout = 11\n");
        Ok(if is_new { Seen::Yes(()) } else { Seen::NotYet(text) })
    })
    .await?;
    run(&sql, &pooled, "SELECT count(*) FROM t").await?;
    let after = pods(&namespace, "pool").await?;
    ensure!(
        before == after,
        "pods were replaced or restarted: {before:?}, then {after:?}"
    );

    // One of its pods goes while the primary moves: who is there stays there until the end of the transaction.
    let goes = async {
        let pod = before.keys().next().context("a pod")?;
        namespace.api::<Pod>().delete(pod, &DeleteParams::default()).await?;
        switch_over(&namespace, "again").await?;
        wait(&namespace, "pool", DeclaredPhase::Ready).await?;
        until("the pod to be gone", BOUND, || async {
            let there = namespace.api::<Pod>().get_opt(pod).await?;
            Ok(there.map_or(Seen::Yes(()), |_| Seen::NotYet("it is there".to_owned())))
        })
        .await?;
        Ok(())
    };
    under_load(&sql, &pooled, "a pod of the pooler and a switchover", goes).await?;

    // By its scale, as an autoscaler does.
    let poolers = namespace.api::<Pooler>();
    let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
    poolers.patch_scale("pool", &PatchParams::default(), &scale).await?;
    until("one pod to be left", BOUND, || async {
        let status = poolers.get("pool").await?.status.unwrap_or_default();
        let is_one = (status.replicas, status.ready_replicas) == (Some(1), Some(1));
        Ok(if is_one {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{status:?}"))
        })
    })
    .await?;
    run(&sql, &pooled, "SELECT 1").await?;

    // What it may not be is told.
    change(
        &namespace,
        "standbys",
        json!({"limits": {"maxServerConnections": 5_000}}),
    )
    .await?;
    let (failed, _) = wait(&namespace, "standbys", DeclaredPhase::Failed).await?;
    let message = failed
        .status
        .and_then(|status| status.declared.message)
        .unwrap_or_default();
    ensure!(message.contains("an instance of db has 91 connections"), "{message}");
    ensure!(run(&sql, &standbys, "SELECT 1").await? == "1", "it serves as before");

    // All that was made for it goes with it.
    poolers.delete("pool", &DeleteParams::default()).await?;
    until("its objects to be gone", BOUND, || async {
        let left = [
            namespace
                .api::<Deployment>()
                .get_opt("pool")
                .await?
                .map(|_| "Deployment"),
            namespace.api::<Service>().get_opt("pool").await?.map(|_| "Service"),
            namespace
                .api::<Secret>()
                .get_opt("pool-pooler")
                .await?
                .map(|_| "Secret"),
            poolers.get_opt("pool").await?.map(|_| "Pooler"),
        ];
        let left: Vec<_> = left.into_iter().flatten().collect();
        Ok(if left.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(left.join(", "))
        })
    })
    .await?;
    namespace.begin_removal().await
}
