use super::super::fixtures::*;
use super::*;
use crate::protocol::{Lsn, Position, Timeline};

#[test]
fn a_member_that_suspects_alone_promises_nothing_until_asked_or_joined() {
    let mut observed = silenced();
    assert_eq!(decided(&observed, SILENT).rule, "ask");
    observed.tasks.ask.running = Some(Work::Ask);
    assert_eq!(decided(&observed, SILENT).action, Action::Wait);
    observed.asked_for = Some(Epoch(2));
    assert_eq!(decided(&observed, SILENT).action, Action::Promise { epoch: Epoch(2) });
    observed.asked_for = Some(Epoch(1));
    assert_eq!(decided(&observed, SILENT).action, Action::Wait);
    third_answers(&mut observed, 1, None);
    assert_eq!(decided(&observed, SILENT).action, Action::Promise { epoch: Epoch(2) });
    assert_eq!(
        decided(&observed, 4_000 + FRESH.0).action,
        Action::Wait,
        "an old suspicion says nothing"
    );
}

#[test]
fn what_cannot_be_read_is_no_promise() {
    let mut observed = silenced();
    volume(&mut observed).promise = None;
    observed.asked_for = Some(Epoch(2));
    assert!(answer(&observed, BootTime(SILENT), &request(2)).is_err());
    assert!(!matches!(
        decided(&observed, SILENT).action,
        Action::Promise { .. } | Action::Ask { .. }
    ));
}

#[test]
fn a_promise_that_was_persisted_and_not_completed_is_made_again() {
    let mut observed = promised(2);
    observed.asked_for = Some(Epoch(2));
    observed.tasks.promise.failures = 1;
    assert_eq!(answer(&observed, BootTime(SILENT), &request(2)).unwrap().position, None);
    assert_eq!(decided(&observed, SILENT).action, Action::Promise { epoch: Epoch(2) });
}

#[test]
fn a_position_is_reported_only_with_the_promise_and_when_it_is_final() {
    let told = |observed: &Observed| answer(observed, BootTime(SILENT), &request(2)).unwrap().position;
    assert_eq!(told(&silenced()), None);
    assert_eq!(told(&promised(2)), Some(position()));
    let mut receiving = promised(2);
    receiving.postgres.answer.as_mut().unwrap().received_all = false;
    assert_eq!(told(&receiving), None);
    let mut promising = promised(2);
    promising.tasks.promise.running = Some(Work::Promise);
    assert_eq!(told(&promising), None);
    assert!(
        answer(
            &promised(2),
            BootTime(SILENT),
            &PromiseRequest {
                lease: "other".to_owned(),
                ..request(2)
            }
        )
        .is_err()
    );
}

#[test]
fn wal_that_ends_before_its_timeline_begins_is_no_position() {
    let decided = |lsn: u64, begins: Option<u64>| {
        let mut observed = asking(2);
        third_answers(&mut observed, 2, Some(0x80));
        record(&mut observed).timeline = Some(Timeline(2));
        let answer = observed.postgres.answer.as_mut().unwrap();
        answer.position = Some(Position {
            timeline: Timeline(2),
            lsn: Lsn(lsn),
        });
        answer.begins = begins.map(Lsn);
        let promised = answer_of(&observed).position.is_some();
        (decided(&observed, SILENT).rule == "win-election", promised)
    };
    assert_eq!(decided(0x200, Some(0x200)), (true, true));
    assert_eq!(
        decided(0x1FF, Some(0x200)),
        (false, false),
        "it neither stands nor is counted"
    );
    assert_eq!(decided(0x200, None), (false, false), "its history is not known");
}

#[test]
fn only_a_standby_that_receives_nothing_knows_where_its_wal_ends() {
    let knows = |change: fn(&mut Observed)| {
        let mut observed = silenced();
        change(&mut observed);
        Context::new(&observed, BootTime(SILENT)).final_position().is_some()
    };
    assert!(knows(|_| {}));
    let spoil: [fn(&mut Observed); 4] = [
        |o| o.postgres.answer.as_mut().unwrap().received_all = false,
        |o| o.postgres.answer.as_mut().unwrap().in_recovery = false,
        |o| o.postgres.process = Process::Running { mode: Mode::Primary },
        |o| o.tasks.start.running = Some(Work::Promote),
    ];
    for (index, spoil) in spoil.into_iter().enumerate() {
        assert!(!knows(spoil), "{index}");
    }
}
