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
