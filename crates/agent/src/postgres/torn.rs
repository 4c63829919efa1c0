//! First segments of timelines that were torn off before their timeline begins.
//!
//! A stream of a new timeline begins with the segment in which it forks off, whose beginning is the ancestor's WAL, byte for byte.
//! If it is torn off before the fork (the standby dies), PostgreSQL (15 to 18) reads this segment all the same, and never the
//! ancestor's, which has more: each start ends ("WAL location … belongs to timeline 1, but previous recovered WAL file came from
//! timeline 2"), or, without a primary to stream from, takes the place of the tear for the end of all WAL.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use machine::protocol::Timeline;

use super::history;
use crate::volume::sync_parent;

/// Removes such segments from `wal` (`pg_wal` of a stopped server), and returns their names. What they hold, the ancestor's
/// segment holds as well, and more: else they stay.
pub(super) fn remove(wal: &Path, segment: u32) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for (timeline, forks) in history::known(wal)? {
        for fork in forks {
            let (number, offset) = (fork.end.0 / u64::from(segment), fork.end.0 % u64::from(segment));
            let name = |of| name(of, number, segment);
            let (own, ancestors) = (wal.join(name(timeline)), wal.join(name(fork.timeline)));
            if is_torn(&own, &ancestors, offset)? {
                fs::remove_file(&own)?;
                sync_parent(&own)?;
                removed.push(name(timeline));
            }
        }
    }
    Ok(removed)
}

/// Of the file `own` there is nothing but zeros from some place before `fork` on; `ancestors` is the same up to there, and goes on.
fn is_torn(own: &Path, ancestors: &Path, fork: u64) -> io::Result<bool> {
    let Some(own) = read_if_there(own)? else {
        return Ok(false);
    };
    let end = own.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let fork = usize::try_from(fork).unwrap_or(0);
    if end >= fork {
        return Ok(false);
    }
    let Some(ancestors) = read_if_there(ancestors)? else {
        return Ok(false);
    };
    let goes_on = |more: &[u8]| more.iter().any(|&byte| byte != 0);
    Ok(ancestors.get(..end) == Some(&own[..end]) && ancestors.get(end..fork).is_some_and(goes_on))
}

fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
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
        let removed = remove(&wal, SEGMENT).expect("readable");
        for name in &removed {
            assert!(!wal.join(name).exists(), "{name}");
        }
        assert_eq!(remove(&wal, SEGMENT).expect("readable"), [""; 0], "once is enough");
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
        assert_eq!(removed(&[(3, 4, 0x2000), (4, 4, 0x1000)]), ["000000040000000000000004"]);
        let all = removed(&[(1, 3, 0x8000), (2, 3, 0x4000), (3, 3, 0x4000)]);
        assert_eq!(all, [second, "000000030000000000000003"]);
    }

    #[test]
    fn what_holds_anything_that_its_ancestor_has_not_stays() {
        let none = [""; 0];
        assert_eq!(
            removed(&[(1, 3, 0x8000), (2, 3, 0x8000)]),
            none,
            "it ends with the fork"
        );
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
        assert_eq!(remove(&wal, SEGMENT).expect("readable"), none, "it is not the same");
    }
}
