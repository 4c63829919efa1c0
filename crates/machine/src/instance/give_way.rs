//! A holder that cannot write gives way to members that could: its disk hangs, its PostgreSQL does not come up, its
//! promotion does not end, or its recovery would take longer than an election. Never when nobody could take over, also because
//! the Lease cannot be written: a long recovery is better than none.

use std::borrow::Cow;

use super::context::{Context, Tenure};
use super::recovery::{self, Way};
use super::{Draft, Memo, Mode, Peer, Verdict, crash, failsafe, fence, lease_rules, members, room, shutdown};
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

/// Stops whatever lives, and releases the lease. Until it is released, it is not renewed, and members that report are told.
pub(super) fn give_way(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    draft.memo.gives_way?;
    if context.final_position().is_some() {
        // Without room it would be elected again, if it were the first to see that the lease is free.
        let successor = inheritor(context, &draft.memo).filter(|_| !room::has_room(context));
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
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;
    use crate::protocol::{Lsn, Release, Timeline, Volume};
    use crate::quorum::SyncRule;

    #[test]
    fn an_elected_standby_has_more_time_to_replay() {
        let gives_way = |answers: bool, now: u64| {
            let mut observed = stuck(now);
            observed.postgres.process = Process::Running { mode: Mode::Standby };
            observed.postgres.answer.as_mut().unwrap().in_recovery = true;
            observed.tasks.start.running = Some(Work::Promote);
            if !answers {
                observed.postgres.answer = None;
            }
            let memo = Memo {
                unable_since: Some(BootTime(1_000)),
                ..settled()
            };
            decide(&observed, &memo, BootTime(now)).memo.gives_way.is_some()
        };
        assert!(!gives_way(true, 1_000 + UNABLE));
        assert!(gives_way(false, 1_000 + UNABLE));
        assert!(gives_way(true, 1_000 + REPLAYING));
    }

    #[test]
    fn one_that_ends_again_and_again_has_less_time() {
        /// How it has ended, and how it runs.
        struct Ends {
            crashes: u32,
            last: u64,
            runs: bool,
            rule: bool,
        }
        let gives_way = |ends: &Ends, after: u64| {
            let now = 200_000;
            let mut observed = stuck(now);
            (observed.postgres.process, observed.postgres.answer) = (Process::Stopped { exit: None }, None);
            if ends.runs {
                observed.postgres.process = Process::Running { mode: Mode::Primary };
            }
            if ends.rule {
                record(&mut observed).rule = SyncRule::any(1, [other_holder().incarnation.member]);
            }
            let memo = Memo {
                unable_since: Some(BootTime(now - after)),
                crashes: ends.crashes,
                last_exit: Some(BootTime(now - ends.last)),
                ..settled()
            };
            decide(&observed, &memo, BootTime(now)).memo.gives_way.is_some()
        };
        let ends = Ends {
            crashes: 3,
            last: 5_000,
            runs: true,
            rule: true,
        };
        assert!(gives_way(&ends, ENDING) && !gives_way(&ends, ENDING - 1));
        let patient = [
            (Ends { crashes: 2, ..ends }, "a second start may well help"),
            (
                Ends { last: 120_000, ..ends },
                "it has stayed up since: a backend crashed",
            ),
            (Ends { rule: false, ..ends }, "an election may lose commits"),
        ];
        for (ends, because) in patient {
            assert!(!gives_way(&ends, UNABLE - 1) && gives_way(&ends, UNABLE), "{because}");
        }
        let down = Ends {
            last: 120_000,
            runs: false,
            ..ends
        };
        assert!(gives_way(&down, ENDING), "it does not come up");
    }

    /// The primary's canary is overdue; `orders-1` streams and reports.
    fn stuck(now: u64) -> Observed {
        let mut observed = primary();
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now - 100);
        observed.peers.get_mut("orders-1").unwrap().heard = BootTime(now - 100);
        observed.postgres.wrote = Some(BootTime(now - CANARY));
        observed
    }

    fn decided(observed: &Observed, now: u64) -> Decision {
        decide(observed, &settled(), BootTime(now))
    }

    #[test]
    fn a_canary_that_is_overdue_makes_the_holder_give_way() {
        let mut observed = stuck(9_000);
        let decision = decided(&observed, 9_000);
        assert_eq!(
            (decision.rule, decision.action),
            ("give way", Action::Stop(Stop::Immediate))
        );
        assert_eq!(decision.memo.gives_way, Some(Epoch(1)));
        assert!(is_said(&decision.memo, Epoch(1)) && !is_said(&decision.memo, Epoch(2)));
        observed.postgres.wrote = Some(BootTime(9_001 - CANARY));
        assert_ne!(decided(&observed, 9_000).rule, "give way", "a slow disk is no dead one");
    }

    fn gives_way(observed: &Observed, memo: &Memo, now: u64) -> bool {
        decide(observed, memo, BootTime(now)).memo.gives_way.is_some()
    }

    fn relieving(since: u64) -> Memo {
        Memo {
            relieves: Some(BootTime(since)),
            ..settled()
        }
    }

    #[test]
    fn who_took_over_from_one_that_could_not_write_has_more_patience_with_its_own_disk() {
        let now = 300_000;
        let late = |by: u64| {
            let mut observed = stuck(now);
            observed.postgres.wrote = Some(BootTime(now - by));
            observed
        };
        assert!(
            gives_way(&late(CANARY), &settled(), now),
            "nobody's disk was slow before"
        );
        assert!(!gives_way(&late(SLOW - 1), &relieving(now - 1_000), now));
        assert!(gives_way(&late(SLOW), &relieving(now - 1_000), now), "it hangs");
        let calm = decide(&late(100), &relieving(now - CALM), BootTime(now)).memo;
        assert_eq!(calm.relieves, None, "its disk has been well for long enough");
        assert!(
            decide(&late(100), &relieving(now - CALM + 1), BootTime(now))
                .memo
                .relieves
                .is_some()
        );
        let mut mute = late(100);
        mute.postgres.greeted = Some(BootTime(now - GREETING));
        assert!(gives_way(&mute, &relieving(now - 1_000), now), "that is no slow disk");
    }

    #[test]
    fn who_is_slow_after_one_that_was_slow_keeps_the_lease() {
        let lasts = |memo: Memo| {
            let mut memo = memo;
            (60_000..1_260_000).step_by(1_000).find(|now| {
                let mut observed = stuck(*now);
                // Each write takes 6 s, and counts from its beginning.
                observed.postgres.wrote = Some(BootTime(now - now % 6_000 - 6_000));
                memo = decide(&observed, &memo, BootTime(*now)).memo;
                memo.gives_way.is_some()
            })
        };
        assert!(lasts(settled()).is_some_and(|at| at < 65_000));
        assert_eq!(lasts(relieving(60_000)), None, "for 20 minutes, and no end");
    }

    #[test]
    fn one_that_could_not_write_says_so_or_leaves_no_end_of_its_wal() {
        let relieves = |observed: &Observed| decide(observed, &relieving(0), BootTime(1_200)).memo.relieves;
        let mut other = standby();
        assert_eq!(relieves(&other), None, "that one is dead, or well");
        other.reply.as_mut().unwrap().gives_way = true;
        assert_eq!(relieves(&other), Some(BootTime(1_200)));
        other.reply.as_mut().unwrap().epoch = Epoch(0);
        assert_eq!(relieves(&other), None, "of an earlier reign");
        for (left, since) in [(None, Some(BootTime(1_200))), (Some(position()), None)] {
            let mut vacant = standby();
            let record = record(&mut vacant);
            record.holder = None;
            record.release = Some(Release {
                member: other_holder().incarnation.member,
                position: left,
                successor: None,
            });
            assert_eq!(relieves(&vacant), since);
        }
        let mut lapsed = primary();
        lapsed.lease.confirmed = None;
        assert_eq!(relieves(&lapsed), Some(BootTime(0)), "it comes to no new holder");
    }

    #[test]
    fn a_postmaster_that_takes_no_new_session_makes_the_holder_give_way_and_a_standby_unready() {
        let now = 30_000;
        let mut observed = stuck(now);
        observed.postgres.wrote = Some(BootTime(now));
        assert_ne!(decided(&observed, now).rule, "give way", "it was not asked yet");
        observed.postgres.greeted = Some(BootTime(now - GREETING + 1));
        assert_ne!(
            decided(&observed, now).rule,
            "give way",
            "a busy machine is no dead postmaster"
        );
        assert_eq!(report::readiness(&observed, BootTime(now)), Ok(()));
        observed.postgres.greeted = Some(BootTime(now - GREETING));
        assert_eq!(decided(&observed, now).rule, "give way", "though it writes");
        let mut standby = standby();
        for (greeted, ready) in [(now - GREETING + 1, true), (now - GREETING, false)] {
            standby.postgres.greeted = Some(BootTime(greeted));
            assert_eq!(report::readiness(&standby, BootTime(now)).is_ok(), ready);
        }
    }

    #[test]
    fn nobody_gives_way_to_nobody() {
        let spoil: [fn(&mut Observed); 6] = [
            |o| o.peers.get_mut("orders-1").unwrap().heard = BootTime(9_000 - members::SILENT),
            // The API server is away: nobody could take the lease, and only a release would end it.
            |o| o.tasks.lease.failures = 1,
            |o| o.lease.confirmed.as_mut().unwrap().sent = BootTime(9_000 - 3_000),
            |o| o.peers.clear(),
            |o| record(o).rule = SyncRule::any(1, [third()]),
            |o| record(o).members.get_mut("orders-1").unwrap().state = MemberState::Cloning,
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = stuck(9_000);
            spoil(&mut observed);
            assert_ne!(decided(&observed, 9_000).rule, "give way", "{index}");
        }
    }

    /// [`elected`], and the old primary `orders-1` is gone; `orders-2` has WAL up to `has`.
    fn cannot_begin(has: u64) -> Observed {
        let mut observed = elected();
        observed.tasks.lease.running = None;
        observed.tasks.start.failures = 3;
        let mut report = record(&mut observed).members["orders-2"].clone();
        report.state = MemberState::CatchingUp;
        let position = Some(Position {
            lsn: Lsn(has),
            ..position()
        });
        let peer = Peer {
            position,
            report,
            replayed: None,
            heard: BootTime(70_000),
            promised: Epoch(2),
        };
        observed.peers = [("orders-2".to_owned(), peer)].into();
        observed
    }

    /// What is decided at 71 s by a holder that has held the lease since 1 s: what `observed` says at the beginning, and now.
    fn at_last(begins: &Observed, mut observed: Observed) -> Decision {
        let memo = decide(begins, &settled(), BootTime(1_500)).memo;
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(70_900);
        decide(&observed, &memo, BootTime(71_500))
    }

    #[test]
    fn an_elected_holder_that_cannot_begin_leaves_the_lease_to_one_that_has_all_that_it_came_with() {
        let released = |decision: &Decision| match &decision.action {
            Action::WriteLease {
                content,
                purpose: Purpose::Release,
                ..
            } => content.release.as_ref().and_then(|release| release.position),
            _ => None,
        };
        let down = |mut observed: Observed| {
            (observed.postgres, observed.tasks.start.failures) = (stopped(), 0);
            volume(&mut observed).read = BootTime(70_000);
            observed
        };
        for has in [0x100, 0x180] {
            let observed = cannot_begin(has);
            assert_eq!(
                released(&at_last(&observed, observed.clone())),
                Some(position()),
                "{has}"
            );
            assert_eq!(
                released(&at_last(&observed, down(observed.clone()))),
                Some(position()),
                "{has}"
            );
        }
        let behind = cannot_begin(0xFF);
        for now in [behind.clone(), down(behind.clone())] {
            let decision = at_last(&behind, now);
            assert_eq!(
                decision.memo.gives_way, None,
                "it alone has what may have been acknowledged"
            );
        }
        let mut forked = cannot_begin(0x180);
        let peer = forked.peers.get_mut("orders-2").unwrap();
        peer.position.as_mut().unwrap().timeline = Timeline(2);
        assert_eq!(at_last(&forked, forked.clone()).memo.gives_way, None);
        let observed = cannot_begin(0x100);
        let unknown = at_last(&down(observed.clone()), down(observed));
        assert_eq!(unknown.memo.gives_way, None, "where its WAL ends was never known");
    }

    /// Both others follow, and enough of them could promise.
    fn followed_by_two(now: u64) -> Observed {
        let mut observed = stuck(now);
        record(&mut observed).rule = SyncRule::any(1, [other_holder().incarnation.member, third()]);
        let mut report = record(&mut observed).members["orders-1"].clone();
        report.member = third();
        let mut peer = observed.peers["orders-1"].clone();
        peer.report.member = third();
        observed.peers.insert("orders-2".to_owned(), peer);
        record(&mut observed).members.insert("orders-2".to_owned(), report);
        observed
    }

    #[test]
    fn nobody_gives_way_to_those_that_have_no_room_either() {
        let now = 9_000;
        let full = |pods: &[&str]| {
            let mut observed = followed_by_two(now);
            for pod in pods {
                observed.peers.get_mut(*pod).unwrap().report.full = [Volume::Wal].into();
            }
            gives_way(&observed, &settled(), now)
        };
        assert!(full(&[]));
        assert!(
            full(&["orders-1"]) && full(&["orders-2"]),
            "who has no room promises all the same"
        );
        assert!(!full(&["orders-1", "orders-2"]));
    }

    #[test]
    fn an_elected_holder_without_room_leaves_the_lease_at_once_to_one_that_has_room() {
        let decided = |own: bool, other: bool, begun: bool| {
            let mut observed = cannot_begin(0x100);
            observed.tasks.start.running = begun.then_some(Work::Promote);
            (
                observed.lease.confirmed.as_mut().unwrap().sent,
                observed.tasks.start.failures,
            ) = (BootTime(70_900), 0);
            observed.full = own.then_some(Volume::Wal).into_iter().collect();
            let peer = observed.peers.get_mut("orders-2").unwrap();
            peer.report.full = other.then_some(Volume::Wal).into_iter().collect();
            let memo = Memo {
                holding_since: Some(BootTime(70_500)),
                ..settled()
            };
            decide(&observed, &memo, BootTime(71_000))
        };
        let Action::WriteLease { content, .. } = decided(true, false, false).action else {
            panic!("{:?}", decided(true, false, false))
        };
        let release = content.release.unwrap();
        let left = (release.position, release.successor.as_deref());
        // It would be elected again itself, if it were the first to see that the lease is free.
        assert_eq!(left, (Some(position()), Some("orders-2")));
        assert_eq!(
            decided(true, true, false).memo.gives_way,
            None,
            "that one could not be promoted either"
        );
        assert_eq!(
            decided(true, false, true).memo.gives_way,
            None,
            "what it has room for, it has begun"
        );
        assert_eq!(decided(false, false, false).rule, "promote");
    }

    /// From then on it may have acknowledged more than it came with.
    #[test]
    fn a_holder_that_was_started_for_writing_claims_no_position_that_it_came_with() {
        let came = Memo {
            inherited: Some(position()),
            ..settled()
        };
        let inherited = |observed: &Observed| decide(observed, &came, BootTime(1_500)).memo.inherited;
        let mut writes = primary();
        assert_eq!(inherited(&writes), None);
        writes.postgres.answer = None;
        assert_eq!(inherited(&writes), None, "also before it has recovered");
        assert_eq!(inherited(&standby()), None, "another one holds the lease");
        let mut lapsed = cannot_begin(0x100);
        lapsed.lease.confirmed = None;
        lapsed.postgres = stopped();
        assert_eq!(inherited(&lapsed), Some(position()), "it was not renewed, to give way");
    }

    #[test]
    fn the_lease_is_released_once_and_left_alone_then() {
        let now = 9_000;
        let memo = decided(&stuck(now), now).memo;
        let mut observed = stuck(now);
        observed.postgres = stopped();
        let decision = decide(&observed, &memo, BootTime(now));
        let released = matches!(
            decision.action,
            Action::WriteLease {
                purpose: Purpose::Release,
                ..
            }
        );
        assert!(released, "{decision:?}");
        let member = volume(&mut observed).member.as_ref().unwrap().id.clone();
        record(&mut observed).holder = None;
        record(&mut observed).release = Some(Release {
            member,
            position: None,
            successor: None,
        });
        observed.lease.holder_since = BootTime(now);
        let decision = decide(&observed, &decision.memo, BootTime(now + 10));
        assert_eq!((decision.action, decision.memo.gives_way), (Action::Wait, None));
    }

    #[test]
    fn who_gives_way_does_so_until_another_epoch() {
        let gives_way = |epoch: u64| {
            let mut lapsed = primary();
            lapsed.lease.confirmed = None;
            let memo = Memo {
                gives_way: Some(Epoch(epoch)),
                ..settled()
            };
            decide(&lapsed, &memo, BootTime(1_500)).memo.gives_way
        };
        assert_eq!((gives_way(1), gives_way(0)), (Some(Epoch(1)), None));
    }

    #[test]
    fn a_long_recovery_is_interrupted_once_in_two_minutes_at_most() {
        let now = 400_000;
        let mut observed = stuck(now);
        observed.postgres.answer.as_mut().unwrap().in_recovery = true;
        let unable = |gave_way| Memo {
            unable_since: Some(BootTime(now - UNABLE)),
            gave_way,
            ..settled()
        };
        let rule = |memo: &Memo| decide(&observed, memo, BootTime(now)).rule;
        assert_eq!(rule(&unable(None)), "give way");
        assert_ne!(rule(&unable(Some(BootTime(now - AGAIN + 1)))), "give way");
        assert_eq!(rule(&unable(Some(BootTime(now - AGAIN)))), "give way");
        // Once another one has served in between, it is of use again; not if that one only held the lease.
        let gave_way = unable(Some(BootTime(now - 10_000)));
        let after = |other: &Observed| decide(other, &gave_way, BootTime(1_100)).memo.gave_way;
        assert_eq!(after(&standby()), None);
        let mut unable_as_well = standby();
        record(&mut unable_as_well).holder.as_mut().unwrap().serving = false;
        assert_eq!(after(&unable_as_well), gave_way.gave_way);
        assert_eq!(
            decide(&observed, &gave_way, BootTime(now)).memo.gave_way,
            gave_way.gave_way
        );
    }
}
