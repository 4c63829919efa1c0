use std::collections::BTreeMap;

use super::super::fixtures::*;
use super::super::*;
use crate::protocol::{LeaseRecord, Lsn, MemberId, MemberState, Position, Timeline};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};

fn decided(observed: &Observed, now: u64) -> Decision {
    decide(observed, &Memo::default(), BootTime(now))
}

#[test]
fn the_holder_starts_for_writing() {
    let mut observed = primary();
    observed.postgres = stopped();
    record(&mut observed).holder.as_mut().unwrap().serving = false;
    observed.tasks.lease.running = Some(Work::WriteLease);
    let decision = decided(&observed, 1_200);
    let expected = Action::StartPrimary {
        epoch: crate::protocol::Epoch(1),
        until: BootTime(1_000).plus(Timing::DEFAULT.fence),
        settings: SETTINGS.to_owned(),
        rule: SyncRule::default(),
    };
    assert_eq!(decision.action, expected);
    assert_eq!(
        decision.dead_man,
        Some(BootTime(1_000 + Timing::DEFAULT.fence.0 + 1_125))
    );
}

#[test]
fn no_member_starts_for_writing_without_the_lease_and_sound_data() {
    let spoil: [fn(&mut Observed); 6] = [
        |o| o.lease.confirmed = None,
        |o| o.lease.confirmed.as_mut().unwrap().epoch = crate::protocol::Epoch(7),
        |o| hold_by(o, other_holder(), 2),
        |o| record(o).system_id = Some("another".to_owned()),
        |o| volume(o).data = Data::Unknown,
        |o| o.tasks.volume.running = Some(Work::StoreCertificate),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = primary();
        observed.postgres = stopped();
        observed.tasks.lease.running = Some(Work::WriteLease);
        spoil(&mut observed);
        let decision = decided(&observed, 1_200);
        assert!(
            !matches!(decision.action, Action::StartPrimary { .. }),
            "{index}: {decision:?}"
        );
    }
}

#[test]
fn a_route_of_a_higher_epoch_is_forged_only_while_the_lease_names_this_run_in_its_epoch() {
    let mut observed = primary();
    let held = record(&mut observed).clone();
    let own = held.holder.clone().unwrap().incarnation;
    assert!(is_route_forged(&held, &own, Epoch(1)));
    let spoils: [fn(&mut LeaseRecord); 5] = [
        |lease| lease.epoch = Epoch(2),
        |lease| lease.holder = None,
        |lease| lease.holder = Some(other_holder()),
        |lease| lease.holder.as_mut().unwrap().incarnation.run = "run-2".to_owned(),
        |lease| lease.holder.as_mut().unwrap().incarnation.pod_uid = "pod-9".to_owned(),
    ];
    for (index, spoil) in spoils.into_iter().enumerate() {
        let mut lease = held.clone();
        spoil(&mut lease);
        assert!(!is_route_forged(&lease, &own, Epoch(1)), "{index}");
    }
}

#[test]
fn the_route_follows_when_a_promotion_begins() {
    let mut observed = elected();
    observed.route = None;
    assert_eq!(decided(&observed, 1_200).rule, "promote");
    observed.tasks.start.running = Some(Work::Promote);
    assert_eq!(decided(&observed, 1_200).rule, "route");
    // The route does not follow a primary that stops.
    let stopping = Memo {
        stopping: Some(Stopping {
            stop: Stop::Fast,
            since: BootTime(1_100),
        }),
        ..settled()
    };
    assert_ne!(decide(&observed, &stopping, BootTime(1_200)).rule, "route");
    let mut standby = elected();
    standby.route = None;
    standby.tasks.start.failures = 1;
    standby.tasks.start.ended = BootTime(1_190);
    assert_eq!(decided(&standby, 1_200).action, Action::Wait, "nothing is promoted yet");
}

#[test]
fn a_reporting_member_is_admitted_and_the_slot_of_a_former_one_dropped() {
    let mut observed = primary();
    let peer = observed.peers.get_mut("orders-1").unwrap();
    peer.promised = Epoch(1);
    let member = peer.report.member.clone();
    let decided = |observed: &Observed| decide(observed, &settled(), BootTime(1_200));
    assert_ne!(decided(&observed).rule, "admit", "it is already");
    observed.admitted.clear();
    assert_eq!(decided(&observed).action, Action::Admit { member });
    observed.tasks.lease.running = Some(Work::WriteLease);
    for (state, admitted) in [
        (MemberState::Streaming, false),
        (MemberState::CatchingUp, false),
        (MemberState::Starting, true),
    ] {
        let peer = observed.peers.get_mut("orders-1").unwrap();
        (peer.promised, peer.report.state) = (Epoch(0), state);
        let rule = decided(&observed).rule;
        assert_eq!(
            rule == "admit",
            admitted,
            "it has not promised, and is {state:?}: {rule}"
        );
    }
    let peers = primary().peers;
    let decision = decide(
        &primary(),
        &Memo {
            kept: None,
            ..settled()
        },
        BootTime(1_200),
    );
    match decision.action {
        Action::DropSlots { keep } => assert!(keep.contains(&peers["orders-1"].report.member)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_member_that_is_silent_or_forgotten_is_not_admitted_again() {
    let decided = |memo: &Memo, now: u64| {
        let mut observed = primary();
        observed.admitted.clear();
        observed.peers.get_mut("orders-1").unwrap().promised = Epoch(1);
        cluster(&mut observed).replicas = 1;
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
        observed.tasks.lease.running = Some(Work::WriteLease);
        decide(&observed, memo, BootTime(now))
    };
    assert_eq!(decided(&settled(), 1_200).rule, "admit");
    let silent = 1_000 + super::super::members::SILENT.0;
    assert_ne!(
        decided(&settled(), silent).rule,
        "admit",
        "its slot would be lost again"
    );
    let after = decided(&settled(), 11_000);
    assert_eq!(after.rule, "drop-slots");
    assert_ne!(decided(&after.memo, 11_000).rule, "admit");
}

#[test]
fn a_slot_that_could_not_be_dropped_is_tried_again() {
    let mut observed = primary();
    assert_ne!(decide(&observed, &settled(), BootTime(1_200)).rule, "drop-slots");
    observed.tasks.admit = Task {
        failures: 2,
        ended: BootTime(1_000),
        error: Some("it is in use".to_owned()),
        running: None,
    };
    let early = decide(&observed, &settled(), BootTime(1_399));
    assert_eq!((early.action, early.wake), (Action::Wait, Some(BootTime(1_400))));
    let due = decide(&observed, &settled(), BootTime(1_400));
    assert_eq!(due.rule, "drop-slots");
}

#[test]
fn a_member_that_follows_another_keeps_no_slots() {
    let mut observed = standby();
    observed.tasks.report.running = Some(Work::Report);
    assert_eq!(decided(&observed, 1_200).action, Action::Wait);
    observed.postgres.slots.extend([third()]);
    let keep = std::collections::BTreeSet::new();
    let decision = decided(&observed, 1_200);
    assert_eq!(decision.action, Action::DropSlots { keep });
    assert_eq!(
        decision.memo.kept, None,
        "as a primary it drops slots of former members again"
    );
    let spoil: [fn(&mut Observed); 6] = [
        |o| o.tasks.admit.running = Some(Work::DropSlots),
        |o| o.postgres.configured.as_mut().unwrap().upstream = None,
        |o| o.postgres.process = Process::Stopped { exit: None },
        |o| record(o).holder.as_mut().unwrap().timeline = None,
        |o| record(o).holder = None,
        |o| *o = elected(),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = observed.clone();
        spoil(&mut observed);
        observed.postgres.slots.extend([third()]);
        assert_ne!(decided(&observed, 1_200).rule, "drop-slots", "{index}");
    }
    let mut used = observed;
    used.tasks.admit = Task {
        failures: 1,
        ended: BootTime(1_100),
        ..Task::default()
    };
    let early = decided(&used, 1_200);
    assert_eq!((early.action, early.wake), (Action::Wait, Some(BootTime(1_300))));
}

#[test]
fn only_members_that_promised_or_have_its_timeline_may_stream_from_a_promoted_primary_at_once() {
    let members = |observed: &Observed| match decided(observed, 1_200).action {
        Action::Promote { members, .. } => members,
        other => panic!("{other:?}"),
    };
    let only = |member: MemberId| BTreeSet::from([member]);
    let mut observed = elected();
    third_answers(&mut observed, 1, None);
    assert_eq!(members(&observed), BTreeSet::new());
    third_answers(&mut observed, 2, None);
    assert_eq!(members(&observed), only(third()));
    record(&mut observed).rule.names.remove(&third());
    assert_eq!(members(&observed), BTreeSet::new(), "it is none of those that count");

    let mut observed = elected();
    let second = record(&mut observed).members["orders-1"].member.clone();
    for (timeline, expected) in [(1, only(second)), (2, BTreeSet::new())] {
        let position = Position {
            timeline: Timeline(timeline),
            lsn: Lsn(0x80),
        };
        record(&mut observed).positions = BTreeMap::from([("orders-1".to_owned(), position)]);
        assert_eq!(members(&observed), expected, "timeline {timeline}");
    }
}

#[test]
fn a_standby_that_was_elected_is_promoted_to_the_reserved_timeline_once() {
    let mut observed = elected();
    let promote = Action::Promote {
        epoch: Epoch(2),
        until: BootTime(FENCE),
        timeline: Timeline(2),
        rule: record(&mut observed).rule.clone(),
        members: BTreeSet::new(),
    };
    assert_eq!(decided(&observed, 1_200).action, promote);
    // The promotion was begun and not finished: another number is reserved.
    volume(&mut observed).promise.as_mut().unwrap().promoting = Some(Timeline(2));
    observed.tasks.lease.running = None;
    let spent = observed.clone();
    let context = Context::new(&observed, BootTime(1_200));
    let decision = super::reserve_again(&context, &mut Draft::new(&Memo::default())).expect("another number");
    let Action::WriteLease { content, purpose, .. } = decision.action else {
        panic!("a Lease is written")
    };
    assert_eq!(
        (content.epoch, content.timeline, purpose),
        (Epoch(3), Some(Timeline(3)), Purpose::Take)
    );
    // With that number in the Lease it is promoted, and the number is not reserved again.
    record(&mut observed).epoch = Epoch(3);
    record(&mut observed).timeline = Some(Timeline(3));
    observed.lease.confirmed.as_mut().unwrap().epoch = Epoch(3);
    observed.tasks.lease.running = Some(Work::WriteLease);
    let decision = decided(&observed, 1_200);
    assert!(
        matches!(
            decision.action,
            Action::Promote {
                timeline: Timeline(3),
                ..
            }
        ),
        "{decision:?}"
    );
    observed.tasks.lease.running = None;
    let context = Context::new(&observed, BootTime(1_200));
    assert!(super::reserve_again(&context, &mut Draft::new(&Memo::default())).is_none());
    let busy: [fn(&mut Observed); 2] = [
        |o| o.tasks.lease.running = Some(Work::WriteLease),
        |o| o.tasks.start.running = Some(Work::StartStandby),
    ];
    for (index, busy) in busy.iter().enumerate() {
        let mut observed = spent.clone();
        busy(&mut observed);
        let context = Context::new(&observed, BootTime(1_200));
        assert!(
            super::reserve_again(&context, &mut Draft::new(&Memo::default())).is_none(),
            "{index}"
        );
    }
    // A position that was electable through a running stream may be lower after a crash.
    let mut torn = elected();
    torn.postgres.answer.as_mut().unwrap().begins = Some(crate::protocol::Lsn(u64::MAX));
    assert_ne!(decided(&torn, 1_200).rule, "promote");
    // While WAL may still arrive, or is not replayed, nothing is promoted.
    let mut observed = elected();
    observed.postgres.answer.as_mut().unwrap().received_all = false;
    assert_ne!(decided(&observed, 1_200).rule, "promote");
}

#[test]
fn a_standbys_data_is_never_started_for_writing() {
    let mut observed = elected();
    observed.postgres = stopped();
    assert_eq!(decided(&observed, 1_200).rule, "start-to-promote");
    data(&mut observed).primary = true;
    assert_eq!(
        decided(&observed, 1_200).rule,
        "start-to-promote",
        "another timeline is reserved"
    );
    data(&mut observed).timeline = Timeline(2);
    assert_eq!(decided(&observed, 1_200).rule, "start-primary");
}
