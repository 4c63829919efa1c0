//! The clock fence (protocol.md rule 24): a holder whose lease ran out or was lost to another run has stopped
//! PostgreSQL before any member may take the lease.

use std::borrow::Cow;

use super::facts::{Context, Tenure};
use super::memo::Change;
use super::{Action, Draft, OnBackoff, Rule, RuleKind, Stop, Stopping, Verdict};
use crate::timing::BootTime;
use crate::units::Millis;

/// Percentage of the kill time after which SIGKILL follows SIGQUIT. Backends end on SIGQUIT within milliseconds unless
/// they hang in the kernel, where only SIGKILL helps.
const QUIT_PERCENT: u64 = 50;
/// Percentage of the kill time after which the dead-man acts. The remaining time is for the kernel to end the
/// processes.
const DEAD_MAN_PERCENT: u64 = 75;
/// Interval between repeated SIGKILLs.
const KILL_AGAIN: Millis = Millis(100);

pub(super) const FENCE: Rule = Rule {
    name: "fence",
    family: "fence",
    what: "Stops PostgreSQL at once (SIGQUIT, then SIGKILL) when it may write and this run does not hold the lease.",
    protocol: &[22, 24],
    kind: RuleKind::Act,
    decide: fence,
    on_backoff: OnBackoff::Yield,
};

/// Uses SIGQUIT, then SIGKILL, whatever else is in flight.
fn fence(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if !context.writable() {
        return None;
    }
    let because = match context.tenure() {
        Tenure::Held { .. } => return None,
        Tenure::Lapsed | Tenure::Unknown => "the lease was not renewed in time: PostgreSQL is stopped at once",
        Tenure::Other(_) => "another member holds the lease: PostgreSQL is stopped at once",
        Tenure::OwnBefore(_) => "the Lease names another run on this volume: PostgreSQL is stopped at once",
        Tenure::Vacant => "the Lease names no holder: PostgreSQL is stopped at once",
    };
    stop_now(context, draft, because)
}

pub(super) const STOP_PROMOTED: Rule = Rule {
    name: "stop-promoted",
    family: "fence",
    what: "Stops a standby at once when it has left recovery without a promotion by this agent.",
    protocol: &[14],
    kind: RuleKind::Act,
    decide: stop_promoted,
    on_backoff: OnBackoff::Yield,
};

/// Stops a standby that was promoted by hand, or whose promotion was not proven complete. Only the holder of the lease
/// may write, and only on the timeline that is reserved for it.
fn stop_promoted(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if !context.promoted_standby() {
        return None;
    }
    stop_now(
        context,
        draft,
        "the standby left recovery without a promotion that was proven: PostgreSQL is stopped at once",
    )
}

/// SIGQUIT, then SIGKILL again and again.
pub(super) fn stop_now(context: &Context, draft: &mut Draft, because: impl Into<Cow<'static, str>>) -> Option<Verdict> {
    let now = context.now;
    let quit = draft.memo.stopping.filter(|stopping| stopping.stop >= Stop::Immediate);
    let stop = match quit {
        None => Stop::Immediate,
        Some(stopping) => {
            let limit = match stopping.stop {
                Stop::Kill => KILL_AGAIN,
                Stop::Fast | Stop::Immediate => context.kill().percent(QUIT_PERCENT),
            };
            let next = stopping.since.plus(limit);
            if now < next {
                draft.wake(next);
                return None;
            }
            Stop::Kill
        }
    };
    draft.wake(now.plus(KILL_AGAIN));
    let stopping = Stopping { stop, since: now };
    Verdict::noting(Action::Stop(stop), because, [Change::Stops(stopping)])
}

/// When the dead-man must act: set while something writes here or is about to.
pub(super) fn dead_man(context: &Context, action: &Action) -> Option<BootTime> {
    // Backends that have outlived their postmaster still write.
    let about_to_write = context.writable()
        || context.observed.postgres.strays > 0
        || matches!(action, Action::StartPrimary { .. } | Action::Promote { .. });
    let deadline = || {
        context
            .fence_at()
            .unwrap_or(context.now)
            .plus(dead_man_delay(context.kill()))
    };
    about_to_write.then(deadline)
}

/// Until when this run may start something for writing, unless the lease is renewed before; `None`: it does not hold
/// the lease.
pub fn held_until(observed: &super::Observed, now: BootTime) -> Option<BootTime> {
    Context::new(observed, now).held().map(|(_, until)| until)
}

/// Time from the fence deadline to the moment when the dead-man acts.
pub(super) fn dead_man_delay(kill: Millis) -> Millis {
    kill.percent(DEAD_MAN_PERCENT)
}

#[cfg(test)]
mod tests;
