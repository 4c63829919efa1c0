//! The agent's side of the worker: starts it, tells it what it may do, and hears how far it is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use machine::archive::ArchiveRecord;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use super::{Order, Paths};
use crate::process::{Helper, Supervisor};

/// The pause before a worker that has ended is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps a worker running for ever, and calls `tell` with what it says of the archive. `program` is the agent's own.
pub async fn keep(
    supervisor: Supervisor,
    program: PathBuf,
    paths: Paths,
    mut orders: watch::Receiver<Option<Order>>,
    tell: impl Fn(ArchiveRecord),
) {
    loop {
        if let Err(error) = run(&supervisor, &program, &paths, &mut orders, &tell).await {
            tracing::warn!("the archive's worker: {error}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn run(
    supervisor: &Supervisor,
    program: &Path,
    paths: &Paths,
    orders: &mut watch::Receiver<Option<Order>>,
    tell: &impl Fn(ArchiveRecord),
) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command
        .arg("archive-worker")
        .args([&paths.socket, &paths.wal, &paths.access]);
    let mut helper = Helper::start(supervisor, command)?;
    orders.mark_changed();
    loop {
        tokio::select! {
            changed = orders.changed() => {
                changed?;
                let order = orders.borrow_and_update().clone();
                if let Some(order) = order {
                    let line = serde_json::to_string(&order)? + "\n";
                    helper.stdin.write_all(line.as_bytes()).await?;
                }
            }
            line = helper.said.next_line() => match line? {
                Some(line) => tell(serde_json::from_str(&line)?),
                None => anyhow::bail!("it has ended: {}", helper.process.wait().await),
            },
            line = helper.words.next_line() => match line? {
                Some(line) => tracing::warn!("archive: {line}"),
                None => anyhow::bail!("it has ended: {}", helper.process.wait().await),
            },
        }
    }
}
