//! Copies of a primary that is none any more. `pg_rewind` and `pg_basebackup` take as long as they take and end with their
//! connection; but a kernel answers for processes that stand still, and then that does not end.

use super::context::Context;
use super::memo::Change;
use super::{Action, Draft, Memo, Rule, Verdict, Work};
use crate::protocol::MemberId;
use crate::timing::BootTime;

/// For so long another member has the lease before a copy of the one before is given up, in milliseconds: if that one lives, its
/// agent has stopped its PostgreSQL by then, and the connection has ended.
const ENDS: u64 = 10_000;

/// A copy is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Of whom.
    pub member: MemberId,
    /// Since when another one has the lease.
    pub since: Option<BootTime>,
}

impl Copied {
    /// A copy of this primary is begun.
    pub(super) fn of(member: &MemberId) -> Self {
        Self {
            member: member.clone(),
            since: None,
        }
    }
}

/// Of whom a copy is being made, if one is, and since when that is not the holder.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let runs = matches!(context.tasks().volume.running, Some(Work::Rewind | Work::Clone));
    let holder = context.record().and_then(|record| record.holder.as_ref());
    memo.copied = memo.copied.take().filter(|_| runs);
    if let (Some(copied), Some(holder)) = (&mut memo.copied, holder) {
        let other = holder.incarnation.member != copied.member;
        copied.since = copied.since.or(Some(context.now)).filter(|_| other);
    }
}

pub(super) const CANCEL_COPY: Rule = Rule {
    name: "cancel-copy",
    family: "copying",
    what: "Cancels a rewind or copy whose source is no longer the primary and that does not end.",
    protocol: &[17],
    decide: cancel,
};

/// Ends a copy of a member that another one has followed as primary. What it has left is dealt with as after any failure.
fn cancel(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let since = draft.memo.copied.as_ref()?.since?;
    if !context.reached(since.plus(ENDS), draft) {
        return None;
    }
    // Once: it ends when it ends.
    Verdict::noting(
        Action::CancelCopy,
        "another member is the primary by now, and the copy of the one before does not end",
        [Change::Copies(None)],
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;

    #[test]
    fn a_copy_of_a_primary_that_was_replaced_is_given_up_once() {
        let rewinding = || {
            let mut observed = left_behind(standby(), 0x101, true);
            observed.tasks.report.running = Some(Work::Report);
            observed
        };
        for (mut observed, work) in [(rewinding(), Work::Rewind), (cloning(), Work::Clone)] {
            let begun = decide(&observed, &settled(), BootTime(1_200));
            assert_eq!(begun.action.work(), Some(work));
            let source = record(&mut observed).holder.clone().unwrap().incarnation.member;
            assert_eq!(begun.memo.copied, Some(Copied::of(&source)));
            observed.tasks.volume.running = Some(work);
            observed.tasks.report.running = Some(Work::Report);
            let rule = |observed: &Observed, memo: &Memo, now: u64| decide(observed, memo, BootTime(now)).rule;
            assert_ne!(
                rule(&observed, &begun.memo, 600_000),
                "cancel-copy",
                "it is the primary"
            );
            let mut vacant = observed.clone();
            record(&mut vacant).holder = None;
            assert_ne!(rule(&vacant, &begun.memo, 600_000), "cancel-copy", "nobody else is");
            record(&mut observed).holder.as_mut().unwrap().incarnation.member = third();
            let seen = decide(&observed, &begun.memo, BootTime(2_000));
            assert_eq!(seen.memo.copied.as_ref().unwrap().since, Some(BootTime(2_000)));
            assert_ne!(rule(&observed, &seen.memo, 2_000 + ENDS - 1), "cancel-copy");
            let late = decide(&observed, &seen.memo, BootTime(2_000 + ENDS));
            assert_eq!(late.action, Action::CancelCopy);
            assert_ne!(rule(&observed, &late.memo, 600_000), "cancel-copy", "once");
            let mut again = observed.clone();
            record(&mut again).holder.as_mut().unwrap().incarnation.member = source;
            let again = decide(&again, &seen.memo, BootTime(3_000));
            assert_eq!(again.memo.copied.unwrap().since, None, "it is the primary again");
            observed.tasks.volume.running = None;
            assert_eq!(
                decide(&observed, &seen.memo, BootTime(60_000))
                    .memo
                    .copied
                    .and_then(|copied| copied.since),
                None
            );
        }
    }
}
