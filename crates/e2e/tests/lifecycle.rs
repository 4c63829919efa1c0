//! End-to-end: the life of a database, as its users change it.

mod common;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::names::Names;
use api::status::DurabilityMode;
use api::{ClusteredDatabase, ClusteredDatabaseStatus};
use e2e::namespace::summary;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test, writing};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use testbed::POSTGRES_IMAGE;

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);
/// Longest time without a write while a primary is moved or lost; the machine may be busy.
const INTERRUPTION: Duration = Duration::from_secs(20);
/// The first rows of each test of lasting rows: others are written meanwhile.
const ROWS: &str = "SELECT count(*) FROM t WHERE v BETWEEN 1 AND 100";

async fn fresh(name: &str) -> Result<Namespace> {
    Namespace::fresh(connect_for_test().await?, name).await
}

#[tokio::test]
async fn one_two_and_three_instances_come_up_and_replicate() -> Result<()> {
    let namespace = fresh("e2e-create").await?;
    for replicas in 1..=3 {
        let name = format!("db{replicas}");
        namespace
            .create(
                &name,
                json!({"replicas": replicas, "storage": {"data": {"size": "1Gi"}}}),
            )
            .await?;
    }
    for replicas in 1..=3 {
        let name = format!("db{replicas}");
        let (database, time) = namespace.wait_ready(&name, BOUND).await?;
        println!("{name}: Ready after {:.1} s", time.as_secs_f64());
        let status = database.status.context("a status")?;
        ensure!(
            status.ready == format!("{replicas}/{replicas}"),
            "ready is {}",
            status.ready
        );
        ensure!(status.system_identifier.is_some(), "no system identifier in the status");
        let sql = SqlClient::start(&namespace, &name, POSTGRES_IMAGE).await?;
        sql.sql("CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 100)")
            .await?;
        for pod in namespace.pod_uids(&name).await?.keys() {
            rows_at(&namespace, &sql, pod, "100").await?;
        }
    }
    namespace.begin_removal().await
}

async fn address_of(namespace: &Namespace, pod: &str) -> Result<String> {
    let status = namespace.api::<Pod>().get(pod).await?.status;
    status.and_then(|status| status.pod_ip).context("an address")
}

/// Makes a change during writes, and waits until it is done; no write may be lost.
async fn written_through(namespace: &Namespace, sql: &SqlClient, what: &str, change: serde_json::Value) -> Result<()> {
    let done = async {
        namespace.change("db", change).await?;
        namespace.wait_ready("db", BOUND).await
    };
    let (_, gap) = writing(sql, done).await.with_context(|| what.to_owned())?;
    println!("{what}: {:.1} s without a write", gap.as_secs_f64());
    ensure!(gap < INTERRUPTION, "{what}: {gap:?} without a write");
    Ok(())
}

/// Waits until a pod itself has `rows` of [`ROWS`].
async fn rows_at(namespace: &Namespace, sql: &SqlClient, pod: &str, rows: &str) -> Result<()> {
    until(&format!("{rows} rows on {pod}"), Duration::from_secs(30), || async {
        let address = address_of(namespace, pod).await?;
        let seen = sql.sql_at(&address, ROWS).await?;
        Ok(if seen == rows {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{seen} rows"))
        })
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn parameters_are_reloaded_or_restarted_in_place_standbys_first() -> Result<()> {
    let namespace = fresh("e2e-parameters").await?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let pods = namespace.pod_uids("db").await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    let started = sql.sql("SELECT pg_postmaster_start_time()").await?;

    namespace
        .change("db", json!({"postgres": {"parameters": {"work_mem": "7MB"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    ensure!(sql.sql("SHOW work_mem").await? == "7MB", "work_mem was not reloaded");
    ensure!(
        sql.sql("SELECT pg_postmaster_start_time()").await? == started,
        "a reload restarted the primary"
    );

    // A standby does not start with less than its primary has: standbys come first when it is raised, the primary when it is lowered.
    for connections in ["123", "90"] {
        namespace
            .change(
                "db",
                json!({"postgres": {"parameters": {"max_connections": connections}}}),
            )
            .await?;
        namespace.wait_ready("db", BOUND).await?;
        for pod in pods.keys() {
            let seen = sql
                .sql_at(&address_of(&namespace, pod).await?, "SHOW max_connections")
                .await?;
            ensure!(seen == connections, "{pod} has {seen}, and is to have {connections}");
        }
    }
    ensure!(
        namespace.pod_uids("db").await? == pods,
        "a parameter change replaced a pod"
    );

    namespace
        .change("db", json!({"postgres": {"parameters": {"work_mem": "much"}}}))
        .await?;
    until("the bad value to be explained", BOUND, || async {
        let seen = serde_json::to_string(&namespace.get("db").await?.status)?;
        Ok(if seen.contains("work_mem") {
            Seen::Yes(())
        } else {
            Seen::NotYet(seen)
        })
    })
    .await?;
    ensure!(sql.sql("SHOW work_mem").await? == "7MB", "a bad value was taken up");
    namespace
        .change("db", json!({"postgres": {"parameters": {"work_mem": "8MB"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    ensure!(
        sql.sql("SHOW work_mem").await? == "8MB",
        "the mended value was not taken up"
    );
    namespace.begin_removal().await
}

#[tokio::test]
async fn scales_and_changes_its_image_one_pod_at_a_time() -> Result<()> {
    let namespace = fresh("e2e-scale").await?;
    let spec =
        json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}, "retentionPolicy": {"whenScaled": "Delete"}}});
    namespace.create("db", spec).await?;
    namespace.wait_ready("db", BOUND).await?;
    let three = namespace.pod_uids("db").await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 100)")
        .await?;

    namespace.change("db", json!({"replicas": 5})).await?;
    namespace.wait_ready("db", BOUND).await?;
    rows_at(&namespace, &sql, "db-4", "100").await?;
    namespace.change("db", json!({"primary": {"prefer": "db-4"}})).await?;
    says(&namespace, "db-4 as the primary", |status| {
        status.current_primary.as_deref() == Some("db-4")
    })
    .await?;
    let fewer = json!({"replicas": 3, "primary": {"prefer": null}});
    written_through(&namespace, &sql, "the primary is one of those that go", fewer).await?;
    until("the claims of the removed instances to go", BOUND, || async {
        let claims = namespace.claim_uids("db").await?;
        Ok(if claims.len() == 3 {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{claims:?}"))
        })
    })
    .await?;
    ensure!(
        namespace.pod_uids("db").await? == three,
        "scaling replaced a pod that stays"
    );

    fewer_instances_than_the_promise_needs_are_refused(&namespace).await?;
    an_image_that_cannot_be_had_costs_one_standby(&namespace, &sql).await?;
    let three = namespace.pod_uids("db").await?;

    // Another name for the same image is a new pod template.
    let image = format!("docker.io/{POSTGRES_IMAGE}");
    let other = if POSTGRES_IMAGE.starts_with("localhost/") {
        POSTGRES_IMAGE.to_owned()
    } else {
        image
    };
    let annotations =
        json!({"pods": {"metadata": {"annotations": {"example.com/rolled": "yes"}}}, "postgres": {"image": other}});
    namespace.change("db", json!({"paused": true})).await?;
    let paused = namespace.change("db", annotations).await?.metadata.generation;
    says(&namespace, "that it is paused", |status| {
        status.observed_generation == paused && waits_for(status, "spec.paused to be false")
    })
    .await?;
    ensure!(
        namespace.pod_uids("db").await? == three,
        "a paused database was changed"
    );
    written_through(&namespace, &sql, "another image", json!({"paused": false})).await?;
    let rolled = namespace.pod_uids("db").await?;
    ensure!(
        rolled.iter().all(|(name, uid)| three.get(name) != Some(uid)),
        "a pod was not replaced: {rolled:?}"
    );
    ensure!(sql.sql(ROWS).await? == "100", "rows were lost in the rollout");
    volumes_that_are_deleted_are_filled_again(&namespace, &sql).await?;
    namespace.begin_removal().await
}

/// As `kubectl scale` asks for it. The promise of the creation has outlived five instances.
async fn fewer_instances_than_the_promise_needs_are_refused(namespace: &Namespace) -> Result<()> {
    let status = namespace.get("db").await?.status.unwrap_or_default();
    let promise = status.durability.context("a promise")?;
    ensure!(
        (promise.mode, promise.synchronous_standbys) == (DurabilityMode::Required, 1),
        "the promise changed with the instances: {promise:?}"
    );
    let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
    let api = namespace.api::<ClusteredDatabase>();
    let Err(refused) = api.patch_scale("db", &PatchParams::default(), &scale).await else {
        bail!("fewer instances than the promise needs are accepted");
    };
    ensure!(
        refused
            .to_string()
            .contains("keep more instances; or lower the promise"),
        "{refused}"
    );
    Ok(())
}

/// Waits until the status is as `is` wants it.
async fn says(namespace: &Namespace, what: &str, is: impl Fn(&ClusteredDatabaseStatus) -> bool) -> Result<()> {
    until(what, BOUND, || async {
        let database = namespace.get("db").await?;
        let status = database.status.clone().unwrap_or_default();
        Ok(if is(&status) {
            Seen::Yes(())
        } else {
            Seen::NotYet(summary(&database))
        })
    })
    .await?;
    Ok(())
}

fn waits_for(status: &ClusteredDatabaseStatus, what: &str) -> bool {
    let waiting = status.waiting.as_ref();
    waiting.is_some_and(|waiting| waiting.what.contains(what) || waiting.who_can_end_it.contains(what))
}

/// A rolling change to an image that cannot be pulled: it stops with the first standby and reports its error, and the spec of
/// before frees it.
async fn an_image_that_cannot_be_had_costs_one_standby(namespace: &Namespace, sql: &SqlClient) -> Result<()> {
    let before = namespace.pod_uids("db").await?;
    let primary = namespace.get("db").await?.status.and_then(|s| s.current_primary);
    let primary = primary.context("a primary")?;
    let stops = async {
        let image = json!({"postgres": {"image": "localhost/no/such:image"}});
        namespace.change("db", image).await?;
        says(namespace, "the error of its pod", |status| {
            let failed = status.conditions.iter().any(|one| one.message.contains("no/such"));
            failed || waits_for(status, "no/such")
        })
        .await
    };
    let ((), gap) = writing(sql, stops).await?;
    ensure!(gap < INTERRUPTION, "a standby's image: {gap:?} without a write");
    written_through(
        namespace,
        sql,
        "the image of before",
        json!({"postgres": {"image": null}}),
    )
    .await?;
    let after = namespace.pod_uids("db").await?;
    let replaced: Vec<_> = after.iter().filter(|(pod, uid)| before[*pod] != **uid).collect();
    ensure!(
        replaced.len() == 1 && *replaced[0].0 != primary,
        "not one standby was replaced: {replaced:?}"
    );
    Ok(())
}

/// A claim and its pod are deleted, a standby's and then the primary's: the data is copied to a new volume.
async fn volumes_that_are_deleted_are_filled_again(namespace: &Namespace, sql: &SqlClient) -> Result<()> {
    for role in ["replica", "primary"] {
        let primary = namespace.get("db").await?.status.and_then(|s| s.current_primary);
        let primary = primary.context("a primary")?;
        let before = namespace.claim_uids("db").await?;
        let pods = namespace.pod_uids("db").await?;
        let is_its = |pod: &&String| (**pod == primary) == (role == "primary");
        let (ordinal, pod) = (0..).zip(pods.keys()).find(|(_, pod)| is_its(pod)).context("a pod")?;
        let claim = Names::new("db").data_claim(0, ordinal);
        let filled = async {
            let now = DeleteParams::default();
            namespace.api::<PersistentVolumeClaim>().delete(&claim, &now).await?;
            namespace.api::<Pod>().delete(pod, &now).await?;
            until("another volume", BOUND, || async {
                let claims = namespace.claim_uids("db").await?;
                let is_new = claims.get(&claim).is_some_and(|uid| *uid != before[&claim]);
                Ok(if is_new {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(format!("{claims:?}"))
                })
            })
            .await?;
            namespace.wait_ready("db", BOUND).await
        };
        let (_, gap) = writing(sql, filled).await?;
        ensure!(gap < INTERRUPTION, "the {role}'s volume: {gap:?} without a write");
        rows_at(namespace, sql, pod, "100").await?;
        let kept = namespace.claim_uids("db").await?;
        ensure!(
            kept.iter().all(|(name, uid)| *name == claim || before[name] == *uid),
            "another volume was replaced: {kept:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_only_instance_that_is_killed_comes_back_with_every_row() -> Result<()> {
    let namespace = fresh("e2e-kill").await?;
    namespace
        .create("db", json!({"replicas": 1, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    let (database, _) = namespace.wait_ready("db", BOUND).await?;
    let primary = database
        .status
        .and_then(|status| status.current_primary)
        .context("a primary")?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 100)")
        .await?;
    for (kind, parameters) in [
        ("graceful", DeleteParams::default()),
        ("forced", DeleteParams::default().grace_period(0)),
    ] {
        let pod = namespace.api::<Pod>().get(&primary).await?;
        namespace.api::<Pod>().delete(&primary, &parameters).await?;
        until("the pod to be replaced", BOUND, || async {
            let now = namespace.api::<Pod>().get(&primary).await?.uid();
            Ok(if now == pod.uid() {
                Seen::NotYet("the old pod".to_owned())
            } else {
                Seen::Yes(())
            })
        })
        .await?;
        namespace.wait_held_by_new_pod("db", &primary, BOUND).await?;
        let ((), outage) = until("a write", BOUND, || async {
            sql.try_sql("INSERT INTO t VALUES (0)").await.map(|_| Seen::Yes(()))
        })
        .await?;
        println!(
            "{kind} deletion: writes again {:.1} s after the new pod took the lease",
            outage.as_secs_f64()
        );
        namespace.wait_ready("db", BOUND).await?;
    }
    ensure!(
        sql.sql("SELECT count(DISTINCT v) FROM t").await? == "101",
        "rows were lost"
    );
    namespace.begin_removal().await
}

#[tokio::test]
async fn deletion_keeps_or_removes_volumes_as_the_spec_says() -> Result<()> {
    let namespace = fresh("e2e-delete").await?;
    let databases = namespace.api::<ClusteredDatabase>();
    namespace
        .create("db", json!({"replicas": 2, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    let (made, _) = namespace.wait_ready("db", BOUND).await?;
    let claims = namespace.claim_uids("db").await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    sql.sql("INSERT INTO t SELECT generate_series(1, 1000)").await?;
    databases.delete("db", &DeleteParams::default()).await?;
    println!(
        "deleted with Retain after {:.1} s",
        namespace.wait_gone("db", BOUND).await?.as_secs_f64()
    );
    ensure!(namespace.claim_uids("db").await? == claims, "retained claims changed");

    // A new database of the same name must not silently mix with the old one's volumes.
    namespace
        .create("db", json!({"replicas": 2, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    let (refused, _) = namespace.wait_phase("db", api::Phase::Failed, BOUND).await?;
    ensure!(
        summary(&refused).contains("spec.bootstrap.volumes.adopt"),
        "the refusal does not name the way back: {}",
        summary(&refused)
    );
    ensure!(namespace.claim_uids("db").await? == claims, "retained claims changed");

    // The way back that it names: the same data, and the password that the client has had all the time.
    namespace
        .change("db", json!({"bootstrap": {"volumes": {"adopt": "Newest"}}}))
        .await?;
    let (adopted, took) = namespace.wait_ready("db", BOUND).await?;
    println!("the volumes of before: Ready after {:.1} s", took.as_secs_f64());
    let identifier = |database: &ClusteredDatabase| database.status.as_ref()?.system_identifier.clone();
    ensure!(
        identifier(&adopted).is_some() && identifier(&adopted) == identifier(&made),
        "another database"
    );
    ensure!(namespace.claim_uids("db").await? == claims, "retained claims changed");
    ensure!(sql.sql("SELECT count(*) FROM t").await? == "1000", "rows were lost");
    sql.sql("INSERT INTO t VALUES (0)").await?;
    let changed = json!({"storage": {"retentionPolicy": {"whenDeleted": "Delete"}}});
    namespace.change("db", changed).await?;
    databases.delete("db", &DeleteParams::default()).await?;
    namespace.wait_gone("db", BOUND).await?;

    namespace
        .create(
            "new",
            json!({"replicas": 2, "storage": {"data": {"size": "1Gi"}, "retentionPolicy": {"whenDeleted": "Delete"}}}),
        )
        .await?;
    let (database, _) = namespace.wait_ready("new", BOUND).await?;
    let uid = database.uid().context("a UID")?;
    let there = common::left_of(&namespace, "new", &uid).await?;
    ensure!(there.len() >= 20, "too little belongs to a database: {there:?}");
    databases.delete("new", &DeleteParams::default()).await?;
    namespace.wait_gone("new", BOUND).await?;
    until("everything to be gone", BOUND, || async {
        let left = common::left_of(&namespace, "new", &uid).await?;
        Ok(if left.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(left.join(", "))
        })
    })
    .await?;
    namespace.begin_removal().await
}

#[tokio::test]
async fn a_namespace_with_a_ready_database_can_be_deleted() -> Result<()> {
    let namespace = fresh("e2e-namespace").await?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let start = std::time::Instant::now();
    // An error if it is still there after two minutes.
    namespace.remove().await?;
    println!("the namespace was gone after {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
