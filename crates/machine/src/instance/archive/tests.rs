use super::super::fixtures::*;
use super::super::memo::Stopping;
use super::super::{Action, Stop, decide};
use super::*;
use crate::archive::Progress;
use crate::protocol::{Epoch, Fork, Lsn, Position, Timeline};

const NOW: BootTime = BootTime(1_100);

fn archiving(mut observed: Observed) -> Observed {
    cluster(&mut observed).archives = true;
    observed
}

fn up_to(lsn: u64) -> ArchiveRecord {
    ArchiveRecord {
        progress: Progress {
            up_to: Some(Position {
                timeline: Timeline(1),
                lsn: Lsn(lsn),
            }),
            ..Progress::default()
        },
        ..ArchiveRecord::default()
    }
}

fn now(observed: &Observed) -> Charge {
    charge(observed, &settled(), NOW)
}

#[test]
fn only_the_holder_that_writes_fills_the_archive() {
    let observed = archiving(primary());
    let until = BootTime(FENCE);
    assert_eq!(now(&observed), Charge::Push { epoch: Epoch(1), until });
    assert_eq!(charge(&observed, &settled(), until), Charge::Wait);

    let mut recovering = observed.clone();
    recovering.postgres.answer.as_mut().expect("an answer").in_recovery = true;
    assert_eq!(now(&recovering), Charge::Wait);

    let mut replaced = observed.clone();
    hold_by(&mut replaced, other_holder(), 2);
    assert_eq!(now(&replaced), Charge::Wait);

    let mut without = observed;
    cluster(&mut without).archives = false;
    assert_eq!(now(&without), Charge::Nowhere);
}

#[test]
fn a_standby_strikes_off_what_the_serving_holder_has_archived() {
    let mut observed = archiving(standby());
    let serves = |observed: &mut Observed, serving| {
        record(observed).holder.as_mut().expect("a holder").serving = serving;
    };
    serves(&mut observed, true);
    assert_eq!(now(&observed), Charge::Confirm { up_to: None });
    record(&mut observed).archive = Some(up_to(64));
    assert_eq!(
        now(&observed),
        Charge::Confirm {
            up_to: up_to(64).progress.up_to
        }
    );
    serves(&mut observed, false);
    assert_eq!(now(&observed), Charge::Wait);
    observed.cluster = super::super::Reading::Unknown;
    assert_eq!(now(&observed), Charge::Wait);
}

/// An elected member has less WAL than this one, which has not been rewound yet, or an earlier holder's timeline was abandoned. Their
/// archives have other segments than this member, which may have to fill the archive one day.
#[test]
fn a_standby_strikes_off_nothing_by_what_is_said_of_another_history() {
    let archived = |of: u32, lsn| {
        let mut archived = up_to(lsn);
        archived.progress.up_to.as_mut().expect("a position").timeline = Timeline(of);
        Some(archived)
    };
    let confirmed = |observed: &Observed| match now(observed) {
        Charge::Confirm { up_to } => up_to,
        other => panic!("{other:?}"),
    };
    let mut observed = archiving(standby());
    let end = position().lsn;
    record(&mut observed).history = vec![Fork {
        timeline: Timeline(1),
        end,
    }];
    record(&mut observed).holder.as_mut().expect("a holder").timeline = Some(Timeline(3));
    for (of, lsn, expected) in [
        (3, end.0 + 64, Some(end.0 + 64)),
        (1, end.0 - 64, Some(end.0 - 64)),
        (1, end.0 + 64, Some(end.0)),
        (2, end.0 - 64, None),
    ] {
        record(&mut observed).archive = archived(of, lsn);
        let found = confirmed(&observed).map(|up_to| (up_to.timeline.0, up_to.lsn.0));
        assert_eq!(found, expected.map(|lsn| (of, lsn)), "{of} up to {lsn}");
    }
    record(&mut observed).archive = archived(3, end.0 + 64);
    record(&mut observed).history[0].end = Lsn(end.0 - 1);
    assert_eq!(confirmed(&observed), None, "its WAL goes beyond the fork");
}

/// A stop of PostgreSQL waits for its archiver: a store that does not answer must not delay a handover.
#[test]
fn a_stop_ends_the_archiver() {
    let mut observed = archiving(primary());
    hold_by(&mut observed, other_holder(), 2);
    let decision = decide(&observed, &settled(), NOW);
    assert_eq!(decision.action, Action::Stop(Stop::Immediate));
    assert_eq!(charge(&observed, &decision.memo, NOW), Charge::End);
}

/// Nobody takes over, and a recovery in place to the newest commit begins with what is in the store then.
#[test]
fn the_primary_archives_on_while_all_instances_stop_but_not_for_long() {
    let mut observed = archiving(primary());
    cluster(&mut observed).stop = true;
    let memo = |since: BootTime, stop| Memo {
        stopping: Some(Stopping { stop, since }),
        ..settled()
    };
    let until = BootTime(FENCE);
    let charged = |observed: &Observed, stop, now| charge(observed, &memo(NOW, stop), now);
    let pushes = Charge::Push { epoch: Epoch(1), until };
    assert_eq!(charged(&observed, Stop::Fast, NOW), pushes);
    assert_eq!(charged(&observed, Stop::Immediate, NOW), Charge::End);
    assert_eq!(charged(&observed, Stop::Fast, until), Charge::End, "the lease is over");
    // It is renewed meanwhile.
    let over = NOW.plus(ARCHIVES_ON);
    observed.lease.confirmed.as_mut().expect("a lease").sent = NOW.plus(Millis(ARCHIVES_ON.0 - 1_000));
    let just_before = BootTime(over.0 - 1);
    assert!(matches!(
        charged(&observed, Stop::Fast, just_before),
        Charge::Push { .. }
    ));
    assert_eq!(charged(&observed, Stop::Fast, over), Charge::End);
    observed.lease.confirmed.as_mut().expect("a lease").sent = BootTime(1_000);
    cluster(&mut observed).stop = false;
    observed.terminating = true;
    assert_eq!(
        charged(&observed, Stop::Fast, NOW),
        Charge::End,
        "another member takes over"
    );
}

#[test]
fn the_lease_says_how_far_the_archive_is_complete() {
    let mut observed = archiving(primary());
    let written = |observed: &Observed| {
        let decision = decide(observed, &settled(), BootTime(FENCE - 1));
        let Action::WriteLease { content, .. } = decision.action else {
            panic!("{}: {:?}", decision.rule, decision.action);
        };
        content.archive
    };
    record(&mut observed).archive = Some(up_to(64));
    assert_eq!(written(&observed), Some(up_to(64)), "of the holder before");
    observed.archive = Some(up_to(32));
    assert_eq!(written(&observed), Some(up_to(32)), "by its own marks");
    cluster(&mut observed).archives = false;
    assert_eq!(written(&observed), None);
}

#[test]
fn news_of_the_archive_are_no_reason_to_write_the_lease() {
    let mut observed = archiving(primary());
    record(&mut observed).archive = Some(up_to(32));
    let before = decide(&observed, &settled(), NOW);
    observed.archive = Some(up_to(64));
    let after = decide(&observed, &settled(), NOW);
    assert_eq!((after.rule, after.action), (before.rule, before.action));
}

#[test]
fn only_the_holder_deletes_what_is_archived_and_nobody_archives_more() {
    let mut holder = archiving(primary());
    assert!(!deletes(&holder, NOW));
    cluster(&mut holder).archive_ended = true;
    assert_eq!(now(&holder), Charge::Nowhere);
    assert!(!deletes(&holder, NOW), "the user has changed the mind");
    cluster(&mut holder).deletes_archive = true;
    assert!(deletes(&holder, NOW));
    cluster(&mut holder).archive_ended = false;
    assert!(!deletes(&holder, NOW), "the operator has not asked for it");
    cluster(&mut holder).archive_ended = true;
    assert!(!deletes(&holder, BootTime(FENCE)), "its lease has run out");
    let mut follower = archiving(standby());
    (
        cluster(&mut follower).archive_ended,
        cluster(&mut follower).deletes_archive,
    ) = (true, true);
    assert_eq!((deletes(&follower, NOW), now(&follower)), (false, Charge::Nowhere));
    cluster(&mut holder).archives = false;
    assert!(!deletes(&holder, NOW));
}

#[test]
fn a_line_that_takes_no_more_wal_is_followed_by_the_next_one_once() {
    let mut observed = archiving(primary());
    record(&mut observed).archive = Some(up_to(64));
    observed.archive = Some(up_to(64));
    let next = |observed: &Observed| {
        let context = Context::new(observed, NOW);
        recorded(&context, context.record().unwrap(), None).unwrap()
    };
    assert_eq!(
        (next(&observed).line, line(&observed)),
        (ArchiveLine(1), ArchiveLine(1))
    );
    observed.archive.as_mut().unwrap().conflict = Some(ArchiveLine(1));
    let second = next(&observed);
    assert_eq!((second.line, second.conflict), (ArchiveLine(2), None));
    record(&mut observed).archive = Some(second);
    assert_eq!(
        (next(&observed).line, line(&observed)),
        (ArchiveLine(2), ArchiveLine(2)),
        "that is known"
    );
    observed.archive.as_mut().unwrap().conflict = Some(ArchiveLine(2));
    assert_eq!(next(&observed).line, ArchiveLine(3));
}
