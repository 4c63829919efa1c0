//! The operator above the agents. `machine::cluster` decides how to carry out the users' edits, from what its watches
//! have shown, and its requests succeed or fail by the versions that they name. The StatefulSet's controller and the
//! kubelets make and end pods. The loop and the bookkeeping are those of `operator::execute`, the caches those of
//! `operator::cache`.

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

/// One operator's process, and the place where it runs.
#[derive(Clone, Debug, Default)]
pub struct Operator {
    /// Its run; `None` while no process runs.
    pub run: Option<u32>,
    runs: u32,
    view: View,
    pass: Pass<Target>,
    pending: Option<requests::Pending>,
    generation: u64,
    /// The version of the resource for which it is idle: nothing is left to do.
    rests: Option<u64>,
    said: String,
    /// How many faults have stopped it; its events wait.
    pub frozen: u8,
    pub waits: Vec<Event>,
    /// When it last renewed the lead before it was stopped; and when it renews it next, if it leads.
    renewed: u64,
    renews: u64,
    /// Additional delay of its watches, in milliseconds.
    pub lag: u64,
    /// Watches that deliver nothing.
    blind: BTreeMap<Kind, u8>,
    /// Watches that must be restarted.
    broken: BTreeSet<Kind>,
    /// When the last news of each kind arrives: news stay in order.
    last: BTreeMap<Kind, u64>,
}

/// What happens in an operator's process.
#[derive(Clone, Debug)]
pub enum Operating {
    /// It reconciles, unless it has done so meanwhile.
    Look { generation: u64 },
    /// A watch delivers something.
    Seen(Seen),
    /// A request was answered.
    Answered { call: u64, answer: Box<Answer> },
    /// A request has taken too long.
    Late { call: u64 },
}

/// How long after the last renewal of the lead a request may be sent, in milliseconds, as in the operator.
const FRESH: u64 = 4_000;
/// How long after it continues a leading operator renews the lead, in milliseconds.
const RENEWS: u64 = 20;

/// The time as users and objects see it.
pub fn wall(now: u64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::milliseconds(i64::try_from(now).unwrap_or(i64::MAX))
}

impl World {
    /// A process starts. It knows only what is stored.
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

    /// It is killed; its requests may still arrive.
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

    /// It is stopped.
    fn freeze_operator(&mut self, index: usize) {
        let operator = &mut self.operators[index];
        if operator.frozen == 0 && self.now >= operator.renews {
            operator.renewed = self.now;
        }
        count(&mut operator.frozen, true);
    }

    /// True if a request sent now arrives before another operator may lead, by its own clock.
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

    /// Its watches of some kinds deliver nothing, or deliver again; `which`: one bit for each kind.
    pub fn blind_operator(&mut self, index: usize, which: usize, blind: bool) {
        for (bit, kind) in Kind::ALL.into_iter().enumerate() {
            if which & (1 << bit) != 0 {
                count(self.operators[index].blind.entry(kind).or_default(), blind);
            }
        }
    }

    /// Ends all faults of operators.
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

    /// It reconciles again in this many milliseconds.
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

    /// Shows the present objects of one kind to every operator.
    pub fn show(&mut self, kind: Kind) {
        for index in 0..self.operators.len() {
            self.show_to(index, kind, 20);
        }
    }

    /// Delivers in order: within `usual` milliseconds, late, or never. In the last case the watch is restarted some
    /// time later.
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

    /// A broken watch of an operator is restarted, if that is possible.
    pub fn watch_again(&mut self, index: usize, run: u32, kind: Kind) {
        if self.operators[index].run == Some(run) {
            self.operators[index].broken.remove(&kind);
            self.show_to(index, kind, 20);
        }
    }
}
