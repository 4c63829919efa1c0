use chrono::TimeZone;
use proptest::prelude::*;

use super::*;

/// Small segments make the numbers readable: position 0x1230 is in segment 0x12.
const SIZE: Bytes = Bytes(0x100);

fn time(minute: u32) -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 11, 24, 12, minute, 0)
        .single()
        .expect("a time")
}

fn backup(timeline: u32, start: u64, minute: u32) -> Backup {
    Backup {
        name: format!("b{minute}"),
        timeline: Timeline(timeline),
        start: Lsn(start),
        stop: Lsn(start + 0x20),
        stop_time: time(minute),
        damaged_pages: false,
        is_snapshot: false,
    }
}

fn fork(timeline: u32, end: u64) -> Fork {
    Fork {
        timeline: Timeline(timeline),
        end: Lsn(end),
    }
}

fn segment(timeline: u32, number: u64) -> Segment {
    Segment {
        number,
        timeline: Timeline(timeline),
    }
}

/// Timeline 1 has segments 1 to 9. Timeline 2 left it in segment 5 and is abandoned after segment 7. Timeline 3 left timeline 1 in segment
/// 8, and has segments up to 12.
fn stored() -> Stored {
    let segments = [(1, 1..=9), (2, 5..=7), (3, 8..=12)];
    let segments = segments.into_iter();
    let all = segments.flat_map(|(timeline, numbers)| numbers.map(move |number| segment(timeline, number)));
    Stored {
        segments: all.collect(),
        histories: [(Timeline(2), vec![fork(1, 0x540)]), (Timeline(3), vec![fork(1, 0x880)])].into(),
    }
}

fn backups() -> [Backup; 3] {
    [backup(1, 0x210, 2), backup(2, 0x610, 6), backup(3, 0xA10, 10)]
}

fn planned(wanted: Option<&str>, target: &Target, stored: &Stored) -> Result<Plan, Refusal> {
    plan(&backups(), wanted, target, stored, SIZE, time(59))
}

fn files(timeline: u32, first: u64, last: u64) -> Files {
    Files {
        timeline: Timeline(timeline),
        first,
        last,
    }
}

#[test]
fn the_newest_backup_before_the_target_is_taken_on_the_newest_timeline() {
    for (target, name, expected) in [
        (Target::Latest, "b10", vec![files(3, 10, 12)]),
        (Target::Immediate, "b10", vec![files(3, 10, 12)]),
        (Target::Xid(7), "b10", vec![files(3, 10, 12)]),
        (Target::Time(time(10)), "b10", vec![files(3, 10, 12)]),
        // The backup of the abandoned timeline 2 would be nearer.
        (Target::Time(time(9)), "b2", vec![files(1, 2, 7), files(3, 8, 12)]),
        (Target::Lsn(Lsn(0x700)), "b2", vec![files(1, 2, 7), files(3, 8, 12)]),
        (Target::Lsn(Lsn(0xA30)), "b10", vec![files(3, 10, 12)]),
    ] {
        let plan = planned(None, &target, &stored()).expect("a plan");
        assert_eq!(
            (plan.backup.name.as_str(), plan.timeline),
            (name, Timeline(3)),
            "{target}"
        );
        assert_eq!(plan.files, expected, "{target}");
        let end = Position {
            timeline: Timeline(3),
            lsn: Lsn(0xD00),
        };
        assert_eq!(plan.end, end, "{target}");
    }
}

#[test]
fn a_plan_serves_its_own_history_only() {
    let plan = planned(Some("b2"), &Target::Latest, &stored()).expect("a plan");
    let serves = |name: &str| plan.serves(WalFile::parse(name, SIZE).expect("a name"));
    assert!(serves("00000003.history"));
    // Timeline 2 is no ancestor of timeline 3 although its number lies between.
    assert!(!serves("00000002.history") && !serves("00000004.history") && !serves("00000001.history"));
    let segment = |timeline, number| plan.serves(WalFile::Segment(segment(timeline, number)));
    assert!(segment(1, 2) && segment(1, 7) && segment(3, 8) && segment(3, 12));
    assert!(!segment(1, 1), "before the backup");
    assert!(!segment(1, 8), "behind the fork it has another history");
    assert!(!segment(2, 6) && !segment(3, 7) && !segment(3, 13));
    let last = super::tests::segment(3, 12);
    assert!(!plan.serves(WalFile::Partial(last)) && !plan.serves(WalFile::BackupNote));
    assert!(!plan.is_past_end(WalFile::Segment(last)) && !plan.is_past_end(WalFile::History(Timeline(4))));
    assert!(plan.is_past_end(WalFile::Segment(super::tests::segment(3, 13))));
}

#[test]
fn a_backup_of_an_abandoned_branch_is_used_only_if_it_is_named() {
    let plan = planned(Some("b6"), &Target::Latest, &stored()).expect("a plan");
    assert_eq!((plan.timeline, plan.files), (Timeline(2), vec![files(2, 6, 7)]));
    let only = [backup(2, 0x610, 6)];
    let error = super::plan(&only, None, &Target::Latest, &stored(), SIZE, time(59)).expect_err("abandoned");
    let expected = Refusal::Abandoned {
        timeline: Timeline(3),
        backups: vec!["b6".to_owned()],
    };
    assert_eq!(error, expected);
    assert!(
        error.to_string().contains("timeline 3") && error.to_string().contains("b6"),
        "{error}"
    );
}

#[test]
fn an_abandoned_branch_with_the_highest_number_of_a_fork_is_no_ancestor() {
    // Timeline 4 goes on from 1, where 2 and 3 had been tried before: their numbers are higher than the fork's.
    let mut stored = stored();
    stored.segments.extend((6..=14).map(|number| segment(4, number)));
    stored.histories.insert(Timeline(4), vec![fork(1, 0x600)]);
    let plan = planned(Some("b2"), &Target::Latest, &stored).expect("a plan");
    assert_eq!(plan.timeline, Timeline(4));
    // The fork lies exactly between two segments.
    assert_eq!(plan.files, [files(1, 2, 5), files(4, 6, 14)]);
    assert_eq!(plan.histories, BTreeSet::from([Timeline(4)]));
}

#[test]
fn a_history_without_any_wal_of_its_timeline_changes_nothing() {
    let mut stored = stored();
    let before = planned(None, &Target::Latest, &stored);
    stored.histories.insert(Timeline(9), vec![fork(1, 0x300)]);
    assert_eq!(planned(None, &Target::Latest, &stored), before);
}

#[test]
fn positions_that_go_back_in_a_history_end_its_older_entries() {
    // A recovery followed timeline 2, and stopped before timeline 2 had left timeline 1. Timeline 3 goes on from there.
    let segments = [(1, 1..=9), (2, 8..=9), (3, 4..=12)].into_iter();
    let all = segments.flat_map(|(timeline, numbers)| numbers.map(move |number| segment(timeline, number)));
    let stored = Stored {
        segments: all.collect(),
        histories: [
            (Timeline(2), vec![fork(1, 0x880)]),
            (Timeline(3), vec![fork(1, 0x880), fork(2, 0x440)]),
        ]
        .into(),
    };
    let of = |backup: Backup| super::plan(&[backup], None, &Target::Latest, &stored, SIZE, time(59)).expect("a plan");
    assert_eq!(of(backup(1, 0x110, 1)).files, [files(1, 1, 3), files(3, 4, 12)]);
    assert_eq!(of(backup(3, 0x510, 5)).files, [files(3, 5, 12)]);
}

#[test]
fn two_forks_in_one_segment_need_it_only_from_the_newest() {
    let segments = [(1, 1..=6), (2, 4..=4), (3, 4..=6)].into_iter();
    let all = segments.flat_map(|(timeline, numbers)| numbers.map(move |number| segment(timeline, number)));
    let stored = Stored {
        segments: all.collect(),
        histories: [
            (Timeline(2), vec![fork(1, 0x440)]),
            (Timeline(3), vec![fork(1, 0x440), fork(2, 0x460)]),
        ]
        .into(),
    };
    let plan = super::plan(&[backup(1, 0x110, 1)], None, &Target::Latest, &stored, SIZE, time(59)).expect("a plan");
    assert_eq!(plan.files, [files(1, 1, 3), files(3, 4, 6)]);
    assert_eq!(plan.histories, BTreeSet::from([Timeline(2), Timeline(3)]));
}

#[test]
fn missing_segments_are_named_if_the_target_may_lie_behind_them() {
    let mut stored = stored();
    for number in [4, 8, 9] {
        stored.segments.retain(|segment| segment.number != number);
    }
    let missing = |target: &Target| match planned(Some("b2"), target, &stored) {
        Err(Refusal::Missing { first, count }) => Some((first, count)),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    };
    let first = || "000000010000000000000004".to_owned();
    for target in [
        Target::Latest,
        Target::Time(time(3)),
        Target::Name("a".into()),
        Target::Xid(1),
    ] {
        assert_eq!(missing(&target), Some((first(), 3)), "{target}");
    }
    assert_eq!(missing(&Target::Lsn(Lsn(0x500))), Some((first(), 1)));
    assert_eq!(missing(&Target::Immediate), None);
    assert_eq!(missing(&Target::Lsn(Lsn(0x3FF))), None);
    // What lies behind the gap is not served.
    let plan = planned(Some("b2"), &Target::Immediate, &stored).expect("a plan");
    assert_eq!(plan.files, [files(1, 2, 3)]);
}

#[test]
fn a_fork_s_segment_is_missing_if_only_the_old_timeline_has_it() {
    let mut stored = stored();
    stored.segments.remove(&segment(3, 8));
    let refused = planned(Some("b2"), &Target::Latest, &stored).expect_err("a gap");
    let expected = Refusal::Missing {
        first: segment(3, 8).name(SIZE),
        count: 1,
    };
    assert_eq!(refused, expected);
    assert!(refused.to_string().contains("00000003"), "{refused}");
}

#[test]
fn a_backup_whose_own_wal_is_missing_is_refused() {
    let mut stored = stored();
    stored.segments.retain(|segment| segment.number < 10);
    for target in [Target::Latest, Target::Immediate] {
        let refused = planned(Some("b10"), &target, &stored).expect_err("no WAL");
        assert!(matches!(refused, Refusal::Missing { count: 1, .. }), "{refused}");
    }
}

#[test]
fn the_histories_since_the_backup_must_be_there() {
    let mut stored = stored();
    stored.histories.remove(&Timeline(3));
    assert_eq!(
        planned(Some("b2"), &Target::Latest, &stored),
        Err(Refusal::NoHistory(Timeline(3)))
    );
    assert_eq!(
        planned(None, &Target::Time(time(9)), &stored),
        Err(Refusal::NoHistory(Timeline(3)))
    );
    // Timeline 3 may be where a restored database began: its own backups need no history.
    let plan = planned(None, &Target::Latest, &stored).expect("a plan");
    assert_eq!((plan.timeline, plan.histories.len()), (Timeline(3), 0));
    let refusal = Refusal::NoHistory(Timeline(3)).to_string();
    assert!(refusal.contains("00000003.history"), "{refusal}");
    // An ancestor's own.
    let two = [(Timeline(3), vec![fork(1, 0x540), fork(2, 0x880)])];
    stored.histories = two.into();
    assert_eq!(
        planned(Some("b2"), &Target::Latest, &stored),
        Err(Refusal::NoHistory(Timeline(2)))
    );
    assert!(planned(Some("b6"), &Target::Latest, &stored).is_ok());
}

#[test]
fn refusals_say_what_to_change() {
    let text = |wanted, target: Target| planned(wanted, &target, &stored()).expect_err("refused").to_string();
    let none = plan(&[], None, &Target::Latest, &stored(), SIZE, time(59)).expect_err("no backup");
    for (text, parts) in [
        (none.to_string(), ["no complete backup", "source"]),
        (
            text(None, Target::Time(time(1))),
            ["earliest possible time", "2026-11-24T12:02:00Z"],
        ),
        (
            text(None, Target::Lsn(Lsn(0x110))),
            ["earliest possible position", "0/230"],
        ),
        (text(Some("b7"), Target::Latest), ["no backup b7", "b2, b6, b10"]),
        (
            text(Some("b10"), Target::Time(time(9))),
            ["b10 ends at 2026-11-24T12:10:00Z", "earlier backup"],
        ),
        (
            text(None, Target::Time(time(59) + chrono::TimeDelta::minutes(1))),
            ["in the future", "latest"],
        ),
        (
            text(None, Target::Lsn(Lsn(0x1000))),
            ["ends at 0/D00 on timeline 3", "latest"],
        ),
    ] {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn a_plan_is_read_as_it_was_written() {
    let plan = planned(Some("b2"), &Target::Latest, &stored()).expect("a plan");
    let text = serde_json::to_string(&plan).expect("JSON");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("a plan"), plan);
}

#[test]
fn recovery_that_did_not_stop_at_its_target_is_told() {
    let plan = planned(None, &Target::Latest, &stored()).expect("a plan");
    let replayed = |lsn, minute: Option<u32>, paused| Replayed {
        lsn: Lsn(lsn),
        last_commit_time: minute.map(time),
        paused,
    };
    let judge = |target: &Target, exclusive, replayed| reached(target, exclusive, replayed, &plan);
    let at = Target::Time(time(12));
    for (target, exclusive, replayed, fine) in [
        (&Target::Latest, false, replayed(0xCF0, Some(12), false), true),
        (&Target::Latest, false, replayed(0xBF0, Some(12), false), false),
        (&Target::Immediate, false, replayed(0xA30, None, true), true),
        (&Target::Immediate, false, replayed(0xA2F, None, true), false),
        (&at, false, replayed(0xB00, Some(12), true), true),
        (&at, false, replayed(0xB00, None, true), true),
        (&at, true, replayed(0xB00, Some(12), true), false),
        (&at, false, replayed(0xB00, Some(13), true), false),
        (&at, false, replayed(0xCF0, Some(11), false), false),
        (&Target::Name("a".into()), false, replayed(0xB00, None, true), true),
        (&Target::Xid(4), false, replayed(0xCF0, None, false), false),
    ] {
        assert_eq!(
            judge(target, exclusive, replayed).is_ok(),
            fine,
            "{target} {replayed:?}"
        );
    }
    let words = judge(&at, false, replayed(0xCF0, Some(11), false)).expect_err("not reached");
    for part in ["archive ends", "12:11:00Z", "use the target latest"] {
        assert!(words.contains(part), "{words}");
    }
}

proptest! {
    /// Whatever is stored: a plan serves each segment from the backup on from exactly one timeline, up to its end, only those that are
    /// stored, and none behind a fork from the old timeline.
    #[test]
    fn a_plan_has_no_gap_and_no_second_history(
        mut ends in prop::collection::vec(0x200_u64..0x1400, 0..4),
        lost in prop::collection::btree_set((1_u32..6, 0_u64..0x18), 0..4),
        start in 0x100_u64..0x600,
        lsn in prop::option::of(0x100_u64..0x1800),
    ) {
        ends.sort_unstable();
        let top = u32::try_from(ends.len()).expect("few") + 1;
        let forks: History = (1..).zip(&ends).map(|(timeline, end)| fork(timeline, *end)).collect();
        let histories = (2..=top).map(|of| (Timeline(of), forks[..of as usize - 1].to_vec())).collect();
        let mut segments: BTreeSet<Segment> = (1..=top).flat_map(|of| (0..0x18).map(move |number| segment(of, number))).collect();
        segments.retain(|segment| !lost.contains(&(segment.timeline.0, segment.number)));
        let stored = Stored { segments, histories };
        let on = forks.iter().find(|fork| start + 0x20 <= fork.end.0).map_or(Timeline(top), |fork| fork.timeline);
        let begins = forks.iter().find(|fork| fork.timeline.0 + 1 == on.0).map_or(0, |fork| fork.end.0);
        prop_assume!(begins <= start);
        let target = lsn.map_or(Target::Latest, |lsn| Target::Lsn(Lsn(lsn)));
        let one = [backup(on.0, start, 1)];
        let Ok(plan) = plan(&one, None, &target, &stored, SIZE, time(59)) else { return Ok(()) };
        let mut next = start / SIZE.0;
        for files in &plan.files {
            prop_assert_eq!(files.first, next);
            prop_assert!(files.first <= files.last);
            next = files.last + 1;
            for number in files.first..=files.last {
                let timeline = files.timeline;
                let served = Segment { number, timeline };
                prop_assert!(stored.segments.contains(&served));
                let ended = forks.iter().find(|fork| fork.timeline == timeline);
                prop_assert!(ended.is_none_or(|fork| (number + 1) * SIZE.0 <= fork.end.0));
            }
        }
        prop_assert_eq!(plan.end.lsn.0, next * SIZE.0);
        prop_assert!(lsn.is_none_or(|lsn| lsn < plan.end.lsn.0));
        prop_assert!(lsn.is_some() || next == 0x18 || lost.contains(&(top, next)));
    }
}

#[test]
fn a_specs_target_is_one_of_postgresqls() {
    let of = |json: serde_json::Value| Target::of_spec(Some(&serde_json::from_value(json).unwrap()));
    assert_eq!(Target::of_spec(None), Ok((Target::Latest, false)));
    let lsn = Target::Lsn(Lsn(0x16_0000_0028));
    assert_eq!(
        of(serde_json::json!({"lsn": "16/28", "exclusive": true})),
        Ok((lsn, true))
    );
    assert_eq!(
        of(serde_json::json!({"immediate": true})),
        Ok((Target::Immediate, false))
    );
    assert_eq!(of(serde_json::json!({"xid": 7})), Ok((Target::Xid(7), false)));
    for bad in [
        serde_json::json!({}),
        serde_json::json!({"xid": 7, "name": "x"}),
        serde_json::json!({"lsn": "x"}),
    ] {
        assert!(of(bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn all_that_is_archived_is_in_the_newest_line_and_a_backup_or_a_target_may_be_in_an_earlier_one() {
    let none = Refusal::NoBackup;
    let time = Target::Time("2027-01-01T00:00:00Z".parse().unwrap());
    assert!(!may_be_in_earlier_line(&none, None, &Target::Latest));
    assert!(may_be_in_earlier_line(&none, Some("a"), &Target::Latest));
    assert!(may_be_in_earlier_line(&none, None, &time));
    let unknown = Refusal::UnknownBackup {
        wanted: "a".to_owned(),
        there: Vec::new(),
    };
    assert!(may_be_in_earlier_line(&unknown, Some("a"), &Target::Latest));
    let missing = Refusal::Missing {
        first: "000000010000000000000001".to_owned(),
        count: 1,
    };
    assert!(
        !may_be_in_earlier_line(&missing, None, &time),
        "an older line has not that WAL"
    );
}

#[test]
fn a_snapshot_is_used_only_if_it_is_named() {
    let of = |start, minute, is_snapshot| Backup {
        is_snapshot,
        ..backup(1, start, minute)
    };
    let stored = Stored {
        segments: (0..4)
            .map(|number| Segment {
                number,
                timeline: Timeline(1),
            })
            .collect(),
        ..Stored::default()
    };
    let (full, snapshot) = (of(0x10, 1, false), of(0x110, 2, true));
    let plan = |backups: &[Backup], wanted| {
        plan(backups, wanted, &Target::Latest, &stored, Bytes(0x100), time(9)).map(|plan| plan.backup.name)
    };
    let both = [full, snapshot.clone()];
    assert_eq!(plan(&both, None).as_deref(), Ok("b1"));
    assert_eq!(plan(&both, Some("b2")).as_deref(), Ok("b2"));
    let alone = plan(&[snapshot], None);
    assert_eq!(alone, Err(Refusal::OnlySnapshots(vec!["b2".to_owned()])));
}
