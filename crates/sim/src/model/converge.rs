//! Bounded convergence: once nothing goes wrong any more, the database serves again, and then nothing is done.

use super::bounds::Bounds;
use super::check::{is_lost_for_good, is_ready};
use super::label::What;
use super::observe::{Decided, Decider, Effect};
use super::random::Random;
use super::state::{Lease, Member, Postgres, TIMELINES, World};
use super::step::Stepper;

/// So many steps are enough: the longest way that was seen took about a hundred.
const STEPS: usize = 2_000;

/// Where a member cannot be promoted, and it may be that nobody else can be elected.
const STEPS_OF_UNFIT: usize = 500;

/// So many timelines are reserved on no way to rest: at most two were seen to be.
const PROMOTIONS: u8 = 3;

/// Goes on from `world` without faults, edits and writes of applications, when the user fences nobody any more and prefers no
/// primary. Each possible step is as likely as any other, but time passes seldom: a tick is 2.5 s, the rest takes milliseconds.
/// Until the database is as it should be and every member waits. `Ok`: in how many steps; 0 if it cannot be
/// said, since the numbers of this world run out, or the Lease is lost and the user is waited for.
///
/// # Errors
/// It does not come to that.
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
            return Err(format!("it uses up timelines, and none is kept: {world:?}"));
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
    Err(format!("it does not come to serve, or not to rest: {world:?}"))
}

/// The holder cannot be promoted, and no standby is known to have all its WAL: a user is waited for, or for who was the primary before.
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

/// The database is as it should be, and every member waits.
pub(super) fn is_at_rest<const N: usize>(world: &World<N>, decided: &[[Decided; 2]; N]) -> bool {
    is_ready(world) && is_quiet(world, decided)
}

/// Nothing is under way, and whatever the members decide is to wait, or to renew the lease as it is.
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
