//! Files that are either whole on disk or absent.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::VolumeError;

/// Makes a [`VolumeError`] of the error of a file operation.
pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::File { action, path, source }
}

/// Replaces `path` by a file with this content and mode, durably. After a crash it holds the old or the new content;
/// once this function has returned, it holds the new content.
///
/// # Errors
/// Fails if the file beside `path` cannot be written, synchronized or renamed; `path` then holds its old content.
pub(crate) fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write_whole(path, content, mode)?;
    sync_parent(path)
}

/// As [`write_atomically`], but after a crash of the machine the file may hold the old content again.
///
/// # Errors
/// As [`write_atomically`].
pub(crate) fn write_whole(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace(path, content, mode, File::sync_all)
}

/// As [`write_atomically`], but nothing is synchronized to disk. For files that are always written again before they
/// are read after a crash of the machine.
///
/// # Errors
/// Fails if the file beside `path` cannot be written or renamed.
pub(crate) fn write_for_now(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace(path, content, mode, |_| Ok(()))
}

fn replace(path: &Path, content: &[u8], mode: u32, sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(".new");
    let staged = PathBuf::from(staged);
    match fs::remove_file(&staged) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&staged)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    sync(&file)?;
    fs::rename(&staged, path)
}

/// Makes a directory, and those above it, that only its owner may enter.
///
/// # Errors
/// Fails if a directory cannot be made.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Synchronizes to disk the names in the directory of `path`.
///
/// # Errors
/// Fails if the directory cannot be opened or synchronized.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Reads a file; `None` only if it does not exist.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub(crate) fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads what an agent has stored as JSON; `None` only if the file does not exist.
///
/// # Errors
/// Fails with [`VolumeError::File`] if the file cannot be read, and with [`VolumeError::Damaged`] if it is not
/// understood or is of another version than `known`.
pub(super) fn read_store<T: DeserializeOwned>(
    path: &Path,
    known: u32,
    version: impl FnOnce(&T) -> u32,
) -> Result<Option<T>, VolumeError> {
    let Some(content) = read_if_there(path).map_err(failed("read", path))? else {
        return Ok(None);
    };
    let stored = machine::json::parse(content.as_bytes()).map_err(|error| damaged(path, error.to_string()))?;
    match version(&stored) {
        found if found == known => Ok(Some(stored)),
        found => Err(damaged(path, format!("version {found} is not known to this agent"))),
    }
}

pub(super) fn damaged(path: &Path, reason: String) -> VolumeError {
    VolumeError::Damaged {
        path: path.to_owned(),
        reason,
    }
}

/// True if there is something at `path`; a dangling link counts.
pub(super) fn exists(path: &Path) -> Result<bool, VolumeError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("look for", path)(error)),
    }
}

/// True if there is no such directory, or nothing in it.
pub(super) fn is_empty(path: &Path) -> Result<bool, VolumeError> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(failed("list", path)(error)),
    }
}

/// True if a file system had no room for the write.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Tries to write to the file system mounted at `mount`. A full file system counts as writable: it only lacks room.
pub(super) fn try_writing(mount: &Path) -> io::Result<()> {
    let probe = mount.join(".cdb-writable");
    match write_atomically(&probe, b"", 0o600).and_then(|()| fs::remove_file(&probe)) {
        Err(error) if is_full(&error) => Ok(()),
        tried => tried,
    }
}

/// Bytes that are free on the file system of `path`.
pub(super) fn free(path: &Path) -> Result<u64, VolumeError> {
    let found = rustix::fs::statvfs(path).map_err(|error| failed("measure", path)(error.into()))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// `bytes` and a margin: a tenth, and at least four segments of the usual size. PostgreSQL writes WAL as soon as it
/// runs.
pub(super) fn with_margin(bytes: u64) -> u64 {
    bytes.saturating_add((bytes / 10).max(4 * (16 << 20)))
}

/// Removes a file. Does nothing if there is no such file.
pub(super) fn remove_file(path: &Path) -> Result<(), VolumeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a directory with its content; links are removed, not followed. Does nothing if there is no such directory.
pub(super) fn remove_tree(path: &Path) -> Result<(), VolumeError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}
