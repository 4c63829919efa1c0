//! Quarantined data, which may have commits that exist nowhere else. Only the user can order its removal.

use super::facts::Context;
use super::{Action, Draft, OnBackoff, Rule, RuleKind, Verdict};
use crate::units::Millis;

/// Longest back-off between failed tries.
const RETRY: Millis = Millis::minutes(1);

pub(super) const DISCARD_KEPT: Rule = Rule {
    name: "discard-kept",
    family: "kept",
    what: "Removes quarantined data when the user names it.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: discard,
    on_backoff: OnBackoff::Yield,
};

fn discard(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let name = context.cluster()?.discard.as_ref()?;
    if !context.observed.kept.contains(name) || !context.is_free(&context.tasks().discard, RETRY, draft) {
        return None;
    }
    let name = name.clone();
    Verdict::new(
        Action::DiscardKept { name },
        "the user ordered the removal of data that is quarantined here",
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;

    #[test]
    fn only_the_quarantined_data_that_the_user_names_is_removed() {
        let mut observed = voter();
        observed.kept = ["2-0_3000060-1", "2-0_3000060-2"].map(str::to_owned).into();
        let mut decided = |named: Option<&str>| {
            cluster(&mut observed).discard = named.map(str::to_owned);
            decide(&observed, &settled(), BootTime(1_100)).action
        };
        assert_eq!(decided(None), Action::Wait);
        assert_eq!(
            decided(Some("2-0_3000060-3")),
            Action::Wait,
            "there is no such data here"
        );
        let name = "2-0_3000060-1".to_owned();
        assert_eq!(decided(Some(&name)), Action::DiscardKept { name });
    }
}
