use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::instance::successors::AGAIN;
use crate::protocol::{Lsn, MemberState, Release, Timeline, Volume};
use crate::quorum::SyncRule;

#[test]
fn an_elected_standby_has_more_time_to_replay() {
    let steps_down = |answers: bool, now: u64| {
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
        decide(&observed, &memo, BootTime(now)).memo.steps_down.is_some()
    };
    assert!(!steps_down(true, 1_000 + UNABLE.0));
    assert!(steps_down(false, 1_000 + UNABLE.0));
    assert!(steps_down(true, 1_000 + REPLAYING.0));
}

#[test]
fn a_holder_whose_postgresql_ends_again_and_again_has_less_time() {
    /// How it has ended, and how it runs.
    struct Ends {
        crashes: u32,
        last: u64,
        runs: bool,
        rule: bool,
    }
    let steps_down = |ends: &Ends, after: u64| {
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
        decide(&observed, &memo, BootTime(now)).memo.steps_down.is_some()
    };
    let ends = Ends {
        crashes: 3,
        last: 5_000,
        runs: true,
        rule: true,
    };
    assert!(steps_down(&ends, ENDING.0) && !steps_down(&ends, ENDING.0 - 1));
    let patient = [
        (Ends { crashes: 2, ..ends }, "a second start may well help"),
        (
            Ends { last: 120_000, ..ends },
            "it has stayed up since: a backend crashed",
        ),
        (Ends { rule: false, ..ends }, "an election may lose commits"),
    ];
    for (ends, because) in patient {
        assert!(
            !steps_down(&ends, UNABLE.0 - 1) && steps_down(&ends, UNABLE.0),
            "{because}"
        );
    }
    let down = Ends {
        last: 120_000,
        runs: false,
        ..ends
    };
    assert!(steps_down(&down, ENDING.0), "it does not come up");
}

/// The primary's canary is overdue; `orders-1` streams and reports.
fn stuck(now: u64) -> Observed {
    let mut observed = primary();
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now - 100);
    observed.peers.get_mut("orders-1").unwrap().heard = BootTime(now - 100);
    observed.postgres.wrote = Some(BootTime(now).minus(CANARY));
    observed
}

fn decided(observed: &Observed, now: u64) -> Decision {
    decide(observed, &settled(), BootTime(now))
}

#[test]
fn an_overdue_canary_makes_the_holder_step_down() {
    let mut observed = stuck(9_000);
    let decision = decided(&observed, 9_000);
    assert_eq!(
        (decision.rule, decision.action),
        ("step-down", Action::Stop(Stop::Immediate))
    );
    assert_eq!(decision.memo.steps_down, Some(Epoch(1)));
    assert!(is_said(&decision.memo, Epoch(1)) && !is_said(&decision.memo, Epoch(2)));
    observed.postgres.wrote = Some(BootTime(9_001).minus(CANARY));
    assert_ne!(
        decided(&observed, 9_000).rule,
        "step-down",
        "a slow disk is no dead one"
    );
}

fn steps_down(observed: &Observed, memo: &Memo, now: u64) -> bool {
    decide(observed, memo, BootTime(now)).memo.steps_down.is_some()
}

fn relieving(since: u64) -> Memo {
    Memo {
        relieves: Some(BootTime(since)),
        ..settled()
    }
}

#[test]
fn a_holder_that_relieved_one_that_could_not_write_has_a_longer_canary_limit() {
    let now = 300_000;
    let late = |by: u64| {
        let mut observed = stuck(now);
        observed.postgres.wrote = Some(BootTime(now - by));
        observed
    };
    assert!(steps_down(&late(CANARY.0), &settled(), now), "no disk was slow before");
    assert!(!steps_down(&late(SLOW.0 - 1), &relieving(now - 1_000), now));
    assert!(steps_down(&late(SLOW.0), &relieving(now - 1_000), now), "it hangs");
    let calm = decide(&late(100), &relieving(now - CALM.0), BootTime(now)).memo;
    assert_eq!(calm.relieves, None, "its disk has been well for long enough");
    assert!(
        decide(&late(100), &relieving(now - CALM.0 + 1), BootTime(now))
            .memo
            .relieves
            .is_some()
    );
    let mut mute = late(100);
    mute.postgres.greeted = Some(BootTime(now).minus(GREETING));
    assert!(steps_down(&mute, &relieving(now - 1_000), now), "that is no slow disk");
}

#[test]
fn a_slow_holder_after_a_slow_holder_keeps_the_lease() {
    let lasts = |memo: Memo| {
        let mut memo = memo;
        (60_000..1_260_000).step_by(1_000).find(|now| {
            let mut observed = stuck(*now);
            // Each write takes 6 s, and counts from its beginning.
            observed.postgres.wrote = Some(BootTime(now - now % 6_000 - 6_000));
            memo = decide(&observed, &memo, BootTime(*now)).memo;
            memo.steps_down.is_some()
        })
    };
    assert!(lasts(settled()).is_some_and(|at| at < 65_000));
    assert_eq!(lasts(relieving(60_000)), None, "for 20 minutes, and no end");
}

#[test]
fn a_holder_that_could_not_write_is_known_by_its_answers_or_by_a_release_without_a_position() {
    let relieves = |observed: &Observed| decide(observed, &relieving(0), BootTime(1_200)).memo.relieves;
    let mut other = standby();
    assert_eq!(relieves(&other), None, "that one is dead, or well");
    other.reply.as_mut().unwrap().steps_down = true;
    assert_eq!(relieves(&other), Some(BootTime(1_200)));
    other.reply.as_mut().unwrap().epoch = Epoch(0);
    assert_eq!(relieves(&other), None, "of an earlier tenure");
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
    assert_eq!(relieves(&lapsed), Some(BootTime(0)), "the lease has no new holder");
}

#[test]
fn a_postmaster_that_accepts_no_session_makes_a_holder_step_down_and_a_standby_unready() {
    let now = 30_000;
    let mut observed = stuck(now);
    observed.postgres.wrote = Some(BootTime(now));
    assert_ne!(decided(&observed, now).rule, "step-down", "it was not asked yet");
    observed.postgres.greeted = Some(BootTime(now - GREETING.0 + 1));
    assert_ne!(
        decided(&observed, now).rule,
        "step-down",
        "a busy machine is no dead postmaster"
    );
    assert_eq!(report::readiness(&observed, BootTime(now)), Ok(()));
    observed.postgres.greeted = Some(BootTime(now).minus(GREETING));
    assert_eq!(decided(&observed, now).rule, "step-down", "though it writes");
    let mut standby = standby();
    for (greeted, ready) in [(now - GREETING.0 + 1, true), (now - GREETING.0, false)] {
        standby.postgres.greeted = Some(BootTime(greeted));
        assert_eq!(report::readiness(&standby, BootTime(now)).is_ok(), ready);
    }
}

#[test]
fn no_holder_steps_down_if_no_member_could_take_over() {
    let spoil: [fn(&mut Observed); 6] = [
        |o| o.peers.get_mut("orders-1").unwrap().heard = BootTime(9_000).minus(members::SILENT),
        // The API server is unreachable: no member could take the lease, and only a release would end it.
        |o| o.tasks.lease.failures = 1,
        |o| o.lease.confirmed.as_mut().unwrap().sent = BootTime(9_000 - 3_000),
        |o| o.peers.clear(),
        |o| record(o).rule = SyncRule::any(1, [third()]),
        |o| record(o).members.get_mut("orders-1").unwrap().state = MemberState::Cloning,
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = stuck(9_000);
        spoil(&mut observed);
        assert_ne!(decided(&observed, 9_000).rule, "step-down", "{index}");
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
        backup: None,
    };
    observed.peers = [("orders-2".to_owned(), peer)].into();
    observed
}

/// The decision at 71 s of a holder that has held the lease since 1 s. `begins` is observed at the beginning,
/// `observed` at the end.
fn at_last(begins: &Observed, mut observed: Observed) -> Decision {
    let memo = decide(begins, &settled(), BootTime(1_500)).memo;
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(70_900);
    decide(&observed, &memo, BootTime(71_500))
}

#[test]
fn an_elected_holder_that_cannot_begin_leaves_the_lease_to_a_member_that_covers_its_position() {
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
            decision.memo.steps_down, None,
            "it alone has what may have been acknowledged"
        );
    }
    let mut forked = cannot_begin(0x180);
    let peer = forked.peers.get_mut("orders-2").unwrap();
    peer.position.as_mut().unwrap().timeline = Timeline(2);
    assert_eq!(at_last(&forked, forked.clone()).memo.steps_down, None);
    let observed = cannot_begin(0x100);
    let unknown = at_last(&down(observed.clone()), down(observed));
    assert_eq!(unknown.memo.steps_down, None, "where its WAL ends was never known");
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
fn no_holder_steps_down_for_members_without_room() {
    let now = 9_000;
    let full = |pods: &[&str]| {
        let mut observed = followed_by_two(now);
        for pod in pods {
            observed.peers.get_mut(*pod).unwrap().report.full = [Volume::Wal].into();
        }
        steps_down(&observed, &settled(), now)
    };
    assert!(full(&[]));
    assert!(
        full(&["orders-1"]) && full(&["orders-2"]),
        "a member without room promises nevertheless"
    );
    assert!(!full(&["orders-1", "orders-2"]));
}

#[test]
fn an_elected_holder_without_room_leaves_the_lease_at_once_to_a_member_with_room() {
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
    // It would be elected again if it were the first to see that the lease is free.
    assert_eq!(left, (Some(position()), Some("orders-2")));
    assert_eq!(
        decided(true, true, false).memo.steps_down,
        None,
        "that one could not be promoted either"
    );
    assert_eq!(
        decided(true, false, true).memo.steps_down,
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
    assert_eq!((decision.action, decision.memo.steps_down), (Action::Wait, None));
}

#[test]
fn a_holder_that_steps_down_does_so_until_another_epoch() {
    let steps_down = |epoch: u64| {
        let mut lapsed = primary();
        lapsed.lease.confirmed = None;
        let memo = Memo {
            steps_down: Some(Epoch(epoch)),
            ..settled()
        };
        decide(&lapsed, &memo, BootTime(1_500)).memo.steps_down
    };
    assert_eq!((steps_down(1), steps_down(0)), (Some(Epoch(1)), None));
}

#[test]
fn a_long_recovery_is_interrupted_once_in_two_minutes_at_most() {
    let now = 400_000;
    let mut observed = stuck(now);
    observed.postgres.answer.as_mut().unwrap().in_recovery = true;
    let unable = |stepped_down| Memo {
        unable_since: Some(BootTime(now).minus(UNABLE)),
        stepped_down,
        ..settled()
    };
    let rule = |memo: &Memo| decide(&observed, memo, BootTime(now)).rule;
    assert_eq!(rule(&unable(None)), "step-down");
    assert_ne!(rule(&unable(Some(BootTime(now - AGAIN.0 + 1)))), "step-down");
    assert_eq!(rule(&unable(Some(BootTime(now).minus(AGAIN)))), "step-down");
    // Once another member has served in between, it is of use again; not if that one only held the lease.
    let stepped_down = unable(Some(BootTime(now - 10_000)));
    let after = |other: &Observed| decide(other, &stepped_down, BootTime(1_100)).memo.stepped_down;
    assert_eq!(after(&standby()), None);
    let mut unable_as_well = standby();
    record(&mut unable_as_well).holder.as_mut().unwrap().serving = false;
    assert_eq!(after(&unable_as_well), stepped_down.stepped_down);
    assert_eq!(
        decide(&observed, &stepped_down, BootTime(now)).memo.stepped_down,
        stepped_down.stepped_down
    );
}
