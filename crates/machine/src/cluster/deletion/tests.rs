use api::Phase;

use super::super::StatusChange;
use super::super::model::Scene;
use super::*;

fn deleting() -> Scene {
    let mut scene = Scene::ready(3);
    scene.deleting = true;
    scene
}

/// Everything has stopped, and the pods are gone.
fn stopped(fate: VolumeFate) -> Scene {
    let mut scene = deleting();
    scene.spec.storage.retention_policy.when_deleted = fate;
    scene.stored.phase = Some(Phase::Deleting);
    scene.stored.intent.stop = true;
    scene.end_deletion_steps(&["Stopped"]);
    scene.pods_mut().clear();
    scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
    scene.observed.stateful_set = None;
    scene
}

#[test]
fn instances_are_told_to_stop_before_pods_are_taken() {
    let mut scene = deleting();
    scene.spec.paused = true;
    let decision = scene.store();
    assert_eq!(decision.action, Action::WriteStatus(vec![StatusChange::RequestStop]));
    assert_eq!((decision.phase, scene.stored.intent.stop), (Phase::Deleting, true));
    let decision = scene.decide();
    assert!(matches!(decision.action, Action::Wait(_)));
    assert_eq!(decision.wake, scene.now + STOP_LIMIT);
    scene.now += STOP_LIMIT;
    scene.store();
    assert_eq!(scene.deletion_steps(), ["Stopped"]);
    assert!(matches!(scene.decide().action, Action::DeleteStatefulSet(set) if set.uid() == "uid-StatefulSet"));
}

#[test]
fn a_stop_is_done_when_nobody_holds_the_lease_and_nobody_is_ready() {
    let mut scene = deleting();
    scene.store();
    for pod in scene.pods_mut() {
        pod.ready = false;
    }
    assert!(
        matches!(scene.decide().action, Action::Wait(_)),
        "the holder may still be writing"
    );
    let mut dead = scene.clone();
    dead.pods_mut().remove(0);
    for mut scene in [scene, dead] {
        if scene.pods().len() == 3 {
            scene.lease_mut().unwrap().holder = None;
        }
        assert_eq!(
            scene.decide().action,
            Action::WriteStatus(vec![StatusChange::DeletionDone(
                DeletionStep::Stopped,
                "PostgreSQL has stopped everywhere"
            )])
        );
    }
}

#[test]
fn a_namespace_goes_without_us() {
    for mut scene in [deleting(), stopped(VolumeFate::Delete)] {
        scene.observed.namespace_terminating = true;
        scene.observed.pods = Known::Unknown;
        assert!(matches!(scene.decide().action, Action::RemoveFinalizer(_)));
    }
}

#[test]
fn claims_are_kept_or_deleted_by_uid() {
    let mut scene = stopped(VolumeFate::Retain);
    scene.store();
    scene.store();
    assert_eq!(scene.deletion_steps(), ["Stopped", "PodsGone", "Volumes"]);
    assert!(matches!(scene.decide().action, Action::RemoveFinalizer(_)));

    let mut scene = stopped(VolumeFate::Delete);
    scene.claims_mut()[0].cluster_uid = Some("another".to_owned());
    scene.store();
    for _ in 1..3 {
        let Action::DeleteClaim(claim) = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_ne!(claim.name(), "data-demo-0");
        scene.claims_mut().retain(|found| found.uid != claim.uid());
    }
    while let Action::DeleteChild(kind, _) = scene.decide().action {
        scene.set_child(kind, OwnedState::Missing);
    }
    scene.store();
    assert!(matches!(scene.decide().action, Action::RemoveFinalizer(_)));
}

#[test]
fn pods_without_a_stateful_set_are_deleted_and_stuck_ones_given_up() {
    let mut scene = stopped(VolumeFate::Retain);
    scene.add_pod(0);
    assert!(matches!(scene.decide().action, Action::ReplacePod(_)));
    scene.pod_mut(0).terminating = true;
    assert!(matches!(scene.decide().action, Action::Wait(_)));
    scene.now = scene.stored.memo.phase_since.unwrap() + PODS_LIMIT;
    assert!(matches!(scene.decide().action, Action::WriteStatus(_)));
}

#[test]
fn a_stateful_set_of_somebody_else_and_its_pods_are_left_alone() {
    let mut scene = deleting();
    let why = "owned by Deployment other".to_owned();
    scene.set_child(OwnedObject::StatefulSet, OwnedState::Foreign { why, left: None });
    scene.store();
    scene.store();
    assert!(!scene.stored.intent.stop);
    assert_eq!(scene.deletion_steps(), ["Stopped", "PodsGone"]);
    assert!(matches!(scene.decide().action, Action::RemoveFinalizer(_)));
    scene.spec.storage.retention_policy.when_deleted = VolumeFate::Delete;
    assert!(matches!(scene.decide().action, Action::DeleteClaim(_)), "ours by UID");
}

#[test]
fn what_was_never_made_goes_at_once() {
    let mut scene = Scene::new(3);
    (scene.deleting, scene.finalizer) = (true, true);
    assert!(matches!(scene.decide().action, Action::RemoveFinalizer(_)));
    scene.finalizer = false;
    assert!(matches!(scene.decide().action, Action::Wait(_)));
}

#[test]
fn a_clean_stop_is_told_as_a_step_of_its_own() {
    let step = |done: DeletionStep| record(done, "it is done").unwrap().step.unwrap();
    let done = [DeletionStep::Stopped, DeletionStep::PodsGone, DeletionStep::Volumes];
    assert_eq!(done.map(step), [Step::Stopping, Step::Removing, Step::Removing]);
}
