use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::quorum::SyncRule;
use crate::timing::Timing;
use crate::units::Millis;

const OVERDUE: u64 = 1_000 + Timing::DEFAULT.renew.0 * 3 / 2;

/// [`primary`] with two others, commits waiting for `required` of them, its renewal in flight.
fn holder(required: usize) -> Observed {
    let mut observed = primary();
    let mut other = record(&mut observed).members["orders-1"].clone();
    (other.member, other.address) = (third(), "10.0.0.3".to_owned());
    record(&mut observed).members.insert("orders-2".to_owned(), other);
    let names = [other_holder().incarnation.member, third()];
    record(&mut observed).rule = match required {
        0 => SyncRule::default(),
        required => SyncRule::any(required, names),
    };
    observed.tasks.lease.running = Some(Work::WriteLease);
    // Slots do not matter here.
    observed.tasks.admit.running = Some(Work::DropSlots);
    observed
}

fn promises(observed: &mut Observed, ordinal: u32, epoch: u64, sent: u64) {
    let member = match ordinal {
        1 => other_holder().incarnation.member,
        _ => third(),
    };
    let promise = Failsafe {
        member,
        epoch: Epoch(epoch),
        sent: BootTime(sent),
    };
    observed.failsafe.insert(format!("orders-{ordinal}"), promise);
}

fn fenced_at(observed: &Observed) -> u64 {
    let at = Context::new(observed, BootTime(0)).fence_at().unwrap();
    assert_ne!(decide(observed, &settled(), BootTime(at.0 - 1)).rule, "fence");
    let decision = decide(observed, &settled(), at);
    assert_eq!(decision.action, Action::Stop(Stop::Immediate));
    let dead_man = decide(observed, &settled(), BootTime(at.0 - 1)).dead_man;
    assert_eq!(
        dead_man,
        Some(at.plus(Millis(1_125))),
        "the dead-man's time moves with it"
    );
    at.0
}

const fn fence(sent: u64) -> u64 {
    sent + Timing::DEFAULT.fence.0
}

#[test]
fn an_overdue_renewal_makes_the_holder_ask_all_others_again_and_again() {
    let mut observed = holder(1);
    let early = decide(&observed, &settled(), BootTime(OVERDUE - 1));
    assert_eq!((&early.action, early.wake), (&Action::Wait, Some(BootTime(OVERDUE))));
    let decision = decide(&observed, &settled(), BootTime(OVERDUE));
    let Action::AskFailsafe { peers, request } = &decision.action else {
        panic!("{decision:?}")
    };
    let addresses: Vec<_> = peers.values().map(String::as_str).collect();
    assert_eq!(addresses, ["10.0.0.2", "10.0.0.3"]);
    assert_eq!((request.epoch, request.pod.as_str()), (Epoch(1), "orders-0"));
    observed.tasks.failsafe.ended = BootTime(OVERDUE);
    let again = OVERDUE + Timing::DEFAULT.renew.0 / 2;
    assert_eq!(
        decide(&observed, &settled(), BootTime(again - 1)).wake,
        Some(BootTime(again))
    );
    assert_eq!(decide(&observed, &settled(), BootTime(again)).rule, "ask-failsafe");
    observed.tasks.failsafe.running = Some(Work::Failsafe);
    assert_eq!(decide(&observed, &settled(), BootTime(again)).action, Action::Wait);
}

#[test]
fn writes_of_the_lease_are_retried_meanwhile() {
    let mut observed = holder(1);
    observed.tasks.lease = Task {
        failures: 1,
        ended: BootTime(OVERDUE),
        ..Task::default()
    };
    assert_eq!(decide(&observed, &settled(), BootTime(OVERDUE)).rule, "ask-failsafe");
    assert_eq!(decide(&observed, &settled(), BootTime(OVERDUE + 200)).rule, "renew");
}

#[test]
fn a_member_that_is_no_holder_steps_down_or_is_alone_asks_no_other() {
    let asks = |observed: &Observed, memo: &Memo| {
        let action = decide(observed, memo, BootTime(OVERDUE)).action;
        matches!(action, Action::AskFailsafe { .. })
    };
    assert!(asks(&holder(1), &settled()));
    let memo = Memo {
        steps_down: Some(Epoch(1)),
        ..settled()
    };
    assert!(!asks(&holder(1), &memo));
    let changes: [fn(&mut Observed); 4] = [
        |o| hold_by(o, other_holder(), 1),
        |o| record(o).epoch = Epoch(0),
        |o| o.lease.record = Reading::Missing,
        |o| {
            record(o).members.retain(|pod, _| pod == "orders-0");
            o.peers.clear();
        },
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut observed = holder(1);
        change(&mut observed);
        assert!(!asks(&observed, &settled()), "{index}");
    }
}

#[test]
fn as_many_names_as_commits_wait_for_move_the_fence() {
    let mut observed = holder(1);
    assert_eq!(fenced_at(&observed), FENCE);
    promises(&mut observed, 2, 1, 4_000);
    assert_eq!(fenced_at(&observed), fence(4_000));
    promises(&mut observed, 1, 1, 5_000);
    assert_eq!(fenced_at(&observed), fence(5_000), "the newest");
    let until = |observed: &Observed| super::super::fence::held_until(observed, BootTime(FENCE));
    assert_eq!(until(&observed), Some(BootTime(fence(5_000))), "and starts for writing");
    record(&mut observed).rule.required = 2;
    assert_eq!(fenced_at(&observed), fence(4_000), "the second newest");
    observed.failsafe.remove("orders-1");
    assert_eq!(fenced_at(&observed), FENCE, "one of two");
}

#[test]
fn promises_of_others_than_the_names_or_for_another_epoch_do_not_count() {
    let mut observed = holder(1);
    record(&mut observed).rule = SyncRule::any(1, [third()]);
    promises(&mut observed, 1, 1, 4_000);
    assert_eq!(fenced_at(&observed), FENCE);
    for epoch in [0, 2] {
        promises(&mut observed, 2, epoch, 4_000);
        assert_eq!(fenced_at(&observed), FENCE);
    }
    promises(&mut observed, 2, 1, 500);
    assert_eq!(fenced_at(&observed), FENCE, "the renewal is younger");
}

#[test]
fn if_commits_wait_for_no_standby_all_others_must_promise() {
    let mut observed = holder(0);
    promises(&mut observed, 1, 1, 4_000);
    assert_eq!(fenced_at(&observed), FENCE);
    promises(&mut observed, 2, 1, 3_000);
    assert_eq!(fenced_at(&observed), fence(3_000), "the oldest");
    // A member that has lost its volume since is another member.
    observed.failsafe.get_mut("orders-2").unwrap().member = other_holder().incarnation.member;
    assert_eq!(fenced_at(&observed), FENCE);
    promises(&mut observed, 2, 1, 3_000);
    let mut joined = observed.clone();
    let peer = joined.peers["orders-1"].clone();
    joined.peers.insert("orders-3".to_owned(), peer);
    assert_eq!(fenced_at(&joined), fence(3_000), "the spec does not want it");
    cluster(&mut joined).replicas = 4;
    assert_eq!(fenced_at(&joined), FENCE, "it has joined since the last write");
    let mut alone = primary();
    record(&mut alone).members.clear();
    alone.peers.clear();
    promises(&mut alone, 1, 1, 4_000);
    assert_eq!(fenced_at(&alone), FENCE, "the Lease has no other member");
}

#[test]
fn a_lease_that_contradicts_the_promises_ends_them_at_once() {
    let changes: [fn(&mut Observed); 6] = [
        |o| hold_by(o, other_holder(), 1),
        |o| o.lease.confirmed.as_mut().unwrap().epoch = Epoch(2),
        |o| record(o).epoch = Epoch(2),
        |o| record(o).holder = None,
        |o| record(o).holder.as_mut().unwrap().incarnation.run = "run-2".to_owned(),
        |o| o.lease.record = Reading::Missing,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut observed = holder(1);
        promises(&mut observed, 1, 1, 6_000);
        assert_ne!(decide(&observed, &settled(), BootTime(FENCE)).rule, "fence");
        change(&mut observed);
        let decision = decide(&observed, &settled(), BootTime(FENCE));
        let dead_man = Some(BootTime(FENCE + 1_125));
        assert_eq!((decision.rule, decision.dead_man), ("fence", dead_man), "{index}");
    }
}

#[test]
fn a_write_with_unknown_outcome_needs_promises_by_its_own_rule() {
    let unsettled = |version: &str, rule: SyncRule, releases| {
        let mut observed = holder(1);
        promises(&mut observed, 1, 1, 4_000);
        observed.lease.unsettled = Some(Unsettled {
            version: version.to_owned(),
            rules: BTreeSet::from([rule]),
            releases,
        });
        fenced_at(&observed)
    };
    let same = holder(1).lease.record.is().unwrap().rule.clone();
    let without = SyncRule::any(1, [third()]);
    assert_eq!(unsettled("7", same.clone(), false), fence(4_000));
    assert_eq!(
        unsettled("7", without.clone(), false),
        FENCE,
        "the promising member is not in that rule"
    );
    assert_eq!(
        unsettled("7", SyncRule::default(), false),
        FENCE,
        "not all have promised"
    );
    assert_eq!(unsettled("7", same.clone(), true), FENCE, "it may be released");
    assert_eq!(unsettled("6", without, false), fence(4_000), "it can never succeed");
}

fn request() -> FailsafeRequest {
    FailsafeRequest {
        epoch: Epoch(1),
        pod: "orders-1".to_owned(),
        lease: "lease".to_owned(),
    }
}

#[test]
fn a_standby_that_streams_promises_for_the_duration_of_the_lease() {
    let now = BootTime(2_000);
    let (reply, given) = answer(&voter(), now, &request()).unwrap();
    assert_eq!((reply.epoch, given.epoch), (Epoch(1), Epoch(1)));
    assert_eq!(given.until, now.plus(Timing::DEFAULT.lease));
    let mut longer = voter();
    record(&mut longer).duration = Millis::minutes(1);
    assert_eq!(
        answer(&longer, now, &request()).unwrap().1.until,
        now.plus(Millis::minutes(1))
    );
    let mut followed = voter();
    volume(&mut followed).promise.as_mut().unwrap().epoch = Epoch(1);
    assert!(answer(&followed, now, &request()).is_ok(), "it follows that one");
}

#[test]
fn a_member_that_has_promised_an_election_or_does_not_stream_or_suspects_refuses() {
    let changes: [fn(&mut Observed); 12] = [
        |o| o.lease.record = Reading::Unknown,
        |o| record(o).uid = "another".to_owned(),
        |o| record(o).epoch = Epoch(2),
        |o| record(o).holder = None,
        |o| record(o).holder.as_mut().unwrap().incarnation.pod = "orders-2".to_owned(),
        |o| volume(o).promise = None,
        |o| volume(o).promise.as_mut().unwrap().epoch = Epoch(2),
        |o| o.tasks.promise.running = Some(Work::Promise),
        |o| o.postgres.answer.as_mut().unwrap().streaming = false,
        |o| {
            o.postgres
                .configured
                .as_mut()
                .unwrap()
                .upstream
                .as_mut()
                .unwrap()
                .address = "10.0.0.3".to_owned()
        },
        |o| o.postgres.process = Process::Stopped { exit: None },
        |o| o.reply.as_mut().unwrap().steps_down = true,
    ];
    let now = BootTime(2_000);
    for (index, change) in changes.iter().enumerate() {
        let mut observed = voter();
        change(&mut observed);
        assert!(answer(&observed, now, &request()).is_err(), "{index}");
    }
    let silent = BootTime(1_000).plus(Timing::DEFAULT.suspect());
    assert!(answer(&voter(), silent, &request()).is_err(), "it suspects");
    assert!(answer(&primary(), now, &request()).is_err());
}

/// [`silenced`], which had promised to leave the lease until 12 s.
fn bound() -> Observed {
    let mut observed = silenced();
    observed.failsafe_given = Some(FailsafeGiven {
        epoch: Epoch(1),
        run: "run-9".to_owned(),
        until: BootTime(12_000),
    });
    observed
}

fn suspects(observed: &Observed, now: u64) -> bool {
    let context = Context::new(observed, BootTime(now));
    election::suspicion(&context, &mut Draft::new(&Memo::default())).is_some()
}

#[test]
fn a_promise_to_leave_the_lease_is_kept_to_its_end() {
    let mut observed = bound();
    observed.contact.refused = Some(BootTime(1_100));
    let decision = decide(&observed, &settled(), BootTime(11_999));
    assert_eq!(
        (&decision.action, decision.wake),
        (&Action::Wait, Some(BootTime(12_000)))
    );
    assert!(!suspects(&observed, 11_999) && suspects(&observed, 12_000));
    for change in [
        |o: &mut Observed| record(o).rule = SyncRule::default(),
        |o: &mut Observed| cluster(o).strict_reads = true,
    ] {
        let mut clocked = bound();
        change(&mut clocked);
        assert!(!suspects(&clocked, 11_999) && suspects(&clocked, 12_000));
    }
    // It is asked again while it is bound, and promises again although the lease ran out long ago.
    let mut asynchronous = voter();
    record(&mut asynchronous).rule = SyncRule::default();
    asynchronous.failsafe_given = bound().failsafe_given;
    assert!(answer(&asynchronous, BootTime(11_000), &request()).is_ok());
    assert!(answer(&asynchronous, BootTime(12_000), &request()).is_err());
}

#[test]
fn a_release_another_run_or_a_primary_that_steps_down_ends_the_promise() {
    let changes: [fn(&mut Observed); 3] = [
        |o| record(o).holder = None,
        |o| record(o).holder.as_mut().unwrap().incarnation.run = "run-10".to_owned(),
        |o| o.reply.as_mut().unwrap().steps_down = true,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut observed = bound();
        change(&mut observed);
        assert!(suspects(&observed, 8_000), "{index}");
    }
    let mut raised = bound();
    record(&mut raised).epoch = Epoch(2);
    assert!(
        !suspects(&raised, 8_000),
        "the same run may rely on it while it raises its epoch"
    );
}
