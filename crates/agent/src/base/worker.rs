//! One backup, from the order to `backup.json`.

use std::cell::Cell;
use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use api::backup::StoredBackup;
use backup::Problem;
use backup::base::{About, BackupInfo, PART_SIZE, WalRange, Writer, Written, backups, format_lsn, missing, needed};
use backup::layout::BackupName;
use chrono::{DateTime, Utc};
use machine::units::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::copy::copy;
use super::server::Server;
use super::{Order, Told, server};
use crate::archive::{Attached, LINE, attach, give_way_to_others};

/// Time limit of a request to the store that transfers little.
const LIMIT: Duration = Duration::from_secs(45);
/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(1);
/// The pause between looks for the WAL.
const LOOK: Duration = Duration::from_secs(1);
/// How long the WAL may take to be archived. An archive that is behind by more has a problem of its own, which is told.
const WAL: Duration = Duration::from_secs(30 * 60);

/// Makes one base backup: the order comes as a line of JSON on standard input, and what becomes of it goes to standard
/// output. It ends at once when standard input is closed.
///
/// # Errors
/// Fails if there is no backup in the end.
pub fn work() -> anyhow::Result<()> {
    give_way_to_others();
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("read the order")?;
    let order: Order = serde_json::from_str(&line).context("read the order")?;
    let (close, closed) = oneshot::channel::<()>();
    std::thread::Builder::new().name("input".into()).spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
        }
        drop(close);
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let made = runtime.block_on(async {
        tokio::select! {
            made = make(&order) => made,
            // Dropping the work kills pg_basebackup.
            _ = closed => Err(anyhow::anyhow!("the agent wants no backup any more")),
        }
    });
    runtime.shutdown_background();
    match made {
        Ok(info) => {
            tell(&completed(&info));
            Ok(())
        }
        Err(error) => {
            tell(&Told::Failed {
                message: format!("{error:#}"),
            });
            Err(error)
        }
    }
}

async fn make(order: &Order) -> anyhow::Result<BackupInfo> {
    let server = server::ask(order).await?;
    let attached = attach(&order.target, &order.access, Bytes(server.wal_segment_size)).await?;
    let known = backups(attached.store(), attached.folder(), LINE, LIMIT).await?;
    if let Some(made) = known.into_iter().find(|backup| backup.uid == order.backup_uid) {
        return Ok(made);
    }
    let start_time = Utc::now();
    let name = name(start_time, &order.backup_uid)?;
    let told = name.to_string();
    let copying = |bytes| Told::Copying {
        name: told.clone(),
        bytes,
        total: server.bytes,
    };
    tell(&copying(0));
    let last = Cell::new(Instant::now());
    let writer = Writer::new(
        attached.store().clone(),
        attached.folder().clone(),
        LINE,
        name,
        PART_SIZE,
    )
    .with_recipients(attached.recipients().cloned());
    let written = copy(order, writer, |bytes| {
        if last.get().elapsed() >= PROGRESS {
            last.set(Instant::now());
            tell(&copying(bytes));
        }
    });
    let written = written.await?;
    let stop_time = Utc::now();
    tell(&Told::WaitingForWal {
        name: told.clone(),
        up_to: format_lsn(written.stop_lsn()),
    });
    wait_for_wal(&attached, written.wal_ranges(), server.wal_segment_size).await?;
    commit(&written, order, &server, [start_time, stop_time]).await
}

/// The name of a backup that begins now, with the first four digits of the UID.
fn name(now: DateTime<Utc>, uid: &str) -> anyhow::Result<BackupName> {
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(4).collect();
    let name = format!("{}-F-{}", now.format("%Y%m%dT%H%M%SZ"), digits.to_ascii_lowercase());
    name.parse()
        .with_context(|| format!("name a backup after the UID {uid:?}"))
}

async fn wait_for_wal(attached: &Attached, ranges: &[WalRange], segment_size: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut waiting = needed(ranges, segment_size);
    while !waiting.is_empty() {
        match missing(attached.store(), attached.folder(), LINE, &waiting, LIMIT).await {
            Ok(still) => waiting = still,
            Err(problem) if problem.is_transient() => eprintln!("look for the archived WAL: {problem}"),
            Err(problem) => return Err(problem).context("look for the archived WAL"),
        }
        match waiting.first() {
            Some(first) if begun.elapsed() >= WAL => bail!(
                "WAL that the backup needs was not archived within {} minutes: {first} and {} more",
                WAL.as_secs() / 60,
                waiting.len() - 1
            ),
            Some(_) => sleep(LOOK).await,
            None => {}
        }
    }
    Ok(())
}

async fn commit(
    written: &Written,
    order: &Order,
    server: &Server,
    [start_time, stop_time]: [DateTime<Utc>; 2],
) -> anyhow::Result<BackupInfo> {
    let about = About {
        uid: order.backup_uid.clone(),
        system_id: order.target.system_id.clone(),
        server_version: server.version,
        wal_segment_size: server.wal_segment_size,
        start_time,
        stop_time,
    };
    let committed: Result<BackupInfo, Problem> = written.commit(about).await;
    committed.context("write backup.json")
}

fn completed(info: &BackupInfo) -> Told {
    Told::Completed(StoredBackup {
        name: info.name.to_string(),
        timeline: info.timeline,
        start_lsn: format_lsn(info.start_lsn),
        stop_lsn: format_lsn(info.stop_lsn),
        start_time: info.start_time,
        stop_time: info.stop_time,
        data_bytes: info.raw_bytes,
        stored_bytes: info.stored_bytes,
    })
}

/// Says it. The agent that does not listen any more has closed standard input, too.
fn tell(told: &Told) {
    let line = serde_json::to_string(told).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone;

    use super::*;

    #[test]
    fn a_backup_is_named_after_time_and_uid() {
        let now = Utc.with_ymd_and_hms(2026, 11, 26, 18, 30, 5).single().expect("a time");
        let named = name(now, "C0-ffee00-1").expect("a name");
        assert_eq!(named.to_string(), "20261126T183005Z-F-c0ff");
        assert!(name(now, "c0").is_err());
    }
}
