use super::*;

const SIZE: Bytes = Bytes::mib(4);
const NOW: BootTime = BootTime(1_000);
const ROOMY: Room = Room {
    left: Bytes::gib(10),
    waiting: Bytes::mib(4),
};

fn segment(timeline: u32, number: u64) -> Segment {
    Segment {
        timeline: Timeline(timeline),
        number,
    }
}

fn up_to(timeline: u32, segments: u64) -> Option<Position> {
    Some(Position {
        timeline: Timeline(timeline),
        lsn: Lsn(segments * SIZE.0),
    })
}

fn pushes() -> Charge {
    Charge::Push {
        epoch: Epoch(7),
        until: BootTime(2_000),
    }
}

fn on(timeline: u32, ancestors: &[Fork]) -> Lineage {
    Lineage {
        timeline: Timeline(timeline),
        ancestors: ancestors.to_vec(),
    }
}

fn asked(charge: Charge, file: WalFile) -> Answer {
    answer(charge, file, SIZE, ROOMY, NOW)
}

#[test]
fn names_are_read_as_postgresql_writes_them() {
    for (name, size, file) in [
        (
            "000000010000000000000001",
            Bytes::mib(16),
            WalFile::Segment(segment(1, 1)),
        ),
        (
            "0000000A00000002000000FF",
            Bytes::mib(16),
            WalFile::Segment(segment(10, 2 * 256 + 255)),
        ),
        ("0000000100000001000003FF", SIZE, WalFile::Segment(segment(1, 2047))),
        (
            "000000010000000100000003",
            Bytes::gib(1),
            WalFile::Segment(segment(1, 7)),
        ),
    ] {
        assert_eq!(WalFile::parse(name, size), Some(file), "{name}");
        if let WalFile::Segment(segment) = file {
            assert_eq!(segment.name(size), name);
        }
    }
    let others = [
        ("0000000B.history", WalFile::History(Timeline(11))),
        ("000000010000000000000001.partial", WalFile::Partial(segment(1, 1))),
        ("000000010000000000000001.00000028.backup", WalFile::BackupNote),
    ];
    for (name, file) in others {
        assert_eq!(WalFile::parse(name, SIZE), Some(file), "{name}");
    }
}

#[test]
fn other_names_are_no_files_of_wal() {
    for name in [
        "",
        "00000001000000000000000",
        "00000001000000000000000g",
        "00000001000000000000000a",
        "000000010000000000000400",
        "000000010000000000000001.x",
        "FFFFFFFF0000000000000001",
        "1.history",
        "+0000001.history",
        "../000000000000000000001",
        "ä00000100000000000000001",
    ] {
        assert_eq!(WalFile::parse(name, SIZE), None, "{name}");
    }
    assert_eq!(WalFile::parse("000000010000000000000001", Bytes::ZERO), None);
}

#[test]
fn the_archive_is_complete_up_to_the_first_segment_that_waits() {
    let ready = |timeline, number| (WalFile::Segment(segment(timeline, number)), Mark::Ready);
    let done = |timeline, number| (WalFile::Segment(segment(timeline, number)), Mark::Done);
    let of = |marks: &[(WalFile, Mark)]| progress(marks.iter().copied(), &on(9, &[]), SIZE);
    assert_eq!(of(&[]), Progress::default());
    assert_eq!(of(&[done(1, 4), done(1, 5)]).up_to, up_to(1, 6));
    let behind = of(&[done(1, 4), ready(1, 7), ready(1, 5), done(1, 6)]);
    assert_eq!((behind.up_to, behind.waiting), (up_to(1, 5), Bytes::mib(8)));
    // After a promotion: what the lost primary had not pushed comes first, whatever was done on the new timeline.
    let promoted = of(&[ready(1, 5), done(2, 6), ready(2, 7)]);
    assert_eq!(promoted.up_to, up_to(1, 5));
    // A partial segment is no WAL that recovery waits for.
    let others = [(WalFile::Partial(segment(1, 3)), Mark::Ready), done(2, 6)];
    assert_eq!(of(&others).up_to, up_to(2, 7));
}

/// A standby strikes off the histories of all timelines up to that of the statement. Promoted before the holder has archived its own, it
/// would push it never, and no recovery would lead over that timeline.
#[test]
fn nothing_is_told_of_a_timeline_whose_history_waits() {
    let fork = |timeline, lsn| Fork {
        timeline: Timeline(timeline),
        end: Lsn(lsn),
    };
    let lineage = on(4, &[fork(1, 5 * SIZE.0 + 100), fork(2, 8 * SIZE.0)]);
    let of = |marks: &[(WalFile, Mark)]| progress(marks.iter().copied(), &lineage, SIZE).up_to;
    let history = |timeline, mark| (WalFile::History(Timeline(timeline)), mark);
    let ready = |timeline, number| (WalFile::Segment(segment(timeline, number)), Mark::Ready);
    let at = |timeline, lsn| {
        Some(Position {
            timeline: Timeline(timeline),
            lsn: Lsn(lsn),
        })
    };
    assert_eq!(
        of(&[history(2, Mark::Done), history(4, Mark::Done), ready(4, 9)]),
        up_to(4, 9)
    );
    assert_eq!(
        of(&[history(2, Mark::Done), history(4, Mark::Ready), ready(4, 9)]),
        up_to(2, 8)
    );
    assert_eq!(
        of(&[history(2, Mark::Ready), history(4, Mark::Ready), ready(4, 9)]),
        at(1, 5 * SIZE.0 + 100)
    );
    assert_eq!(
        of(&[history(2, Mark::Done), history(4, Mark::Ready), ready(2, 6)]),
        up_to(2, 6)
    );
    assert_eq!(of(&[history(1, Mark::Ready), ready(1, 6)]), None);
}

#[test]
fn without_an_archive_nothing_is_kept_for_it() {
    for file in [
        WalFile::Segment(segment(1, 1)),
        WalFile::History(Timeline(2)),
        WalFile::Partial(segment(1, 1)),
        WalFile::BackupNote,
    ] {
        assert_eq!(asked(Charge::Nowhere, file), Answer::Archived);
        assert_eq!(asked(Charge::End, file), Answer::End);
    }
}

#[test]
fn the_holder_pushes_until_its_lease_runs_out() {
    let late = BootTime(2_000);
    for file in [
        WalFile::Segment(segment(1, 1)),
        WalFile::History(Timeline(2)),
        WalFile::Partial(segment(1, 1)),
    ] {
        assert_eq!(asked(pushes(), file), Answer::Push(Epoch(7)));
        assert_eq!(answer(pushes(), file, SIZE, ROOMY, late), Answer::Later);
        assert_eq!(asked(Charge::Wait, file), Answer::Later);
    }
    assert_eq!(asked(pushes(), WalFile::BackupNote), Answer::Archived);
}

#[test]
fn a_standby_strikes_off_what_the_holder_has_archived_and_nothing_else() {
    let follows = |up_to| Charge::Confirm { up_to };
    let of = |up_to, timeline, number| asked(follows(up_to), WalFile::Segment(segment(timeline, number)));
    assert_eq!(of(None, 1, 0), Answer::Later);
    assert_eq!(of(up_to(2, 5), 2, 4), Answer::Archived);
    assert_eq!(of(up_to(2, 5), 2, 5), Answer::Later);
    assert_eq!(of(up_to(2, 5), 1, 4), Answer::Archived);
    // The new primary has said nothing yet: what the old one said is no statement about the new timeline.
    assert_eq!(of(up_to(1, 5), 2, 4), Answer::Later);
    let history = |timeline| asked(follows(up_to(2, 5)), WalFile::History(Timeline(timeline)));
    assert_eq!((history(2), history(3)), (Answer::Archived, Answer::Later));
}

#[test]
fn segments_are_given_up_before_they_fill_the_volume_on_standbys_first() {
    let room = |waiting, left| Room {
        waiting: Bytes::mib(waiting),
        left: Bytes::mib(left),
    };
    let file = WalFile::Segment(segment(1, 9));
    let of = |charge, room| answer(charge, file, SIZE, room, NOW);
    let follows = Charge::Confirm { up_to: None };
    assert_eq!(of(follows, room(69, 31)), Answer::Later);
    assert_eq!(of(follows, room(72, 28)), Answer::GiveUp);
    assert_eq!(of(pushes(), room(89, 11)), Answer::Push(Epoch(7)));
    assert_eq!(of(pushes(), room(92, 8)), Answer::GiveUp);
    // What is archived is not given up.
    assert_eq!(
        of(Charge::Confirm { up_to: up_to(1, 10) }, room(99, 1)),
        Answer::Archived
    );
    // A history takes no room.
    let history = answer(follows, WalFile::History(Timeline(2)), SIZE, room(99, 1), NOW);
    assert_eq!(history, Answer::Later);
}

#[test]
fn a_complete_segment_without_a_mark_is_found() {
    let marks = |of: &[(u32, u64)]| -> Vec<(WalFile, Mark)> {
        let mark = |&(timeline, number): &(u32, u64)| (WalFile::Segment(segment(timeline, number)), Mark::Done);
        of.iter().map(mark).collect()
    };
    let files = |of: &[(u32, u64)]| -> Vec<WalFile> {
        let file = |&(timeline, number): &(u32, u64)| WalFile::Segment(segment(timeline, number));
        of.iter().map(file).collect()
    };
    let found = |there: &[(u32, u64)], marked: &[(u32, u64)], ancestors: &[Fork]| {
        unmarked(files(there), &marks(marked), &on(9, ancestors), SIZE)
    };
    assert_eq!(
        found(&[(1, 5), (1, 6), (1, 7), (1, 8)], &[(1, 5), (1, 7)], &[]),
        files(&[(1, 6)])
    );
    // The last one is being written, or is laid out for later.
    assert_eq!(found(&[(1, 5), (1, 6)], &[(1, 5)], &[]), []);
    assert_eq!(found(&[(1, 5), (1, 6)], &[], &[]), []);
    // The timeline forked in the middle of its eighth segment: that one is not complete on the old timeline.
    let fork = Fork {
        timeline: Timeline(1),
        end: Lsn(8 * SIZE.0 + 100),
    };
    let there = [(1, 6), (1, 7), (1, 8), (1, 9), (2, 8), (2, 9), (2, 10)];
    assert_eq!(
        found(&there, &[(2, 10)], &[fork]),
        files(&[(1, 6), (1, 7), (2, 8), (2, 9)])
    );
    // A timeline that is no ancestor.
    assert_eq!(found(&[(3, 6), (4, 7)], &[(4, 7)], &[fork]), []);
}

/// Its mark was lost with the power. PostgreSQL makes it never again, and no other server may have the history.
#[test]
fn a_history_without_a_mark_is_found() {
    let history = |timeline| WalFile::History(Timeline(timeline));
    let forks = [(1, 5 * SIZE.0), (2, 8 * SIZE.0)].map(|(timeline, end)| Fork {
        timeline: Timeline(timeline),
        end: Lsn(end),
    });
    let there = [2, 3, 4].map(history);
    let found = |marks: &[(WalFile, Mark)]| unmarked(there, marks, &on(4, &forks), SIZE);
    // Timeline 3 is no ancestor: its number was only reserved.
    assert_eq!(found(&[]), [history(2), history(4)]);
    assert_eq!(found(&[(history(4), Mark::Ready)]), [history(2)]);
    assert_eq!(found(&[(history(2), Mark::Done), (history(4), Mark::Ready)]), []);
}

/// As PostgreSQL does it: 00000001000000000000000E.ready on a standby whose primary was promoted at 0/E000A0.
#[test]
fn the_segment_in_which_a_timeline_ended_is_no_whole_one() {
    let forks = [(1, 8 * SIZE.0 + 100), (2, 9 * SIZE.0)].map(|(timeline, end)| Fork {
        timeline: Timeline(timeline),
        end: Lsn(end),
    });
    let lineage = on(3, &forks);
    for (timeline, number, is_whole) in [(1, 7, true), (1, 8, false), (2, 8, true), (2, 9, false), (3, 9, true)] {
        let segment = segment(timeline, number);
        let file = match is_whole {
            true => WalFile::Segment(segment),
            false => WalFile::Partial(segment),
        };
        assert_eq!(lineage.file(WalFile::Segment(segment), SIZE), file, "{segment:?}");
    }
}

#[test]
fn what_is_fetched_is_complete_in_the_primarys_history() {
    let fork = |timeline, lsn| Fork {
        timeline: Timeline(timeline),
        end: Lsn(lsn),
    };
    let fetch = |from: u64, to: u64| Fetch {
        from: Lsn(from),
        to: Lsn(to),
        // Timeline 1 ended in the middle of segment 3, timeline 2 with segment 5.
        lineage: on(4, &[fork(1, 3 * SIZE.0 + 5), fork(2, 6 * SIZE.0)]),
    };
    let segments = |from, to| fetch(from, to).segments(SIZE).collect::<Vec<_>>();
    let all =
        [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5), (4, 6), (4, 7)].map(|(timeline, number)| segment(timeline, number));
    assert_eq!(segments(SIZE.0 + 8, 8 * SIZE.0), all);
    assert_eq!(segments(4 * SIZE.0, 5 * SIZE.0), [segment(2, 4)]);
    assert_eq!(segments(4 * SIZE.0, 4 * SIZE.0), []);
}
