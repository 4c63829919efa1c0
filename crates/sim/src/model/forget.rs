//! What can have no effect any more is forgotten, so that states that differ in nothing else are one.

use super::bounds::{Bounds, Mutant};
use super::state::{Loss, Member, Postgres, World};

/// Forgets. Two mutants take any write of the Lease: with them, none is refused for sure.
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
                // No deadline of a holder passes here: it needs promises only to write a lost Lease again.
                member.failsafe = [None; N];
            }
        }
        if member.asked <= member.seen.epoch {
            // A candidate of an epoch that is over.
            member.asked = 0;
        }
        if let Postgres::Primary {
            open: true, in_doubt, ..
        } = &mut member.postgres
        {
            // It was decided by that whether it opens.
            *in_doubt = 0;
        }
    }
}

/// Versions only rise: a write that expects an older one is refused whenever it arrives.
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

/// Runs of a member are told apart, and nothing else: they are numbered anew, as far as somebody knows of them.
fn runs<const N: usize>(world: &mut World<N>) {
    if world.members.iter().any(|member| member.given.is_some()) {
        // A promise not to take the lease names a run, too.
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

/// Wherever a run of member `me` is named.
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
