//! Rules as data: the order of this list is the order of importance.

pub use crate::reconcile::{OnBackoff, RuleKind};

use std::borrow::Cow;
use std::fmt;

use api::status::{LateObject, RequestOutcome, WaitActor, WaitReason};
use chrono::{DateTime, Utc};

use super::action::{Action, StatusChange};
use super::decision::{Because, Step};
use super::facts::Facts;
use super::wait::{Lack, WaitKey, Waiting};

/// Who can end the wait for an object that cannot be read.
pub(super) const CORRECT: &str = "the user, by correcting that object";

/// One rule.
pub type Rule = crate::reconcile::Rule<fn(&Facts<'_>) -> Option<Proposal>>;

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

    /// Wait for what `key` names. `what` and `who` say the same to people: what is waited for, and how that can be ended.
    pub(super) fn wait(
        facts: &Facts<'_>,
        step: Step,
        key: impl Into<WaitKey>,
        what: impl Into<Cow<'static, str>>,
        who: impl Into<Cow<'static, str>>,
    ) -> Option<Self> {
        let (key, what) = (key.into(), what.into());
        let waiting = Waiting {
            since: facts.waiting_since(&key),
            reason: key.reason,
            object: key.object,
            actor: key.reason.actor(),
            what: what.clone(),
            who_can_end_it: who.into(),
            deadline: None,
            resting: false,
            late: Vec::new(),
        };
        Some(Self {
            step: Some(step),
            action: Action::Wait(waiting),
            because: Because(what),
            wake: None,
        })
    }

    /// Wait for several objects, each with a time of its own. The one that has been late longest is named in the status, and
    /// the first of them if there are several.
    pub(super) fn wait_for_all(
        facts: &Facts<'_>,
        step: Step,
        keys: impl Iterator<Item = WaitKey>,
        what: impl Into<Cow<'static, str>>,
        who: impl Into<Cow<'static, str>>,
    ) -> Option<Self> {
        let late = facts.late(keys);
        let longest = late.iter().min_by_key(|late| late.since)?;
        let key = WaitKey {
            reason: longest.reason,
            object: Some(longest.object.clone()),
        };
        Some(Self::wait(facts, step, key, what, who)?.among(late))
    }

    /// Wait for what a pod lacks.
    pub(super) fn lack(facts: &Facts<'_>, step: Step, lack: Lack) -> Option<Self> {
        Some(Self::wait(facts, step, lack.key, lack.what, lack.who)?.by(lack.actor))
    }

    /// The same wait, which this actor can end.
    pub(super) fn by(mut self, actor: WaitActor) -> Self {
        if let Action::Wait(waiting) = &mut self.action {
            waiting.actor = actor;
        }
        self
    }

    /// The same wait, for one of these late objects.
    pub(super) fn among(mut self, late: Vec<LateObject>) -> Self {
        if let Action::Wait(waiting) = &mut self.action {
            waiting.late = late;
        }
        self
    }

    /// Wait until `what` is known: for the API server, or for the user where an object cannot be read.
    pub(super) fn unread(facts: &Facts<'_>, step: Step, what: impl fmt::Display) -> Option<Self> {
        match facts.observed.unreadable.first() {
            None => {
                let what = format!("{what} to be read");
                Self::wait(facts, step, WaitReason::ObjectReading, what, "the API server")
            }
            Some(object) => Self::wait(facts, step, object.wait_key(), object.to_string(), CORRECT),
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

/// What becomes of an open request now.
pub(super) enum Progress {
    /// It ends so, for this reason.
    Ends(RequestOutcome, String),
    /// This changes in the status, for this reason.
    Changes(StatusChange, String),
}

#[cfg(test)]
mod tests {
    use super::super::RULES;

    #[test]
    fn each_line_of_a_rule_has_at_most_30_words() {
        for rule in RULES {
            for (number, line) in rule.what.lines().enumerate() {
                let words = line.trim_start_matches("- ").split_whitespace().count();
                assert!((1..=30).contains(&words), "{}: {words} words: {line}", rule.name);
                assert_eq!(line.starts_with("- "), number > 0, "{}: {line}", rule.name);
                assert!(line.ends_with(['.', ')']), "{}: {line}", rule.name);
            }
        }
    }
}
