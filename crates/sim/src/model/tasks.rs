//! The end of tasks.

use machine::instance::steps::{PROMISE, PROMOTION, PromiseStep, PromotionStep};

use super::archive::{Marks, wrote};
use super::bounds::{Event, Mutant};
use super::label::What;
use super::state::{Data, Member, Postgres, Rule, TIMELINES, Task, Wal, World};
use super::step::Stepper;
use super::world::{primary, writes_too};

impl<const N: usize> Stepper<'_, N> {
    pub(super) fn complete(&mut self, world: &World<N>, me: usize) {
        let Some(task) = world.members[me].task else { return };
        if matches!(task, Task::Promote(..)) && world.is_unfit(me) {
            return;
        }
        let mut after = *world;
        let what = What::Done(task);
        after.members[me].task = None;
        if let (Task::StartStandby(_), false) = (task, self.has(Mutant::CopiedMarksCount)) {
            after.members[me].marks.ask_again();
        }
        let half = world.members[me].data == Data::HalfRewound;
        let done = match task {
            Task::StartStandby(_) | Task::StartPrimary(_) if half => {
                Err("it starts on data that is half rewound".into())
            }
            Task::Promote(timeline, rule) => self.promote(world, &mut after, me, timeline, rule),
            Task::StartPrimary(rule) => start_primary(&mut after, me, rule),
            Task::Open => open(&mut after, me),
            Task::Rewind { .. } | Task::SetAside(_) | Task::Clone(_) => replace(world, &mut after, me, task),
            Task::Promise(_) | Task::StartStandby(_) | Task::Configure(_) | Task::SetSync(_) | Task::Stop => {
                self.finish(&mut after.members[me], task);
                Ok(None)
            }
        };
        match done {
            Ok(event) => self.push(after, me, what, event),
            Err(wrong) => self.wrong(me, what, wrong),
        }
    }

    /// Finishes a task that changes only its member.
    fn finish(&self, member: &mut Member<N>, task: Task) {
        let forgetful = self.has(Mutant::PromiseKeepsReceiving);
        match (task, &mut member.postgres) {
            (Task::Promise(epoch), postgres) => {
                for step in PROMISE {
                    match (step.step, &mut *postgres) {
                        // This world has no credentials: a member that is not configured again receives nothing.
                        (PromiseStep::Write, _) => member.promise = member.promise.max(epoch),
                        (PromiseStep::EndReceiver, Postgres::Standby { receiving, .. }) => *receiving &= forgetful,
                        (PromiseStep::EmptyUpstream, Postgres::Standby { upstream, .. }) if !forgetful => {
                            *upstream = None;
                        }
                        (PromiseStep::EndReceiver | PromiseStep::EmptyUpstream, _) => {}
                    }
                }
            }
            (Task::StartStandby(upstream), Postgres::Down { .. })
            | (Task::Configure(upstream), Postgres::Standby { .. }) => {
                member.primary_data &= matches!(task, Task::Configure(_));
                member.postgres = Postgres::Standby {
                    upstream,
                    receiving: false,
                };
                if let Some((_, epoch)) = upstream {
                    // A member that follows a primary promises its epoch before.
                    if !self.has(Mutant::EpochIsNotAdopted) {
                        member.promise = member.promise.max(epoch);
                    }
                    member.promoting = 0;
                }
            }
            (
                Task::SetSync(rule),
                Postgres::Primary {
                    proven,
                    proven_at,
                    pending,
                    ..
                },
            ) => (*proven, *proven_at, *pending) = (rule, member.wal.end, None),
            (Task::Stop, postgres) => {
                let clean = matches!(postgres, Postgres::Primary { .. });
                *postgres = Postgres::Down { clean };
                member.flushed = None;
            }
            // PostgreSQL has ended meanwhile.
            _ => {}
        }
    }

    /// A promotion, by the steps of the agent (protocol.md rules 13 and 14). The steps up to the note are one event
    /// with it ([`super::step::begin`]); the others are one event here.
    pub(super) fn promote(
        &self,
        world: &World<N>,
        after: &mut World<N>,
        me: usize,
        timeline: u8,
        rule: Rule,
    ) -> Result<Option<Event>, String> {
        let mut event = None;
        for step in PROMOTION {
            match step.step {
                PromotionStep::CheckStandby if !matches!(world.members[me].postgres, Postgres::Standby { .. }) => {
                    return Ok(None);
                }
                PromotionStep::Promote => event = Some(self.leave_recovery(world, after, me, timeline, rule)?),
                PromotionStep::CheckTimeline => after.members[me].promoting = 0,
                // The note was made when the task began. The other steps have no effect in this world: replay, slots,
                // files, sessions.
                PromotionStep::CheckStandby
                | PromotionStep::Note
                | PromotionStep::AwaitReplay
                | PromotionStep::KeepSlots
                | PromotionStep::WriteConfiguration
                | PromotionStep::ReserveTimeline
                | PromotionStep::ProveConfiguration
                | PromotionStep::EndSessions
                | PromotionStep::CheckLease => {}
            }
        }
        Ok(event)
    }

    fn leave_recovery(
        &self,
        world: &World<N>,
        after: &mut World<N>,
        me: usize,
        timeline: u8,
        rule: Rule,
    ) -> Result<Event, String> {
        let base = world.members[me].wal;
        let timeline = if self.has(Mutant::TimelineIsUsedTwice) {
            base.timeline + 1
        } else {
            timeline
        };
        let slot = usize::from(timeline) % TIMELINES;
        if world.forks[slot].0 != 0 {
            return Err(format!("timeline {timeline} is written for the second time"));
        }
        let lost = lose(world, after, base, timeline, rule)
            .map_err(|lost| format!("{lost} was acknowledged, and timeline {timeline} begins at {base}"))?;
        if rule.required == 0 {
            after.loose |= 1 << slot;
        }
        after.forks[slot] = (base.timeline, base.end);
        let member = &mut after.members[me];
        member.wal = Wal {
            timeline,
            end: base.end + 1,
        };
        member.postgres = primary(base.end, rule);
        member.primary_data = true;
        wrote(member, world.segment);
        let holder = member.seen.holder.map(|(holder, _)| usize::from(holder));
        let better = |(other, member): (usize, &Member<N>)| {
            other != me && Some(other) != holder && member.data == Data::Sound && member.wal > base
        };
        Ok(match () {
            () if lost && rule.required > 0 => Event::LostAsAccepted,
            () if lost => Event::LostAsAllowed,
            () if world.holder() != Some(me) => Event::PromotedLate,
            () if world.members.iter().enumerate().any(better) => Event::PromotedSecondBest,
            () => Event::Promoted,
        })
    }
}

/// Whether timeline `new`, which begins at `base`, loses acknowledged records. Elections by `rule`, or the user, may
/// allow that.
fn lose<const N: usize>(world: &World<N>, after: &mut World<N>, base: Wal, new: u8, rule: Rule) -> Result<bool, Wal> {
    let mut lost = false;
    for timeline in 1..TIMELINES {
        let acknowledged = Wal {
            timeline: timeline as u8,
            end: world.acknowledged[timeline],
        };
        if acknowledged.end > 0 && !world.contains(base, acknowledged) {
            if rule.required > 0 && world.given_up >> new & 1 == 0 {
                return Err(acknowledged);
            }
            after.acknowledged[timeline] = 0;
            after.lost[timeline] = world.lost[timeline].max(acknowledged.end);
            lost = true;
        }
    }
    Ok(lost)
}

/// Data is removed, or a rewind removes records from it. A lost record that the primary does not have may exist nowhere
/// else.
pub(super) fn wipe<const N: usize>(world: &World<N>, wal: Wal, primary: Wal, keep: bool) -> Result<(), String> {
    match world.only_copy(wal, primary).filter(|_| !keep) {
        Some(lost) => Err(format!(
            "{lost} was acknowledged and lost, and its last copy is removed with the WAL up to {wal}"
        )),
        None => Ok(()),
    }
}

fn start_primary<const N: usize>(after: &mut World<N>, me: usize, rule: Rule) -> Result<Option<Event>, String> {
    let member = &mut after.members[me];
    if let Postgres::Down { .. } = member.postgres {
        let wal = member.wal;
        member.postgres = primary(wal.end, rule);
        member.primary_data = true;
        if let Some(other) = writes_too(after, me) {
            return Err(format!("{other} writes timeline {} as well", wal.timeline));
        }
    }
    Ok(None)
}

/// From now on applications see what was in doubt: it must stay, as if it had been acknowledged.
fn open<const N: usize>(after: &mut World<N>, me: usize) -> Result<Option<Event>, String> {
    let wal = after.members[me].wal;
    let Postgres::Primary { open, in_doubt, .. } = &mut after.members[me].postgres else {
        return Ok(None);
    };
    *open = true;
    let (parent, fork) = after.forks[usize::from(wal.timeline) % TIMELINES];
    let of = if *in_doubt > fork { wal.timeline } else { parent };
    let visible = &mut after.acknowledged[usize::from(of) % TIMELINES];
    *visible = (*visible).max(*in_doubt);
    Ok(Some(Event::Opened))
}

/// The data is replaced as a whole, by the primary's.
fn replace<const N: usize>(
    world: &World<N>,
    after: &mut World<N>,
    me: usize,
    task: Task,
) -> Result<Option<Event>, String> {
    let serves = |from: u8| {
        let source = world.members[usize::from(from)];
        matches!(source.postgres, Postgres::Primary { .. }).then_some(source.wal)
    };
    let member = &mut after.members[me];
    let event = match task {
        Task::Rewind { from, epoch, keep } => {
            let Some(source) = serves(from) else { return Ok(None) };
            wipe(world, member.wal, source, keep)?;
            member.promise = member.promise.max(epoch);
            (member.wal, member.marks) = (world.common(member.wal, source), world.members[usize::from(from)].marks);
            Some(if keep { Event::RewoundAndKept } else { Event::Rewound })
        }
        Task::SetAside(keep) => {
            let primary = world
                .holder()
                .map_or(Wal::default(), |holder| world.members[holder].wal);
            wipe(world, member.wal, primary, keep)?;
            (member.wal, member.data) = (Wal::default(), Data::Empty);
            keep.then_some(Event::KeptAside)
        }
        Task::Clone(from) => {
            let Some(source) = serves(from) else { return Ok(None) };
            (member.wal, member.data) = (source, Data::Sound);
            member.marks = Marks::of_copy(source, world.segment);
            Some(Event::Cloned)
        }
        _ => None,
    };
    (member.promoting, member.flushed) = (0, None);
    member.primary_data = false;
    member.postgres = Postgres::Down { clean: false };
    Ok(event)
}
