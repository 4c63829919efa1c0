use std::collections::{BTreeMap, BTreeSet};

use super::super::fixtures::{CLUSTER_UID, blank, cluster, empty_lease, position};
use super::super::{
    Configured, Contact, EnforcedSettings, Failsafe, Mode, Peer, Process, Purpose, Refused, Upstream, VolumeView, Work,
};
use super::*;
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, HolderRecord, Incarnation, LeaseRecord, Lsn, MemberId, PromiseReply};
use crate::quorum::SyncRule;
use crate::timing::Timing;

const SERVER: ServerId = ServerId(71);

fn observer() -> Observer {
    Observer::new(blank().own, CLUSTER_UID.to_owned())
}

fn standby_member() -> MemberId {
    MemberId::new(1, "aaaa", 1)
}

fn done(observer: &mut Observer, work: Work, result: Result<Effect, Failure>, now: u64) -> Option<Note> {
    observer.observe(Event::Done(Box::new(Done { work, result })), BootTime(now))
}

fn failed(message: &str, news: News) -> Result<Effect, Failure> {
    Err(Failure {
        message: message.to_owned(),
        news: Some(news),
    })
}

fn promise(epoch: u64) -> Promise {
    Promise {
        epoch: Epoch(epoch),
        promoting: None,
    }
}

fn scan(read: u64, epoch: u64) -> Scan {
    Scan {
        view: VolumeView {
            promise: Some(promise(epoch)),
            read: BootTime(read),
            ..VolumeView::default()
        },
        enforced: None,
        good_settings: None,
    }
}

fn scanned(observer: &mut Observer, read: u64, epoch: u64) {
    observer.observe(Event::Scanned(Box::new(scan(read, epoch))), BootTime(read));
}

fn record(version: &str) -> LeaseRecord {
    LeaseRecord {
        version: version.to_owned(),
        epoch: Epoch(4),
        ..empty_lease("lease")
    }
}

fn seen(record: LeaseRecord) -> Box<SeenLease> {
    Box::new(SeenLease {
        place: LeaseVersion {
            uid: record.uid.clone(),
            version: record.version.clone(),
            owner: Some(CLUSTER_UID.to_owned()),
        },
        record: Some(record),
    })
}

fn lease(observer: &mut Observer, record: LeaseRecord, now: u64) {
    observer.observe(Event::Lease(Reading::Is(seen(record))), BootTime(now));
}

/// The Lease, held by `run`.
fn held_by(run: &str, version: &str) -> LeaseRecord {
    let incarnation = Incarnation {
        pod: "orders-1".to_owned(),
        pod_uid: "pod-1".to_owned(),
        run: run.to_owned(),
        member: standby_member(),
    };
    LeaseRecord {
        holder: Some(HolderRecord {
            incarnation,
            address: "10.0.0.2".to_owned(),
            timeline: None,
            serving: true,
        }),
        ..record(version)
    }
}

fn version(observer: &Observer) -> &str {
    let record = observer.observed().lease.record.is();
    record.map_or("", |record| record.version.as_str())
}

fn configured(settings: &str, upstream: Option<Upstream>) -> Configured {
    Configured {
        settings: settings.to_owned(),
        upstream,
        raised: None,
    }
}

fn upstream(epoch: u64) -> Upstream {
    Upstream {
        address: "10.0.0.2".to_owned(),
        epoch: Epoch(epoch),
    }
}

fn start(observer: &mut Observer, server: ServerId, mode: Mode, now: u64) -> Option<Note> {
    let started = Effect::Started {
        server,
        ended: false,
        mode,
        configured: configured("good", None),
        following: Following::default(),
        rule: SyncRule::default(),
        promise: None,
    };
    done(observer, Work::StartStandby, Ok(started), now)
}

fn status(in_recovery: bool) -> Status {
    Status {
        in_recovery,
        position: position(),
        begins: None,
        inserted: None,
        replayed: None,
        received_all: in_recovery,
        knows_end: in_recovery,
        waits_for_wal: false,
        following: Following::default(),
        history: Vec::new(),
        oldest: None,
        receiver: None,
        senders: Vec::new(),
        slots: BTreeSet::new(),
        lost_slots: BTreeSet::new(),
        pending_restart: false,
        lowers_limits: false,
    }
}

fn answers(observer: &mut Observer, asked: u64, answer: Result<Status, NoAnswer>) -> Option<Note> {
    let event = Event::Status {
        server: SERVER,
        asked: BootTime(asked),
        answer: answer.map(Box::new),
    };
    observer.observe(event, BootTime(asked))
}

fn is_answering(observer: &Observer) -> bool {
    observer.observed().postgres.answer.is_some()
}

#[test]
fn another_resource_of_the_same_name_changes_nothing() {
    let mut observer = observer();
    let mut view = cluster(&mut blank()).clone();
    view.uid = "another".to_owned();
    let note = observer.observe(Event::Cluster(Box::new(view.clone())), BootTime(1));
    assert_eq!(note, Some(Note::AnotherCluster));
    assert_eq!(observer.observed().cluster, Reading::Unknown);
    view.uid = CLUSTER_UID.to_owned();
    assert_eq!(observer.observe(Event::Cluster(Box::new(view)), BootTime(2)), None);
    assert!(observer.observed().cluster.is().is_some());
}

#[test]
fn an_older_version_that_comes_late_changes_nothing() {
    let mut observer = observer();
    lease(&mut observer, record("10"), 1);
    lease(&mut observer, record("9"), 2);
    assert_eq!(
        (version(&observer), observer.observed().lease.changed),
        ("10", BootTime(1))
    );
    lease(
        &mut observer,
        LeaseRecord {
            uid: "made again".to_owned(),
            ..record("9")
        },
        3,
    );
    assert_eq!(
        version(&observer),
        "9",
        "versions of different objects are not compared"
    );
}

#[test]
fn a_lease_that_the_watch_says_is_gone_is_missing_whatever_version_was_known() {
    let mut observer = observer();
    lease(&mut observer, record("10"), 1);
    observer.observe(Event::Lease(Reading::Missing), BootTime(2));
    assert_eq!(observer.observed().lease.record, Reading::Missing);
    assert_eq!(observer.newest_lease(), None);
    lease(&mut observer, record("9"), 3);
    assert_eq!(version(&observer), "9", "no newer version is known any more");
}

#[test]
fn a_lease_that_cannot_be_read_is_unknown_and_its_older_versions_stay_old() {
    let mut observer = observer();
    lease(&mut observer, record("10"), 1);
    observer.observe(Event::Lease(Reading::Unknown), BootTime(2));
    assert_eq!(observer.observed().lease.record, Reading::Unknown);
    lease(&mut observer, record("9"), 3);
    assert_eq!(observer.observed().lease.record, Reading::Unknown);
    lease(&mut observer, record("12"), 4);
    assert_eq!(version(&observer), "12");
}

#[test]
fn writes_are_remembered_until_one_succeeds_or_their_version_is_past() {
    let mut observer = observer();
    let begins = |observer: &mut Observer, version: &str, required, purpose| {
        let content = LeaseContent {
            uid: "lease".to_owned(),
            version: version.to_owned(),
            holder: None,
            duration: Millis(10_000),
            epoch: Epoch(4),
            system_id: None,
            release: None,
            rule: SyncRule {
                required,
                ..SyncRule::default()
            },
            timeline: None,
            lossy: None,
            history: Vec::new(),
            members: BTreeMap::new(),
            positions: BTreeMap::new(),
            archive: None,
        };
        observer.begins(&Action::WriteLease {
            content: Box::new(content),
            purpose,
            timing: Timing::DEFAULT,
        });
    };
    let known = |observer: &Observer| {
        let unsettled = observer.observed().lease.unsettled.clone()?;
        Some((unsettled.version, unsettled.rules.len(), unsettled.releases))
    };
    begins(&mut observer, "7", 1, Purpose::Renew);
    begins(&mut observer, "7", 1, Purpose::Renew);
    begins(&mut observer, "7", 2, Purpose::Release);
    begins(&mut observer, "7", 2, Purpose::Renew);
    assert_eq!(known(&observer), Some(("7".to_owned(), 2, true)));
    assert_eq!(observer.observed().tasks.lease.running, Some(Work::WriteLease));
    begins(&mut observer, "8", 1, Purpose::Renew);
    assert_eq!(known(&observer), Some(("8".to_owned(), 1, false)));
    let given = Failsafe {
        member: standby_member(),
        epoch: Epoch(4),
        sent: BootTime(5),
    };
    observer.observed.failsafe.insert("orders-1".to_owned(), given);
    let written = Effect::Lease {
        written: seen(held_by("run-1", "9")),
        sent: BootTime(6),
        purpose: Purpose::Renew,
        timing: Timing::DEFAULT,
    };
    done(&mut observer, Work::WriteLease, Ok(written), 7);
    assert_eq!(known(&observer), None);
    assert!(observer.observed().failsafe.is_empty(), "a renewal needs no promises");
    let confirmed = observer.observed().lease.confirmed.expect("it is the holder");
    assert_eq!((confirmed.epoch, confirmed.sent), (Epoch(4), BootTime(6)));
}

fn called(observer: &mut Observer, contacted: Contacted, run: &str, now: u64) -> Contact {
    let run = Some(run.to_owned());
    let result = failed("no", News::Contact { contacted, run });
    done(observer, Work::Report, result, now);
    observer.observed().contact
}

#[test]
fn the_holder_is_heard_refuses_or_is_silent() {
    let mut observer = observer();
    lease(&mut observer, held_by("first", "1"), 10);
    assert_eq!(observer.observed().lease.holder_since, BootTime(10));
    let refused = called(&mut observer, Contacted::Refused, "first", 100);
    assert_eq!((refused.heard, refused.refused), (None, Some(BootTime(100))));
    let again = called(&mut observer, Contacted::Refused, "first", 200);
    assert_eq!(again.refused, Some(BootTime(100)), "since then");
    assert_eq!(called(&mut observer, Contacted::Silent, "first", 300).refused, None);
    let heard = called(&mut observer, Contacted::Heard, "first", 400);
    assert_eq!((heard.heard, heard.refused), (Some(BootTime(400)), None));
    // A renewal changes nothing. Another run has not been called yet, and the first one's result does not apply to it.
    lease(&mut observer, held_by("first", "2"), 450);
    assert_eq!(observer.observed().contact, heard);
    lease(&mut observer, held_by("second", "3"), 500);
    assert_eq!(observer.observed().lease.holder_since, BootTime(500));
    assert_eq!(observer.observed().contact, Contact::default());
    assert_eq!(
        called(&mut observer, Contacted::Heard, "first", 600),
        Contact::default()
    );
}

#[test]
fn a_position_from_before_a_promise_counts_for_nothing() {
    let mut observer = observer();
    scanned(&mut observer, 1, 1);
    start(&mut observer, SERVER, Mode::Standby, 10);
    answers(&mut observer, 20, Ok(status(true)));
    let follow = |observer: &mut Observer, epoch| {
        observer.observed.postgres.configured = Some(configured("good", Some(upstream(epoch))));
    };
    let followed = |observer: &Observer| {
        let configured = observer.observed().postgres.configured.as_ref();
        configured.and_then(|configured| configured.upstream.clone())
    };
    follow(&mut observer, 1);
    done(&mut observer, Work::Promise, Ok(Effect::Promised(promise(2))), 50);
    let answer = observer.observed().postgres.answer.expect("an answer");
    assert!(!answer.received_all);
    assert_eq!(followed(&observer), None);
    assert_eq!(observer.polling(BootTime(50)).void_before, BootTime(50));
    answers(&mut observer, 49, Ok(status(true)));
    let answer = observer.observed().postgres.answer.expect("an answer");
    assert!(!answer.received_all, "a question from before the promise");
    // The result of an older promise arrives late.
    done(&mut observer, Work::Promise, Ok(Effect::Promised(promise(1))), 60);
    let known = observer.observed().volume.is().and_then(|volume| volume.promise);
    assert_eq!(known, Some(promise(2)));
    // A persisted promise counts, even if the end of the WAL receiver was not verified.
    follow(&mut observer, 2);
    let still_runs = |epoch| failed("the WAL receiver still runs", News::Promise(promise(epoch)));
    done(&mut observer, Work::Promise, still_runs(2), 70);
    assert_eq!(followed(&observer), Some(upstream(2)), "it is of the promised epoch");
    done(&mut observer, Work::Promise, still_runs(3), 80);
    assert_eq!(followed(&observer), None);
}

#[test]
fn a_promise_outlives_a_reading_of_the_volume_that_began_before_it() {
    let mut observer = observer();
    let epoch = |observer: &Observer| {
        let promise = observer.observed().volume.is().and_then(|volume| volume.promise);
        promise.map(|promise| promise.epoch)
    };
    scanned(&mut observer, 10, 1);
    done(&mut observer, Work::Promise, Ok(Effect::Promised(promise(3))), 30);
    scanned(&mut observer, 20, 1);
    assert_eq!(epoch(&observer), Some(Epoch(3)));
    scanned(&mut observer, 40, 5);
    assert_eq!(epoch(&observer), Some(Epoch(5)));
    scanned(&mut observer, 39, 4);
    assert_eq!(epoch(&observer), Some(Epoch(5)), "that reading began earlier");
}

#[test]
fn a_reading_beside_a_task_on_the_volume_is_dropped() {
    let mut observer = observer();
    observer.begins(&Action::SetAside { keep: false });
    scanned(&mut observer, 10, 1);
    assert_eq!(observer.observed().volume, Reading::Unknown);
    let read = Effect::Volume(Box::new(scan(20, 2)));
    done(&mut observer, Work::SetAside, Ok(read), 30);
    assert!(observer.observed().volume.is().is_some());
}

#[test]
fn no_member_counts_as_admitted_after_its_slot_is_gone() {
    let admitted = |work: Work, result: Result<Effect, Failure>| {
        let mut observer = observer();
        done(&mut observer, Work::Admit, Ok(Effect::Admitted(standby_member())), 10);
        done(&mut observer, work, result, 20);
        !observer.observed().admitted.is_empty()
    };
    let read = || Ok(Effect::Volume(Box::new(scan(15, 1))));
    for work in [Work::Rewind, Work::Clone, Work::SetAside] {
        assert!(!admitted(work, read()), "{work:?}");
        assert!(!admitted(work, Err(Failure::said("no space"))), "{work:?}");
    }
    assert!(!admitted(Work::DropSlots, Ok(Effect::Kept(BTreeSet::new()))));
    assert!(admitted(Work::StoreCertificate, read()), "its data is as it was");
}

#[test]
fn slots_that_are_to_be_dropped_count_as_gone_from_the_beginning() {
    let admitted = |action: Action| {
        let mut observer = observer();
        done(&mut observer, Work::Admit, Ok(Effect::Admitted(standby_member())), 10);
        observer.begins(&action);
        !observer.observed().admitted.is_empty()
    };
    let kept = BTreeSet::from([standby_member()]);
    assert!(admitted(Action::DropSlots { keep: kept }));
    assert!(!admitted(Action::DropSlots { keep: BTreeSet::new() }));
    let promotion = |members| Action::Promote {
        epoch: Epoch(4),
        until: BootTime(100),
        timeline: crate::protocol::Timeline(2),
        rule: SyncRule::default(),
        members,
    };
    assert!(!admitted(promotion(BTreeSet::new())));
    assert!(admitted(promotion(BTreeSet::from([standby_member()]))));
}

#[test]
fn a_member_whose_slot_has_lost_its_wal_is_admitted_anew() {
    let admitted = |mode, in_recovery| {
        let mut observer = observer();
        start(&mut observer, SERVER, mode, 10);
        done(&mut observer, Work::Admit, Ok(Effect::Admitted(standby_member())), 20);
        let lost = Status {
            lost_slots: BTreeSet::from([standby_member()]),
            ..status(in_recovery)
        };
        answers(&mut observer, 30, Ok(lost));
        !observer.observed().admitted.is_empty()
    };
    assert!(!admitted(Mode::Primary, false));
    assert!(
        admitted(Mode::Primary, true),
        "it makes no slots before it has left recovery"
    );
    assert!(admitted(Mode::Standby, true));
}

#[test]
fn a_slow_answer_is_none_only_after_three_in_a_row() {
    let mut observer = observer();
    start(&mut observer, SERVER, Mode::Standby, 10);
    answers(&mut observer, 20, Ok(status(true)));
    for asked in [30, 40] {
        assert_eq!(answers(&mut observer, asked, Err(NoAnswer::Silent)), None);
        assert!(is_answering(&observer));
    }
    answers(&mut observer, 50, Ok(status(true)));
    for asked in [60, 70] {
        answers(&mut observer, asked, Err(NoAnswer::Silent));
        assert!(is_answering(&observer), "an answer came between");
    }
    assert_eq!(answers(&mut observer, 80, Err(NoAnswer::Silent)), Some(Note::Silent));
    assert!(!is_answering(&observer));
    assert_eq!(
        answers(&mut observer, 90, Err(NoAnswer::Silent)),
        None,
        "it is reported once"
    );
}

#[test]
fn silence_is_counted_from_zero_after_an_answer_to_a_task() {
    let mut observer = observer();
    start(&mut observer, SERVER, Mode::Standby, 10);
    for asked in [20, 30, 40] {
        answers(&mut observer, asked, Err(NoAnswer::Silent));
    }
    let set = Effect::Configured {
        configured: configured("good", None),
        following: Following::default(),
        status: Box::new(status(true)),
        asked: BootTime(50),
        promise: None,
    };
    done(&mut observer, Work::Configure, Ok(set), 60);
    assert!(is_answering(&observer));
    for asked in [70, 80, 90] {
        answers(&mut observer, asked, Err(NoAnswer::Silent));
    }
    assert!(!is_answering(&observer), "it was silent three times again");
}

#[test]
fn a_server_that_takes_no_sessions_does_not_answer_at_once() {
    let mut observer = observer();
    start(&mut observer, SERVER, Mode::Standby, 10);
    answers(&mut observer, 20, Ok(status(true)));
    assert_eq!(
        answers(&mut observer, 30, Err(NoAnswer::Unable)),
        Some(Note::Unanswered)
    );
    assert!(!is_answering(&observer));
    let refused = || Err(NoAnswer::Refused("no such role".to_owned()));
    assert_eq!(answers(&mut observer, 40, refused()), None, "it did not answer before");
    assert_eq!(observer.observed().postgres.refusal.as_deref(), Some("no such role"));
    answers(&mut observer, 50, Ok(status(true)));
    assert_eq!(observer.observed().postgres.refusal, None);
}

#[test]
fn an_answer_of_another_server_is_dropped() {
    let mut observer = observer();
    start(&mut observer, ServerId(70), Mode::Standby, 10);
    assert_eq!(answers(&mut observer, 20, Ok(status(true))), None);
    assert!(!is_answering(&observer));
}

#[test]
fn settings_are_proved_by_an_answer_of_a_server_that_runs_with_them() {
    let mut observer = observer();
    start(&mut observer, SERVER, Mode::Standby, 10);
    assert_eq!(answers(&mut observer, 20, Ok(status(true))), Some(Note::SettingsProved));
    observer.observe(Event::GoodSettings("good".to_owned()), BootTime(20));
    assert_eq!(answers(&mut observer, 30, Ok(status(true))), None);
}

#[test]
fn refused_settings_are_no_failed_tries() {
    let mut observer = observer();
    let failures = |observer: &Observer| observer.observed().tasks.start.failures;
    done(&mut observer, Work::StartStandby, Err(Failure::said("no")), 10);
    done(&mut observer, Work::StartStandby, Err(Failure::said("no")), 20);
    assert_eq!(failures(&observer), 2);
    let refused = Refused {
        settings: "bad".to_owned(),
        error: "no such setting".to_owned(),
    };
    done(
        &mut observer,
        Work::StartStandby,
        failed("refused", News::Refused(refused)),
        30,
    );
    assert_eq!(failures(&observer), 0, "the next try is with other settings");
    assert_eq!(
        observer.observed().postgres.refused.as_ref().expect("it").settings,
        "bad"
    );
}

#[test]
fn removing_the_leftovers_of_a_task_is_no_success_of_it() {
    let mut observer = observer();
    done(&mut observer, Work::Clone, Err(Failure::said("no space")), 10);
    let read = Effect::Volume(Box::new(scan(20, 1)));
    done(&mut observer, Work::DiscardStaging, Ok(read), 20);
    let task = &observer.observed().tasks.volume;
    assert_eq!((task.failures, task.error.as_deref()), (1, Some("no space")));
}

#[test]
fn a_failure_is_reported_once() {
    let mut observer = observer();
    let fail =
        |observer: &mut Observer, message: &str| done(observer, Work::Clone, Err(Failure::said(message)), 10).is_some();
    assert!(fail(&mut observer, "no space"));
    assert!(!fail(&mut observer, "no space"));
    assert!(fail(&mut observer, "no route"));
}

#[test]
fn a_server_that_ended_before_its_start_was_reported_is_stopped() {
    let mut observer = observer();
    let started = Effect::Started {
        server: SERVER,
        ended: true,
        mode: Mode::Standby,
        configured: configured("good", None),
        following: Following::default(),
        rule: SyncRule::default(),
        promise: None,
    };
    let note = done(&mut observer, Work::StartStandby, Ok(started), 10);
    assert!(matches!(note, Some(Note::Ended { server: SERVER, .. })), "{note:?}");
    assert!(matches!(
        observer.observed().postgres.process,
        Process::Stopped { exit: Some(_) }
    ));
    assert_eq!(observer.server(), None);
}

#[test]
fn the_end_of_a_server_ends_what_was_known_of_it() {
    let mut observer = observer();
    start(&mut observer, SERVER, Mode::Primary, 10);
    answers(&mut observer, 20, Ok(status(false)));
    done(&mut observer, Work::Open, Ok(Effect::Opened), 30);
    assert!(observer.observed().postgres.open && observer.polling(BootTime(30)).writes);
    observer.begins(&Action::Stop(super::super::Stop::Fast));
    assert_eq!(observer.observe(Event::Exited(ServerId(70)), BootTime(40)), None);
    observer.observe(Event::Exited(SERVER), BootTime(50));
    let postgres = &observer.observed().postgres;
    let Process::Stopped { exit: Some(exit) } = postgres.process else {
        panic!("it runs");
    };
    assert_eq!((exit.ran, exit.asked), (Millis(40), true));
    assert!(!postgres.open && postgres.answer.is_none() && postgres.in_doubt.is_none());
    // Later results about it are dropped.
    done(&mut observer, Work::Open, Ok(Effect::Opened), 60);
    assert!(!observer.observed().postgres.open);
}

#[test]
fn after_a_failed_promotion_the_configuration_is_written_again() {
    let mut observer = observer();
    start(&mut observer, SERVER, Mode::Standby, 10);
    done(&mut observer, Work::Promote, Err(Failure::said("no")), 20);
    let known = observer.observed().postgres.configured.as_ref().expect("it runs");
    assert_eq!(known.settings, "");
}

#[test]
fn a_promoted_member_is_in_doubt_up_to_the_end_of_its_wal() {
    let mut observer = observer();
    scanned(&mut observer, 1, 4);
    start(&mut observer, SERVER, Mode::Standby, 10);
    let promoted = Effect::Promoted {
        rule: SyncRule::any(1, [standby_member()]),
        configured: configured("good", None),
        in_doubt: Lsn(0x500),
        promise: promise(4),
        status: Box::new(Status {
            inserted: Some(Lsn(0x600)),
            ..status(false)
        }),
        asked: BootTime(30),
    };
    done(&mut observer, Work::Promote, Ok(promoted), 40);
    let postgres = &observer.observed().postgres;
    assert_eq!(postgres.process, Process::Running { mode: Mode::Primary });
    assert_eq!(
        (postgres.in_doubt, postgres.sync.proven_at),
        (Some(Lsn(0x500)), Lsn(0x500))
    );
    assert_eq!(postgres.sync.proven, SyncRule::any(1, [standby_member()]));
    assert!(!postgres.open);
    assert_eq!(postgres.wrote, Some(BootTime(30)));
}

#[test]
fn a_primary_that_has_left_recovery_is_in_doubt_up_to_what_it_has_inserted() {
    let mut observer = observer();
    start(&mut observer, SERVER, Mode::Primary, 10);
    answers(&mut observer, 20, Ok(status(true)));
    assert_eq!(observer.observed().postgres.in_doubt, None);
    let inserted = Status {
        inserted: Some(Lsn(0x200)),
        ..status(false)
    };
    answers(&mut observer, 30, Ok(inserted.clone()));
    let later = Status {
        inserted: Some(Lsn(0x900)),
        ..inserted
    };
    answers(&mut observer, 40, Ok(later));
    let postgres = &observer.observed().postgres;
    assert_eq!(
        (postgres.in_doubt, postgres.sync.proven_at),
        (Some(Lsn(0x200)), Lsn(0x200))
    );
}

#[test]
fn another_upstream_is_seen_by_what_was_written() {
    let mut observer = observer();
    let following = Following {
        conninfo: "host=10.0.0.2".to_owned(),
        slot: "cdb_0".to_owned(),
    };
    let told = Status {
        following: following.clone(),
        ..status(true)
    };
    let other = |observer: &Observer| observer.observed().postgres.answer.expect("an answer").other_upstream;
    start(&mut observer, SERVER, Mode::Standby, 10);
    answers(&mut observer, 20, Ok(told.clone()));
    assert!(other(&observer));
    let set = Effect::Configured {
        configured: configured("good", Some(upstream(1))),
        following,
        status: Box::new(told),
        asked: BootTime(30),
        promise: None,
    };
    done(&mut observer, Work::Configure, Ok(set), 40);
    assert!(!other(&observer));
    answers(&mut observer, 50, Ok(status(true)));
    assert!(other(&observer), "it was emptied behind the agent's back");
}

#[test]
fn limits_of_the_control_file_are_kept_until_it_is_read_again() {
    let mut observer = observer();
    let enforced = |connections| EnforcedSettings {
        max_connections: connections,
        ..EnforcedSettings::default()
    };
    let read = |read, connections: Option<u32>| Scan {
        enforced: connections.map(enforced),
        ..scan(read, 1)
    };
    observer.observe(Event::Scanned(Box::new(read(1, Some(100)))), BootTime(1));
    observer.observe(Event::Scanned(Box::new(read(2, None))), BootTime(2));
    assert_eq!(observer.observed().postgres.enforced, enforced(100));
    observer.observe(Event::Enforced(enforced(50)), BootTime(3));
    assert_eq!(observer.observed().postgres.enforced, enforced(50));
}

#[test]
fn a_stalled_loop_is_noticed() {
    let mut observer = observer();
    assert!(!observer.goes_on(BootTime(10), BootTime(10).plus(STALLED)));
    assert_eq!(observer.observed().went_on, None);
    assert!(observer.goes_on(BootTime(10), BootTime(11).plus(STALLED)));
    assert_eq!(observer.observed().went_on, Some(BootTime(11).plus(STALLED)));
}

/// The member in pod `orders-2`, which has reported this key.
fn peer(key: &str) -> Peer {
    let report = serde_json::json!({
        "podUid": "u", "member": "cdb_2_aaaa_00000001", "address": "10.0.0.3", "state": "Waiting", "settings": "s",
        "agentVersion": "0", "publicKey": key,
    });
    Peer {
        report: serde_json::from_value(report).expect("a report"),
        position: None,
        replayed: None,
        promised: Epoch(0),
        backup: None,
        heard: BootTime(0),
    }
}

#[test]
fn answers_to_a_candidate_are_kept_by_pod() {
    let mut observer = observer();
    observer.observed.peers.insert("orders-2".to_owned(), peer("key"));
    let mut answer = |promised, key: Option<&str>, now| {
        let event = Event::Promise {
            pod: "orders-2".to_owned(),
            reply: PromiseReply {
                member: MemberId::new(2, "aaaa", 1),
                promised: Epoch(promised),
                suspects: true,
                position: None,
            },
            key: key.map(str::to_owned),
        };
        observer.observe(event, BootTime(now))
    };
    assert_eq!(answer(1, Some("key"), 5), None);
    assert_eq!(answer(2, Some("key"), 6), None);
    for key in [None, Some("another")] {
        assert!(matches!(answer(3, key, 7), Some(Note::Refused { what: "promise", .. })));
    }
    assert_eq!(observer.observed().promises["orders-2"].reply.promised, Epoch(2));
    assert_eq!(observer.observed().promises["orders-2"].at, BootTime(6));
}

/// The candidate's key.
const KEY: &str = "key-2";

/// A member that knows the candidate in pod `orders-2`, and that the lease has no holder.
fn voter() -> Observer {
    let mut observer = observer();
    lease(&mut observer, record("7"), 0);
    observer.observed.peers.insert("orders-2".to_owned(), peer(KEY));
    let mut own = scan(1, 0);
    own.view.member = Some(super::super::Member {
        id: MemberId::new(0, "aaaa", 1),
        claim_uid: "claim".to_owned(),
        public_key: "key".to_owned(),
        certificate: None,
    });
    observer.observe(Event::Scanned(Box::new(own)), BootTime(1));
    observer
}

fn request(lease: &str) -> PromiseRequest {
    PromiseRequest {
        epoch: Epoch(5),
        pod: "orders-2".to_owned(),
        lease: lease.to_owned(),
    }
}

/// Sends the answers that are due at `now`. Returns them, and when the next one is due.
fn sent(
    held: &mut HeldRequests<bool>,
    observer: &Observer,
    now: u64,
) -> (Vec<Result<PromiseReply, String>>, Option<BootTime>) {
    let mut answers = Vec::new();
    let next = held.answer(
        observer.observed(),
        BootTime(now),
        |waits| *waits,
        |_, answer| answers.push(answer),
    );
    (answers, next)
}

#[test]
fn a_request_waits_for_a_promise_that_is_being_made() {
    let (mut held, mut observer) = (HeldRequests::default(), voter());
    let request = request("lease");
    assert_eq!(observer.candidate(&request, Some(KEY), BootTime(1_000)), Ok(()));
    assert_eq!(observer.observed().asked_for, Some(Epoch(5)));
    held.hold(request, true, BootTime(1_000));
    // The lease has no holder: this member suspects, and is about to promise.
    assert_eq!(sent(&mut held, &observer, 1_050), (Vec::new(), Some(BootTime(1_200))));
    let (answers, next) = sent(&mut held, &observer, 1_200);
    assert_eq!(next, None);
    let [Ok(reply)] = answers.as_slice() else {
        panic!("one answer: {answers:?}");
    };
    assert_eq!((reply.promised, reply.suspects, reply.position), (Epoch(0), true, None));
}

#[test]
fn a_candidate_that_no_longer_waits_is_forgotten() {
    let (mut held, observer) = (HeldRequests::default(), voter());
    held.hold(request("lease"), false, BootTime(1_000));
    assert_eq!(sent(&mut held, &observer, 1_050), (Vec::new(), None));
}

#[test]
fn a_candidate_that_has_not_proved_to_be_a_member_is_refused() {
    let mut observer = voter();
    assert!(
        observer
            .candidate(&request("lease"), Some("another"), BootTime(1_000))
            .is_err()
    );
    assert_eq!(observer.observed().asked_for, None);
}

#[test]
fn another_databases_candidate_is_refused_and_changes_nothing() {
    let (mut held, mut observer) = (HeldRequests::default(), voter());
    let request = request("another");
    assert_eq!(observer.candidate(&request, Some("any"), BootTime(1_000)), Ok(()));
    assert_eq!(observer.observed().asked_for, None);
    held.hold(request, true, BootTime(1_000));
    let (answers, next) = sent(&mut held, &observer, 1_000);
    assert!(matches!(answers.as_slice(), [Err(_)]), "{answers:?}");
    assert_eq!(next, None);
}
