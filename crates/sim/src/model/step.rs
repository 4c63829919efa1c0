//! All that can happen next.

use super::bounds::{Bounds, Event, Mutant};
use super::observe::{Decider, Effect};
use super::state::{Lease, MEMBERS, Member, Postgres, Rule, TIMELINES, Task, Wal, World, Write};
use super::world::{canonical, following, holders, noticed, primary, see, settle, writes_too};

/// A next state, what led there in words, and what was noticed.
pub struct Next {
    /// The state; `Err`: what is wrong with it.
    pub world: Result<World, String>,
    /// What happened.
    pub label: String,
    /// What was noticed.
    pub event: Option<Event>,
}

/// Explores from one state.
pub struct Stepper<'a> {
    /// The decisions.
    pub decider: &'a mut Decider,
    /// The bounds.
    pub bounds: Bounds,
    next: Vec<Next>,
}

impl<'a> Stepper<'a> {
    /// With these decisions and bounds.
    pub fn new(decider: &'a mut Decider, bounds: Bounds) -> Self {
        Self {
            decider,
            bounds,
            next: Vec::new(),
        }
    }

    /// All that can happen next in `world`.
    pub fn successors(&mut self, world: &World) -> Vec<Next> {
        for me in 0..MEMBERS {
            self.decide(world, me);
            self.complete(world, me);
            self.lease(world, me);
            self.stream(world, me);
            self.silence(world, me);
            self.fail(world, me);
        }
        if let Some(ghost) = world.ghost {
            let mut after = *world;
            after.ghost = None;
            let event = self
                .arrive(&mut after, ghost)
                .then_some(())
                .map_or(Some(Event::Refused), |()| None);
            self.push(after, "a late write arrives".to_owned(), event);
        }
        std::mem::take(&mut self.next)
    }

    fn has(&self, mutant: Mutant) -> bool {
        self.bounds.mutant == Some(mutant)
    }

    fn push(&mut self, mut world: World, label: String, event: Option<Event>) {
        settle(&mut world);
        canonical(&mut world);
        self.next.push(Next {
            world: Ok(world),
            label,
            event,
        });
    }

    fn wrong(&mut self, label: String, what: String) {
        self.next.push(Next {
            world: Err(what),
            label,
            event: None,
        });
    }

    fn decide(&mut self, world: &World, me: usize) {
        let shown = self.distorted(world, me);
        let effects = self.decider.effects(&shown, me);
        if world.faults < self.bounds.faults && world.members[me].confirmed.is_some() {
            // It has not been able to write for too long: a fault of its own.
            let gives_way = self
                .decider
                .impatient(&shown, me)
                .filter(|effect| !effects.contains(effect));
            let mut after = *world;
            after.faults += 1;
            self.act(&after, me, gives_way);
        }
        self.act(world, me, effects);
    }

    fn act(&mut self, world: &World, me: usize, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            let mut after = *world;
            let member = &mut after.members[me];
            let label = format!("{me}: {effect:?}");
            match effect {
                Effect::Begin(task) => {
                    if member.task.is_some() {
                        continue;
                    }
                    self.begin(member, task);
                    self.push(after, label, None);
                }
                Effect::Stop => {
                    if member.task.is_some() {
                        continue;
                    }
                    member.task = Some(Task::Stop);
                    self.push(after, label, None);
                }
                Effect::Kill => {
                    member.postgres = Postgres::Down { clean: false };
                    member.task = None;
                    self.push(after, label, None);
                }
                Effect::Write { content, release } => {
                    if member.write.is_some() || content.epoch > self.bounds.epochs {
                        continue;
                    }
                    member.write = Some(Write {
                        content,
                        release,
                        answer: None,
                    });
                    self.push(after, label, None);
                }
                Effect::Ask(epoch) => self.ask(world, me, epoch),
            }
        }
    }

    /// The world as a broken observer would show it to the machine.
    fn distorted(&self, world: &World, me: usize) -> World {
        let mut world = *world;
        let member = &mut world.members[me];
        match self.bounds.mutant {
            Some(Mutant::OnePromiseIsEnough) => {
                let promise = member.promise;
                for reply in member.replies.iter_mut().flatten() {
                    reply.promised = reply.promised.max(promise);
                    reply.position = reply.position.or(Some(Wal::default()));
                }
            }
            Some(Mutant::AnyPositionWins) => {
                for reply in member.replies.iter_mut().flatten() {
                    reply.position = reply.position.map(|_| Wal::default());
                }
            }
            Some(Mutant::RuleIsSetFirst) => {
                if let Postgres::Primary { proven, .. } = member.postgres {
                    // Whatever is wanted seems to be covered.
                    let names = member.seen.rule.names & !proven.names;
                    member.seen.rule = Rule { required: 0, names };
                }
            }
            Some(Mutant::RuleIsRecordedUnflushed) => {
                if let Postgres::Primary { proven_at, .. } = &mut member.postgres {
                    *proven_at = 0;
                }
            }
            Some(Mutant::ReloadIsNotProven) => {
                if let Postgres::Primary { pending, .. } = &mut member.postgres {
                    *pending = None;
                }
            }
            _ => {}
        }
        world
    }

    fn begin(&self, member: &mut Member, task: Task) {
        member.task = Some(task);
        match (task, &mut member.postgres) {
            (
                Task::SetSync(rule),
                Postgres::Primary {
                    proven,
                    proven_at,
                    pending,
                    ..
                },
            ) => {
                if self.has(Mutant::ReloadIsNotProven) {
                    // The machine is told that it is done (`distorted`); some WAL senders use the old one until the task ends.
                    (*proven_at, *pending) = (member.wal.end, Some(*proven));
                    *proven = rule;
                } else {
                    *pending = Some(rule);
                }
            }
            (Task::Promote(timeline, _), _) => member.promoting = timeline,
            _ => {}
        }
    }

    fn ask(&mut self, world: &World, me: usize, epoch: u8) {
        let holder = world.members[me].seen.holder.map(|(holder, _)| usize::from(holder));
        for other in (0..MEMBERS).filter(|other| *other != me && Some(*other) != holder) {
            let mut after = *world;
            after.members[other].asked = after.members[other].asked.max(epoch);
            let Some(mut reply) = self.decider.answer(&after, other, me, epoch) else {
                continue;
            };
            let promising = after.members[other].task == Some(Task::Promise(epoch));
            if self.has(Mutant::PositionIsNotFinal) && promising {
                (reply.promised, reply.position) = (epoch, Some(after.members[other].wal));
            }
            after.members[me].replies[other] = Some(reply);
            self.push(after, format!("{me}: asks {other} for epoch {epoch}: {reply:?}"), None);
        }
    }

    fn complete(&mut self, world: &World, me: usize) {
        let Some(task) = world.members[me].task else { return };
        let mut after = *world;
        let label = format!("{me}: {task:?} is done");
        let member = &mut after.members[me];
        member.task = None;
        let mut event = None;
        match task {
            Task::Promise(epoch) => {
                member.promise = member.promise.max(epoch);
                if let Postgres::Standby { upstream, receiving } = &mut member.postgres
                    && !self.has(Mutant::PromiseKeepsReceiving)
                {
                    (*upstream, *receiving) = (None, false);
                }
            }
            Task::Promote(timeline, rule) => match self.promote(world, &mut after, me, timeline, rule) {
                Ok(None) => {}
                Ok(Some(noticed)) => event = Some(noticed),
                Err(wrong) => return self.wrong(label, wrong),
            },
            Task::StartPrimary(rule) => {
                if let Postgres::Down { .. } = member.postgres {
                    let wal = member.wal;
                    member.postgres = primary(wal, rule);
                    member.primary_data = true;
                    if let Some(other) = writes_too(&after, me) {
                        return self.wrong(label, format!("{other} writes timeline {} as well", wal.timeline));
                    }
                }
            }
            Task::StartStandby(upstream) => {
                if let Postgres::Down { .. } = member.postgres {
                    self.follow(member, upstream);
                    member.postgres = Postgres::Standby {
                        upstream,
                        receiving: false,
                    };
                    member.primary_data = false;
                }
            }
            Task::Configure(to) => {
                if let Postgres::Standby { .. } = member.postgres {
                    self.follow(member, to);
                    member.postgres = Postgres::Standby {
                        upstream: to,
                        receiving: false,
                    };
                }
            }
            Task::SetSync(rule) => {
                if let Postgres::Primary {
                    proven,
                    proven_at,
                    pending,
                    ..
                } = &mut member.postgres
                {
                    (*proven, *proven_at, *pending) = (rule, member.wal.end, None);
                }
            }
            Task::Open => {
                if let Postgres::Primary { open, .. } = &mut member.postgres {
                    *open = true;
                    event = Some(Event::Opened);
                }
            }
            Task::Rewind(from, epoch) => {
                let source = world.members[usize::from(from)];
                if !matches!(source.postgres, Postgres::Primary { .. }) {
                    return;
                }
                member.promise = member.promise.max(epoch);
                member.promoting = 0;
                member.primary_data = false;
                member.wal = world.common(member.wal, source.wal);
                member.postgres = Postgres::Down { clean: false };
                event = Some(Event::Rewound);
            }
            Task::Stop => {
                let clean = matches!(member.postgres, Postgres::Primary { .. });
                member.postgres = Postgres::Down { clean };
            }
        }
        self.push(after, label, event);
    }

    fn follow(&self, member: &mut Member, upstream: Option<(u8, u8)>) {
        if let Some((_, epoch)) = upstream {
            member.promise = member.promise.max(epoch);
            member.promoting = 0;
        }
    }

    fn promote(
        &self,
        world: &World,
        after: &mut World,
        me: usize,
        timeline: u8,
        rule: Rule,
    ) -> Result<Option<Event>, String> {
        let Postgres::Standby { .. } = world.members[me].postgres else {
            return Ok(None);
        };
        let timeline = if self.has(Mutant::TimelineIsUsedTwice) {
            world.members[me].wal.timeline + 1
        } else {
            timeline
        };
        let base = world.members[me].wal;
        if world.forks[usize::from(timeline) % TIMELINES].0 != 0 {
            return Err(format!("timeline {timeline} is written for the second time"));
        }
        for older in 1..TIMELINES {
            let acknowledged = Wal {
                timeline: older as u8,
                end: world.acknowledged[older],
            };
            if acknowledged.end > 0 && !world.contains(base, acknowledged) {
                return Err(format!(
                    "{acknowledged:?} was acknowledged, and timeline {timeline} begins at {base:?}"
                ));
            }
        }
        after.forks[usize::from(timeline) % TIMELINES] = (base.timeline, base.end);
        let member = &mut after.members[me];
        member.wal = Wal {
            timeline,
            end: base.end + 1,
        };
        member.postgres = primary(member.wal, rule);
        member.primary_data = true;
        member.promoting = 0;
        let late = world.lease.holder.is_none_or(|(holder, _)| usize::from(holder) != me);
        Ok(Some(if late { Event::PromotedLate } else { Event::Promoted }))
    }

    fn lease(&mut self, world: &World, me: usize) {
        let member = &world.members[me];
        if member.seen != world.lease {
            let mut after = *world;
            see(&mut after.members[me], world.lease);
            self.push(after, format!("{me}: sees the Lease"), None);
        }
        let Some(write) = member.write else { return };
        let mut after = *world;
        match write.answer {
            None => {
                let before = world.lease;
                let taken = self.arrive(&mut after, write.content);
                after.members[me].write = Some(Write {
                    answer: Some(taken),
                    ..write
                });
                let event = if taken {
                    noticed(&before, &after.lease, me)
                } else {
                    Some(Event::Refused)
                };
                self.push(after, format!("{me}: its write arrives, taken: {taken}"), event);
            }
            Some(taken) => {
                let member = &mut after.members[me];
                member.write = None;
                member.write_failed = !taken;
                if taken {
                    let ours = write
                        .content
                        .holder
                        .is_some_and(|(holder, run)| usize::from(holder) == me && run == member.run);
                    member.confirmed = ours.then_some(write.content.epoch);
                    // The answer is the object as it was written; something newer may have been seen meanwhile.
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
                } else {
                    see(member, world.lease);
                }
                self.push(after, format!("{me}: hears that its write was taken: {taken}"), None);
            }
        }
    }

    /// A write of the Lease arrives.
    fn arrive(&self, after: &mut World, content: Lease) -> bool {
        let fits = content.version == after.lease.version || self.has(Mutant::LeaseIsOverwritten);
        if fits {
            let version = after.lease.version + 1;
            after.lease = Lease { version, ..content };
        }
        fits
    }

    fn stream(&mut self, world: &World, me: usize) {
        match world.members[me].postgres {
            Postgres::Primary {
                open, proven, pending, ..
            } => {
                let member = world.members[me];
                if open && member.wal.end < self.bounds.records {
                    let mut after = *world;
                    after.members[me].wal.end += 1;
                    self.push(after, format!("{me}: writes"), None);
                }
                if open {
                    self.acknowledge(world, me, proven, pending);
                }
            }
            Postgres::Standby {
                upstream: Some((from, epoch)),
                receiving,
            } => {
                let source = &world.members[usize::from(from)];
                let mine = world.members[me].wal;
                let serves = matches!(source.postgres, Postgres::Primary { .. });
                let fits = serves && world.contains(source.wal, mine) && !world.members[me].silent;
                let mut after = *world;
                match (receiving, fits) {
                    (false, true) => {
                        after.members[me].postgres = Postgres::Standby {
                            upstream: Some((from, epoch)),
                            receiving: true,
                        };
                        self.push(after, format!("{me}: streams from {from}"), None);
                    }
                    (true, true) => {
                        if let Some(next) = following(world, mine, source.wal) {
                            after.members[me].wal = next;
                            self.push(after, format!("{me}: receives {next:?}"), None);
                        }
                    }
                    // A stream without a source has ended (see `settle`).
                    (true, false) | (false, false) => {}
                }
            }
            Postgres::Standby { .. } | Postgres::Down { .. } => {}
        }
    }

    fn acknowledge(&mut self, world: &World, me: usize, proven: Rule, pending: Option<Rule>) {
        let head = world.members[me].wal;
        let slot = usize::from(head.timeline) % TIMELINES;
        let newest = (world.acknowledged[slot] + 1..=head.end).rev().find(|end| {
            let at = Wal { end: *end, ..head };
            let holders = holders(world, me, at);
            proven.is_met(holders) || pending.is_some_and(|pending| pending.is_met(holders))
        });
        let Some(end) = newest else { return };
        let at = Wal { end, ..head };
        let label = format!("{me}: acknowledges {at:?}");
        for newer in usize::from(head.timeline) + 1..TIMELINES {
            let (parent, fork) = world.forks[newer];
            let base = Wal {
                timeline: parent,
                end: fork,
            };
            if parent != 0 && !world.contains(base, at) {
                return self.wrong(
                    label,
                    format!("{at:?} is acknowledged, and timeline {newer} began at {base:?}"),
                );
            }
        }
        let mut after = *world;
        after.acknowledged[slot] = end;
        let late = world.lease.holder.is_none_or(|(holder, _)| usize::from(holder) != me);
        self.push(after, label, late.then_some(Event::AcknowledgedLate));
    }

    fn silence(&mut self, world: &World, me: usize) {
        let member = &world.members[me];
        let holder = member.seen.holder.map(|(holder, _)| usize::from(holder));
        let Some(holder) = holder.filter(|holder| *holder != me) else {
            return;
        };
        let mut after = *world;
        if member.silent {
            after.members[me].silent = false;
            return self.push(after, format!("{me}: hears the primary again"), None);
        }
        after.members[me].silent = true;
        let gone = matches!(world.members[holder].postgres, Postgres::Down { .. });
        if !gone {
            if world.faults >= self.bounds.faults {
                return;
            }
            after.faults += 1;
        }
        self.push(after, format!("{me}: does not hear the primary"), None);
    }

    fn fail(&mut self, world: &World, me: usize) {
        if world.faults >= self.bounds.faults {
            return;
        }
        let mut base = *world;
        base.faults += 1;
        let member = &world.members[me];
        let mut crashed = base;
        self.crash(&mut crashed, me);
        self.push(crashed, format!("{me}: its container is killed"), None);
        if member.confirmed.is_some() {
            let mut lapsed = base;
            lapsed.members[me].confirmed = None;
            self.push(lapsed, format!("{me}: could not renew in time"), None);
        }
        if let Some(write) = member.write {
            let mut lost = base;
            (lost.members[me].write, lost.members[me].write_failed) = (None, true);
            if write.answer.is_none() && world.ghost.is_none() {
                let mut late = lost;
                late.ghost = Some(write.content);
                self.push(late, format!("{me}: gives up a write that is still on its way"), None);
            }
            self.push(lost, format!("{me}: a write or its answer is lost"), None);
        }
        if let Some(Task::SetSync(_) | Task::Promote(..)) = member.task {
            let mut failed = base;
            failed.members[me].task = None;
            self.push(failed, format!("{me}: a task fails"), None);
        }
    }

    fn crash(&self, world: &mut World, me: usize) {
        let lease = world.lease;
        let member = &mut world.members[me];
        if let Some(write) = member.write.take().filter(|write| write.answer.is_none()) {
            world.ghost = Some(write.content);
        }
        member.run += 1;
        member.postgres = Postgres::Down { clean: false };
        member.task = None;
        member.replies = [None; MEMBERS];
        (member.asked, member.confirmed, member.write_failed, member.silent) = (0, None, false, false);
        member.seen = lease;
        if self.has(Mutant::PromiseIsForgotten) {
            member.promise = 0;
        }
    }
}
