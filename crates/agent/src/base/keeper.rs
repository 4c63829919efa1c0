//! The agent's side of a base backup: starts the process that makes it, ends it when it is not wanted any more, and hears how far it is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::bail;
use api::backup::{BackupState, BackupTask, SnapshotProgress};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use super::{Order, Told};
use crate::process::{Helper, Signal, Supervisor};

/// The pause before a backup is begun again whose process was lost.
const PAUSE: Duration = Duration::from_secs(10);

/// Makes the backups that are ordered, for ever, and calls `tell` with how far each is. A backup is begun again if its process is lost;
/// what that process has said as its last word is final. `program` is the agent's own.
pub async fn keep(
    supervisor: Supervisor,
    program: PathBuf,
    mut orders: watch::Receiver<Option<Order>>,
    tell: impl Fn(BackupTask),
) {
    loop {
        let order = orders.borrow_and_update().clone();
        let heard = orders.clone();
        let changed = match &order {
            None => orders.changed().await,
            Some(order) => tokio::select! {
                changed = wait_for_another(&mut orders, order) => changed,
                () = make(&supervisor, &program, order, heard, &tell) => orders.changed().await,
            },
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Waits until another backup is ordered, or none, or another line of the archive is used. What changes beside that is nothing to a copy that has begun.
async fn wait_for_another(
    orders: &mut watch::Receiver<Option<Order>>,
    begun: &Order,
) -> Result<(), watch::error::RecvError> {
    let is_another = |order: &Option<Order>| {
        order
            .as_ref()
            .is_none_or(|order| order.copy != begun.copy || order.target.line != begun.target.line)
    };
    orders.wait_for(is_another).await.map(|_| ())
}

/// Makes a backup, until the process has said that it exists, or why there is none.
async fn make(
    supervisor: &Supervisor,
    program: &Path,
    order: &Order,
    mut orders: watch::Receiver<Option<Order>>,
    tell: &impl Fn(BackupTask),
) {
    // The holder waits for this word of a standby.
    tell(task(order, BackupState::Copying));
    loop {
        match run(supervisor, program, order, &mut orders, tell).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!("the backup is begun again: {error:#}");
                tell(BackupTask {
                    message: Some(format!("it is begun again: {error:#}")),
                    ..task(order, BackupState::Copying)
                });
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn run(
    supervisor: &Supervisor,
    program: &Path,
    order: &Order,
    orders: &mut watch::Receiver<Option<Order>>,
    tell: &impl Fn(BackupTask),
) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.arg("base-backup");
    let mut helper = Helper::start(supervisor, command)?;
    // The process ends when its standard input is closed; this is for one that hangs.
    let _end = End(supervisor, helper.process.pid);
    helper
        .stdin
        .write_all((serde_json::to_string(order)? + "\n").as_bytes())
        .await?;
    let mut known = order.snapshot.clone();
    loop {
        tokio::select! {
            progress = next_progress(orders, &known) => {
                helper.stdin.write_all((serde_json::to_string(&progress)? + "\n").as_bytes()).await?;
                known = Some(progress);
            }
            line = helper.said.next_line() => match line? {
                Some(line) => {
                    let task = told(order, serde_json::from_str(&line)?);
                    let is_final = task.state.is_final();
                    tell(task);
                    if is_final {
                        return Ok(());
                    }
                }
                None => bail!("its process has ended: {}", helper.process.wait().await),
            },
            Ok(Some(line)) = helper.words.next_line() => tracing::info!("backup: {line}"),
        }
    }
}

/// How far the VolumeSnapshot is, once that is something else than `before`.
async fn next_progress(
    orders: &mut watch::Receiver<Option<Order>>,
    before: &Option<SnapshotProgress>,
) -> SnapshotProgress {
    loop {
        let progress = orders
            .borrow_and_update()
            .as_ref()
            .and_then(|order| order.snapshot.clone());
        match progress.filter(|progress| before.as_ref() != Some(progress)) {
            Some(progress) => return progress,
            None if orders.changed().await.is_ok() => {}
            None => std::future::pending().await,
        }
    }
}

/// Ends the process when it is dropped; does nothing after its end.
struct End<'a>(&'a Supervisor, u32);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.signal(self.1, Signal::KILL) {
            tracing::debug!("end the backup's process: {error}");
        }
    }
}

fn task(order: &Order, state: BackupState) -> BackupTask {
    BackupTask {
        uid: order.copy.uid.clone(),
        attempt: order.copy.attempt,
        source: Some(order.copy.origin.clone()),
        state,
        copied_bytes: None,
        total_bytes: None,
        message: None,
        snapshot: None,
        damaged_pages: false,
        backup: None,
    }
}

/// What the process has said, as the Lease tells it.
fn told(order: &Order, told: Told) -> BackupTask {
    match told {
        Told::Copying { bytes, total, .. } => BackupTask {
            copied_bytes: Some(bytes),
            total_bytes: (total > 0).then_some(total),
            ..task(order, BackupState::Copying)
        },
        Told::WaitingForSnapshot { snapshot, message } => BackupTask {
            snapshot: Some(snapshot),
            message,
            ..task(order, BackupState::Copying)
        },
        Told::WaitingForWal { .. } => task(order, BackupState::WaitingForWal),
        Told::Completed(backup) => BackupTask {
            backup: Some(backup),
            ..task(order, BackupState::Completed)
        },
        Told::Failed { message, damaged_pages } => BackupTask {
            message: Some(message),
            damaged_pages,
            ..task(order, BackupState::Failed)
        },
    }
}
