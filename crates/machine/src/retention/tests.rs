use std::collections::BTreeSet;

use chrono::TimeZone;
use proptest::prelude::*;

use super::*;
use crate::protocol::{Fork, Lsn, Timeline};
use crate::recovery::{Target, plan};

const SIZE: Bytes = Bytes(0x100);

fn day(day: i64) -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 11, 1, 3, 0, 0).single().expect("a time") + TimeDelta::days(day)
}

fn backup(timeline: u32, at: i64) -> Backup {
    let start = u64::try_from(at).expect("a day") * 0x1000 + 0x10;
    Backup {
        name: format!("b{at}"),
        timeline: Timeline(timeline),
        start: Lsn(start),
        stop: Lsn(start + 0x20),
        stop_time: day(at),
        damaged_pages: false,
        is_snapshot: false,
    }
}

fn policy(min_backups: Option<u32>, window_days: Option<u32>) -> BackupRetention {
    BackupRetention {
        min_backups,
        window_days,
        hold: Vec::new(),
        suspend: false,
    }
}

/// One timeline.
fn alone() -> Stored {
    Stored {
        segments: [Segment {
            number: 0,
            timeline: Timeline(1),
        }]
        .into(),
        ..Stored::default()
    }
}

#[test]
fn of_unfinished_backups_those_go_that_began_before_the_oldest_kept_one() {
    let named = |name: &str, at| Backup {
        name: name.to_owned(),
        ..backup(1, at)
    };
    let backups = [named("20261101T030000Z-F-00aa", 0), named("20261102T030000Z-F-00aa", 1)];
    let of = |policy| removal(&backups, &alone(), &policy, SIZE, day(9));
    let taken = of(policy(Some(1), None));
    assert_eq!(taken.anchor.as_deref(), Some("20261102T030000Z-F-00aa"));
    for (name, is_taken) in [
        ("20261101T120000Z-F-ffff", true),
        ("20261102T030000Z-F-00aa", false),
        ("20261102T030001Z-F-0000", false),
    ] {
        assert_eq!(taken.takes_unfinished(name), is_taken, "{name}");
    }
    let none = of(policy(Some(3), None));
    assert!(!none.takes_unfinished("20201101T120000Z-F-ffff"));
    let segment = |number| Segment {
        number,
        timeline: Timeline(2),
    };
    let segments = [0x0f, 0x10].map(|number| taken.takes_segment(segment(number)));
    assert_eq!((segments, none.takes_segment(segment(0))), ([true, false], false));
}

fn names(removal: &Removal) -> Vec<&str> {
    removal.backups.iter().map(String::as_str).collect()
}

#[test]
fn the_newest_are_kept_by_number_and_by_age() {
    let backups: Vec<Backup> = (0..10).map(|at| backup(1, at)).collect();
    for (of, removed, first) in [
        (policy(Some(1), None), 9, 0x90),
        (policy(Some(3), None), 7, 0x70),
        (policy(Some(10), None), 0, 0),
        (policy(Some(11), None), 0, 0),
        // It is day 9: to recover to any time of the last two days, the backup of day 7 is needed.
        (policy(None, Some(2)), 7, 0x70),
        (policy(None, Some(9)), 0, 0),
        (policy(None, Some(10)), 0, 0),
        (policy(Some(5), Some(2)), 5, 0x50),
        (policy(Some(2), Some(4)), 5, 0x50),
        (policy(None, None), 0, 0),
    ] {
        let removal = removal(&backups, &alone(), &of, SIZE, day(9));
        assert_eq!(names(&removal).len(), removed, "{of:?}: {removal:?}");
        assert_eq!(removal.first_segment, first, "{of:?}: {removal:?}");
    }
    let damaged = |at| Backup {
        damaged_pages: at >= 6,
        ..backup(1, at)
    };
    let damaged: Vec<Backup> = (0..10).map(damaged).collect();
    let removed = removal(&damaged, &alone(), &policy(Some(1), None), SIZE, day(9));
    assert_eq!(removed.anchor.as_deref(), Some("b5"), "the last whole one is kept");
    // The oldest come first, in whatever order they are listed.
    let reversed: Vec<Backup> = backups.iter().rev().cloned().collect();
    let removal = removal(&reversed, &alone(), &policy(Some(8), None), SIZE, day(9));
    assert_eq!(
        (names(&removal), removal.anchor.as_deref()),
        (vec!["b0", "b1"], Some("b2"))
    );
}

/// A window that no backup is as old as keeps everything, even WAL from before the first backup.
#[test]
fn nothing_is_removed_without_a_backup() {
    let removal = removal(&[], &alone(), &policy(Some(1), Some(1)), SIZE, day(9));
    assert_eq!(removal, Removal::default());
}

/// Timeline 2 left timeline 1 after the backup of day 3, so those of days 4 and 5 on timeline 1 are abandoned.
#[test]
fn abandoned_backups_do_not_count() {
    let fork = Fork {
        timeline: Timeline(1),
        end: Lsn(0x3800),
    };
    let stored = Stored {
        segments: [1, 2]
            .map(|timeline| Segment {
                number: 0x38,
                timeline: Timeline(timeline),
            })
            .into(),
        histories: [(Timeline(2), vec![fork])].into(),
    };
    let mut backups: Vec<Backup> = (0..6).map(|at| backup(1, at)).collect();
    backups.push(backup(2, 6));
    let of = |min| removal(&backups, &stored, &policy(Some(min), None), SIZE, day(9));
    assert_eq!(names(&of(1)).len(), 6, "all but the one of the newest timeline");
    let two = of(2);
    assert_eq!(
        (names(&two), two.first_segment),
        (vec!["b0", "b1", "b2"], 0x30),
        "with the abandoned ones after it"
    );
    // Its history is not there: what belongs to the newest timeline is not known, and is not removed.
    let unknown = Stored {
        histories: [].into(),
        ..stored
    };
    assert_eq!(
        removal(&backups, &unknown, &policy(Some(2), None), SIZE, day(9)),
        Removal::default()
    );
}

/// A history: timelines that each leave the one before somewhere in the middle, with backups on the way.
fn history() -> impl Strategy<Value = (Vec<Backup>, Stored)> {
    let timeline = (prop::collection::vec(1u64..40, 0..6), 1u64..120);
    prop::collection::vec(timeline, 1..5).prop_map(|timelines| {
        let (mut backups, mut stored, mut ancestors, mut begin) =
            (Vec::new(), Stored::default(), Vec::new(), 0x100_u64);
        let mut at = 0;
        for (index, (gaps, fork)) in timelines.iter().enumerate() {
            let timeline = Timeline(u32::try_from(index).expect("few") + 1);
            let mut end = begin;
            for gap in gaps {
                let start = end + gap * 0x11;
                end = start + 0x20;
                at += 1;
                backups.push(Backup {
                    name: format!("b{at}"),
                    timeline,
                    start: Lsn(start),
                    stop: Lsn(end),
                    stop_time: day(at),
                    damaged_pages: false,
                    is_snapshot: false,
                });
            }
            let numbers = begin / SIZE.0..=end / SIZE.0;
            stored
                .segments
                .extend(numbers.map(|number| Segment { number, timeline }));
            if !ancestors.is_empty() {
                stored.histories.insert(timeline, ancestors.clone());
            }
            begin = (begin + fork * 0x10).min(end);
            ancestors.push(Fork {
                timeline,
                end: Lsn(begin),
            });
        }
        (backups, stored)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    /// What is recoverable within the policy before a removal is recoverable after it, by the same plan.
    #[test]
    fn every_kept_backup_stays_recoverable(
        (backups, stored) in history(), min in prop::option::of(1u32..6), days in prop::option::of(1u32..12), now in 0i64..40,
    ) {
        let policy = policy(min, days);
        let removal = removal(&backups, &stored, &policy, SIZE, day(now));
        let kept: Vec<Backup> = backups.iter().filter(|backup| !removal.backups.contains(&backup.name)).cloned().collect();
        let left: BTreeSet<Segment> =
            stored.segments.iter().filter(|segment| segment.number >= removal.first_segment).copied().collect();
        let left = Stored { segments: left, histories: stored.histories.clone() };
        prop_assert!(backups.is_empty() || !kept.is_empty());
        let latest = |of: &[Backup], name: Option<&str>, stored: &Stored| plan(of, name, &Target::Latest, stored, SIZE, day(99));
        for backup in &kept {
            prop_assert_eq!(latest(&backups, Some(&backup.name), &stored), latest(&kept, Some(&backup.name), &left));
        }
        prop_assert_eq!(latest(&backups, None, &stored).ok(), latest(&kept, None, &left).ok());
        let own = |of: &[Backup]| of_newest_timeline(of, &stored).len();
        if !removal.backups.is_empty() {
            prop_assert!(own(&kept) >= min.unwrap_or(1) as usize);
        }
        // Any time of the window is as recoverable as before.
        if let Some(days) = days {
            let begin = day(now) - TimeDelta::days(days.into());
            let at = Target::Time(begin.max(day(0)));
            let of = |backups: &[Backup], stored: &Stored| plan(backups, None, &at, stored, SIZE, day(99)).ok();
            prop_assert_eq!(of(&backups, &stored), of(&kept, &left));
        }
    }

    /// A second look finds nothing more to remove: only time and new backups do.
    #[test]
    fn a_removal_is_complete((backups, stored) in history(), min in 1u32..6, now in 0i64..40) {
        let policy = policy(Some(min), None);
        let first = removal(&backups, &stored, &policy, SIZE, day(now));
        let kept: Vec<Backup> = backups.iter().filter(|backup| !first.backups.contains(&backup.name)).cloned().collect();
        let again = removal(&kept, &stored, &policy, SIZE, day(now));
        prop_assert!(again.backups.is_empty(), "{again:?}");
        prop_assert_eq!(again.first_segment, first.first_segment);
    }
}

#[test]
fn a_backup_that_is_held_stays_with_the_wal_that_it_needs_and_no_more() {
    let backups: Vec<Backup> = (0..6).map(|at| backup(1, at)).collect();
    let policy = BackupRetention {
        hold: vec!["b1".to_owned(), "b4".to_owned(), "unknown".to_owned()],
        ..policy(Some(2), None)
    };
    let removal = removal(&backups, &alone(), &policy, SIZE, day(9));
    assert_eq!(names(&removal), ["b0", "b2", "b3"]);
    assert_eq!((removal.anchor.as_deref(), removal.first_segment), (Some("b4"), 0x40));
    let takes = |number| {
        removal.takes_segment(Segment {
            number,
            timeline: Timeline(1),
        })
    };
    // It begins and ends in segment 0x10.
    assert_eq!(
        [0x0f, 0x10, 0x11, 0x3f, 0x40].map(takes),
        [true, false, true, true, false]
    );
    let stored = Stored {
        segments: [0x10, 0x40, 0x50]
            .map(|number| Segment {
                number,
                timeline: Timeline(1),
            })
            .into(),
        ..Stored::default()
    };
    let to = |target| plan(&backups, Some("b1"), &target, &stored, SIZE, day(9)).map(|plan| plan.backup.name);
    assert_eq!(to(Target::Immediate).expect("it can be recovered"), "b1");
    assert!(to(Target::Latest).is_err(), "the WAL behind it is gone");
}

#[test]
fn the_backup_that_a_drill_has_proven_is_held_too() {
    let backups: Vec<Backup> = (0..6).map(|at| backup(1, at)).collect();
    let held = BackupRetention {
        hold: vec!["b1".to_owned()],
        ..policy(Some(2), None)
    };
    let removed = |proven| {
        let removal = removal(&backups, &alone(), &keeping(&held, proven), SIZE, day(9));
        removal.backups
    };
    assert_eq!(removed(None), ["b0", "b2", "b3"]);
    assert_eq!(removed(Some("b2")), ["b0", "b3"]);
    assert_eq!(removed(Some("b5")), ["b0", "b2", "b3"], "it stays anyway");
}

#[test]
fn snapshots_count_and_the_newest_copy_in_the_store_stays() {
    let of = |at, is_snapshot| Backup {
        is_snapshot,
        ..backup(1, at)
    };
    let removed = |copies: &[i64]| {
        let backups: Vec<Backup> = (0..6).map(|at| of(at, !copies.contains(&at))).collect();
        let removal = removal(&backups, &alone(), &policy(Some(2), None), SIZE, day(9));
        (removal.backups.len(), removal.anchor.unwrap_or_default())
    };
    assert_eq!(removed(&[]), (4, "b4".to_owned()), "snapshots alone");
    assert_eq!(removed(&[0, 1]), (1, "b1".to_owned()), "the newest copy");
    assert_eq!(removed(&[1, 5]), (4, "b4".to_owned()));
}
