//! Forgets what can no longer have an effect, so that states that differ only in that are one.

use super::bounds::{Bounds, Mutant};
use super::state::{Loss, Member, Postgres, World};

/// Two mutants accept any write of the Lease: with them, no write is certain to be refused.
pub(super) fn forget<const N: usize>(world: &mut World<N>, bounds: Bounds) {
    let any = matches!(
        bounds.mutant,
        Some(Mutant::LeaseIsOverwritten | Mutant::LeaseIsMadeAgain)
    );
    if !any {
        refuse(world);
    }
    runs(world);
    for member in &mut world.members {
        if member.seen.loss.is_none() {
            (member.since_loss, member.doubts) = (0, [None; 2]);
            if !bounds.timed {
                // No deadline of a holder passes here: the holder needs promises only to write a lost Lease again.
                member.failsafe = [None; N];
            }
        }
        if member.asked <= member.seen.epoch {
            // The request of a candidate of an earlier epoch.
            member.asked = 0;
        }
        if let Postgres::Primary {
            open: true, in_doubt, ..
        } = &mut member.postgres
        {
            // Whether the primary opens is already decided.
            *in_doubt = 0;
        }
    }
}

/// Versions only rise, so a write that expects an older one will be refused whenever it arrives.
fn refuse<const N: usize>(world: &mut World<N>) {
    let lease = world.lease;
    let refused = |version: u8| lease.loss == Some(Loss::Missing) || version != lease.version;
    world.ghost = world.ghost.filter(|ghost| !refused(ghost.version));
    for write in world.members.iter_mut().filter_map(|member| member.write.as_mut()) {
        if write.answer.is_none() && refused(write.content.version) {
            write.answer = Some(false);
        }
    }
}

/// The number of a run only distinguishes it. So runs that some state still refers to are numbered again.
fn runs<const N: usize>(world: &mut World<N>) {
    if world.members.iter().any(|member| member.given.is_some()) {
        // A promise not to take the lease names a run too.
        return;
    }
    for me in 0..N {
        if world.members[me].run == 1 {
            continue;
        }
        let mut known: u64 = 1 << world.members[me].run;
        each_run(world, me, |run| known |= 1 << *run);
        each_run(world, me, |run| *run = rank(known, *run));
        world.members[me].run = rank(known, world.members[me].run);
    }
}

fn rank(known: u64, run: u8) -> u8 {
    (known & ((1 << run) - 1)).count_ones() as u8 + 1
}

/// Calls `with` for each place that names a run of member `me`.
fn each_run<const N: usize>(world: &mut World<N>, me: usize, mut with: impl FnMut(&mut u8)) {
    let mut holder = |holder: &mut Option<(u8, u8)>| {
        if let Some((member, run)) = holder
            && usize::from(*member) == me
        {
            with(run);
        }
    };
    holder(&mut world.lease.holder);
    if let Some(ghost) = &mut world.ghost {
        holder(&mut ghost.holder);
    }
    for Member { seen, write, .. } in &mut world.members {
        holder(&mut seen.holder);
        if let Some(write) = write {
            holder(&mut write.content.holder);
        }
    }
}
