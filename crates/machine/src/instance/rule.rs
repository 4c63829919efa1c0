//! Rules as data: the order of [`super::RULES`] is the order of importance.

use std::borrow::Cow;

use super::context::Context;
use super::memo::Change;
use super::{Action, Memo};
use crate::timing::BootTime;

/// A rule of the machine.
pub struct Rule {
    /// Its name, in logs and the documentation.
    pub name: &'static str,
    /// The family (file) that it belongs to.
    pub family: &'static str,
    /// What it does, in a sentence for the documentation.
    pub what: &'static str,
    /// The rules of the failover protocol that it carries out, by number (docs/protocol.md).
    pub protocol: &'static [u8],
    /// Whether it applies, and if so, what to do: one function, so that the two cannot disagree.
    pub(super) decide: fn(&Context, &mut Draft) -> Option<Verdict>,
}

/// What a rule decides.
pub(super) struct Verdict {
    pub(super) action: Action,
    pub(super) because: Cow<'static, str>,
    /// What is to be remembered of it. A rule that decides nothing changes nothing.
    pub(super) changes: Vec<Change>,
}

/// What rules read beside the observation, and when they ask for another decision.
pub(super) struct Draft<'a> {
    pub(super) memo: &'a Memo,
    pub(super) wake: Option<BootTime>,
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
    /// The same; `changes` are to be remembered of it.
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
    /// The same verdict; `change` is to be remembered of it, too.
    pub(super) fn and(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }
    pub(super) fn wait(because: impl Into<Cow<'static, str>>) -> Option<Self> {
        Self::new(Action::Wait, because)
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(memo: &'a Memo) -> Self {
        Self { memo, wake: None }
    }
    /// Asks for another decision at `at`.
    pub(super) fn wake(&mut self, at: BootTime) {
        self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::RULES;

    #[test]
    fn rules_have_names_in_kebab_case_and_short_texts() {
        let names: BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(names.len(), RULES.len(), "two rules have one name");
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
            let known = rule.protocol.iter().all(|number| (1..=22).contains(number));
            assert!(known && rule.protocol.is_sorted(), "{}", rule.name);
        }
    }
}
