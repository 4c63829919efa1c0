use api::Phase;
use api::operation::{Action as Asked, RecreateLease};
use api::status::{DurabilityMode, FailureReason};

use super::super::fixtures::{make_all_but_the_stateful_set, with};
use super::*;
use crate::cluster::model::{Scene, empty_lease};
use crate::cluster::{Apply, ApplyHow, OwnedState};

#[test]
fn a_lost_lease_is_made_empty_while_its_holder_is_ready_and_commits_wait() {
    let lost = |change: fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        scene.set_child(OwnedObject::Lease, OwnedState::Missing);
        scene.observed.lease = Known::Known(None);
        change(&mut scene);
        let decision = scene.decide();
        let is_made = matches!(
            &decision.action,
            Action::Apply(Apply {
                kind: OwnedObject::Lease,
                how: ApplyHow::Make,
                ..
            })
        );
        let failed = decision.failure.map(|failure| failure.reason);
        assert_eq!(failed.is_none(), is_made, "{failed:?}");
        is_made
    };
    assert!(lost(|_| {}));
    assert!(!lost(|scene| scene.pod_mut(0).ready = false), "the holder has stopped");
    assert!(!lost(|scene| scene.pod_mut(0).terminating = true));
    assert!(!lost(|scene| scene.pod_mut(0).uid = "another".to_owned()));
    assert!(
        !lost(|scene| scene.stored.intent.accept_loss = Some(9)),
        "it may have been taken by that"
    );
    assert!(
        !lost(|scene| scene.spec.durability.mode = Some(DurabilityMode::Async)),
        "commits wait for nobody"
    );
}

#[test]
fn the_holder_of_a_lost_lease_is_waited_for_as_long_as_it_is_ready() {
    let empty = |scene: &mut Scene| scene.observed.lease = Known::Known(Some(empty_lease()));
    let damaged = |scene: &mut Scene| {
        let what = "has a release that cannot be read".to_owned();
        let (uid, resource_version) = ("lease".to_owned(), "9".to_owned());
        scene.set_child(
            OwnedObject::Lease,
            OwnedState::Damaged {
                uid,
                resource_version,
                what,
                recoverable: false,
            },
        );
        scene.observed.lease = Known::Unknown;
    };
    type Place<'a> = &'a dyn Fn(&mut Scene);
    let places: [(Place<'_>, &str); 2] = [(&empty, EMPTIED), (&damaged, PUT_RIGHT)];
    for (place, way_back) in places {
        let mut scene = Scene::ready(3);
        let epoch = scene.status(&scene.decide()).epoch;
        place(&mut scene);
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.failure.is_none()), ("blocked", true));
        let status = scene.status(&decision);
        assert_eq!(status.epoch, epoch, "an empty Lease says nothing");
        let waiting = status.waiting.unwrap();
        assert!(
            waiting
                .what
                .ends_with("to be written again by demo-0, which serves and held it"),
            "{}",
            waiting.what
        );
        assert!(
            waiting.who_can_end_it.starts_with("the agent in pod demo-0"),
            "{}",
            waiting.who_can_end_it
        );
        scene.pod_mut(0).ready = false;
        let decision = scene.decide();
        assert_eq!(decision.failure.as_ref().unwrap().reason, FailureReason::PartLost);
        let waiting = scene.status(&decision).waiting.unwrap();
        assert_eq!(waiting.who_can_end_it, way_back);
    }
}

#[test]
fn a_lost_lease_whose_last_holder_is_not_on_record_is_told_so() {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    scene.observed.lease = Known::Known(None);
    scene.ask_for_a_lease();
    scene.stored.members.clear();
    let message = scene.decide().failure.unwrap().message;
    assert!(message.contains("who held it last is not on record"), "{message}");
}

#[test]
fn of_two_that_were_primary_nobody_knows_who_was_the_last() {
    let mut scene = Scene::ready(3);
    assert!(with(&scene, last_primary).is_some());
    scene.stored.members.get_mut("demo-2").unwrap().role = Some(api::status::MemberRole::Primary);
    assert_eq!(with(&scene, last_primary), None);
}

#[test]
fn a_lease_that_nobody_understands_is_told_with_the_way_back_and_left_alone() {
    for mut scene in [Scene::ready(3), Scene::new(3)] {
        scene.finalizer = true;
        scene.ask_for_a_lease();
        if scene.pods().is_empty() {
            make_all_but_the_stateful_set(&mut scene);
        }
        scene.observed.lease = Known::Unknown;
        let damaged = OwnedState::Damaged {
            uid: "u".to_owned(),
            resource_version: "9".to_owned(),
            what: "cannot be understood: its annotation x".to_owned(),
            recoverable: false,
        };
        scene.set_child(OwnedObject::Lease, damaged);
        let decision = scene.decide();
        let failure = decision.failure.unwrap();
        assert_eq!(
            (decision.phase, failure.reason),
            (Phase::Failed, FailureReason::PartLost)
        );
        for words in ["cannot be understood: its annotation x", PUT_RIGHT] {
            assert!(failure.message.contains(words), "{}", failure.message);
        }
        let Action::Wait(waiting) = decision.action else {
            panic!("{:?}", decision.action)
        };
        assert!(
            waiting
                .what
                .ends_with("Lease demo, which cannot be understood: its annotation x"),
            "{}",
            waiting.what
        );
        assert_eq!(waiting.who_can_end_it, PUT_RIGHT);
    }
}

#[test]
fn a_lease_that_is_made_again_asks_all_other_members() {
    let mut scene = Scene::ready(3);
    scene.elect(1);
    scene.store();
    scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    scene.observed.lease = Known::Known(None);
    scene.ask_for_a_lease();
    let Action::RecreateLease {
        member,
        epoch,
        rule,
        timeline,
        lossy,
        ..
    } = scene.decide().action
    else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!(member.ordinal(), Some(1));
    assert_eq!((epoch, timeline), (Epoch(3), Some(Timeline(1))));
    assert_eq!(lossy, Timeline(2), "what was given up on timeline 1 is not known");
    assert_eq!((rule.required, rule.names.len(), rule.promises_needed()), (1, 2, 2));
    assert!(!rule.names.contains(&member));
}

#[test]
fn an_operation_for_a_lease_that_is_there_is_refused_and_one_for_a_lost_lease_is_done_when_it_is_there_again() {
    let asked = |scene: &mut Scene| {
        scene.ask(Asked::RecreateLease(RecreateLease {}));
        scene.store();
        let noted = scene.stored.memo.request.clone().unwrap();
        (noted.outcome, noted.message.unwrap_or_default())
    };
    let (outcome, message) = asked(&mut Scene::ready(3));
    assert_eq!(outcome, Some(RequestOutcome::GivenUp));
    assert!(message.contains("Lease demo is there"), "{message}");
    let mut scene = Scene::ready(3);
    let lease = scene.observed.lease.clone();
    scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    scene.observed.lease = Known::Known(None);
    scene.pod_mut(0).ready = false;
    assert_eq!(asked(&mut scene).0, None, "it is noted first");
    assert_eq!(scene.decide().rule, "recreate-lease");
    let mut nobody = scene.clone();
    nobody.stored.members.values_mut().for_each(|member| member.role = None);
    let refusal = nobody.with_facts(refusal_to_recreate).flatten();
    assert!(refusal.unwrap().contains("is not on record"));
    scene.observed.lease = lease;
    scene.set_child(OwnedObject::Lease, OwnedState::Current { uid: "new".to_owned() });
    scene.store();
    let noted = scene.stored.memo.request.clone().unwrap();
    assert_eq!(noted.outcome, Some(RequestOutcome::Done));
    assert_eq!(noted.message.as_deref(), Some("Lease demo is there again, in epoch 1"));
}
