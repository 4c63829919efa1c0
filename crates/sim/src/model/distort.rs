//! The world as a broken observer would show it to the machine. So a rule is broken without changing its code.

use super::bounds::Mutant;
use super::state::{Data, Member, Postgres, Rule, Set, Task, Wal, World};

/// What member `me` sees.
pub(super) fn shown<const N: usize>(mutant: Mutant, world: &World<N>, me: usize) -> World<N> {
    let mut world = *world;
    if mutant == Mutant::EpochIsNotRaised {
        for other in (0..N).filter(|other| *other != me) {
            world.members[other].promise = 0;
        }
    }
    if mutant == Mutant::UnflushedCounts {
        for member in &mut world.members {
            member.flushed = None;
        }
    }
    if mutant == Mutant::HeirIsIgnored && world.is_unfit(me) {
        for other in (0..N).filter(|other| *other != me) {
            world.members[other].wal = Wal::default();
        }
    }
    if mutant == Mutant::AnyLossIsAccepted && world.accepted > 0 {
        world.accepted = world.members[me].seen.epoch;
    }
    world.strict &= mutant != Mutant::ReadsAreNotAwaited;
    if mutant == Mutant::RuleDoesNotGrow {
        let names = world.members[me].seen.rule.names;
        for (other, member) in world.members.iter_mut().enumerate() {
            if let Postgres::Standby { receiving, .. } = &mut member.postgres
                && other != me
                && names >> other & 1 == 0
            {
                *receiving = false;
            }
        }
    }
    let lease = world.lease;
    let wanted = world.wanted.map(usize::from) == Some(me);
    let member = &mut world.members[me];
    member_shown(mutant, member);
    let others = lease.holder.filter(|(holder, _)| usize::from(*holder) != me);
    if let (Mutant::SuccessorDoesNotWait, true, Some((holder, _))) = (mutant, wanted, others) {
        member.seen.holder = None;
        member.seen.release = Some((holder, Some(member.wal)));
        member.seen.successor = Some(me as u8);
    }
    world
}

/// What `other` sees when the holder `from` asks it to leave it the lease.
pub(super) fn shown_when_asked<const N: usize>(
    mutant: Mutant,
    world: &World<N>,
    other: usize,
    from: usize,
) -> World<N> {
    let mut world = *world;
    let member = &mut world.members[other];
    if mutant == Mutant::ElectionIsDenied {
        member.promise = member.promise.min(member.seen.epoch);
        if let Postgres::Standby { upstream, receiving } = &mut member.postgres {
            (*upstream, *receiving) = (Some((from as u8, member.seen.epoch)), true);
        }
    }
    world
}

fn member_shown<const N: usize>(mutant: Mutant, member: &mut Member<N>) {
    match mutant {
        Mutant::OnePromiseIsEnough => {
            let promise = member.promise;
            for reply in member.replies.iter_mut().flatten() {
                reply.promised = reply.promised.max(promise);
                reply.position = reply.position.or(Some(Wal::default()));
            }
        }
        Mutant::AnyPositionWins => {
            for reply in member.replies.iter_mut().flatten() {
                reply.position = reply.position.map(|_| Wal::default());
            }
        }
        Mutant::AnyHolderIsFollowed => {
            let own = member.wal;
            member.seen.had = member.seen.had.map(|_| own);
        }
        Mutant::FollowedEndIsFinal => {
            let now = member.seen.epoch;
            if let Postgres::Standby {
                upstream,
                receiving: false,
            } = &mut member.postgres
            {
                *upstream = upstream.filter(|(_, epoch)| *epoch >= now);
            }
        }
        Mutant::ReleasedPositionIsIgnored => {
            let own = member.wal;
            member.seen.release = member.seen.release.map(|(by, end)| (by, end.map(|_| own)));
        }
        Mutant::LossIsForgotten => member.seen.lossy = 0,
        Mutant::ReloadIsNotProven => {
            if let (
                Postgres::Primary {
                    proven,
                    proven_at,
                    pending,
                    ..
                },
                Some(Task::SetSync(rule)),
            ) = (&mut member.postgres, member.task)
            {
                (*proven, *proven_at, *pending) = (rule, member.wal.end, None);
                member.task = None;
            }
        }
        Mutant::PromotionIsBegunAgain => member.promoting = 0,
        Mutant::HalfARewindIsStarted => {
            if member.data == Data::HalfRewound {
                member.data = Data::Sound;
            }
        }
        Mutant::LeaseIsMadeAgain => member.seen.loss = None,
        Mutant::LeaseIsRestoredUnproven if member.seen.loss.is_some() => {
            (member.failsafe, member.since_loss) = ([Some((member.seen.epoch, 0)); N], Set::MAX);
        }
        Mutant::OldPromisesProve => member.since_loss = Set::MAX,
        Mutant::DoubtsAreForgotten => member.doubts = [None; 2],
        Mutant::LeaseIsNotAwaited => member.changed = u8::MAX,
        Mutant::RuleIsSetFirst => {
            if let Postgres::Primary { proven, .. } = member.postgres {
                // Whatever rule is wanted seems to be covered.
                let names = member.seen.rule.names & !proven.names;
                member.seen.rule = Rule { required: 0, names };
            }
        }
        Mutant::RuleIsRecordedUnflushed => {
            if let Postgres::Primary { proven_at, .. } = &mut member.postgres {
                *proven_at = 0;
            }
        }
        Mutant::OpensInDoubt => {
            if let Postgres::Primary { in_doubt, open, .. } = &mut member.postgres {
                (*in_doubt, member.seen.rule.required) = if *open {
                    (*in_doubt, member.seen.rule.required)
                } else {
                    (0, 0)
                };
            }
        }
        Mutant::ReleasesBeforeStop => {
            if let (Some(_), Postgres::Primary { .. }, Data::Sound) = (member.handing, member.postgres, member.data) {
                member.postgres = Postgres::Down { clean: true };
            }
        }
        Mutant::FailsafeOfOneIsEnough => {
            let one = member.failsafe.iter().flatten().min_by_key(|(_, age)| *age).copied();
            member.failsafe = [one; N];
        }
        Mutant::PromiseIsForgotten
        | Mutant::AnyLossIsAccepted
        | Mutant::AnybodyAcknowledges
        | Mutant::UnflushedCounts
        | Mutant::HeirIsIgnored
        | Mutant::ReadsAreNotAwaited
        | Mutant::EpochIsNotAdopted
        | Mutant::RuleDoesNotGrow
        | Mutant::PromiseKeepsReceiving
        | Mutant::PositionIsNotFinal
        | Mutant::EpochIsNotRaised
        | Mutant::LeaseIsOverwritten
        | Mutant::LeaseIsRestoredUnproven
        | Mutant::ElectionIsDenied
        | Mutant::TimelineIsUsedTwice
        | Mutant::SuccessorDoesNotWait
        | Mutant::FailsafeIsForgotten
        | Mutant::ClockStands
        | Mutant::PushesWithoutLease
        | Mutant::UnarchivedIsStruckOff
        | Mutant::OldWordOfANewTimeline
        | Mutant::AnotherHistoryCounts
        | Mutant::HalfASegmentIsWhole
        | Mutant::FullSegmentIsForgotten
        | Mutant::CopiedMarksCount
        | Mutant::HistoryIsTakenForArchived
        | Mutant::SegmentsGoBesideAHistory => {}
    }
}
