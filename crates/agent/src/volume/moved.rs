//! `pg_wal` that moves to a WAL volume which the database was not made with.
//!
//! What is on the WAL volume counts from when the link is in PGDATA. Until then it is a copy, which a mark on the volume
//! says, and is made anew after a crash: PostgreSQL may have run on the original meanwhile, in a pod without the volume.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::files::{
    damaged, exists, failed, free, is_empty, make_directory, remove_tree, sync_parent, with_margin, write_atomically,
};
use super::{Volume, VolumeError};

impl Volume {
    /// Moves `pg_wal` to the WAL volume, if there is one and it is not there; also completes or takes back what was broken
    /// off. PostgreSQL must be stopped, and the volume reserved.
    pub fn move_wal(&self) -> Result<(), VolumeError> {
        let (pgdata, link, before) = (self.pgdata(), self.pgdata().join("pg_wal"), self.wal_before());
        let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        if self.wal.is_none() {
            // What a pod with the volume began is not completed without: a part of it is there.
            let given_way = self.giving_way()?.map(|place| place.join("pg_wal"));
            let places = [
                Some(link.clone()),
                Some(self.staging_pgdata().join("pg_wal")),
                given_way,
            ];
            if let Some(link) = places.into_iter().flatten().find(|path| is_link(path)) {
                let reason = "the WAL is on its own volume, which this pod was not given".to_owned();
                return Err(damaged(&link, reason));
            }
        }
        if self.is_setting_aside()? {
            return Ok(());
        }
        if !exists(&pgdata)? {
            return self.forget_copy();
        }
        if let Some(mount) = self.wal_mount().filter(|_| is_link(&link)) {
            if exists(&before)? {
                // The link is durable before what it took the place of goes.
                sync_parent(&link).map_err(failed("sync", &link))?;
                remove_tree(&before)?;
                sync_parent(&before).map_err(failed("sync", &before))?;
            }
            return remove_mark(&mark(mount));
        }
        if exists(&before)? && !exists(&link)? {
            rename(&before, &link)?;
        }
        match (self.wal_directory(), self.wal_mount()) {
            (Some(wal), Some(_)) if !exists(&link)? => {
                let reason = format!("it is missing: look for the WAL of this data in {}", wal.display());
                Err(damaged(&link, reason))
            }
            (Some(wal), Some(mount)) => self.copy_wal(&link, wal, &mark(mount)),
            _ => Ok(()),
        }
    }

    /// There is no data, so a copy that was begun is of none.
    fn forget_copy(&self) -> Result<(), VolumeError> {
        if let (Some(wal), Some(mount)) = (self.wal_directory(), self.wal_mount())
            && exists(&mark(mount))?
        {
            remove_tree(wal)?;
            sync_parent(wal).map_err(failed("sync", wal))?;
            remove_mark(&mark(mount))?;
        }
        Ok(())
    }

    fn copy_wal(&self, link: &Path, wal: &Path, mark: &Path) -> Result<(), VolumeError> {
        if exists(mark)? {
            remove_tree(wal)?;
        } else if !is_empty(wal)? {
            let reason = "it holds WAL, and so does PGDATA: empty the one that is of no use".to_owned();
            return Err(damaged(wal, reason));
        }
        write_atomically(mark, b"", 0o600).map_err(failed("write", mark))?;
        let needed = with_margin(size(link)?);
        let free = free(mark)?;
        if needed > free {
            return Err(VolumeError::NoRoom { needed, free });
        }
        tracing::info!(bytes = needed, "pg_wal moves to the WAL volume");
        copy(link, wal)?;
        sync_parent(wal).map_err(failed("sync", wal))?;
        let before = self.wal_before();
        rename(link, &before)?;
        symlink(wal, link).map_err(failed("make", link))?;
        sync_parent(link).map_err(failed("sync", link))?;
        remove_tree(&before)?;
        remove_mark(mark)
    }

    /// Where the original is between the two steps that put the link in its place.
    fn wal_before(&self) -> PathBuf {
        self.agent_directory().join("pg_wal.before")
    }
}

/// On the WAL volume: its `pg_wal` is a copy, unless the link is in PGDATA.
fn mark(mount: &Path) -> PathBuf {
    mount.join(".cdb-copy")
}

fn remove_mark(mark: &Path) -> Result<(), VolumeError> {
    if exists(mark)? {
        fs::remove_file(mark).map_err(failed("remove", mark))?;
        sync_parent(mark).map_err(failed("sync", mark))?;
    }
    Ok(())
}

/// Durably.
fn rename(from: &Path, to: &Path) -> Result<(), VolumeError> {
    fs::rename(from, to).map_err(failed("move", from))?;
    sync_parent(to).map_err(failed("sync", to))?;
    sync_parent(from).map_err(failed("sync", from))
}

/// The entries of a directory, each with whether it is one itself.
fn entries(path: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>, VolumeError> {
    let listed = fs::read_dir(path).map_err(failed("list", path))?;
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.path(), entry.metadata()?))
    };
    listed.map(|entry| read(entry).map_err(failed("read", path))).collect()
}

fn size(path: &Path) -> Result<u64, VolumeError> {
    let mut bytes = 0_u64;
    for (path, found) in entries(path)? {
        bytes = bytes.saturating_add(if found.is_dir() { size(&path)? } else { found.len() });
    }
    Ok(bytes)
}

/// Copies a directory; all of it is on disk then, but for its own name.
fn copy(from: &Path, to: &Path) -> Result<(), VolumeError> {
    make_directory(to).map_err(failed("make", to))?;
    for (path, found) in entries(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        if found.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(failed("copy", &path))?;
            let written = File::open(&target).and_then(|file| file.sync_all());
            written.map_err(failed("sync", &target))?;
        }
    }
    let directory = File::open(to).and_then(|directory| directory.sync_all());
    directory.map_err(failed("sync", to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::tests::Scratch;

    const SEGMENT: &str = "000000010000000000000001";

    /// A database that was made without a WAL volume, with this content.
    fn data(scratch: &Scratch, content: &str) -> Volume {
        let volume = scratch.volume();
        let wal = volume.pgdata().join("pg_wal");
        fs::create_dir_all(wal.join("archive_status")).expect("made");
        fs::write(wal.join(SEGMENT), content).expect("written");
        fs::write(wal.join("archive_status/x.done"), "").expect("written");
        volume
    }

    fn without(scratch: &Scratch) -> Volume {
        Volume::new(scratch.0.join("data"), None)
    }

    fn assert_moved(volume: &Volume, content: &str) {
        let (link, wal) = (
            volume.pgdata().join("pg_wal"),
            volume.wal_directory().expect("a WAL volume"),
        );
        assert_eq!(fs::read_link(&link).expect("a link"), wal);
        assert_eq!(fs::read_to_string(wal.join(SEGMENT)).expect("copied"), content);
        assert!(wal.join("archive_status/x.done").exists());
        assert!(!volume.wal_before().exists() && !mark(wal.parent().expect("a mount")).exists());
    }

    #[test]
    fn the_log_moves_once() {
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        without(&scratch)
            .move_wal()
            .expect("nothing to do without a WAL volume");
        volume.move_wal().expect("moved");
        assert_moved(&volume, "wal");
        fs::write(volume.pgdata().join("pg_wal").join(SEGMENT), "newer").expect("written");
        volume.move_wal().expect("it is there");
        assert_moved(&volume, "newer");
        assert!(without(&scratch).move_wal().is_err(), "its WAL is missing");
    }

    /// Leaves what a crash leaves after this many steps.
    fn break_off(volume: &Volume, steps: u32) {
        let (link, wal) = (
            volume.pgdata().join("pg_wal"),
            volume.wal_directory().expect("a WAL volume"),
        );
        fs::write(mark(wal.parent().expect("a mount")), "").expect("marked");
        fs::create_dir_all(wal).expect("made");
        fs::write(wal.join(SEGMENT), "torn").expect("written");
        if steps >= 1 {
            remove_tree(wal).expect("removed");
            copy(&link, wal).expect("copied");
        }
        if steps >= 2 {
            rename(&link, &volume.wal_before()).expect("moved");
        }
        if steps >= 3 {
            symlink(wal, &link).expect("linked");
        }
    }

    #[test]
    fn a_move_that_is_broken_off_is_completed() {
        for steps in 0..=3 {
            let scratch = Scratch::new();
            let volume = data(&scratch, "wal");
            break_off(&volume, steps);
            volume.move_wal().expect("completed");
            assert_moved(&volume, "wal");
        }
    }

    #[test]
    fn what_is_written_after_a_move_was_broken_off_counts() {
        for steps in 0..=2 {
            let scratch = Scratch::new();
            let volume = data(&scratch, "wal");
            break_off(&volume, steps);
            without(&scratch).move_wal().expect("taken back");
            fs::write(volume.pgdata().join("pg_wal").join(SEGMENT), "newer").expect("the original is in place");
            volume.move_wal().expect("moved");
            assert_moved(&volume, "newer");
        }
    }

    #[test]
    fn a_volume_with_other_wal_or_of_another_pod_is_not_touched() {
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        let wal = volume.wal_directory().expect("a WAL volume").to_owned();
        fs::create_dir_all(&wal).expect("made");
        fs::write(wal.join(SEGMENT), "whose").expect("written");
        assert!(!volume.move_wal().expect_err("it is not ours").is_full());
        assert_eq!(fs::read_to_string(wal.join(SEGMENT)).expect("kept"), "whose");
        assert!(!volume.pgdata().join("pg_wal").is_symlink());
        let another = volume.with_wal_of_another(Some("db-2".to_owned()));
        let refused = another.prepare().expect_err("refused");
        assert!(refused.to_string().contains("that of db-2"), "{refused}");
    }

    #[test]
    fn what_a_pod_with_the_volume_began_is_not_completed_without() {
        for place in ["staging/pgdata", "aside/1-0_0-1"] {
            let scratch = Scratch::new();
            let volume = scratch.volume();
            volume.prepare().expect("prepared");
            let directory = scratch.0.join("data").join(place);
            fs::create_dir_all(&directory).expect("made");
            symlink(volume.wal_directory().expect("a WAL volume"), directory.join("pg_wal")).expect("linked");
            if place.starts_with("aside") {
                let going = r#"{"name":"1-0_0-1","keep":true}"#;
                fs::write(volume.agent_directory().join("setting-aside.json"), going).expect("written");
            }
            volume.move_wal().expect("nothing to do yet");
            assert!(without(&scratch).move_wal().is_err(), "{place}");
        }
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        volume.move_wal().expect("moved");
        let going = r#"{"name":"1-0_0-1","keep":true}"#;
        fs::write(volume.agent_directory().join("setting-aside.json"), going).expect("written");
        assert!(without(&scratch).move_wal().is_err(), "setting aside has just begun");
    }

    #[test]
    fn a_copy_of_data_that_is_gone_is_removed() {
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        break_off(&volume, 0);
        remove_tree(&volume.pgdata()).expect("removed");
        volume.move_wal().expect("forgotten");
        let wal = volume.wal_directory().expect("a WAL volume");
        assert!(!wal.exists() && !mark(wal.parent().expect("a mount")).exists());
    }

    #[test]
    fn data_without_any_log_is_named() {
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        remove_tree(&volume.pgdata().join("pg_wal")).expect("removed");
        let refused = volume.move_wal().expect_err("it is missing").to_string();
        assert!(
            refused.contains(&volume.wal_directory().expect("there").display().to_string()),
            "{refused}"
        );
    }

    #[test]
    fn there_has_to_be_room_for_more_than_the_log() {
        assert_eq!(with_margin(0), 64 << 20);
        assert_eq!(with_margin(10 << 30), 11 << 30);
    }

    #[test]
    fn what_does_not_fit_stays() {
        let scratch = Scratch::new();
        let volume = data(&scratch, "wal");
        let large = File::create(volume.pgdata().join("pg_wal/large")).expect("made");
        large
            .set_len(1 << 60)
            .or_else(|_| large.set_len(1 << 43))
            .expect("a sparse file");
        let refused = volume.move_wal().expect_err("no room");
        assert!(
            matches!(refused, VolumeError::NoRoom { .. }) && refused.is_full(),
            "{refused}"
        );
        assert!(!volume.pgdata().join("pg_wal").is_symlink());
        fs::remove_file(volume.pgdata().join("pg_wal/large")).expect("removed");
        volume.move_wal().expect("moved");
        assert_moved(&volume, "wal");
    }
}
