//! End-to-end: whatever happens to the primary, writes come back by themselves, nothing that was acknowledged is lost, and
//! no two servers acknowledge at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::names::{CONTAINER, LABEL_CLUSTER, Names};
use e2e::availability::run::{Done, Plan, run};
use e2e::availability::scenario;
use e2e::availability::subject::Subject;
use e2e::{Namespace, OPERATOR_IMAGE_VARIABLE, connect_for_test};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Options, Testbed};

/// Bound of a creation.
const BOUND: Duration = Duration::from_secs(180);
const NAME: &str = "db";

/// What a scenario may cost. The bounds are those of the design, and as much again for a machine that is busy with other things;
/// what it costs on a quiet one is measured by `cargo xtask availability`.
struct Case {
    scenario: &'static str,
    /// Longest time without an acknowledged write, in seconds.
    outage: f64,
    /// The primary must be another one afterwards.
    moves: bool,
    operator_killed: bool,
}

const fn case(scenario: &'static str, outage: f64, moves: bool) -> Case {
    Case {
        scenario,
        outage,
        moves,
        operator_killed: false,
    }
}

const CASES: [Case; 11] = [
    case("switchover", 5.0, true),
    case("pod-delete", 5.0, true),
    case("pod-delete-forced", 12.0, false),
    case("postmaster-kill", 5.0, false),
    case("container-kill", 8.0, false),
    case("standby-cut", 5.0, false),
    // The others promise not to take the lease, as long as they hear it.
    case("api-cut", 3.0, false),
    case("freeze", 15.0, true),
    // The dead-man ends it after the fence time; then it starts anew, or another one is elected.
    case("agent-stop", 20.0, true),
    case("node-cut", 12.0, true),
    Case {
        operator_killed: true,
        ..case("node-cut", 12.0, true)
    },
];

#[tokio::test]
async fn nothing_acknowledged_is_lost_and_writes_come_back() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "failover").await?;
    let spec = json!({"replicas": 3, "storage": {"size": "1Gi"}});
    namespace.create(NAME, spec).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    let subject = subject(&namespace)?;
    let image = std::env::var(OPERATOR_IMAGE_VARIABLE).context("the image with the writer")?;
    let mut wrong = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let claims = uids::<PersistentVolumeClaim>(&namespace).await?;
        let pods = uids::<Pod>(&namespace).await?;
        let plan = Plan {
            scenario: scenario::all()
                .into_iter()
                .find(|known| known.name == case.scenario)
                .with_context(|| format!("scenario {}", case.scenario))?,
            number: number + 1,
            operator_killed: case.operator_killed,
            image: image.clone(),
            bound: Duration::from_secs(60),
        };
        let done = run(&subject, &plan)
            .await
            .with_context(|| format!("run {}", case.scenario))?;
        let mut found = judge(case, &done);
        if uids::<PersistentVolumeClaim>(&namespace).await? != claims {
            found.push("claims were replaced".to_owned());
        }
        let after = uids::<Pod>(&namespace).await?;
        let replaced = pods.iter().filter(|(pod, uid)| after.get(*pod) != Some(*uid));
        let others: Vec<_> = replaced.filter(|(pod, _)| **pod != done.run.report.primary).collect();
        if !others.is_empty() {
            found.push(format!("pods were replaced that nothing had happened to: {others:?}"));
        }
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", case.scenario)));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    namespace.remove().await
}

fn judge(case: &Case, done: &Done) -> Vec<String> {
    let report = &done.run.report;
    println!(
        "{}: {:.2} s without a write, {} -> {}, as before after {:?} ms; lost {}, overlap {:?}",
        case.scenario,
        report.outage / 1_000.0,
        report.primary,
        report.primary_after,
        done.run.ready,
        report.lost.count,
        report.overlap
    );
    let mut wrong = Vec::new();
    if !report.is_safe() {
        wrong.push(format!(
            "lost {:?}, unexplained {:?}, overlap {:?}",
            report.lost, report.unexplained, report.overlap
        ));
    }
    if report.outage_open || report.outage > case.outage * 1_000.0 {
        wrong.push(format!("{:.1} s without a write", report.outage / 1_000.0));
    }
    if done.run.ready.is_none() {
        wrong.push("it is not as before by itself".to_owned());
    }
    if case.moves && report.primary == report.primary_after {
        wrong.push(format!("{} is still the primary", report.primary));
    }
    wrong
}

fn subject(namespace: &Namespace) -> Result<Subject> {
    let names = Names::new(NAME);
    Ok(Subject {
        namespace: namespace.clone(),
        service: names.rw(),
        secret: names.app_secret(),
        database: None,
        selector: format!("{LABEL_CLUSTER}={NAME}"),
        container: CONTAINER.to_owned(),
        replicas: 3,
        own: Some(NAME.to_owned()),
        operator: Some((
            e2e::install::NAMESPACE.to_owned(),
            "app.kubernetes.io/name=clustereddatabase-operator".to_owned(),
        )),
        testbed: Some(Arc::new(Testbed::attach(Options::from_env()?.instance)?)),
    })
}

/// UIDs of the database's objects of one kind, by name.
async fn uids<K>(namespace: &Namespace) -> Result<BTreeMap<String, String>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let ours = ListParams::default().labels(&format!("{LABEL_CLUSTER}={NAME}"));
    let found = namespace.api::<K>().list(&ours).await?;
    Ok(found
        .into_iter()
        .map(|object| (object.name_any(), object.uid().unwrap_or_default()))
        .collect())
}
