//! Members that could take over from this holder.

use super::facts::Context;
use super::{Memo, Peer, members, room};
use crate::protocol::{MemberId, MemberState};
use crate::units::{Bytes, Millis};

/// How long a holder keeps the lease in any case after it stepped down and took it again because no other member came
/// to serve.
pub(super) const AGAIN: Millis = Millis::minutes(2);

/// True if it did not step down recently, or another member has served since.
pub(super) fn is_rested(context: &Context, memo: &Memo) -> bool {
    memo.stepped_down.is_none_or(|at| context.now >= at.plus(AGAIN))
}

/// Members that streamed until recently, and report.
pub(super) fn able<'a>(context: &'a Context) -> impl Iterator<Item = (&'a str, &'a MemberId, &'a Peer)> {
    let members = context.record().into_iter().flat_map(|record| &record.members);
    members.filter_map(|(pod, report)| {
        let peer = context.observed.peers.get(pod)?;
        let fresh = context.now.since(peer.heard) < members::SILENT;
        let follows = matches!(report.state, MemberState::Streaming | MemberState::CatchingUp);
        (*pod != context.observed.own.pod && fresh && follows).then_some((pod.as_str(), &report.member, peer))
    })
}

/// True if they are enough to elect one, and one of them has room. (A member without room may have more WAL and be
/// elected: it passes the lease on.)
pub(super) fn others_could(context: &Context) -> bool {
    let Some(record) = context.record() else { return false };
    let rule = &record.rule;
    let enough = !rule.is_synchronous() || rule.can_elect(able(context).map(|(_, member, _)| member));
    enough && able(context).any(|(_, _, peer)| room::could_be_promoted(&peer.report))
}

/// WAL that the slowest of them has not replayed yet, if they are enough to elect one with every acknowledged
/// commit.
pub(super) fn slowest_candidate(context: &Context) -> Option<Bytes> {
    let rule = &context.record()?.rule;
    let safe = rule.is_synchronous() && others_could(context);
    able(context).map(|(_, _, peer)| peer.queue()).max().filter(|_| safe)
}
