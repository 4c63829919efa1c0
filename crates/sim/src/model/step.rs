//! All that can happen next.

use machine::instance::steps::{PROMOTION, PromotionStep};

use super::archive::{self, Basis};
use super::bounds::{Bounds, Event, Mutant};
use super::distort;
use super::forget::forget;
use super::label::{Label, What};
use super::observe::{Decided, Decider, Effect};
use super::state::{Member, Postgres, TIMELINES, Task, World, Write};
use super::world::{canonical, flush, settle};

/// A next state, what led to it, and the notable event.
pub struct Next<const N: usize> {
    /// The state; `Err`: what is wrong with it.
    pub world: Result<World<N>, String>,
    /// What happened.
    pub label: Label,
    /// The notable event, if one happened.
    pub event: Option<Event>,
}

/// Explores the successors of one state.
pub struct Stepper<'a, const N: usize> {
    /// The decisions.
    pub decider: &'a mut Decider<N>,
    /// The bounds.
    pub bounds: Bounds,
    /// What each member decides in the world that was explored last.
    pub(super) decided: [[Decided; 2]; N],
    /// What each member's archiver depends on in it.
    archivers: [Basis; N],
    /// What can happen next in it, including steps that change nothing.
    pub(super) next: Vec<Next<N>>,
}

impl<'a, const N: usize> Stepper<'a, N> {
    /// A stepper with these decisions and bounds.
    pub fn new(decider: &'a mut Decider<N>, bounds: Bounds) -> Self {
        Self {
            decider,
            bounds,
            decided: [[Decided::default(); 2]; N],
            archivers: [Basis::default(); N],
            next: Vec::new(),
        }
    }

    /// All that can happen next in `world`, without steps that change nothing.
    pub fn successors(&mut self, world: &World<N>) -> &mut Vec<Next<N>> {
        self.explore(world);
        self.next.retain(|next| next.world.as_ref() != Ok(world));
        &mut self.next
    }

    /// Finds what can happen next in `world`.
    pub(super) fn explore(&mut self, world: &World<N>) {
        self.next.clear();
        self.decided = std::array::from_fn(|me| self.decider.decide(world, me));
        self.archivers = std::array::from_fn(|me| Basis::of(&world.members[me]));
        for me in 0..N {
            self.decide(world, me);
            self.complete(world, me);
            self.lease(world, me);
            self.stream(world, me);
            self.silence(world, me);
            self.reboot(world, me);
            self.spoil(world, me);
            self.fail(world, me);
            self.archive(world, me);
        }
        self.ghost(world);
        self.store(world);
        self.lose_lease(world);
        self.edit(world);
        if self.bounds.timed {
            self.tick(world);
        }
    }

    pub(super) fn has(&self, mutant: Mutant) -> bool {
        self.bounds.mutant == Some(mutant)
    }

    pub(super) fn push(&mut self, world: World<N>, actor: impl Into<Option<usize>>, what: What, event: Option<Event>) {
        let actor = actor.into().map(|actor| actor as u8);
        self.next.push(Next {
            world: Ok(world),
            label: Label { actor, what },
            event,
        });
        // Settled in place: a world is large, and is copied as seldom as possible.
        if let Some(Next { world: Ok(world), .. }) = self.next.last_mut() {
            settle(world);
            archive::settle(world, self.bounds.mutant, &self.archivers);
            flush(world, self.bounds.reboots);
            forget(world, self.bounds);
            canonical(world);
        }
    }

    pub(super) fn wrong(&mut self, me: usize, what: What, wrong: String) {
        let actor = Some(me as u8);
        self.next.push(Next {
            world: Err(wrong),
            label: Label { actor, what },
            event: None,
        });
    }

    fn decide(&mut self, world: &World<N>, me: usize) {
        let distorted = self.bounds.mutant.map(|mutant| distort::shown(mutant, world, me));
        let shown = distorted.as_ref().unwrap_or(world);
        let decided = match distorted {
            None => self.decided[me],
            Some(_) => self.decider.decide(shown, me),
        };
        let unfit = world.is_unfit(me);
        if (unfit || world.faults < self.bounds.faults) && world.members[me].confirmed.is_some() {
            // It has not been able to write for too long, by a fault of its own or as the result of one that stays.
            let steps_down = self.decider.impatient(shown, me);
            if decided.iter().all(|decided| decided.effect != steps_down.effect) {
                let mut after = *world;
                after.faults += u8::from(!unfit);
                self.act(&after, me, steps_down);
            }
        }
        self.act(world, me, decided[0]);
        if decided[0] != decided[1] {
            self.act(world, me, decided[1]);
        }
    }

    fn act(&mut self, world: &World<N>, me: usize, decided: Decided) {
        let mut after = *world;
        let member = &mut after.members[me];
        member.handing = decided.handing;
        let Some(effect) = decided.effect else {
            return self.push(after, me, What::HandsOverNoMore, None);
        };
        let mut event = None;
        match effect {
            Effect::Begin(task) => {
                if member.task.is_some() {
                    return;
                }
                begin(member, task);
            }
            Effect::Stop => {
                if member.task.is_some() {
                    return;
                }
                member.task = Some(Task::Stop);
            }
            Effect::Kill => {
                let writes = matches!(member.postgres, Postgres::Primary { .. });
                event = (writes && member.seen.holder != Some((me as u8, member.run))).then_some(Event::StoodDown);
                member.postgres = Postgres::Down { clean: false };
                member.task = None;
            }
            Effect::Write { content, release } => {
                let far = content.epoch > self.bounds.epochs || usize::from(content.reserved) >= TIMELINES;
                if member.write.is_some() || far {
                    return;
                }
                member.write = Some(Write {
                    content,
                    release,
                    answer: None,
                    age: 0,
                });
            }
            Effect::Ask(epoch) => return self.ask(world, me, epoch),
            Effect::AskFailsafe(epoch) => return self.ask_failsafe(world, me, epoch),
        }
        self.push(after, me, What::Decides(effect), event);
    }

    fn ask(&mut self, world: &World<N>, me: usize, epoch: u8) {
        let holder = world.members[me].seen.holder.map(|(holder, _)| usize::from(holder));
        for other in (0..N).filter(|other| *other != me && Some(*other) != holder) {
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
            let other = other as u8;
            self.push(after, me, What::Asks { other, reply }, None);
        }
    }

    fn ask_failsafe(&mut self, world: &World<N>, me: usize, epoch: u8) {
        for other in (0..N).filter(|other| *other != me) {
            let distorted = self
                .bounds
                .mutant
                .map(|mutant| distort::shown_when_asked(mutant, world, other, me));
            let given = self
                .decider
                .failsafe(distorted.as_ref().unwrap_or(world), other, me, epoch);
            let Some(given) = given else { continue };
            let mut after = *world;
            after.members[me].failsafe[other] = Some((epoch, 0));
            after.members[me].since_loss |= 1 << other;
            // Without clocks, a promise for a limited time is over at once.
            if self.bounds.timed && !self.has(Mutant::FailsafeIsForgotten) {
                after.members[other].given = Some(given);
            }
            let other = other as u8;
            self.push(after, me, What::AsksFailsafe { other }, None);
        }
    }
}

/// What changes when a task begins.
fn begin<const N: usize>(member: &mut Member<N>, task: Task) {
    member.task = Some(task);
    match (task, &mut member.postgres) {
        (Task::SetSync(rule), Postgres::Primary { pending, .. }) => *pending = Some(rule),
        // Of what comes before the promotion itself, only the note changes anything here.
        (Task::Promote(timeline, _), _) => {
            let mut before = PROMOTION.iter().take_while(|step| step.step != PromotionStep::Promote);
            if before.any(|step| step.step == PromotionStep::Note) {
                member.promoting = timeline;
            }
        }
        _ => {}
    }
}
