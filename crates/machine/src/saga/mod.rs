//! Sagas: long operations as a table of steps, on the reconcile kernel.
//!
//! A saga does one step after the other. Each step says how observation shows that it is done, what does it, and how it is
//! taken back. The machine records a step in the status before it acts for it, and believes only what it observes: after a
//! crash it looks, and goes on with the first step that is not done. Until a step that cannot be taken back is recorded, a
//! cancelled or failed saga undoes its recorded steps in reverse order. After that it only goes forward.
//!
//! The end is absorbing: `Completed`, `Failed` or `Cancelled`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use api::operation::OperationPhase;
use chrono::{DateTime, TimeDelta, Utc};

use crate::cluster::Known;
use crate::reconcile::{Controller, Decided, Effect, Fault, FaultKind, STATUS_SETTLES, StatusWrite};

/// One kind of saga.
pub trait Saga: Sized + 'static {
    /// What the user asks for.
    type Spec;
    /// What is observed.
    type Observed;
    /// One effect. Done twice, it must leave the same as done once.
    type Action: Clone + Debug + PartialEq;
    /// What actions are done to: the key of failures.
    type Target: Clone + Debug + Ord;
    /// The steps, in their order.
    const STEPS: &'static [Step<Self>];

    /// What this action is done to.
    fn target(action: &Self::Action) -> Self::Target;
    /// Whether the action takes something away, so that the executor must first read once more what it relies on.
    fn confirms(observed: &Self::Observed, action: &Self::Action) -> bool;
}

/// One step of a saga.
pub struct Step<S: Saga> {
    /// Its name: stands in the status, and never changes.
    pub name: &'static str,
    /// What it does, in a sentence for the documentation.
    pub what: &'static str,
    /// Whether observation shows that it is done.
    pub is_done: fn(&Facts<'_, S>) -> Known<bool>,
    /// What does it.
    pub act: fn(&Facts<'_, S>) -> Act<S::Action>,
    /// How it is taken back.
    pub undo: Undo<S>,
}

/// How a step is taken back.
pub enum Undo<S: Saga> {
    /// The step leaves nothing behind.
    Nothing,
    /// By an action, until observation shows that nothing is left.
    By {
        /// Whether observation shows that nothing is left of the step.
        is_undone: fn(&Facts<'_, S>) -> Known<bool>,
        /// What takes it back.
        act: fn(&Facts<'_, S>) -> Act<S::Action>,
    },
    /// Not at all: once this step is recorded, the saga goes forward only.
    Never,
}

/// What a step proposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act<A> {
    /// Do this.
    Do(A),
    /// Wait for this.
    Wait(String),
    /// The step cannot be done, for this reason. Of a step that takes something back: wait for the user.
    Fail(String),
}

/// What steps look at.
pub struct Facts<'a, S: Saga> {
    /// What the user asks for.
    pub spec: &'a S::Spec,
    /// What is observed.
    pub observed: &'a S::Observed,
    /// Now.
    pub now: DateTime<Utc>,
}

/// The user's side of one saga.
pub struct Wanted<'a, S: Saga> {
    /// What is asked for.
    pub spec: &'a S::Spec,
    /// The user takes it back.
    pub cancel: bool,
    /// The saga may do steps that cannot be taken back.
    pub is_approved: bool,
}

/// What is observed around one saga.
pub struct Observed<S: Saga> {
    /// What its steps look at.
    pub of_steps: S::Observed,
    /// Actions that failed and have not succeeded since.
    pub faults: BTreeMap<Target<S::Target>, Fault<Target<S::Target>>>,
}

/// How far a saga is: its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How far it is.
    pub phase: Option<OperationPhase>,
    /// The last step that it has begun. Steps behind it were never acted for.
    pub step: Option<String>,
    /// How it will end when the steps that it has begun are taken back.
    pub undoing: Option<Ending>,
    /// What came of it, or what it waits for.
    pub message: Option<String>,
    /// When it began.
    pub start_time: Option<DateTime<Utc>>,
    /// When it ended.
    pub completion_time: Option<DateTime<Utc>>,
}

/// Why a saga ends without being completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A step could not be done.
    Failed(String),
    /// The user took it back.
    Cancelled,
}

/// What an action of a saga is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target<T> {
    /// The status.
    Status,
    /// Something else.
    Of(T),
}

/// What can be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<A, T> {
    /// Nothing now; this is waited for, or nothing at all.
    Wait(Option<String>),
    /// Record that this step begins.
    Begin(&'static str),
    /// Record that the steps so far are taken back, and why.
    TakeBack(Ending),
    /// Record this phase and its reason.
    Enter(OperationPhase, String),
    /// Act for a step.
    Do(T, A),
}

/// What can be done for one kind of saga.
pub type ActionOf<S> = Action<<S as Saga>::Action, <S as Saga>::Target>;

/// What to do now, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<A, T> {
    /// The one effect.
    pub action: Action<A, T>,
    /// The step that it belongs to, if any.
    pub step: Option<&'static str>,
    /// When to decide again, even if nothing changes.
    pub wake: DateTime<Utc>,
}

/// The decision about one kind of saga.
pub type DecisionOf<S> = Decision<<S as Saga>::Action, <S as Saga>::Target>;

/// A saga is looked at again after this long, even if nothing happens.
const RECHECK: TimeDelta = TimeDelta::minutes(2);
/// A step whose action the API server has refused so many times in a row fails. With the pauses in between that is about
/// [four minutes](crate::backoff): long enough for a quota or a right that somebody is about to give.
pub const REFUSALS: u32 = 10;

/// The machine of a kind of saga.
pub struct Machine<S>(PhantomData<S>);

struct View<'a, S: Saga> {
    wanted: &'a Wanted<'a, S>,
    observed: &'a Observed<S>,
    stored: &'a Progress,
    facts: Facts<'a, S>,
}

impl<S: Saga> View<'_, S> {
    /// The next action, and the step that it belongs to.
    fn decide(&self) -> (ActionOf<S>, Option<&'static str>) {
        let begun = match &self.stored.step {
            None => 0,
            Some(name) => match S::STEPS.iter().position(|step| step.name == name) {
                Some(index) => index + 1,
                None => return (wait(format!("a version that knows the step {name}")), None),
            },
        };
        match self.stored.phase {
            Some(OperationPhase::Completed | OperationPhase::Failed | OperationPhase::Cancelled) => {
                return (Action::Wait(None), None);
            }
            None => return (Action::Enter(OperationPhase::Pending, "accepted".to_owned()), None),
            Some(OperationPhase::Pending | OperationPhase::Running) => {}
        }
        if let Some(ending) = &self.stored.undoing {
            return self.take_back(begun, ending);
        }
        let begun_steps = S::STEPS.get(..begun).unwrap_or_default();
        let may_go_back = !begun_steps.iter().any(|step| matches!(step.undo, Undo::Never));
        if self.wanted.cancel && may_go_back {
            return (Action::TakeBack(Ending::Cancelled), None);
        }
        self.go_on(begun, may_go_back)
    }

    fn go_on(&self, begun: usize, may_go_back: bool) -> (ActionOf<S>, Option<&'static str>) {
        for (index, step) in S::STEPS.iter().enumerate() {
            let action = match (step.is_done)(&self.facts) {
                Known::Known(true) => continue,
                Known::Unknown => wait(format!("what is known of the step {}", step.name)),
                Known::Known(false) if index < begun => match self.act(step.act) {
                    Act::Do(action) => Action::Do(S::target(&action), action),
                    Act::Fail(why) if may_go_back => Action::TakeBack(Ending::Failed(format!("{}: {why}", step.name))),
                    Act::Wait(what) | Act::Fail(what) => wait(what),
                },
                Known::Known(false) if matches!(step.undo, Undo::Never) && !self.wanted.is_approved => wait(format!(
                    "the user to approve the step {}, which cannot be taken back",
                    step.name
                )),
                Known::Known(false) => Action::Begin(step.name),
            };
            return (action, Some(step.name));
        }
        (Action::Enter(OperationPhase::Completed, "done".to_owned()), None)
    }

    fn take_back(&self, begun: usize, ending: &Ending) -> (ActionOf<S>, Option<&'static str>) {
        for step in S::STEPS.get(..begun).unwrap_or_default().iter().rev() {
            let Undo::By { is_undone, act } = &step.undo else {
                continue;
            };
            let action = match is_undone(&self.facts) {
                Known::Known(true) => continue,
                Known::Unknown => wait(format!("what is left of the step {}", step.name)),
                Known::Known(false) => match act(&self.facts) {
                    Act::Do(action) => Action::Do(S::target(&action), action),
                    Act::Wait(what) | Act::Fail(what) => wait(what),
                },
            };
            return (action, Some(step.name));
        }
        let end = match ending {
            Ending::Failed(why) => Action::Enter(OperationPhase::Failed, why.clone()),
            Ending::Cancelled => Action::Enter(OperationPhase::Cancelled, "taken back".to_owned()),
        };
        (end, None)
    }

    /// What a step proposes; it fails if its action was refused too often.
    fn act(&self, act: fn(&Facts<'_, S>) -> Act<S::Action>) -> Act<S::Action> {
        let proposed = act(&self.facts);
        let Act::Do(action) = &proposed else {
            return proposed;
        };
        let fault = self.observed.faults.get(&Target::Of(S::target(action)));
        let refused = fault.filter(|fault| fault.attempts >= REFUSALS && is_refusal(fault.kind));
        refused.map_or(proposed, |fault| Act::Fail(fault.message.clone()))
    }
}

const fn is_refusal(kind: FaultKind) -> bool {
    match kind {
        FaultKind::Quota | FaultKind::Forbidden | FaultKind::Invalid => true,
        FaultKind::Conflict | FaultKind::Transient => false,
    }
}

fn wait<A, T>(what: String) -> Action<A, T> {
    Action::Wait(Some(what))
}

impl<S: Saga> Controller for Machine<S> {
    type Wanted<'a> = Wanted<'a, S>;
    type Observed = Observed<S>;
    type Status = Progress;
    type Action = ActionOf<S>;
    type Prepared = ();
    type Decision = DecisionOf<S>;

    fn decide(wanted: &Wanted<'_, S>, observed: &Observed<S>, stored: &Progress, now: DateTime<Utc>) -> DecisionOf<S> {
        let facts = Facts {
            spec: wanted.spec,
            observed: &observed.of_steps,
            now,
        };
        let view = View {
            wanted,
            observed,
            stored,
            facts,
        };
        let (action, step) = view.decide();
        Decision {
            action,
            step,
            wake: now + RECHECK,
        }
    }

    fn status(
        _wanted: &Wanted<'_, S>,
        _observed: &Observed<S>,
        stored: &Progress,
        decision: &DecisionOf<S>,
        (): &(),
        now: DateTime<Utc>,
    ) -> Progress {
        let mut next = stored.clone();
        match &decision.action {
            Action::Wait(None) | Action::Do(..) => {}
            Action::Wait(Some(what)) => next.message = Some(format!("waiting for {what}")),
            Action::Begin(step) => {
                next.phase = Some(OperationPhase::Running);
                next.step = Some((*step).to_owned());
                next.start_time = next.start_time.or(Some(now));
                next.message = None;
            }
            Action::TakeBack(ending) => {
                next.undoing = Some(ending.clone());
                next.message = None;
            }
            Action::Enter(phase, why) => {
                next.phase = Some(*phase);
                next.message = Some(why.clone());
                next.completion_time = phase.is_final().then_some(now);
            }
        }
        next
    }

    fn due(stored: &Progress, next: &Progress, decision: &DecisionOf<S>) -> StatusWrite {
        match decision.action {
            Action::Begin(_) | Action::TakeBack(_) | Action::Enter(..) => StatusWrite::BeforeAction,
            Action::Wait(_) | Action::Do(..) if stored == next => StatusWrite::None,
            Action::Wait(_) | Action::Do(..) => StatusWrite::Debounced(STATUS_SETTLES),
        }
    }

    fn confirms(observed: &Observed<S>, action: &ActionOf<S>) -> bool {
        match action {
            Action::Do(_, action) => S::confirms(&observed.of_steps, action),
            Action::Wait(_) | Action::Begin(_) | Action::TakeBack(_) | Action::Enter(..) => false,
        }
    }
}

impl<A: Clone, T: Clone + Ord> Decided for Decision<A, T> {
    type Action = Action<A, T>;

    fn action(&self) -> &Action<A, T> {
        &self.action
    }

    fn wake(&self) -> DateTime<Utc> {
        self.wake
    }
}

impl<A: Clone, T: Clone + Ord> Effect for Action<A, T> {
    type Target = Target<T>;

    fn target(&self) -> Option<Target<T>> {
        match self {
            Action::Wait(_) => None,
            Action::Begin(_) | Action::TakeBack(_) | Action::Enter(..) => Some(Target::Status),
            Action::Do(target, _) => Some(Target::Of(target.clone())),
        }
    }

    fn writes_status(&self) -> bool {
        self.target() == Some(Target::Status)
    }

    fn status() -> Target<T> {
        Target::Status
    }
}

#[cfg(test)]
pub(crate) mod kit;
#[cfg(test)]
mod tests;
