//! End-to-end: databases that the user stops, whole (`spec.hibernated`) or in part (`spec.fenced`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::{ClusteredDatabase, Phase};
use e2e::namespace::summary;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test, writing};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::{DeleteParams, ObjectList};
use serde_json::json;
use testbed::{Options, POSTGRES_IMAGE, Testbed};

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);
const ROWS: &str = "CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 100)";

/// A database of three with 100 rows, and a client.
async fn with_rows(name: &str) -> Result<(Namespace, SqlClient)> {
    let namespace = Namespace::fresh(connect_for_test().await?, name).await?;
    let spec =
        json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}, "retentionPolicy": {"whenDeleted": "Delete"}}});
    namespace.create("db", spec).await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql(ROWS).await?;
    Ok((namespace, sql))
}

async fn hibernated(namespace: &Namespace) -> Result<ClusteredDatabase> {
    namespace.change("db", json!({"hibernated": true})).await?;
    let (database, time) = namespace.wait_phase("db", Phase::Hibernated, BOUND).await?;
    println!("hibernated after {:.1} s", time.as_secs_f64());
    ensure!(namespace.pod_uids("db").await?.is_empty(), "a pod is left");
    let status = database.status.clone().context("a status")?;
    ensure!(
        status.ready == "0/3" && status.current_primary.is_none(),
        "{}",
        summary(&database)
    );
    Ok(database)
}

async fn woken(namespace: &Namespace) -> Result<ClusteredDatabase> {
    namespace.change("db", json!({"hibernated": false})).await?;
    let (database, time) = namespace.wait_ready("db", BOUND).await?;
    println!("woken after {:.1} s", time.as_secs_f64());
    Ok(database)
}

/// The write goes through the Service: after a change of the primary it may take the proxies a moment.
async fn writes(sql: &SqlClient) -> Result<()> {
    until("a write through the Service", BOUND, || async {
        let wrote = sql.try_sql("INSERT INTO t VALUES (0)").await;
        Ok(wrote.map_or_else(|error| Seen::NotYet(format!("{error:#}")), |_| Seen::Yes(())))
    })
    .await?;
    Ok(())
}

async fn rows(sql: &SqlClient) -> Result<String> {
    sql.sql("SELECT count(*) FROM t WHERE v BETWEEN 1 AND 100").await
}

#[tokio::test]
async fn a_database_hibernates_and_wakes_with_its_rows() -> Result<()> {
    let (namespace, sql) = with_rows("e2e-hibernate").await?;
    let before = namespace.get("db").await?.status.context("a status")?;
    let claims = namespace.claim_uids("db").await?;
    let stopped = hibernated(&namespace).await?.status.context("a status")?;
    ensure!(
        stopped.system_identifier == before.system_identifier,
        "another system identifier"
    );
    ensure!(namespace.holder("db").await?.is_none(), "the lease was not released");
    ensure!(namespace.claim_uids("db").await? == claims, "a claim has changed");
    for service in ["db-rw", "db-ro", "db-r", "db-pods"] {
        namespace.api::<Service>().get(service).await?;
    }
    namespace.api::<Secret>().get("db-app").await?;

    // Changes made meanwhile take effect when it wakes.
    namespace
        .change("db", json!({"postgres": {"parameters": {"work_mem": "7MB"}}}))
        .await?;
    let woken = woken(&namespace).await?.status.context("a status")?;
    ensure!(woken.system_identifier == before.system_identifier, "another database");
    ensure!(namespace.claim_uids("db").await? == claims, "a claim has changed");
    writes(&sql).await?;
    ensure!(rows(&sql).await? == "100", "rows were lost");
    ensure!(sql.sql("SHOW work_mem").await? == "7MB", "the change was not taken up");
    let failovers = woken.history.iter().filter(|change| change.to == Phase::FailingOver);
    ensure!(failovers.count() == 0, "a failover: {:?}", woken.history);

    hibernated(&namespace).await?;
    let databases = namespace.api::<ClusteredDatabase>();
    databases.delete("db", &DeleteParams::default()).await?;
    namespace.wait_gone("db", BOUND).await?;
    namespace.begin_removal().await
}

#[tokio::test]
async fn a_database_with_a_frozen_instance_hibernates() -> Result<()> {
    let (namespace, sql) = with_rows("e2e-hibernate-frozen").await?;
    let testbed = Testbed::attach(Options::from_env()?.instance)?;
    let claims = namespace.claim_uids("db").await?;
    let primary = namespace
        .get("db")
        .await?
        .status
        .and_then(|status| status.current_primary);
    let primary = primary.context("a primary")?;
    testbed.freeze(&namespace.name, &primary).await?;
    namespace.change("db", json!({"hibernated": true})).await?;
    // A frozen process cannot be killed either: the operator waits for its pod, and the status says so; the others are gone.
    until("only the frozen pod to be left", BOUND, || async {
        let database = namespace.get("db").await?;
        let waiting = database.status.clone().unwrap_or_default().waiting;
        let said = waiting.is_some_and(|waiting| waiting.what == format!("{primary} to be gone"));
        let pods = namespace.pod_uids("db").await?;
        Ok(if said && pods.keys().eq([&primary]) {
            Seen::Yes(())
        } else {
            Seen::NotYet(summary(&database))
        })
    })
    .await?;
    testbed.thaw(&namespace.name, &primary).await?;
    hibernated(&namespace).await?;
    woken(&namespace).await?;
    writes(&sql).await?;
    ensure!(rows(&sql).await? == "100", "rows were lost");
    ensure!(namespace.claim_uids("db").await? == claims, "a claim has changed");
    namespace.begin_removal().await
}

/// Addresses of the pods that are ready.
fn ready(pods: &ObjectList<Pod>) -> Vec<String> {
    let is_ready = |pod: &&Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|found| found.type_ == "Ready" && found.status == "True"))
    };
    let names = pods.items.iter().filter(is_ready);
    names.filter_map(|pod| pod.metadata.name.clone()).collect()
}

#[tokio::test]
async fn a_fenced_primary_is_replaced_and_its_pod_and_volume_stay() -> Result<()> {
    let (namespace, sql) = with_rows("e2e-fenced").await?;
    let (pods, claims) = (namespace.pod_uids("db").await?, namespace.claim_uids("db").await?);
    let primary = namespace
        .get("db")
        .await?
        .status
        .and_then(|status| status.current_primary);
    let primary = primary.context("a primary")?;
    namespace.change("db", json!({"fenced": [primary]})).await?;
    let said = until("the fence to be said", BOUND, || async {
        let database = namespace.get("db").await?;
        let status = database.status.clone().unwrap_or_default();
        let replaced = status.current_primary.is_some_and(|now| now != primary);
        let said = status.step.as_deref() == Some("Fenced");
        Ok(if replaced && said && status.ready == "2/3" {
            Seen::Yes(())
        } else {
            Seen::NotYet(summary(&database))
        })
    });
    let (((), time), gap) = writing(&sql, said).await?;
    let (time, gap) = (time.as_secs_f64(), gap.as_secs_f64());
    println!("replaced after {time:.1} s, {gap:.1} s without a write");
    writes(&sql).await?;
    ensure!(rows(&sql).await? == "100", "rows were lost");
    // The kubelet asks each second.
    until("the fenced instance to be unready", BOUND, || async {
        let found = namespace.api::<Pod>().list(&e2e::namespace::members("db")).await?;
        Ok(match ready(&found) {
            names if names.contains(&primary) => Seen::NotYet(format!("ready: {}", names.join(", "))),
            _ => Seen::Yes(()),
        })
    })
    .await?;
    let conditions = namespace.get("db").await?.status.unwrap_or_default().conditions;
    let said = conditions
        .iter()
        .find(|found| found.type_ == "Ready")
        .context("a condition")?;
    ensure!(said.reason == "Fenced" && said.message.contains(&primary), "{said:?}");

    let all = json!({"fenced": pods.keys().collect::<Vec<_>>()});
    namespace.change("db", all).await?;
    until("the database to be down as the user ordered", BOUND, || async {
        let database = namespace.get("db").await?;
        let status = database.status.clone().unwrap_or_default();
        let who = status.waiting.map(|waiting| waiting.who_can_end_it).unwrap_or_default();
        Ok(if status.ready == "0/3" && who.contains("spec.fenced") {
            Seen::Yes(())
        } else {
            Seen::NotYet(summary(&database))
        })
    })
    .await?;

    namespace.change("db", json!({"fenced": []})).await?;
    namespace.wait_ready("db", BOUND).await?;
    writes(&sql).await?;
    ensure!(rows(&sql).await? == "100", "rows were lost");
    ensure!(namespace.pod_uids("db").await? == pods, "a pod was replaced");
    ensure!(namespace.claim_uids("db").await? == claims, "a claim has changed");
    namespace.begin_removal().await
}
