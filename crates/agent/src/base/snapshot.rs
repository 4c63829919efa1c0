//! Backup mode, while the operator has the storage make a VolumeSnapshot of the data volume.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use api::backup::{SnapshotProgress, SnapshotState};
use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Order;
use super::server::connect;

/// What the operator tells of VolumeSnapshots.
pub(super) type Heard = watch::Receiver<Option<SnapshotProgress>>;

/// No user's functions take the place of PostgreSQL's. The checkpoint at the begin takes as long as it takes.
const OPTIONS: &str = "-c search_path=pg_catalog -c statement_timeout=0 -c idle_session_timeout=0";
/// How long the storage may take until the snapshot has the content of a moment.
const TAKEN: Duration = Duration::from_secs(30 * 60);
/// How long it may take then until volumes can be made from it. Some storage copies all of it first.
const READY: Duration = Duration::from_secs(24 * 3_600);

/// The end of backup mode.
pub(super) struct Stopped {
    /// The file `backup_label`.
    pub(super) label: String,
    /// Where in the WAL it was, as PostgreSQL writes it.
    pub(super) lsn: String,
    /// When it was.
    pub(super) time: DateTime<Utc>,
}

/// Waits in backup mode until the VolumeSnapshot of this name is taken, and then until it is ready. `tell` is called at the begin, and with
/// each message of the storage.
pub(super) async fn take_snapshot(
    order: &Order,
    name: &str,
    mut heard: Heard,
    tell: impl Fn(Option<String>),
) -> anyhow::Result<Stopped> {
    let client = connect(order, OPTIONS).await?;
    let spaces = "SELECT count(*)::int8 FROM pg_tablespace WHERE spcname NOT IN ('pg_default', 'pg_global')";
    let spaces = client
        .query_typed_one(spaces, &[])
        .await
        .context("ask PostgreSQL for its tablespaces")?;
    ensure!(
        spaces.try_get::<_, i64>(0)? == 0,
        "there is a tablespace: backups cannot hold tablespaces yet"
    );
    let label = &order.copy.uid;
    let start = format!("SELECT pg_backup_start('{}', fast => true)", label.replace('\'', ""));
    client.batch_execute(&start).await.context("begin backup mode")?;
    tell(None);
    reached(SnapshotState::Taken, TAKEN, name, &mut heard, &tell).await?;
    let stop = "SELECT lsn::text, labelfile FROM pg_backup_stop(wait_for_archive => false)";
    let stopped = client.query_typed_one(stop, &[]).await.context("end backup mode")?;
    let stopped = Stopped {
        lsn: stopped.try_get(0)?,
        label: stopped.try_get(1)?,
        time: Utc::now(),
    };
    drop(client);
    reached(SnapshotState::Ready, READY, name, &mut heard, &tell).await?;
    Ok(stopped)
}

/// Waits until the VolumeSnapshot is so far.
async fn reached(
    state: SnapshotState,
    limit: Duration,
    name: &str,
    heard: &mut Heard,
    tell: &impl Fn(Option<String>),
) -> anyhow::Result<()> {
    let mut message = None;
    let waited = timeout(limit, async {
        loop {
            let progress = heard
                .borrow_and_update()
                .clone()
                .filter(|progress| progress.name == name);
            if let Some(progress) = progress {
                if progress.message != message {
                    message = progress.message;
                    tell(message.clone());
                }
                if progress.state >= state {
                    return Ok(progress.state);
                }
            }
            heard.changed().await.context("the agent says nothing any more")?;
        }
    });
    match waited.await {
        Ok(Ok(SnapshotState::Failed)) => bail!("VolumeSnapshot {name}: {}", message.unwrap_or_default()),
        Ok(reached) => reached.map(|_| ()),
        Err(_) => bail!(
            "VolumeSnapshot {name} was not made within {} minutes{}",
            limit.as_secs() / 60,
            message.map_or_else(String::new, |message| format!(": {message}"))
        ),
    }
}
