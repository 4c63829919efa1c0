//! End-to-end: whatever happens to the primary, writes come back by themselves, nothing that was acknowledged is lost, and
//! no two servers acknowledge at once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::names::CONTAINER;
use api::status::DurabilityMode;
use e2e::availability::case::{Case, Loss, run_all, subject};
use e2e::availability::record::Outcome;
use e2e::availability::run::{Plan, check, run};
use e2e::availability::scenario::{Fault, Heal, Scenario};
use e2e::availability::subject::Subject;
use e2e::client::exec;
use e2e::namespace::members;
use e2e::processes::Container;
use e2e::wait::{Seen, until};
use e2e::{Namespace, SqlClient, WRITER_IMAGE_VARIABLE, connect_for_test, is_long};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use machine::lease_object;
use serde_json::json;
use testbed::POSTGRES_IMAGE;

/// Bound of a creation.
const BOUND: Duration = Duration::from_secs(180);
const NAME: &str = "db";

/// Bounds of an outage on a busy machine; docs/availability.md has the times of a quiet one.
const CASES: [Case; 15] = [
    Case::new("switchover", 15.0, true),
    Case::new("pod-delete", 15.0, true),
    Case::new("pod-delete-forced", 20.0, false),
    Case::new("postmaster-kill", 15.0, false),
    Case::new("container-kill", 20.0, false),
    Case {
        stays: true,
        ..Case::new("standby-cut", 15.0, false)
    },
    // The others promise not to take the lease, as long as they hear the primary.
    Case {
        stays: true,
        ..Case::new("api-cut", 15.0, false)
    },
    // For two minutes: `cargo xtask availability --scenario api-down`.
    Case {
        lasts: Some(30),
        stays: true,
        ..Case::new("api-down", 15.0, false)
    },
    Case::new("freeze", 20.0, true),
    // The dead-man stops PostgreSQL after the fence time; then it starts again, or another member is elected.
    Case::new("agent-stop", 20.0, true),
    // Existing sessions work; no new one begins, so the primary steps down.
    Case::new("postmaster-stop", 25.0, true),
    Case::new("node-cut", 20.0, true),
    Case {
        stays: true,
        ..Case::new("rolling-parameter", 15.0, false)
    },
    Case {
        stays: true,
        ..Case::new("rolling-resources", 10.0, false)
    },
    Case {
        replaces: true,
        ..Case::new("rolling-image", 15.0, true)
    },
];

/// Cases with the operator's pods killed at the same moment: Kubernetes or the agents recover without it, or its next pod must
/// continue the change. `cargo xtask test --long` runs them, and the others, with and without the operator.
const WITHOUT_OPERATOR: [&str; 7] = [
    "switchover",
    "pod-delete",
    "pod-delete-forced",
    "postmaster-kill",
    "container-kill",
    "standby-cut",
    "node-cut",
];
/// Cases that `--long` runs both with and without the operator, beyond [`WITHOUT_OPERATOR`].
const CHANGES: [&str; 3] = ["rolling-parameter", "rolling-resources", "rolling-image"];

/// No member is elected before the lease has run out, ten seconds after its last renewal.
const WITHOUT_A_RULE: [Case; 2] = [
    Case {
        loss: Loss::LastCommits,
        ..Case::new("node-cut", 25.0, true)
    },
    // When it resumes, no standby keeps it from acknowledging what clients had sent: only its end does.
    Case {
        loss: Loss::LastCommits,
        lingers: 1_000,
        ..Case::new("freeze", 25.0, true)
    },
];

async fn ready(name: &str, durability: serde_json::Value) -> Result<Namespace> {
    let namespace = Namespace::fresh(connect_for_test().await?, name).await?;
    // A pod with a CPU request gets another one in place; the first request needs new pods (another class of service).
    let resources = json!({"requests": {"cpu": "100m"}});
    let spec =
        json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}, "durability": durability, "resources": resources});
    namespace.create(NAME, spec).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    Ok(namespace)
}

/// The named cases, or all others.
fn cases(names: &[&str], named: bool) -> Vec<Case> {
    CASES
        .into_iter()
        .filter(|case| names.contains(&case.scenario) == named)
        .collect()
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_and_writes_come_back() -> Result<()> {
    let namespace = ready("failover", json!({})).await?;
    let chosen = match is_long() {
        true => CASES.to_vec(),
        false => cases(&WITHOUT_OPERATOR, false),
    };
    run_all(&namespace, NAME, &chosen).await?;
    namespace.begin_removal().await
}

/// Duration of the flood before the primary is lost: readiness fails after three seconds without an answer.
const FLOODED: Duration = Duration::from_secs(12);

/// A client without credentials floods all agents' ports: no instance becomes unready, a lost primary is replaced as usual, and
/// no container is ended.
async fn flooded(namespace: &Namespace) -> Result<()> {
    let stranger = Namespace::fresh(connect_for_test().await?, "failover-flood").await?;
    let members = subject(namespace, NAME)?.members().await?;
    let before = containers(namespace).await?;
    for member in &members {
        // PostgreSQL's user cannot write the program of the container's next start. (Nobody can write a running program.)
        let written = exec(namespace, &member.pod, CONTAINER, &["touch", "/cdb/agent/another"]).await;
        let error = written.expect_err("the agent can be written");
        ensure!(error.to_string().contains("Read-only file system"), "{error:#}");
    }
    let addresses: Vec<IpAddr> = members.iter().map(|member| member.address).collect();
    e2e::flood::start(&stranger, POSTGRES_IMAGE, &addresses).await?;
    // The test checks that nothing happens in this time.
    tokio::time::sleep(FLOODED).await;
    let after = containers(namespace).await?;
    ensure!(before == after, "a flood changed {before:?} to {after:?}");
    run_all(namespace, NAME, &[Case::new("freeze", 20.0, true)]).await?;
    let restarts = |containers: &Containers| containers.values().map(|(restarts, _)| *restarts).collect::<Vec<_>>();
    let after = containers(namespace).await?;
    ensure!(
        restarts(&before) == restarts(&after),
        "containers were ended: {after:?}"
    );
    stranger.remove().await
}

/// Of each pod: the restarts of its container, and since when it has been ready or not.
type Containers = BTreeMap<String, (i32, String)>;

async fn containers(namespace: &Namespace) -> Result<Containers> {
    let pods = namespace.api::<Pod>().list(&members(NAME)).await?;
    let found = pods.into_iter().map(|pod| {
        let name = pod.name_any();
        let status = pod.status.unwrap_or_default();
        let restarts = status
            .container_statuses
            .iter()
            .flatten()
            .map(|container| container.restart_count);
        let mut conditions = status.conditions.iter().flatten();
        let ready = conditions.find(|condition| condition.type_ == "Ready");
        let ready = ready.map(|ready| format!("{} since {:?}", ready.status, ready.last_transition_time));
        (name, (restarts.sum(), ready.unwrap_or_default()))
    });
    Ok(found.collect())
}

/// The operator decides only planned changes, and its next pod continues them.
#[tokio::test]
async fn nothing_acknowledged_is_lost_if_the_operator_is_killed_at_the_same_moment() -> Result<()> {
    let namespace = ready("failover-operator", json!({})).await?;
    let mut chosen = cases(&WITHOUT_OPERATOR, true);
    ensure!(chosen.len() == WITHOUT_OPERATOR.len(), "{chosen:?}");
    if is_long() {
        chosen.extend(cases(&CHANGES, true));
    }
    let chosen: Vec<Case> = chosen.into_iter().map(Case::without_operator).collect();
    run_all(&namespace, NAME, &chosen).await?;
    namespace.begin_removal().await
}

#[tokio::test]
async fn without_a_rule_only_the_last_commits_are_lost() -> Result<()> {
    let namespace = ready("failover-async", json!({"mode": "Async"})).await?;
    run_all(&namespace, NAME, &WITHOUT_A_RULE).await?;
    namespace.begin_removal().await
}

/// The benchmark treats a database of ours as a foreign one: it knows a Service, a Secret and labels, and no operator.
#[tokio::test]
async fn any_postgresql_behind_a_service_can_be_measured() -> Result<()> {
    let namespace = ready("failover-stranger", json!({})).await?;
    let ours = subject(&namespace, NAME)?;
    let testbed = ours.testbed.clone().context("the testbed")?;
    let primary = ours.primary().await?.pod;
    let postmaster = Container::of(&testbed, &namespace, &primary).await?.postmaster()?;
    // The shell has `kill` built in: no other program is needed.
    let inject = format!("[ \"$PRIMARY\" = {primary} ] && [ -n \"$STANDBY_NODE\" ] && kill -KILL {postmaster}");
    let stranger = Subject {
        own: None,
        operator: None,
        testbed: None,
        ..ours
    };
    let scenario = Scenario {
        name: "stranger".to_owned(),
        fault: Fault::Command { inject, heal: None },
        heal: Heal::Nothing,
        observe: Duration::from_secs(5),
    };
    check(&stranger, &scenario)?;
    let plan = Plan {
        scenario,
        number: 1,
        operator_killed: false,
        image: std::env::var(WRITER_IMAGE_VARIABLE).context("the image with the writer")?,
        bound: GOES_ON,
    };
    let done = run(&stranger, &plan).await?;
    let (report, ready) = (&done.run.report, done.run.ready);
    let there: u64 = done.rows.iter().map(|rows| rows.to - rows.from + 1).sum();
    let acked = report.outcomes.get(&Outcome::Acked).copied().unwrap_or_default();
    println!(
        "{acked} rows acknowledged through the Service, {there} of all streams there, as before after {ready:?} ms: {report:?}"
    );
    ensure!(report.is_safe(), "lost, unexplained, or an overlap: {report:?}");
    ensure!(acked >= 100 && there >= acked, "{acked} acknowledged, {there} there");
    ensure!(
        report.gaps > 0 && report.held_until.is_some(),
        "the fault was not felt: {report:?}"
    );
    ensure!(
        report.primary == primary && report.primary_after.starts_with(NAME),
        "{report:?}"
    );
    ensure!(
        !report.outage_open && ready.is_some(),
        "it is not as before: {report:?}"
    );
    namespace.begin_removal().await
}

/// A standby that is gone leaves the rule after a second; the first commit has waited for that, and until WAL senders have read it.
const GOES_ON: Duration = Duration::from_secs(60);
/// Time limit for the status to report it.
const SAID: Duration = Duration::from_secs(60);

#[tokio::test]
async fn preferred_continues_without_standbys_and_waits_for_them_again() -> Result<()> {
    let namespace = ready("failover-preferred", json!({"mode": "Preferred"})).await?;
    let sql = SqlClient::start(&namespace, NAME, POSTGRES_IMAGE).await?;
    sql.sql("CREATE TABLE t (v int)").await?;
    promised(&namespace, DurabilityMode::Preferred, 1).await?;
    let subject = subject(&namespace, NAME)?;
    let testbed = subject.testbed.as_deref().context("the testbed")?;
    let primary = subject.primary().await?;
    let mut standbys = subject.members().await?;
    standbys.retain(|member| member.pod != primary.pod);
    for standby in &standbys {
        testbed.freeze(&namespace.name, &standby.pod).await?;
    }
    let away = without_standbys(&namespace, &sql).await;
    for standby in &standbys {
        testbed.thaw(&namespace.name, &standby.pod).await?;
    }
    away?;
    let took = promised(&namespace, DurabilityMode::Preferred, 1).await?;
    println!(
        "preferred: commits wait for a standby again {:.2} s after they came back",
        took.as_secs_f64()
    );
    namespace.wait_ready(NAME, BOUND).await?;
    let names = sql.sql("SHOW synchronous_standby_names").await?;
    ensure!(names.starts_with("ANY 1 ("), "synchronous_standby_names is {names:?}");
    ensure!(subject.primary().await?.pod == primary.pod, "the primary was replaced");
    let rows = sql
        .sql("SELECT count(DISTINCT v), count(*) FILTER (WHERE v = 2) FROM t")
        .await?;
    ensure!(rows == "2|20", "rows were lost: {rows}");
    flooded(&namespace).await?;
    namespace.begin_removal().await
}

/// Commits continue, and the status says what that costs.
async fn without_standbys(namespace: &Namespace, sql: &SqlClient) -> Result<()> {
    let (_, first) = until("a commit without standbys", GOES_ON, || async {
        sql.try_sql("INSERT INTO t VALUES (1)").await.map(Seen::Yes)
    })
    .await?;
    println!(
        "preferred: the first commit after both standbys went took {:.2} s",
        first.as_secs_f64()
    );
    promised(namespace, DurabilityMode::Async, 0).await?;
    for _ in 0..20 {
        sql.sql("INSERT INTO t VALUES (2)").await?;
    }
    Ok(())
}

/// Waits until the status says that `mode` is in force, the condition fits it, and the rule on record requires this number of standbys.
async fn promised(namespace: &Namespace, mode: DurabilityMode, required: usize) -> Result<Duration> {
    let ((), took) = until(&format!("{mode:?} to be in force"), SAID, || async {
        let status = namespace.get(NAME).await?.status.context("a status")?;
        let safe = status.conditions.iter().find(|condition| condition.type_ == "DataSafe");
        let safe = safe.map(|condition| (condition.status.clone(), condition.reason.clone()));
        let said = status.durability.map(|durability| durability.mode);
        let lease = namespace.api::<Lease>().get(NAME).await?;
        let rule = lease_object::read(&lease).context("read the Lease")?.rule;
        let expected = if required > 0 { "True" } else { "False" };
        let fits = safe.as_ref().is_some_and(|(status, _)| status == expected);
        Ok(if said == Some(mode) && fits && rule.required == required {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("{said:?}, DataSafe {safe:?}, {rule:?}"))
        })
    })
    .await?;
    Ok(took)
}
