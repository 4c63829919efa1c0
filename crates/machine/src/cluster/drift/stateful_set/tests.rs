use api::Phase;
use api::status::FailureReason;

use super::super::fixtures::{drifted, make_all_but_the_stateful_set, with};
use super::*;
use crate::cluster::model::Scene;
use crate::cluster::{Action, Known, OwnedState};
use crate::protocol::Release;

fn size(scene: &Scene) -> Option<u32> {
    match scene.decide().action {
        Action::Apply(apply) if apply.kind == OwnedObject::StatefulSet => apply.replicas,
        _ => None,
    }
}

#[test]
fn a_stateful_set_that_is_made_again_covers_the_holder_and_the_last_one() {
    let mut scene = Scene::ready(3);
    scene.elect(2);
    scene.scaled(1);
    scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
    scene.observed.stateful_set = None;
    scene.pods_mut().clear();
    assert_eq!(size(&scene), Some(3), "the holder");
    let member = scene.report_mut(1).member.clone();
    let lease = scene.lease_mut().unwrap();
    (lease.holder, lease.release) = (
        None,
        Some(Release {
            member,
            position: None,
            successor: None,
        }),
    );
    assert_eq!(size(&scene), Some(2), "the last one");
    scene.lease_mut().unwrap().release = None;
    assert_eq!(size(&scene), Some(1));
}

#[test]
fn a_stateful_set_that_is_put_right_gets_no_smaller() {
    let mut scene = Scene::ready(5);
    scene.scaled(3);
    scene.set_child(OwnedObject::StatefulSet, drifted(OwnedObject::StatefulSet, false));
    assert_eq!(size(&scene), Some(5));
}

#[test]
fn who_led_last_comes_back_only_while_nobody_serves() {
    let mut scene = Scene::ready(3);
    scene.elect(2);
    assert_eq!(with(&scene, returning), 0);
    scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
    assert_eq!(with(&scene, returning), 3);
}

#[test]
fn a_database_comes_back_though_a_service_is_in_dispute() {
    let mut scene = Scene::ready(3);
    scene.set_child(
        OwnedObject::RwService,
        OwnedState::Foreign {
            why: "theirs".to_owned(),
            left: None,
        },
    );
    assert!(with(&scene, may_make_stateful_set));
    scene.stored.system_identifier = None;
    scene.lease_mut().unwrap().system_id = None;
    assert!(!with(&scene, may_make_stateful_set), "none is begun");
}

#[test]
fn a_stateful_set_gets_no_larger_while_claims_are_unknown() {
    let mut scene = Scene::ready(2);
    scene.scaled(3);
    scene.set_child(OwnedObject::StatefulSet, drifted(OwnedObject::StatefulSet, false));
    assert_eq!(size(&scene), Some(3));
    scene.observed.claims = Known::Unknown;
    assert_eq!(size(&scene), Some(2));
}

#[test]
fn a_stateful_set_is_not_made_while_pods_or_claims_are_unknown() {
    let made = |change: fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        scene.observed.stateful_set = None;
        scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
        change(&mut scene);
        size(&scene)
    };
    assert_eq!(made(|_| {}), Some(3));
    assert_eq!(made(|scene| scene.observed.pods = Known::Unknown), None);
    assert_eq!(made(|scene| scene.observed.claims = Known::Unknown), None);
}

#[test]
fn claim_templates_are_changed_by_orphaning() {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::StatefulSet, drifted(OwnedObject::StatefulSet, true));
    assert!(matches!(scene.decide().action, Action::OrphanStatefulSet(_)));
    scene.claims_mut()[1].cluster_uid = Some("another".to_owned());
    scene.revision = "r2".to_owned();
    let decision = scene.decide();
    assert_eq!(decision.rule, "blocked", "it could not be made again");
    assert_eq!(
        decision.because.to_string(),
        "claim data-demo-1 to go away, which was made for another database"
    );
}

#[test]
fn claims_of_another_database_keep_pods_from_being_made() {
    let mut scene = Scene::ready(3);
    let claims = scene.claims_mut().clone();
    let mut scene = Scene::new(3);
    scene.finalizer = true;
    make_all_but_the_stateful_set(&mut scene);
    assert!(matches!(scene.decide().action, Action::Apply(_)));
    scene.claims_mut().extend(claims);
    scene.claims_mut()[1].cluster_uid = Some("the one before".to_owned());
    let decision = scene.decide();
    assert!(matches!(decision.action, Action::Wait(_)), "{decision:?}");
    assert_eq!(decision.failure.unwrap().reason, FailureReason::ForeignObject);
    let in_the_way = |replicas| with(&scene, |facts| foreign_claim(facts, replicas).is_some());
    assert_eq!(
        [1, 2].map(in_the_way),
        [false, true],
        "only what a pod would pick up is"
    );
}

#[test]
fn a_missing_storage_class_is_looked_for_again_soon() {
    let mut scene = Scene::new(3);
    scene.finalizer = true;
    make_all_but_the_stateful_set(&mut scene);
    scene.observed.storage_class = Known::Known(StorageClass::Missing {
        name: "fast".to_owned(),
    });
    let decision = scene.decide();
    assert_eq!(decision.wake, scene.now + STORAGE_CLASS_RECHECK);
    assert_eq!(decision.failure.unwrap().reason, FailureReason::StorageClassNotFound);
    scene.store();
    scene.observed.storage_class = Known::Known(StorageClass::Present { expandable: false });
    assert_eq!(scene.decide().phase, Phase::Creating, "it leaves by itself");
    let mut running = Scene::ready(3);
    running.observed.storage_class = Known::Known(StorageClass::NoDefault);
    assert_eq!(running.decide().phase, Phase::Ready, "bound volumes need no class");
    let at_fault = |scene: &Scene| with(scene, |facts| storage_class_fault(facts).is_some());
    let mut going = running.clone();
    (going.claims_mut()[2].bound, going.claims_mut()[2].terminating) = (false, true);
    assert!(!at_fault(&going), "what goes needs none");
    going.claims_mut()[2].terminating = false;
    assert!(at_fault(&going));
    let mut again = running.clone();
    again.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
    assert!(!at_fault(&again), "its volumes are there");
    running.stored.system_identifier = None;
    running.lease_mut().unwrap().system_id = None;
    assert!(!at_fault(&running), "all claims are made");
}
