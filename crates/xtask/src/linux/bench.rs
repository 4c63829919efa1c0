//! `cargo xtask bench`: the figures of the docs, measured on the testbed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use api::ClusteredDatabase;
use clap::{Args, Subcommand};
use e2e::audit::Audit;
use e2e::install::{NAMESPACE as OPERATOR_NAMESPACE, OPERATOR_ACCOUNT};
use e2e::{Images, Namespace};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use suites::shell::{cargo_command, repository, step};
use testbed::{Options, POOLER_IMAGE, POSTGRES_IMAGE, Testbed};

use super::backup::Spread;
use super::{backup, demo, image, pooler};

/// The measurements' namespace.
pub const NAMESPACE: &str = "cdb-bench";
/// Bound of one creation or deletion.
pub const BOUND: Duration = Duration::from_secs(240);

/// Measures creation time, API writes, memory and decisions per second.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// How many times a database of three instances is made.
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// How many databases (of one instance) run at once for the operator's memory; 0 leaves that out.
    #[arg(long, default_value_t = 10)]
    databases: usize,
    /// Leave out the decisions per second, which build with optimisation.
    #[arg(long)]
    no_decisions: bool,
}

/// Measurements that are made by themselves.
#[derive(Debug, Subcommand)]
enum Part {
    /// Measure WAL archive, base backup and restore beside pgBackRest and barman-cloud.
    Backup(backup::Arguments),
    /// Measure what clients of a pooler feel when the primary moves, and what a pooler costs.
    Pooler(pooler::Arguments),
}

/// Runs the measurements and prints them.
///
/// # Errors
/// When a database does not come up or go away within its bound.
pub async fn run(arguments: Arguments) -> Result<()> {
    match arguments.part {
        Some(Part::Backup(arguments)) => return backup::run(arguments).await,
        Some(Part::Pooler(arguments)) => return pooler::run(arguments).await,
        None => {}
    }
    let (testbed, client) = prepare().await?;
    let namespace = Namespace::fresh(client.clone(), NAMESPACE).await?;
    let mut report = creations(&testbed, &namespace, arguments.runs).await?;
    report.extend(memory(&testbed, &client, &namespace, arguments.databases).await?);
    namespace.remove().await?;
    if !arguments.no_decisions {
        step(
            "decisions per second",
            &mut cargo_command(&["bench", "--locked", "-p", "machine"]),
        )?;
    }
    println!("\nMeasured");
    for line in report {
        println!("  {line}");
    }
    Ok(())
}

/// A testbed with the operator, as it was built now.
pub async fn prepare() -> Result<(Testbed, Client)> {
    let (testbed, _) = Testbed::up(Options::from_env()?).await?;
    let [operator] = image::into_testbed(&testbed, [image::OPERATOR]).await?;
    let client = e2e::connect(Some(testbed.kubeconfig_path()), None).await?;
    let images = Images {
        operator,
        postgres: POSTGRES_IMAGE.to_owned(),
        pooler: POOLER_IMAGE.to_owned(),
    };
    e2e::install::install(&client, &repository()?, &images).await?;
    Ok((testbed, client))
}

/// Makes a database of three instances `runs` times; images are loaded.
async fn creations(testbed: &Testbed, namespace: &Namespace, runs: usize) -> Result<Vec<String>> {
    let mut seconds = Vec::new();
    let mut writes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for run in 1..=runs {
        let name = format!("run{run}");
        let audit = Audit::from_now(&testbed.audit_log_path())?;
        namespace.create(&name, demo::small(3)).await?;
        let (_, time) = namespace.wait_ready(&name, BOUND).await?;
        println!("run {run}: Ready after {:.2} s", time.as_secs_f64());
        seconds.push(time.as_secs_f64());
        for (actor, count) in by_actor(&audit, namespace)? {
            writes.entry(actor).or_default().push(count);
        }
        remove(namespace, &name).await?;
    }
    let mut report = vec![format!(
        "apply -> Ready, 3 instances, {runs} runs: {}",
        spread(&seconds, "s")
    )];
    for (actor, counts) in writes {
        let (min, max) = (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
        report.push(format!("API writes until Ready by {actor}: {min} to {max}"));
    }
    Ok(report)
}

/// Writes in the namespace by each user, apart from Kubernetes' own leases.
fn by_actor(audit: &Audit, namespace: &Namespace) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for write in audit
        .writes()?
        .into_iter()
        .filter(|write| write.namespace == namespace.name)
    {
        let agents = format!("system:serviceaccount:{}:", namespace.name);
        let actor = match write.user.as_str() {
            OPERATOR_ACCOUNT => "the operator".to_owned(),
            agent if agent.starts_with(&agents) => "the three agents".to_owned(),
            other if other.starts_with("system:") => "Kubernetes".to_owned(),
            _ => continue,
        };
        *counts.entry(actor).or_default() += 1;
    }
    Ok(counts)
}

async fn remove(namespace: &Namespace, name: &str) -> Result<()> {
    namespace
        .api::<ClusteredDatabase>()
        .delete(name, &DeleteParams::default())
        .await?;
    namespace.wait_gone(name, BOUND).await?;
    Ok(())
}

/// The leader's resident memory with one and with `databases` databases.
async fn memory(testbed: &Testbed, client: &Client, namespace: &Namespace, databases: usize) -> Result<Vec<String>> {
    let mut report = Vec::new();
    for wanted in [1, databases] {
        for n in 1..=wanted {
            if namespace.get(&format!("memory{n}")).await.is_err() {
                namespace.create(&format!("memory{n}"), demo::small(1)).await?;
            }
        }
        for n in 1..=wanted {
            namespace.wait_ready(&format!("memory{n}"), BOUND).await?;
        }
        if wanted > 0 {
            let mib = resident(testbed, client).await?;
            report.push(format!(
                "operator's resident memory with {wanted} database(s): {mib:.1} MiB"
            ));
        }
    }
    for n in 1..=databases.max(1) {
        remove(namespace, &format!("memory{n}")).await?;
    }
    Ok(report)
}

/// Resident memory, in MiB, of the operator's largest replica (the leader; the other one only waits).
async fn resident(testbed: &Testbed, client: &Client) -> Result<f64> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
    let mut largest = 0.0_f64;
    for pod in pods.list(&ListParams::default()).await? {
        let pid = testbed
            .container_pid(OPERATOR_NAMESPACE, &pod.name_any(), "operator")
            .await?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("read the operator's memory")?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
        let kib: u32 = kib.context("find VmRSS")?;
        largest = largest.max(f64::from(kib) / 1024.0);
    }
    Ok(largest)
}

/// Minimum, median, and maximum.
pub fn spread(values: &[f64], unit: &str) -> String {
    Spread::of(values).map_or("-".to_owned(), |Spread { min, median, max }| {
        format!("min {min:.2} {unit}, p50 {median:.2} {unit}, max {max:.2} {unit}")
    })
}
