//! The operator over the agents: `machine::cluster` decides what the users' edits come to, from what its watches have shown it,
//! and its requests find or miss the versions that it names. With the StatefulSet's controller and the kubelets, which make and
//! end pods. Its loop and its bookkeeping are `operator::execute`'s, its caches `operator::cache`'s.

mod checks;
mod edits;
mod kubelet;
mod look;
mod objects;
mod requests;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use machine::cluster::Target;
use machine::reconcile::Pass;

use super::distort::Bug;
use super::event::Event;
use super::net::count;
use super::world::World;
pub use checks::Taken;
pub use kubelet::Sandbox;
pub use objects::Objects;
pub use requests::{Answer, Doomed, Request};
pub use view::{Kind, Seen, View};

/// One operator's process, and the place that it runs in.
#[derive(Clone, Debug, Default)]
pub struct Operator {
    /// Its run; `None` while there is none.
    pub run: Option<u32>,
    runs: u32,
    view: View,
    pass: Pass<Target>,
    pending: Option<requests::Pending>,
    generation: u64,
    /// It rests: nothing is left to do about this version of the resource.
    rests: Option<u64>,
    said: String,
    /// It is stopped, so often; what it would do waits.
    pub frozen: u8,
    pub waits: Vec<Event>,
    /// When it renewed the lead last before it was stopped; and when it has done so again, if it leads.
    renewed: u64,
    renews: u64,
    /// What its watches tell comes so much later, in milliseconds.
    pub lag: u64,
    /// Watches that tell nothing.
    blind: BTreeMap<Kind, u8>,
    /// Watches that are to be begun again.
    broken: BTreeSet<Kind>,
    /// When the last news of each kind arrives: they stay in order.
    last: BTreeMap<Kind, u64>,
}

/// What a thing of the operator does.
#[derive(Clone, Debug)]
pub enum Operating {
    /// It looks at the database, if it has not meanwhile.
    Look { generation: u64 },
    /// A watch tells it something.
    Seen(Seen),
    /// A request was answered.
    Answered { call: u64, answer: Box<Answer> },
    /// A request has taken too long.
    Late { call: u64 },
}

/// A request may be sent so long after the last renewal of the lead, in milliseconds, as in the operator.
const FRESH: u64 = 4_000;
/// One that goes on and leads has renewed the lead so much later, in milliseconds.
const RENEWS: u64 = 20;

/// The time as people and objects tell it.
pub fn wall(now: u64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::milliseconds(i64::try_from(now).unwrap_or(i64::MAX))
}

impl World {
    /// A process starts, which knows nothing but what is stored.
    pub fn start_operator(&mut self, index: usize) {
        let operator = &mut self.operators[index];
        if operator.run.is_some() {
            return;
        }
        operator.runs += 1;
        let (runs, lag, blind) = (operator.runs, operator.lag, std::mem::take(&mut operator.blind));
        *operator = Operator {
            run: Some(runs),
            runs,
            lag,
            blind,
            ..Operator::default()
        };
        self.note(None, || format!("operator {index} starts, run {runs}"));
        for kind in Kind::ALL {
            self.show_to(index, kind, 200);
        }
    }

    /// It is gone; what it has sent may still arrive.
    pub fn kill_operator(&mut self, index: usize) {
        let operator = &mut self.operators[index];
        if operator.run.is_none() {
            return;
        }
        (operator.run, operator.frozen) = (None, 0);
        operator.waits.clear();
        if operator.pending.is_some() {
            self.coverage.reach("operator killed during a request");
        }
        self.note(None, || format!("operator {index} is killed"));
    }

    /// It stands still.
    fn freeze_operator(&mut self, index: usize) {
        let operator = &mut self.operators[index];
        if operator.frozen == 0 && self.now >= operator.renews {
            operator.renewed = self.now;
        }
        count(&mut operator.frozen, true);
    }

    /// What it sends now arrives before another one may lead, by its own clock.
    fn lead_covers_request(&self, index: usize) -> bool {
        let operator = &self.operators[index];
        let renewed = index == self.leader && self.now >= operator.renews;
        renewed || self.now <= operator.renewed + FRESH || self.plan.bug == Some(Bug::OperatorActsLate)
    }

    pub fn thaw_operator(&mut self, index: usize) {
        let operator = &mut self.operators[index];
        count(&mut operator.frozen, false);
        if operator.frozen == 0 {
            operator.renews = self.now + RENEWS;
            for event in std::mem::take(&mut operator.waits) {
                self.after(0, event);
            }
        }
    }

    /// Its watches of some kinds tell nothing, or do so again; `which`: one bit for each kind.
    pub fn blind_operator(&mut self, index: usize, which: usize, blind: bool) {
        for (bit, kind) in Kind::ALL.into_iter().enumerate() {
            if which & (1 << bit) != 0 {
                count(self.operators[index].blind.entry(kind).or_default(), blind);
            }
        }
    }

    /// Nothing is wrong with any operator any more.
    pub fn heal_operators(&mut self) {
        for index in 0..self.operators.len() {
            self.operators[index].lag = 0;
            self.operators[index].blind.clear();
            while self.operators[index].frozen > 0 {
                self.thaw_operator(index);
            }
        }
        self.start_operator(self.leader);
    }

    /// Something happens in an operator's process.
    pub fn operate_step(&mut self, index: usize, run: u32, what: Operating) {
        let operator = &mut self.operators[index];
        if operator.run != Some(run) {
            return;
        }
        if operator.frozen > 0 {
            return operator.waits.push(Event::Operate {
                operator: index,
                run,
                what,
            });
        }
        match what {
            Operating::Look { generation } if operator.generation == generation => self.look_over(index),
            Operating::Look { .. } => {}
            Operating::Seen(seen) => {
                if operator.view.see(seen) && operator.pending.is_none() {
                    self.look_again(index, 1);
                }
            }
            Operating::Answered { call, answer } => self.answered(index, call, *answer),
            Operating::Late { call } => self.answered(index, call, Answer::Failed),
        }
    }

    /// It looks again in so many milliseconds.
    fn look_again(&mut self, index: usize, delay: u64) {
        let operator = &mut self.operators[index];
        let Some(run) = operator.run else { return };
        operator.generation += 1;
        let generation = operator.generation;
        let what = Operating::Look { generation };
        self.after(
            delay,
            Event::Operate {
                operator: index,
                run,
                what,
            },
        );
    }

    /// What the API server has of one kind is shown to every operator.
    pub fn show(&mut self, kind: Kind) {
        for index in 0..self.operators.len() {
            self.show_to(index, kind, 20);
        }
    }

    /// In order, within `usual` milliseconds, late, or never: then the watch is begun again some time later.
    fn show_to(&mut self, index: usize, kind: Kind, usual: u64) {
        let seen = self.seen(kind);
        let operator = &mut self.operators[index];
        let Some(run) = operator.run else { return };
        if operator.broken.contains(&kind) {
            return;
        }
        if self.api.down > 0 || operator.blind.get(&kind).is_some_and(|blind| *blind > 0) {
            operator.broken.insert(kind);
            return self.after(
                1_000,
                Event::WatchAgain {
                    operator: index,
                    run,
                    kind,
                },
            );
        }
        let lag = 2 + self.random.operator.below(usual + operator.lag);
        let last = operator.last.entry(kind).or_default();
        *last = (self.now + lag).max(*last);
        let at = *last;
        let what = Operating::Seen(seen);
        self.queue.push(
            at,
            Event::Operate {
                operator: index,
                run,
                what,
            },
        );
    }

    /// A broken watch of an operator is begun again, when that is possible.
    pub fn watch_again(&mut self, index: usize, run: u32, kind: Kind) {
        if self.operators[index].run == Some(run) {
            self.operators[index].broken.remove(&kind);
            self.show_to(index, kind, 20);
        }
    }
}
