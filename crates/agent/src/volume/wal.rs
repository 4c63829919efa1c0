//! The end of the WAL on the volume.
//!
//! PostgreSQL renames segments that it no longer needs to the names that it will need next. So `pg_wal` holds files
//! beyond the end, and their names and sizes say nothing. Each page begins with its own position, and the pages of a
//! renamed segment still bear their old positions. In the last page, the records are followed from one to the next:
//! whether the WAL ends with a segment or just before it decides which segment PostgreSQL asks a primary for
//! (`access/xlog_internal.h`, `access/xlogrecord.h`; the same from version 15 to 18).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use machine::protocol::Lsn;

use super::WalSizes;

/// Offset of a page's position in its header: after the magic number and flags (two bytes each) and the timeline
/// (four).
const PAGE_ADDRESS: usize = 8;
/// Offset, in a page's header, of the number of bytes that still belong to a record which began earlier.
const PAGE_REMAINDER: usize = 16;
/// Bytes of a page's header, and of the header of a segment's first page.
const PAGE_HEADER: (usize, usize) = (24, 40);
/// Bytes of a record's header. The header begins with the record's length, header included (four bytes).
const RECORD_HEADER: usize = 24;
/// Offset, in a record's header, of the position of the record before it.
const RECORD_PREVIOUS: usize = 8;
/// Offset of a record's kind: flags, of which the upper half counts, and the resource manager.
const RECORD_KIND: usize = 16;
/// The kind of the record that ends a segment early (`XLOG_SWITCH` of `RM_XLOG_ID`): zeros follow.
const SWITCH: (u8, u8) = (0x40, 0);

/// The file system that the write-ahead log is on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalRoom {
    /// Its size.
    pub capacity: u64,
    /// Free space, and the space that the log takes already: everything that is not taken by something else.
    pub left: u64,
}

/// Bytes of the files in `directory`; 0 if it does not exist.
pub(super) fn bytes(directory: &Path) -> io::Result<u64> {
    let is_gone = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    let entries = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(0),
        entries => entries?,
    };
    let mut sum: u64 = 0;
    for entry in entries {
        match entry?.metadata() {
            Ok(found) if found.is_file() => sum = sum.saturating_add(found.len()),
            Ok(_) => {}
            // Removed meanwhile.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sum)
}

/// PostgreSQL's default size of a segment, in bytes.
const USUAL_SEGMENT: u64 = 16 << 20;

/// Bytes of a segment in `directory`; PostgreSQL's default if there is no segment.
pub(crate) fn segment_size(directory: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(USUAL_SEGMENT),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_segment) {
            match entry.metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                found => return Ok(found?.len()),
            }
        }
    }
    Ok(USUAL_SEGMENT)
}

/// True if this is the name of a segment: 24 digits.
fn is_segment(name: &str) -> bool {
    name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The end of the WAL in `directory` that goes on without a gap from `redo`: the first byte that is missing; `redo` if
/// there is no such WAL. An incomplete record counts as far as it goes, rounded to a page.
pub(super) fn end(directory: &Path, redo: Lsn, sizes: WalSizes) -> io::Result<Lsn> {
    let (segment, page) = (u64::from(sizes.segment), u64::from(sizes.page));
    if segment == 0 || page == 0 {
        return Ok(redo);
    }
    let files = segments(directory, segment)?;
    let first = redo.0 / segment;
    let there = (first..).take_while(|number| files.contains_key(number)).count();
    let there = first..first + there as u64;
    // Renamed segments lie behind everything that is written.
    let written = |number: &u64, offset: u64| is_written(&files[number], number * segment, offset);
    let Some(last) = last_that(there, |number| written(&number, 0))? else {
        return Ok(redo);
    };
    let offset = page * last_that(0..segment / page, |number| written(&last, number * page))?.unwrap_or(0);
    let begin = last * segment + offset;
    let mut end = redo.0.max(begin);
    for path in &files[&last] {
        let mut bytes = vec![0; sizes.page as usize];
        if read(path, &mut bytes, offset)? && u64_at(&bytes, PAGE_ADDRESS) == Some(begin) {
            end = end.max(end_in(&bytes, begin, segment));
        }
    }
    Ok(Lsn(end))
}

/// The end of the WAL in this page, which begins at `begin`.
/// - Usually it is behind the last record.
/// - It is the end of the page if a record goes on behind the page.
/// - It is the end of the segment if the segment was ended early.
fn end_in(page: &[u8], begin: u64, segment: u64) -> u64 {
    let aligned = |bytes: u32| (bytes as usize).next_multiple_of(8);
    let (short, long) = PAGE_HEADER;
    let header = if begin.is_multiple_of(segment) { long } else { short };
    let mut at = header + u32_at(page, PAGE_REMAINDER).map_or(0, aligned);
    let mut before = None;
    while let Some(length) = u32_at(page, at) {
        let here = begin + at as u64;
        let record = &page[at..];
        // Behind the end lie zeros, or data of the file's former place. A header that goes on in the next page is a
        // real one.
        let follows = |previous: u64| before.map_or(previous < here, |before| previous == before);
        if (length as usize) < RECORD_HEADER || !u64_at(record, RECORD_PREVIOUS).is_none_or(follows) {
            return here;
        }
        let kind = record.get(RECORD_KIND..RECORD_KIND + 2);
        if kind.is_some_and(|kind| (kind[0] & 0xF0, kind[1]) == SWITCH) {
            return begin - begin % segment + segment;
        }
        before = Some(here);
        at += aligned(length);
    }
    begin + page.len() as u64
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The files of each segment, of any timeline. A segment has this many `bytes`.
pub(super) fn segments(directory: &Path, bytes: u64) -> io::Result<BTreeMap<u64, Vec<PathBuf>>> {
    let mut files: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(begin) = entry.file_name().to_str().and_then(|name| begin_of(name, bytes)) {
            files.entry(begin / bytes).or_default().push(entry.path());
        }
    }
    Ok(files)
}

/// The position at which the segment of this name begins. The name has eight digits each for the timeline, for the
/// upper half of the position, and for the segment's number within that.
fn begin_of(name: &str, bytes: u64) -> Option<u64> {
    let number = |part: &str| u64::from_str_radix(part, 16).ok();
    let (high, low) = is_segment(name).then(|| name[8..].split_at(8))?;
    (number(high)? << 32).checked_add(number(low)?.checked_mul(bytes)?)
}

/// The last number of `range` for which `holds` is true; it must be true for all numbers before that one.
fn last_that(range: std::ops::Range<u64>, holds: impl Fn(u64) -> io::Result<bool>) -> io::Result<Option<u64>> {
    let (mut from, mut to) = (range.start, range.end);
    while from < to {
        let middle = from + (to - from) / 2;
        if holds(middle)? {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    Ok((from > range.start).then(|| from - 1))
}

/// True if one of these files of the segment at `begin` has WAL of exactly this place in its page at `offset`.
fn is_written(files: &[PathBuf], begin: u64, offset: u64) -> io::Result<bool> {
    for path in files {
        let mut address = [0; 8];
        if read(path, &mut address, offset + PAGE_ADDRESS as u64)? && u64::from_ne_bytes(address) == begin + offset {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the bytes at `offset`; `false` if the file was removed meanwhile, or is still being made.
fn read(path: &Path, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    match File::open(path).and_then(|file| file.read_exact_at(bytes, offset)) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
