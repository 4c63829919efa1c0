use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::protocol::{Epoch, Fork, Lsn, Position, Timeline};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};

fn missing_since(since: u64) -> MissingWal {
    MissingWal {
        epoch: Epoch(1),
        since: BootTime(since),
        end: Lsn(0x100),
        confirmed: BootTime(since),
    }
}

#[test]
fn a_member_whose_wal_the_primary_has_removed_is_copied_again_after_some_time() {
    let missing = |oldest: u64, sent: u64| {
        let mut observed = standby();
        observed.tasks.report.running = Some(Work::Report);
        let reply = observed.reply.as_mut().unwrap();
        (reply.oldest, reply.sent) = (Some(Lsn(oldest)), BootTime(sent));
        observed
    };
    let own = standby().postgres.answer.unwrap().position.unwrap().lsn.0;
    let begun = decide(&missing(own + 1, 2_000), &settled(), BootTime(2_100));
    assert_eq!(begun.memo.misses_wal.unwrap().since, BootTime(2_100));
    assert_eq!(begun.action, Action::Wait);
    let enough = decide(&missing(own, 2_000), &settled(), BootTime(2_100));
    assert_eq!(enough.memo.misses_wal, None, "its next record is there");
    let late = 2_100 + MISSES.0;
    let again = decide(&missing(own, late - 50), &begun.memo, BootTime(late));
    assert_eq!(again.memo.misses_wal, None, "that view was outdated");
    let unsure = decide(&missing(own + 1, 2_000), &begun.memo, BootTime(late));
    assert_eq!(unsure.memo.misses_wal, None, "the primary has not been heard for long");
    let mut replays = missing(own + 1, late - 50);
    replays.postgres.answer.as_mut().unwrap().knows_end = false;
    assert_eq!(
        decide(&replays, &settled(), BootTime(late)).memo.misses_wal,
        None,
        "it has more than it knows"
    );
    let mut in_use = missing(own + 1, late - 50);
    in_use.reply.as_mut().unwrap().oldest = None;
    let kept = decide(&in_use, &begun.memo, BootTime(late)).memo.misses_wal;
    assert_eq!(kept, begun.memo.misses_wal, "no news");
    let early = decide(&missing(own + 1, late - 50), &begun.memo, BootTime(late - 1));
    assert_eq!(early.action, Action::Wait);
    let decision = decide(&missing(own + 1, late - 50), &begun.memo, BootTime(late));
    assert_eq!(
        (decision.rule, &decision.action),
        ("stop-diverged", &Action::Stop(Stop::Fast))
    );
}

#[test]
fn what_the_primary_has_removed_is_known_for_some_time() {
    let (now, context_at) = (BootTime(60_000), 60_000);
    let removed = |sent: u64, since: u64| {
        let mut observed = standby();
        let reply = observed.reply.as_mut().unwrap();
        (reply.oldest, reply.sent) = (Some(Lsn(0x180)), BootTime(sent));
        let context = Context::new(&observed, now);
        let removed = is_removed(&context, Lsn(0x100), BootTime(since));
        assert_eq!(is_heard(&context), sent > context_at - FRESH.0);
        removed
    };
    let early = context_at - FRESH.0;
    assert_eq!((removed(early + 1, early), removed(early, 0)), (Some(true), None));
    assert_eq!(removed(context_at, context_at), None, "it was asked before");
}

#[test]
fn missed_wal_is_remembered_until_something_else_is_known() {
    let now = 60_000;
    let keeps = |confirmed: u64, observed: &Observed| {
        let memo = Memo {
            misses_wal: Some(MissingWal {
                confirmed: BootTime(confirmed),
                ..missing_since(0)
            }),
            ..settled()
        };
        decide(observed, &memo, BootTime(now)).memo.misses_wal.is_some()
    };
    let unsaid = inconsistent(0x80, None, now);
    assert!(keeps(now - FRESH.0 + 1, &unsaid) && !keeps(now - FRESH.0, &unsaid));
    let mut unknown = standby();
    let lease = record(&mut unknown);
    (lease.holder.as_mut().unwrap().timeline, lease.timeline) = (None, Some(Timeline(2)));
    let reply = unknown.reply.as_mut().unwrap();
    (reply.oldest, reply.sent) = (Some(Lsn(0x80)), BootTime(now - 50));
    assert!(keeps(now - 50, &unknown), "which primary said so is not known");
    let mut streamed = standby();
    streamed.postgres.answer = None;
    assert!(keeps(now - 50, &streamed), "it starts");
    let mut stopped = inconsistent(0x80, Some(0x90), now);
    stopped.postgres = super::super::fixtures::stopped();
    let begun = decide(&stopped, &settled(), BootTime(now)).memo.misses_wal;
    assert_eq!(begun, None, "only a running member begins to miss WAL");
}

#[test]
fn a_standby_that_has_received_more_misses_nothing() {
    let mut observed = standby();
    observed.tasks.report.running = Some(Work::Report);
    let reply = observed.reply.as_mut().unwrap();
    // Its position was read before the stream began; the WAL that it lacked then is gone.
    (reply.oldest, reply.sent) = (Some(Lsn(0x180)), BootTime(2_000));
    let begun = decide(&observed, &settled(), BootTime(2_100)).memo;
    assert_eq!(begun.misses_wal.unwrap().end, Lsn(0x100));
    let streams = |lsn: u64, now: u64| {
        let mut observed = observed.clone();
        let reply = observed.reply.as_mut().unwrap();
        (reply.oldest, reply.sent) = (None, BootTime(now - 50));
        own_position(&mut observed).lsn = Lsn(lsn);
        decide(&observed, &begun, BootTime(now))
    };
    assert_eq!(
        streams(0x100, 2_600).memo.misses_wal,
        begun.misses_wal,
        "it may have connected for a moment"
    );
    let late = 2_100 + MISSES.0;
    let well = streams(0x200, late);
    assert_eq!((well.memo.misses_wal, well.action), (None, Action::Wait));
}

#[test]
fn wal_that_is_not_replayed_yet_is_not_missing() {
    let now = 20_000;
    let action = |written: u64| {
        // Its last restart point is at 0x80; the primary's WAL begins at 0xC0.
        let mut observed = behind(0x80, false);
        let exit = Exit {
            at: BootTime(now - 500),
            ran: Millis(9_000),
            asked: true,
        };
        observed.postgres.process = Process::Stopped { exit: Some(exit) };
        observed.lease.changed = BootTime(now);
        let reply = observed.reply.as_mut().unwrap();
        (reply.oldest, reply.sent) = (Some(Lsn(0xC0)), BootTime(now - 100));
        let volume = volume(&mut observed);
        volume.read = BootTime(now - 400);
        data(&mut observed).written = Lsn(written);
        let memo = Memo {
            misses_wal: Some(missing_since(now - 2 * MISSES.0)),
            ..settled()
        };
        decide(&observed, &memo, BootTime(now)).action
    };
    assert_eq!(action(0x90), Action::SetAside { keep: true });
    assert!(!matches!(action(0xF0), Action::SetAside { .. }), "it has what follows");
}

/// A standby whose recovery has not reached consistency: it answers no questions. Its WAL ends at `written`.
fn inconsistent(written: u64, oldest: Option<u64>, now: u64) -> Observed {
    let mut observed = standby();
    (observed.postgres.answer, observed.postgres.streamed) = (None, false);
    observed.tasks.report.running = Some(Work::Report);
    observed.tasks.ask.running = Some(Work::Ask);
    observed.lease.changed = BootTime(now);
    let database = data(&mut observed);
    // The position that it must reach, and has not.
    (database.primary, database.checkpoint, database.written) = (false, Lsn(0x100), Lsn(written));
    record(&mut observed).rule = SyncRule::any(1, [third()]);
    let reply = observed.reply.as_mut().unwrap();
    (reply.oldest, reply.sent) = (oldest.map(Lsn), BootTime(now - 50));
    observed
}

#[test]
fn a_member_that_never_becomes_consistent_is_copied_again_too() {
    let begun = decide(&inconsistent(0x80, Some(0x90), 2_100), &settled(), BootTime(2_100));
    assert_eq!(begun.memo.misses_wal.unwrap().since, BootTime(2_100));
    let late = 2_100 + MISSES.0;
    let decided = |observed: &Observed| decide(observed, &begun.memo, BootTime(late));
    let decision = decided(&inconsistent(0x80, Some(0x90), late));
    assert_eq!(
        (decision.rule, &decision.action),
        ("stop-diverged", &Action::Stop(Stop::Fast))
    );
    let has = decided(&inconsistent(0x90, Some(0x90), late));
    assert_eq!(has.memo.misses_wal, None, "its next record is there");
    let receives = decided(&inconsistent(0x80, None, late));
    assert_eq!(
        receives.memo.misses_wal, None,
        "it receives, or nothing is missed any more"
    );
    let mut streamed = inconsistent(0x80, Some(0x90), late);
    streamed.postgres.streamed = true;
    let decision = decide(&streamed, &settled(), BootTime(late));
    assert_eq!(
        decision.memo.misses_wal, None,
        "the volume was read before it received more"
    );
    // Once stopped, it is judged by the WAL that it has, not by the position that it must reach.
    let mut at_rest = inconsistent(0x80, Some(0x90), late + 1_000);
    at_rest.postgres = stopped();
    let exit = Exit {
        at: BootTime(late + 500),
        ran: Millis(9_000),
        asked: true,
    };
    at_rest.postgres.process = Process::Stopped { exit: Some(exit) };
    volume(&mut at_rest).read = BootTime(late + 600);
    assert_eq!(
        decide(&at_rest, &begun.memo, BootTime(late + 1_000)).action,
        Action::SetAside { keep: false }
    );
}

#[test]
fn a_slot_that_is_briefly_in_use_does_not_end_the_count_of_an_unanswering_member() {
    // It connects again and again: its slot is in use in two answers of three, and once the holder is not known.
    let mut memo = settled();
    for now in (2_100..2_100 + MISSES.0).step_by(500) {
        let oldest = (now % 1_500 == 600).then_some(0x90);
        let mut observed = inconsistent(0x80, oldest, now);
        if now == 5_100 {
            record(&mut observed).holder.as_mut().unwrap().timeline = None;
        }
        let decision = decide(&observed, &memo, BootTime(now));
        assert_ne!(decision.rule, "stop-diverged", "{now}");
        memo = decision.memo;
        assert_eq!(memo.misses_wal.unwrap().since, BootTime(2_100), "at {now}");
    }
    let late = BootTime(2_100).plus(MISSES);
    assert_eq!(
        decide(&inconsistent(0x80, Some(0x90), late.0), &memo, late).rule,
        "stop-diverged"
    );
    let has = decide(&inconsistent(0x90, Some(0x90), late.0), &memo, late);
    assert_eq!(has.memo.misses_wal, None);
    let receives = late.plus(FRESH);
    let receives = decide(&inconsistent(0x80, None, receives.0), &memo, receives);
    assert_eq!(receives.memo.misses_wal, None, "a stream that lasts");
}

#[test]
fn its_data_is_moved_aside_only_if_the_primary_confirms_again() {
    let stopped_at = 50_000;
    let memo = Memo {
        misses_wal: Some(missing_since(stopped_at - 2 * MISSES.0)),
        ..settled()
    };
    let at_rest = |oldest: u64, sent: u64| {
        let mut observed = standby();
        observed.postgres = stopped();
        observed.postgres.process = Process::Stopped {
            exit: Some(Exit {
                at: BootTime(stopped_at),
                ran: Millis(60_000),
                asked: true,
            }),
        };
        volume(&mut observed).read = BootTime(stopped_at + 1);
        record(&mut observed).rule = SyncRule::any(1, [third()]);
        observed.lease.changed = BootTime(stopped_at);
        let reply = observed.reply.as_mut().unwrap();
        (reply.oldest, reply.sent) = (Some(Lsn(oldest)), BootTime(sent));
        observed
    };
    let now = stopped_at + 1_000;
    let rule = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).rule;
    let asks = decide(&at_rest(u64::MAX, stopped_at - 1), &memo, BootTime(now));
    assert!(
        matches!(asks.action, Action::Report { .. }),
        "said before the stop: {asks:?}"
    );
    let decision = decide(&at_rest(u64::MAX, now - 10), &memo, BootTime(now));
    assert_eq!(decision.action, Action::SetAside { keep: false });
    let mut awaited = at_rest(u64::MAX, now - 10);
    let own = awaited.volume.is().unwrap().member.clone().unwrap().id;
    for rule in [SyncRule::any(1, [own]), SyncRule::default()] {
        record(&mut awaited).rule = rule;
        let decision = decide(&awaited, &memo, BootTime(now));
        assert_eq!(decision.action, Action::SetAside { keep: true });
    }
    let mut expired = at_rest(u64::MAX, now - 10);
    expired.lease.changed = BootTime(now).minus(Timing::DEFAULT.lease);
    assert!(!matches!(
        decide(&expired, &memo, BootTime(now)).action,
        Action::SetAside { .. }
    ));
    let mut gone = at_rest(u64::MAX, stopped_at - 1);
    gone.tasks.report.running = Some(Work::Report);
    assert_eq!(rule(&gone, now), "rewind", "it waits for the answer");
    assert_eq!(
        rule(&gone, stopped_at + FRESH.0),
        "start-standby",
        "no primary answers: it may be needed"
    );
    let mut fenced = at_rest(u64::MAX, now - 10);
    cluster(&mut fenced).fenced.insert("orders-0".to_owned());
    assert_eq!(decide(&fenced, &memo, BootTime(now)).memo.misses_wal, None);
    let mut empty = at_rest(u64::MAX, now - 10);
    volume(&mut empty).data = Data::Empty;
    let decision = decide(&empty, &memo, BootTime(now));
    assert_eq!((decision.rule, decision.memo.misses_wal), ("clone", None));
}

#[test]
fn what_the_archive_has_of_removed_wal_is_fetched_once_before_the_data_is_copied() {
    let now = BootTime(51_000);
    let memo = Memo {
        misses_wal: Some(missing_since(20_000)),
        ..settled()
    };
    let at_rest = || {
        let mut observed = standby();
        observed.postgres = stopped();
        let exit = Exit {
            at: BootTime(50_000),
            ran: Millis(60_000),
            asked: true,
        };
        observed.postgres.process = Process::Stopped { exit: Some(exit) };
        volume(&mut observed).read = BootTime(50_001);
        observed.lease.changed = BootTime(50_000);
        let reply = observed.reply.as_mut().unwrap();
        (reply.oldest, reply.sent) = (Some(Lsn(0x800)), BootTime(50_990));
        (cluster(&mut observed).archives, cluster(&mut observed).reads_archive) = (true, true);
        archived(&mut observed, 0x900);
        record(&mut observed).holder.as_mut().unwrap().serving = true;
        observed
    };
    let end = data(&mut at_rest()).written;
    let decision = decide(&at_rest(), &memo, now);
    let Action::FetchWal(fetch) = &decision.action else {
        panic!("{decision:?}");
    };
    assert_eq!(
        (fetch.from, fetch.to, fetch.lineage.timeline),
        (end, Lsn(0x900), Timeline(1))
    );
    assert_eq!(decision.memo.fetched.unwrap().from, end);
    let is_copied =
        |observed: &Observed, memo: &Memo| matches!(decide(observed, memo, now).action, Action::SetAside { .. });
    assert!(is_copied(&at_rest(), &decision.memo), "the archive did not bring it");
    let mut some = at_rest();
    data(&mut some).written = Lsn(end.0 + 0x100);
    let next = decide(&some, &decision.memo, now);
    assert!(matches!(next.action, Action::FetchWal(_)), "it brought some: {next:?}");
    let last = decision.memo.fetched.unwrap();
    let often = Memo {
        fetched: Some(Fetched {
            rounds: FETCHES,
            ..last
        }),
        ..memo.clone()
    };
    assert!(
        is_copied(&some, &often),
        "replay begins at the same place again and again"
    );
    data(&mut some).checkpoint = Lsn(last.checkpoint.0 + 1);
    assert!(!is_copied(&some, &often), "it comes on");
    type Otherwise = fn(&mut Observed);
    let otherwise: [(&str, Otherwise); 4] = [
        ("it is encrypted", |o| cluster(o).reads_archive = false),
        ("it ends before the primary's WAL begins", |o| archived(o, 0x7FF)),
        ("nothing is archived yet", |o| record(o).archive = None),
        ("it is more than a copy is worth", |o| {
            o.reply.as_mut().unwrap().oldest = Some(Lsn(17 << 30));
            archived(o, 18 << 30);
        }),
    ];
    for (what, change) in otherwise {
        let mut observed = at_rest();
        change(&mut observed);
        assert!(
            is_copied(&observed, &memo),
            "{what}: {:?}",
            decide(&observed, &memo, now)
        );
    }
}

fn archived(observed: &mut Observed, lsn: u64) {
    let up_to = Position {
        timeline: Timeline(1),
        lsn: Lsn(lsn),
    };
    record(observed).archive = Some(crate::archive::ArchiveRecord {
        progress: crate::archive::Progress {
            up_to: Some(up_to),
            ..Default::default()
        },
        ..Default::default()
    });
}

#[test]
fn another_primary_may_have_the_missing_wal() {
    let mut observed = standby();
    observed.postgres = stopped();
    let memo = Memo {
        misses_wal: Some(missing_since(0)),
        ..settled()
    };
    let mut later = observed.clone();
    record(&mut later).epoch = Epoch(2);
    later.reply = None;
    let decision = decide(&later, &memo, BootTime(60_000));
    assert_eq!((decision.memo.misses_wal, decision.rule), (None, "start-standby"));
}

/// A stopped member whose data ends at `end` on timeline 1; the primary is on timeline 2, which began at 0x100.
fn behind(end: u64, primary: bool) -> Observed {
    let mut observed = left_behind(standby(), end, primary);
    observed.tasks.report.running = Some(Work::Report);
    observed
}

fn decided(observed: &Observed) -> Decision {
    decide(observed, &settled(), BootTime(1_200))
}

#[test]
fn data_within_the_primarys_history_follows_and_other_data_is_rewound() {
    assert_eq!(decided(&behind(0x100, true)).rule, "start-standby");
    assert_eq!(decided(&behind(0x101, true)).rule, "rewind");
    assert_eq!(decided(&behind(0x101, false)).rule, "rewind");
    let mut crashed = behind(0x80, true);
    data(&mut crashed).clean = false;
    assert_eq!(decided(&crashed).rule, "rewind", "where its WAL ends is not known");
    let mut unknown = behind(0x100, true);
    record(&mut unknown).holder.as_mut().unwrap().timeline = None;
    assert_ne!(
        decided(&unknown).rule,
        "start-standby",
        "a primary's data waits to know"
    );
    let mut half_promoted = behind(0x80, false);
    volume(&mut half_promoted).promise.as_mut().unwrap().promoting = Some(Timeline(3));
    assert_eq!(decided(&half_promoted).rule, "rewind");
}

#[test]
fn wal_is_kept_before_a_rewind_if_it_may_have_commits_that_were_lost() {
    let quorum = || SyncRule::any(1, [third()]);
    let table = [
        ("commits wait for no standby", SyncRule::default(), None, true),
        ("an election has their commits", quorum(), None, false),
        ("a later one may have lost some", quorum(), Some(2), true),
        ("one before its own timeline did", quorum(), Some(1), false),
    ];
    for (case, rule, lossy, keeps) in table {
        for (primary, was_primary) in [(true, false), (false, true), (false, false)] {
            let mut observed = behind(0x101, primary);
            volume(&mut observed).was_primary = was_primary;
            let record = record(&mut observed);
            (record.rule, record.lossy) = (rule.clone(), lossy.map(Timeline));
            let history = record.history.clone();
            let Action::Rewind { keep, .. } = decided(&observed).action else {
                panic!("{case}")
            };
            assert_eq!(keep, keeps.then_some(history), "{case}");
            observed.tasks.volume.failures = REWINDS;
            observed.contact.heard = Some(BootTime(6_000));
            let decision = decide(&observed, &settled(), BootTime(6_000));
            let keep = keeps || primary || was_primary;
            assert_eq!(decision.action, Action::SetAside { keep }, "{case}");
        }
    }
}

#[test]
fn a_rewind_waits_for_some_time_until_the_primary_serves_if_that_is_not_for_this_member() {
    let closed = |now: u64| {
        let mut observed = behind(0x101, true);
        (observed.contact.heard, observed.lease.changed) = (Some(BootTime(now)), BootTime(now));
        let record = record(&mut observed);
        record.holder.as_mut().unwrap().serving = false;
        let mut other = record.members["orders-1"].clone();
        other.member = third();
        record.members.insert("orders-2".to_owned(), other);
        record.rule = SyncRule::any(
            1,
            [volume(&mut behind(0x101, true)).member.clone().unwrap().id, third()],
        );
        observed
    };
    let first = decide(&closed(1_200), &settled(), BootTime(1_200));
    let since = Some((Epoch(1), BootTime(1_200)));
    assert_eq!((first.action, first.memo.closed), (Action::Wait, since));
    let later = |observed: &Observed, now: u64| decide(observed, &first.memo, BootTime(now));
    let late = 1_200 + OPENS.0;
    assert_ne!(later(&closed(late - 1), late - 1).rule, "rewind");
    assert_eq!(later(&closed(late), late).rule, "rewind", "it may be needed after all");
    let mut next = closed(late);
    record(&mut next).epoch = Epoch(2);
    next.reply.as_mut().unwrap().epoch = Epoch(2);
    assert_ne!(later(&next, late).rule, "rewind", "another primary");
    let told = |awaits: bool, sent: u64| {
        let mut observed = closed(sent);
        let reply = observed.reply.as_mut().unwrap();
        (reply.awaits, reply.sent) = (awaits, BootTime(sent));
        later(&observed, sent).rule
    };
    let streams = 1_200 + STREAMS.0;
    assert_ne!(told(true, streams - 1), "rewind", "others may begin to stream");
    assert_ne!(told(false, streams), "rewind", "another one receives");
    assert_eq!(told(true, streams), "rewind", "the primary waits for it");
    let opens: [fn(&mut Observed); 5] = [
        |o| record(o).holder.as_mut().unwrap().serving = true,
        |o| record(o).members.get_mut("orders-2").unwrap().state = MemberState::Starting,
        |o| record(o).members.get_mut("orders-2").unwrap().fault = Some("it is silent".to_owned()),
        |o| record(o).members.remove("orders-2").map_or((), |_| ()),
        |o| record(o).rule.required = 2,
    ];
    for (index, opens) in opens.iter().enumerate() {
        let mut observed = closed(1_300);
        opens(&mut observed);
        assert_eq!(later(&observed, 1_300).rule, "rewind", "{index}");
    }
}

#[test]
fn nothing_is_done_with_data_that_was_not_read_since_postgresql_ended() {
    for end in [0x100, 0x101] {
        let mut observed = behind(end, true);
        let exit = Exit {
            at: BootTime(1_100),
            ran: Millis(9_000),
            asked: true,
        };
        observed.postgres.process = Process::Stopped { exit: Some(exit) };
        assert_eq!(decided(&observed).action, Action::Wait);
        volume(&mut observed).read = BootTime(1_100);
        assert_ne!(decided(&observed).action, Action::Wait);
    }
}

/// A running standby that has diverged.
fn astray() -> Observed {
    let mut observed = behind(0x80, false);
    observed.postgres = standby().postgres;
    *own_position(&mut observed) = Position {
        timeline: Timeline(1),
        lsn: Lsn(0x101),
    };
    observed
}

#[test]
fn a_running_standby_that_has_diverged_is_stopped() {
    assert_eq!(decided(&astray()).rule, "stop-diverged");
}

#[test]
fn its_stop_is_finished_even_if_the_primary_is_lost_meanwhile() {
    let mut observed = astray();
    record(&mut observed).rule = SyncRule::any(1, [third()]);
    let stops = decided(&observed);
    assert_eq!(stops.action, Action::Stop(Stop::Fast));
    // It no longer answers, and has promised already.
    observed.postgres.answer = None;
    observed.tasks.ask.running = Some(Work::Ask);
    volume(&mut observed).promise.as_mut().unwrap().epoch = Epoch(9);
    let mut vacant = observed.clone();
    record(&mut vacant).holder = None;
    for observed in [observed, vacant] {
        let suspects = Memo {
            suspected: Some((Epoch(1), BootTime(5_000))),
            ..stops.memo.clone()
        };
        let action = |now: u64| decide(&observed, &suspects, BootTime(now)).action;
        assert_eq!(action(21_199), Action::Wait);
        assert_eq!(action(21_200), Action::Stop(Stop::Immediate));
    }
}

#[test]
fn data_older_than_the_history_in_the_lease_is_copied_again() {
    let behind = |first: u32, end: u64, primary: bool| {
        let mut observed = behind(end, primary);
        let forks = u32::try_from(FORKS).unwrap();
        let record = record(&mut observed);
        let fork = |timeline| Fork {
            timeline: Timeline(timeline),
            end: Lsn(u64::from(timeline) << 24),
        };
        record.history = (first..first + forks).map(fork).collect();
        record.holder.as_mut().unwrap().timeline = Some(Timeline(first + forks));
        decided(&observed)
    };
    let of = |first: u32, primary: bool| behind(first, 0x80, primary);
    assert_eq!(of(1, true).rule, "start-standby");
    let beyond = behind(1, (1 << 24) + 1, true).action;
    assert!(matches!(beyond, Action::Rewind { .. }), "it has diverged: {beyond:?}");
    let aside = of(2, true);
    assert_eq!(aside.action, Action::SetAside { keep: true });
    assert_eq!(
        of(2, false).action,
        aside.action,
        "commits wait for no standby: it may be the only copy"
    );
}

#[test]
fn a_rewind_that_changes_nothing_is_repeated_for_a_limited_time() {
    let at = |end: u64, now: u64| {
        let mut observed = behind(end, false);
        observed.tasks.volume.ended = BootTime(1_300);
        (observed.contact.heard, observed.lease.changed) = (Some(BootTime(now)), BootTime(now));
        observed
    };
    let first = decide(&at(0x101, 1_200), &settled(), BootTime(1_200));
    assert!(matches!(first.action, Action::Rewind { .. }));
    let again = |end: u64, now: u64| decide(&at(end, now), &first.memo, BootTime(now));
    let early = again(0x101, 1_300 + AGAIN.0 - 1);
    assert_eq!(
        (early.action, early.wake),
        (Action::Wait, Some(BootTime(1_300).plus(AGAIN)))
    );
    assert!(
        matches!(again(0x102, 1_310).action, Action::Rewind { .. }),
        "it is other data"
    );
    let second = again(0x101, 1_300 + AGAIN.0);
    assert!(matches!(second.action, Action::Rewind { .. }));
    assert_eq!(second.memo.rewound, first.memo.rewound, "it counts from the first");
    let late = 1_200 + UNCHANGED.0;
    assert!(matches!(again(0x101, late - 1).action, Action::Rewind { .. }));
    assert_eq!(again(0x101, late).action, Action::SetAside { keep: true });
}

#[test]
fn data_that_cannot_be_rewound_is_moved_aside_and_quarantined_if_a_primary_wrote_it() {
    let aside = |observed: &Observed| match decide(observed, &settled(), BootTime(6_000)).action {
        Action::SetAside { keep } => Some(keep),
        _ => None,
    };
    let mut observed = behind(0x101, true);
    record(&mut observed).rule = crate::quorum::SyncRule::any(1, [third()]);
    observed.tasks.volume.failures = REWINDS;
    assert_eq!(
        aside(&observed),
        None,
        "the primary is silent: there is nothing to rewind it to"
    );
    observed.contact.heard = Some(BootTime(6_000));
    observed.tasks.volume.failures = REWINDS - 1;
    assert_eq!(aside(&observed), None);
    observed.tasks.volume.failures = REWINDS;
    assert_eq!(aside(&observed), Some(true));
    let mut torn = behind(0x101, false);
    volume(&mut torn).rewinding = true;
    assert_eq!(
        aside(&torn),
        Some(true),
        "commits wait for no standby: it may be the only copy"
    );
    record(&mut torn).rule = crate::quorum::SyncRule::any(1, [third()]);
    assert_eq!(aside(&torn), Some(false));
}
