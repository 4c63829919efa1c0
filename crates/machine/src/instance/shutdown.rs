//! Stopping on purpose: SIGTERM, the operator's intent to stop all instances, or the user's fence on this one. The primary
//! hands its lease back with its last position; when all are to stop, standbys stop after it.

use std::borrow::Cow;

use super::context::{Context, Tenure};
use super::memo::Change;
use super::senders::{self, Needs};
use super::{Action, Draft, Memo, Mode, Rule, Stop, Stopping, Verdict, checkpoint, handover, lease_rules};

/// How long a fast stop may take before SIGQUIT, in milliseconds. It waits for the shutdown checkpoint, and for standbys
/// to receive it; 20 s of the container's grace are more than either needs, and leave time for the rest.
const PATIENCE: u64 = 20_000;
/// For so long of that anybody is waited for at all, in milliseconds: an end without the last record at a standby is a clean one.
pub(super) const LAST: u64 = 15_000;
/// How long SIGQUIT may take before SIGKILL, in milliseconds: the postmaster itself sends SIGKILL after 5 s.
const QUIT_PATIENCE: u64 = 6_000;
/// How long the agent tries to hand back its lease before it ends without, in milliseconds.
const RELEASE_PATIENCE: u64 = 3_000;
/// For so long an agent that has handed its lease back waits for somebody to take it, in milliseconds: as long as the others
/// leave it to the chosen successor.
const SUCCESSION: u64 = 2_000;
/// For so long after that it stays, in milliseconds: `-rw` moves when the promotion begins, and the nodes' proxies take up to a
/// second for it.
const ROUTES: u64 = 1_100;
/// For so long a primary whose container is asked to end serves on, if somebody can succeed it, in milliseconds. The nodes' proxies have
/// just taken up that the pod ends (it leaves `-r`), and take up nothing else for a second (kube-proxy's `minSyncPeriod`): clients that
/// are disconnected at once reach the successor no sooner than those that are now.
const SERVES_ON: u64 = 400;
/// For so long it does until a checkpoint has ended, in milliseconds: of the 60 s that a pod has, stopping may take 29 more.
const CHECKPOINT: u64 = 5_000;

/// Asks PostgreSQL to stop, harder when it takes too long. `None` while there is nothing to do but wait.
pub(super) fn stop(context: &Context, draft: &mut Draft, because: impl Into<Cow<'static, str>>) -> Option<Verdict> {
    let now = context.now;
    let (stop, patience) = match draft.memo.stopping {
        None => (Stop::Fast, PATIENCE),
        Some(Stopping { stop, since }) => {
            let (next, patience) = match stop {
                Stop::Fast => (Stop::Immediate, PATIENCE),
                Stop::Immediate | Stop::Kill => (Stop::Kill, QUIT_PATIENCE),
            };
            if now < since.plus(patience) {
                draft.wake(since.plus(patience));
                return None;
            }
            (next, QUIT_PATIENCE)
        }
    };
    draft.wake(now.plus(patience));
    let stopping = Stopping { stop, since: now };
    Verdict::noting(Action::Stop(stop), because, [Change::Stops(stopping)])
}

/// PostgreSQL is stopping as planned, and has its time for that still.
pub(super) fn is_stopping_fast(context: &Context, memo: &Memo) -> bool {
    let fast = memo.stopping.filter(|stopping| stopping.stop == Stop::Fast);
    fast.is_some_and(|stopping| context.now < stopping.since.plus(PATIENCE))
}

/// As [`stop`]; a primary waits for standbys as far as somebody needs it.
pub(super) fn stop_primary(
    context: &Context,
    draft: &mut Draft,
    needs: &Needs,
    because: impl Into<Cow<'static, str>>,
) -> Option<Verdict> {
    stop(context, draft, because).or_else(|| senders::end(context, draft, needs))
}

/// The lease is to be handed back now: this instance stops on purpose, and nothing of PostgreSQL lives (invariant 6).
pub(super) fn may_release(context: &Context, draft: &Draft) -> bool {
    let ours = matches!(context.tenure(), Tenure::Held { .. } | Tenure::Lapsed);
    let stops = why(context).is_some() || draft.memo.handing_over.is_some();
    ours && stops && !context.alive()
}

pub(super) const HAND_OVER: Rule = Rule {
    name: "hand-over",
    family: "shutdown",
    what: "Switchover: makes a checkpoint, stops PostgreSQL, and releases the lease to the wanted primary with the last position.",
    protocol: &[16],
    decide: hand_over,
};

/// Hands the lease over to the member that is to have it (a switchover): stops first, so that what is measured is final,
/// then releases with the position that the successor must have. If nobody takes it, this member takes it back.
fn hand_over(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if let Some(successor) = &draft.memo.handing_over {
        return Some(hand_over_to(context, draft, successor));
    }
    let target = handover::target(context, draft)?;
    if !checkpoint::is_made(context) {
        return checkpoint::make(context, "to hand the lease over");
    }
    if !handover::is_seen(context) {
        return None;
    }
    let verdict = hand_over_to(context, draft, &target);
    Some(verdict.and(Change::HandsOver {
        to: target,
        at: context.now,
    }))
}

fn hand_over_to(context: &Context, draft: &mut Draft, successor: &String) -> Verdict {
    let wait = |because| Verdict::of(Action::Wait, because);
    if context.alive() {
        let because = format!("the lease is handed over to {successor}");
        let needs = Needs::of(context, Some(successor));
        return stop_primary(context, draft, &needs, because)
            .unwrap_or_else(|| wait("PostgreSQL is stopping, to hand over"));
    }
    lease_rules::release(context, draft, Some(successor.clone()))
        .unwrap_or_else(|| wait("the lease is being handed over"))
}

/// Why this instance is to stop, if it is.
fn why(context: &Context) -> Option<&'static str> {
    if context.observed.terminating {
        Some("the container is asked to end")
    } else if context.stop_intended() {
        Some("all instances are to stop")
    } else if context.fenced() {
        Some("spec.fenced names this instance")
    } else {
        None
    }
}

pub(super) const SHUT_DOWN: Rule = Rule {
    name: "shut-down",
    family: "shutdown",
    what: "Stops PostgreSQL when the container ends, or the operator or the user asks for it; a primary then releases the lease with its last position.",
    protocol: &[16],
    decide: shut_down,
};

/// Stops, releases, and ends (or, when all instances are to stop, stays idle; or goes on as a fenced one).
fn shut_down(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let why = why(context)?;
    let terminating = context.observed.terminating;
    // Elected, and not promoted: what it has is left to the others before it stops.
    let unpromoted = context.held().is_some() && context.final_position().is_some();
    let heir = || handover::heir(context).filter(|_| terminating && !context.stop_intended());
    if unpromoted && let Some(verdict) = lease_rules::release(context, draft, heir()) {
        return Some(verdict);
    }
    if context.alive() {
        let stays = !terminating && !context.fenced() && context.running() == Some(Mode::Standby);
        if stays && !may_standby_stop(context, draft) {
            // Goes on as before, and still reports.
            return None;
        }
        let heir = handover::heir(context).filter(|_| !context.stop_intended());
        if terminating && heir.is_some() && serves_on(context, draft) {
            return match checkpoint::is_made(context) {
                true => None,
                false => checkpoint::make(context, "to leave the lease to another member"),
            };
        }
        let needs = Needs::of(context, heir.as_ref());
        return stop_primary(context, draft, &needs, why).or_else(|| Verdict::wait("PostgreSQL is stopping"));
    }
    if may_release(context, draft) {
        let heir = heir();
        let left = heir.is_some().then_some(context.now);
        if let Some(verdict) = lease_rules::release(context, draft, heir) {
            return Some(verdict.and(Change::Leaves(left)));
        }
        let since = draft
            .memo
            .terminating_since
            .unwrap_or(context.now)
            .max(draft.memo.last_exit.unwrap_or_default());
        let patience = since.plus(RELEASE_PATIENCE);
        if !terminating || context.now < patience {
            draft.wake(patience);
            return Verdict::wait("the lease is being handed back");
        }
    }
    if terminating && is_succeeded(context, draft) {
        return Verdict::new(Action::Exit, why);
    }
    if terminating {
        return Verdict::wait("clients are refused here, until they are led to the successor");
    }
    if !context.stop_intended() {
        return None;
    }
    Verdict::wait("all instances are to stop, and this one has")
}

/// The stop is not to begin yet: until then everything goes on as before.
fn serves_on(context: &Context, draft: &mut Draft) -> bool {
    let since = draft.memo.terminating_since.filter(|_| draft.memo.stopping.is_none());
    let Some(since) = since.filter(|_| context.serving()) else {
        return false;
    };
    let made = checkpoint::is_made(context) || context.reached(since.plus(CHECKPOINT), draft);
    !made || !context.reached(since.plus(SERVES_ON), draft)
}

/// Nobody is led here any more, or nobody is to succeed. With the container the pod's address goes: until the nodes' proxies know its
/// successor's, clients that connect would wait for an answer, instead of being refused and trying again at once.
fn is_succeeded(context: &Context, draft: &mut Draft) -> bool {
    let Some(left) = draft.memo.left else { return true };
    let taken = left.plus(SUCCESSION);
    let at = match context.tenure() {
        Tenure::Vacant => taken,
        Tenure::Other(_) => context.observed.lease.holder_since.min(taken).plus(ROUTES),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => return true,
    };
    context.reached(at, draft)
}

/// Standbys stop after the primary, so that they have all that it wrote; or when it is not to be waited for.
fn may_standby_stop(context: &Context, draft: &mut Draft) -> bool {
    match context.tenure() {
        Tenure::Other(_) => context
            .expires_at()
            .is_some_and(|expiry| context.reached(expiry, draft)),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => true,
    }
}

#[cfg(test)]
mod tests;
