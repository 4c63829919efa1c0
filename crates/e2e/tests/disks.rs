//! End-to-end: a primary whose disk hangs or is full is replaced, a database whose volumes are all full heals when they grow,
//! and a WAL volume is added to a running database; nothing that was acknowledged is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::availability::case::{Case, run_all};
use e2e::client::exec;
use e2e::namespace::summary;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test, writing};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use testbed::POSTGRES_IMAGE;
use tokio::time::{Instant, sleep};

/// Bound of a creation.
const BOUND: Duration = Duration::from_secs(180);
const NAME: &str = "db";

/// A small flushed write is overdue after 4 s; with a PostgreSQL that ends again and again the primary steps down after 4 s without a write.
const CASES: [Case; 2] = [Case::new("disk-hang", 20.0, true), Case::new("disk-full", 40.0, true)];

#[tokio::test]
async fn a_primary_with_a_broken_disk_is_replaced_and_comes_back() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "disks").await?;
    let spec = json!({"replicas": 3, "storage": {"data": {"size": "1Gi", "storageClassName": "loop"}}});
    namespace.create(NAME, spec).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    run_all(&namespace, NAME, &CASES).await?;
    namespace.begin_removal().await
}

/// Fills this instance's data volume to the last byte; the volume must have a file system of its own.
async fn fill(namespace: &Namespace, pod: &str) -> Result<()> {
    let script = "cd /var/lib/postgresql/data && test $(df --output=size -B1M . | tail -n 1) -lt 1100 \
        && fallocate -l $(( $(df --output=avail -B1 . | tail -n 1) - 8388608 )) filler \
        && { dd if=/dev/zero of=rest bs=4k 2>/dev/null; df --output=avail -B1 . | tail -n 1; }";
    let left = exec(namespace, pod, "postgres", &["sh", "-c", script]).await?;
    let left: u64 = left.trim().parse().with_context(|| format!("{pod}: {left}"))?;
    ensure!(left < 1 << 20, "{pod}: {left} bytes are left");
    Ok(())
}

/// Writes WAL until the server fails: it has files for some WAL ready.
async fn use_up_wal(namespace: &Namespace, pod: &str) -> Result<()> {
    let statement =
        "SELECT count(pg_logical_emit_message(false, 'full', repeat('x', 1000000))) FROM generate_series(1, 1500)";
    let psql = ["psql", "-X", "-U", "postgres", "-d", "postgres", "-c", statement];
    ensure!(
        exec(namespace, pod, "postgres", &psql).await.is_err(),
        "1.5 GB of WAL were written to a full volume"
    );
    Ok(())
}

/// Each instance's claim and its file system have this many GiB.
async fn assert_grown(namespace: &Namespace, gibibytes: u64) -> Result<()> {
    for ordinal in 0..3 {
        let claim = namespace.api::<PersistentVolumeClaim>();
        let claim = claim.get(&format!("data-{NAME}-{ordinal}")).await?;
        let capacity = claim
            .status
            .and_then(|status| Some(status.capacity?.get("storage")?.0.clone()));
        ensure!(capacity == Some(format!("{gibibytes}Gi")), "{ordinal}: {capacity:?}");
        let look = "df --output=size -B1M /var/lib/postgresql/data | tail -n 1";
        let size = exec(namespace, &format!("{NAME}-{ordinal}"), "postgres", &["sh", "-c", look]).await?;
        let size: u64 = size.trim().parse().context("read the file system's size")?;
        ensure!(size > (gibibytes - 1) * 1024, "{ordinal}: {size} MiB");
    }
    Ok(())
}

/// Three instances with 1,000 rows: a client, their pods, and the primary's name.
async fn with_rows(
    namespace: &Namespace,
    storage: serde_json::Value,
) -> Result<(SqlClient, BTreeMap<String, String>, String)> {
    namespace
        .create(NAME, json!({"replicas": 3, "storage": storage}))
        .await?;
    namespace.wait_ready(NAME, BOUND).await?;
    let sql = SqlClient::start(namespace, NAME, POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    sql.sql("INSERT INTO t SELECT generate_series(1, 1000)").await?;
    let pods = namespace.pod_uids(NAME).await?;
    let status = namespace.get(NAME).await?.status.unwrap_or_default();
    let primary = status.current_primary.context("a primary")?;
    Ok((sql, pods, primary))
}

#[tokio::test]
async fn a_database_whose_volumes_are_all_full_heals_when_they_grow() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "full-volumes").await?;
    let storage = json!({"data": {"size": "1Gi", "storageClassName": "loop"}});
    let (sql, pods, primary) = with_rows(&namespace, storage).await?;
    for pod in pods.keys() {
        fill(&namespace, pod).await?;
    }
    use_up_wal(&namespace, &primary).await?;
    until("writes to fail", BOUND, || async {
        Ok(match sql.try_sql("INSERT INTO t VALUES (0)").await {
            Ok(_) => Seen::NotYet("a write".to_owned()),
            Err(_) => Seen::Yes(()),
        })
    })
    .await?;

    namespace
        .change(NAME, json!({"storage": {"data": {"size": "2Gi"}}}))
        .await?;
    let (_, time) = namespace.wait_ready(NAME, 3 * BOUND).await?;
    println!(
        "ready again {:.1} s after the larger size was asked for",
        time.as_secs_f64()
    );
    assert_grown(&namespace, 2).await?;
    let rows = sql.sql("SELECT count(*) FROM t WHERE v > 0").await?;
    ensure!(rows.trim() == "1000", "{rows}");
    sql.sql("INSERT INTO t VALUES (1001)").await?;
    ensure!(
        namespace.pod_uids(NAME).await? == pods,
        "a pod was replaced for a larger volume"
    );
    namespace.begin_removal().await
}

/// Fills this instance's WAL volume up to `left` bytes, beside the files that PostgreSQL has ready.
async fn fill_wal(namespace: &Namespace, pod: &str, left: u64) -> Result<()> {
    let script = format!(
        "cd /var/lib/postgresql/wal && test $(df --output=size -B1M . | tail -n 1) -lt 1100 \
        && fallocate -l $(( $(df --output=avail -B1 . | tail -n 1) - 8388608 )) filler \
        && {{ dd if=/dev/zero of=rest bs=4k 2>/dev/null; truncate -s -{left} rest; df --output=avail -B1 . | tail -n 1; }}"
    );
    let is = exec(namespace, pod, "postgres", &["sh", "-c", &script]).await?;
    let is: u64 = is.trim().parse().with_context(|| format!("{pod}: {is}"))?;
    ensure!((left..left + (1 << 20)).contains(&is), "{pod}: {is} bytes are left");
    Ok(())
}

/// Time in which the test counts takes of the Lease.
const LOOK: Duration = Duration::from_secs(45);
/// Allowed number of takes: the volumes become full one after the other.
const TAKES: i32 = 2;

/// Counts takes of the Lease while all WAL volumes are full; the wait must name the volumes, and the one field to raise.
async fn look_at_full_volumes(namespace: &Namespace) -> Result<i32> {
    let takes = || async {
        let lease = namespace.api::<Lease>().get(NAME).await.context("read the Lease")?;
        Ok::<_, anyhow::Error>(lease.spec.and_then(|spec| spec.lease_transitions).unwrap_or(0))
    };
    let before = takes().await?;
    let begun = Instant::now();
    until("the wait to name what is full", LOOK, || async {
        let status = namespace.get(NAME).await?.status.unwrap_or_default();
        let Some(waiting) = status.waiting else {
            return Ok(Seen::NotYet("nothing is waited for".to_owned()));
        };
        let all = (0..3).all(|ordinal| waiting.what.contains(&format!("wal-{NAME}-{ordinal}")));
        let field = waiting
            .who_can_end_it
            .starts_with("the user, by raising spec.storage.wal.size (now 1Gi)");
        let words = format!("{}; {}", waiting.what, waiting.who_can_end_it);
        Ok(if all && field {
            Seen::Yes(())
        } else {
            Seen::NotYet(words)
        })
    })
    .await?;
    println!("what is full was named after {:.1} s", begun.elapsed().as_secs_f64());
    // A count needs a time.
    sleep(LOOK.saturating_sub(begun.elapsed())).await;
    Ok(takes().await? - before)
}

#[tokio::test]
async fn a_database_whose_wal_volumes_are_all_full_names_them_and_heals_when_they_grow() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "full-wal").await?;
    let volume = json!({"size": "1Gi", "storageClassName": "loop"});
    let storage = json!({"data": volume, "wal": volume});
    let (sql, pods, primary) = with_rows(&namespace, storage).await?;
    // As WAL fills a volume, less than a segment is left; something else may fill it to the last byte.
    for (pod, left) in pods.keys().zip([2 << 20, 2 << 20, 0]) {
        fill_wal(&namespace, pod, left).await?;
    }
    use_up_wal(&namespace, &primary).await?;
    let takes = look_at_full_volumes(&namespace).await?;
    println!("the Lease was taken {takes} times in {} s", LOOK.as_secs());
    ensure!(takes <= TAKES, "the Lease was taken {takes} times");

    namespace
        .change(NAME, json!({"storage": {"wal": {"size": "2Gi"}}}))
        .await?;
    let (_, time) = namespace.wait_ready(NAME, BOUND).await?;
    println!(
        "ready again {:.1} s after the larger size was asked for",
        time.as_secs_f64()
    );
    let rows = sql.sql("SELECT count(*) FROM t WHERE v > 0").await?;
    ensure!(rows.trim() == "1000", "{rows}");
    sql.sql("INSERT INTO t VALUES (1001)").await?;
    ensure!(
        namespace.pod_uids(NAME).await? == pods,
        "a pod was replaced for a larger volume"
    );
    namespace.remove().await
}

/// A class whose volumes wait for their first consumer, as those of most clouds do.
const WAITING_CLASS: &str = "standard-waiting";

async fn make_waiting_class(classes: &Api<StorageClass>) -> Result<()> {
    let mut class = classes.get("standard").await?;
    class.metadata = ObjectMeta {
        name: Some(WAITING_CLASS.to_owned()),
        ..ObjectMeta::default()
    };
    class.volume_binding_mode = Some("WaitForFirstConsumer".to_owned());
    classes.create(&PostParams::default(), &class).await?;
    Ok(())
}

/// Each instance has its WAL on its WAL volume, and the StatefulSet the claim templates for both.
async fn assert_wal_volumes(namespace: &Namespace, instances: u32) -> Result<()> {
    for ordinal in 0..instances {
        let pod = format!("{NAME}-{ordinal}");
        let look = "readlink $PGDATA/pg_wal; df --output=target $PGDATA/pg_wal/ | tail -n 1; ls $PGDATA/pg_wal | grep -c '^0000'";
        let seen = exec(namespace, &pod, "postgres", &["sh", "-c", look]).await?;
        let lines: Vec<_> = seen.lines().map(str::trim).collect();
        ensure!(
            lines.len() == 3
                && lines[..2] == ["/var/lib/postgresql/wal/pg_wal", "/var/lib/postgresql/wal"]
                && lines[2] != "0",
            "{pod}: {seen}"
        );
    }
    let set = namespace.api::<StatefulSet>().get(NAME).await?.spec.context("a spec")?;
    let templates = set.volume_claim_templates.unwrap_or_default();
    let names: Vec<_> = templates
        .iter()
        .filter_map(|claim| claim.metadata.name.as_deref())
        .collect();
    ensure!(names == ["data", "wal"], "{names:?}");
    Ok(())
}

/// Adds WAL volumes of a class that does not exist yet, and waits until the status says so.
async fn ask_in_vain(namespace: &Namespace) -> Result<()> {
    let wal = json!({"storage": {"wal": {"size": "1Gi", "storageClassName": WAITING_CLASS}}});
    namespace.change(NAME, wal).await?;
    until("the missing class to be named", BOUND, || async {
        let database = namespace.get(NAME).await?;
        let waiting = database.status.clone().and_then(|status| status.waiting);
        let said = waiting.is_some_and(|waiting| waiting.what.contains(WAITING_CLASS));
        Ok(if said {
            Seen::Yes(())
        } else {
            Seen::NotYet(summary(&database))
        })
    })
    .await?;
    Ok(())
}

/// The WAL volumes grow in place, and can no longer be removed.
async fn assert_grow_and_stay(namespace: &Namespace) -> Result<()> {
    let pods = namespace.pod_uids(NAME).await?;
    namespace
        .change(NAME, json!({"storage": {"wal": {"size": "2Gi"}}}))
        .await?;
    namespace.wait_ready(NAME, BOUND).await?;
    let claims = namespace.api::<PersistentVolumeClaim>();
    for ordinal in 0..3 {
        let claim = claims.get(&format!("wal-{NAME}-{ordinal}")).await?;
        let has = claim.status.and_then(|status| status.capacity);
        let has = has.and_then(|has| Some(has.get("storage")?.0.clone()));
        ensure!(has.as_deref() == Some("2Gi"), "{ordinal}: {has:?}");
    }
    ensure!(
        namespace.pod_uids(NAME).await? == pods,
        "a pod was replaced for a larger volume"
    );
    let Err(refused) = namespace.change(NAME, json!({"storage": {"wal": null}})).await else {
        bail!("WAL volumes that are in use were taken away");
    };
    let words = format!("{refused:#}");
    ensure!(
        words.contains("storage.wal cannot be removed, since instances have WAL volumes"),
        "{words}"
    );
    Ok(())
}

#[tokio::test]
async fn a_wal_volume_is_added_to_a_running_database() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "wal-volume").await?;
    namespace
        .create(NAME, json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready(NAME, BOUND).await?;
    let sql = SqlClient::start(&namespace, NAME, POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    let classes = Api::<StorageClass>::all(namespace.client.clone());
    // Left by an earlier run.
    let _ = classes.delete(WAITING_CLASS, &DeleteParams::default()).await;
    let (pods, claims) = (namespace.pod_uids(NAME).await?, namespace.claim_uids(NAME).await?);

    writing(&sql, async {
        // Without a class no instance is touched, the status says so, and the user can undo it.
        ask_in_vain(&namespace).await?;
        namespace.change(NAME, json!({"storage": {"wal": null}})).await?;
        namespace.wait_ready(NAME, BOUND).await?;
        ask_in_vain(&namespace).await?;
        ensure!(
            namespace.pod_uids(NAME).await? == pods,
            "a pod was replaced for a volume that cannot be had"
        );
        make_waiting_class(&classes).await?;
        let (_, time) = namespace.wait_ready(NAME, 3 * BOUND).await?;
        println!("every instance has its WAL volume after {:.1} s", time.as_secs_f64());
        Ok(())
    })
    .await?;
    assert_wal_volumes(&namespace, 3).await?;

    let replaced = namespace.pod_uids(NAME).await?;
    ensure!(
        pods.iter().all(|(pod, uid)| replaced.get(pod) != Some(uid)),
        "{replaced:?}"
    );
    // The pod was made from the template that named the claim, so the new StatefulSet does not make it again.
    for pod in replaced.keys() {
        let spec = namespace.api::<Pod>().get(pod).await?.spec.context("a spec")?;
        let mut env = spec
            .containers
            .iter()
            .flat_map(|container| container.env.iter().flatten());
        let of = env.find(|variable| variable.name == api::names::ENV_WAL_OF);
        ensure!(of.and_then(|variable| variable.value.as_ref()) == Some(pod), "{pod}");
    }
    let after: BTreeMap<_, _> = namespace.claim_uids(NAME).await?;
    ensure!(
        claims.iter().all(|(claim, uid)| after.get(claim) == Some(uid)),
        "{after:?}"
    );
    ensure!(after.len() == 2 * claims.len(), "{after:?}");

    assert_grow_and_stay(&namespace).await?;

    // A new instance gets both volumes, and one that is made again gets its own.
    namespace.change(NAME, json!({"replicas": 4})).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    let kept = namespace.pod_uids(NAME).await?;
    ensure!(replaced.iter().all(|(pod, uid)| kept.get(pod) == Some(uid)), "{kept:?}");
    namespace
        .api::<Pod>()
        .delete(&format!("{NAME}-1"), &DeleteParams::default())
        .await?;
    let again = || async {
        // The resource is still `Ready` for a while, because of the previous pod.
        let name = format!("{NAME}-1");
        let pod = namespace.api::<Pod>().get_opt(&name).await?;
        let pod = pod.filter(|pod| pod.metadata.uid.as_ref() != kept.get(&name));
        let conditions = pod.and_then(|pod| pod.status?.conditions).unwrap_or_default();
        let ready = conditions
            .iter()
            .any(|found| found.type_ == "Ready" && found.status == "True");
        Ok(if ready {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{conditions:?}"))
        })
    };
    until("the deleted pod to be made again", BOUND, again).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    assert_wal_volumes(&namespace, 4).await?;
    ensure!(namespace.claim_uids(NAME).await?.len() == 8, "claims");
    classes.delete(WAITING_CLASS, &DeleteParams::default()).await?;
    namespace.begin_removal().await
}
