//! A holder that cannot write steps down in favour of members that could: its disk hangs, its PostgreSQL does not come
//! up, its promotion does not end, or its recovery would take longer than an election. It never steps down if no member
//! could take over, also because the Lease cannot be written: a long recovery is better than none.

use std::borrow::Cow;

use super::facts::{Context, Tenure};
use super::recovery::{self, Way};
use super::stopping::is_stopping_fast;
use super::successors::{able, is_rested, others_could};
use super::{Draft, Memo, Mode, OnBackoff, Peer, Rule, RuleKind, Verdict, crash, failsafe, fence, lease_rules, room};
use crate::protocol::{Epoch, Position};
use crate::timing::BootTime;
use crate::units::Millis;

/// How long a holder may be unable to write. A restart in place after a crash takes one or two seconds. Replaying the
/// WAL between two checkpoints of a busy database takes some more.
const UNABLE: Millis = Millis::seconds(10);
/// The same for a holder whose PostgreSQL has ended again and again: one more start will not help (its disk is full).
/// Only if the elected member has every acknowledged commit: otherwise a recovery that is merely long would cost
/// commits.
const ENDING: Millis = Millis::seconds(4);
/// The same while an elected standby replays what it had received: another one would have as much to replay.
const REPLAYING: Millis = Millis::minutes(1);
/// How long the canary, a small write that is flushed each second, may be overdue. A slow disk answers within this
/// time; a hung one does not.
const CANARY: Millis = Millis::seconds(4);
/// The same for a holder that took over from one that could not write. If the disks of both are slow, the lease would
/// otherwise move back and forth for ever, and each move costs more than a slow write. The longer limit still detects a
/// disk that hangs.
const SLOW: Millis = Millis::seconds(20);
/// How long such a holder uses [`SLOW`] after its take, or after its canary was last overdue by [`CANARY`].
const CALM: Millis = Millis::minutes(2);
/// How long PostgreSQL may accept no new session. The agent begins one every five seconds. On a machine that is busy
/// otherwise a session may take some seconds. With a stalled postmaster it never comes, while existing sessions go on.
const GREETING: Millis = Millis::seconds(12);

/// Remembers since when the holder cannot write.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    memo.inherited = inherited(context, memo);
    memo.relieves = relieves(context, memo);
    let Some((epoch, _)) = context.held() else {
        memo.unable_since = None;
        let lapsed = context.tenure() == Tenure::Lapsed;
        let same = context.record().map(|record| record.epoch);
        memo.steps_down = memo.steps_down.filter(|of| lapsed && Some(*of) == same);
        if matches!(context.tenure(), Tenure::Other(holder) if holder.serving) {
            // A member did take over, so this one may be of use again. A member that took the lease and does not serve
            // may be as unable: if all volumes are full, the lease would move back and forth without end, with one
            // timeline each time.
            memo.stepped_down = None;
        }
        return;
    };
    let limit = memo.relieves.map_or(CANARY, |_| SLOW);
    if context.accepting() && !canary_is_overdue(context, limit) && !is_mute(context) {
        memo.unable_since = None;
    } else {
        memo.unable_since = memo.unable_since.or(Some(context.now));
    }
    let safe = context.record().is_some_and(|record| record.rule.is_synchronous());
    let replays = context.running() == Some(Mode::Standby) && context.observed.postgres.answer.is_some();
    let inherits = inheritor(context, memo).is_some();
    let limit = match () {
        () if context.accepting() => Millis::ZERO,
        // It cannot be promoted, and another member can. (A holder that is being promoted may have used the last room
        // for that.)
        () if inherits && !room::has_room(context) && context.final_position().is_some() => Millis::ZERO,
        () if replays => REPLAYING,
        () if safe && crash::fault(context, memo).is_some() => ENDING,
        () => UNABLE,
    };
    let overdue = memo.unable_since.is_some_and(|since| context.now >= since.plus(limit));
    let could = others_could(context) || inherits;
    let could = could && failsafe::is_lease_writable(context);
    let unable = overdue && is_rested(context, memo) && could;
    // A planned stop is no inability: it has its own time limit, and releases the lease at its end.
    let serves = memo.steps_down.is_none() && !is_stopping_fast(context, memo);
    if serves && (unable || matches!(recovery::of(context, memo), Some(Way::StepDown(_)))) {
        memo.steps_down = Some(epoch);
        memo.stepped_down = Some(context.now);
    }
}

fn canary_is_overdue(context: &Context, limit: Millis) -> bool {
    let wrote = context.observed.postgres.wrote;
    wrote.is_some_and(|wrote| context.now >= wrote.plus(limit))
}

/// Set if the lease comes from a holder that could not write: that holder says so in its answers to reports, or
/// released the lease without a position. This holder forgets it once its own writes have been in time for long enough.
fn relieves(context: &Context, memo: &Memo) -> Option<BootTime> {
    let Some(record) = context.record() else {
        return memo.relieves;
    };
    let now = |holds: bool| holds.then_some(context.now);
    match context.tenure() {
        Tenure::Held { .. } if canary_is_overdue(context, CANARY) => memo.relieves.and(now(true)),
        Tenure::Held { .. } => memo.relieves.filter(|late| context.now < late.plus(CALM)),
        Tenure::Other(_) => {
            let reply = context.observed.reply.as_ref();
            now(reply.is_some_and(|reply| reply.steps_down && reply.epoch == record.epoch))
        }
        Tenure::Vacant => now(record
            .release
            .as_ref()
            .is_some_and(|release| release.position.is_none())),
        Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => memo.relieves,
    }
}

/// True if PostgreSQL has accepted no new session for too long.
pub(super) fn is_mute(context: &Context) -> bool {
    let greeted = context.observed.postgres.greeted;
    greeted.is_some_and(|greeted| context.now >= greeted.plus(GREETING))
}

pub(super) const STEP_DOWN: Rule = Rule {
    name: "step-down",
    family: "step_down",
    what: "A holder that cannot write stops PostgreSQL and releases the lease, if another member could take over.",
    protocol: &[8, 16],
    kind: RuleKind::Act,
    decide: step_down,
    on_backoff: OnBackoff::Yield,
};

/// Stops all processes of PostgreSQL, and releases the lease. Until then the lease is not renewed, and members that
/// report learn of it.
fn step_down(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    draft.memo.steps_down?;
    if context.final_position().is_some() {
        // Without room this member would be elected again if it saw first that the lease is free.
        let successor = inheritor(context, draft.memo).filter(|_| !room::has_room(context));
        return lease_rules::release(context, draft, successor);
    }
    let because = why(context, draft);
    if context.alive() {
        return fence::stop_now(context, draft, because)
            .or_else(|| Verdict::wait("PostgreSQL is being stopped, to step down"));
    }
    let release = lease_rules::release(context, draft, None).map(|release| Verdict { because, ..release });
    release.or_else(|| Verdict::wait("the lease is being released"))
}

fn why(context: &Context, draft: &Draft) -> Cow<'static, str> {
    // The memory before this holder decided to step down.
    let before = Memo {
        stepped_down: None,
        ..draft.memo.clone()
    };
    match recovery::of(context, &before) {
        Some(Way::StepDown(because)) => because.into(),
        Some(Way::InPlace(_)) | None => {
            "this member holds the lease and cannot write: it steps down in favour of one that can".into()
        }
    }
}

/// The end of all WAL of a holder that has not begun to write (protocol.md rule 8). It was elected with every
/// acknowledged commit and has not been primary since, so it has acknowledged nothing itself.
fn inherited(context: &Context, memo: &Memo) -> Option<Position> {
    let ours = matches!(context.tenure(), Tenure::Held { .. } | Tenure::Lapsed);
    let began = context.running() == Some(Mode::Primary);
    (ours && !began)
        .then(|| context.electable_position().max(memo.inherited))
        .flatten()
}

/// The pod of a member that has room and all the WAL that this holder came with. Once the lease is released with that
/// position, this member may be elected without a promise. The rule in the Lease would require other names, which may
/// be gone: it names the old primary.
fn inheritor(context: &Context, memo: &Memo) -> Option<String> {
    let end = memo.inherited?;
    let covers = |has: Position| has.timeline == end.timeline && has.lsn >= end.lsn;
    let inherits = |peer: &Peer| room::could_be_promoted(&peer.report) && peer.position.is_some_and(covers);
    able(context).find_map(|(pod, _, peer)| inherits(peer).then(|| pod.to_owned()))
}

/// True if the answers to reports say that this holder steps down.
pub(super) fn is_said(memo: &Memo, epoch: Epoch) -> bool {
    memo.steps_down == Some(epoch)
}

#[cfg(test)]
mod tests;
