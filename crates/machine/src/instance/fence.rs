//! The clock fence: a holder whose lease ran out, or went elsewhere, has stopped PostgreSQL before anybody may take it.

use std::borrow::Cow;

use super::context::{Context, Tenure};
use super::memo::Change;
use super::{Action, Draft, Rule, Stop, Stopping, Verdict};
use crate::timing::BootTime;

/// Part of the kill budget after which SIGQUIT is followed by SIGKILL. Backends answer SIGQUIT in milliseconds unless
/// they hang in the kernel, where nothing helps but SIGKILL.
const QUIT_PERCENT: u64 = 50;
/// Part of the kill budget after which the dead-man acts by itself. The rest is for the kernel to tear down the processes.
const DEAD_MAN_PERCENT: u64 = 75;
/// Distance between repeated SIGKILLs, in milliseconds.
const KILL_AGAIN: u64 = 100;

pub(super) const FENCE: Rule = Rule {
    name: "fence",
    family: "fence",
    what: "Stops PostgreSQL at once (SIGQUIT, then SIGKILL) when it may write and this run does not hold the lease.",
    protocol: &[22],
    decide: fence,
};

/// Stops whatever may write without the lease: SIGQUIT, then SIGKILL, whatever else is in flight.
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
    decide: stop_promoted,
};

/// Stops a standby that was promoted by hand, or by a promotion that was not seen to its end: nothing may be written but by
/// the holder of the lease, on the timeline that is reserved for it.
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
            let patience = match stopping.stop {
                Stop::Kill => KILL_AGAIN,
                Stop::Fast | Stop::Immediate => context.kill() * QUIT_PERCENT / 100,
            };
            let next = stopping.since.plus(patience);
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

/// When the dead-man must act: as long as something may write here, or is about to.
pub(super) fn dead_man(context: &Context, action: &Action) -> Option<BootTime> {
    // Backends that have outlived their postmaster write on.
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

/// Until when the lease is held, and something may be started for writing, unless it is renewed before; `None`: it is not.
pub fn held_until(observed: &super::Observed, now: BootTime) -> Option<BootTime> {
    Context::new(observed, now).held().map(|(_, until)| until)
}

/// From the fence deadline to the moment when the dead-man acts, in milliseconds.
pub(super) fn dead_man_delay(kill: u64) -> u64 {
    kill * DEAD_MAN_PERCENT / 100
}

#[cfg(test)]
mod tests;
