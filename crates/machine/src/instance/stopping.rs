//! Why this instance must stop, and how its PostgreSQL is asked to. The stop is escalated if it takes too long.

use std::borrow::Cow;

use super::action::{Action, Stop};
use super::draft::Draft;
use super::facts::{Context, Tenure};
use super::memo::{Change, Memo, Stopping};
use super::rule::Verdict;
use crate::units::Millis;

/// How long a fast stop may take before SIGQUIT. It waits for the shutdown checkpoint, and for standbys to receive it;
/// 20 s of the container's grace are more than either needs, and leave time for the rest.
pub(super) const LIMIT: Millis = Millis::seconds(20);
/// How much of that time may be spent on waiting for standbys. A stop is clean even if no standby has the last record.
pub(super) const LAST: Millis = Millis::seconds(15);
/// How long SIGQUIT may take before SIGKILL: the postmaster itself sends SIGKILL after 5 s.
const QUIT_LIMIT: Millis = Millis::seconds(6);

/// Why this instance must stop, if it must.
pub(super) fn why(context: &Context) -> Option<&'static str> {
    if context.observed.terminating {
        Some("the container is asked to end")
    } else if context.stop_intended() {
        Some("all instances must stop")
    } else if context.fenced() {
        Some("spec.fenced names this instance")
    } else {
        None
    }
}

/// True if the lease should be released now: this instance stops on purpose, and no process of PostgreSQL lives
/// (invariant 6).
pub(super) fn may_release(context: &Context, draft: &Draft) -> bool {
    let ours = matches!(context.tenure(), Tenure::Held { .. } | Tenure::Lapsed);
    let stops = why(context).is_some() || draft.memo.handing_over.is_some();
    ours && stops && !context.alive()
}

/// True if PostgreSQL is stopping as planned, within its time for that.
pub(super) fn is_stopping_fast(context: &Context, memo: &Memo) -> bool {
    let fast = memo.stopping.filter(|stopping| stopping.stop == Stop::Fast);
    fast.is_some_and(|stopping| context.now < stopping.since.plus(LIMIT))
}

/// Asks PostgreSQL to stop, and escalates if that takes too long. `None` while there is only waiting to do.
pub(super) fn stop(context: &Context, draft: &mut Draft, because: impl Into<Cow<'static, str>>) -> Option<Verdict> {
    let now = context.now;
    let (stop, limit) = match draft.memo.stopping {
        None => (Stop::Fast, LIMIT),
        Some(Stopping { stop, since }) => {
            let (next, limit) = match stop {
                Stop::Fast => (Stop::Immediate, LIMIT),
                Stop::Immediate | Stop::Kill => (Stop::Kill, QUIT_LIMIT),
            };
            if now < since.plus(limit) {
                draft.wake(since.plus(limit));
                return None;
            }
            (next, QUIT_LIMIT)
        }
    };
    draft.wake(now.plus(limit));
    let stopping = Stopping { stop, since: now };
    Verdict::noting(Action::Stop(stop), because, [Change::Stops(stopping)])
}
