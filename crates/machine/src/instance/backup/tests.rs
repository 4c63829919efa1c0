use api::backup::StoredBackup;
use proptest::prelude::*;

use super::super::fixtures::*;
use super::super::{Action, Answer, Peer, decide, report};
use super::*;
use crate::archive::{ArchiveRecord, Progress};
use crate::protocol::{Lsn, Position, Timeline};

const NOW: BootTime = BootTime(1_100);

/// A difference from a situation.
type Change<T> = fn(&mut T);

fn pod(ordinal: u32) -> String {
    format!("orders-{ordinal}")
}

fn up_to(backup: Option<BackupTask>) -> ArchiveRecord {
    ArchiveRecord {
        progress: Progress {
            up_to: Some(Position {
                timeline: Timeline(1),
                lsn: Lsn(64),
            }),
            ..Progress::default()
        },
        backup,
        ..ArchiveRecord::default()
    }
}

/// [`primary`] with two standbys that stream; it is asked for the backup `u1`.
fn asked() -> Observed {
    let mut observed = primary();
    let view = cluster(&mut observed);
    (view.archives, view.backup) = (true, Some("u1".to_owned()));
    record(&mut observed).archive = Some(up_to(None));
    let first = observed.peers[&pod(1)].clone();
    let mut second = first.clone();
    second.report.member = MemberId::new(2, "cccc0000-3333", 2);
    second.report.pod_uid = "pod-2".to_owned();
    let standbys = [&first, &second].map(|peer| (peer.report.member.clone(), position().lsn));
    observed.postgres.standbys = standbys.into();
    observed.peers.insert(pod(2), second);
    observed
}

/// Everything that is observed is `now`.
fn at(observed: &mut Observed, now: u64) -> BootTime {
    observed.lease.confirmed.as_mut().expect("a write").sent = BootTime(now);
    for peer in observed.peers.values_mut() {
        peer.heard = BootTime(now);
    }
    BootTime(now)
}

/// The memory of `orders-0` after it has decided.
fn remembered(observed: &Observed, memo: Memo, now: BootTime) -> Memo {
    let mut memo = memo;
    remember(&Context::new(observed, now), &mut memo);
    memo
}

/// What it would write into the Lease.
fn written(observed: &Observed, memo: &Memo, now: BootTime) -> Option<BackupTask> {
    let mut observed = observed.clone();
    let before = record(&mut observed).clone();
    recorded(&Context::new(&observed, now), memo, &before)
}

fn task(attempt: u32, of: u32, state: BackupState) -> BackupTask {
    BackupTask {
        uid: "u1".to_owned(),
        attempt,
        source: Some(BackupOrigin {
            member: pod(of),
            role: if of == 0 {
                BackupRole::Primary
            } else {
                BackupRole::Standby
            },
        }),
        state,
        copied_bytes: Some(1),
        total_bytes: Some(2),
        message: (state == BackupState::Failed).then(|| "it was promoted".to_owned()),
        snapshot: None,
        damaged_pages: false,
        backup: (state == BackupState::Completed).then(|| StoredBackup {
            name: "a".to_owned(),
            timeline: 1,
            start_lsn: "0/1".to_owned(),
            stop_lsn: "0/2".to_owned(),
            start_time: Default::default(),
            stop_time: Default::default(),
            data_bytes: 2,
            stored_bytes: 1,
            source: None,
            damaged_pages: false,
            snapshot: None,
        }),
    }
}

fn chosen(memo: &Memo) -> Option<(u32, &str)> {
    let attempt = memo.backup.as_ref()?;
    Some((attempt.number, attempt.pod.as_str()))
}

#[test]
fn the_source_is_a_standby_that_streams_and_stays() {
    let source = |change: &dyn Fn(&mut Observed)| {
        let mut observed = asked();
        change(&mut observed);
        let now = at(&mut observed, 60_000);
        let memo = remembered(&observed, settled(), now);
        chosen(&memo).map(|(number, pod)| (number, pod.to_owned()))
    };
    let of = |ordinal: u32| Some((1, pod(ordinal)));
    assert_eq!(source(&|_| {}), of(2));
    assert_eq!(source(&|o| cluster(o).preferred = Some(pod(2))), of(1));
    assert_eq!(
        source(&|o| cluster(o).primary = Some(pod(2))),
        of(1),
        "it is to be promoted"
    );
    assert_eq!(source(&|o| cluster(o).fenced = [pod(2)].into()), of(1));
    let unfit: [(&str, Change<Peer>); 5] = [
        ("it does not stream", |peer| peer.report.state = MemberState::CatchingUp),
        ("it has a fault", |peer| peer.report.fault = Some("no".to_owned())),
        ("it has no room", |peer| {
            peer.report.full = [crate::protocol::Volume::Data].into()
        }),
        ("it has much to replay", |peer| {
            peer.position = Some(Position {
                lsn: Lsn(NEAR.0 + 0x102),
                ..position()
            })
        }),
        ("it is another member", |peer| {
            peer.report.member = MemberId::new(2, "dddd0000", 3)
        }),
    ];
    for (why, change) in unfit {
        assert_eq!(source(&|o| change(o.peers.get_mut(&pod(2)).unwrap())), of(1), "{why}");
        let both = |o: &mut Observed| o.peers.values_mut().for_each(change);
        assert_eq!(source(&both), of(0), "{why}: then the primary");
    }
    let behind = |o: &mut Observed| {
        let written = Lsn(position().lsn.0 + NEAR.0 + 1);
        o.postgres.answer.as_mut().unwrap().position = Some(Position {
            lsn: written,
            ..position()
        });
    };
    assert_eq!(source(&behind), of(0), "both lack much WAL");
    assert_eq!(source(&|o| cluster(o).backup_source = BackupSource::Primary), of(0));
    assert_eq!(source(&|o| cluster(o).replicas = 1), of(0));
    assert_eq!(source(&|o| cluster(o).archives = false), None);
    assert_eq!(source(&|o| cluster(o).backup = None), None);
}

#[test]
fn a_new_holder_gives_standbys_time_to_stream_again() {
    let mut observed = asked();
    observed.postgres.standbys.clear();
    let memo = Memo {
        holding_since: Some(BootTime(50_000)),
        ..settled()
    };
    let early = at(&mut observed, 79_999);
    assert_eq!(chosen(&remembered(&observed, memo.clone(), early)), None);
    let late = at(&mut observed, 80_000);
    assert_eq!(chosen(&remembered(&observed, memo, late)), Some((1, "orders-0")));
}

#[test]
fn an_attempt_of_another_holder_is_over_and_its_end_is_final() {
    let mut observed = asked();
    record(&mut observed).archive = Some(up_to(Some(task(1, 2, BackupState::Copying))));
    let memo = remembered(&observed, settled(), NOW);
    assert_eq!(chosen(&memo), Some((2, "orders-1")), "rather not the same one again");
    let told = written(&observed, &memo, NOW).unwrap();
    assert!(told.message.unwrap().starts_with("attempt 2: the primary has changed"));
    for state in [BackupState::Completed, BackupState::Failed] {
        record(&mut observed).archive = Some(up_to(Some(task(1, 2, state))));
        let memo = remembered(&observed, settled(), NOW);
        assert_eq!(chosen(&memo), None);
        assert_eq!(written(&observed, &memo, NOW), Some(task(1, 2, state)));
    }
    record(&mut observed).archive = Some(up_to(Some(task(MOST, 2, BackupState::Copying))));
    let memo = remembered(&observed, settled(), NOW);
    let told = written(&observed, &memo, NOW).unwrap();
    assert_eq!((told.attempt, told.state), (MOST, BackupState::Failed));
    assert!(told.message.unwrap().starts_with("5 attempts have not ended well"));
    assert_eq!(copy_to_make(&observed, &memo, NOW), None);
}

#[test]
fn the_lease_tells_what_the_source_has_reported_of_this_attempt() {
    let mut observed = asked();
    let memo = remembered(&observed, settled(), NOW);
    let begun = written(&observed, &memo, NOW).unwrap();
    assert_eq!(
        (begun.state, begun.copied_bytes, begun.message),
        (BackupState::Copying, None, None)
    );
    let hear = |observed: &mut Observed, task| observed.peers.get_mut(&pod(2)).unwrap().backup = Some(task);
    hear(&mut observed, task(1, 2, BackupState::Completed));
    assert_eq!(written(&observed, &memo, NOW), Some(task(1, 2, BackupState::Completed)));
    assert_eq!(remembered(&observed, memo.clone(), NOW).backup, memo.backup);
    hear(&mut observed, task(2, 2, BackupState::Completed));
    assert_eq!(
        written(&observed, &memo, NOW).unwrap().state,
        BackupState::Copying,
        "of another attempt"
    );
    for peer in observed.peers.values_mut() {
        peer.heard = BootTime(FENCE - 1);
    }
    let decision = decide(&observed, &settled(), BootTime(FENCE - 1));
    let Action::WriteLease { content, .. } = decision.action else {
        panic!("{}: {:?}", decision.rule, decision.action);
    };
    let told = content.archive.unwrap().backup.unwrap();
    assert_eq!(
        (told.uid.as_str(), told.attempt, told.source),
        ("u1", 1, task(1, 2, BackupState::Copying).source)
    );
}

#[test]
fn a_source_that_fails_is_followed_by_the_other_standby_and_then_by_the_primary() {
    let mut observed = asked();
    let mut memo = remembered(&observed, settled(), NOW);
    for (number, of, next) in [(1, 2, "orders-1"), (2, 1, "orders-0")] {
        let failed = Some(task(number, of, BackupState::Failed));
        observed.peers.get_mut(&pod(of)).unwrap().backup = failed;
        memo = remembered(&observed, memo, NOW);
        assert_eq!(chosen(&memo), Some((number + 1, next)));
        let told = written(&observed, &memo, NOW).unwrap();
        let why = format!("attempt {}: orders-{of}: it was promoted", number + 1);
        assert_eq!((told.state, told.message), (BackupState::Copying, Some(why)));
    }
    observed.backup = Some(task(3, 0, BackupState::Failed));
    memo = remembered(&observed, memo, NOW);
    assert_eq!(
        written(&observed, &memo, NOW),
        Some(BackupTask {
            copied_bytes: None,
            total_bytes: None,
            ..task(3, 0, BackupState::Failed)
        })
    );
    assert_eq!(remembered(&observed, memo.clone(), NOW), memo);
}

#[test]
fn damaged_pages_are_copied_only_if_no_source_has_better_ones() {
    let mut observed = asked();
    let mut memo = remembered(&observed, settled(), NOW);
    let damaged = |number, of| {
        Some(BackupTask {
            damaged_pages: true,
            ..task(number, of, BackupState::Failed)
        })
    };
    for (number, of) in [(1, 2), (2, 1), (3, 0)] {
        assert!(!memo.backup.as_ref().unwrap().accepts_damage, "attempt {number}");
        match of {
            0 => observed.backup = damaged(number, of),
            _ => observed.peers.get_mut(&pod(of)).unwrap().backup = damaged(number, of),
        }
        memo = remembered(&observed, memo, NOW);
    }
    assert_eq!(chosen(&memo), Some((4, "orders-0")));
    let copy = copy_to_make(&observed, &memo, NOW).unwrap();
    assert!(copy.accepts_damage && copy.attempt == 4);
    let told = written(&observed, &memo, NOW).unwrap();
    assert_eq!(
        (told.state, told.message.as_deref()),
        (BackupState::Copying, Some("attempt 4: orders-0: it was promoted"))
    );
    observed.backup = damaged(4, 0);
    memo = remembered(&observed, memo, NOW);
    assert!(memo.backup.unwrap().ended.is_some());
}

#[test]
fn a_source_that_is_silent_or_does_not_copy_is_given_up() {
    let mut observed = asked();
    let memo = remembered(&observed, settled(), NOW);
    let because = |observed: &Observed, now: u64| {
        let memo = remembered(observed, memo.clone(), BootTime(now));
        let attempt = memo.backup.unwrap();
        (attempt.number, attempt.because.unwrap_or_default())
    };
    at(&mut observed, 31_099);
    assert_eq!(because(&observed, 31_099).0, 1);
    at(&mut observed, 31_100);
    assert_eq!(
        because(&observed, 31_100),
        (2, "orders-2: its agent does not make the copy (any more)".to_owned())
    );
    observed.peers.get_mut(&pod(2)).unwrap().backup = Some(task(1, 2, BackupState::Copying));
    assert_eq!(because(&observed, 31_100).0, 1);
    at(&mut observed, 90_000);
    observed.peers.get_mut(&pod(2)).unwrap().heard = BootTime(60_001);
    assert_eq!(because(&observed, 90_000).0, 1);
    observed.peers.get_mut(&pod(2)).unwrap().heard = BootTime(60_000);
    assert_eq!(
        because(&observed, 90_000),
        (2, "orders-2: it has not reported for 30 s".to_owned())
    );
}

#[test]
fn the_primary_copies_its_own_files_while_it_accepts_writes() {
    let mut observed = asked();
    cluster(&mut observed).backup_source = BackupSource::Primary;
    let memo = remembered(&observed, settled(), NOW);
    let copy = copy_to_make(&observed, &memo, NOW).unwrap();
    assert_eq!(
        (copy.attempt, copy.origin.member.as_str(), copy.origin.role),
        (1, "orders-0", BackupRole::Primary)
    );
    let late = BootTime(FENCE);
    assert_eq!(
        copy_to_make(&observed, &memo, late),
        None,
        "none begins after the fence time"
    );
    observed.backup = Some(task(1, 0, BackupState::Copying));
    assert_eq!(
        copy_to_make(&observed, &memo, late),
        Some(copy),
        "one that has begun goes on"
    );
    assert_eq!(remembered(&observed, memo.clone(), late).backup, memo.backup);
    observed.backup = Some(task(1, 0, BackupState::Completed));
    assert_eq!(copy_to_make(&observed, &memo, NOW), None);
    observed.backup = None;
    hold_by(&mut observed, other_holder(), 2);
    assert_eq!(copy_to_make(&observed, &memo, NOW), None, "another one holds the lease");
    observed.postgres = stopped();
    assert_eq!(remembered(&observed, memo, NOW).backup, None);
}

/// [`standby`], which the holder has chosen.
fn chosen_standby() -> Observed {
    let mut observed = standby();
    let view = cluster(&mut observed);
    (view.archives, view.backup) = (true, Some("u1".to_owned()));
    let record = record(&mut observed);
    record.holder.as_mut().unwrap().serving = true;
    let mut wanted = task(1, 0, BackupState::Copying);
    wanted.source.as_mut().unwrap().role = BackupRole::Standby;
    record.archive = Some(up_to(Some(wanted)));
    observed.postgres.answer.as_mut().unwrap().streaming = true;
    observed
}

/// Takes what the Lease tells of the backup.
fn of_lease(observed: &mut Observed) -> BackupTask {
    record(observed).archive.as_mut().unwrap().backup.take().unwrap()
}

#[test]
fn a_standby_copies_its_files_while_the_lease_names_it() {
    let copy = |change: &dyn Fn(&mut Observed)| {
        let mut observed = chosen_standby();
        change(&mut observed);
        copy_to_make(&observed, &settled(), NOW).map(|copy| copy.attempt)
    };
    let begun = |o: &mut Observed| o.backup = Some(task(1, 0, BackupState::Copying));
    let stops: [(&str, Change<Observed>); 6] = [
        ("it was taken back", |o| cluster(o).backup = None),
        ("another one is asked for", |o| {
            cluster(o).backup = Some("u2".to_owned())
        }),
        ("the store is gone", |o| cluster(o).archives = false),
        ("it has ended here", |o| {
            o.backup = Some(task(1, 0, BackupState::Failed))
        }),
        ("another one is chosen", |o| {
            let before = of_lease(o);
            record(o).archive = Some(up_to(Some(BackupTask {
                source: task(2, 1, BackupState::Copying).source,
                ..before
            })));
        }),
        ("it is promoted", |o| {
            let answer = Answer {
                in_recovery: false,
                streaming: false,
                ..o.postgres.answer.unwrap()
            };
            o.postgres.answer = Some(answer);
            record(o).holder = None;
        }),
    ];
    assert_eq!(copy(&|_| {}), Some(1));
    for (why, change) in stops {
        assert_eq!(copy(&change), None, "{why}");
    }
    let idle: [(&str, Change<Observed>); 2] = [
        ("it does not stream", |o| {
            o.postgres.answer.as_mut().unwrap().streaming = false
        }),
        ("nobody serves", |o| record(o).holder = None),
    ];
    for (why, change) in idle {
        assert_eq!(copy(&change), None, "none begins: {why}");
        let both = |o: &mut Observed| {
            begun(o);
            change(o);
        };
        assert_eq!(copy(&both), Some(1), "one goes on: {why}");
    }
    let next = |o: &mut Observed| {
        begun(o);
        let before = of_lease(o);
        record(o).archive = Some(up_to(Some(BackupTask { attempt: 2, ..before })));
    };
    assert_eq!(copy(&next), Some(2), "another attempt begins anew");
}

#[test]
fn a_standby_reports_a_copy_that_it_makes_or_that_has_ended() {
    let mut observed = chosen_standby();
    let reported = |observed: &Observed| report::status(observed, &settled(), NOW).unwrap().backup;
    assert_eq!(reported(&observed), None);
    let begun = Some(task(1, 0, BackupState::Copying));
    observed.backup = begun.clone();
    assert_eq!(reported(&observed), begun);
    observed.postgres = stopped();
    assert_eq!(reported(&observed), None, "the holder is not to wait for it");
    observed.backup = Some(task(1, 0, BackupState::Failed));
    assert_eq!(reported(&observed), observed.backup);
    cluster(&mut observed).backup = Some("u2".to_owned());
    assert_eq!(reported(&observed), None, "another one is asked for");
}

#[test]
fn the_primary_closes_the_segment_that_a_standby_waits_for() {
    let mut observed = asked();
    let memo = remembered(&observed, settled(), NOW);
    let closes = |observed: &Observed, now: BootTime| closes_segment(observed, &memo, now);
    assert!(!closes(&observed, NOW));
    let mut hear = |state| observed.peers.get_mut(&pod(2)).unwrap().backup = Some(task(1, 2, state));
    hear(BackupState::WaitingForWal);
    assert!(closes(&observed, NOW));
    assert!(!closes(&observed, BootTime(FENCE)), "it may not be the primary");
    observed.peers.get_mut(&pod(2)).unwrap().backup = Some(task(2, 2, BackupState::WaitingForWal));
    assert!(!closes(&observed, NOW), "of another attempt");
}

/// One thing that happens to a holder with two standbys. What is said is of the present attempt, or of one so many before.
#[derive(Clone, Debug)]
enum Event {
    Says(u32, u32, BackupState),
    Dies(u32),
    Streams(u32, bool),
    Passes(u64),
    Restarts,
    WritesLease,
}

fn event() -> impl Strategy<Value = Event> {
    let states = [
        BackupState::Copying,
        BackupState::WaitingForWal,
        BackupState::Completed,
        BackupState::Failed,
    ];
    let state = prop::sample::select(states.to_vec());
    prop_oneof![
        (0..3_u32, 0..3_u32, state).prop_map(|(of, ago, state)| Event::Says(of, ago, state)),
        (1..3_u32).prop_map(Event::Dies),
        (1..3_u32, any::<bool>()).prop_map(|(of, streams)| Event::Streams(of, streams)),
        (1..40_000_u64).prop_map(Event::Passes),
        Just(Event::Restarts),
        Just(Event::WritesLease),
    ]
}

proptest! {
    /// Whatever happens: attempts are counted and bounded, only the first ones copy a standby, nobody's word about another attempt counts,
    /// an end stays, and a holder without an end has chosen somebody before long.
    #[test]
    fn attempts_are_counted_and_bounded(events in prop::collection::vec(event(), 1..40)) {
        let mut observed = asked();
        let (mut memo, mut now) = (settled(), 60_000);
        let mut dead = BTreeSet::new();
        for event in events {
            let attempt = memo.backup.as_ref().map_or(0, |attempt| attempt.number);
            // A standby copies only what the Lease has told.
            let told = record(&mut observed).archive.as_ref().and_then(|archive| Some(archive.backup.as_ref()?.attempt));
            match event {
                Event::Says(0, ago, state) => observed.backup = Some(task(attempt.saturating_sub(ago), 0, state)),
                Event::Says(of, ..) if dead.contains(&pod(of)) || told.is_none() => {}
                Event::Says(of, ago, state) => {
                    let said = task(told.unwrap().saturating_sub(ago), of, state);
                    observed.peers.get_mut(&pod(of)).unwrap().backup = Some(said);
                }
                Event::Dies(of) => drop(dead.insert(pod(of))),
                Event::Streams(of, streams) => {
                    let state = if streams { MemberState::Streaming } else { MemberState::CatchingUp };
                    observed.peers.get_mut(&pod(of)).unwrap().report.state = state;
                }
                Event::Passes(millis) => now += millis,
                Event::Restarts => {
                    (memo, observed.backup) = (Memo { holding_since: Some(BootTime(now)), ..settled() }, None);
                }
                Event::WritesLease => {
                    let told = written(&observed, &memo, BootTime(now));
                    record(&mut observed).archive = Some(up_to(told));
                }
            }
            observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
            for (pod, peer) in &mut observed.peers {
                if !dead.contains(pod) {
                    peer.heard = BootTime(now);
                }
            }
            let before = written(&observed, &memo, BootTime(now)).filter(|task| task.state.is_final());
            let was_written = record(&mut observed).archive.as_ref().and_then(|archive| archive.backup.clone());
            memo = remembered(&observed, memo, BootTime(now));
            let told = written(&observed, &memo, BootTime(now));
            prop_assert_eq!(&remembered(&observed, memo.clone(), BootTime(now)), &memo, "decided again");
            if let Some(end) = was_written.filter(|task| task.state.is_final()) {
                prop_assert_eq!(told.as_ref(), Some(&end));
                prop_assert_eq!(copy_to_make(&observed, &memo, BootTime(now)), None);
                break;
            }
            if let (Some(before), Some(told)) = (&before, &told) && before.state == BackupState::Completed {
                prop_assert_eq!(before, told);
            }
            let Some(attempt) = &memo.backup else {
                prop_assert!(now < memo.holding_since.unwrap().plus(SETTLES).0, "nobody is chosen");
                continue;
            };
            prop_assert!(attempt.number <= MOST);
            if attempt.pod != pod(0) {
                prop_assert!(attempt.number <= OF_STANDBYS);
                let heard = observed.peers[&attempt.pod].heard.max(attempt.since);
                let is_complete = told.as_ref().is_some_and(|task| task.state == BackupState::Completed);
                prop_assert!(is_complete || BootTime(now) < heard.plus(LOST), "a silent source is kept");
            }
            let written = record(&mut observed).archive.as_ref().and_then(|archive| archive.backup.as_ref()).map_or(0, |task| task.attempt);
            prop_assert!(attempt.number >= written, "attempts count up");
            let told = told.unwrap();
            prop_assert_eq!(told.source.unwrap().member, attempt.pod.clone());
            prop_assert_eq!(told.state == BackupState::Completed, told.backup.is_some());
        }
    }
}
