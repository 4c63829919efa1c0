//! The files of a VolumeSnapshot as those of a backup: what a server that runs has on its volume, and no backup has, goes.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use backup::base::Snapshot;
use machine::recovery::Plan;

use super::{RecoveryError, blocking_file, link_wal, remove_if_there};
use crate::tools::Tools;
use crate::volume::{Volume, make_directory, write_for_now};

/// Files that `BASE_BACKUP` leaves out of the data directory (PostgreSQL, `excludeFiles` in `basebackup.c`), and those that say what the server
/// was before.
const FILES: [&str; 8] = [
    "postmaster.pid",
    "postmaster.opts",
    "current_logfiles",
    "postgresql.auto.conf.tmp",
    "backup_label.old",
    "tablespace_map",
    "standby.signal",
    "recovery.signal",
];
/// Directories of which it leaves the content out (`excludeDirContents`). The WAL comes from the archive: what lies here may go on behind the
/// target, or belong to another timeline.
const DIRECTORIES: [&str; 8] = [
    "pg_stat_tmp",
    "pg_replslot",
    "pg_dynshmem",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_subtrans",
    "pg_wal",
];

/// Puts the files that came with the volume into the staged PGDATA, as a backup that was just unpacked. What an earlier try has left is gone on
/// with: there are no other files. PostgreSQL takes up a recovery that was interrupted by itself.
pub(super) async fn stage(
    tools: &Tools,
    volume: &Volume,
    snapshot: &Snapshot,
    plan: &Plan,
) -> Result<(), RecoveryError> {
    volume.blocking(Volume::stage_snapshot).await?;
    let timeline = volume.staged_control_data(tools).await?.newest_timeline();
    if timeline > plan.timeline {
        let words = format!(
            "an earlier try has ended on timeline {}, beyond what is recovered now: delete the ClusteredDatabase with its volumes and make it \
             again, so that a new volume is made from the VolumeSnapshot",
            timeline.0
        );
        return Err(RecoveryError::NotReached(words));
    }
    let (wal, label) = (volume.wal_directory().map(ToOwned::to_owned), snapshot.label.clone());
    let done = volume.staging().join("in-order");
    blocking_file(volume, "put the files of the VolumeSnapshot in order", move |pgdata| {
        if done.exists() {
            return Ok(());
        }
        as_backup(pgdata, wal.as_deref(), &label)?;
        write_for_now(&done, b"", 0o600)
    })
    .await
}

fn as_backup(pgdata: &Path, wal: Option<&Path>, label: &str) -> io::Result<()> {
    for file in FILES {
        remove_if_there(&pgdata.join(file))?;
    }
    for name in DIRECTORIES {
        let directory = pgdata.join(name);
        if fs::symlink_metadata(&directory).is_ok_and(|found| found.is_symlink()) {
            fs::remove_file(&directory)?;
        }
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if name != "pg_wal" || wal.is_none() {
            make_directory(&directory)?;
        }
    }
    if let Some(wal) = wal {
        link_wal(pgdata, wal)?;
    }
    make_directory(&pgdata.join("pg_wal/archive_status"))?;
    write_for_now(&pgdata.join("backup_label"), label.as_bytes(), 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::tests::Scratch;

    #[test]
    fn only_what_a_backup_has_stays() {
        let scratch = Scratch::new();
        let pgdata = scratch.0.join("pgdata");
        let wal = scratch.0.join("wal/pg_wal");
        for directory in ["base/1", "pg_wal/archive_status", "pg_replslot/shop_1", "pg_xact"] {
            fs::create_dir_all(pgdata.join(directory)).expect("made");
        }
        for file in [
            "base/1/1259",
            "postmaster.pid",
            "pg_wal/000000010000000000000007",
            "pg_replslot/shop_1/state",
        ] {
            fs::write(pgdata.join(file), "x").expect("written");
        }
        for wal in [None, Some(wal.as_path())] {
            as_backup(&pgdata, wal, "START WAL LOCATION").expect("in order");
            for (path, is_there) in [
                ("base/1/1259", true),
                ("pg_xact", true),
                ("pg_wal/archive_status", true),
                ("pg_notify", true),
                ("backup_label", true),
                ("pg_wal/000000010000000000000007", false),
                ("pg_replslot/shop_1", false),
                ("postmaster.pid", false),
            ] {
                assert_eq!(pgdata.join(path).exists(), is_there, "{path}");
            }
            let link = fs::symlink_metadata(pgdata.join("pg_wal")).expect("there");
            assert_eq!(link.is_symlink(), wal.is_some());
        }
    }
}
