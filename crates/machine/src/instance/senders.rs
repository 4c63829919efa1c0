//! Whose WAL senders a primary that stops as planned waits for.
//!
//! PostgreSQL up to 18 ends cleanly only when every standby that streams has flushed all WAL, the record of the shutdown included,
//! however long that takes (19 has `wal_sender_shutdown_timeout`): one slow standby would keep everybody from writing, and make
//! the stop an unclean one. Who takes over needs that WAL; all others get it from there.

use std::collections::BTreeSet;

use super::context::Context;
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
    draft.memo.ended = Some(Ended { kept, at: context.now });
    draft.wake(context.now.plus(AGAIN));
    Verdict::new(Action::EndSenders { keep }, because)
}

/// Those that have flushed nearly all.
fn near<'a>(context: &'a Context) -> Option<impl Iterator<Item = MemberId> + use<'a>> {
    let written = context.position()?.lsn;
    let standbys = context.observed.postgres.standbys.iter();
    let near = standbys.filter(move |(_, flushed)| written.0.saturating_sub(flushed.0) <= handover::LAG);
    Some(near.map(|(member, _)| member.clone()))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::{AGAIN, KEEPS_UP};
    use crate::instance::handover::LAG;
    use crate::instance::shutdown::LAST;
    use crate::protocol::{Lsn, MemberId};

    /// When the stop began.
    const SINCE: u64 = 30_000;

    /// A primary with two standbys, both of which have all, is to stop; `orders-1` has some more, by its report.
    fn stopping() -> (Observed, Memo) {
        let mut observed = primary();
        observed.terminating = true;
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(SINCE);
        observed.tasks.lease.running = Some(Work::WriteLease);
        let lsn = Lsn(position().lsn.0 + LAG);
        own_position(&mut observed).lsn = lsn;
        let mut other = observed.peers["orders-1"].clone();
        other.report.member = third();
        observed
            .peers
            .get_mut("orders-1")
            .unwrap()
            .position
            .as_mut()
            .unwrap()
            .lsn = lsn;
        observed.peers.insert("orders-2".to_owned(), other);
        observed
            .peers
            .values_mut()
            .for_each(|peer| peer.heard = BootTime(SINCE));
        cluster(&mut observed).replicas = 3;
        for member in [first(), third()] {
            observed.postgres.receiving.insert(member.clone(), position().lsn);
            observed.postgres.standbys.insert(member, position().lsn);
        }
        let memo = Memo {
            stopping: Some(Stopping {
                stop: Stop::Fast,
                since: BootTime(SINCE),
            }),
            ..settled()
        };
        (observed, memo)
    }

    fn first() -> MemberId {
        primary().peers["orders-1"].report.member.clone()
    }

    /// Whose WAL senders are left when the others are ended.
    fn kept(observed: &Observed, memo: &Memo, after: u64) -> Option<Vec<MemberId>> {
        let now = SINCE + after;
        let mut observed = observed.clone();
        observed.peers.values_mut().for_each(|peer| peer.heard = BootTime(now));
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
        match decide(&observed, memo, BootTime(now)).action {
            Action::EndSenders { keep } => Some(keep.into_iter().collect()),
            Action::Wait => None,
            other => panic!("{other:?}"),
        }
    }

    fn lags(observed: &mut Observed, member: &MemberId) {
        let lsn = Lsn(position().lsn.0 - 1);
        observed.postgres.standbys.insert(member.clone(), lsn);
    }

    #[test]
    fn a_stop_waits_long_for_none_but_the_successor() {
        let (observed, memo) = stopping();
        assert_eq!(kept(&observed, &memo, 0), None, "all keep up");
        let waits = decide(&observed, &memo, BootTime(SINCE));
        assert_eq!(waits.wake, Some(BootTime(SINCE + KEEPS_UP)));
        assert_eq!(kept(&observed, &memo, KEEPS_UP - 1), None);
        assert_eq!(kept(&observed, &memo, KEEPS_UP), Some(vec![first()]));
        assert_eq!(kept(&observed, &memo, LAST), Some(vec![]), "an unclean stop is worse");
        let harder = Memo {
            stopping: memo.stopping.map(|stopping| Stopping {
                stop: Stop::Immediate,
                ..stopping
            }),
            ..memo
        };
        assert_eq!(kept(&observed, &harder, KEEPS_UP), None, "it ends without them");
    }

    #[test]
    fn one_that_is_far_behind_is_not_waited_for_at_all_unless_it_takes_over() {
        let (mut observed, memo) = stopping();
        lags(&mut observed, &third());
        assert_eq!(kept(&observed, &memo, 0), Some(vec![first()]));
        observed.postgres.standbys.remove(&third());
        assert_eq!(kept(&observed, &memo, 0), Some(vec![first()]), "it catches up");
        let (mut observed, memo) = stopping();
        lags(&mut observed, &first());
        assert_eq!(kept(&observed, &memo, 0), None);
    }

    #[test]
    fn who_takes_over_stays_the_same_once_others_were_ended() {
        let (mut observed, memo) = stopping();
        lags(&mut observed, &third());
        let ended = decide(&observed, &memo, BootTime(SINCE)).memo;
        assert_eq!(kept(&observed, &ended, AGAIN - 1), None);
        assert_eq!(
            kept(&observed, &ended, AGAIN),
            Some(vec![first()]),
            "one signal may not do"
        );
        let more = observed.peers["orders-1"].position;
        observed.peers.get_mut("orders-1").unwrap().position = Some(position());
        observed.peers.get_mut("orders-2").unwrap().position = more;
        assert_eq!(kept(&observed, &ended, KEEPS_UP), Some(vec![first()]));
        assert_eq!(kept(&observed, &memo, KEEPS_UP), Some(vec![third()]));
    }

    #[test]
    fn where_it_is_not_known_who_takes_over_all_are_waited_for() {
        let spoil: [fn(&mut Observed); 2] = [|o| o.peers.clear(), |o| cluster(o).stop = true];
        for (index, spoil) in spoil.iter().enumerate() {
            let (mut observed, memo) = stopping();
            lags(&mut observed, &third());
            spoil(&mut observed);
            assert_eq!(kept(&observed, &memo, LAST - 1), None, "{index}");
            assert_eq!(kept(&observed, &memo, LAST), Some(vec![]), "{index}");
        }
    }

    #[test]
    fn for_a_restart_in_place_nobody_is_waited_for_long() {
        let (mut observed, memo) = stopping();
        observed.terminating = false;
        observed.tasks.admit.running = Some(Work::Admit);
        observed.postgres.answer.as_mut().unwrap().pending_restart = true;
        cluster(&mut observed).restart = Some(api::status::RestartPermit {
            pod: observed.own.pod.clone(),
            pod_uid: observed.own.pod_uid.clone(),
            settings: SETTINGS.to_owned(),
        });
        let memo = Memo {
            restarted_for: Some(SETTINGS.to_owned()),
            ..memo
        };
        let ends = |after: u64| decide(&observed, &memo, BootTime(SINCE + after)).action;
        assert!(!matches!(ends(KEEPS_UP - 1), Action::EndSenders { .. }));
        assert_eq!(ends(KEEPS_UP), Action::EndSenders { keep: [].into() });
    }
}
