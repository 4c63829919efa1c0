use api::operation::{AcceptLoss, Action as Asked};

use super::super::model::Scene;
use super::*;

/// A database whose primary and one standby are lost, where an operation accepts the loss in this epoch.
fn asked(epoch: u64) -> Scene {
    let mut scene = Scene::ready(3);
    scene.pods_mut().retain(|pod| pod.ordinal == 1);
    scene.store();
    scene.ask(Asked::AcceptLoss(AcceptLoss { epoch }));
    scene.store();
    scene
}

fn outcome(scene: &Scene) -> (Option<RequestOutcome>, String) {
    let noted = scene.stored.memo.request.clone().unwrap();
    (noted.outcome, noted.message.unwrap_or_default())
}

#[test]
fn it_is_noted_then_allowed_and_over_with_the_next_epoch() {
    let mut scene = asked(1);
    assert_eq!((outcome(&scene).0, scene.stored.intent.accept_loss), (None, None));
    assert_eq!(scene.store().rule, "accept-loss");
    assert_eq!(scene.stored.intent.accept_loss, Some(1));
    assert_eq!(scene.decide().rule, "await-primary", "the agents elect");
    scene.elect(1);
    scene.store();
    let done = "demo-1 has taken the Lease in epoch 2".to_owned();
    assert_eq!(outcome(&scene), (Some(RequestOutcome::Done), done));
    assert_eq!(scene.stored.intent.accept_loss, None);
    assert_ne!(scene.decide().rule, "accept-loss");
}

#[test]
fn another_epoch_is_refused_and_the_right_one_named() {
    for epoch in [2, 7] {
        let mut scene = asked(epoch);
        scene.store();
        let (outcome, message) = outcome(&scene);
        assert_eq!(outcome, Some(RequestOutcome::GivenUp));
        assert!(message.ends_with("kubectl cdb accept-loss demo 1"), "{message}");
        assert_eq!(scene.stored.intent.accept_loss, None);
    }
}

#[test]
fn it_is_refused_while_a_primary_serves_and_ends_when_the_last_one_is_back() {
    let mut scene = Scene::ready(3);
    scene.ask(Asked::AcceptLoss(AcceptLoss { epoch: 1 }));
    scene.store();
    scene.store();
    let refused = "demo-0 is the primary and serves: nothing has to be given up".to_owned();
    assert_eq!(outcome(&scene), (Some(RequestOutcome::GivenUp), refused.clone()));
    let mut scene = Scene::ready(3);
    scene.pod_mut(0).ready = false;
    scene.ask(Asked::AcceptLoss(AcceptLoss { epoch: 1 }));
    scene.store();
    scene.store();
    assert_eq!(scene.stored.intent.accept_loss, Some(1));
    scene.pod_mut(0).ready = true;
    scene.store();
    assert_eq!(outcome(&scene), (Some(RequestOutcome::GivenUp), refused));
    assert_eq!(scene.stored.intent.accept_loss, None);
}

#[test]
fn it_is_taken_up_though_the_database_is_paused_or_its_spec_invalid() {
    let hindered: [fn(&mut Scene); 2] = [
        |scene| scene.edit(|spec| spec.paused = true),
        |scene| scene.invalid = Some("no".to_owned()),
    ];
    for hinder in hindered {
        let mut scene = asked(1);
        hinder(&mut scene);
        scene.store();
        assert_eq!(scene.stored.intent.accept_loss, Some(1));
    }
}

#[test]
fn the_operator_takes_it_back_at_once_whatever_is_asked_next_unless_it_has_been_used() {
    let given = || {
        let mut scene = asked(1);
        scene.store();
        scene
    };
    let next: [fn(&mut Scene); 2] = [
        |scene| scene.request = None,
        |scene| scene.ask_switchover("demo-1", "2"),
    ];
    for next in next {
        let mut scene = given();
        next(&mut scene);
        assert_eq!(scene.store().rule, "accept-loss");
        assert_eq!(
            (scene.stored.intent.accept_loss, scene.stored.memo.request.clone()),
            (None, None)
        );
    }
    let mut used = given();
    used.elect(1);
    used.request = None;
    used.store();
    assert_eq!(outcome(&used).0, Some(RequestOutcome::Done), "it was too late");
    assert_eq!(used.stored.intent.accept_loss, None);
}

#[test]
fn without_a_lease_it_is_refused_and_one_that_was_given_holds_on() {
    let mut scene = asked(1);
    scene.observed.lease = super::super::Known::Known(None);
    scene.store();
    assert!(outcome(&scene).1.contains("is lost or empty"), "{:?}", outcome(&scene));
    let mut scene = asked(1);
    scene.store();
    scene.observed.lease = super::super::Known::Known(None);
    scene.store();
    assert_eq!((outcome(&scene).0, scene.stored.intent.accept_loss), (None, Some(1)));
    let mut unread = asked(1);
    unread.observed.lease = super::super::Known::Unknown;
    unread.store();
    assert_eq!(outcome(&unread).0, None);
}

#[test]
fn a_lease_that_was_made_again_is_another_epoch_and_no_election() {
    let mut scene = asked(1);
    scene.store();
    let lease = scene.lease_mut().unwrap();
    lease.release = lease.holder.take().map(|holder| crate::protocol::Release {
        member: holder.incarnation.member,
        position: None,
        successor: None,
    });
    lease.members.clear();
    lease.epoch = crate::protocol::Epoch(2);
    assert!(lease.is_made_again());
    scene.store();
    let (outcome, message) = outcome(&scene);
    assert_eq!(outcome, Some(RequestOutcome::GivenUp));
    assert!(message.ends_with("kubectl cdb accept-loss demo 2"), "{message}");
}
