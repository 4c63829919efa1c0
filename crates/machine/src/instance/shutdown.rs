//! Stopping on purpose: SIGTERM, the operator's intent to stop all instances, or the user's fence on this one. The
//! primary releases the lease with its final position. When all instances stop, standbys stop after it.

use super::facts::{Context, Tenure};
use super::memo::Change;
use super::senders::{Needs, stop_primary};
use super::stopping::{may_release, why};
use super::{Action, Draft, Mode, OnBackoff, Rule, RuleKind, Verdict, checkpoint, handover, lease_rules};
use crate::units::Millis;

/// How long the agent tries to release its lease before it ends without that.
const RELEASE_LIMIT: Millis = Millis::seconds(3);
/// How long an agent that has released its lease waits for a successor to take it. That is as long as the others leave
/// it to the chosen successor.
const SUCCESSION: Millis = Millis::seconds(2);
/// How long it stays after that: `-rw` moves when the promotion begins, and the nodes' proxies need up to a second for
/// it.
const ROUTES: Millis = Millis(1_100);
/// How long a primary whose container is asked to end continues to serve if a successor exists. The nodes' proxies have
/// just handled that the pod ends (it leaves `-r`), and handle nothing else for a second (kube-proxy's
/// `minSyncPeriod`). Clients that are disconnected at once would reach the successor no sooner.
const SERVES_ON: Millis = Millis(400);
/// How long it continues to serve until a checkpoint has ended: of the 60 s that a pod has, the stop may take 29 s
/// more.
const CHECKPOINT: Millis = Millis::seconds(5);

pub(super) const HAND_OVER: Rule = Rule {
    name: "hand-over",
    family: "shutdown",
    what: "Switchover: makes a checkpoint, has poolers pause, stops PostgreSQL, and releases the lease to the wanted primary with the last position.",
    protocol: &[16],
    kind: RuleKind::Act,
    decide: hand_over,
    on_backoff: OnBackoff::Yield,
};

/// Hands the lease over to the requested member. PostgreSQL stops first, so that the measured position is final. Then
/// the lease is released with the position that the successor must have. If no member takes it, this one takes it back.
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
    Some(verdict.and(Change::HandsOver(target)))
}

fn hand_over_to(context: &Context, draft: &mut Draft, successor: &String) -> Verdict {
    let wait = |because| Verdict::of(Action::Wait, because);
    if context.alive() {
        let because = format!("the lease is handed over to {successor}");
        let needs = Needs::of(context, Some(successor));
        return stop_primary(context, draft, &needs, because)
            .unwrap_or_else(|| wait("PostgreSQL is stopping, to hand the lease over"));
    }
    lease_rules::release(context, draft, Some(successor.clone()))
        .unwrap_or_else(|| wait("the lease is being handed over"))
}

pub(super) const SHUT_DOWN: Rule = Rule {
    name: "shut-down",
    family: "shutdown",
    what: "Stops PostgreSQL when the container ends or the operator or user asks; a primary then releases the lease with its last position.",
    protocol: &[16],
    kind: RuleKind::Act,
    decide: shut_down,
    on_backoff: OnBackoff::Yield,
};

/// Stops, releases, and ends. If all instances stop, the member stays idle instead; a fenced member continues as
/// [`super::fenced`] says.
fn shut_down(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let why = why(context)?;
    let terminating = context.observed.terminating;
    // Elected and not promoted: the lease is left to the others before PostgreSQL stops.
    let unpromoted = context.held().is_some() && context.final_position().is_some();
    let heir = || handover::heir(context).filter(|_| terminating && !context.stop_intended());
    if unpromoted && let Some(verdict) = lease_rules::release(context, draft, heir()) {
        return Some(verdict);
    }
    if context.alive() {
        let stays = !terminating && !context.fenced() && context.running() == Some(Mode::Standby);
        if stays && !may_standby_stop(context, draft) {
            // It continues as before, and still reports.
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
        let limit = since.plus(RELEASE_LIMIT);
        if !terminating || context.now < limit {
            draft.wake(limit);
            return Verdict::wait("the lease is being released");
        }
    }
    if terminating && is_succeeded(context, draft) {
        return Verdict::new(Action::Exit, why);
    }
    if terminating {
        return Verdict::wait("clients are refused here until `-rw` leads to the successor");
    }
    if !context.stop_intended() {
        return None;
    }
    Verdict::wait("all instances must stop, and this one has")
}

/// True while the stop must not begin yet: until then everything continues as before.
fn serves_on(context: &Context, draft: &mut Draft) -> bool {
    let since = draft.memo.terminating_since.filter(|_| draft.memo.stopping.is_none());
    let Some(since) = since.filter(|_| context.serving()) else {
        return false;
    };
    let made = checkpoint::is_made(context) || context.reached(since.plus(CHECKPOINT), draft);
    !made || !context.reached(since.plus(SERVES_ON), draft)
}

/// True if `-rw` no longer leads here, or no successor is expected. The pod's address ends with the container. Until
/// the nodes' proxies know the successor's, connecting clients would hang instead of being refused and retrying at
/// once.
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

/// Standbys stop after the primary, so that they have all its WAL; or when the wait for it is over.
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
