use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::protocol::{FAULT_SILENT, Lsn, Position, Timeline};
use crate::timing::{BootTime, Timing};

fn decided(observed: &Observed, now: u64) -> Decision {
    decide(observed, &settled(), BootTime(now))
}

fn content(decision: &Decision) -> (&LeaseContent, Purpose) {
    match &decision.action {
        Action::WriteLease { content, purpose, .. } => (content, *purpose),
        other => panic!("{other:?} ({})", decision.because),
    }
}

#[test]
fn a_lease_that_was_made_again_is_taken_with_a_rule_that_is_known_to_hold() {
    let mut observed = restarted();
    let own = record(&mut observed).holder.take().unwrap().incarnation.member;
    make_again(&mut observed, own);
    record(&mut observed).rule = SyncRule::any(1, [third()]);
    data(&mut observed).written = Lsn(0x180);
    for mode in [
        DurabilityMode::Async,
        DurabilityMode::Preferred,
        DurabilityMode::Required,
    ] {
        cluster(&mut observed).durability.as_mut().expect("chosen").mode = mode;
        let decision = decided(&observed, 1_001);
        let (content, purpose) = content(&decision);
        assert_eq!(
            (purpose, content.positions["orders-0"].lsn),
            (Purpose::Take, Lsn(0x180))
        );
        let waits = mode == DurabilityMode::Required;
        assert_eq!(
            content.rule.is_synchronous(),
            waits,
            "{mode:?}: acknowledged commits may be on no other member"
        );
    }
}

#[test]
fn the_first_database_takes_an_untouched_lease() {
    let decision = decided(&made_first(), 1_000);
    let (content, purpose) = content(&decision);
    assert_eq!((content.epoch, purpose), (Epoch(1), Purpose::Take));
    assert_eq!(content.system_id.as_deref(), Some(SYSTEM_ID));
}

/// Elections count WAL of reserved timelines alone, and another set of volumes must not get the number once more.
#[test]
fn the_timeline_of_a_recovered_database_is_reserved_when_it_is_taken() {
    for (own, reserved) in [(1, None), (2, Some(2))] {
        let mut first = made_first();
        data(&mut first).timeline = Timeline(own);
        let decision = decided(&first, 1_000);
        assert_eq!(content(&decision).0.timeline, reserved.map(Timeline), "{own}");
        // A member that took it before this was so.
        let mut again = released();
        record(&mut again).timeline = None;
        data(&mut again).timeline = Timeline(own);
        let content = taken(&again, &settled()).expect("taken again");
        assert_eq!(content.timeline, reserved.map(Timeline), "{own}");
    }
}

#[test]
fn the_first_take_needs_every_part_of_the_proof() {
    let spoil: [fn(&mut Observed); 9] = [
        |o| cluster(o).grant = None,
        |o| cluster(o).grant.as_mut().unwrap().claim_uid = "other".to_owned(),
        |o| cluster(o).system_id = Some(SYSTEM_ID.to_owned()),
        |o| cluster(o).epoch = Some(Epoch(3)),
        |o| record(o).system_id = Some(SYSTEM_ID.to_owned()),
        |o| record(o).epoch = Epoch(1),
        |o| volume(o).made_for = Some("other cluster".to_owned()),
        |o| volume(o).data = Data::Unknown,
        |o| o.lease.record = Reading::Missing,
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut observed = made_first();
        spoil(&mut observed);
        assert_ne!(decided(&observed, 1_000).rule, "take", "{index}");
    }
}

#[test]
fn a_new_run_in_the_same_pod_takes_over_at_once() {
    let mut observed = restarted();
    let decision = decided(&observed, 1);
    assert_eq!(
        (content(&decision).0.epoch, content(&decision).1),
        (Epoch(2), Purpose::Take)
    );
    record(&mut observed).system_id = Some("another".to_owned());
    assert_eq!(
        decided(&observed, 1).action,
        Action::Wait,
        "never on data of another system"
    );
}

#[test]
fn the_lease_holds_the_newest_part_of_a_long_history() {
    let mut observed = primary();
    let forks = 1..=u32::try_from(FORKS).unwrap() + 7;
    observed.postgres.history = forks
        .map(|timeline| Fork {
            timeline: Timeline(timeline),
            end: crate::protocol::Lsn(u64::MAX - u64::from(timeline)),
        })
        .collect();
    match decided(&observed, 3_000).action {
        Action::WriteLease { content, .. } => {
            assert_eq!(content.history, observed.postgres.history[7..]);
            let annotation = serde_json::to_string(&content.history).unwrap();
            assert!(
                annotation.len() < 32 << 10,
                "an object's annotations may be 256 KiB together"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_behind_the_status_is_not_taken() {
    let mut observed = restarted();
    cluster(&mut observed).epoch = Some(Epoch(2));
    assert_eq!(decided(&observed, 1).action, Action::Wait, "it is an old one");
}

#[test]
fn the_shorter_fence_counts_while_the_times_change() {
    let promised_short: fn(&mut Observed) = |o| o.lease.confirmed.as_mut().unwrap().timing.fence = Millis::seconds(3);
    let wanted_short: fn(&mut Observed) = |o| cluster(o).timing.fence = Millis::seconds(3);
    for change in [promised_short, wanted_short] {
        let mut observed = primary();
        change(&mut observed);
        assert_ne!(decided(&observed, 3_999).rule, "fence");
        assert_eq!(decided(&observed, 4_000).rule, "fence");
    }
}

#[test]
fn a_promotion_that_was_begun_is_not_begun_again_under_its_number() {
    let mut observed = elected();
    assert_eq!(decided(&observed, 1_200).rule, "promote");
    volume(&mut observed).promise.as_mut().unwrap().promoting = Some(Timeline(2));
    assert_ne!(decided(&observed, 1_200).rule, "promote");
}

#[test]
fn a_new_pod_on_the_volume_waits_until_the_lease_has_run_out() {
    let mut observed = restarted();
    observed.own.pod_uid = "new pod".to_owned();
    observed.lease.changed = BootTime(500);
    let early = decided(&observed, 10_499);
    assert_eq!((&early.action, early.wake), (&Action::Wait, Some(BootTime(10_500))));
    assert_eq!(content(&decided(&observed, 10_500)).1, Purpose::Take);
    record(&mut observed).duration = Millis::minutes(1);
    assert_eq!(
        decided(&observed, 10_500).action,
        Action::Wait,
        "the holder was promised a longer lease"
    );
}

#[test]
fn a_run_that_once_held_the_lease_does_not_treat_a_later_run_as_dead() {
    let mut observed = restarted();
    observed.lease.confirmed = Some(Confirmed {
        epoch: Epoch(1),
        sent: BootTime(0),
        timing: Timing::DEFAULT,
    });
    assert_eq!(decided(&observed, 1_000).action, Action::Wait);
}

/// A new run of the member that released the lease; no other member followed.
fn released() -> Observed {
    let mut observed = restarted();
    let record = record(&mut observed);
    let member = record.holder.take().unwrap().incarnation.member;
    record.release = Some(Release {
        member,
        position: None,
        successor: None,
    });
    record.members.remove("orders-1");
    observed
}

fn taken(observed: &Observed, memo: &Memo) -> Option<LeaseContent> {
    match decide(observed, memo, BootTime(1_000)).action {
        Action::WriteLease {
            content,
            purpose: Purpose::Take,
            ..
        } => Some(*content),
        _ => None,
    }
}

#[test]
fn only_the_data_of_its_primary_continues_a_timeline() {
    for (primary, reserved, timeline) in [
        (true, None, None),
        (true, Some(1), Some(1)),
        (true, Some(2), Some(3)),
        (false, Some(1), Some(2)),
    ] {
        let mut observed = released();
        record(&mut observed).timeline = reserved.map(Timeline);
        data(&mut observed).primary = primary;
        let content = taken(&observed, &settled()).unwrap();
        assert_eq!(content.timeline, timeline.map(Timeline), "{primary} {reserved:?}");
        let holder = content.holder.unwrap();
        assert_eq!((holder.incarnation.run.as_str(), holder.serving), ("run-2", false));
        assert_eq!(content.release, None, "it counts no more");
    }
}

#[test]
fn a_released_lease_is_taken_only_while_nothing_but_a_standby_runs() {
    let follows = || Observed {
        postgres: standby().postgres,
        ..released()
    };
    assert_eq!(taken(&follows(), &settled()).unwrap().timeline, Some(Timeline(2)));
    type Spoil = fn(&mut Observed);
    let promoted: Spoil = |o| o.postgres.answer.as_mut().unwrap().in_recovery = false;
    let starting: Spoil = |o| o.tasks.start.running = Some(Work::StartStandby);
    let writing: Spoil = |o| o.tasks.lease.running = Some(Work::WriteLease);
    let strays: Spoil = |o| o.postgres.strays = 1;
    let unread: Spoil = |o| {
        let exit = Exit {
            at: BootTime(950),
            ran: Millis(90_000),
            asked: true,
        };
        o.postgres.process = Process::Stopped { exit: Some(exit) };
    };
    let spoilt = [
        (follows(), promoted),
        (follows(), starting),
        (follows(), writing),
        (released(), strays),
        (released(), unread),
        (released(), writing),
    ];
    for (index, (mut observed, spoil)) in spoilt.into_iter().enumerate() {
        spoil(&mut observed);
        // The stop is already under way.
        let stopping = Some(Stopping {
            stop: Stop::Kill,
            since: BootTime(1_000),
        });
        let memo = Memo { stopping, ..settled() };
        assert_eq!(taken(&observed, &memo), None, "{index}");
    }
}

#[test]
fn news_of_the_holder_are_written_at_once() {
    type Change = fn(&mut Observed);
    let cases: [(Change, &str); 3] = [
        (
            |o| record(o).holder.as_mut().unwrap().serving = false,
            "this member serves writes now",
        ),
        (
            |o| o.postgres.open = false,
            "this member does not serve writes any more",
        ),
        (
            |o| o.own.address = "10.0.0.9".to_owned(),
            "the report of this member has changed",
        ),
    ];
    for (change, words) in cases {
        let mut observed = primary();
        change(&mut observed);
        let decision = decided(&observed, 1_100);
        assert_eq!((decision.rule, decision.because.as_ref()), ("renew", words));
        let context = Context::new(&observed, BootTime(1_100));
        let told = holder(&context, context.record().unwrap());
        assert_eq!(content(&decision).0.holder, told);
    }
}

#[test]
fn only_the_member_that_released_takes_a_released_lease() {
    let mut observed = restarted();
    let member = volume(&mut observed).member.as_ref().unwrap().id.clone();
    record(&mut observed).holder = None;
    record(&mut observed).release = Some(Release {
        member,
        position: None,
        successor: None,
    });
    // A member that streamed from it has precedence.
    assert_ne!(decided(&observed, HANDBACK.0 - 1).rule, "take");
    assert_eq!(content(&decided(&observed, HANDBACK.0)).1, Purpose::Take);
    record(&mut observed).members.get_mut("orders-1").unwrap().state = MemberState::CatchingUp;
    assert_ne!(decided(&observed, HANDBACK.0 - 1).rule, "take");
    let gone: [fn(&mut MemberReport); 2] = [
        |report| report.fault = Some(FAULT_SILENT.to_owned()),
        |report| report.state = MemberState::Stopped,
    ];
    for gone in gone {
        let mut observed = observed.clone();
        gone(record(&mut observed).members.get_mut("orders-1").unwrap());
        assert_eq!(content(&decided(&observed, 1)).1, Purpose::Take);
    }
    record(&mut observed).members.remove("orders-1");
    assert_eq!(content(&decided(&observed, 1)).1, Purpose::Take);
    record(&mut observed).release.as_mut().unwrap().member = other_holder().incarnation.member;
    assert_ne!(decided(&observed, 1_000_000).rule, "take");
}

#[test]
fn a_member_without_a_running_standby_takes_nothing_however_long_the_holder_is_silent() {
    let mut observed = standby();
    observed.postgres.process = Process::Stopped { exit: None };
    for now in [1, 20_000, 10_000_000] {
        assert!(!matches!(decided(&observed, now).action, Action::WriteLease { .. }));
    }
}

#[test]
fn renewals_come_before_anything_else_and_keep_the_epoch() {
    let observed = primary();
    let decision = decided(&observed, 1_000 + Timing::DEFAULT.renew.0);
    let (content, purpose) = content(&decision);
    assert_eq!((content.epoch, purpose), (Epoch(1), Purpose::Renew));
    assert_eq!(content.version, "7");
    let quiet = decided(&observed, 1_000 + Timing::DEFAULT.renew.0 - 1);
    assert_eq!(
        (&quiet.action, quiet.wake),
        (&Action::Wait, Some(BootTime(1_000).plus(Timing::DEFAULT.renew)))
    );
}

#[test]
fn a_holder_raises_its_epoch_at_once_to_what_a_member_has_promised() {
    let mut observed = primary();
    observed.peers.get_mut("orders-1").unwrap().promised = Epoch(5);
    let decision = decided(&observed, 1_100);
    let (written, purpose) = content(&decision);
    assert_eq!((written.epoch, purpose), (Epoch(5), Purpose::Renew));
    assert_eq!(written.timeline, record(&mut observed).timeline, "on the same timeline");
}

#[test]
fn a_renewal_in_flight_is_not_doubled_and_a_failed_one_is_repeated_soon() {
    let mut observed = primary();
    observed.tasks.lease.running = Some(Work::WriteLease);
    assert_eq!(decided(&observed, 3_500).action, Action::Wait);
    observed.tasks.lease = Task {
        failures: 1,
        ended: BootTime(3_400),
        ..Task::default()
    };
    assert_eq!(decided(&observed, 3_500).wake, Some(BootTime(3_600)));
    assert_eq!(decided(&observed, 3_600).rule, "renew");
    (observed.tasks.lease.failures, observed.tasks.lease.ended) = (10, BootTime(2_500));
    let soon = BootTime(2_500).plus(Timing::DEFAULT.renew / 2);
    assert_eq!(decided(&observed, 3_200).wake, Some(soon), "however often it failed");
}

#[test]
fn a_changed_report_is_published_at_once_and_a_position_with_the_next_renewal() {
    let mut observed = primary();
    let peer = observed.peers.get_mut("orders-1").unwrap();
    peer.position = Some(Position {
        timeline: Timeline(1),
        lsn: Lsn(999),
    });
    assert_eq!(decided(&observed, 1_500).action, Action::Wait);
    observed.peers.get_mut("orders-1").unwrap().report.pending_restart = true;
    let decision = decided(&observed, 1_500);
    let (content, _) = content(&decision);
    assert!(content.members["orders-1"].pending_restart);
    assert_eq!(content.positions["orders-1"].lsn, Lsn(999));
    observed.postgres.open = false;
    record(&mut observed).holder.as_mut().unwrap().serving = false;
    let decision = decided(&observed, 1_500);
    assert_ne!(
        decision.rule, "renew",
        "no primary serves: it waits for the next renewal"
    );
    let due = decided(&observed, 1_000 + crate::timing::Timing::DEFAULT.renew.0);
    assert_eq!(due.rule, "renew");
}

#[test]
fn a_loss_that_is_accepted_without_need_expires_with_the_epoch() {
    let mut observed = primary();
    cluster(&mut observed).accepted_loss = Some(Epoch(1));
    let decision = decide(&observed, &settled(), BootTime(1_200));
    let Action::WriteLease { content, purpose, .. } = &decision.action else {
        panic!("{decision:?}")
    };
    assert_eq!((*purpose, content.epoch), (Purpose::Renew, Epoch(2)));
    record(&mut observed).epoch = Epoch(2);
    let decision = decide(&observed, &settled(), BootTime(1_200));
    assert!(
        !matches!(decision.action, Action::WriteLease { .. }),
        "once: {decision:?}"
    );
}

#[test]
fn after_a_fence_the_holder_renews_its_old_lease_and_starts_again() {
    let mut observed = primary();
    observed.postgres.process = Process::Stopped {
        exit: Some(Exit {
            at: BootTime(7_100),
            ran: Millis(9_000),
            asked: true,
        }),
    };
    observed.postgres.answer = None;
    volume(&mut observed).read = BootTime(7_200);
    let decision = decided(&observed, 20_000);
    assert_eq!(
        (content(&decision).0.epoch, content(&decision).1),
        (Epoch(1), Purpose::Renew)
    );
    observed.lease.confirmed = Some(Confirmed {
        epoch: Epoch(1),
        sent: BootTime(20_000),
        timing: Timing::DEFAULT,
    });
    record(&mut observed).holder.as_mut().unwrap().serving = false;
    observed.tasks.lease.running = Some(Work::WriteLease);
    assert!(matches!(
        decided(&observed, 20_010).action,
        Action::StartPrimary {
            until: BootTime(26_000),
            ..
        }
    ));
}
