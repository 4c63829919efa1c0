//! PostgreSQL ended without being asked to: processes that are left are killed, and it is started again, the first time
//! at once.

use super::facts::Context;
use super::memo::Change;
use super::{Action, Draft, Memo, Observed, OnBackoff, Process, Rule, RuleKind, Stop, Stopping, Verdict};
use crate::protocol::FAULT_ENDS;
use crate::units::Millis;

/// A PostgreSQL that ran this long before it ended starts a new count.
const STABLE: Millis = Millis::minutes(1);
/// Time between the second and the third start; it doubles. The first restart is immediate, because a single crash does
/// not predict another and every millisecond is an outage.
const FIRST_BACKOFF: Millis = Millis(200);
/// Longest time between starts.
const LONGEST_BACKOFF: Millis = Millis::seconds(10);
/// Interval between repeated kills.
const KILL_AGAIN: Millis = Millis(100);
/// Longest back-off between failed starts.
const START_RETRY: Millis = Millis::seconds(5);
/// This many ends in a row are reported as a fault.
const MANY: u32 = 3;

/// Counts the last end of PostgreSQL, unless it is counted already.
pub(super) fn count(observed: &Observed, mut memo: Memo) -> Memo {
    let Process::Stopped { exit: Some(exit) } = observed.postgres.process else {
        return memo;
    };
    if memo.last_exit == Some(exit.at) {
        return memo;
    }
    memo.last_exit = Some(exit.at);
    memo.crashes = match (exit.asked, exit.ran >= STABLE) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => memo.crashes.saturating_add(1),
    };
    memo
}

pub(super) const KILL_STRAYS: Rule = Rule {
    name: "kill-strays",
    family: "crash",
    what: "Kills PostgreSQL processes that have outlived their postmaster: they could still write.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: kill_strays,
    on_backoff: OnBackoff::Yield,
};

fn kill_strays(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let orphaned = context.running().is_none() && context.starting().is_none() && context.observed.postgres.strays > 0;
    if !orphaned {
        return None;
    }
    if let Some(stopping) = draft.memo.stopping.filter(|stopping| stopping.stop == Stop::Kill) {
        let next = stopping.since.plus(KILL_AGAIN);
        if !context.reached(next, draft) {
            return None;
        }
    }
    draft.wake(context.now.plus(KILL_AGAIN));
    let stopping = Stopping {
        stop: Stop::Kill,
        since: context.now,
    };
    Verdict::noting(
        Action::Stop(Stop::Kill),
        "PostgreSQL processes have outlived their postmaster",
        [Change::Stops(stopping)],
    )
}

/// True if PostgreSQL may be started now.
pub(super) fn may_start(context: &Context, draft: &mut Draft) -> bool {
    if !context.at_rest() || !context.knows_data() {
        return false;
    }
    let Some(free) = context.tasks().start.free_at(START_RETRY) else {
        return false;
    };
    let backoff = match draft.memo.crashes {
        0 | 1 => Millis::ZERO,
        crashes => FIRST_BACKOFF.doubled(crashes - 2, LONGEST_BACKOFF),
    };
    let at = draft.memo.last_exit.map_or(free, |exit| free.max(exit.plus(backoff)));
    context.reached(at, draft)
}

/// The fault text of a PostgreSQL that does not stay up; `None` once it has stayed up for some time.
pub(super) fn fault(context: &Context, memo: &Memo) -> Option<String> {
    let stays = memo
        .last_exit
        .is_none_or(|exit| context.now >= exit.plus(STABLE) && context.running().is_some());
    (memo.crashes >= MANY && !stays)
        .then(|| format!("{FAULT_ENDS} {} times in a row, soon after its start", memo.crashes))
}

#[cfg(test)]
mod tests;
