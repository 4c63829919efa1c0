//! Bounded convergence: once no faults happen any more, the database serves again and then becomes idle.

use super::bounds::Bounds;
use super::check::{is_lost_for_good, is_ready};
use super::label::What;
use super::observe::{Decided, Decider, Effect};
use super::random::Random;
use super::state::{Lease, Member, Postgres, TIMELINES, World};
use super::step::Stepper;

/// This many steps are enough: the longest sequence that was seen took about a hundred.
const STEPS: usize = 2_000;

/// The same if a member cannot be promoted and perhaps no other can be elected.
const STEPS_OF_UNFIT: usize = 500;

/// At most this many timelines may be reserved until the world is idle: at most two were seen.
const PROMOTIONS: u8 = 3;

/// Continues from `world` without faults, edits and writes of applications, until the database is as wanted and every
/// member waits. The user fences no member any more and prefers no primary. Each possible step is equally likely,
/// except that time passes rarely: a tick is 2.5 s, all other steps take milliseconds.
///
/// Returns the number of steps; 0 if there is no answer, because the numbers of this world run out or only the user can
/// restore a lost Lease.
///
/// # Errors
/// Fails if that state is not reached.
pub fn converge<const N: usize>(
    decider: &mut Decider<N>,
    mut world: World<N>,
    bounds: Bounds,
    seed: u64,
) -> Result<usize, String> {
    let bounds = Bounds {
        faults: world.faults,
        reboots: world.reboots,
        edits: world.edits,
        records: 0,
        ..bounds
    };
    (world.fenced, world.wanted) = (0, None);
    let mut random = Random(seed);
    let reserved = world.lease.reserved;
    let mut stepper = Stepper::new(decider, bounds);
    let limit = if world.unfit > 0 { STEPS_OF_UNFIT } else { STEPS };
    for steps in 0..limit {
        let spent = usize::from(world.lease.reserved) + 1 >= TIMELINES || world.lease.epoch + 1 >= bounds.epochs;
        if spent && world.unfit == 0 && world.lease.reserved >= reserved + PROMOTIONS {
            return Err(format!("it uses up timelines and stays on none: {world:?}"));
        }
        if spent || is_lost_for_good(&world) {
            return Ok(0);
        }
        stepper.successors(&world);
        if is_at_rest(&world, &stepper.decided) {
            return Ok(steps);
        }
        let successors = &mut stepper.next;
        successors.retain(|next| next.label.what != What::DoesNotHear);
        if successors.is_empty() {
            break;
        }
        let weights: Vec<_> = successors.iter().map(|next| weight(next.label.what)).collect();
        let next = successors.swap_remove(random.pick(&weights));
        world = next.world?;
    }
    if has_no_heir(&world) {
        return Ok(0);
    }
    Err(format!("it does not serve again, or does not become idle: {world:?}"))
}

/// True if the holder cannot be promoted, and no standby is known to have all its WAL: only the user or the old primary
/// can help.
fn has_no_heir<const N: usize>(world: &World<N>) -> bool {
    let Some(holder) = world.holder().filter(|holder| world.is_unfit(*holder)) else {
        return false;
    };
    let end = world.members[holder].wal;
    let has_all = |member: &Member<N>| {
        let follows = matches!(member.postgres, Postgres::Standby { .. });
        follows && member.wal.timeline == end.timeline && member.wal.end >= end.end
    };
    !(0..N).any(|other| other != holder && has_all(&world.members[other]))
}

fn weight(what: What) -> usize {
    match what {
        What::TimePasses { .. } => 1,
        _ => 32,
    }
}

/// True if the database is as wanted, and every member waits.
pub(super) fn is_at_rest<const N: usize>(world: &World<N>, decided: &[[Decided; 2]; N]) -> bool {
    is_ready(world) && is_quiet(world, decided)
}

/// True if nothing is in flight, and each member decides to wait or to renew the lease unchanged.
fn is_quiet<const N: usize>(world: &World<N>, decided: &[[Decided; 2]; N]) -> bool {
    let nothing = |effect: Option<Effect>, seen: &Lease| match effect {
        None => true,
        Some(Effect::Write { content, release }) => !release && content == *seen,
        Some(_) => false,
    };
    world.ghost.is_none()
        && world.members.iter().zip(decided).all(|(member, decided)| {
            let rests = member.task.is_none() && !member.silent && member.seen == world.lease;
            rests && decided.iter().all(|decided| nothing(decided.effect, &member.seen))
        })
}
