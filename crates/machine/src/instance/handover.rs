//! Whether the lease is to be handed over now, and to whom.

use std::cmp::Reverse;

use super::context::Context;
use super::{Draft, Memo, checkpoint, election, members};
use crate::protocol::{MemberState, Position};
use crate::timing::BootTime;

/// How far behind the successor may be, in bytes of WAL, with what it has flushed and again with what it has replayed: what
/// is missing is sent while PostgreSQL stops, and what is not replayed holds the promotion up; at 100 MB/s each takes a sixth
/// of a second.
pub(super) const LAG: u64 = 16 << 20;
/// For so long a standby whose replay is paused or slow is waited for, in milliseconds: a promotion goes on with a paused one all
/// the same.
const REPLAY: u64 = 20_000;
/// Then so much may be left to replay, in bytes: at 100 MB/s ten seconds without a primary. More is waited for without end, unless
/// the wish is urgent: a drain would wait with it.
const LATE: u64 = 1 << 30;
/// After an attempt in which nobody took the lease, the next one, in milliseconds. It doubles, as the operator's rests do, while the
/// wish stands: each try costs clients some seconds, and who made the wish may be gone.
const AGAIN: u64 = 60_000;
/// The longest such rest, in milliseconds.
const LONGEST: u64 = 600_000;

/// The primary that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Its pod.
    pub pod: String,
    /// Since when it has been wanted.
    pub since: BootTime,
    /// How many handovers to it have been begun since.
    pub tries: u32,
}

impl Wish {
    /// How long the last handover to it that failed is past before the next one begins, in milliseconds.
    fn rest(&self) -> u64 {
        (AGAIN << self.tries.saturating_sub(1).min(16)).min(LONGEST)
    }
}

/// The wanted primary, if it streams, has caught up and replayed, and the last attempt that failed is long enough ago.
pub(super) fn target(context: &Context, draft: &mut Draft) -> Option<String> {
    context.held()?;
    let cluster = context.cluster()?;
    let wanted = cluster
        .primary
        .as_ref()
        .filter(|wanted| !cluster.fenced.contains(*wanted))?;
    if !context.serving() || *wanted == context.observed.own.pod || context.observed.terminating {
        return None;
    }
    let wish = draft.memo.wished.clone()?;
    let last = draft.memo.handed_over;
    if last.is_some_and(|last| !context.reached(last.plus(wish.rest()), draft)) {
        return None;
    }
    let peer = context.observed.peers.get(wanted)?;
    let fresh = context.now.since(peer.heard) < members::SILENT;
    let flushed = context.observed.postgres.standbys.get(&peer.report.member)?;
    let written = context.position()?.lsn;
    let near = written.0.saturating_sub(flushed.0) <= LAG;
    let able = peer.report.state == MemberState::Streaming && peer.report.fault.is_none();
    if !(fresh && near && able && members::is_wanted(context, wanted)) {
        return None;
    }
    let late = cluster.urgent || peer.queue() <= LATE;
    let replayed = peer.queue() <= LAG || late && context.reached(wish.since.plus(REPLAY), draft);
    replayed.then(|| wanted.clone())
}

/// PostgreSQL was asked how far its standbys are after the checkpoint had ended: that takes seconds, and who keeps up as it begins may
/// receive nothing any more. Then the stop would leave a position that the successor cannot cover, and another one has to be elected.
pub(super) fn is_seen(context: &Context) -> bool {
    let answer = context.observed.postgres.answer;
    answer.is_some_and(|answer| answer.asked >= context.tasks().checkpoint.ended)
}

/// The lease may be handed over at any moment: how far the standbys are is to be seen as it is now.
pub(super) fn is_imminent(context: &Context) -> bool {
    let wanted = context.cluster().and_then(|cluster| cluster.primary.as_ref());
    wanted.is_some_and(|wanted| *wanted != context.observed.own.pod) && checkpoint::is_made(context)
}

/// Why a wish is not fulfilled yet, if that can be long.
pub(super) fn waiting(context: &Context) -> Option<String> {
    let cluster = context.cluster()?;
    let wanted = cluster.primary.as_ref()?;
    let behind = context.observed.peers.get(wanted).map_or(0, super::Peer::queue);
    let waits = context.serving() && behind > LATE && !cluster.urgent;
    waits.then(|| {
        format!(
            "{wanted} is to take over, and has more than {} GiB of WAL to replay first, which goes on by itself unless somebody has \
             paused it (pg_wal_replay_resume) or a query there holds it up",
            LATE >> 30
        )
    })
}

/// Who is best fit to take the lease that this container leaves, since it is asked to end: of those that have nearly all WAL and have
/// replayed it the wanted primary, or else who has the most. A replay that is far behind is not awaited, as a wanted one's is: the
/// container ends. Who lacks much WAL gets no more of it ([`super::senders`]), and cannot cover what is left.
///
/// A hint, on which no safety hangs (protocol.md rule 16): whoever takes the lease must cover the position that was left, and
/// the others leave it to this one for a moment only. So no two of them race, and the operator sees that it was planned.
pub(super) fn heir(context: &Context) -> Option<String> {
    let cluster = context.cluster()?;
    let peers = context.observed.peers.iter().filter(|(pod, peer)| {
        let follows = matches!(peer.report.state, MemberState::Streaming | MemberState::CatchingUp);
        let able = follows && peer.report.fault.is_none() && !cluster.fenced.contains(*pod);
        // One that is gone would cost the others that moment.
        let heard = context.now.since(peer.heard) < election::FRESH;
        able && heard && **pod != context.observed.own.pod && members::is_wanted(context, pod)
    });
    let most = peers.clone().filter_map(|(_, peer)| peer.position).max();
    let near = |position: Position| {
        most.is_some_and(|most| most.timeline == position.timeline && most.lsn.0 - position.lsn.0 <= LAG)
    };
    let best = peers.max_by_key(|(pod, peer)| {
        let near = peer.position.is_some_and(near);
        let wanted = cluster.primary.as_ref() == Some(*pod);
        (near, peer.queue() <= LAG, wanted, peer.position, Reverse(*pod))
    });
    best.map(|(pod, _)| pod.clone())
}

/// Which primary is wished for. A handover has ended when the lease is not this run's any more, or when it holds it again.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let wished = context.cluster().and_then(|cluster| cluster.primary.clone());
    let before = memo.wished.take();
    memo.wished = wished.map(|pod| {
        let same = before.filter(|wish| wish.pod == pod);
        same.unwrap_or(Wish {
            pod,
            since: context.now,
            tries: 0,
        })
    });
    let ours = matches!(context.tenure(), super::Tenure::Held { .. } | super::Tenure::Lapsed);
    let again = context.observed.lease.confirmed.map(|confirmed| confirmed.epoch);
    if !ours || memo.handing_in != again {
        memo.handing_over = None;
    }
    memo.handing_in = again;
    // Who has taken the lease may still fail to be promoted.
    if matches!(context.tenure(), super::Tenure::Other(holder) if holder.serving) {
        memo.handed_over = None;
    }
}

#[cfg(test)]
mod tests;
