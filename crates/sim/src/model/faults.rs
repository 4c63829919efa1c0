//! Faults, time, and the user.

use super::bounds::{Event, Mutant};
use super::label::What;
use super::state::{Data, Lease, Loss, Member, Postgres, Task, Unsettled, World};
use super::step::Stepper;
use super::tasks::wipe;

/// The lease has run out for a member that saw it change this many ticks ago; higher ages make no difference.
const LEASE: u8 = 4;

impl<const N: usize> Stepper<'_, N> {
    pub(super) fn silence(&mut self, world: &World<N>, me: usize) {
        let member = &world.members[me];
        let holder = member.seen.holder.map(|(holder, _)| usize::from(holder));
        let Some(holder) = holder.filter(|holder| *holder != me) else {
            return;
        };
        let mut after = *world;
        if member.silent {
            after.members[me].silent = false;
            return self.push(after, me, What::HearsAgain, None);
        }
        after.members[me].silent = true;
        let gone = matches!(world.members[holder].postgres, Postgres::Down { .. });
        if !gone {
            if world.faults >= self.bounds.faults {
                return;
            }
            after.faults += 1;
        }
        self.push(after, me, What::DoesNotHear, None);
    }

    /// A machine loses power: its agent and PostgreSQL end, and what was not flushed is lost.
    pub(super) fn reboot(&mut self, world: &World<N>, me: usize) {
        if world.reboots >= self.bounds.reboots {
            return;
        }
        let mut after = *world;
        after.reboots += 1;
        self.crash(&mut after, me);
        let member = &mut after.members[me];
        let lost = member.flushed.take().map(|flushed| {
            member.wal = flushed;
            Event::TailLost
        });
        self.push(after, me, What::Reboots, lost);
    }

    /// From now on no promotion of this member ends.
    pub(super) fn spoil(&mut self, world: &World<N>, me: usize) {
        if world.unfit.count_ones() < self.bounds.unfit.into() {
            let mut after = *world;
            after.unfit |= 1 << me;
            self.push(after, me, What::CannotBePromoted, None);
        }
    }

    pub(super) fn fail(&mut self, world: &World<N>, me: usize) {
        if world.faults >= self.bounds.faults {
            return;
        }
        let mut base = *world;
        base.faults += 1;
        let member = &world.members[me];
        let mut crashed = base;
        self.crash(&mut crashed, me);
        self.push(crashed, me, What::IsKilled, None);
        if member.confirmed.is_some() && !self.bounds.timed {
            let mut lapsed = base;
            lapsed.members[me].confirmed = None;
            self.push(lapsed, me, What::CannotRenew, None);
        }
        self.lose_write(&base, me);
        self.die_at_work(&base, me);
        if let Some(task @ (Task::SetSync(_) | Task::Promote(..) | Task::Rewind { .. })) = member.task {
            let mut failed = base;
            failed.members[me].task = None;
            if let Task::Rewind { .. } = task {
                failed.members[me].data = Data::Stubborn;
            }
            self.push(failed, me, What::Fails(task), None);
        }
    }

    /// PostgreSQL or the whole container dies while a promotion or a rewind changes the data.
    fn die_at_work(&mut self, base: &World<N>, me: usize) {
        let mut torn = *base;
        match base.members[me].task {
            Some(Task::Promote(timeline, rule)) => {
                let what = What::DiesPromoting(timeline);
                match self.promote(base, &mut torn, me, timeline, rule) {
                    Err(wrong) => return self.wrong(me, what, wrong),
                    Ok(None) => return,
                    Ok(Some(_)) => {}
                }
                // PostgreSQL has left only the timeline's history file; its agent lives.
                let mut failed = torn;
                failed.members[me] = Member {
                    postgres: Postgres::Down { clean: false },
                    task: None,
                    ..base.members[me]
                };
                self.push(failed, me, What::DiesPromoting(timeline), Some(Event::PromotionTorn));
                self.crash(&mut torn, me);
                torn.members[me].promoting = timeline;
                self.push(torn, me, What::IsKilled, Some(Event::PromotionTorn));
            }
            Some(Task::Rewind { from, epoch, keep }) => {
                let source = &base.members[usize::from(from)];
                if let Postgres::Primary { .. } = source.postgres {
                    if let Err(wrong) = wipe(base, base.members[me].wal, source.wal, keep) {
                        return self.wrong(me, What::DiesRewinding, wrong);
                    }
                    self.crash(&mut torn, me);
                    let member = &mut torn.members[me];
                    (member.data, member.promise) = (Data::HalfRewound, member.promise.max(epoch));
                    self.push(torn, me, What::DiesRewinding, Some(Event::RewindTorn));
                }
            }
            _ => {}
        }
    }

    /// A user deletes the Lease, edits it so that no agent understands it, or reverts such an edit; or the operator
    /// replaces a deleted Lease by an empty one.
    pub(super) fn lose_lease(&mut self, world: &World<N>) {
        if !self.bounds.losable {
            return;
        }
        let loss = world.lease.loss;
        let goes_wrong = world.faults < self.bounds.faults;
        let mut becomes = |loss: Option<Loss>, faults: u8, what: What, event: Option<Event>| {
            let mut after = *world;
            after.faults += faults;
            (after.lease.loss, after.lease.version) = (loss, world.lease.version + 1);
            self.push(after, None, what, event);
        };
        if goes_wrong {
            if loss != Some(Loss::Missing) {
                becomes(Some(Loss::Missing), 1, What::LeaseIsDeleted, Some(Event::LeaseDeleted));
            }
            if loss.is_none() {
                becomes(
                    Some(Loss::Scribbled),
                    1,
                    What::LeaseIsScribbled,
                    Some(Event::LeaseScribbled),
                );
            }
        }
        match loss {
            Some(Loss::Missing) => becomes(Some(Loss::Empty), 0, What::LeaseIsMadeEmpty, None),
            Some(Loss::Scribbled) => becomes(None, 0, What::LeaseIsPutRight, None),
            Some(Loss::Empty) | None => {}
        }
    }

    fn lose_write(&mut self, base: &World<N>, me: usize) {
        let Some(write) = base.members[me].write else { return };
        let mut lost = *base;
        let member = &mut lost.members[me];
        (member.write, member.write_failed) = (None, true);
        member.unsettled = (self.bounds.timed || self.bounds.losable).then_some(Unsettled {
            version: write.content.version,
            rule: write.content.rule,
            release: write.release,
        });
        if write.answer.is_none() && base.ghost.is_none() {
            let mut late = lost;
            late.ghost = Some(write.content);
            self.push(late, me, What::GivesUpWrite, None);
        }
        self.push(lost, me, What::LosesWrite, None);
    }

    fn crash(&self, world: &mut World<N>, me: usize) {
        let lease = match world.lease {
            // A new run knows nothing of a lost Lease.
            Lease {
                version,
                loss: loss @ Some(_),
                ..
            } => Lease {
                version,
                loss,
                ..Lease::default()
            },
            lease => lease,
        };
        let member = &mut world.members[me];
        if let Some(write) = member.write.filter(|write| write.answer.is_none()) {
            world.ghost = Some(write.content);
        }
        // Only what is on the volume survives. `given` does not: see docs/model.md.
        let forgets = self.has(Mutant::PromiseIsForgotten);
        *member = Member {
            run: member.run + 1,
            flushed: member.flushed,
            data: member.data,
            primary_data: member.primary_data,
            promise: if forgets { 0 } else { member.promise },
            promoting: member.promoting,
            marks: member.marks,
            ..Member::new(member.wal, lease)
        };
    }

    /// Time passes for all; or one clock loses this tick, once per lease. That is a quarter of a lease, far beyond the
    /// documented 5 %.
    pub(super) fn tick(&mut self, world: &World<N>) {
        self.tick_but(world, None);
        if world.faults < self.bounds.faults {
            let mut after = *world;
            after.faults += 1;
            for me in (0..N).filter(|me| world.members[*me].confirmed.is_some() && !world.members[*me].slow) {
                self.tick_but(&after, Some(me));
            }
        }
    }

    fn tick_but(&mut self, world: &World<N>, slow: Option<usize>) {
        let mut after = *world;
        let mut event = None;
        for me in 0..N {
            let stands = self.has(Mutant::ClockStands) && world.members[me].confirmed.is_some();
            if slow == Some(me) {
                after.members[me].slow = true;
            }
            if slow == Some(me) || stands {
                continue;
            }
            let dies = self.decided[me][1].dies;
            let member = &mut after.members[me];
            age(member);
            let held = member.confirmed.is_some() && member.sent == LEASE - 1;
            let writes = matches!(member.postgres, Postgres::Primary { .. });
            if dies && (writes || matches!(member.task, Some(Task::Promote(..) | Task::StartPrimary(_)))) {
                if after.faults >= self.bounds.faults {
                    return;
                }
                after.faults += 1;
                (member.postgres, member.task) = (Postgres::Down { clean: false }, None);
                event = Some(Event::DeadMan);
            } else if held && writes {
                event = event.or(Some(Event::FailsafeServed));
            }
        }
        let what = What::TimePasses { slow: slow.is_some() };
        self.push(after, slow, what, event);
    }

    pub(super) fn edit(&mut self, world: &World<N>) {
        if world.edits >= self.bounds.edits {
            return;
        }
        let mut edited = *world;
        edited.edits += 1;
        for member in 0..N as u8 {
            let (mut wants, mut fences) = (edited, edited);
            wants.wanted = Some(member);
            self.push(wants, None, What::UserWants(member), None);
            fences.fenced = 1 << member;
            self.push(fences, None, What::UserFences(member), None);
        }
        let mut unfences = edited;
        unfences.fenced = 0;
        if world.fenced > 0 {
            self.push(unfences, None, What::UserFencesNobody, None);
        }
        if self.bounds.timed {
            let mut wants = edited;
            wants.durability = u8::from(world.durability == 0);
            self.push(wants, None, What::UserWantsStandbys(wants.durability), None);
            let mut prefers = edited;
            prefers.preferred = !world.preferred;
            self.push(prefers, None, What::UserPrefersStandbys(prefers.preferred), None);
            // The acceptance is for this epoch, or for an earlier one. It is possible, as documented, while the last
            // primary's machine is off.
            let runs = |holder: usize| {
                let Member {
                    postgres, confirmed, ..
                } = &world.members[holder];
                confirmed.is_some() || !matches!(postgres, Postgres::Down { .. })
            };
            if world.holder().is_some_and(runs) {
                return;
            }
            for epoch in world.accepted + 1..=world.lease.epoch {
                let mut accepts = edited;
                accepts.accepted = epoch;
                self.push(accepts, None, What::UserAcceptsLoss(epoch), None);
            }
        }
    }
}

/// A member's clock advances by a tick.
fn age<const N: usize>(member: &mut Member<N>) {
    let older = |age: u8| (age + 1).min(LEASE - 1);
    member.sent = member.confirmed.map_or(0, |_| older(member.sent));
    member.changed = (member.changed + 1).min(LEASE);
    if let Some(write) = &mut member.write {
        write.age = older(write.age);
    }
    for promise in &mut member.failsafe {
        *promise = promise.and_then(|(epoch, age)| (age + 1 < LEASE - 1).then_some((epoch, age + 1)));
    }
    member.given = member.given.and_then(|mut given| {
        given.left -= 1;
        (given.left > 0).then_some(given)
    });
}
