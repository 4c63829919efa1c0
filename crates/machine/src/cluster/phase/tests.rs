use super::super::model::Scene;
use super::super::observed::OwnedState;
use super::super::owned::OwnedObject;
use super::super::{Known, StatusWrite};
use super::*;

#[test]
fn a_standby_that_is_back_soon_changes_no_phase() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).ready = false;
    let decision = scene.decide();
    assert_eq!((decision.phase, decision.wake), (Phase::Ready, scene.now + BRIEF));
    assert!(matches!(scene.due(&decision), StatusWrite::Debounced(_)));
    scene.now += TimeDelta::seconds(3);
    scene.store();
    let (since, waiting) = (scene.now, scene.stored.waiting.clone().unwrap());
    assert_eq!(
        (waiting.reason, waiting.object.as_deref()),
        (Some(api::status::WaitReason::StandbyJoining), Some("pod/demo-2"))
    );
    let condition = |scene: &Scene, kind: &str| {
        let found = scene.stored.conditions.iter().find(|found| found.type_ == kind);
        found.unwrap().status.clone()
    };
    assert_eq!(
        (
            condition(&scene, "Ready").as_str(),
            condition(&scene, "Degraded").as_str()
        ),
        ("False", "True")
    );
    scene.now = since + BRIEF - TimeDelta::seconds(1);
    assert_eq!(
        (scene.decide().phase, scene.decide().wake),
        (Phase::Ready, since + BRIEF)
    );
    let mut back = scene.clone();
    back.pod_mut(2).ready = true;
    assert_eq!(
        (back.decide().phase, back.stored.history.len()),
        (Phase::Ready, scene.stored.history.len())
    );
    scene.now = since + BRIEF;
    assert_eq!(
        (scene.decide().phase, scene.due(&scene.decide())),
        (Phase::Updating, StatusWrite::BeforeAction)
    );
}

#[test]
fn only_a_standby_may_be_away_for_a_moment() {
    let phase = |change: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        scene.pod_mut(2).ready = false;
        change(&mut scene);
        scene.decide().phase
    };
    assert_eq!(phase(&|_| {}), Phase::Ready);
    assert_eq!(
        phase(&|scene| scene.pods_mut().truncate(2)),
        Phase::Ready,
        "its pod is made again"
    );
    assert_eq!(phase(&|scene| scene.pod_mut(0).ready = false), Phase::FailingOver);
    assert_eq!(phase(&|scene| scene.revision = "r2".to_owned()), Phase::Updating);
    assert_eq!(phase(&|scene| scene.scaled(4)), Phase::Updating);
    assert_eq!(
        phase(&|scene| scene.set_child(OwnedObject::RoService, OwnedState::Missing)),
        Phase::Updating
    );
    assert_eq!(
        phase(&|scene| scene.stored.phase = Some(Phase::Updating)),
        Phase::Updating
    );
    assert_eq!(phase(&|scene| scene.observed.lease = Known::Unknown), Phase::Ready);
}

#[test]
fn who_has_failed_has_not_recovered_because_nothing_is_known_or_done() {
    let doubts: [fn(&mut Scene); 3] = [
        |scene| scene.observed.lease = Known::Unknown,
        |scene| scene.spec.paused = true,
        |scene| scene.set_child(OwnedObject::RwService, OwnedState::Missing),
    ];
    for (index, doubt) in doubts.into_iter().enumerate() {
        let mut scene = Scene::ready(3);
        scene.stored.phase = Some(Phase::Failed);
        scene.stored.failure = Some(api::status::FailureStatus {
            reason: api::status::FailureReason::InvalidSpec,
            message: "refused".to_owned(),
        });
        let failed = |scene: &Scene| {
            let decision = scene.decide();
            (decision.phase, decision.failure.is_some())
        };
        assert_eq!(failed(&scene), (Phase::Ready, false));
        doubt(&mut scene);
        assert_eq!(failed(&scene), (Phase::Failed, true), "{index}");
        if index == 2 {
            scene.generation += 1;
            assert_eq!(
                failed(&scene),
                (Phase::Updating, false),
                "the spec that was refused is another"
            );
        }
    }
}

#[test]
fn a_spec_that_is_refused_or_a_resource_that_is_not_ours_yet_is_not_ready() {
    let changes: [fn(&mut Scene); 3] = [
        |scene| scene.invalid = Some("replicas".to_owned()),
        |scene| scene.finalizer = false,
        |scene| scene.deleting = true,
    ];
    assert!(Scene::ready(3).with_facts(ready));
    for (index, change) in changes.into_iter().enumerate() {
        let mut scene = Scene::ready(3);
        change(&mut scene);
        assert!(!scene.with_facts(ready), "{index}");
    }
}

#[test]
fn a_database_whose_status_was_wiped_is_not_created_again() {
    let mut scene = Scene::ready(3);
    scene.stored = Default::default();
    scene.pod_mut(2).ready = false;
    assert_eq!(scene.decide().phase, Phase::Updating);
}
