use super::super::fixtures::*;
use super::super::*;
use super::{ROUTES, SUCCESSION};
use crate::protocol::{Lsn, MemberState, Position, Timeline};
use crate::timing::BootTime;
use crate::units::Millis;

fn decided(observed: &Observed, now: u64) -> Decision {
    decide(observed, &settled(), BootTime(now))
}

#[test]
fn a_primary_stops_fast_then_releases_with_its_position_then_ends() {
    let mut observed = primary();
    observed.terminating = true;
    observed.peers.clear();
    assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
    observed.postgres = stopped();
    observed.postgres.process = Process::Stopped {
        exit: Some(Exit {
            at: BootTime(1_300),
            ran: Millis(9_000),
            asked: true,
        }),
    };
    volume(&mut observed).read = BootTime(1_250);
    assert_eq!(
        decided(&observed, 1_300).action,
        Action::Wait,
        "the control file was read before the stop"
    );
    volume(&mut observed).read = BootTime(1_300);
    match decided(&observed, 1_310).action {
        Action::WriteLease {
            content,
            purpose: Purpose::Release,
            ..
        } => {
            assert_eq!(content.holder, None);
            let release = content.release.unwrap();
            assert_eq!(
                release.position,
                Some(Position {
                    timeline: Timeline(1),
                    lsn: Lsn(0x100)
                })
            );
            record(&mut observed).holder = None;
            record(&mut observed).release = Some(release);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(decided(&observed, 1_320).action, Action::Exit);
}

#[test]
fn a_primary_serves_while_clients_cannot_be_led_elsewhere() {
    const ASKED: u64 = 2_000;
    let observed = |now: u64, checkpoint: Option<u64>| {
        let mut observed = primary();
        observed.terminating = true;
        observed.tasks.lease.running = Some(Work::WriteLease);
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
        observed.peers.get_mut("orders-1").unwrap().heard = BootTime(now);
        match checkpoint {
            Some(ended) => observed.tasks.checkpoint.ended = BootTime(ended),
            None => observed.tasks.checkpoint.running = Some(Work::Checkpoint),
        }
        observed
    };
    let memo = Memo {
        terminating_since: Some(BootTime(ASKED)),
        ..settled()
    };
    let at = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now));
    let stops = |observed: &Observed, now: u64| at(observed, now).action == Action::Stop(Stop::Fast);
    let due = ASKED + super::SERVES_ON.0;
    let early = at(&observed(ASKED, Some(ASKED)), ASKED);
    assert_eq!((early.action, early.wake), (Action::Wait, Some(BootTime(due))));
    assert!(!stops(&observed(due - 1, Some(due - 1)), due - 1) && stops(&observed(due, Some(due)), due));
    // A checkpoint comes first, and is waited for with a time limit.
    let now = ASKED + 20_000;
    let fresh = Memo {
        terminating_since: None,
        ..memo.clone()
    };
    let old = observed(now, Some(0));
    assert_eq!(decide(&old, &fresh, BootTime(now)).action, Action::Checkpoint);
    let late = ASKED + super::CHECKPOINT.0;
    assert!(!stops(&observed(late - 1, None), late - 1) && stops(&observed(late, None), late));
    // Clients are not disconnected later if they gain nothing by it, and a stop that has begun continues.
    let spoil: [fn(&mut Observed); 4] = [
        |o| o.peers.clear(),
        |o| cluster(o).stop = true,
        |o| cluster(o).replicas = 1,
        |o| o.postgres.open = false,
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut spoiled = observed(ASKED, Some(ASKED));
        spoil(&mut spoiled);
        assert!(stops(&spoiled, ASKED), "{index}");
    }
    let begun = Memo {
        stopping: Some(Stopping {
            stop: Stop::Fast,
            since: BootTime(ASKED),
        }),
        ..memo.clone()
    };
    let goes_on = decide(&observed(ASKED + 1, Some(ASKED)), &begun, BootTime(ASKED + 1));
    assert_eq!(goes_on.because, "PostgreSQL is stopping");
}

/// A primary that stops at SIGTERM and has released the lease at 2 s, to a successor or to no member in particular.
fn released(heard: bool) -> (Observed, Memo) {
    let mut observed = primary();
    observed.terminating = true;
    observed.postgres = stopped();
    let peer = observed.peers.get_mut("orders-1").unwrap();
    peer.heard = BootTime(if heard { 1_900 } else { 0 });
    observed.tasks.lease.running = None;
    let decision = decide(&observed, &settled(), BootTime(2_000));
    let Action::WriteLease { content, .. } = decision.action else {
        panic!("{decision:?}")
    };
    record(&mut observed).holder = None;
    record(&mut observed).release = content.release;
    (observed.lease.confirmed, observed.lease.holder_since) = (None, BootTime(2_010));
    (observed, decision.memo)
}

#[test]
fn an_agent_that_has_released_the_lease_stays_until_clients_are_led_to_the_successor() {
    let (mut observed, memo) = released(true);
    let action = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).action;
    let waits = decide(&observed, &memo, BootTime(2_020));
    assert_eq!(waits.action, Action::Wait);
    assert_eq!(
        (waits.wake, waits.dead_man),
        (Some(BootTime(2_000).plus(SUCCESSION)), None)
    );
    assert_eq!(
        action(&observed, 2_000 + SUCCESSION.0),
        Action::Exit,
        "no member takes it"
    );
    hold_by(&mut observed, other_holder(), 2);
    observed.lease.holder_since = BootTime(2_100);
    assert_eq!(action(&observed, 2_100 + ROUTES.0 - 1), Action::Wait);
    assert_eq!(action(&observed, 2_100 + ROUTES.0), Action::Exit);
    // Other holders come after that: the agent ends nevertheless.
    observed.lease.holder_since = BootTime(9_000);
    assert_eq!(action(&observed, 9_000), Action::Exit);
}

#[test]
fn an_agent_does_not_wait_for_a_successor_that_does_not_exist() {
    let (observed, memo) = released(false);
    assert_eq!(decide(&observed, &memo, BootTime(2_020)).action, Action::Exit);
    let (mut unread, memo) = released(true);
    unread.lease.record = Reading::Unknown;
    assert_eq!(decide(&unread, &memo, BootTime(2_020)).action, Action::Exit);
    let (mut standby, _) = released(true);
    hold_by(&mut standby, other_holder(), 2);
    assert_eq!(
        decide(&standby, &settled(), BootTime(2_020)).action,
        Action::Exit,
        "it held nothing"
    );
}

/// The pod that a primary whose container ends leaves the lease to, as far as its report is heard.
fn heir(change: impl FnOnce(&mut Observed)) -> Option<String> {
    let mut observed = primary();
    observed.terminating = true;
    observed.postgres = stopped();
    let first = observed.peers.get_mut("orders-1").unwrap();
    (first.heard, first.report.state) = (BootTime(3_000), MemberState::CatchingUp);
    first.position = Some(position());
    let mut second = first.clone();
    second.position = Some(Position {
        lsn: Lsn(position().lsn.0 - 1),
        ..position()
    });
    observed.peers.insert("orders-2".to_owned(), second);
    change(&mut observed);
    match decided(&observed, 3_500).action {
        Action::WriteLease {
            content,
            purpose: Purpose::Release,
            ..
        } => content.release.unwrap().successor,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_primary_that_ends_names_the_member_that_is_fit_best_to_take_over() {
    let (best, other) = (Some("orders-1".to_owned()), Some("orders-2".to_owned()));
    assert_eq!(heir(|_| ()), best);
    assert_eq!(heir(|o| cluster(o).primary = other.clone()), other);
    fn first(observed: &mut Observed) -> &mut Peer {
        observed.peers.get_mut("orders-1").unwrap()
    }
    let spoil: [fn(&mut Observed); 5] = [
        |o| first(o).heard = BootTime(3_500).minus(super::super::election::FRESH),
        |o| first(o).report.state = MemberState::Cloning,
        |o| first(o).report.fault = Some("its disk is full".to_owned()),
        |o| {
            // Both have more WAL, and it has a quarter of a second's replay before it.
            for peer in o.peers.values_mut() {
                let end = &mut peer.position.as_mut().unwrap().lsn;
                end.0 += 32 << 20;
                peer.replayed = Some(*end);
            }
            first(o).replayed = Some(Lsn(0));
        },
        |o| cluster(o).fenced.extend(["orders-1".to_owned()]),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        assert_eq!(heir(spoil), other, "{index}");
    }
    let wanted_replays = |o: &mut Observed| {
        spoil[3](o);
        cluster(o).primary = Some("orders-1".to_owned());
    };
    assert_eq!(heir(wanted_replays), other, "its promotion would wait for the replay");
    let wanted_lacks = |more: u64| {
        heir(|o| {
            first(o).position.as_mut().unwrap().lsn.0 += more;
            cluster(o).primary = Some("orders-2".to_owned());
        })
    };
    assert_eq!(wanted_lacks((16 << 20) - 1), other);
    assert_eq!(wanted_lacks(16 << 20), best, "it could not cover what is left");
    assert_eq!(heir(|o| cluster(o).replicas = 1), None);
    assert_eq!(heir(|o| o.peers.clear()), None);
    assert_eq!(heir(|o| cluster(o).stop = true), None, "all must stop");
    let fenced = |o: &mut Observed| {
        o.terminating = false;
        cluster(o).fenced.extend(["orders-0".to_owned()]);
    };
    assert_eq!(heir(fenced), None);
}

#[test]
fn no_position_is_claimed_after_a_stop_that_was_not_clean() {
    let mut observed = primary();
    observed.terminating = true;
    observed.postgres = stopped();
    match &mut volume(&mut observed).data {
        Data::Present(database) => database.clean = false,
        other => panic!("{other:?}"),
    }
    match decided(&observed, 1_300).action {
        Action::WriteLease { content, .. } => assert_eq!(content.release.unwrap().position, None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_lease_is_released_while_a_process_lives() {
    let mut observed = primary();
    observed.terminating = true;
    observed.postgres = PostgresView { strays: 1, ..stopped() };
    assert_eq!(decided(&observed, 1_300).action, Action::Stop(Stop::Kill));
}

#[test]
fn a_stop_that_hangs_is_escalated_while_the_lease_is_renewed() {
    let mut observed = primary();
    observed.terminating = true;
    observed.peers.clear();
    let first = decided(&observed, 1_200);
    let renewal = decide(&observed, &first.memo, BootTime(3_100));
    assert_eq!(renewal.rule, "renew");
    observed.lease.confirmed.as_mut().unwrap().sent = BootTime(21_100);
    observed.tasks.lease.running = Some(Work::WriteLease);
    let second = decide(&observed, &first.memo, BootTime(21_200));
    assert_eq!(second.action, Action::Stop(Stop::Immediate));
}

#[test]
fn a_planned_stop_has_its_time_even_if_others_could_take_over() {
    let at = |now: u64| {
        let mut observed = primary();
        observed.terminating = true;
        observed.tasks.lease.running = Some(Work::WriteLease);
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now - 100);
        observed.peers.get_mut("orders-1").unwrap().heard = BootTime(now - 100);
        (observed.postgres.answer, observed.postgres.wrote) = (None, Some(BootTime(1_100)));
        observed
    };
    let mut memo = decided(&primary(), 1_100).memo;
    for now in (1_200..1_200 + stopping::LIMIT.0).step_by(900) {
        let decision = decide(&at(now), &memo, BootTime(now));
        let stops = matches!(decision.action, Action::Stop(_));
        assert_eq!((stops, decision.memo.steps_down), (now == 1_200, None), "at {now}");
        memo = decision.memo;
    }
    let late = 1_200 + stopping::LIMIT.0;
    let decision = decide(&at(late), &memo, BootTime(late));
    assert_eq!(
        (decision.rule, decision.action),
        ("step-down", Action::Stop(Stop::Immediate))
    );
}

#[test]
fn without_an_api_server_the_agent_still_ends() {
    let mut observed = primary();
    observed.terminating = true;
    observed.postgres = stopped();
    observed.tasks.lease.running = Some(Work::WriteLease);
    let memo = Memo {
        terminating_since: Some(BootTime(1_000)),
        ..settled()
    };
    assert_eq!(decide(&observed, &memo, BootTime(3_999)).action, Action::Wait);
    assert_eq!(decide(&observed, &memo, BootTime(4_000)).action, Action::Exit);
}

#[test]
fn a_standby_whose_container_ends_does_not_wait_for_the_primary() {
    let mut observed = standby();
    observed.terminating = true;
    cluster(&mut observed).stop = true;
    assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
}

#[test]
fn after_a_long_stop_there_is_time_to_release_the_lease() {
    let mut observed = primary();
    observed.terminating = true;
    observed.postgres = stopped();
    observed.tasks.lease.running = Some(Work::WriteLease);
    let memo = Memo {
        terminating_since: Some(BootTime(1_000)),
        last_exit: Some(BootTime(20_000)),
        ..settled()
    };
    let at = |now| decide(&observed, &memo, BootTime(now)).action;
    let end = 20_000 + super::RELEASE_LIMIT.0;
    assert_eq!((at(end - 1), at(end)), (Action::Wait, Action::Exit));
}

#[test]
fn standbys_stop_after_the_primary_and_stay() {
    let mut observed = standby();
    cluster(&mut observed).stop = true;
    assert_ne!(decided(&observed, 1_200).rule, "shut-down");
    record(&mut observed).holder = None;
    assert_eq!(decided(&observed, 1_200).action, Action::Stop(Stop::Fast));
    observed.postgres = stopped();
    assert_eq!(decided(&observed, 1_200).action, Action::Wait);
}
