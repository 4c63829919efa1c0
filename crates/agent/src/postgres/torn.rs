//! First segments of timelines that were torn off before their timeline begins.
//!
//! A stream of a new timeline begins with the segment in which it forks off, whose beginning is the ancestor's WAL, byte for byte.
//! If it is torn off before the fork (the standby dies), PostgreSQL (15 to 18) reads this segment all the same, and never the
//! ancestor's, which has more: each start ends ("WAL location … belongs to timeline 1, but previous recovered WAL file came from
//! timeline 2"), or, without a primary to stream from, takes the place of the tear for the end of all WAL.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use machine::protocol::Timeline;

use super::history;
use crate::volume::sync_parent;

/// Removes such segments from `wal` (`pg_wal` of a stopped server), and those that end with the fork, and returns their names:
/// they have no record of their timeline. What they hold, the ancestor's segment holds as well: else they stay. Of a newest
/// timeline that has no other segment the history file goes too: its ancestor may go on past the fork, and would be replayed there,
/// for the new timeline's WAL. Ends when it is not `asked` any more.
pub(super) fn remove(wal: &Path, segment: u32, asked: impl Fn() -> bool) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for (timeline, forks) in history::known(wal)?.into_iter().rev() {
        // Several forks may be in one segment, which is read once.
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

/// It is there, and has no record at `fork`, where its timeline's first one would begin.
fn is_zero_at(own: &Path, fork: u64) -> io::Result<bool> {
    let Some(file) = open_if_there(own)? else {
        return Ok(false);
    };
    let mut first = [0; 8];
    let length = file.read_at(&mut first, fork)?;
    Ok(first[..length].iter().all(|&byte| byte == 0))
}

/// The first `limit` bytes, without the zeros at their end; nothing if it is not there.
fn written(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(file) = open_if_there(path)? {
        file.take(limit).read_to_end(&mut bytes)?;
    }
    bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    Ok(bytes)
}

/// Before `fork`, `ancestors` has all that `own` has. That is on the disk then: a crash does not take it back.
fn has_all(ancestors: &Path, own: &[u8], fork: u64) -> io::Result<bool> {
    let theirs = written(ancestors, fork)?;
    let all = !theirs.is_empty() && theirs.starts_with(own);
    if all {
        File::open(ancestors)?.sync_all()?;
    }
    Ok(all)
}

/// Of `timeline` there are segments beside `name`.
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
mod tests {
    use super::*;
    use crate::volume::tests::Scratch;

    const SEGMENT: u32 = 1 << 16;
    /// Where the timelines begin: both in segment 3, and one in segment 4.
    const FORKS: [u64; 3] = [0x3_8000, 0x3_C000, 0x4_2000];

    /// `pg_wal` after the forks, with these files: timeline, segment, and up to where it is written; the rest is zeros.
    fn wal(files: &[(u32, u64, usize)]) -> (Scratch, std::path::PathBuf) {
        let scratch = Scratch::new();
        let wal = scratch.0.join("wal");
        let mut history = String::new();
        for (timeline, fork) in (2..).zip(FORKS) {
            history += &format!("{}\t0/{fork:X}\tno recovery target specified\n", timeline - 1);
            fs::write(wal.join(format!("{timeline:08X}.history")), &history).expect("written");
        }
        for &(timeline, number, written) in files {
            let mut bytes = vec![0x5A; written];
            bytes.resize(SEGMENT as usize, 0);
            fs::write(wal.join(name(Timeline(timeline), number, SEGMENT)), bytes).expect("written");
        }
        (scratch, wal)
    }

    fn removed(files: &[(u32, u64, usize)]) -> Vec<String> {
        let (_scratch, wal) = wal(files);
        let removed = remove(&wal, SEGMENT, || true).expect("readable");
        for name in &removed {
            assert!(!wal.join(name).exists(), "{name}");
        }
        assert_eq!(
            remove(&wal, SEGMENT, || true).expect("readable"),
            [""; 0],
            "once is enough"
        );
        removed
    }

    #[test]
    fn what_ends_before_its_fork_and_before_its_ancestor_goes() {
        let second = "000000020000000000000003";
        assert_eq!(removed(&[(1, 3, 0x8000), (2, 3, 0x4000)]), [second]);
        assert_eq!(removed(&[(1, 3, 0x8000), (2, 3, 0)]), [second], "nothing has come yet");
        assert_eq!(
            removed(&[(1, 3, 0x9000), (2, 3, 0x4000)]),
            [second],
            "data that is to be rewound"
        );
        assert_eq!(
            removed(&[(1, 3, 0x8000), (2, 3, 0x8000)]),
            [second],
            "it ends with the fork"
        );
        assert_eq!(removed(&[(3, 4, 0x2000), (4, 4, 0x1000)]), ["000000040000000000000004"]);
        let all = removed(&[(1, 3, 0x8000), (2, 3, 0x4000), (3, 3, 0x4000)]);
        assert_eq!(all, ["000000030000000000000003", second]);
    }

    #[test]
    fn what_holds_anything_that_its_ancestor_has_not_stays() {
        let none = [""; 0];
        assert_eq!(
            removed(&[(1, 3, 0x8000), (2, 3, 0xA000)]),
            none,
            "it has WAL of its own"
        );
        assert_eq!(removed(&[(1, 3, 0x3000), (2, 3, 0x4000)]), none, "it has more");
        assert_eq!(removed(&[(2, 3, 0x4000)]), none, "it is alone");
        assert_eq!(
            removed(&[(1, 4, 0x8000), (2, 4, 0x4000)]),
            none,
            "no timeline begins there"
        );
        let (_scratch, wal) = wal(&[(1, 3, 0x8000), (2, 3, 0x4000)]);
        let own = wal.join("000000020000000000000003");
        let mut bytes = fs::read(&own).expect("readable");
        bytes[0x2000] = 1;
        fs::write(&own, bytes).expect("written");
        assert_eq!(
            remove(&wal, SEGMENT, || true).expect("readable"),
            none,
            "it is not the same"
        );
    }

    #[test]
    fn a_newest_timeline_of_which_nothing_is_left_is_forgotten() {
        let (_scratch, wal) = wal(&[
            (1, 3, 0x9000),
            (2, 3, 0x4000),
            (3, 3, 0x4000),
            (3, 4, 0x2000),
            (4, 4, 0x1000),
        ]);
        let known = || -> Vec<u32> {
            let known = history::known(&wal).expect("readable");
            known.into_iter().map(|(timeline, _)| timeline.0).collect()
        };
        assert_eq!(remove(&wal, SEGMENT, || true).expect("readable").len(), 3);
        assert_eq!(
            known(),
            [2, 3],
            "of 3 there is another segment, and 2 is not the newest"
        );
        fs::remove_file(wal.join("000000030000000000000004")).expect("removed");
        fs::write(wal.join("000000030000000000000003"), [0; SEGMENT as usize]).expect("written");
        assert_eq!(remove(&wal, SEGMENT, || true).expect("readable").len(), 1);
        assert_eq!(known(), [2]);
    }

    #[test]
    fn what_begins_its_timeline_is_not_read_further() {
        let (_scratch, wal) = wal(&[(1, 3, 0x8000), (2, 3, 0xA000)]);
        let own = fs::OpenOptions::new()
            .write(true)
            .open(wal.join("000000020000000000000003"));
        // More than any memory has.
        own.expect("there").set_len(1 << 42).expect("sparse");
        assert_eq!(remove(&wal, SEGMENT, || true).expect("readable"), [""; 0]);
    }

    #[test]
    fn nothing_is_removed_when_the_start_was_given_up() {
        let (_scratch, wal) = wal(&[(1, 3, 0x8000), (2, 3, 0x4000)]);
        assert!(remove(&wal, SEGMENT, || false).is_err());
        assert!(wal.join("000000020000000000000003").exists());
    }

    #[test]
    fn a_history_file_that_is_not_understood_is_passed_over() {
        let (_scratch, wal) = wal(&[(1, 3, 0x8000), (2, 3, 0x4000)]);
        fs::write(wal.join("00000005.history"), [0xFF, 0xFE]).expect("written");
        fs::write(wal.join("00000006.history"), "1\tsomewhere\n").expect("written");
        assert_eq!(
            remove(&wal, SEGMENT, || true).expect("readable"),
            ["000000020000000000000003"]
        );
    }
}
