//! Start states, what must hold in every state, and when the database is as wanted.
//!
//! More is checked where it happens: no timeline begins twice ([`super::tasks`]); nothing acknowledged or visible is
//! missing where a timeline begins; nothing is acknowledged that a newer timeline lacks ([`super::wire`]).

use super::archive::{self, Basis, Objects, received, wrote};
use super::state::{Lease, Member, Postgres, Rule, Set, TIMELINES, Task, Unsettled, Wal, World};
use super::world::settle;

/// `N` members, of which 0 is the primary, under `ANY required` of the others; one record is written and acknowledged.
pub fn formed<const N: usize>(required: u8) -> World<N> {
    let rule = Rule {
        required,
        names: if required > 0 { (1 << N) - 2 } else { 0 },
    };
    let lease = Lease {
        version: 1,
        holder: Some((0, 1)),
        epoch: 1,
        rule,
        written: 1,
        serving: true,
        ..Lease::default()
    };
    let standby = follower(lease);
    let mut members = [standby; N];
    members[0] = Member {
        postgres: Postgres::Primary {
            open: true,
            in_doubt: 0,
            proven: rule,
            proven_at: 0,
            pending: None,
        },
        primary_data: true,
        confirmed: Some(1),
        ..standby
    };
    let mut acknowledged = [0; TIMELINES];
    acknowledged[1] = 1;
    World {
        lease,
        members,
        ghost: None,
        forks: [(0, 0); TIMELINES],
        loose: 0,
        given_up: 0,
        acknowledged,
        lost: [0; TIMELINES],
        durability: required,
        preferred: false,
        strict: false,
        accepted: 0,
        wanted: None,
        fenced: 0,
        unfit: 0,
        edits: 0,
        faults: 0,
        reboots: 0,
        segment: 0,
        store: Objects::default(),
        pushed: Objects::default(),
        excused: 0,
    }
}

/// The same, but no member hears the primary any more: the start of most failovers.
pub fn cut<const N: usize>(required: u8) -> World<N> {
    let mut world = formed(required);
    for member in &mut world.members[1..] {
        member.silent = true;
    }
    settle(&mut world);
    world
}

/// The same, where an election waits until the old primary's reads have ended.
pub fn strict<const N: usize>(required: u8) -> World<N> {
    World {
        strict: true,
        ..formed(required)
    }
}

/// The same, but all members except 1 do not hear the primary.
pub fn parted<const N: usize>(required: u8) -> World<N> {
    let mut world = formed(required);
    for member in &mut world.members[2..] {
        member.silent = true;
    }
    settle(&mut world);
    world
}

/// No member hears the primary any more, whose machine was off. One record is only on it and on 1, and the user accepts
/// its loss.
pub fn given_up<const N: usize>(required: u8) -> World<N> {
    let mut world = cut(required);
    let newer = Wal { timeline: 1, end: 2 };
    let off = Member {
        run: 2,
        promise: 1,
        primary_data: true,
        ..Member::new(newer, world.lease)
    };
    (world.members[0], world.members[1].wal) = (off, newer);
    (world.acknowledged[1], world.accepted) = (newer.end, 1);
    settle(&mut world);
    world
}

/// All members except 1 do not hear the primary. Commits are about to wait for 1 alone, and no WAL sender is proven to
/// know it.
pub fn shrinking<const N: usize>(required: u8) -> World<N> {
    let mut world = parted(required);
    let rule = Rule { required, names: 0b10 };
    world.members[0].task = Some(Task::SetSync(rule));
    if let Postgres::Primary { pending, .. } = &mut world.members[0].postgres {
        *pending = Some(rule);
    }
    world
}

/// Commits wait for 1 alone, which does not hear the primary any more. All others follow the primary, but do not
/// receive at this moment.
pub fn left_out<const N: usize>() -> World<N> {
    let mut world = formed(1);
    let rule = Rule {
        required: 1,
        names: 0b10,
    };
    world.lease.rule = rule;
    for member in &mut world.members {
        member.seen.rule = rule;
        match &mut member.postgres {
            Postgres::Primary { proven, .. } => *proven = rule,
            Postgres::Standby { receiving, .. } => *receiving = false,
            Postgres::Down { .. } => {}
        }
    }
    world.members[1].silent = true;
    world
}

/// The same as `world`, but no member hears the primary any more, and the answers to all writes of the Lease that have
/// arrived are lost.
pub fn unanswered<const N: usize>(mut world: World<N>) -> World<N> {
    for member in &mut world.members[1..] {
        member.silent = true;
    }
    for member in &mut world.members {
        let arrived = member.write.take_if(|write| write.answer.is_some());
        if let Some(write) = arrived {
            member.write_failed = true;
            member.unsettled = Some(Unsettled {
                version: write.content.version,
                rule: write.content.rule,
                release: write.release,
            });
        }
    }
    settle(&mut world);
    world
}

/// The same as `world`, with an archive of segments of so many records. Nothing is archived yet.
pub fn archiving<const N: usize>(mut world: World<N>, segment: u8) -> World<N> {
    world.segment = segment;
    for member in &mut world.members {
        let last = member.wal.end;
        for end in 1..=last {
            let before = Wal {
                end: end - 1,
                ..member.wal
            };
            member.wal.end = end;
            match member.postgres {
                Postgres::Standby { .. } => received(member, before, segment),
                Postgres::Primary { .. } | Postgres::Down { .. } => wrote(member, segment),
            }
        }
    }
    settle(&mut world);
    archive::settle(&mut world, None, &[Basis::default(); N]);
    world
}

fn follower<const N: usize>(lease: Lease) -> Member<N> {
    Member {
        postgres: Postgres::Standby {
            upstream: Some((0, 1)),
            receiving: true,
        },
        promise: 1,
        ..Member::new(Wal { timeline: 1, end: 1 }, lease)
    }
}

/// What is wrong with a state, if anything.
pub fn violation<const N: usize>(world: &World<N>) -> Option<String> {
    for one in 0..N {
        let a = &world.members[one];
        if let Postgres::Standby {
            upstream: Some((from, epoch)),
            receiving: true,
        } = a.postgres
            && epoch != a.promise
        {
            return Some(format!(
                "{one} has promised {} and receives from {from} of epoch {epoch}",
                a.promise
            ));
        }
        for other in one + 1..N {
            let b = &world.members[other];
            if is_primary(a) && is_primary(b) && a.wal.timeline == b.wal.timeline {
                return Some(format!("{one} and {other} write timeline {}", a.wal.timeline));
            }
            if world.strict && is_open(a) && is_open(b) {
                return Some(format!("{one} and {other} are both read"));
            }
            if acknowledges_alone(a) && acknowledges_alone(b) {
                return Some(format!(
                    "{one} and {other} both acknowledge writes, and wait for no standby"
                ));
            }
        }
    }
    archive::violation(world)
}

/// True if the Lease is lost and only the user can help: no primary that holds it lives, or too few of its followers
/// can confirm that they have promised no later epoch.
pub fn is_lost_for_good<const N: usize>(world: &World<N>) -> bool {
    let provable = |(me, primary): (usize, &Member<N>)| {
        let seen = &primary.seen;
        let proves = |other: &Member<N>| {
            let follows = matches!(other.postgres, Postgres::Standby { upstream: Some((from, _)), .. } if usize::from(from) == me);
            follows && other.promise <= seen.epoch && other.seen.epoch == seen.epoch
        };
        let others = world.members.iter().enumerate().filter(|(_, other)| proves(other));
        let names = others.fold(0, |set: Set, (other, _)| set | 1 << other);
        let holds = primary.confirmed.is_some() && seen.holder == Some((me as u8, primary.run));
        is_primary(primary) && holds && seen.rule.required > 0 && seen.rule.is_met(names)
    };
    world.lease.loss.is_some() && !world.members.iter().enumerate().any(provable)
}

fn is_primary<const N: usize>(member: &Member<N>) -> bool {
    matches!(member.postgres, Postgres::Primary { .. })
}

fn is_open<const N: usize>(member: &Member<N>) -> bool {
    matches!(member.postgres, Postgres::Primary { open: true, .. })
}

fn acknowledges_alone<const N: usize>(member: &Member<N>) -> bool {
    let alone = |rule: Rule| rule.required == 0;
    matches!(member.postgres, Postgres::Primary { open: true, proven, pending, .. }
        if alone(proven) || pending.is_some_and(alone))
}

/// True if the database is as wanted: one primary serves, and the others stream from it with all its WAL and are in the
/// rule. Instances that the user has fenced do not count.
pub fn is_ready<const N: usize>(world: &World<N>) -> bool {
    let Some(holder) = world.holder() else { return false };
    let primary = &world.members[holder];
    let follows = |(other, member): (usize, &Member<N>)| {
        let streams = matches!(member.postgres, Postgres::Standby { upstream: Some((from, _)), receiving: true } if usize::from(from) == holder);
        other == holder || world.fenced >> other & 1 == 1 || streams && member.flushed() == primary.wal
    };
    let others = ((1 << N) - 1) & !(1 << holder) & !world.fenced;
    let rule = Rule {
        required: world.durability,
        names: if world.durability > 0 { others } else { 0 },
    };
    world.lease.loss.is_none()
        && is_open(primary)
        && primary.confirmed.is_some()
        && world.lease.rule == rule
        && world.members.iter().enumerate().all(follows)
        && archive::is_archived(world)
}
