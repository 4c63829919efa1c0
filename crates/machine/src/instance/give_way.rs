//! A holder that cannot write gives way to members that could: its disk hangs, its PostgreSQL does not come up, its
//! promotion does not end, or its recovery would take longer than an election. Never when nobody could take over, also because
//! the Lease cannot be written: a long recovery is better than none.

use std::borrow::Cow;

use super::context::{Context, Tenure};
use super::recovery::{self, Way};
use super::{Draft, Memo, Mode, Peer, Rule, Verdict, crash, failsafe, fence, lease_rules, members, room, shutdown};
use crate::protocol::{Epoch, MemberId, MemberState, Position};
use crate::timing::BootTime;

/// For so long a holder may be unable to write, in milliseconds: a restart in place after a crash takes one or two seconds,
/// and replaying the WAL between two checkpoints of a busy database some more.
const UNABLE: u64 = 10_000;
/// The same for one that has ended by itself again and again: one more start will not help it (its disk is full). Only if who is
/// elected has all that was acknowledged: else a recovery that is just long would cost commits.
const ENDING: u64 = 4_000;
/// The same while an elected standby replays what it had received: another one would have as much to replay.
const REPLAYING: u64 = 60_000;
/// For so long the canary, a small write that is flushed each second, may be overdue, in milliseconds: a disk that is slow
/// answers within this time, one that hangs does not.
const CANARY: u64 = 4_000;
/// The same for a holder that took over from one that could not write: where the disks of both are slow, the lease would go to and fro
/// for ever, and each move costs more than a slow write. A disk that hangs is still told from that.
const SLOW: u64 = 20_000;
/// For so long after its take, or after its canary was overdue by [`CANARY`] last, that holder has that patience, in milliseconds.
const CALM: u64 = 120_000;
/// For so long PostgreSQL may take no new session, in milliseconds. One is begun each five seconds: on a machine that is busy with
/// other things it may take some seconds, and where the postmaster stands still it never comes, while those that were there go on.
const GREETING: u64 = 12_000;
/// Having given way, a holder that has the lease again, since nobody else came to serve, keeps it for this long, in milliseconds,
/// whatever happens.
const AGAIN: u64 = 120_000;

/// Notes since when the holder cannot write.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    memo.inherited = inherited(context, memo);
    memo.relieves = relieves(context, memo);
    let Some((epoch, _)) = context.held() else {
        memo.unable_since = None;
        let lapsed = context.tenure() == Tenure::Lapsed;
        let same = context.record().map(|record| record.epoch);
        memo.gives_way = memo.gives_way.filter(|of| lapsed && Some(*of) == same);
        if matches!(context.tenure(), Tenure::Other(holder) if holder.serving) {
            // Somebody did take over: it may be of use again. Who took the lease and does not serve may be as unable: where all volumes
            // are full, the lease would go to and fro without end, with a timeline each.
            memo.gave_way = None;
        }
        return;
    };
    let patience = memo.relieves.map_or(CANARY, |_| SLOW);
    if context.accepting() && !canary_is_overdue(context, patience) && !is_mute(context) {
        memo.unable_since = None;
    } else {
        memo.unable_since = memo.unable_since.or(Some(context.now));
    }
    let safe = context.record().is_some_and(|record| record.rule.is_synchronous());
    let replays = context.running() == Some(Mode::Standby) && context.observed.postgres.answer.is_some();
    let inherits = inheritor(context, memo).is_some();
    let patience = match () {
        () if context.accepting() => 0,
        // It cannot be promoted, and another one can. (One that is being promoted may have used the last room for that.)
        () if inherits && !room::has_room(context) && context.final_position().is_some() => 0,
        () if replays => REPLAYING,
        () if safe && crash::fault(context, memo).is_some() => ENDING,
        () => UNABLE,
    };
    let overdue = memo
        .unable_since
        .is_some_and(|since| context.now >= since.plus(patience));
    let could = others_could(context) || inherits;
    let could = could && failsafe::is_lease_writable(context);
    let unable = overdue && is_rested(context, memo) && could;
    // A planned stop is no inability: it has its own patience, and hands the lease over at its end.
    let serves = memo.gives_way.is_none() && !shutdown::is_stopping_fast(context, memo);
    if serves && (unable || matches!(recovery::of(context, memo), Some(Way::GiveWay(_)))) {
        memo.gives_way = Some(epoch);
        memo.gave_way = Some(context.now);
    }
}

/// It did not give way lately, or somebody served then.
pub(super) fn is_rested(context: &Context, memo: &Memo) -> bool {
    memo.gave_way.is_none_or(|at| context.now >= at.plus(AGAIN))
}

fn canary_is_overdue(context: &Context, patience: u64) -> bool {
    let wrote = context.observed.postgres.wrote;
    wrote.is_some_and(|wrote| context.now >= wrote.plus(patience))
}

/// The lease comes, or has come, from a holder that could not write: it says so to who reports, or left no end of its WAL. A holder
/// forgets that when its own writes have been in time for long enough.
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
            now(reply.is_some_and(|reply| reply.gives_way && reply.epoch == record.epoch))
        }
        Tenure::Vacant => now(record
            .release
            .as_ref()
            .is_some_and(|release| release.position.is_none())),
        Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => memo.relieves,
    }
}

/// PostgreSQL has taken no new session for long.
pub(super) fn is_mute(context: &Context) -> bool {
    let greeted = context.observed.postgres.greeted;
    greeted.is_some_and(|greeted| context.now >= greeted.plus(GREETING))
}

pub(super) const GIVE_WAY: Rule = Rule {
    name: "give-way",
    family: "give_way",
    what: "A holder that cannot write stops PostgreSQL and releases the lease, if another member could take over.",
    protocol: &[8, 16],
    decide: give_way,
};

/// Stops whatever lives, and releases the lease. Until it is released, it is not renewed, and members that report are told.
fn give_way(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    draft.memo.gives_way?;
    if context.final_position().is_some() {
        // Without room it would be elected again, if it were the first to see that the lease is free.
        let successor = inheritor(context, draft.memo).filter(|_| !room::has_room(context));
        return lease_rules::release(context, draft, successor);
    }
    let because = why(context, draft);
    if context.alive() {
        return fence::stop_now(context, draft, because)
            .or_else(|| Verdict::wait("PostgreSQL is being stopped, to give way"));
    }
    let release = lease_rules::release(context, draft, None).map(|release| Verdict { because, ..release });
    release.or_else(|| Verdict::wait("the lease is being handed back"))
}

fn why(context: &Context, draft: &Draft) -> Cow<'static, str> {
    // As it was when this began.
    let before = Memo {
        gave_way: None,
        ..draft.memo.clone()
    };
    match recovery::of(context, &before) {
        Some(Way::GiveWay(because)) => because.into(),
        Some(Way::InPlace(_)) | None => {
            "this member holds the lease and cannot write: it gives way to one that can".into()
        }
    }
}

/// Members that streamed until lately, and report.
fn able<'a>(context: &'a Context) -> impl Iterator<Item = (&'a str, &'a MemberId, &'a Peer)> {
    let members = context.record().into_iter().flat_map(|record| &record.members);
    members.filter_map(|(pod, report)| {
        let peer = context.observed.peers.get(pod)?;
        let fresh = context.now.since(peer.heard) < members::SILENT;
        let follows = matches!(report.state, MemberState::Streaming | MemberState::CatchingUp);
        (*pod != context.observed.own.pod && fresh && follows).then_some((pod.as_str(), &report.member, peer))
    })
}

/// Enough of them to elect one, and one that has room. (One without may have more WAL and be elected: it passes the lease on.)
fn others_could(context: &Context) -> bool {
    let Some(record) = context.record() else { return false };
    let rule = &record.rule;
    let enough = !rule.is_synchronous() || rule.can_elect(able(context).map(|(_, member, _)| member));
    enough && able(context).any(|(_, _, peer)| room::could_be_promoted(&peer.report))
}

/// The end of all WAL of a holder that has not been able to begin (protocol.md rule 8): it was elected with all that was acknowledged, has
/// been no primary since, and so has acknowledged nothing itself.
fn inherited(context: &Context, memo: &Memo) -> Option<Position> {
    let ours = matches!(context.tenure(), Tenure::Held { .. } | Tenure::Lapsed);
    let began = context.running() == Some(Mode::Primary);
    (ours && !began)
        .then(|| context.electable_position().max(memo.inherited))
        .flatten()
}

/// The pod of one of them that has room, and all that this holder came with: that one may be elected without a promise, once this is
/// released with its position. The rule on record would ask for others, who may be gone: it names the old primary.
fn inheritor(context: &Context, memo: &Memo) -> Option<String> {
    let end = memo.inherited?;
    let covers = |has: Position| has.timeline == end.timeline && has.lsn >= end.lsn;
    let inherits = |peer: &Peer| room::could_be_promoted(&peer.report) && peer.position.is_some_and(covers);
    able(context).find_map(|(pod, _, peer)| inherits(peer).then(|| pod.to_owned()))
}

/// If they are enough to elect one that has all that was acknowledged: what the slowest has not replayed yet, in bytes.
pub(super) fn slowest_candidate(context: &Context) -> Option<u64> {
    let rule = &context.record()?.rule;
    let safe = rule.is_synchronous() && others_could(context);
    able(context).map(|(_, _, peer)| peer.queue()).max().filter(|_| safe)
}

/// Says so to members that report.
pub(super) fn is_said(memo: &Memo, epoch: Epoch) -> bool {
    memo.gives_way == Some(epoch)
}

#[cfg(test)]
mod tests;
