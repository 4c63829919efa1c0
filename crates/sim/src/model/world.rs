//! Helpers that derive from a state or make small changes to it.

use super::bounds::Event;
use super::state::{Lease, Member, Postgres, Rule, Set, TIMELINES, Wal, World};

/// A member sees a new version of the Lease. The primary that it hears may be another one now.
pub(super) fn see<const N: usize>(member: &mut Member<N>, lease: Lease) {
    if lease.loss.is_some() {
        return see_lost(member, lease);
    }
    if member.seen.holder != lease.holder {
        member.silent = false;
    }
    if member.seen.epoch < lease.epoch {
        // Earlier answers no longer count, unless more was promised.
        member.replies = member
            .replies
            .map(|reply| reply.filter(|reply| reply.promised > lease.epoch));
    }
    if member.seen.version != lease.version {
        (member.changed, member.unsettled) = (0, None);
    }
    member.seen = lease;
}

/// A lost Lease shows nothing: the member remembers its last content, and which of its own writes may have been in it.
fn see_lost<const N: usize>(member: &mut Member<N>, lease: Lease) {
    let before = member.seen;
    if before.version == lease.version {
        return;
    }
    if before.loss.is_none() {
        let flying = member.write.filter(|write| write.content.version == before.version);
        let lost = member.unsettled.filter(|lost| lost.version == before.version);
        member.doubts = [
            flying.map(|write| (write.content.rule, write.release)),
            lost.map(|lost| (lost.rule, lost.release)),
        ];
    }
    (member.changed, member.unsettled, member.since_loss) = (0, None, 0);
    member.seen = Lease {
        version: lease.version,
        loss: lease.loss,
        ..before
    };
}

/// A closed primary; WAL that may be in doubt ends at `in_doubt`.
pub(super) fn primary(in_doubt: u8, rule: Rule) -> Postgres {
    Postgres::Primary {
        open: false,
        in_doubt,
        proven: rule,
        proven_at: in_doubt,
        pending: None,
    }
}

pub(super) fn writes_too<const N: usize>(world: &World<N>, me: usize) -> Option<usize> {
    let timeline = world.members[me].wal.timeline;
    (0..N).find(|other| {
        let member = &world.members[*other];
        *other != me && matches!(member.postgres, Postgres::Primary { .. }) && member.wal.timeline == timeline
    })
}

/// The members that stream from `me` and have the record, as far as `end` shows.
pub(super) fn holders<const N: usize>(world: &World<N>, me: usize, at: Wal, end: fn(&Member<N>) -> Wal) -> Set {
    let streams = |member: &Member<N>| matches!(member.postgres, Postgres::Standby { upstream: Some((from, _)), receiving: true } if usize::from(from) == me);
    let held = world
        .members
        .iter()
        .enumerate()
        .filter(|(_, member)| streams(member) && world.contains(end(member), at));
    held.fold(0, |set, (other, _)| set | 1 << other)
}

/// The next record after `mine` on the path to `head`.
pub(super) fn following<const N: usize>(world: &World<N>, mine: Wal, head: Wal) -> Option<Wal> {
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

/// The notable event of a write of the Lease by `me`.
pub(super) fn noticed<const N: usize>(world: &World<N>, after: &Lease, me: usize) -> Option<Event> {
    let before = &world.lease;
    if before.loss.is_some() {
        return Some(Event::LeaseRestored);
    }
    let same = after.holder == before.holder && before.holder.is_some();
    let released = before
        .release
        .filter(|_| before.holder.is_none())
        .map(|(by, _)| usize::from(by));
    let to_nobody = same && before.rule.required > 0 && after.rule.required == 0;
    let ours_before = before.holder.map(|(holder, _)| usize::from(holder)).or(released) == Some(me);
    match () {
        () if after.holder.is_none() => Some(Event::Released),
        () if same && after.reserved > before.reserved => Some(Event::ReservedAgain),
        () if same && after.epoch > before.epoch => Some(Event::Bumped),
        () if to_nobody && world.preferred && world.durability > 0 => Some(Event::RelaxedToNobody),
        () if same && (after.rule.required < before.rule.required || before.rule.names & !after.rule.names != 0) => {
            Some(Event::Relaxed)
        }
        () if same && after.rule != before.rule => Some(Event::Tightened),
        () if same => None,
        () if ours_before => Some(Event::Resumed),
        () if released.is_some_and(|by| world.is_unfit(by) && !world.members[by].primary_data) => {
            Some(Event::Inherited)
        }
        () if released.is_some_and(|by| world.fenced >> by & 1 == 1) => Some(Event::FencedPrimaryReplaced),
        () if released.is_some() && before.successor == Some(me as u8) => Some(Event::HandedOver),
        () => None,
    }
}

/// A WAL receiver flushes when it ends, and PostgreSQL flushes all that it finds when it starts. Unflushed is only what
/// a receiver has just written, or had when PostgreSQL was killed. If no more power can be lost, that is not
/// distinguished from flushed WAL.
pub(super) fn flush<const N: usize>(world: &mut World<N>, reboots: u8) {
    for member in &mut world.members {
        let open = matches!(
            member.postgres,
            Postgres::Standby { receiving: true, .. } | Postgres::Down { .. }
        );
        let keep = open && world.reboots < reboots;
        member.flushed = member.flushed.filter(|_| keep);
    }
}

/// A WAL receiver ends with its source, and while the source is not heard.
pub(super) fn settle<const N: usize>(world: &mut World<N>) {
    for me in 0..N {
        let member = &world.members[me];
        let Postgres::Standby {
            upstream: Some((from, epoch)),
            receiving: true,
        } = member.postgres
        else {
            continue;
        };
        let source = &world.members[usize::from(from)];
        let serves = matches!(source.postgres, Postgres::Primary { .. });
        if !serves || member.silent || !world.contains(source.wal, member.wal) {
            world.members[me].postgres = Postgres::Standby {
                upstream: Some((from, epoch)),
                receiving: false,
            };
        }
    }
}

/// Numbers that are only compared for equality are numbered again, so that states that differ only in them are one.
pub(super) fn canonical<const N: usize>(world: &mut World<N>) {
    let mut used: u64 = 1 << world.lease.version | world.ghost.map_or(0, |ghost| 1 << ghost.version);
    for member in &world.members {
        used |= 1 << member.seen.version;
        used |= member.write.map_or(0, |write| 0b11 << write.content.version);
        used |= member.unsettled.map_or(0, |lost| 1 << lost.version);
    }
    let rank = |version: &mut u8| *version = (used & ((1 << *version) - 1)).count_ones() as u8 + 1;
    rank(&mut world.lease.version);
    if let Some(ghost) = &mut world.ghost {
        rank(&mut ghost.version);
    }
    for member in &mut world.members {
        rank(&mut member.seen.version);
        if let Some(write) = &mut member.write {
            rank(&mut write.content.version);
        }
        if let Some(lost) = &mut member.unsettled {
            rank(&mut lost.version);
        }
    }
}
