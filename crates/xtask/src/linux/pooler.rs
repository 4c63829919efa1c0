//! `cargo xtask bench pooler`: what clients feel when the primary moves, with and without a pooler, and what a pooler costs.

use std::time::Duration;

use anyhow::{Context, Result};
use api::Pooler;
use api::declared::DeclaredPhase;
use api::operation::{Action, OperationPhase, Restart, Switchover};
use clap::Args;
use e2e::load::Load;
use e2e::{Namespace, SqlClient};
use kube::api::PostParams;
use serde_json::json;
use testbed::POSTGRES_IMAGE;

use super::bench::{BOUND, NAMESPACE, prepare, spread};

/// The database.
const DATABASE: &str = "db";

/// What clients of a pooler feel.
#[derive(Debug, Args)]
pub struct Arguments {
    /// How many times each change is made.
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// How many clients write.
    #[arg(long, default_value_t = 200)]
    clients: u32,
    /// How long each of them waits between two transactions, in milliseconds.
    #[arg(long, default_value_t = 200)]
    pause: u64,
}

/// Changes that clients are not to feel.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Another primary.
    Switchover,
    /// Each pod is replaced, as for another image.
    Rolling,
    /// PostgreSQL is restarted in place, for a setting.
    Restart,
}

/// Runs the measurements and prints them.
///
/// # Errors
/// When something does not become ready within its bound.
pub async fn run(arguments: Arguments) -> Result<()> {
    let (_testbed, client) = prepare().await?;
    let namespace = Namespace::fresh(client, NAMESPACE).await?;
    let parameters = json!({"max_connections": "300"});
    namespace
        .create(
            DATABASE,
            json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}, "postgres": {"parameters": parameters}}),
        )
        .await?;
    namespace.wait_ready(DATABASE, BOUND).await?;
    let spec = json!({"clusterRef": {"name": DATABASE}});
    let pooler = Pooler::new("pool", serde_json::from_value(spec)?);
    namespace.api().create(&PostParams::default(), &pooler).await?;
    namespace
        .wait_declared("pool", DeclaredPhase::Ready, BOUND, |pooler: &Pooler| {
            Some(&pooler.status.as_ref()?.declared)
        })
        .await?;
    let sql = SqlClient::start(&namespace, DATABASE, POSTGRES_IMAGE).await?;
    let direct = namespace.secret_text("db-app", "uri").await?;
    let pooled = direct.replace("@db-rw.", "@pool.");
    let mut report = throughput(&sql, [&direct, &pooled]).await?;
    for change in [Change::Switchover, Change::Rolling, Change::Restart] {
        for (how, uri) in [("through the pooler", &pooled), ("without it", &direct)] {
            let (mut cut_off, mut refused, mut longest, mut gaps) = (0, 0, Vec::new(), Vec::new());
            for run in 1..=arguments.runs {
                let pause = Duration::from_millis(arguments.pause);
                let load = Load::begin(&sql, uri, arguments.clients, pause).await?;
                let name = format!("{change:?}-{}-{run}", how.replace(' ', "-")).to_lowercase();
                make(&namespace, change, &name, run).await?;
                namespace.wait_ready(DATABASE, BOUND).await?;
                let felt = load.end().await?;
                println!("{change:?} {how}, run {run}: {felt}");
                cut_off += felt.cut_off;
                refused += felt.refused;
                gaps.push(felt.gap.as_secs_f64());
                // Beyond the pause between two transactions.
                longest.push(felt.longest.saturating_sub(pause).as_secs_f64());
            }
            report.push(format!(
                "{change:?} {how}, {} runs, {} clients: {cut_off} cut off, {refused} times refused; no transaction for {}; longest wait {}",
                arguments.runs,
                arguments.clients,
                spread(&gaps, "s"),
                spread(&longest, "s")
            ));
        }
    }
    namespace.remove().await?;
    println!("\nMeasured");
    for line in report {
        println!("  {line}");
    }
    Ok(())
}

async fn make(namespace: &Namespace, change: Change, name: &str, run: usize) -> Result<()> {
    let action = match change {
        Change::Restart => {
            let connections = (300 + run % 2).to_string();
            let spec = json!({"postgres": {"parameters": {"max_connections": connections}}});
            return namespace.change(DATABASE, spec).await.map(drop);
        }
        Change::Rolling => Action::Restart(Restart {}),
        Change::Switchover => {
            let holder = namespace.holder(DATABASE).await?.context("a primary")?;
            let mut pods = ["db-0", "db-1"].into_iter();
            let to = pods.find(|pod| !holder.starts_with(pod)).context("another")?;
            Action::Switchover(Switchover { to: to.to_owned() })
        }
    };
    namespace.ask(DATABASE, name, action).await?;
    namespace.wait_operation(name, OperationPhase::Completed, BOUND).await?;
    Ok(())
}

/// Rounds of twenty clients each, one after the other in each round.
async fn throughput(sql: &SqlClient, uris: [&String; 2]) -> Result<Vec<String>> {
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let mut rates = [0.0; 2];
        for (uri, rate) in uris.into_iter().zip(&mut rates) {
            let script =
                "echo 'SELECT 1;' > /tmp/one.sql; pgbench -n -M prepared -c 20 -j 2 -T 10 -f /tmp/one.sql \"$1\" 2>&1";
            let said = sql.run(&["sh", "-c", script, "sh", uri]).await?;
            let found = said
                .lines()
                .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
            *rate = found.context("a rate")?.parse()?;
        }
        println!(
            "SELECT 1: {:.0} a second directly, {:.0} through the pooler",
            rates[0], rates[1]
        );
        ratios.push(rates[1] / rates[0]);
    }
    Ok(vec![format!(
        "SELECT 1 through the pooler against directly: {}",
        spread(&ratios, "times")
    )])
}
