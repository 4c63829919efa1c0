//! Timeline history files (`pg_wal/<timeline>.history`), and stubs that stand in for missing ones.
//!
//! A promotion takes as its new timeline the first number without a history file. A standby asks its primary for the
//! history file of every number up to the primary's; a gap would stop it. A stub, which names no ancestor, fills a gap:
//! nobody follows it, since no timeline descends from it. A stub above all real timelines exists only during a
//! promotion: a start would take its number for the newest timeline.

use std::fs;
use std::io;
use std::path::Path;

use machine::protocol::{Fork, Lsn, Timeline, UNUSED};

use crate::volume::{forks, sync_parent, write_atomically};

/// The first line of a stub. PostgreSQL skips comments in history files.
const STUB: &str = "# No such timeline: its number was reserved and not used, or its history is not known here.\n";

/// Whether this is no history but a stub. A standby gets its primary's like any history, and PostgreSQL hands it to the archive, where
/// it would take the name of a history that a member may bring yet (protocol.md rule 14).
pub fn is_stub(content: &[u8]) -> bool {
    content.starts_with(STUB.as_bytes())
}

/// The timelines that have a history file in this `pg_wal`.
#[derive(Debug, Default)]
struct Histories {
    real: Vec<u32>,
    stubs: Vec<u32>,
}

impl Histories {
    fn has(&self, timeline: u32) -> bool {
        self.real.contains(&timeline) || self.stubs.contains(&timeline)
    }
}

/// Called before a start: makes stubs in every gap below the newest known timeline, and removes those above it.
///
/// # Errors
/// Fails if a file cannot be read, written or removed.
pub(super) fn repair(wal: &Path) -> io::Result<()> {
    let found = list(wal)?;
    let top = found.real.iter().copied().max().unwrap_or_default();
    for &timeline in found.stubs.iter().filter(|&&stub| stub > top) {
        fs::remove_file(file(wal, timeline))?;
    }
    fill(wal, &found, 2..top)
}

/// Called before a promotion: makes PostgreSQL pick the timeline `wanted`.
///
/// # Errors
/// Fails if `wanted` or a later timeline is known already. Fails, too, if it is so high that no election can have led
/// to it, since each number in between would get a file. Also fails if a file cannot be read, written or removed.
pub(super) fn reserve(wal: &Path, wanted: Timeline) -> io::Result<()> {
    let found = list(wal)?;
    let newest = found.real.iter().copied().max().unwrap_or(1);
    if wanted.0.saturating_sub(newest) > UNUSED + 1 {
        return Err(out_of_reach(wanted, newest));
    }
    if let Some(taken) = found.real.iter().find(|&&real| real >= wanted.0) {
        return Err(io::Error::other(format!(
            "timeline {taken} is known here already, {} cannot be next",
            wanted.0
        )));
    }
    for &timeline in found.stubs.iter().filter(|&&stub| stub >= wanted.0) {
        fs::remove_file(file(wal, timeline))?;
    }
    fill(wal, &found, 2..wanted.0)
}

/// Called before data is recovered along `timeline`: makes PostgreSQL pick one after `last` when it ends recovery.
///
/// # Errors
/// Fails if `last` is so high that no election can have led to it. Also fails if a file cannot be read or written.
pub(super) fn keep_from(wal: &Path, timeline: Timeline, last: Timeline) -> io::Result<()> {
    if last.0.saturating_sub(timeline.0) > UNUSED {
        return Err(out_of_reach(last, timeline.0));
    }
    fill(wal, &list(wal)?, timeline.0 + 1..last.0.saturating_add(1))
}

fn out_of_reach(wanted: Timeline, newest: u32) -> io::Error {
    io::Error::other(format!(
        "timeline {} is out of reach: the newest one known here is {newest}",
        wanted.0
    ))
}

/// The timelines with known ancestors, and these ancestors, oldest first. A history file that is not understood is
/// skipped.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn known(wal: &Path) -> io::Result<Vec<(Timeline, Vec<Fork>)>> {
    let mut timelines = list(wal)?.real;
    timelines.sort_unstable();
    let mut known = Vec::new();
    for timeline in timelines {
        match forks(&String::from_utf8_lossy(&fs::read(file(wal, timeline))?)) {
            Ok(forks) => known.push((Timeline(timeline), forks)),
            Err(reason) => tracing::warn!("the history file of timeline {timeline} is passed over: {reason}"),
        }
    }
    Ok(known)
}

/// Removes the history of `timeline`, if it is the newest. PostgreSQL fetches it again from a primary that has it.
///
/// # Errors
/// Fails if a file cannot be read, written or removed.
pub(super) fn forget(wal: &Path, timeline: Timeline) -> io::Result<()> {
    if list(wal)?.real.iter().max() == Some(&timeline.0) {
        fs::remove_file(file(wal, timeline.0))?;
        repair(wal)?;
    }
    Ok(())
}

/// Called before a standby starts whose data comes from these `points` (the last checkpoint, and the minimum recovery
/// end). Removes the histories of later timelines to which one of the points does not belong: PostgreSQL would choose
/// the newest timeline, and end at each start. Returns the removed timelines.
///
/// # Errors
/// Fails if a file cannot be read, written or removed.
pub(super) fn forget_foreign(wal: &Path, points: &[(Timeline, Lsn)]) -> io::Result<Vec<Timeline>> {
    let passes = |forks: &[Fork], (timeline, lsn): (Timeline, Lsn)| {
        forks.iter().any(|fork| fork.timeline == timeline && lsn <= fork.end)
    };
    let mut removed = Vec::new();
    for (timeline, forks) in known(wal)? {
        let newer = points.iter().all(|(of, _)| timeline > *of);
        if newer && !points.iter().all(|&point| passes(&forks, point)) {
            fs::remove_file(file(wal, timeline.0))?;
            removed.push(timeline);
        }
    }
    repair(wal)?;
    Ok(removed)
}

fn fill(wal: &Path, found: &Histories, timelines: std::ops::Range<u32>) -> io::Result<()> {
    for timeline in timelines.filter(|&timeline| timeline > 1 && !found.has(timeline)) {
        write_atomically(&file(wal, timeline), STUB.as_bytes(), 0o600)?;
    }
    sync_parent(&file(wal, 1))
}

fn list(wal: &Path) -> io::Result<Histories> {
    let mut found = Histories::default();
    for entry in fs::read_dir(wal)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(digits) = name.to_str().and_then(|name| name.strip_suffix(".history")) else {
            continue;
        };
        let Some(timeline) = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 8) else {
            continue;
        };
        let stub = is_stub(&fs::read(entry.path())?);
        if stub { &mut found.stubs } else { &mut found.real }.push(timeline);
    }
    Ok(found)
}

fn file(wal: &Path, timeline: u32) -> std::path::PathBuf {
    wal.join(format!("{timeline:08X}.history"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::tests::Scratch;

    fn names(wal: &Path) -> Vec<(u32, bool)> {
        let found = list(wal).expect("readable");
        let real = found.real.iter().map(|&timeline| (timeline, true));
        let mut all: Vec<_> = real.chain(found.stubs.iter().map(|&stub| (stub, false))).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_stub_names_no_ancestor() {
        assert_eq!(forks(STUB), Ok(vec![]));
    }

    #[test]
    fn stubs_fill_gaps_and_stand_above_nothing_after_a_repair() {
        let scratch = Scratch::new();
        let wal = scratch.0.join("wal");
        fs::write(file(&wal, 2), "1\t0/3000000\tx\n").expect("written");
        reserve(&wal, Timeline(5)).expect("reserved");
        assert_eq!(names(&wal), [(2, true), (3, false), (4, false)]);
        // The promotion did not happen.
        repair(&wal).expect("repaired");
        assert_eq!(names(&wal), [(2, true)]);
        reserve(&wal, Timeline(5)).expect("reserved");
        fs::write(file(&wal, 5), "1\t0/3000000\tx\n2\t0/4000000\tx\n").expect("written");
        repair(&wal).expect("repaired");
        assert_eq!(names(&wal), [(2, true), (3, false), (4, false), (5, true)]);
        assert!(reserve(&wal, Timeline(5)).is_err(), "it is taken");
        assert!(reserve(&wal, Timeline(4)).is_err(), "a newer one is known");
        // A clone brings the history of its own timeline only; its standbys will ask for the others.
        for timeline in 2..5 {
            fs::remove_file(file(&wal, timeline)).expect("removed");
        }
        repair(&wal).expect("repaired");
        assert_eq!(names(&wal), [(2, false), (3, false), (4, false), (5, true)]);
    }

    #[test]
    fn what_is_recovered_goes_on_after_the_last_timeline_that_was_used() {
        let scratch = Scratch::new();
        let wal = scratch.0.join("wal");
        fs::write(file(&wal, 3), "1\t0/3000000\tx\n").expect("written");
        keep_from(&wal, Timeline(3), Timeline(2)).expect("no number is taken");
        assert_eq!(names(&wal), [(3, true)]);
        keep_from(&wal, Timeline(3), Timeline(5)).expect("kept");
        assert_eq!(names(&wal), [(3, true), (4, false), (5, false)]);
        assert!(
            keep_from(&wal, Timeline(3), Timeline(UNUSED + 4)).is_err(),
            "out of reach"
        );
    }

    #[test]
    fn a_timeline_too_high_for_any_election_is_refused_before_anything_is_written() {
        let scratch = Scratch::new();
        let wal = scratch.0.join("wal");
        for wanted in [UNUSED + 3, 4_000_000_000, u32::MAX] {
            let refused = reserve(&wal, Timeline(wanted)).expect_err("out of reach");
            assert!(refused.to_string().contains(&wanted.to_string()), "{refused}");
            assert_eq!(names(&wal), []);
        }
    }

    #[test]
    fn the_history_of_a_timeline_to_which_the_data_does_not_belong_is_removed() {
        let scratch = Scratch::new();
        let wal = scratch.0.join("wal");
        let left = |points: &[(u32, u64)]| {
            fs::write(file(&wal, 2), "1\t0/3000000\tx\n").expect("written");
            fs::write(file(&wal, 3), "1\t0/3000000\tx\n2\t0/4000000\tx\n").expect("written");
            fs::write(file(&wal, 4), "1\t0/2000000\tx\n").expect("written");
            let points: Vec<_> = points.iter().map(|&(of, lsn)| (Timeline(of), Lsn(lsn))).collect();
            forget_foreign(&wal, &points).expect("readable");
            names(&wal)
        };
        assert_eq!(left(&[(1, 0x200_0000)]), [(2, true), (3, true), (4, true)]);
        assert_eq!(left(&[(1, 0x300_0000)]), [(2, true), (3, true)]);
        assert_eq!(left(&[(1, 0x200_0000), (1, 0x300_0001)]), []);
        assert_eq!(left(&[(1, 0x300_0000), (2, 0x400_0000)]), [(2, true), (3, true)]);
        assert_eq!(left(&[(2, 0x400_0001)]), [(2, true)], "its own history stays");
    }
}
