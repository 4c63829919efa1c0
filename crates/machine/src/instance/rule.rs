//! Decision rules as data. The order of [`super::RULES`] is the order of importance.

use std::borrow::Cow;

pub use crate::reconcile::{OnBackoff, RuleKind};

use super::action::Action;
use super::draft::Draft;
use super::facts::Context;
use super::memo::Change;

/// A decision rule of the instance machine. While its action backs off after a failure it decides nothing, so all of
/// them yield.
pub type Rule = crate::reconcile::Rule<Decide>;
/// How a decision rule decides. `None`: it does not apply. Then its only effect is the time of the next decision.
pub type Decide = fn(&Context<'_>, &mut Draft<'_>) -> Option<Verdict>;

/// What a decision rule decides.
pub struct Verdict {
    pub(super) action: Action,
    pub(super) because: Cow<'static, str>,
    /// What to remember of it. A decision rule that decides nothing changes nothing.
    pub(super) changes: Vec<Change>,
}

impl Verdict {
    pub(super) fn of(action: Action, because: impl Into<Cow<'static, str>>) -> Self {
        Self {
            action,
            because: because.into(),
            changes: Vec::new(),
        }
    }
    pub(super) fn new(action: Action, because: impl Into<Cow<'static, str>>) -> Option<Self> {
        Some(Self::of(action, because))
    }
    /// The same, with `changes` to remember.
    pub(super) fn noting(
        action: Action,
        because: impl Into<Cow<'static, str>>,
        changes: impl Into<Vec<Change>>,
    ) -> Option<Self> {
        Some(Self {
            action,
            because: because.into(),
            changes: changes.into(),
        })
    }
    /// The same verdict, with one more change to remember.
    pub(super) fn and(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }
    pub(super) fn wait(because: impl Into<Cow<'static, str>>) -> Option<Self> {
        Self::new(Action::Wait, because)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::RULES;

    #[test]
    fn rules_have_names_in_kebab_case_and_short_texts() {
        let names: BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(names.len(), RULES.len(), "two decision rules have the same name");
        for rule in RULES {
            let is_kebab = |letter: char| letter.is_ascii_lowercase() || letter == '-';
            assert!(rule.name.chars().all(is_kebab), "{}", rule.name);
            assert!(rule.what.split_whitespace().count() <= 30, "{}", rule.name);
            assert!(rule.what.ends_with('.'), "{}", rule.name);
        }
    }

    #[test]
    fn rules_name_numbers_of_the_protocol_in_order() {
        for rule in RULES {
            let known = rule.protocol.iter().all(|number| (1..=24).contains(number));
            assert!(known && rule.protocol.is_sorted(), "{}", rule.name);
        }
    }
}
