use super::super::fixtures::*;
use super::super::*;
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, MemberId};
use crate::quorum::SyncRule;

/// When the holder sees that its Lease is lost.
const LOST: u64 = 2_000;

fn place() -> LeaseVersion {
    LeaseVersion {
        uid: "new".to_owned(),
        version: "9".to_owned(),
        owner: Some(CLUSTER_UID.to_owned()),
    }
}

fn promises(observed: &mut Observed, ordinal: u32, member: MemberId, epoch: u64, sent: u64) {
    let promise = Failsafe {
        member,
        epoch: Epoch(epoch),
        sent: BootTime(sent),
    };
    observed.failsafe.insert(format!("orders-{ordinal}"), promise);
}

/// The holder of [`primary`], whose commits wait for one of two others, before the loss.
fn holder() -> Observed {
    let mut observed = primary();
    let others = [other_holder().incarnation.member, third()];
    record(&mut observed).rule = SyncRule::any(1, others);
    observed
}

/// An empty Lease is in the place of the one that `observed` held, and one of the others has promised since then.
fn lost(mut observed: Observed) -> Observed {
    let empty = empty_lease("new");
    observed.lease.see(Some((place(), Some(empty))), BootTime(LOST));
    promises(&mut observed, 1, other_holder().incarnation.member, 1, LOST);
    observed
}

fn restored(observed: &Observed, memo: &Memo) -> Option<LeaseContent> {
    let decision = decide(observed, memo, BootTime(LOST + 100));
    match decision.action {
        Action::WriteLease { content, .. } if decision.rule == "restore-lease" => Some(*content),
        _ => None,
    }
}

#[test]
fn the_holder_writes_the_content_of_a_lost_lease_in_the_next_epoch() {
    let before = holder().lease.record.is().unwrap().clone();
    let content = restored(&lost(holder()), &settled()).unwrap();
    assert_eq!((content.uid.as_str(), content.version.as_str()), ("new", "9"));
    assert_eq!((content.epoch, &content.holder), (Epoch(2), &before.holder));
    assert_eq!((content.rule, content.timeline), (before.rule, before.timeline));
    assert_eq!((content.system_id, content.release), (before.system_id, None));
    let mut promised = lost(holder());
    promised.peers.get_mut("orders-1").unwrap().promised = Epoch(4);
    assert_eq!(
        restored(&promised, &settled()).unwrap().epoch,
        Epoch(5),
        "above all that was promised"
    );
}

#[test]
fn nothing_is_restored_that_is_not_proven() {
    type Change = fn(&mut Observed);
    let changes: [(&str, Change); 16] = [
        ("no member has promised", |o| o.failsafe.clear()),
        ("before the loss was seen", |o| {
            promises(o, 1, other_holder().incarnation.member, 1, LOST - 1);
        }),
        ("in another epoch", |o| {
            promises(o, 1, other_holder().incarnation.member, 2, LOST)
        }),
        ("a member that is not in the rule", |o| {
            promises(o, 1, MemberId::new(1, "cccc", 9), 1, LOST);
        }),
        ("there is no object", |o| o.lease.lost.as_mut().unwrap().place = None),
        ("it belongs to another cluster", |o| {
            o.lease.lost.as_mut().unwrap().place.as_mut().unwrap().owner = None;
        }),
        ("it is known again", |o| {
            let before = o.lease.lost.as_ref().unwrap().before.clone();
            o.lease.see(Some((place(), Some(before))), BootTime(LOST));
        }),
        ("another object", |o| o.lease.see(None, BootTime(LOST + 1))),
        ("a later epoch was seen", |o| cluster(o).epoch = Some(Epoch(2))),
        ("no epoch was seen", |o| cluster(o).epoch = None),
        ("a loss is accepted", |o| cluster(o).accepted_loss = Some(Epoch(1))),
        ("another database", |o| cluster(o).system_id = Some("7".to_owned())),
        ("the database is not known", |o| cluster(o).system_id = None),
        ("another run", |o| o.own.run = "run-2".to_owned()),
        ("it held another epoch", |o| {
            o.lease.confirmed.as_mut().unwrap().epoch = Epoch(2)
        }),
        ("it does not write", |o| {
            o.postgres.answer.as_mut().unwrap().in_recovery = true
        }),
    ];
    assert!(restored(&lost(holder()), &settled()).is_some());
    for (why, change) in changes {
        let mut observed = lost(holder());
        change(&mut observed);
        assert_eq!(restored(&observed, &settled()), None, "{why}");
    }
    let memo = Memo {
        steps_down: Some(Epoch(1)),
        ..settled()
    };
    assert_eq!(restored(&lost(holder()), &memo), None, "it gives way");
}

#[test]
fn each_rule_that_elections_may_have_counted_by_needs_its_promises() {
    let with = |rule: SyncRule| {
        let mut observed = holder();
        record(&mut observed).rule = rule;
        restored(&lost(observed), &settled()).is_some()
    };
    let others = [other_holder().incarnation.member, third()];
    assert!(with(SyncRule::any(1, others.clone())));
    assert!(!with(SyncRule::any(2, others.clone())), "one of two");
    assert!(!with(SyncRule::any(1, [third()])), "another member has promised");
    assert!(!with(SyncRule::default()), "commits waited for no standby");
    let unsettled = |rule: SyncRule, releases| {
        let mut observed = holder();
        observed.lease.unsettled = Some(Unsettled {
            version: record(&mut observed).version.clone(),
            rules: [rule].into(),
            releases,
        });
        restored(&lost(observed), &settled()).is_some()
    };
    let same = SyncRule::any(1, others);
    assert!(unsettled(same.clone(), false));
    assert!(!unsettled(same, true), "it may have been released");
    assert!(!unsettled(SyncRule::any(1, [third()]), false));
    assert!(!unsettled(SyncRule::default(), false));
}

#[test]
fn the_holder_of_a_lost_lease_asks_at_once_and_serves_by_promises() {
    let mut observed = holder();
    observed.lease.see(None, BootTime(LOST));
    let decision = decide(&observed, &settled(), BootTime(LOST));
    let Action::AskFailsafe { request, .. } = &decision.action else {
        panic!("{decision:?}")
    };
    let before = &observed.lease.lost.as_ref().unwrap().before;
    assert_eq!((request.epoch, &request.lease), (before.epoch, &before.uid));
    observed.tasks.failsafe.running = Some(Work::Failsafe);
    assert_eq!(decide(&observed, &settled(), BootTime(FENCE)).rule, "fence");
    promises(&mut observed, 1, other_holder().incarnation.member, 1, LOST);
    assert_ne!(decide(&observed, &settled(), BootTime(FENCE)).rule, "fence");
    assert_eq!(
        decide(&observed, &settled(), BootTime(FENCE + LOST - 1_000)).rule,
        "fence"
    );
}

#[test]
fn a_standby_answers_by_the_lease_that_it_read_last() {
    let mut observed = standby();
    let before = record(&mut observed).clone();
    let request = crate::protocol::FailsafeRequest {
        epoch: before.epoch,
        pod: "orders-1".to_owned(),
        lease: before.uid.clone(),
    };
    let answer = |observed: &Observed| failsafe::answer(observed, BootTime(LOST), &request);
    record(&mut observed).rule = holder().lease.record.is().unwrap().rule.clone();
    assert!(answer(&observed).is_ok(), "{:?}", answer(&observed));
    observed.lease.see(None, BootTime(LOST));
    assert!(answer(&observed).is_ok(), "{:?}", answer(&observed));
    volume(&mut observed).promise.as_mut().unwrap().epoch = Epoch(2);
    assert!(answer(&observed).is_err(), "it has promised an election");
    let mut knows_nothing = standby();
    knows_nothing.lease.record = Reading::Missing;
    assert!(answer(&knows_nothing).is_err());
}
