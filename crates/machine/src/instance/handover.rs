//! Whether the lease should be handed over now, and to which member.

use std::cmp::Reverse;

use super::facts::{Context, is_wanted};
use super::{Draft, Memo, Wish, checkpoint, election, members};
use crate::protocol::{MemberState, Position};
use crate::units::{Bytes, Millis};

/// How far the successor may be behind in WAL, both flushed and replayed. Missing WAL is sent while
/// PostgreSQL stops, and WAL that is not replayed delays the promotion. At 100 MB/s each takes a sixth of a second.
pub(super) const LAG: Bytes = Bytes::mib(16);
/// How long the primary waits for a standby whose replay is paused or slow. A promotion resumes a paused replay.
const REPLAY: Millis = Millis::seconds(20);
/// After that wait, at most this much may be left to replay: at 100 MB/s ten seconds without a primary. For
/// more the primary waits without a limit, unless the request skips the wait for replay: a drain would wait too.
const LATE: Bytes = Bytes::gib(1);
/// A handover begins this long after it was asked for at the latest. The operator takes a request back after 50 s, and
/// this member may hear of that a minute late, or never if the operator is gone.
const LATEST: Millis = Millis::seconds(40);

/// The wanted primary, if it streams, has caught up and replayed. Each request has one try, which costs clients some
/// seconds if the wanted one does not take the lease: the operator asks again later.
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
    let wish = draft.memo.wished.as_ref()?;
    let since = wish.since;
    if wish.tried || context.now >= since.plus(LATEST) {
        return None;
    }
    let peer = context.observed.peers.get(wanted)?;
    let fresh = context.now.since(peer.heard) < members::SILENT;
    let flushed = context.observed.postgres.standbys.get(&peer.report.member)?;
    let written = context.position()?.lsn;
    let near = written.since(*flushed) <= LAG;
    let able = peer.report.state == MemberState::Streaming && peer.report.fault.is_none();
    if !(fresh && near && able && is_wanted(context, wanted)) {
        return None;
    }
    let late = cluster.urgent || peer.queue() <= LATE;
    let replayed = peer.queue() <= LAG || late && context.reached(since.plus(REPLAY), draft);
    replayed.then(|| wanted.clone())
}

/// True if PostgreSQL was asked for its standbys' positions after the checkpoint ended. The checkpoint takes seconds,
/// and a standby that kept up when it began may receive nothing any more. Then the stop would leave a position that the
/// successor cannot cover, and another member would have to be elected.
pub(super) fn is_seen(context: &Context) -> bool {
    let answer = context.observed.postgres.answer;
    answer.is_some_and(|answer| answer.asked >= context.tasks().checkpoint.ended)
}

/// True if the lease may be handed over at any moment: the positions of the standbys must be current.
pub(super) fn is_imminent(context: &Context) -> bool {
    let wanted = context.cluster().and_then(|cluster| cluster.primary.as_ref());
    wanted.is_some_and(|wanted| *wanted != context.observed.own.pod) && checkpoint::is_made(context)
}

/// Why the requested primary does not take over yet, if that can take long.
pub(super) fn waiting(context: &Context) -> Option<String> {
    let cluster = context.cluster()?;
    let wanted = cluster.primary.as_ref()?;
    let behind = context
        .observed
        .peers
        .get(wanted)
        .map_or(Bytes::ZERO, super::Peer::queue);
    let waits = context.serving() && behind > LATE && !cluster.urgent;
    waits.then(|| {
        format!(
            "{wanted} should take over, but has more than {} GiB of WAL to replay first, which continues unless a user has \
             paused it (pg_wal_replay_resume) or a query there holds it up",
            LATE.in_gib()
        )
    })
}

/// The pod of the member that is best fit to take the lease from a container that is asked to end. The order: it has
/// nearly all WAL; it has replayed nearly all of it; it is the wanted primary; it has the most WAL. This does not wait
/// for a replay that is far behind, unlike a switchover, because the container ends. A member that lacks much WAL
/// receives no more of it ([`super::senders`]) and cannot cover the final position.
///
/// Only a hint: safety does not depend on it (protocol.md rule 16). The member that takes the lease must cover the
/// final position, and the others wait for the named one only for a moment. So members do not race, and the operator
/// sees that the move was planned.
pub(super) fn heir(context: &Context) -> Option<String> {
    let cluster = context.cluster()?;
    let peers = context.observed.peers.iter().filter(|(pod, peer)| {
        let follows = matches!(peer.report.state, MemberState::Streaming | MemberState::CatchingUp);
        let able = follows && peer.report.fault.is_none() && !cluster.fenced.contains(*pod);
        // Naming a member that is gone would cost the others that moment.
        let heard = context.now.since(peer.heard) < election::FRESH;
        able && heard && **pod != context.observed.own.pod && is_wanted(context, pod)
    });
    let most = peers.clone().filter_map(|(_, peer)| peer.position).max();
    let near = |position: Position| {
        most.is_some_and(|most| most.timeline == position.timeline && most.lsn.since(position.lsn) <= LAG)
    };
    let best = peers.max_by_key(|(pod, peer)| {
        let near = peer.position.is_some_and(near);
        let wanted = cluster.primary.as_ref() == Some(*pod);
        (near, peer.queue() <= LAG, wanted, peer.position, Reverse(*pod))
    });
    best.map(|(pod, _)| pod.clone())
}

/// Remembers the requested primary. A handover has ended when this run no longer holds the lease, or holds it again.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let wished = context.cluster().and_then(|cluster| cluster.primary.clone());
    let before = memo.wished.take();
    memo.wished = wished.map(|pod| {
        let same = before.filter(|wish| wish.pod == pod);
        same.unwrap_or(Wish {
            pod,
            since: context.now,
            tried: false,
        })
    });
    let ours = matches!(context.tenure(), super::Tenure::Held { .. } | super::Tenure::Lapsed);
    let again = context.observed.lease.confirmed.map(|confirmed| confirmed.epoch);
    if !ours || memo.handing_in != again {
        memo.handing_over = None;
    }
    memo.handing_in = again;
}

#[cfg(test)]
mod tests;
