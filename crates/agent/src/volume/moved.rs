//! Moving `pg_wal` to a WAL volume that was added after the database was made.
//!
//! The files on the WAL volume count from the moment at which the link is in PGDATA. Until then they are a copy, and a
//! mark on the volume says so. After a crash the copy is made again: meanwhile PostgreSQL may have run on the original,
//! in a pod without the volume.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::files::{
    damaged, exists, failed, free, is_empty, make_directory, remove_tree, sync_parent, with_margin, write_atomically,
};
use super::{Volume, VolumeError};

impl Volume {
    /// Moves `pg_wal` to the WAL volume, if there is one and `pg_wal` is not there yet. Also completes or takes back a
    /// move that broke off. PostgreSQL must be stopped, and the volume reserved.
    ///
    /// # Errors
    /// Fails with [`VolumeError::NoRoom`] if the WAL does not fit. Fails with [`VolumeError::Damaged`] if the WAL is on
    /// a volume that this pod does not have, or if `pg_wal` is missing, or if both places hold WAL. Fails with
    /// [`VolumeError::File`] if a file operation fails.
    pub fn move_wal(&self) -> Result<(), VolumeError> {
        let (pgdata, link, before) = (self.pgdata(), self.pgdata().join("pg_wal"), self.wal_before());
        let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        if self.wal.is_none() {
            // A pod without the volume does not complete what a pod with it began: a part of the data is on that
            // volume.
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
                // The link must be durable before the original is removed.
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

    /// Removes a copy that was begun: there is no data, so there is no original.
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

    /// Where the original `pg_wal` is between the two steps that put the link into its place.
    fn wal_before(&self) -> PathBuf {
        self.agent_directory().join("pg_wal.before")
    }
}

/// The mark on the WAL volume that its `pg_wal` is only a copy, unless the link is in PGDATA.
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

/// Renames durably.
fn rename(from: &Path, to: &Path) -> Result<(), VolumeError> {
    fs::rename(from, to).map_err(failed("move", from))?;
    sync_parent(to).map_err(failed("sync", to))?;
    sync_parent(from).map_err(failed("sync", from))
}

/// The entries of a directory, with their metadata.
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

/// Copies a directory. All of it is on disk then, except its own name.
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
mod tests;
