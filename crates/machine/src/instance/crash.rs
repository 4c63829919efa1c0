//! PostgreSQL ended by itself: what is left of it is killed, and it is started again, soon at first.

use super::context::Context;
use super::memo::Change;
use super::{Action, Draft, Memo, Observed, Process, Rule, Stop, Stopping, Verdict};
use crate::protocol::FAULT_ENDS;

/// A PostgreSQL that ran this long (in milliseconds) before it ended starts a new count.
const STABLE: u64 = 60_000;
/// Distance between the second and the third start, in milliseconds; doubles. The first restart is immediate: one crash
/// says nothing about the next, and every millisecond is an outage.
const FIRST_BACKOFF: u64 = 200;
/// Longest distance, in milliseconds.
const LONGEST_BACKOFF: u64 = 10_000;
/// Distance between repeated kills, in milliseconds.
const KILL_AGAIN: u64 = 100;
/// Longest wait between failed starts, in milliseconds.
const START_RETRY: u64 = 5_000;
/// So many ends in a row are reported as a fault.
const MANY: u32 = 3;

/// Counts an end of PostgreSQL that is not counted yet.
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
    decide: kill_strays,
};

/// Kills PostgreSQL processes that have outlived their postmaster: they may still write, and hold the shared memory.
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

/// PostgreSQL may be started now.
pub(super) fn may_start(context: &Context, draft: &mut Draft) -> bool {
    if !context.at_rest() || !context.knows_data() {
        return false;
    }
    let Some(free) = context.tasks().start.free_at(START_RETRY) else {
        return false;
    };
    let backoff = match draft.memo.crashes {
        0 | 1 => 0,
        crashes => (FIRST_BACKOFF << (crashes - 2).min(16)).min(LONGEST_BACKOFF),
    };
    let at = draft.memo.last_exit.map_or(free, |exit| free.max(exit.plus(backoff)));
    context.reached(at, draft)
}

/// PostgreSQL does not stay up, in words; until it has stayed up for some time.
pub(super) fn fault(context: &Context, memo: &Memo) -> Option<String> {
    let stays = memo
        .last_exit
        .is_none_or(|exit| context.now >= exit.plus(STABLE) && context.running().is_some());
    (memo.crashes >= MANY && !stays)
        .then(|| format!("{FAULT_ENDS} {} times in a row, soon after its start", memo.crashes))
}

#[cfg(test)]
mod tests;
