//! First segments of timelines that were cut off before their timeline begins.
//!
//! The stream of a new timeline begins with the segment in which it forks off. The beginning of this segment is the
//! ancestor's WAL, byte for byte. The segment is cut off before the fork if the standby dies while it receives it.
//! PostgreSQL (15 to 18) then reads this segment all the same, and never the ancestor's, which has more. So each start
//! fails ("WAL location … belongs to timeline 1, but previous recovered WAL file came from timeline 2"). Without a
//! primary to stream from, the start takes the cut for the end of all WAL.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use machine::protocol::Timeline;

use super::history;
use crate::volume::sync_parent;

/// Removes such segments from `wal` (`pg_wal` of a stopped server), and those that end exactly at the fork, and returns
/// their names. They have no record of their timeline.
/// - A segment stays unless the ancestor's segment holds everything that it holds.
/// - If a newest timeline has no other segment, its history file is removed, too. Its ancestor may go on past the fork,
///   and would be replayed there in place of the new timeline's WAL.
/// - It stops when `asked` returns false.
///
/// # Errors
/// Fails if a file cannot be read or removed, or if `asked` returned false.
pub(super) fn remove(wal: &Path, segment: u32, asked: impl Fn() -> bool) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for (timeline, forks) in history::known(wal)?.into_iter().rev() {
        // Several forks may be in one segment; it is read once.
        let (mut read, mut has) = (None, Vec::new());
        for fork in forks {
            let (number, offset) = (fork.end.0 / u64::from(segment), fork.end.0 % u64::from(segment));
            let name = |of| name(of, number, segment);
            let (own, ancestors) = (wal.join(name(timeline)), wal.join(name(fork.timeline)));
            if !is_zero_at(&own, offset)? {
                continue;
            }
            if read != Some(number) {
                (read, has) = (Some(number), written(&own, segment.into())?);
            }
            if has.len() as u64 > offset || !has_all(&ancestors, &has, offset)? {
                continue;
            }
            if !asked() {
                return Err(io::Error::other("the start was given up"));
            }
            if !has_others(wal, timeline, &name(timeline))? {
                history::forget(wal, timeline)?;
            }
            fs::remove_file(&own)?;
            sync_parent(&own)?;
            removed.push(name(timeline));
        }
    }
    Ok(removed)
}

/// True if the file exists and has no record at `fork`, where the first record of its timeline would begin.
fn is_zero_at(own: &Path, fork: u64) -> io::Result<bool> {
    let Some(file) = open_if_there(own)? else {
        return Ok(false);
    };
    let mut first = [0; 8];
    let length = file.read_at(&mut first, fork)?;
    Ok(first[..length].iter().all(|&byte| byte == 0))
}

/// The first `limit` bytes, without the zeros at their end; none if the file does not exist.
fn written(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(file) = open_if_there(path)? {
        file.take(limit).read_to_end(&mut bytes)?;
    }
    bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    Ok(bytes)
}

/// True if `ancestors` has, before `fork`, everything that `own` has. It is synchronized to disk then, so that a crash
/// does not take it back.
fn has_all(ancestors: &Path, own: &[u8], fork: u64) -> io::Result<bool> {
    let theirs = written(ancestors, fork)?;
    let all = !theirs.is_empty() && theirs.starts_with(own);
    if all {
        File::open(ancestors)?.sync_all()?;
    }
    Ok(all)
}

/// True if there are segments of `timeline` other than `name`.
fn has_others(wal: &Path, timeline: Timeline, name: &str) -> io::Result<bool> {
    let prefix = format!("{:08X}", timeline.0);
    for entry in fs::read_dir(wal)? {
        let other = entry?.file_name();
        let other = other.to_string_lossy();
        if other.len() == name.len() && other.starts_with(&prefix) && other != name {
            return Ok(true);
        }
    }
    Ok(false)
}

fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file of a segment.
fn name(timeline: Timeline, number: u64, segment: u32) -> String {
    let each = (1 << 32) / u64::from(segment);
    format!("{:08X}{:08X}{:08X}", timeline.0, number / each, number % each)
}

#[cfg(test)]
mod tests;
