use super::super::fixtures::FENCE;
use super::super::fixtures::*;
use super::super::*;
use super::*;

#[test]
fn only_a_member_that_can_write_wakes_at_the_deadline() {
    let wakes = |observed: &Observed, now: u64| {
        let mut observed = observed.clone();
        observed.tasks.lease.running = Some(Work::WriteLease);
        decide(&observed, &settled(), BootTime(now)).wake == Some(BootTime(FENCE))
    };
    let mut observed = primary();
    assert!(wakes(&observed, FENCE - 1));
    assert!(!wakes(&observed, FENCE), "it would wake again and again");
    observed.postgres = stopped();
    assert!(!wakes(&observed, FENCE - 1), "nothing runs that could");
}

#[test]
fn past_the_deadline_everything_stops_and_then_is_killed() {
    let observed = primary();
    let at = BootTime(FENCE);
    let first = decide(&observed, &Memo::default(), at);
    assert_eq!((first.rule, &first.action), ("fence", &Action::Stop(Stop::Immediate)));
    let second = decide(&observed, &first.memo, at.plus(Millis(700)));
    assert_ne!(second.rule, "fence");
    let third = decide(&observed, &first.memo, at.plus(Millis(750)));
    assert_eq!(third.action, Action::Stop(Stop::Kill));
    let fourth = decide(&observed, &third.memo, at.plus(Millis(860)));
    assert_eq!(fourth.action, Action::Stop(Stop::Kill));
}

#[test]
fn a_millisecond_before_the_deadline_nothing_stops() {
    let decision = decide(&primary(), &Memo::default(), BootTime(FENCE - 1));
    assert_eq!(decision.rule, "renew");
    assert_eq!(decision.wake, Some(BootTime(FENCE)));
}

#[test]
fn another_holder_fences_at_once_whatever_is_in_flight() {
    for work in [Work::WriteLease, Work::Route, Work::Configure] {
        let mut observed = primary();
        hold_by(&mut observed, other_holder(), 2);
        observed.tasks.lease.running = Some(work);
        observed.terminating = true;
        let decision = decide(&observed, &Memo::default(), BootTime(1_100));
        assert_eq!(
            (decision.rule, &decision.action),
            ("fence", &Action::Stop(Stop::Immediate))
        );
    }
}

#[test]
fn an_epoch_that_this_run_has_adopted_does_not_fence_before_its_answer_arrives() {
    let mut observed = primary();
    record(&mut observed).epoch = crate::protocol::Epoch(9);
    assert_ne!(decide(&observed, &settled(), BootTime(FENCE - 1)).rule, "fence");
    assert_eq!(decide(&observed, &settled(), BootTime(FENCE)).rule, "fence");
    record(&mut observed).epoch = crate::protocol::Epoch(0);
    assert_eq!(
        decide(&observed, &settled(), BootTime(1_100)).rule,
        "fence",
        "an older version was restored"
    );
}

#[test]
fn a_missing_lease_fences_at_the_deadline_and_not_before() {
    let mut observed = primary();
    observed.lease.record = Reading::Missing;
    assert_ne!(decide(&observed, &Memo::default(), BootTime(FENCE - 1)).rule, "fence");
    assert_eq!(decide(&observed, &Memo::default(), BootTime(FENCE)).rule, "fence");
}

#[test]
fn a_start_in_flight_is_fenced_too() {
    let mut observed = primary();
    observed.postgres.process = Process::Stopped { exit: None };
    observed.tasks.start.running = Some(Work::StartPrimary);
    assert_eq!(decide(&observed, &Memo::default(), BootTime(FENCE)).rule, "fence");
}

#[test]
fn the_dead_man_acts_within_the_kill_budget() {
    let decision = decide(&primary(), &Memo::default(), BootTime(1_100));
    assert_eq!(decision.dead_man, Some(BootTime(FENCE + 1_125)));
    assert_eq!(decide(&standby(), &Memo::default(), BootTime(1_100)).dead_man, None);
}

#[test]
fn the_dead_man_stays_armed_while_orphaned_backends_live() {
    let mut observed = primary();
    observed.postgres = PostgresView { strays: 1, ..stopped() };
    let decision = decide(&observed, &settled(), BootTime(1_100));
    assert_eq!(decision.rule, "kill-strays");
    assert_eq!(decision.dead_man, Some(BootTime(FENCE + 1_125)));
    observed.postgres.strays = 0;
    observed.terminating = true;
    assert_eq!(decide(&observed, &settled(), BootTime(1_100)).dead_man, None);
}

#[test]
fn the_shorter_kill_budget_counts_while_the_times_change() {
    let promised_short: fn(&mut Observed) = |o| o.lease.confirmed.as_mut().unwrap().timing.kill = Millis(400);
    let wanted_short: fn(&mut Observed) = |o| cluster(o).timing.kill = Millis(400);
    for change in [promised_short, wanted_short] {
        let mut observed = primary();
        change(&mut observed);
        let at = BootTime(FENCE);
        let first = decide(&observed, &Memo::default(), at);
        assert_eq!(first.dead_man, Some(at.plus(Millis(300))));
        let second = decide(&observed, &first.memo, at.plus(Millis(200)));
        assert_eq!(second.action, Action::Stop(Stop::Kill));
    }
}

#[test]
fn a_standby_that_was_promoted_by_hand_is_stopped() {
    let mut observed = standby();
    observed.postgres.answer.as_mut().unwrap().in_recovery = false;
    let now = BootTime(1_200);
    let first = decide(&observed, &settled(), now);
    assert_eq!((first.rule, &first.action), ("fence", &Action::Stop(Stop::Immediate)));
    let second = decide(&observed, &first.memo, now.plus(Millis(750)));
    assert_eq!(second.action, Action::Stop(Stop::Kill));
    assert!(report::readiness(&observed, now).is_err());
    // The same for a holder: an unfinished promotion does not count.
    let mut observed = elected();
    observed.postgres.answer.as_mut().unwrap().in_recovery = false;
    let decision = decide(&observed, &settled(), now);
    assert_eq!(
        (decision.rule, decision.action),
        ("stop-promoted", Action::Stop(Stop::Immediate))
    );
    assert!(decision.dead_man.is_some());
}

#[test]
fn a_fast_stop_does_not_delay_the_fence() {
    let stopping = Stopping {
        stop: Stop::Fast,
        since: BootTime(FENCE - 1),
    };
    let memo = Memo {
        stopping: Some(stopping),
        ..Memo::default()
    };
    assert_eq!(
        decide(&primary(), &memo, BootTime(FENCE)).action,
        Action::Stop(Stop::Immediate)
    );
}
