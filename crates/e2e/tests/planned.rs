//! End-to-end: planned changes: nodes that are drained, switchovers on request, changes that wait for their user.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::names::{CONTAINER, Names};
use api::operation::{Action, OperationPhase, Switchover};
use api::{ClusteredDatabaseOperation, Phase};
use e2e::namespace::summary;
use e2e::processes::Container;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, connect_for_test, writing};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, EvictParams, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{Options, POSTGRES_IMAGE, Signal, Testbed};

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);
/// Longest time without a write while a primary is moved.
const INTERRUPTION: Duration = Duration::from_secs(15);

/// Longest time without a write while nothing is interrupted: the machine may be busy.
const UNINTERRUPTED: Duration = Duration::from_secs(10);

/// A database of three, with a client that has made a table.
async fn ready(name: &str) -> Result<(Namespace, SqlClient)> {
    let namespace = Namespace::fresh(connect_for_test().await?, name).await?;
    namespace
        .create("db", json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    Ok((namespace, sql))
}

async fn primary(namespace: &Namespace) -> Result<String> {
    let status = namespace.get("db").await?.status.unwrap_or_default();
    status.current_primary.context("a primary")
}

async fn node_of(namespace: &Namespace, pod: &str) -> Result<String> {
    let pod = namespace.api::<Pod>().get(pod).await?;
    pod.spec.and_then(|spec| spec.node_name).context("a node")
}

/// Cordons a node while `during` runs, and uncordons it after any result.
async fn cordoned<T>(namespace: &Namespace, node: &str, during: impl Future<Output = Result<T>>) -> Result<T> {
    let nodes: Api<Node> = Api::all(namespace.client.clone());
    nodes.cordon(node).await.with_context(|| format!("cordon {node}"))?;
    let done = during.await;
    nodes.uncordon(node).await.with_context(|| format!("uncordon {node}"))?;
    done
}

/// Waits until another pod than `before` is the primary; returns its name.
async fn moved(namespace: &Namespace, before: &str) -> Result<String> {
    let (now, _) = until("another primary", BOUND, || async {
        let now = primary(namespace).await?;
        Ok(if now == before {
            Seen::NotYet(summary(&namespace.get("db").await?))
        } else {
            Seen::Yes(now)
        })
    })
    .await?;
    Ok(now)
}

/// Asks for the eviction of a pod until it is gone, as `kubectl drain` does.
async fn evict(namespace: &Namespace, pod: &str) -> Result<Duration> {
    let pods = namespace.api::<Pod>();
    let uid = pods.get(pod).await?.uid();
    let ((), took) = until(&format!("{pod} to be evicted"), BOUND, || async {
        let now = pods.get_opt(pod).await?;
        if now.and_then(|pod| pod.uid()) != uid {
            return Ok(Seen::Yes(()));
        }
        match pods.evict(pod, &EvictParams::default()).await {
            Ok(_) => Ok(Seen::NotYet("it is going".to_owned())),
            // 429: the budget does not allow it now. Anything else (500: two budgets) would end a drain.
            Err(kube::Error::Api(status)) if status.code == 429 => Ok(Seen::NotYet(status.message.clone())),
            Err(error) => Err(error).context("evict"),
        }
    })
    .await?;
    Ok(took)
}

#[tokio::test]
async fn a_cordoned_node_loses_its_primary_and_no_pod() -> Result<()> {
    let (namespace, sql) = ready("e2e-cordon").await?;
    let (before, pods) = (primary(&namespace).await?, namespace.pod_uids("db").await?);
    let claims = namespace.claim_uids("db").await?;
    let node = node_of(&namespace, &before).await?;
    let (after, interruption) = cordoned(&namespace, &node, writing(&sql, moved(&namespace, &before))).await?;
    println!(
        "{before} to {after}: {:.1} s without a write",
        interruption.as_secs_f64()
    );
    ensure!(interruption < INTERRUPTION, "{interruption:?} without a write");
    ensure!(node_of(&namespace, &after).await? != node, "it is on the same node");
    namespace.wait_ready("db", BOUND).await?;
    ensure!(namespace.pod_uids("db").await? == pods, "a pod was replaced");
    ensure!(primary(&namespace).await? == after, "it went back");
    ensure!(namespace.claim_uids("db").await? == claims, "a claim was replaced");
    namespace.begin_removal().await
}

#[tokio::test]
async fn a_drain_ends_without_anybodys_help() -> Result<()> {
    let (namespace, sql) = ready("e2e-drain").await?;
    let before = primary(&namespace).await?;
    let (mut pods, claims) = (namespace.pod_uids("db").await?, namespace.claim_uids("db").await?);
    let uid = pods.remove(&before);
    let node = node_of(&namespace, &before).await?;
    // No wait for the move: the budget holds the eviction back.
    let drained = writing(&sql, evict(&namespace, &before));
    let (took, interruption) = cordoned(&namespace, &node, drained).await?;
    println!(
        "drained in {:.1} s, {:.1} s without a write",
        took.as_secs_f64(),
        interruption.as_secs_f64()
    );
    ensure!(interruption < INTERRUPTION, "{interruption:?} without a write");
    ensure!(primary(&namespace).await? != before, "it was evicted as primary");
    namespace.wait_ready("db", BOUND).await?;
    let mut after = namespace.pod_uids("db").await?;
    ensure!(after.remove(&before) != uid, "the pod is the same");
    ensure!(after == pods, "another pod was replaced");
    ensure!(namespace.claim_uids("db").await? == claims, "a claim was replaced");
    namespace.begin_removal().await
}

#[tokio::test]
async fn one_instance_can_be_drained() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-drain-one").await?;
    namespace
        .create("db", json!({"replicas": 1, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    let node = node_of(&namespace, "db-0").await?;
    let drained = async {
        cordoned(&namespace, &node, evict(&namespace, "db-0")).await?;
        namespace.wait_ready("db", BOUND).await
    };
    writing(&sql, drained).await?;
    namespace.begin_removal().await
}

/// Of PostgreSQL's container in each pod: UID, restarts, and cpu and memory as the kubelet reports them.
async fn containers(namespace: &Namespace) -> Result<BTreeMap<String, (String, i32, Value)>> {
    let mut found = BTreeMap::new();
    for ordinal in 0..3 {
        let name = Names::new("db").pod(ordinal);
        let pod = namespace.api::<Pod>().get(&name).await?;
        let statuses = pod.status.clone().and_then(|status| status.container_statuses);
        let postgres = statuses.into_iter().flatten().find(|status| status.name == CONTAINER);
        let postgres = postgres.with_context(|| format!("a container of {name}"))?;
        let resources = serde_json::to_value(postgres.resources)?;
        found.insert(name, (pod.uid().unwrap_or_default(), postgres.restart_count, resources));
    }
    Ok(found)
}

/// Changes cpu and memory, and waits for `Ready`; returns the longest time between two writes.
async fn resized(namespace: &Namespace, sql: &SqlClient, resources: &Value) -> Result<Duration> {
    let change = async {
        namespace.change("db", json!({"resources": resources})).await?;
        namespace.wait_ready("db", BOUND).await
    };
    let ((_, took), interruption) = writing(sql, change).await?;
    println!(
        "{resources}: {:.1} s, {:.1} s without a write",
        took.as_secs_f64(),
        interruption.as_secs_f64()
    );
    Ok(interruption)
}

#[tokio::test]
async fn cpu_and_memory_are_changed_in_place_and_what_kubernetes_cannot_is_done_by_replacement() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-resize").await?;
    let of =
        |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": "128Mi"}, "limits": {"memory": memory}});
    let spec = json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}, "resources": of("50m", "512Mi")});
    namespace.create("db", spec).await?;
    namespace.wait_ready("db", BOUND).await?;
    let sql = SqlClient::start(&namespace, "db", POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    let (before, first) = (containers(&namespace).await?, primary(&namespace).await?);

    let wanted = of("60m", "640Mi");
    let interruption = resized(&namespace, &sql, &wanted).await?;
    let after = containers(&namespace).await?;
    for (pod, (uid, restarts, resources)) in &after {
        let (uid_before, restarts_before, _) = &before[pod];
        ensure!(uid == uid_before, "{pod} was replaced");
        ensure!(
            restarts == restarts_before,
            "PostgreSQL's container in {pod} was restarted"
        );
        ensure!(*resources == wanted, "{pod} has {resources}, and {wanted} is wanted");
    }
    ensure!(primary(&namespace).await? == first, "the primary moved");
    ensure!(interruption < UNINTERRUPTED, "{interruption:?} without a write");

    // Kubernetes removes no limit from a running pod.
    let wanted = json!({"requests": {"cpu": "60m", "memory": "128Mi"}, "limits": null});
    let interruption = resized(&namespace, &sql, &wanted).await?;
    ensure!(interruption < INTERRUPTION, "{interruption:?} without a write");
    for (pod, (uid, _, resources)) in containers(&namespace).await? {
        ensure!(uid != before[&pod].0, "{pod} is the same");
        ensure!(resources["limits"].is_null(), "{pod} has {resources}");
    }
    namespace.begin_removal().await
}

/// Asks for a switchover to this instance, by an operation of this name.
async fn request(namespace: &Namespace, name: &str, to: &str) -> Result<()> {
    let action = Action::Switchover(Switchover { to: to.to_owned() });
    namespace.ask("db", name, action).await
}

/// Some instance that is not the primary.
async fn other(namespace: &Namespace) -> Result<String> {
    let primary = primary(namespace).await?;
    let mut all = (0..3).map(|ordinal| Names::new("db").pod(ordinal));
    all.find(|pod| *pod != primary).context("another instance")
}

#[tokio::test]
async fn a_requested_switchover_happens_once() -> Result<()> {
    let (namespace, sql) = ready("e2e-request").await?;
    let pods = namespace.pod_uids("db").await?;
    let (before, target) = (primary(&namespace).await?, other(&namespace).await?);
    request(&namespace, "first", &target).await?;
    let (after, interruption) = writing(&sql, moved(&namespace, &before)).await?;
    println!(
        "{before} to {after}: {:.1} s without a write",
        interruption.as_secs_f64()
    );
    ensure!(after == target, "{after} is the primary, and {target} was asked for");
    namespace
        .wait_operation("first", OperationPhase::Completed, BOUND)
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    request(&namespace, "back", &before).await?;
    ensure!(
        moved(&namespace, &after).await? == before,
        "another operation asks again"
    );
    namespace
        .wait_operation("back", OperationPhase::Completed, BOUND)
        .await?;
    namespace.wait_ready("db", BOUND).await?;

    namespace.change("db", json!({"primary": {"prefer": before}})).await?;
    request(&namespace, "contradiction", &target).await?;
    let why = namespace
        .wait_operation("contradiction", OperationPhase::Failed, BOUND)
        .await?;
    ensure!(why.contains("spec.primary.prefer"), "{why}");
    namespace.change("db", json!({"primary": {"prefer": null}})).await?;
    // A switchover that cannot begin would be given up after five minutes.
    request(&namespace, "nowhere", "db-7").await?;
    until("what is wrong with db-7 to be said", BOUND, || async {
        let database = namespace.get("db").await?;
        let waiting = database.status.clone().and_then(|status| status.waiting);
        let said = waiting.filter(|waiting| waiting.what.contains("no instance db-7") && waiting.deadline.is_some());
        Ok(match said {
            Some(_) => Seen::Yes(()),
            None => Seen::NotYet(summary(&database)),
        })
    })
    .await?;
    let operations = namespace.api::<ClusteredDatabaseOperation>();
    let another = Patch::Merge(json!({"spec": {"switchover": {"to": "db-1"}}}));
    let refused = operations.patch("nowhere", &PatchParams::default(), &another).await;
    let why = refused.map_or_else(|error| error.to_string(), |_| "taken".to_owned());
    ensure!(why.contains("make another one"), "{why}");
    let cancel = Patch::Merge(json!({"spec": {"cancel": true}}));
    operations.patch("nowhere", &PatchParams::default(), &cancel).await?;
    namespace
        .wait_operation("nowhere", OperationPhase::Cancelled, BOUND)
        .await?;
    // A wrong request does no harm.
    namespace.wait_ready("db", BOUND).await?;
    ensure!(primary(&namespace).await? == before, "the primary moved");
    ensure!(namespace.pod_uids("db").await? == pods, "a pod was replaced");
    namespace.begin_removal().await
}

/// The WAL that the standby lacks: more than the 16 MiB up to which a primary hands over to it.
const BEHIND: u32 = 20 << 20;
/// A switchover is given up 50 s after it was asked for.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// Writes more WAL than a standby may lack to be handed over to.
async fn much_wal(sql: &SqlClient) -> Result<()> {
    let start = sql.sql("SELECT pg_current_wal_lsn()").await?;
    // Short enough to stay uncompressed.
    sql.sql("CREATE TABLE many AS SELECT repeat(md5(n::text), 32) FROM generate_series(1, 30000) n")
        .await?;
    let written = format!("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{start}') > {BEHIND}");
    ensure!(sql.sql(&written).await? == "t", "too little WAL was written");
    Ok(())
}

/// Asks for `target`, which cannot take over; returns why the operation failed, and after how long.
async fn given_up(namespace: &Namespace, target: &str) -> Result<(String, Duration)> {
    request(namespace, "behind", target).await?;
    let asked = Instant::now();
    let wanted = format!("{target} to take over as primary");
    until("what is waited for to be said, with a deadline", GIVEN_UP, || async {
        let database = namespace.get("db").await?;
        let status = database.status.clone().unwrap_or_default();
        let said = status
            .waiting
            .is_some_and(|waiting| waiting.what == wanted && waiting.deadline.is_some());
        Ok(if said && status.phase == Some(Phase::SwitchingOver) {
            Seen::Yes(())
        } else {
            Seen::NotYet(summary(&database))
        })
    })
    .await?;
    let why = namespace
        .wait_operation("behind", OperationPhase::Failed, BOUND)
        .await?;
    Ok((why, asked.elapsed()))
}

#[tokio::test]
async fn a_switchover_to_an_instance_that_stays_behind_is_given_up_and_interrupts_nothing() -> Result<()> {
    let (namespace, sql) = ready("e2e-given-up").await?;
    let testbed = Testbed::attach(Options::from_env()?.instance)?;
    let (before, target) = (primary(&namespace).await?, other(&namespace).await?);
    let (pods, reign) = (namespace.pod_uids("db").await?, namespace.reign("db").await?);
    let started = sql.sql("SELECT pg_postmaster_start_time()").await?;
    let receiver = Container::of(&testbed, &namespace, &target).await?.wal_receiver();
    let receiver = receiver.with_context(|| format!("no WAL receiver in {target}"))?;
    testbed.signal(receiver, Signal::STOP)?;
    let asked = async {
        much_wal(&sql).await?;
        writing(&sql, given_up(&namespace, &target)).await
    }
    .await;
    testbed.signal(receiver, Signal::CONT)?;
    let ((why, took), interruption) = asked?;
    println!(
        "given up after {:.1} s ({why}), {:.1} s without a write",
        took.as_secs_f64(),
        interruption.as_secs_f64()
    );
    ensure!(why.contains("did not take over within 50 s"), "{why}");
    ensure!(took < GIVEN_UP, "given up only after {took:?}");
    ensure!(interruption < UNINTERRUPTED, "{interruption:?} without a write");

    let status = namespace.wait_ready("db", BOUND).await?.0.status.unwrap_or_default();
    ensure!(
        status.current_primary.as_ref() == Some(&before) && status.intent.primary.is_none(),
        "the primary is {:?}, and {:?} is wished for",
        status.current_primary,
        status.intent.primary
    );
    ensure!(namespace.reign("db").await? == reign, "the lease changed hands");
    ensure!(
        sql.sql("SELECT pg_postmaster_start_time()").await? == started,
        "PostgreSQL was restarted for it"
    );
    ensure!(namespace.pod_uids("db").await? == pods, "a pod was replaced");
    let why = format!("a switchover to {target} is requested");
    let history = status.history;
    let mut begun = history.iter().filter(|change| change.to == Phase::SwitchingOver);
    let mut ended = history
        .iter()
        .filter(|change| change.from == Some(Phase::SwitchingOver));
    let failed_over = history.iter().any(|change| change.to == Phase::FailingOver);
    ensure!(
        begun.any(|change| change.because.contains(&why)) && ended.next().is_some() && !failed_over,
        "{history:?}"
    );
    namespace.begin_removal().await
}

#[tokio::test]
async fn a_supervised_change_stops_and_says_what_to_do() -> Result<()> {
    let (namespace, _) = ready("e2e-supervised").await?;
    let (before, pods) = (primary(&namespace).await?, namespace.pod_uids("db").await?);
    let annotations = json!({"primary": {"updatePolicy": "Supervised"},
                             "pods": {"metadata": {"annotations": {"example.com/rolled": "yes"}}}});
    namespace.change("db", annotations).await?;
    let (advice, _) = until("the change to stop", BOUND, || async {
        let database = namespace.get("db").await?;
        let status = database.status.clone().unwrap_or_default();
        let waiting = status.waiting.filter(|waiting| waiting.what.contains("Supervised"));
        Ok(match waiting {
            Some(waiting) => Seen::Yes(waiting.who_can_end_it),
            None => Seen::NotYet(summary(&database)),
        })
    })
    .await?;
    let now = namespace.pod_uids("db").await?;
    ensure!(now[&before] == pods[&before], "the primary was replaced");
    ensure!(
        now.iter().filter(|(pod, uid)| pods[*pod] == **uid).count() == 1,
        "a standby was not replaced"
    );
    // The message is true.
    let (_, words) = advice.split_once("kubectl cdb promote db ").context("a command")?;
    let to = words.split(' ').next().context("an instance")?;
    request(&namespace, "go-on", to).await?;
    namespace
        .wait_operation("go-on", OperationPhase::Completed, BOUND)
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    ensure!(primary(&namespace).await? != before, "the primary is the same");
    ensure!(
        namespace.pod_uids("db").await?[&before] != pods[&before],
        "its pod is the same"
    );
    namespace.begin_removal().await
}
