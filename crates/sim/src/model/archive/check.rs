//! What must hold of the archive in every state (docs/invariants.md 16 and 36), and in the end.

use chrono::DateTime;
use machine::archive::{Segment, WalFile};
use machine::protocol::{Lsn, Timeline};
use machine::recovery::{Backup, Plan, Refusal, Stored, Target, plan};

use super::super::label::named;
use super::super::names::{forks, wal};
use super::super::observe::history;
use super::super::state::{Data, Postgres, TIMELINES, Wal, World};
use super::files::{files, last, look, size, slot};

/// What is wrong with the archive, if anything.
pub(in super::super) fn violation<const N: usize>(world: &World<N>) -> Option<String> {
    if world.segment == 0 {
        return None;
    }
    (0..N)
        .find_map(|me| struck_off(world, me))
        .or_else(|| declared(world))
        .or_else(|| acknowledged(world))
        .or_else(|| lineage(world))
}

/// A file that counts as archived on a server that runs is in the store, unless a segment of its number was given up.
fn struck_off<const N: usize>(world: &World<N>, me: usize) -> Option<String> {
    let member = &world.members[me];
    if matches!(member.postgres, Postgres::Down { .. }) {
        // A copy that has not been started has the marks of the program that copies.
        return None;
    }
    let is_done = |file: WalFile| match file {
        WalFile::Segment(segment) => member.marks.done >> segment.number & 1 == 1,
        WalFile::History(timeline) => member.marks.histories >> slot(timeline) & 1 == 1,
        WalFile::Partial(_) | WalFile::BackupNote => false,
    };
    let mut whole = files(world, member.wal).into_iter().filter(|(_, is_half)| !is_half);
    let (missing, _) = whole.find(|(file, _)| is_done(*file) && !is_stored(world, *file))?;
    Some(format!(
        "{me} takes {} for archived, and the store lacks it",
        named(missing)
    ))
}

fn is_stored<const N: usize>(world: &World<N>, file: WalFile) -> bool {
    let excused = |number: u64| world.excused >> number & 1 == 1;
    world.store.has(file) || file.segment().is_some_and(|segment| excused(segment.number))
}

/// All that the Lease says is archived is in the store.
fn declared<const N: usize>(world: &World<N>) -> Option<String> {
    let up_to = world.lease.archived?;
    let mut whole = files(world, up_to).into_iter().filter(|(_, is_half)| !is_half);
    let (missing, _) = whole.find(|(file, _)| !is_stored(world, *file))?;
    Some(format!(
        "the Lease says that all is archived up to {up_to}, and the store lacks {}",
        named(missing)
    ))
}

/// Each acknowledged record is on a volume, or in the store. (A volume may remove a segment that is in the store.)
fn acknowledged<const N: usize>(world: &World<N>) -> Option<String> {
    let is_there = |at: Wal| {
        let has = |end: Wal| world.contains(end, at);
        let place = u64::from(at.end - 1) / size(world).0;
        let has_it = |segment: Segment| segment.number == place && has(last(segment, size(world)));
        let on_volume = world
            .members
            .iter()
            .any(|member| member.data != Data::Empty && has(member.wal));
        on_volume
            || world
                .store
                .files()
                .iter()
                .any(|file| file.segment().is_some_and(has_it))
    };
    let records = (1..TIMELINES).map(|timeline| Wal {
        timeline: timeline as u8,
        end: world.acknowledged[timeline],
    });
    let missing = records.filter(|at| at.end > 0).find(|at| !is_there(*at))?;
    Some(format!(
        "{missing} was acknowledged, and is neither on a volume nor in the store"
    ))
}

/// A recovery follows no timeline that is newer than the one that the holder serves on, and knows its history.
fn lineage<const N: usize>(world: &World<N>) -> Option<String> {
    if world.store.segments[2..].iter().all(|segments| *segments == 0) {
        return None;
    }
    let served = world.lease.written;
    match recovery(world) {
        Ok(Plan { timeline, .. }) if world.lease.serving && timeline.0 > served.into() => Some(format!(
            "a recovery follows timeline {}, and the holder serves on {served}",
            timeline.0
        )),
        Err(Refusal::NoHistory(timeline)) => Some(format!("the store has no history of timeline {}", timeline.0)),
        // Segments are pushed beside each other.
        Ok(_) | Err(_) => None,
    }
}

/// What a recovery of all that is archived reads, of a backup from the first record on.
fn recovery<const N: usize>(world: &World<N>) -> Result<Plan, Refusal> {
    let files = world.store.files();
    let histories = files.iter().filter_map(|file| match file {
        WalFile::History(timeline) => Some((*timeline, forks(&history(world, slot(*timeline) as u8)))),
        WalFile::Segment(_) | WalFile::Partial(_) | WalFile::BackupNote => None,
    });
    let stored = Stored {
        histories: histories.collect(),
        segments: files.iter().filter_map(|file| file.segment()).collect(),
    };
    let backup = Backup {
        name: String::new(),
        timeline: Timeline(1),
        start: Lsn(0),
        stop: Lsn(0),
        stop_time: DateTime::UNIX_EPOCH,
        damaged_pages: false,
        is_snapshot: false,
    };
    plan(
        &[backup],
        None,
        &Target::Latest,
        &stored,
        size(world),
        DateTime::UNIX_EPOCH,
    )
}

/// True if nothing is left to be archived: the holder's files are in the store, the Lease says so, and each standby has
/// struck off what it says. Then a recovery reads just these files.
pub(in super::super) fn is_archived<const N: usize>(world: &World<N>) -> bool {
    let Some(holder) = world.holder().filter(|_| world.segment > 0) else {
        return world.segment == 0;
    };
    let own = look(world, holder, None);
    let told = own.progress.up_to.map(wal);
    let up_to = told.map_or(0, |told| told.end);
    let is_told = told.is_none() || world.lease.archived == told;
    // A history that the holder has said nothing about yet comes before all segments: they wait with it.
    let waits = |me: usize| {
        let look = look(world, me, None);
        let first = look.waiting.first().map(|place| look.files[*place].0);
        let fenced = world.fenced >> me & 1 == 1;
        let is_known = match first {
            Some(WalFile::Segment(segment)) => last(segment, size(world)).end <= up_to,
            Some(WalFile::History(timeline)) => told.is_some_and(|told| timeline.0 <= told.timeline.into()),
            Some(WalFile::Partial(_) | WalFile::BackupNote) | None => false,
        };
        me != holder && !fenced && is_known
    };
    let is_read = match (told, recovery(world)) {
        (None, _) => true,
        // Segments that were given up may be missing.
        _ if world.excused > 0 => true,
        (Some(told), Ok(plan)) => files(world, told)
            .iter()
            .all(|(file, is_half)| *is_half || plan.serves(*file)),
        (Some(_), Err(_)) => false,
    };
    own.waiting.is_empty() && own.found.is_empty() && is_told && !(0..N).any(waits) && is_read
}
