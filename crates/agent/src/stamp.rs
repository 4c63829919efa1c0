//! Noticing that a file was replaced, as the kubelet replaces those of a Secret.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Inode and time of the last change of a file; `None` if there is no file.
pub(crate) type Stamp = Option<(u64, i64, i64)>;

/// The stamp of the file at `path`, or of what a link there leads to.
pub(crate) fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).ok()?;
    Some((file.ino(), file.mtime(), file.mtime_nsec()))
}
