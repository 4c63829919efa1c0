use super::super::fixtures::*;
use super::super::*;
use super::LAG;
use crate::protocol::{Lsn, MemberState};

const NOW: u64 = 30_000;

/// A primary that should hand over to `orders-1`, which streams and reports.
fn asked() -> Observed {
    let mut observed = primary();
    cluster(&mut observed).primary = Some("orders-1".to_owned());
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(NOW - 100);
    observed.tasks.lease.running = Some(Work::WriteLease);
    let peer = observed.peers.get_mut("orders-1").unwrap();
    peer.heard = BootTime(NOW - members::SILENT.0 + 1);
    let flushed = (peer.report.member.clone(), position().lsn);
    observed.postgres.standbys.extend([flushed]);
    observed.tasks.checkpoint.ended = BootTime(NOW);
    seen(&mut observed, NOW);
    observed
}

/// The positions of the standbys were read at `at`.
fn seen(observed: &mut Observed, at: u64) {
    observed.postgres.answer.as_mut().unwrap().asked = BootTime(at);
}

fn decided(observed: &Observed, memo: &Memo) -> Decision {
    decide(observed, memo, BootTime(NOW))
}

fn successor(observed: &mut Observed) -> &mut Peer {
    observed.peers.get_mut("orders-1").unwrap()
}

fn written(observed: &mut Observed, lsn: u64) {
    own_position(observed).lsn = Lsn(lsn);
}

#[test]
fn a_handover_waits_for_a_paused_replay_for_a_limited_time() {
    let mut observed = asked();
    let lsn = position().lsn.0 + LAG.0 + 1;
    successor(&mut observed).position.as_mut().unwrap().lsn = Lsn(lsn);
    successor(&mut observed).replayed = Some(position().lsn);
    let first = decided(&observed, &settled());
    assert_ne!(first.rule, "hand-over");
    let since = |since: u64| wished(since, false);
    assert_eq!(first.memo.wished, since(NOW).wished);
    assert_ne!(decided(&observed, &since(NOW - super::REPLAY.0 + 1)).rule, "hand-over");
    assert_eq!(decided(&observed, &since(NOW - super::REPLAY.0)).rule, "hand-over");
    cluster(&mut observed).primary = None;
    assert_eq!(decided(&observed, &since(0)).memo.wished, None);
}

/// The memory of a holder for which `orders-1` has been requested since then.
fn wished(since: u64, tried: bool) -> Memo {
    let pod = "orders-1".to_owned();
    let since = BootTime(since);
    Memo {
        wished: Some(super::Wish { pod, since, tried }),
        ..settled()
    }
}

#[test]
fn only_an_urgent_handover_accepts_a_successor_with_much_to_replay() {
    let mut observed = asked();
    for (queue, urgent, hands_over) in [
        (super::LATE.0, false, true),
        (super::LATE.0 + 1, false, false),
        (super::LATE.0 + 1, true, true),
    ] {
        successor(&mut observed).position.as_mut().unwrap().lsn = Lsn(queue);
        successor(&mut observed).replayed = Some(Lsn(0));
        cluster(&mut observed).urgent = urgent;
        let decision = decided(&observed, &wished(0, false));
        let why = decision.because.contains("more than 1 GiB of WAL to replay");
        assert_eq!(
            (decision.rule == "hand-over", why),
            (hands_over, !hands_over),
            "{queue} {urgent}"
        );
        let early = decided(&observed, &wished(NOW, false));
        let why = early.because.contains("more than 1 GiB of WAL to replay");
        assert_eq!((early.rule == "hand-over", why), (false, !hands_over));
    }
}

#[test]
fn only_a_standby_that_is_near_and_able_is_a_target() {
    let decision = decided(&asked(), &settled());
    assert_eq!(
        (decision.rule, decision.action),
        ("hand-over", Action::Stop(Stop::Fast))
    );
    assert_eq!(decision.memo.handing_over.as_deref(), Some("orders-1"));
    let mut observed = asked();
    written(&mut observed, position().lsn.0 + LAG.0);
    assert_eq!(decided(&observed, &settled()).rule, "hand-over");
    successor(&mut observed).replayed = Some(Lsn(position().lsn.0.saturating_sub(LAG.0)));
    assert_eq!(decided(&observed, &settled()).rule, "hand-over");
    let spoil: [fn(&mut Observed); 10] = [
        |o| written(o, position().lsn.0 + LAG.0 + 1),
        |o| {
            // It has all WAL, and has not replayed the last 17 MB.
            successor(o).position.as_mut().unwrap().lsn = Lsn(position().lsn.0 + LAG.0 + 1);
            successor(o).replayed = Some(position().lsn);
        },
        |o| successor(o).heard = BootTime(NOW).minus(members::SILENT),
        |o| successor(o).report.state = MemberState::CatchingUp,
        |o| successor(o).report.fault = Some("its disk is full".to_owned()),
        |o| o.postgres.standbys.clear(),
        |o| o.postgres.open = false,
        |o| cluster(o).replicas = 1,
        |o| cluster(o).fenced.extend(["orders-1".to_owned()]),
        |o| cluster(o).primary = Some("orders-0".to_owned()),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = asked();
        spoil(&mut observed);
        assert_ne!(decided(&observed, &settled()).rule, "hand-over", "{index}");
    }
}

#[test]
fn a_checkpoint_is_made_before_the_stop() {
    let mut observed = asked();
    // One of before, or of an earlier run of the server: poolers do not pause any more.
    observed.tasks.checkpoint.ended = BootTime(NOW - 100);
    observed.tasks.start.ended = BootTime(NOW - 99);
    assert_eq!(decided(&observed, &settled()).action, Action::Checkpoint);
    observed.tasks.start.ended = BootTime(0);
    observed.tasks.checkpoint.ended = BootTime(NOW - 4_000);
    let first = decided(&observed, &settled());
    assert_eq!((first.rule, first.action), ("hand-over", Action::Checkpoint));
    assert_eq!(first.memo.handing_over, None);
    observed.tasks.checkpoint.running = Some(Work::Checkpoint);
    assert_eq!(decided(&observed, &settled()).action, Action::Wait);
    observed.tasks.checkpoint = Task {
        ended: BootTime(NOW - 1),
        failures: 1,
        ..Task::default()
    };
    assert_eq!(decided(&observed, &settled()).action, Action::Stop(Stop::Fast));
}

#[test]
fn the_successors_position_is_read_after_the_checkpoint() {
    let mut observed = asked();
    seen(&mut observed, NOW - 1);
    let nothing = |observed: &Observed, why: &str| {
        let Decision { rule, memo, .. } = decided(observed, &settled());
        let begun = (memo.handing_over, memo.wished.unwrap().tried);
        assert_eq!((rule, begun), ("wait", (None, false)), "{why}");
    };
    nothing(&observed, "the checkpoint was not over");
    seen(&mut observed, NOW);
    let near = decided(&observed, &settled());
    assert_eq!(near.memo.handing_over.as_deref(), Some("orders-1"));
    written(&mut observed, position().lsn.0 + LAG.0 + 1);
    nothing(&observed, "it receives nothing any more");
    written(&mut observed, position().lsn.0);
    assert_eq!(decided(&observed, &settled()).rule, "hand-over", "it does again");
    let member = successor(&mut observed).report.member.clone();
    observed.postgres.standbys.remove(&member);
    nothing(&observed, "it has lost its stream");
}

#[test]
fn a_handover_ends_with_the_lease_and_when_it_is_taken_again() {
    let goes_on = |observed: &Observed, begun_in: u64| {
        let mut memo = Memo {
            handing_over: Some("orders-1".to_owned()),
            handing_in: Some(Epoch(begun_in)),
            ..settled()
        };
        super::remember(&facts::Context::new(observed, BootTime(NOW)), &mut memo);
        memo.handing_over.is_some()
    };
    assert!(goes_on(&asked(), 1) && !goes_on(&asked(), 0));
    let mut gone = asked();
    hold_by(&mut gone, other_holder(), 2);
    assert!(!goes_on(&gone, 1));
}

#[test]
fn a_request_has_one_try() {
    let first = decided(&asked(), &wished(NOW - 1, false));
    let tried = wished(NOW - 1, true);
    assert_eq!((first.rule, &first.memo.wished), ("hand-over", &tried.wished));
    assert_eq!(decided(&asked(), &tried).rule, "wait");
    let mut another = asked();
    cluster(&mut another).primary = Some("orders-2".to_owned());
    let asked_anew = decided(&another, &tried).memo.wished.unwrap();
    assert_eq!((asked_anew.since, asked_anew.tried), (BootTime(NOW), false));
    cluster(&mut another).primary = None;
    assert_eq!(
        decided(&another, &tried).memo.wished,
        None,
        "then it may be asked for again"
    );
}

#[test]
fn an_old_request_is_not_carried_out() {
    let at = |age: u64| {
        let mut observed = asked();
        let now = NOW + age;
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
        successor(&mut observed).heard = BootTime(now);
        observed.tasks.checkpoint.ended = BootTime(now);
        seen(&mut observed, now);
        super::super::decide(&observed, &wished(NOW, false), BootTime(now)).rule
    };
    assert_eq!(at(super::LATEST.0 - 1), "hand-over");
    assert_eq!(
        at(super::LATEST.0),
        "wait",
        "the operator has given it up, or is about to"
    );
}
