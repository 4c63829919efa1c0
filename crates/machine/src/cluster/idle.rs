//! The ends of the list: a database that the user has paused, and one for which nothing is left to do.

use std::borrow::Cow;

use api::status::WaitReason;

use super::action::Action;
use super::decision::Step;
use super::facts::Facts;
use super::phase::ready;
use super::rule::{CORRECT, OnBackoff, Proposal, Rule, RuleKind};
use super::wait::{WaitKey, Waiting};

/// See [`Rule::what`].
pub const PAUSED: Rule = Rule {
    name: "paused",
    family: "rest",
    what: "With spec.paused nothing is changed, except that a deletion goes on.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: paused,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const IDLE: Rule = Rule {
    name: "rest",
    family: "rest",
    what: "Nothing is left to do.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: |facts| Some(rest(facts)),
    on_backoff: OnBackoff::Hold,
};

fn paused(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.spec.paused {
        return None;
    }
    Proposal::wait(
        facts,
        Step::Paused,
        WaitReason::Unpause,
        "spec.paused to be false",
        "the user",
    )
}

/// The wait of a database that is as it should be.
pub(super) fn rest(facts: &Facts<'_>) -> Proposal {
    let resting = ready(facts);
    let (key, what, who): (WaitKey, Cow<'static, str>, _) = match facts.observed.unreadable.first() {
        _ if resting => (WaitReason::Change.into(), "a change".into(), "the user"),
        None => (
            WaitReason::ObjectReading.into(),
            "what could not be read yet".into(),
            "the API server",
        ),
        Some(object) => (object.wait_key(), object.to_string().into(), CORRECT),
    };
    let waiting = Waiting {
        since: facts.waiting_since(&key),
        reason: key.reason,
        object: key.object,
        actor: key.reason.actor(),
        what,
        who_can_end_it: who.into(),
        deadline: None,
        resting,
        late: Vec::new(),
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
