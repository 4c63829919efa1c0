//! Whether the lease is to be handed over now, and to whom.

use super::context::Context;
use super::{Draft, Memo, members};
use crate::protocol::MemberState;

/// How far behind the successor may be, in bytes of WAL: what is missing is sent while PostgreSQL stops, at 100 MB/s in a
/// sixth of a second.
const LAG: u64 = 16 << 20;
/// After an attempt, the next one, in milliseconds.
const AGAIN: u64 = 60_000;

/// The wanted primary, if it streams, has caught up, and the last attempt is long enough ago.
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
    if let Some(at) = draft
        .memo
        .handed_over
        .map(|at| at.plus(AGAIN))
        .filter(|at| context.now < *at)
    {
        draft.wake(at);
        return None;
    }
    let peer = context.observed.peers.get(wanted)?;
    let fresh = context.now.since(peer.heard) < members::SILENT;
    let flushed = context.observed.postgres.standbys.get(&peer.report.member)?;
    let written = context.position()?.lsn;
    let near = written.0.saturating_sub(flushed.0) <= LAG;
    let able = peer.report.state == MemberState::Streaming && peer.report.fault.is_none();
    (fresh && near && able && members::is_wanted(context, wanted)).then(|| wanted.clone())
}

/// A handover has ended when the lease is not this run's any more, or when it holds it again.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let ours = matches!(context.tenure(), super::Tenure::Held { .. } | super::Tenure::Lapsed);
    let again = context.observed.lease.confirmed.map(|confirmed| confirmed.epoch);
    if !ours || memo.handing_in != again {
        memo.handing_over = None;
    }
    memo.handing_in = again;
}
