//! The ends of the list: a database that the user has paused, and one for which nothing is left to do.

use std::borrow::Cow;

use super::action::{Action, Waiting};
use super::decision::Step;
use super::facts::Facts;
use super::phase::ready;
use super::rule::{CORRECT, Proposal, Rule};

/// See [`Rule::what`].
pub const PAUSED: Rule = Rule {
    name: "paused",
    family: "rest",
    what: "With spec.paused nothing is changed, except that a deletion goes on.",
    propose: paused,
    passable: false,
};

/// See [`Rule::what`].
pub const REST: Rule = Rule {
    name: "rest",
    family: "rest",
    what: "Nothing is left to do.",
    propose: |facts| Some(rest(facts)),
    passable: false,
};

fn paused(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.spec.paused {
        return None;
    }
    Proposal::wait(facts, Step::Paused, "spec.paused to be false", "the user")
}

/// The wait of a database that is as it should be.
pub(super) fn rest(facts: &Facts<'_>) -> Proposal {
    let resting = ready(facts);
    let (what, who): (Cow<'static, str>, _) = match facts.observed.unreadable.first() {
        _ if resting => ("a change".into(), "the user"),
        None => ("what could not be read yet".into(), "the API server"),
        Some(object) => (object.to_string().into(), CORRECT),
    };
    let waiting = Waiting {
        since: facts.waiting_since(&what),
        what,
        who_can_end_it: who.into(),
        deadline: None,
        resting,
    };
    let because = if resting {
        "everything is as it should be"
    } else {
        "not everything could be read yet"
    };
    Proposal {
        step: None,
        action: Action::Wait(waiting),
        because: because.into(),
        wake: None,
    }
}
