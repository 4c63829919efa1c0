//! What follows from a state alone, and small changes of it.

use super::bounds::Event;
use super::state::{Lease, MEMBERS, Member, Postgres, Rule, Set, TIMELINES, Wal, World};

/// A new version of the Lease; the primary that is heard may be another one now.
pub(super) fn see(member: &mut Member, lease: Lease) {
    if member.seen.holder != lease.holder {
        member.silent = false;
    }
    member.seen = lease;
}

pub(super) fn primary(wal: Wal, rule: Rule) -> Postgres {
    Postgres::Primary {
        open: false,
        in_doubt: wal.end,
        proven: rule,
        proven_at: wal.end,
        pending: None,
    }
}

pub(super) fn writes_too(world: &World, me: usize) -> Option<usize> {
    let timeline = world.members[me].wal.timeline;
    (0..MEMBERS).find(|other| {
        let member = &world.members[*other];
        *other != me && matches!(member.postgres, Postgres::Primary { .. }) && member.wal.timeline == timeline
    })
}

/// Who streams from `me` and has the record.
pub(super) fn holders(world: &World, me: usize, at: Wal) -> Set {
    let streams = |member: &Member| matches!(member.postgres, Postgres::Standby { upstream: Some((from, _)), receiving: true } if usize::from(from) == me);
    let held = world
        .members
        .iter()
        .enumerate()
        .filter(|(_, member)| streams(member) && world.contains(member.wal, at));
    held.fold(0, |set, (other, _)| set | 1 << other)
}

/// The record after `mine` on the way to `head`.
pub(super) fn following(world: &World, mine: Wal, head: Wal) -> Option<Wal> {
    if mine == head {
        return None;
    }
    let mut at = head.timeline;
    let mut limit = head.end;
    loop {
        let (parent, fork) = world.forks[usize::from(at) % TIMELINES];
        if at == mine.timeline {
            return (mine.end < limit).then_some(Wal {
                end: mine.end + 1,
                ..mine
            });
        }
        if parent == mine.timeline && mine.end >= fork {
            return Some(Wal {
                timeline: at,
                end: mine.end + 1,
            });
        }
        if parent == 0 {
            return None;
        }
        (at, limit) = (parent, fork);
    }
}

pub(super) fn noticed(before: &Lease, after: &Lease, me: usize) -> Option<Event> {
    let same = after.holder == before.holder && before.holder.is_some();
    let ours_before = before.holder.is_some_and(|(holder, _)| usize::from(holder) == me)
        || before.release.is_some_and(|(by, _)| usize::from(by) == me) && before.holder.is_none();
    match () {
        () if after.holder.is_none() => Some(Event::Released),
        () if same && after.reserved > before.reserved => Some(Event::ReservedAgain),
        () if same && after.epoch > before.epoch => Some(Event::Bumped),
        () if same && (after.rule.required < before.rule.required || before.rule.names & !after.rule.names != 0) => {
            Some(Event::Relaxed)
        }
        () if same && after.rule != before.rule => Some(Event::Tightened),
        () if !same && ours_before => Some(Event::Resumed),
        () => None,
    }
}

/// A WAL receiver ends with its source, and while nothing is heard of it.
pub(super) fn settle(world: &mut World) {
    let before = *world;
    for member in &mut world.members {
        if let Postgres::Standby {
            upstream: Some((from, _)),
            receiving,
        } = &mut member.postgres
        {
            let source = &before.members[usize::from(*from)];
            let serves = matches!(source.postgres, Postgres::Primary { .. });
            *receiving &= serves && !member.silent && before.contains(source.wal, member.wal);
        }
    }
}

/// Numbers that are only compared for equality are renumbered: states that differ in nothing else are one.
pub(super) fn canonical(world: &mut World) {
    let mut versions: Vec<u8> = vec![world.lease.version];
    versions.extend(world.ghost.map(|ghost| ghost.version));
    for member in &world.members {
        versions.push(member.seen.version);
        versions.extend(member.write.map(|write| write.content.version));
        versions.extend(member.write.map(|write| write.content.version + 1));
    }
    versions.sort_unstable();
    versions.dedup();
    let rank = |version: &mut u8| *version = versions.binary_search(version).map_or(*version, |rank| rank as u8 + 1);
    rank(&mut world.lease.version);
    if let Some(ghost) = &mut world.ghost {
        rank(&mut ghost.version);
    }
    for member in &mut world.members {
        rank(&mut member.seen.version);
        if let Some(write) = &mut member.write {
            rank(&mut write.content.version);
        }
    }
}
