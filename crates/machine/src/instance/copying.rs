//! Copies of a member that is no longer the primary. `pg_rewind` and `pg_basebackup` have no time limit and end with
//! their connection. But the kernel of a stalled server keeps the connection alive, so they may never end.

use super::facts::Context;
use super::memo::Change;
use super::{Action, Draft, Memo, OnBackoff, Rule, RuleKind, Verdict, Work};
use crate::units::Millis;

/// How long another member must hold the lease before a copy of the former primary is cancelled. A former primary whose
/// agent works has stopped PostgreSQL by then, and the connection has ended.
const ENDS: Millis = Millis::seconds(10);

/// Remembers the source of a copy that is being made, and since when another member holds the lease.
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
    what: "Cancels a rewind or copy that does not end and whose source is no longer the primary.",
    protocol: &[17],
    kind: RuleKind::Act,
    decide: cancel,
    on_backoff: OnBackoff::Yield,
};

/// Cancels a copy of a former primary. Its leftovers are handled as after any failure.
fn cancel(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let since = draft.memo.copied.as_ref()?.since?;
    if !context.reached(since.plus(ENDS), draft) {
        return None;
    }
    // Only once: a second request would not end it sooner.
    Verdict::noting(
        Action::CancelCopy,
        "another member is the primary now, and the copy of the former primary does not end",
        [Change::Copies(None)],
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;

    #[test]
    fn a_copy_of_a_replaced_primary_is_cancelled_once() {
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
            assert_ne!(rule(&vacant, &begun.memo, 600_000), "cancel-copy", "no other member is");
            record(&mut observed).holder.as_mut().unwrap().incarnation.member = third();
            let seen = decide(&observed, &begun.memo, BootTime(2_000));
            assert_eq!(seen.memo.copied.as_ref().unwrap().since, Some(BootTime(2_000)));
            assert_ne!(rule(&observed, &seen.memo, 2_000 + ENDS.0 - 1), "cancel-copy");
            let late = decide(&observed, &seen.memo, BootTime(2_000).plus(ENDS));
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
