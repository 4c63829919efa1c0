use super::super::tests::{peer, world};
use super::*;
use machine::instance::Reading;
use machine::lease_object;
use machine::protocol::Epoch;

/// The Lease, held by `run`.
fn held_by(world: &mut World, run: &str, version: &str, now: u64) {
    let holder = serde_json::json!({
        "pod": "orders-1", "podUid": "pod-1", "run": run, "member": "cdb_1_aaaa_00000001", "address": "10.0.0.2",
    });
    let lease = serde_json::json!({
        "metadata": {"name": "orders", "uid": "lease", "resourceVersion": version,
                     "annotations": {(api::names::LEASE_HOLDER): holder.to_string()}},
        "spec": {"leaseTransitions": 4, "holderIdentity": format!("orders-1/pod-1/{run}/cdb_1_aaaa_00000001")},
    });
    let lease: Lease = serde_json::from_value(lease).expect("a Lease");
    assert!(lease_object::read(&lease).is_ok());
    world.lease_read(Reading::Is(lease), BootTime(now));
}

fn called(world: &mut World, contacted: Contacted, run: &str, now: u64) -> Contact {
    let run = Some(run.to_owned());
    let failure = Failure {
        message: "no".to_owned(),
        news: Some(News::Contact { contacted, run }),
    };
    let done = Done {
        work: Work::Report,
        result: Err(failure),
    };
    world.done(done, BootTime(now));
    world.observed.contact
}

#[test]
fn the_holder_is_heard_refuses_or_is_silent() {
    let mut world = world();
    held_by(&mut world, "first", "1", 10);
    assert_eq!(world.observed.lease.holder_since, BootTime(10));
    let refused = called(&mut world, Contacted::Refused, "first", 100);
    assert_eq!((refused.heard, refused.refused), (None, Some(BootTime(100))));
    let again = called(&mut world, Contacted::Refused, "first", 200);
    assert_eq!(again.refused, Some(BootTime(100)), "since then");
    assert_eq!(called(&mut world, Contacted::Silent, "first", 300).refused, None);
    let heard = called(&mut world, Contacted::Heard, "first", 400);
    assert_eq!((heard.heard, heard.refused), (Some(BootTime(400)), None));
    // A renewal changes nothing; another run is not known yet, and what the first one said is no news of it.
    held_by(&mut world, "first", "2", 450);
    assert_eq!(world.observed.contact, heard);
    held_by(&mut world, "second", "3", 500);
    assert_eq!(world.observed.lease.holder_since, BootTime(500));
    assert_eq!(world.observed.contact, Contact::default());
    assert_eq!(called(&mut world, Contacted::Heard, "first", 600), Contact::default());
}

#[test]
fn a_position_from_before_a_promise_counts_for_nothing() {
    let mut world = world();
    let promise = |epoch| Promise {
        epoch: Epoch(epoch),
        promoting: None,
    };
    world.scanned(Ok(Scan {
        view: machine::instance::VolumeView {
            promise: Some(promise(1)),
            ..Default::default()
        },
        limits: None,
        good_settings: None,
        key: None,
    }));
    world.observed.postgres.answer = Some(machine::instance::Answer {
        asked: BootTime(0),
        in_recovery: true,
        position: None,
        begins: None,
        replayed: None,
        streaming: false,
        waits_for_wal: false,
        other_upstream: false,
        pending_restart: false,
        lowers_limits: false,
        heard: None,
        received_all: true,
        knows_end: true,
    });
    let upstream = |epoch| machine::instance::Upstream {
        address: "10.0.0.2".to_owned(),
        epoch: Epoch(epoch),
    };
    world.observed.postgres.configured = Some(Configured {
        settings: String::new(),
        upstream: Some(upstream(1)),
        raised: None,
    });
    world.effect(Effect::Promised(promise(2)), BootTime(50));
    assert!(
        world
            .observed
            .postgres
            .answer
            .is_some_and(|answer| !answer.received_all)
    );
    assert_eq!(
        world.configured_at,
        BootTime(50),
        "what was asked for earlier is dropped"
    );
    // Word of an older promise is late, and what was to be followed under it is not.
    world.observed.postgres.configured.as_mut().expect("it").upstream = Some(upstream(1));
    world.promised(promise(1), BootTime(60));
    world.observed.forget_overtaken_upstream();
    assert_eq!(
        world.observed.volume.is().and_then(|volume| volume.promise),
        Some(promise(2))
    );
    assert_eq!(world.observed.postgres.configured.as_ref().expect("it").upstream, None);
    // One that was written down counts, though the WAL receiver was not seen to end.
    world.observed.postgres.configured.as_mut().expect("it").upstream = Some(upstream(2));
    let failed = |epoch| Done {
        work: Work::Promise,
        result: Err(Failure {
            message: "the WAL receiver still runs".to_owned(),
            news: Some(News::Promise(promise(epoch))),
        }),
    };
    world.done(failed(2), BootTime(70));
    assert_eq!(
        world.observed.postgres.configured.as_ref().expect("it").upstream,
        Some(upstream(2)),
        "it is of the promised epoch"
    );
    world.done(failed(3), BootTime(80));
    assert_eq!(world.observed.postgres.configured.as_ref().expect("it").upstream, None);
}

#[test]
fn a_promise_outlives_a_reading_of_the_volume_that_began_before_it() {
    let mut world = world();
    let scan = |read, epoch| Scan {
        view: machine::instance::VolumeView {
            promise: Some(Promise {
                epoch: Epoch(epoch),
                promoting: None,
            }),
            read: BootTime(read),
            ..Default::default()
        },
        limits: None,
        good_settings: None,
        key: None,
    };
    let epoch = |world: &World| {
        world
            .observed
            .volume
            .is()
            .and_then(|volume| volume.promise)
            .map(|p| p.epoch)
    };
    world.scanned(Ok(scan(10, 1)));
    let promise = Promise {
        epoch: Epoch(3),
        promoting: None,
    };
    world.done(
        Done {
            work: Work::Promise,
            result: Ok(Effect::Promised(promise)),
        },
        BootTime(30),
    );
    world.scanned(Ok(scan(20, 1)));
    assert_eq!(epoch(&world), Some(Epoch(3)));
    world.scanned(Ok(scan(40, 5)));
    assert_eq!(epoch(&world), Some(Epoch(5)));
}

#[test]
fn nobody_is_admitted_where_the_slots_are_gone() {
    let admitted = |work: Work, result: Result<Effect, Failure>| {
        let mut world = world();
        let member = MemberId::new(1, "aaaa", 1);
        let done = Done {
            work: Work::Admit,
            result: Ok(Effect::Admitted(member)),
        };
        world.done(done, BootTime(10));
        world.done(Done { work, result }, BootTime(20));
        !world.observed.admitted.is_empty()
    };
    let read = || {
        Ok(Effect::Volume(Box::new(Scan {
            view: machine::instance::VolumeView::default(),
            limits: None,
            good_settings: None,
            key: None,
        })))
    };
    for work in [Work::Rewind, Work::Clone, Work::SetAside] {
        assert!(!admitted(work, read()), "{work:?}");
        assert!(!admitted(work, Err(Failure::said("no space"))), "{work:?}");
    }
    assert!(!admitted(Work::DropSlots, Ok(Effect::Kept(BTreeSet::new()))));
    assert!(admitted(Work::StoreCertificate, read()), "its data is as it was");
}

#[test]
fn answers_to_a_candidate_are_kept_by_pod() {
    let mut world = world();
    let reply = |promised, key: Option<&str>| Signed {
        message: PromiseReply {
            member: MemberId::new(2, "aaaa", 1),
            promised: Epoch(promised),
            suspects: true,
            position: None,
        },
        key: key.map(str::to_owned),
    };
    world.observed.peers.insert("orders-2".to_owned(), peer("key"));
    world.promise_answered("orders-2".to_owned(), reply(1, Some("key")), BootTime(5));
    world.promise_answered("orders-2".to_owned(), reply(2, Some("key")), BootTime(6));
    world.promise_answered("orders-2".to_owned(), reply(3, None), BootTime(7));
    world.promise_answered("orders-2".to_owned(), reply(3, Some("another")), BootTime(7));
    assert_eq!(world.observed.promises["orders-2"].reply.promised, Epoch(2));
    assert_eq!(world.observed.promises["orders-2"].at, BootTime(6));
}
