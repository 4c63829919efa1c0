//! Rules as data: the order of this list is the order of importance.

use std::borrow::Cow;
use std::fmt;

use chrono::{DateTime, Utc};

use super::action::{Action, Waiting};
use super::decision::{Because, Step};
use super::facts::Facts;

/// Who can end the wait for an object that cannot be read.
pub(super) const CORRECT: &str = "the user, by correcting that object";

/// One rule.
pub struct Rule {
    /// Its name, in logs, metrics and the documentation.
    pub name: &'static str,
    /// The family (file) that it belongs to.
    pub family: &'static str,
    /// What it does, in a sentence for the documentation.
    pub what: &'static str,
    /// Whether it applies, and if so, what to do: one function, so that the two cannot disagree.
    pub propose: fn(&Facts<'_>) -> Option<Proposal>,
    /// While its action rests after a failure, the rules behind it may go on.
    pub passable: bool,
}

/// What a rule proposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The step that it belongs to; `None` for a database that is as it should be.
    pub step: Option<Step>,
    /// What to do.
    pub action: Action,
    /// The fact behind it.
    pub because: Because,
    /// When to decide again at the latest, if that is before the usual time.
    pub wake: Option<DateTime<Utc>>,
}

impl Proposal {
    /// Do `action`.
    pub(super) fn act(step: Step, action: Action, because: impl Into<Because>) -> Option<Self> {
        Some(Self {
            step: Some(step),
            action,
            because: because.into(),
            wake: None,
        })
    }

    /// Wait for `what`, which `who` can end.
    pub(super) fn wait(
        facts: &Facts<'_>,
        step: Step,
        what: impl Into<Cow<'static, str>>,
        who: impl Into<Cow<'static, str>>,
    ) -> Option<Self> {
        let what = what.into();
        let waiting = Waiting {
            what: what.clone(),
            since: facts.waiting_since(&what),
            who_can_end_it: who.into(),
            deadline: None,
            resting: false,
        };
        Some(Self {
            step: Some(step),
            action: Action::Wait(waiting),
            because: Because(what),
            wake: None,
        })
    }

    /// Wait until `what` is known: for the API server, or for the user where an object cannot be read.
    pub(super) fn unread(facts: &Facts<'_>, step: Step, what: impl fmt::Display) -> Option<Self> {
        match facts.observed.unreadable.first() {
            None => Self::wait(facts, step, format!("{what} to be read"), "the API server"),
            Some(object) => Self::wait(facts, step, object.to_string(), CORRECT),
        }
    }

    /// The same, with the time when something else is done.
    pub(super) fn until(mut self, deadline: DateTime<Utc>) -> Self {
        if let Action::Wait(waiting) = &mut self.action {
            waiting.deadline = Some(deadline);
        }
        self.wake = Some(deadline);
        self
    }

    /// The same, looked at again at `wake`.
    pub(super) fn looking_again(mut self, wake: DateTime<Utc>) -> Self {
        self.wake = Some(wake);
        self
    }

    /// The same, looked at again at `wake` if that is sooner.
    pub(super) fn looking_again_by(mut self, wake: Option<DateTime<Utc>>) -> Self {
        self.wake = self.wake.into_iter().chain(wake).min();
        self
    }
}
