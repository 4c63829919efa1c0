//! End-to-end: a holder that cannot renew its lease stops its database in time, whatever hangs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::processes::Container;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test};
use k8s_openapi::api::core::v1::Pod;
use machine::timing::Timing;
use serde_json::json;
use testbed::{Options, POSTGRES_IMAGE, Signal, Testbed};

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);

struct Primary {
    namespace: Namespace,
    testbed: Testbed,
    sql: SqlClient,
    pod: String,
    node: String,
    container: Container,
}

async fn primary(name: &str) -> Result<Primary> {
    let testbed = Testbed::attach(Options::from_env()?.instance)?;
    let namespace = Namespace::fresh(connect_for_test().await?, name).await?;
    namespace
        .create("db", json!({"replicas": 2, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    let (database, _) = namespace.wait_ready("db", BOUND).await?;
    let pod = database
        .status
        .and_then(|status| status.current_primary)
        .context("a primary")?;
    let node = namespace
        .api::<Pod>()
        .get(&pod)
        .await?
        .spec
        .and_then(|spec| spec.node_name)
        .context("a node")?;
    let container = Container::of(&testbed, &namespace, &pod).await?;
    ensure!(!container.postgres().is_empty(), "no postgres process in {pod}");
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t VALUES (1)").await?;
    Ok(Primary {
        namespace,
        testbed,
        sql,
        pod,
        node,
        container,
    })
}

/// Time from `start` until no postgres process of the container lives.
async fn stopped(container: &Container, start: Instant) -> Result<Duration> {
    until("all of postgres to be stopped", Duration::from_secs(30), || async {
        let left = container.postgres();
        Ok(if left.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{} processes", left.len()))
        })
    })
    .await?;
    Ok(start.elapsed())
}

fn check_bound(what: &str, time: Duration) -> Result<()> {
    // What matters: no other member takes the lease before it has run out. On a quiet machine it is `fence + kill` at most.
    let bound = Timing::DEFAULT.lease.duration();
    println!(
        "{what}: all of postgres stopped after {:.2} s (bound {:.2} s)",
        time.as_secs_f64(),
        bound.as_secs_f64()
    );
    ensure!(time <= bound, "{what}: stopped only after {:.2} s", time.as_secs_f64());
    Ok(())
}

/// The primary writes again, and the earlier row is still there. A repeated write may be there twice.
async fn recovered(primary: &Primary, rows: &str) -> Result<()> {
    until("a write through the Service", BOUND, || async {
        primary
            .sql
            .try_sql("INSERT INTO t VALUES (2)")
            .await
            .map(|_| Seen::Yes(()))
    })
    .await?;
    primary.namespace.wait_ready("db", BOUND).await?;
    ensure!(
        primary.sql.sql("SELECT count(DISTINCT v) FROM t").await? == rows,
        "rows were lost"
    );
    Ok(())
}

#[tokio::test]
async fn a_primary_cut_off_fences_itself_and_returns() -> Result<()> {
    let primary = primary("e2e-fence-cut").await?;
    let start = Instant::now();
    primary.testbed.cut(&primary.node).await?;
    let fenced = stopped(&primary.container, start).await;
    primary.testbed.heal(&primary.node).await?;
    check_bound("cut off", fenced?)?;
    recovered(&primary, "2").await?;
    primary.namespace.begin_removal().await
}

#[tokio::test]
async fn the_dead_man_fences_for_a_stopped_agent() -> Result<()> {
    let primary = primary("e2e-fence-agent").await?;
    let start = Instant::now();
    primary.testbed.signal(primary.container.agent, Signal::STOP)?;
    let fenced = stopped(&primary.container, start).await;
    primary.testbed.signal(primary.container.agent, Signal::CONT)?;
    check_bound("agent stopped", fenced?)?;
    recovered(&primary, "2").await?;
    primary.namespace.begin_removal().await
}

#[tokio::test]
async fn a_killed_postmaster_is_restarted_in_place_without_the_operator() -> Result<()> {
    let primary = primary("e2e-crash").await?;
    let operator = e2e::install::scale(&primary.namespace.client, 0).await?;
    let postmaster = primary.container.postmaster()?;
    let start = Instant::now();
    primary.testbed.signal(postmaster, Signal::KILL)?;
    let written = until("a write through the Service", BOUND, || async {
        primary
            .sql
            .try_sql("INSERT INTO t VALUES (3)")
            .await
            .map(|_| Seen::Yes(()))
    })
    .await;
    let time = start.elapsed();
    e2e::install::scale(&primary.namespace.client, operator).await?;
    written?;
    println!("postmaster killed: writes again after {:.2} s", time.as_secs_f64());
    let same = Container::of(&primary.testbed, &primary.namespace, &primary.pod).await?;
    ensure!(same.agent == primary.container.agent, "the container was restarted");
    recovered(&primary, "3").await?;
    primary.namespace.begin_removal().await
}
