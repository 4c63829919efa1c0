use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::protocol::{Epoch, Lsn, MemberState, Position, Timeline};

fn decided(observed: &Observed, now: u64) -> Decision {
    decide(observed, &settled(), BootTime(now))
}

fn request(epoch: u64) -> ReportRequest {
    ReportRequest {
        epoch: Epoch(epoch),
        ..report_request()
    }
}

#[test]
fn news_are_reported_at_once_and_the_position_every_second() {
    let mut observed = standby();
    assert_eq!(decided(&observed, 1_200).wake, Some(BootTime(2_000)));
    assert_eq!(decided(&observed, 2_000).rule, "report");
    observed.postgres.answer.as_mut().unwrap().streaming = false;
    match decided(&observed, 1_200).action {
        Action::Report { address, request } => {
            assert_eq!(address, "10.0.0.2");
            assert_eq!(request.report.state, MemberState::CatchingUp);
        }
        other => panic!("{other:?}"),
    }
    observed.tasks.report.running = Some(Work::Report);
    assert_eq!(decided(&observed, 1_200).action, Action::Wait);
    for (epoch, again) in [(0, true), (1, false), (2, false)] {
        let mut observed = standby();
        observed.reply.as_mut().unwrap().epoch = Epoch(epoch);
        assert_eq!(
            decided(&observed, 1_200).rule == "report",
            again,
            "reported in epoch {epoch}"
        );
    }
}

#[test]
fn a_member_that_waits_for_admission_asks_more_often() {
    let mut observed = cloning();
    observed.reply.as_mut().unwrap().admitted = false;
    assert_eq!(decided(&observed, 1_100).wake, Some(BootTime(1_200)));
    assert_eq!(decided(&observed, 1_200).rule, "report");
}

fn reply(admitted: bool) -> ReportReply {
    ReportReply {
        epoch: Epoch(1),
        admitted,
        steps_down: false,
        oldest: None,
        awaits: false,
    }
}

#[test]
fn only_the_holder_answers_and_it_admits_members_with_a_slot() {
    let mut observed = primary();
    let now = BootTime(1_200);
    assert_eq!(answer(&observed, &Memo::default(), now, &request(1)), Ok(reply(true)));
    assert_eq!(answer(&observed, &Memo::default(), now, &request(0)), Ok(reply(true)));
    assert!(answer(&observed, &Memo::default(), now, &request(2)).is_err());
    assert!(answer(&observed, &Memo::default(), BootTime(FENCE), &request(1)).is_err());
    observed.admitted.clear();
    assert_eq!(answer(&observed, &Memo::default(), now, &request(1)), Ok(reply(false)));
    assert!(answer(&standby(), &Memo::default(), now, &request(1)).is_err());
}

#[test]
fn a_member_that_receives_wal_gets_no_oldest_wal_in_the_answer() {
    let mut observed = primary();
    observed.postgres.oldest = Some(crate::protocol::Lsn(0x80));
    let told = |observed: &Observed| answer(observed, &Memo::default(), BootTime(1_200), &request(1)).map(|a| a.oldest);
    assert_eq!(told(&observed), Ok(Some(crate::protocol::Lsn(0x80))));
    observed.postgres.receiving.insert(request(1).report.member, Lsn(0));
    assert_eq!(told(&observed), Ok(None));
}

#[test]
fn a_standby_stays_ready_while_the_primary_is_away() {
    let mut observed = standby();
    let now = BootTime(1_200);
    assert_eq!(readiness(&observed, now), Ok(()));
    observed.postgres.answer.as_mut().unwrap().streaming = false;
    record(&mut observed).holder = None;
    assert_eq!(readiness(&observed, now), Ok(()));
    observed.postgres.streamed = false;
    assert!(readiness(&observed, now).is_err());
    assert!(readiness(&primary(), BootTime(FENCE)).is_err());
    assert_eq!(readiness(&primary(), now), Ok(()));
    let mut recovers = primary();
    recovers.postgres.answer.as_mut().unwrap().in_recovery = true;
    assert!(readiness(&recovers, now).is_err());
}

#[test]
fn a_standby_whose_data_has_diverged_is_not_ready() {
    let now = BootTime(1_200);
    let ready = |own: u64| {
        let mut observed = left_behind(standby(), own, false);
        observed.postgres = standby().postgres;
        let answer = observed.postgres.answer.as_mut().unwrap();
        answer.streaming = false;
        answer.position = Some(Position {
            timeline: Timeline(1),
            lsn: Lsn(own),
        });
        readiness(&observed, now)
    };
    assert_eq!(ready(0x100), Ok(()), "it has what the new primary has");
    assert!(ready(0x101).is_err());
}

#[test]
fn a_rewind_that_failed_and_was_not_needed_any_more_is_no_fault() {
    let mut observed = standby();
    observed.tasks.volume = Task {
        failures: 2,
        error: Some("the primary cannot be reached".to_owned()),
        ..Task::default()
    };
    let told = |observed: &Observed| {
        status(observed, &Memo::default(), BootTime(1_200))
            .unwrap()
            .report
            .fault
    };
    assert_eq!(told(&observed), None, "it streams");
    observed.postgres = stopped();
    assert_eq!(
        told(&observed).as_deref(),
        Some("prepare the volume: the primary cannot be reached")
    );
}

#[test]
fn the_reported_state_follows_from_what_the_member_does() {
    type Change = fn(&mut Observed);
    let cases: [(Observed, Change, MemberState); 9] = [
        (primary(), |_| {}, MemberState::Primary),
        (primary(), |o| o.postgres.open = false, MemberState::Starting),
        (primary(), |o| o.lease.confirmed = None, MemberState::Starting),
        (standby(), |_| {}, MemberState::Streaming),
        (standby(), |o| o.postgres = stopped(), MemberState::Waiting),
        (cloning(), |_| {}, MemberState::Waiting),
        (
            cloning(),
            |o| o.tasks.start.running = Some(Work::StartStandby),
            MemberState::Starting,
        ),
        (cloning(), |o| cluster(o).stop = true, MemberState::Stopped),
        (cloning(), |o| o.terminating = true, MemberState::Stopped),
    ];
    for (index, (mut observed, change, state)) in cases.into_iter().enumerate() {
        change(&mut observed);
        let told = status(&observed, &Memo::default(), BootTime(1_200)).unwrap();
        assert_eq!(told.report.state, state, "{index}");
    }
}

#[test]
fn a_report_describes_only_the_present() {
    let mut observed = standby();
    volume(&mut observed).promise.as_mut().unwrap().epoch = Epoch(3);
    observed.postgres.refused = Some(Refused {
        settings: SETTINGS.to_owned(),
        error: "no such parameter".to_owned(),
    });
    observed.tasks.start.error = Some("it did not start once".to_owned());
    let answer = observed.postgres.answer.as_mut().unwrap();
    answer.pending_restart = true;
    let told = |observed: &Observed| status(observed, &Memo::default(), BootTime(1_200)).unwrap();
    assert_eq!(told(&observed).promised, Epoch(3));
    let report = told(&observed).report;
    assert_eq!((report.lowers_limits, report.fault), (false, None));
    assert_eq!(report.settings_error.as_deref(), Some("no such parameter"));
    cluster(&mut observed).settings = "new".to_owned();
    observed.postgres.answer.as_mut().unwrap().lowers_limits = true;
    let report = told(&observed).report;
    assert_eq!((report.lowers_limits, report.settings_error), (true, None));
    let went = left_behind(standby(), 0x180, true);
    let words = "the data diverged on timeline 1, the primary orders-1 is on 2: it must be rewound";
    assert_eq!(told(&went).report.fault.as_deref(), Some(words));
}

#[test]
fn a_server_that_refuses_its_agent_is_a_fault() {
    let mut observed = standby();
    observed.postgres.answer = None;
    let own = |observed: &Observed| own::own(&Context::new(observed, BootTime(1_200))).unwrap();
    assert_eq!(own(&observed).fault, None);
    observed.postgres.refusal = Some("no".to_owned());
    let words = "PostgreSQL refuses its agent; correct spec.postgres.parameters: no";
    assert_eq!(own(&observed).fault.as_deref(), Some(words));
    assert_eq!(readiness(&observed, BootTime(1_200)), Err(words.to_owned()));
    observed.postgres.process = Process::Stopped { exit: None };
    assert_eq!(own(&observed).fault, None, "it does not run any more");
}

#[test]
fn a_failing_clone_is_reported_as_a_fault() {
    let mut observed = cloning();
    observed.tasks.volume = Task {
        failures: 2,
        ended: BootTime(1_100),
        error: Some("no space".to_owned()),
        ..Task::default()
    };
    match decided(&observed, 1_150).action {
        Action::Report { request, .. } => {
            assert_eq!(request.report.fault.as_deref(), Some("prepare the volume: no space"))
        }
        other => panic!("{other:?}"),
    }
}
