//! Whose WAL senders a primary that stops as planned waits for.
//!
//! PostgreSQL up to 18 ends cleanly only when every standby that streams has flushed all WAL, the record of the shutdown included,
//! however long that takes (19 has `wal_sender_shutdown_timeout`): one slow standby would keep everybody from writing, and make
//! the stop an unclean one. Who takes over needs that WAL; all others get it from there.

use std::collections::BTreeSet;

use super::context::Context;
use super::memo::Change;
use super::shutdown::LAST;
use super::{Action, Draft, Mode, Stop, Stopping, Verdict, handover};
use crate::protocol::MemberId;
use crate::timing::BootTime;

/// For so long after the stop began standbys that keep up are waited for, in milliseconds: they need some for the last record, and
/// the shutdown checkpoint before it follows another one.
const KEEPS_UP: u64 = 1_000;
/// Distance between signals to a WAL sender, in milliseconds. The first one may have it say goodbye on a connection that takes
/// nothing more; the second one ends that.
const AGAIN: u64 = 250;

/// Who needs all WAL of a primary that stops.
pub(super) enum Needs {
    /// Everybody: all are to stop, or who takes over is not known.
    All,
    /// The one that takes over.
    One(MemberId),
    /// Nobody: this member goes on itself.
    Nobody,
}

impl Needs {
    /// The member in `pod` takes over.
    pub(super) fn of(context: &Context, pod: Option<&String>) -> Self {
        let peer = pod.and_then(|pod| context.observed.peers.get(pod));
        peer.map_or(Self::All, |peer| Self::One(peer.report.member.clone()))
    }
}

/// WAL senders that were ended while a stop was under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose was not, since that one takes over. Nobody else does any more.
    pub kept: Option<MemberId>,
    /// When.
    pub at: BootTime,
}

/// Ends the WAL senders that nobody needs, while a fast stop of a primary is under way: at once those of standbys that are far
/// behind, soon those of all others but the successor's, and that one's before the stop becomes an unclean one.
pub(super) fn end(context: &Context, draft: &mut Draft, needs: &Needs) -> Option<Verdict> {
    let Some(Stopping {
        stop: Stop::Fast,
        since,
    }) = draft.memo.stopping
    else {
        return None;
    };
    if context.running() != Some(Mode::Primary) {
        return None;
    }
    let again = draft.memo.ended.as_ref().map(|ended| ended.at.plus(AGAIN));
    if again.is_some_and(|at| !context.reached(at, draft)) {
        return None;
    }
    let (needed, all) = match needs {
        Needs::All => (None, true),
        Needs::One(member) => (Some(member.clone()), false),
        Needs::Nobody => (None, false),
    };
    // Whose was ended has not all, and does not take over.
    let kept = draft.memo.ended.as_ref().map_or(needed, |ended| ended.kept.clone());
    let (keep, because) = if context.reached(since.plus(LAST), draft) {
        (BTreeSet::new(), "no standby has all WAL: none is waited for any more")
    } else if all {
        return None;
    } else if context.reached(since.plus(KEEPS_UP), draft) {
        let because = "standbys that do not take over are not waited for any more";
        (kept.iter().cloned().collect(), because)
    } else {
        let keep: BTreeSet<_> = near(context)?.chain(kept.clone()).collect();
        let mut receiving = context.observed.postgres.receiving.keys();
        if receiving.all(|member| keep.contains(member)) {
            return None;
        }
        (
            keep,
            "standbys that are far behind, and do not take over, are not waited for",
        )
    };
    draft.wake(context.now.plus(AGAIN));
    let ended = Ended { kept, at: context.now };
    Verdict::noting(Action::EndSenders { keep }, because, [Change::EndsSenders(ended)])
}

/// Those that have flushed nearly all.
fn near<'a>(context: &'a Context) -> Option<impl Iterator<Item = MemberId> + use<'a>> {
    let written = context.position()?.lsn;
    let standbys = context.observed.postgres.standbys.iter();
    let near = standbys.filter(move |(_, flushed)| written.0.saturating_sub(flushed.0) <= handover::LAG);
    Some(near.map(|(member, _)| member.clone()))
}

#[cfg(test)]
mod tests;
