use crate::instance::fixtures::*;
use crate::instance::*;
use crate::protocol::{Lsn, Position, Timeline};
use crate::timing::BootTime;

fn decided(observed: &Observed) -> Decision {
    decide(observed, &settled(), BootTime(1_200))
}

fn at(lsn: u64) -> Position {
    Position {
        timeline: Timeline(1),
        lsn: Lsn(lsn),
    }
}

/// The holder is on timeline 2, which began at 0x100 of timeline 1.
fn forked(observed: Observed) -> Observed {
    let postgres = observed.postgres.clone();
    let mut observed = left_behind(observed, 0x80, false);
    observed.tasks.report.running = Some(Work::Report);
    observed.postgres = postgres;
    observed
}

/// A standby that was killed: its control file names `checkpoint`, its WAL ends at `written`.
fn killed(checkpoint: u64, written: u64) -> Observed {
    let mut observed = forked(standby());
    observed.postgres = stopped();
    let database = data(&mut observed);
    (database.checkpoint, database.written) = (Lsn(checkpoint), Lsn(written));
    observed
}

/// It runs, and follows no primary; `ends`: it has read all its WAL.
fn unled(lsn: u64, ends: bool) -> Observed {
    let mut observed = forked(standby());
    let answer = observed.postgres.answer.as_mut().unwrap();
    (answer.position, answer.received_all, answer.streaming) = (Some(at(lsn)), ends, false);
    observed.postgres.configured.as_mut().unwrap().upstream = None;
    observed
}

/// The upstream of its start, if it is started.
fn started(observed: &Observed) -> Option<Option<String>> {
    match decided(observed).action {
        Action::StartStandby { upstream, .. } => Some(upstream.map(|upstream| upstream.address)),
        _ => None,
    }
}

/// The upstream that it is configured with, if that changes.
fn led(observed: &Observed) -> Option<Option<String>> {
    match decided(observed).action {
        Action::Configure { upstream, .. } => Some(upstream.map(|upstream| upstream.address)),
        _ => None,
    }
}

fn holder() -> Option<String> {
    Some("10.0.0.2".to_owned())
}

#[test]
fn a_killed_standby_follows_only_if_all_its_wal_is_before_the_fork() {
    assert_eq!(started(&killed(0x80, 0x100)), Some(holder()));
    assert_eq!(
        started(&killed(0x80, 0x101)),
        Some(None),
        "it must report where its WAL ends"
    );
    assert_eq!(decided(&killed(0x101, 0x101)).rule, "rewind");
    let mut same = killed(0x80, 0x180);
    record(&mut same).holder.as_mut().unwrap().timeline = Some(Timeline(1));
    record(&mut same).history.clear();
    assert_eq!(started(&same), Some(holder()), "the holder wrote that timeline itself");
}

#[test]
fn a_running_standby_follows_once_it_knows_where_its_wal_ends() {
    assert_eq!(led(&unled(0x100, true)), Some(holder()));
    assert_eq!(led(&unled(0x100, false)), None, "it may have more than it has read");
    assert_eq!(decided(&unled(0x101, true)).rule, "stop-diverged");
    assert_eq!(decided(&unled(0x101, false)).rule, "stop-diverged");
    assert_eq!(decided(&forked(standby())).action, Action::Wait, "it follows already");
}

/// The former primary may come back before this standby has read its new upstream, and send more.
#[test]
fn a_wal_end_is_final_only_when_no_primary_is_followed_any_more() {
    for ends in [false, true] {
        let mut former = unled(0x100, ends);
        former.postgres.configured.as_mut().unwrap().upstream = Some(Upstream {
            address: "10.0.0.3".to_owned(),
            epoch: Epoch(0),
        });
        let decision = decided(&former);
        let promise = Action::Promise { epoch: Epoch(1) };
        assert_eq!((decision.rule, decision.action), ("leave-former-primary", promise));
        former.tasks.promise.running = Some(Work::Promise);
        assert_eq!(decided(&former).action, Action::Wait, "it is under way");
        former.tasks.promise = Task {
            ended: BootTime(1_150),
            ..Task::default()
        };
        former.promised(Promise {
            epoch: Epoch(1),
            promoting: None,
        });
        assert_eq!(decided(&former).action, Action::Wait, "PostgreSQL is asked again");
        let answer = former.postgres.answer.as_mut().unwrap();
        (answer.asked, answer.received_all) = (BootTime(1_149), true);
        assert_eq!(led(&former), None, "that was before the promise ended");
        former.postgres.answer.as_mut().unwrap().asked = BootTime(1_150);
        assert_eq!(led(&former), Some(holder()));
        former.tasks.promise.failures = 1;
        former.tasks.promise.ended = BootTime(900);
        assert_eq!(
            decided(&former).rule,
            "leave-former-primary",
            "a WAL receiver may be left"
        );
    }
}

#[test]
fn an_elected_member_is_followed_before_its_promotion_if_it_has_as_much_wal() {
    let elected = |mut observed: Observed, has: Option<Position>| {
        let record = record(&mut observed);
        record.holder.as_mut().unwrap().timeline = None;
        record.history.clear();
        record.timeline = Some(Timeline(2));
        record.positions = has.map(|has| ("orders-1".to_owned(), has)).into_iter().collect();
        observed
    };
    let newer = Position {
        timeline: Timeline(2),
        lsn: Lsn(0x200),
    };
    for (lsn, has, follows) in [
        (0x100, Some(at(0x100)), true),
        (0x101, Some(at(0x100)), false),
        (0x100, Some(newer), false),
        (0x100, None, false),
    ] {
        let observed = elected(unled(lsn, true), has);
        assert_eq!(led(&observed), follows.then(holder), "{lsn:X} {has:?}");
        let observed = elected(killed(0x80, lsn), has);
        assert_eq!(
            started(&observed),
            Some(holder().filter(|_| follows)),
            "{lsn:X} {has:?}"
        );
    }
    assert_eq!(led(&elected(unled(0x100, false), Some(at(0x100)))), None);
    let mut again = elected(unled(0x100, false), None);
    record(&mut again).timeline = Some(Timeline(1));
    assert_eq!(
        led(&again),
        Some(holder()),
        "it wrote that timeline before, and continues it"
    );
    volume(&mut again).promise.as_mut().unwrap().promoting = Some(Timeline(1));
    assert_eq!(led(&again), None);
}
