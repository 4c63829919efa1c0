//! Data that was set aside and kept, since it may have commits that nobody else has: it goes on the user's word.

use super::context::Context;
use super::{Action, Draft, Rule, Verdict};

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 60_000;

pub(super) const DISCARD_KEPT: Rule = Rule {
    name: "discard-kept",
    family: "kept",
    what: "Removes data that was moved aside and kept, when the user names it.",
    protocol: &[],
    decide: discard,
};

/// Removes what the user names, if it is here.
fn discard(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let name = context.cluster()?.discard.as_ref()?;
    if !context.observed.kept.contains(name) || !context.is_free(&context.tasks().discard, RETRY, draft) {
        return None;
    }
    let name = name.clone();
    Verdict::new(
        Action::DiscardKept { name },
        "the user lets go of data that was set aside here",
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;

    #[test]
    fn kept_data_goes_when_the_user_names_it_and_nothing_else_does() {
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
