use api::Phase;

use super::super::facts::hibernation::is_back;
use super::super::model::Scene;
use super::super::{StatusWrite, StorageClass};
use super::*;
use crate::protocol::{Lsn, Position, Release, Timeline};

fn hibernating(replicas: u32) -> Scene {
    let mut scene = Scene::ready(replicas);
    scene.edit(|spec| spec.hibernated = true);
    scene
}

/// All has stopped, and the pods are gone.
fn hibernated(replicas: u32) -> Scene {
    let mut scene = hibernating(replicas);
    scene.store();
    release(&mut scene, 0);
    scene.pods_mut().clear();
    scene.observed.stateful_set.as_mut().unwrap().replicas = 0;
    scene.store();
    scene.store();
    scene
}

fn release(scene: &mut Scene, ordinal: u32) {
    let member = scene.report_mut(ordinal).member.clone();
    let position = Some(Position {
        timeline: Timeline(1),
        lsn: Lsn(0x500),
    });
    let lease = scene.lease_mut().unwrap();
    (lease.holder, lease.release) = (
        None,
        Some(Release {
            member,
            position,
            successor: None,
        }),
    );
}

fn scaled(scene: &Scene) -> Option<u32> {
    match scene.decide().action {
        Action::Apply(apply) => apply.replicas,
        _ => None,
    }
}

#[test]
fn it_is_back_when_a_primary_serves_in_a_later_epoch_than_it_was_put_down_in() {
    let is_back = |put_down: Option<u64>| {
        let mut scene = Scene::ready(3);
        scene.stored.memo.put_down = put_down;
        scene.with_facts(is_back)
    };
    let epoch = Scene::ready(3).lease_mut().unwrap().epoch.0;
    let put_down = [None, Some(epoch), Some(epoch - 1)];
    assert_eq!(put_down.map(is_back), [false, false, true]);
}

#[test]
fn everything_stops_before_the_pods_go() {
    let mut scene = hibernating(3);
    scene.stored.intent.primary = Some("demo-1".to_owned());
    let decision = scene.store();
    assert_eq!((decision.rule, decision.phase), ("hibernate", Phase::Updating));
    assert_eq!(
        (scene.stored.intent.stop, scene.stored.intent.primary.as_ref()),
        (true, None)
    );
    assert_eq!(scene.stored.step.as_deref(), Some("Stopping"));
    let decision = scene.decide();
    assert_eq!(decision.wake, scene.now + deletion::STOP_LIMIT);
    for pod in scene.pods_mut() {
        pod.ready = false;
    }
    assert!(
        matches!(scene.decide().action, Action::Wait(_)),
        "the primary may still write"
    );
    release(&mut scene, 0);
    assert_eq!(scaled(&scene), Some(0));
    scene.observed.stateful_set.as_mut().unwrap().replicas = 0;
    scene.pods_mut().truncate(1);
    assert_eq!(
        scene.awaits(),
        (api::status::WaitReason::PodRemoval, "pod/demo-0".to_owned())
    );
    scene.pods_mut().clear();
    assert_eq!(scene.decide().phase, Phase::Hibernated);
}

#[test]
fn what_does_not_stop_is_waited_for_one_minute() {
    let mut scene = hibernating(3);
    scene.store();
    scene.now += deletion::STOP_LIMIT;
    assert_eq!(scaled(&scene), Some(0));
    let broken = |change: &dyn Fn(&mut Scene)| {
        let mut scene = hibernating(3);
        change(&mut scene);
        scene.store();
        scene.now += deletion::STOP_LIMIT;
        scaled(&scene)
    };
    assert_eq!(broken(&|scene| scene.lease_mut().unwrap().holder = None), Some(0));
    assert_eq!(broken(&|scene| scene.observed.lease = Known::Unknown), Some(0));
    assert_eq!(broken(&|scene| scene.pod_mut(1).node = None), Some(0));
    assert_eq!(
        broken(&|scene| scene.set_child(OwnedObject::RService, OwnedState::Missing)),
        Some(0)
    );
}

#[test]
fn it_rests_and_says_so_and_no_alarm_is_raised() {
    let mut scene = hibernated(3);
    let decision = scene.decide();
    assert_eq!(
        (decision.rule, decision.phase, decision.step),
        ("await-waking", Phase::Hibernated, None)
    );
    assert_eq!(scene.due(&decision), StatusWrite::None);
    assert_eq!(
        (scene.stored.ready.as_str(), scene.stored.current_primary.as_ref()),
        ("0/3", None)
    );
    let conditions = &scene.stored.conditions;
    let find = |kind: &str| conditions.iter().find(|found| found.type_ == kind).unwrap();
    for (kind, status) in [
        ("Ready", "True"),
        ("Available", "False"),
        ("Progressing", "False"),
        ("Degraded", "False"),
        ("DataSafe", "Unknown"),
    ] {
        let found = find(kind);
        assert_eq!(
            (found.status.as_str(), found.reason.as_str()),
            (status, "Hibernated"),
            "{kind}"
        );
    }
    scene.now += chrono::TimeDelta::days(30);
    let decision = scene.decide();
    assert_eq!(scene.due(&decision), StatusWrite::None);
}

#[test]
fn objects_are_kept_and_volumes_grow_meanwhile() {
    let mut scene = hibernated(3);
    scene.set_child(OwnedObject::RoService, OwnedState::Missing);
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("children", Phase::Updating));
    let mut scene = hibernated(3);
    scene.data_bytes.0 *= 2;
    assert_eq!(scene.decide().action.name(), "ResizeClaim");
    scene.observed.storage_class = Known::Known(StorageClass::Present { expandable: false });
    assert_eq!(scene.decide().phase, Phase::Hibernated);
}

#[test]
fn a_stateful_set_that_is_made_again_brings_no_pods() {
    let mut scene = hibernated(3);
    scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
    scene.observed.stateful_set = None;
    assert_eq!(scaled(&scene), Some(0));
    let mut orphaned = hibernating(3);
    orphaned.store();
    orphaned.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
    orphaned.observed.stateful_set = None;
    assert_eq!(orphaned.decide().rule, "hibernate", "they stop first");
    orphaned.now += deletion::STOP_LIMIT;
    assert_eq!(scaled(&orphaned), Some(3), "they are not taken away with it");
}

#[test]
fn it_wakes_as_an_update_with_whoever_was_primary_last() {
    let mut scene = hibernated(3);
    release(&mut scene, 2);
    scene.scaled(1);
    scene.edit(|spec| spec.hibernated = false);
    let decision = scene.store();
    assert_eq!((decision.rule, decision.phase), ("wake", Phase::Updating));
    assert!(!scene.stored.intent.stop);
    assert_eq!(scaled(&scene), Some(3), "demo-2 has the newest data");
    scene.observed.stateful_set.as_mut().unwrap().replicas = 3;
    assert_eq!(scene.decide().phase, Phase::Updating, "no failover");
    let mut drifted = hibernated(3);
    drifted.edit(|spec| spec.hibernated = false);
    drifted.store();
    drifted.set_child(
        OwnedObject::StatefulSet,
        OwnedState::Drifted {
            uid: "uid-StatefulSet".to_owned(),
            resource_version: "1".to_owned(),
            what: "spec.template".to_owned(),
            immutable: false,
        },
    );
    assert_eq!((drifted.decide().rule, scaled(&drifted)), ("children", Some(3)));
}

#[test]
fn a_change_of_mind_on_the_way_is_no_failover() {
    let mut scene = hibernating(3);
    scene.store();
    release(&mut scene, 0);
    for pod in scene.pods_mut() {
        pod.ready = false;
    }
    scene.edit(|spec| spec.hibernated = false);
    let decision = scene.store();
    assert_eq!((decision.rule, decision.phase), ("wake", Phase::Updating));
    let decision = scene.store();
    assert_eq!((decision.rule, decision.phase), ("await-primary", Phase::Updating));
    assert_eq!(
        decision.because.to_string(),
        "a primary to serve after hibernation: demo-0 has released the Lease"
    );
    scene.elect(0);
    for pod in scene.pods_mut() {
        pod.ready = pod.ordinal == 0;
    }
    scene.store();
    assert_eq!(scene.stored.memo.put_down, None, "it is back");
    scene.pod_mut(0).ready = false;
    assert_eq!(scene.decide().phase, Phase::FailingOver, "this one is lost");
}

#[test]
fn one_that_has_not_begun_to_stop_is_as_it_was() {
    let mut scene = hibernating(3);
    scene.store();
    scene.edit(|spec| spec.hibernated = false);
    assert_eq!(scene.store().phase, Phase::Updating, "somebody may be stopping");
    assert_eq!((scene.store().phase, scene.stored.memo.put_down), (Phase::Ready, None));
}

#[test]
fn nothing_is_promised_of_what_is_not_served() {
    let scene = hibernated(3);
    let promised = scene.stored.durability.clone().unwrap();
    assert_eq!(
        promised.recovery_bound,
        "nothing is served until spec.hibernated is false"
    );
    assert!(
        promised.loss_bound.starts_with("nothing is served"),
        "{}",
        promised.loss_bound
    );
    let serves = hibernating(3);
    let promised = serves.status(&serves.decide()).durability.unwrap();
    assert!(promised.recovery_bound.starts_with("about 4.7 s"), "it still serves");
}

#[test]
fn one_that_is_made_hibernated_gets_objects_and_no_pods_and_no_bootstrap() {
    let mut scene = Scene::new(3);
    scene.finalizer = true;
    scene.edit(|spec| spec.hibernated = true);
    let decision = scene.store();
    assert_eq!((decision.rule, decision.phase), ("children", Phase::Creating));
    let mut made = hibernated(3);
    made.stored = Default::default();
    let lease = made.lease_mut().unwrap();
    (lease.system_id, lease.epoch.0, lease.release) = (None, 0, None);
    made.store();
    made.store();
    assert_eq!(
        (made.stored.phase, made.stored.intent.stop),
        (Some(Phase::Hibernated), false)
    );
    made.edit(|spec| spec.hibernated = false);
    assert_eq!((made.decide().rule, made.decide().phase), ("scale", Phase::Creating));
}

#[test]
fn paused_comes_first_and_a_deletion_goes_on() {
    let mut scene = hibernating(3);
    scene.edit(|spec| spec.paused = true);
    assert_eq!(scene.decide().rule, "paused");
    let mut scene = hibernated(3);
    scene.deleting = true;
    scene.store();
    assert_eq!(scene.deletion_steps(), ["Stopped"]);
}

#[test]
fn nobody_is_told_to_stop_without_a_reason() {
    let mut scene = Scene::ready(3);
    scene.stored.intent.stop = true;
    let decision = scene.store();
    assert_eq!((decision.rule, scene.stored.intent.stop), ("wake", false));
}
