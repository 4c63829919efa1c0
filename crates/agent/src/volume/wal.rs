//! Where the WAL on the volume ends.
//!
//! PostgreSQL renames segments that it needs no more to those that it will need next: the directory holds files beyond the
//! end, and their names and sizes tell nothing. Each page begins with its own position, and a renamed segment still bears
//! those of its old place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use machine::protocol::Lsn;

use super::WalSizes;

/// Where a page's position stands in its header, after its magic number and flags (two bytes each) and its timeline (four).
const PAGE_ADDRESS: u64 = 8;

/// The end of the WAL in `directory` that goes on without a gap from `redo`, to a page; `redo` if there is none.
pub(super) fn end(directory: &Path, redo: Lsn, sizes: WalSizes) -> io::Result<Lsn> {
    let (segment, page) = (u64::from(sizes.segment), u64::from(sizes.page));
    if segment == 0 || page == 0 {
        return Ok(redo);
    }
    let files = segments(directory, segment)?;
    let first = redo.0 / segment;
    let there = (first..).take_while(|number| files.contains_key(number)).count();
    let there = first..first + there as u64;
    // What is renamed lies behind all that is written.
    let written = |number: &u64, offset: u64| is_written(&files[number], number * segment, offset);
    let Some(last) = last_that(there, |number| written(&number, 0))? else {
        return Ok(redo);
    };
    let pages = last_that(0..segment / page, |number| written(&last, number * page))?.unwrap_or(0);
    Ok(Lsn(last * segment + (pages + 1) * page).max(redo))
}

/// The files of each segment, of whatever timeline.
fn segments(directory: &Path, bytes: u64) -> io::Result<BTreeMap<u64, Vec<PathBuf>>> {
    let mut files: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(begin) = entry.file_name().to_str().and_then(|name| begin_of(name, bytes)) {
            files.entry(begin / bytes).or_default().push(entry.path());
        }
    }
    Ok(files)
}

/// Where the segment with this name begins: eight digits each of its timeline, of the upper half of its position, and of
/// its number within that.
fn begin_of(name: &str, bytes: u64) -> Option<u64> {
    let digits = name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = |part: &str| u64::from_str_radix(part, 16).ok();
    let (high, low) = digits.then(|| name[8..].split_at(8))?;
    (number(high)? << 32).checked_add(number(low)?.checked_mul(bytes)?)
}

/// The last number of `range` for which `holds`, which holds for all before it.
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

/// One of these files of the segment that begins at `begin` has WAL of this very place in its page at `offset`.
fn is_written(files: &[PathBuf], begin: u64, offset: u64) -> io::Result<bool> {
    for path in files {
        let mut address = [0; 8];
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut address, offset + PAGE_ADDRESS));
        match read {
            Ok(()) if u64::from_ne_bytes(address) == begin + offset => return Ok(true),
            Ok(()) => {}
            // It was removed meanwhile, or is being made.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;

    const SIZES: WalSizes = WalSizes {
        segment: 1 << 16,
        page: 1 << 13,
    };
    const SEGMENT: u64 = 1 << 16;
    const PAGE: u64 = 1 << 13;

    /// A segment's file whose first `pages` pages hold WAL of the segment with number `of`.
    fn segment(directory: &Path, timeline: u32, number: u64, of: u64, pages: u64) {
        let mut bytes = vec![0_u8; 1 << 16];
        for page in 0..pages {
            let begin = usize::try_from(page * PAGE + PAGE_ADDRESS).expect("small");
            bytes[begin..begin + 8].copy_from_slice(&(of * SEGMENT + page * PAGE).to_ne_bytes());
        }
        let name = format!("{timeline:08X}{:08X}{:08X}", 0, number);
        fs::write(directory.join(name), bytes).expect("written");
    }

    #[test]
    fn it_ends_with_the_last_page_that_was_written() {
        let scratch = Scratch::new();
        let end = |redo: u64| end(&scratch.0, Lsn(redo), SIZES).expect("readable").0;
        assert_eq!(end(3 * SEGMENT + 40), 3 * SEGMENT + 40, "no WAL");
        segment(&scratch.0, 1, 3, 3, 8);
        assert_eq!(end(3 * SEGMENT + 40), 4 * SEGMENT);
        segment(&scratch.0, 1, 4, 4, 8);
        segment(&scratch.0, 1, 5, 5, 3);
        assert_eq!(end(3 * SEGMENT + 40), 5 * SEGMENT + 3 * PAGE);
        for number in 6..20 {
            segment(&scratch.0, 1, number, number - 6, 8);
        }
        segment(&scratch.0, 1, 20, 20, 0);
        assert_eq!(end(3 * SEGMENT + 40), 5 * SEGMENT + 3 * PAGE, "renamed for later");
    }

    #[test]
    fn it_goes_on_with_another_timeline_and_not_across_a_gap() {
        let scratch = Scratch::new();
        let end = |redo: u64| end(&scratch.0, Lsn(redo), SIZES).expect("readable").0;
        segment(&scratch.0, 1, 3, 3, 8);
        segment(&scratch.0, 1, 4, 0, 8);
        segment(&scratch.0, 2, 4, 4, 8);
        segment(&scratch.0, 2, 6, 6, 8);
        fs::write(scratch.0.join("00000002.history"), "").expect("written");
        assert_eq!(end(3 * SEGMENT), 5 * SEGMENT);
        assert_eq!(end(2 * SEGMENT), 2 * SEGMENT, "what is needed first is not there");
    }

    #[test]
    fn names_tell_where_a_segment_begins() {
        assert_eq!(begin_of("000000010000000200000003", 16 << 20), Some(0x2_0300_0000));
        for other in ["00000002.history", "000000010000000200000003.partial", "archive_status"] {
            assert_eq!(begin_of(other, 16 << 20), None, "{other}");
        }
    }
}
