//! Which WAL senders a primary waits for when it stops as planned.
//!
//! PostgreSQL up to 18 ends cleanly only when every streaming standby has flushed all WAL, including the shutdown
//! record, however long that takes (19 has `wal_sender_shutdown_timeout`). One slow standby would keep all clients from
//! writing, and make the stop unclean. The successor needs that WAL; all others get it from the successor.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::facts::Context;
use super::memo::Change;
use super::stopping::{self, LAST};
use super::{Action, Draft, Ended, Mode, Stop, Stopping, Verdict, handover};
use crate::protocol::MemberId;
use crate::units::Millis;

/// How long after the begin of the stop standbys that keep up are waited for. They need some time for the last record,
/// and the shutdown checkpoint comes before it.
const KEEPS_UP: Millis = Millis::seconds(1);
/// Interval between signals to a WAL sender. After the first one it may still send a last message on a connection that
/// accepts nothing more. The second one ends that.
const AGAIN: Millis = Millis(250);

/// Which members need all WAL of a primary that stops.
pub(super) enum Needs {
    /// All: every instance stops, or the successor is not known.
    All,
    /// The member that takes over.
    One(MemberId),
    /// None: this member continues as primary.
    Nobody,
}

impl Needs {
    /// What is needed if the member in `pod` takes over.
    pub(super) fn of(context: &Context, pod: Option<&String>) -> Self {
        let peer = pod.and_then(|pod| context.observed.peers.get(pod));
        peer.map_or(Self::All, |peer| Self::One(peer.report.member.clone()))
    }
}

/// Ends WAL senders that are not needed during a fast stop of a primary: those of standbys that are far behind at once,
/// those of the others soon. The successor's is ended only before the stop becomes unclean.
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
    // A member whose WAL sender was ended lacks WAL, and does not take over.
    let kept = draft.memo.ended.as_ref().map_or(needed, |ended| ended.kept.clone());
    let (keep, because) = if context.reached(since.plus(LAST), draft) {
        (
            BTreeSet::new(),
            "no standby has all WAL, and the stop waits for none any more",
        )
    } else if all {
        return None;
    } else if context.reached(since.plus(KEEPS_UP), draft) {
        let because = "the stop no longer waits for standbys that do not take over";
        (kept.iter().cloned().collect(), because)
    } else {
        let keep: BTreeSet<_> = near(context)?.chain(kept.clone()).collect();
        let mut receiving = context.observed.postgres.receiving.keys();
        if receiving.all(|member| keep.contains(member)) {
            return None;
        }
        (
            keep,
            "the stop does not wait for standbys that are far behind and do not take over",
        )
    };
    draft.wake(context.now.plus(AGAIN));
    let ended = Ended { kept, at: context.now };
    Verdict::noting(Action::EndSenders { keep }, because, [Change::EndsSenders(ended)])
}

/// The members that have flushed nearly all WAL.
fn near<'a>(context: &'a Context) -> Option<impl Iterator<Item = MemberId> + use<'a>> {
    let written = context.position()?.lsn;
    let standbys = context.observed.postgres.standbys.iter();
    let near = standbys.filter(move |(_, flushed)| written.since(**flushed) <= handover::LAG);
    Some(near.map(|(member, _)| member.clone()))
}

/// As [`stopping::stop`]; a primary waits for its standbys as far as they are needed.
pub(super) fn stop_primary(
    context: &Context,
    draft: &mut Draft,
    needs: &Needs,
    because: impl Into<Cow<'static, str>>,
) -> Option<Verdict> {
    stopping::stop(context, draft, because).or_else(|| end(context, draft, needs))
}

#[cfg(test)]
mod tests;
