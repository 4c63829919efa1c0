//! What must hold in every state, beside what [`super::step`] checks where it happens: no timeline is begun twice, nothing is
//! acknowledged that a newer timeline lacks, nothing acknowledged is missing where a timeline begins.

use super::state::{Lease, MEMBERS, Member, Postgres, Rule, TIMELINES, Wal, World};

/// Three members, of which 0 is the primary, under `ANY required` of the others; one record is written and acknowledged.
pub fn formed(required: u8) -> World {
    let rule = Rule {
        required,
        names: if required > 0 { 0b110 } else { 0 },
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
    let wal = Wal { timeline: 1, end: 1 };
    let standby = Member {
        run: 1,
        postgres: Postgres::Standby {
            upstream: Some((0, 1)),
            receiving: true,
        },
        wal,
        primary_data: false,
        promise: 1,
        promoting: 0,
        asked: 0,
        replies: [None; MEMBERS],
        seen: lease,
        confirmed: None,
        write: None,
        write_failed: false,
        task: None,
        silent: false,
    };
    let primary = Member {
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
        members: [primary, standby, standby],
        ghost: None,
        forks: [(0, 0); TIMELINES],
        acknowledged,
        faults: 0,
    }
}

/// What is wrong with a state, if anything is.
pub fn violation(world: &World) -> Option<String> {
    let writes = |member: &Member| matches!(member.postgres, Postgres::Primary { .. });
    for one in 0..MEMBERS {
        for other in one + 1..MEMBERS {
            let (a, b) = (&world.members[one], &world.members[other]);
            if writes(a) && writes(b) && a.wal.timeline == b.wal.timeline {
                return Some(format!("{one} and {other} write timeline {}", a.wal.timeline));
            }
        }
    }
    None
}

/// The database is as it should be: one primary that serves, and the others stream from it with all its WAL.
pub fn is_ready(world: &World) -> bool {
    let Some((holder, _)) = world.lease.holder else {
        return false;
    };
    let primary = &world.members[usize::from(holder)];
    let open = matches!(primary.postgres, Postgres::Primary { open: true, .. });
    let follows = |(other, member): (usize, &Member)| {
        other == usize::from(holder)
            || matches!(member.postgres, Postgres::Standby { upstream: Some((from, _)), receiving: true } if from == holder)
                && member.wal == primary.wal
    };
    open && primary.confirmed.is_some() && world.members.iter().enumerate().all(follows)
}
