//! One backup, from the order to `backup.json`.

use std::cell::Cell;
use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use api::backup::{BackupKind, BackupOrigin, BackupRole, StoredBackup, snapshot_name};
use backup::Problem;
use backup::base::{
    About, Attempt, BackupInfo, Begun, Catalogue, Origin, PART_SIZE, Role, Snapshot, WalRange, Writer, Written, begin,
    catalogue, format_lsn, is_discarded, missing, needed,
};
use backup::layout::BackupName;
use chrono::{DateTime, TimeDelta, Utc};
use machine::instance::backup::BackupCopy;
use machine::units::Bytes;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

use super::copy::{DamagedPages, copy};
use super::server::Server;
use super::snapshot::{Heard, take_snapshot};
use super::{Order, Told, server};
use crate::archive::{Attached, attach, give_way_to_others};

/// Time limit of a request to the store that transfers little.
const LIMIT: Duration = Duration::from_secs(45);
/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(1);
/// The first pause between looks for the WAL, which is there soon. Each is twice as long as the one before.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// The longest one.
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
    let (hear, heard) = watch::channel(order.snapshot.clone());
    std::thread::Builder::new().name("input".into()).spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(progress) => drop(hear.send(Some(progress))),
                Err(error) => eprintln!("a line is not understood: {error}"),
            }
        }
        drop(close);
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let made = runtime.block_on(async {
        tokio::select! {
            made = make(&order, heard) => made,
            // PostgreSQL ends the copy when the work is dropped.
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
                damaged_pages: error.is::<DamagedPages>(),
            });
            Err(error)
        }
    }
}

async fn make(order: &Order, heard: Heard) -> anyhow::Result<BackupInfo> {
    let server = server::ask(order).await?;
    let attached = attach(&order.target, &order.access, Bytes(server.wal_segment_size)).await?;
    let known = catalogue(attached.store(), attached.folder(), attached.line(), LIMIT).await?;
    if let Some(made) = known.complete.iter().find(|backup| backup.uid == order.copy.uid) {
        return Ok(made.clone());
    }
    let start_time = Utc::now();
    let name = unused_name(start_time, &order.copy, &known)?;
    let attempt = Attempt {
        uid: order.copy.uid.clone(),
        number: order.copy.attempt,
    };
    let begun = begin(
        attached.store(),
        attached.folder(),
        attached.line(),
        &name,
        &attempt,
        LIMIT,
    )
    .await;
    let known = match begun.context("begin the backup")? {
        Begun::First(known) => known,
        Begun::Made(made) => return Ok(*made),
        Begun::Late(number) => bail!("attempt {number} at this backup has begun"),
    };
    let written = match order.copy.kind {
        BackupKind::Full => copied(order, &attached, &server, &name).await,
        BackupKind::Snapshot => taken(order, &attached, &name, heard).await,
    };
    let (written, stop_time) = written?;
    check_ranges(written.wal_ranges(), &known)?;
    tell(&Told::WaitingForWal { name: name.to_string() });
    wait_for_wal(&attached, written.wal_ranges(), server.wal_segment_size).await?;
    let info = commit(&written, order, &server, [start_time, stop_time]).await?;
    let discarded = is_discarded(attached.store(), attached.folder(), attached.line(), &name, LIMIT);
    ensure!(!discarded.await?, "another attempt at this backup has begun");
    Ok(info)
}

/// All files, copied into the store.
async fn copied(
    order: &Order,
    attached: &Attached,
    server: &Server,
    name: &BackupName,
) -> anyhow::Result<(Written, DateTime<Utc>)> {
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
        attached.line(),
        name.clone(),
        PART_SIZE,
    )
    .with_recipients(attached.recipients().cloned());
    let written = copy(order, writer, |bytes| {
        if last.get().elapsed() >= PROGRESS {
            last.set(Instant::now());
            tell(&copying(bytes));
        }
    });
    Ok((written.await?, Utc::now()))
}

/// A VolumeSnapshot that the operator makes.
async fn taken(
    order: &Order,
    attached: &Attached,
    name: &BackupName,
    heard: Heard,
) -> anyhow::Result<(Written, DateTime<Utc>)> {
    let snapshot = snapshot_name(attached.folder().base_name(), &name.to_string());
    let waits = |message| {
        tell(&Told::WaitingForSnapshot {
            snapshot: snapshot.clone(),
            message,
        });
    };
    let stopped = take_snapshot(order, &snapshot, heard, waits).await?;
    let (store, folder) = (attached.store().clone(), attached.folder().clone());
    let label = stopped.label;
    let written = Written::of_snapshot(
        store,
        folder,
        attached.line(),
        name.clone(),
        Snapshot { name: snapshot, label },
        &stopped.lsn,
    );
    Ok((written?, stopped.time))
}

/// Checks the WAL that a copy needs. A standby begins where it has begun to replay, which may be long ago.
fn check_ranges(ranges: &[WalRange], known: &[BackupInfo]) -> anyhow::Result<()> {
    let [range] = ranges else {
        // The segment in which a timeline ends is never archived as a whole.
        bail!("the primary has changed during the copy");
    };
    let of_timeline = known.iter().filter(|backup| backup.timeline == range.timeline);
    let newest = of_timeline.map(|backup| backup.start_lsn).max().unwrap_or_default();
    // The retention relies on it: it removes WAL from before a complete backup.
    ensure!(
        range.start_lsn >= newest,
        "this standby is behind: its copy begins at {}, and the newest backup at {}",
        format_lsn(range.start_lsn),
        format_lsn(newest)
    );
    Ok(())
}

/// The name of a backup that begins now, with the first four digits of the UID.
fn name(now: DateTime<Utc>, copy: &BackupCopy) -> anyhow::Result<BackupName> {
    let uid = &copy.uid;
    let kind = match copy.kind {
        BackupKind::Full => 'F',
        BackupKind::Snapshot => 'S',
    };
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(4).collect();
    let name = format!(
        "{}-{kind}-{}",
        now.format("%Y%m%dT%H%M%SZ"),
        digits.to_ascii_lowercase()
    );
    name.parse()
        .with_context(|| format!("name a backup after the UID {uid:?}"))
}

/// The same, or the name of the next second that no other attempt has: the one before may have failed at once.
fn unused_name(now: DateTime<Utc>, copy: &BackupCopy, known: &Catalogue) -> anyhow::Result<BackupName> {
    let mut name = name(now, copy)?;
    for seconds in 1.. {
        if !known.unfinished.contains(&name) && known.complete.iter().all(|backup| backup.name != name) {
            break;
        }
        name = self::name(now + TimeDelta::seconds(seconds), copy)?;
    }
    Ok(name)
}

async fn wait_for_wal(attached: &Attached, ranges: &[WalRange], segment_size: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut waiting = needed(ranges, segment_size);
    let mut pause = FIRST_LOOK;
    while !waiting.is_empty() {
        match missing(attached.store(), attached.folder(), attached.line(), &waiting, LIMIT).await {
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
            Some(_) => sleep(pause).await,
            None => {}
        }
        pause = LOOK.min(pause * 2);
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
        uid: order.copy.uid.clone(),
        system_id: order.target.system_id.clone(),
        server_version: server.version,
        wal_segment_size: server.wal_segment_size,
        start_time,
        stop_time,
        source: Some(Origin {
            member: order.copy.origin.member.clone(),
            role: match order.copy.origin.role {
                BackupRole::Primary => Role::Primary,
                BackupRole::Standby => Role::Standby,
            },
        }),
        damaged_pages: order.copy.accepts_damage,
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
        source: info.source.as_ref().map(|source| BackupOrigin {
            member: source.member.clone(),
            role: match source.role {
                Role::Primary => BackupRole::Primary,
                Role::Standby => BackupRole::Standby,
            },
        }),
        damaged_pages: info.damaged_pages,
        snapshot: info.snapshot.as_ref().map(|snapshot| snapshot.name.clone()),
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
        let copy = |kind, uid: &str| BackupCopy {
            uid: uid.to_owned(),
            attempt: 1,
            origin: BackupOrigin {
                member: "shop-0".to_owned(),
                role: BackupRole::Primary,
            },
            kind,
            accepts_damage: false,
        };
        let full = copy(BackupKind::Full, "C0-ffee00-1");
        let named = name(now, &full).expect("a name");
        assert_eq!(named.to_string(), "20261126T183005Z-F-c0ff");
        let snapshot = name(now, &copy(BackupKind::Snapshot, "C0-ffee00-1")).expect("a name");
        assert_eq!(snapshot.to_string(), "20261126T183005Z-S-c0ff");
        assert!(name(now, &copy(BackupKind::Full, "c0")).is_err());
        let known = Catalogue {
            unfinished: [named.clone()].into(),
            ..Catalogue::default()
        };
        let next = unused_name(now, &full, &known).expect("a name");
        assert_eq!(next.to_string(), "20261126T183006Z-F-c0ff");
        assert_eq!(unused_name(now, &full, &Catalogue::default()).ok(), Some(named));
    }

    #[test]
    fn a_copy_needs_wal_of_one_timeline_that_no_retention_removes() {
        let range = |timeline, start_lsn| WalRange {
            timeline,
            start_lsn,
            stop_lsn: 0x300_0000,
        };
        let known = |timeline: u32| -> BackupInfo {
            let known = serde_json::json!({
                "v": 1, "name": "20261126T183005Z-F-c0ff", "uid": "u", "systemId": "7", "serverVersion": 150_014,
                "timeline": timeline, "startLsn": "0/2000028", "stopLsn": "0/2000100", "startTime": "2026-11-26T18:30:05Z",
                "stopTime": "2026-11-26T18:30:06Z", "walSegmentSize": 1 << 24, "rawBytes": 1, "storedBytes": 1, "parts": [],
            });
            serde_json::from_value(known).expect("the info of an earlier version")
        };
        let refused = |ranges: &[WalRange], known: &[BackupInfo]| {
            check_ranges(ranges, known).err().map(|error| error.to_string())
        };
        assert_eq!(refused(&[range(1, 0x200_0028)], &[known(1)]), None);
        let behind = refused(&[range(1, 0x200_0027)], &[known(1)]).expect("refused");
        assert!(
            behind.contains("begins at 0/2000027, and the newest backup at 0/2000028"),
            "{behind}"
        );
        assert_eq!(
            refused(&[range(2, 0x200_0027)], &[known(1)]),
            None,
            "of an abandoned timeline"
        );
        assert!(refused(&[range(1, 1), range(2, 2)], &[]).is_some());
    }
}
