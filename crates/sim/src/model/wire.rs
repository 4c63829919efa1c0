//! What passes over the network: versions of the Lease, and WAL.

use super::archive::{received, wrote};
use super::bounds::{Event, Mutant};
use super::label::What;
use super::state::{Lease, Loss, Member, Postgres, Rule, Set, TIMELINES, Wal, World, Write};
use super::step::Stepper;
use super::world::{following, holders, noticed, see};

impl<const N: usize> Stepper<'_, N> {
    pub(super) fn lease(&mut self, world: &World<N>, me: usize) {
        let member = &world.members[me];
        let lost = world.lease.loss.is_some();
        if member.seen != world.lease && !(lost && member.seen.version == world.lease.version) {
            let mut after = *world;
            see(&mut after.members[me], world.lease);
            self.push(after, me, What::SeesLease, None);
        }
        let Some(write) = member.write else { return };
        let mut after = *world;
        match write.answer {
            None => {
                let taken = self.arrive(&mut after, write.content);
                if taken && let Some(wrong) = restored_wrongly(world, &after.lease) {
                    return self.wrong(me, What::WriteArrives(taken), wrong);
                }
                after.members[me].write = Some(Write {
                    answer: Some(taken),
                    ..write
                });
                let event = taken.then(|| noticed(world, &after.lease, me)).flatten();
                self.push(after, me, What::WriteArrives(taken), event);
            }
            Some(taken) => {
                hear(&mut after, me, write, taken);
                // It is only refused because a newer version exists (see `forget`).
                let takes = write.content.holder == Some((me as u8, member.run));
                let event = match member.postgres {
                    _ if taken => None,
                    Postgres::Standby { .. } if takes => Some(Event::PromotionRefused),
                    _ => Some(Event::Refused),
                };
                self.push(after, me, What::HearsOfWrite(taken), event);
            }
        }
    }

    /// A write of the Lease arrives.
    fn arrive(&self, after: &mut World<N>, content: Lease) -> bool {
        let fits = if after.lease.loss == Some(Loss::Missing) {
            self.has(Mutant::LeaseIsMadeAgain)
        } else {
            content.version == after.lease.version || self.has(Mutant::LeaseIsOverwritten)
        };
        if fits {
            let version = after.lease.version + 1;
            let before = std::mem::replace(&mut after.lease, Lease { version, ..content });
            give_up(after, &before);
        }
        fits
    }

    /// A write arrives whose sender has ended or has given it up.
    pub(super) fn ghost(&mut self, world: &World<N>) {
        let Some(ghost) = world.ghost else { return };
        let mut after = *world;
        after.ghost = None;
        let taken = self.arrive(&mut after, ghost);
        if taken && let Some((wrong, holder)) = restored_wrongly(world, &after.lease).zip(ghost.holder) {
            return self.wrong(usize::from(holder.0), What::LateWriteArrives(taken), wrong);
        }
        let event = (!taken).then_some(Event::Refused);
        self.push(after, None, What::LateWriteArrives(taken), event);
    }

    pub(super) fn stream(&mut self, world: &World<N>, me: usize) {
        let member = world.members[me];
        let mut after = *world;
        match member.postgres {
            Postgres::Primary {
                open: true,
                proven,
                pending,
                ..
            } => {
                if member.wal.end < self.bounds.records {
                    after.members[me].wal.end += 1;
                    wrote(&mut after.members[me], world.segment);
                    self.push(after, me, What::Writes, None);
                }
                self.acknowledge(world, me, proven, pending);
            }
            Postgres::Standby {
                upstream: Some((from, epoch)),
                receiving,
            } => {
                let source = &world.members[usize::from(from)];
                let serves = matches!(source.postgres, Postgres::Primary { .. });
                let hears = serves && !member.silent;
                if !hears {
                    // A stream without a source has ended (see `settle`).
                } else if !world.contains(source.wal, member.wal) {
                    // PostgreSQL may let the stream begin, and count WAL that only the standby has.
                    let wrong = format!("its WAL ends at {}, which member {from} does not have", member.wal);
                    self.wrong(me, What::Streams(from), wrong);
                } else if !receiving {
                    after.members[me].postgres = Postgres::Standby {
                        upstream: Some((from, epoch)),
                        receiving: true,
                    };
                    self.push(after, me, What::Streams(from), None);
                } else if let Some(next) = following(world, member.wal, source.wal) {
                    after.members[me].wal = next;
                    received(&mut after.members[me], member.wal, world.segment);
                    after.members[me].flushed = Some(member.flushed());
                    self.push(after, me, What::Receives(next), None);
                }
                if member.flushed.is_some() {
                    let mut flushed = *world;
                    flushed.members[me].flushed = None;
                    self.push(flushed, me, What::Flushes, None);
                }
            }
            Postgres::Primary { open: false, .. } | Postgres::Standby { .. } | Postgres::Down { .. } => {}
        }
    }

    fn acknowledge(&mut self, world: &World<N>, me: usize, proven: Rule, pending: Option<Rule>) {
        let head = world.members[me].wal;
        let slot = usize::from(head.timeline) % TIMELINES;
        let counts = if self.has(Mutant::UnflushedCounts) {
            |member: &Member<N>| member.wal
        } else {
            Member::flushed
        };
        let newest = (world.acknowledged[slot] + 1..=head.end).rev().find(|end| {
            let at = Wal { end: *end, ..head };
            let holders = if self.has(Mutant::AnybodyAcknowledges) {
                Set::MAX
            } else {
                holders(world, me, at, counts)
            };
            proven.is_met(holders) || pending.is_some_and(|pending| pending.is_met(holders))
        });
        let Some(end) = newest else { return };
        let at = Wal { end, ..head };
        let what = What::Acknowledges(at);
        if world.loose >> (slot + 1) == 0
            && let Some((newer, base)) = without(world, at)
        {
            let wrong = format!("{at} is acknowledged, and timeline {newer} began at {base}");
            return self.wrong(me, what, wrong);
        }
        let mut after = *world;
        after.acknowledged[slot] = end;
        let late = world.holder() != Some(me);
        self.push(after, me, what, late.then_some(Event::AcknowledgedLate));
    }
}

/// An election that declares a possible loss may lose commits if the user has accepted that in its epoch. Until a
/// commit is acknowledged by it, the same holds for the elected member that begins its promotion again, and for a
/// member to which it leaves the lease.
fn give_up<const N: usize>(after: &mut World<N>, before: &Lease) {
    let lease = &after.lease;
    let member = |lease: &Lease| lease.holder.map(|(member, _)| member);
    let left = before.holder.is_none() || member(lease) == member(before);
    let unused = after.acknowledged[usize::from(before.reserved) % TIMELINES] == 0;
    let again = left && unused && after.given_up >> before.reserved & 1 == 1;
    let elected = member(lease) != member(before) && lease.lossy == lease.reserved;
    if lease.reserved > before.reserved && (again || elected && before.epoch == after.accepted) {
        after.given_up |= 1 << lease.reserved;
    }
}

/// What is wrong with a lost Lease that is written again. It must belong to its last holder with every acknowledged
/// commit, in no earlier epoch, and every timeline that was ever reserved must stay reserved.
fn restored_wrongly<const N: usize>(world: &World<N>, written: &Lease) -> Option<String> {
    let before = &world.lease;
    before.loss?;
    let (holder, _) = written.holder?;
    let wal = world.members[usize::from(holder)].wal;
    let acknowledged = (1..TIMELINES).map(|timeline| Wal {
        timeline: timeline as u8,
        end: world.acknowledged[timeline],
    });
    let lacks = acknowledged
        .filter(|at| at.end > 0)
        .find(|at| !world.contains(wal, *at));
    let stands = |lease: &Lease| format!("{:?} in epoch {}", lease.holder, lease.epoch);
    if before.holder != written.holder || written.epoch < before.epoch || written.reserved < before.reserved {
        return Some(format!(
            "the lost Lease was held by {}, and is written again for {}",
            stands(before),
            stands(written)
        ));
    }
    lacks.map(|at| format!("{at} was acknowledged, and {holder} writes the lost Lease again without it"))
}

/// The outcome of a write reaches its sender.
fn hear<const N: usize>(after: &mut World<N>, me: usize, write: Write, taken: bool) {
    let lease = after.lease;
    let member: &mut Member<N> = &mut after.members[me];
    (member.write, member.write_failed, member.unsettled) = (None, !taken, None);
    if !taken {
        return see(member, lease);
    }
    let holder = write.content.holder;
    let ours = holder.is_some_and(|(holder, run)| usize::from(holder) == me && run == member.run);
    member.confirmed = ours.then_some(write.content.epoch);
    (member.sent, member.slow) = (write.age, member.slow && write.age > 0);
    member.failsafe = [None; N];
    if member.seen.loss.is_some() && member.seen.version > write.content.version {
        // It was in the Lease that is lost now.
        let (version, loss) = (member.seen.version, member.seen.loss);
        see(
            member,
            Lease {
                version,
                ..write.content
            },
        );
        (member.seen.loss, member.doubts) = (loss, [None; 2]);
    }
    // The answer is the object as it was written; a newer version may have been seen meanwhile.
    if member.seen.version <= write.content.version {
        let version = write.content.version + 1;
        see(
            member,
            Lease {
                version,
                ..write.content
            },
        );
    }
}

/// A newer timeline that began without the record at `at`, and where it began.
fn without<const N: usize>(world: &World<N>, at: Wal) -> Option<(usize, Wal)> {
    (usize::from(at.timeline) + 1..TIMELINES).find_map(|newer| {
        let (timeline, end) = world.forks[newer];
        let base = Wal { timeline, end };
        (timeline != 0 && !world.contains(base, at)).then_some((newer, base))
    })
}
