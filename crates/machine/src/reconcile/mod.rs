//! The reconcile kernel: what happens around a decision, the same for every kind of resource. It has no I/O and no clock.
//!
//! A [`Controller`] is the machine of one kind: its rules, its status, its actions. A [`Pass`] is what its executor
//! remembers of one resource between two decisions: failures and when to try again, what is known to be outdated, since
//! when the status differs. An executor, in the operator or in a simulator, does this, again and again:
//!
//! 1. observe, and tell the pass which version of everything it knows ([`Pass::begin`]);
//! 2. [`Controller::decide`];
//! 3. prepare what the status needs from outside ([`Controller::Prepared`], such as signed certificates), and ask
//!    [`Pass::next`] what to do: write the status, read once more what the action relies on, carry it out, or sleep;
//! 4. tell the pass what came of it ([`Pass::succeeded`], [`Pass::failed`]).
//!
//! The status is written before the action, because it holds what the action relies on.

mod fault;
mod object;
mod pass;
mod rule;

use chrono::{DateTime, Utc};
use std::time::Duration;

pub use fault::{Fault, FaultKind, retry_at};
pub use object::ObjectVersion;
pub use pass::{AFTER_FAILURE, Changed, MAX_STATUS_WRITES, MAX_STEPS, Next, Pass, SHORTEST_WAIT};
pub use rule::{OnBackoff, Rule, RuleKind};

/// The machine of one kind of resource. All functions are total, deterministic and without effect.
pub trait Controller {
    /// What the user wants.
    type Wanted<'a>;
    /// What is observed.
    type Observed;
    /// `status` of the resource.
    type Status: Clone + Default + PartialEq;
    /// What can be done.
    type Action: Effect;
    /// What the executor adds to a status that asks for it.
    type Prepared: Default;
    /// The result of a decision.
    type Decision: Decided<Action = Self::Action>;

    /// What to do next. `stored` is the status as it is stored.
    fn decide(
        wanted: &Self::Wanted<'_>,
        observed: &Self::Observed,
        stored: &Self::Status,
        now: DateTime<Utc>,
    ) -> Self::Decision;

    /// The whole status after `decision`. Computed again from the same input it is equal, so that a resource at rest
    /// causes no write.
    fn status(
        wanted: &Self::Wanted<'_>,
        observed: &Self::Observed,
        stored: &Self::Status,
        decision: &Self::Decision,
        prepared: &Self::Prepared,
        now: DateTime<Utc>,
    ) -> Self::Status;

    /// When `next` has to be written, given what is stored.
    fn due(stored: &Self::Status, next: &Self::Status, decision: &Self::Decision) -> StatusWrite;

    /// Whether the executor must read once more, from the API server itself, what the decision for `action` relies on, before
    /// it carries it out: so it is for all that takes something away.
    fn confirms(observed: &Self::Observed, action: &Self::Action) -> bool;
}

/// The result of a decision, as far as the kernel reads it.
pub trait Decided {
    /// What can be done.
    type Action: Effect;
    /// The one effect.
    fn action(&self) -> &Self::Action;
    /// When to decide again, even if nothing changes.
    fn wake(&self) -> DateTime<Utc>;
}

/// One effect, as far as the kernel reads it.
pub trait Effect {
    /// What actions are done to: the key of failures.
    type Target: Clone + Ord;
    /// What this is done to; `None`: nothing is done now.
    fn target(&self) -> Option<Self::Target>;
    /// Whether it is a write of the status.
    fn writes_status(&self) -> bool;
    /// The target of all writes of the status.
    fn status() -> Self::Target;
}

/// When a computed status has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrite {
    /// Before the decision's action.
    BeforeAction,
    /// When it has been due for this long: only what people look at differs (counts, readiness, texts), and it may still
    /// be changing.
    Debounced(Duration),
    /// It is as stored, or there is nowhere to write it.
    None,
}

/// What only people look at is written when it has differed for this long: a creation passes through a dozen such
/// states in a few seconds, and each write is one more for everybody who watches.
pub const STATUS_SETTLES: Duration = Duration::from_secs(3);
