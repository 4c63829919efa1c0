use api::Phase;
use chrono::TimeDelta;

use super::super::model::Scene;
use super::super::{Action, Fault, FaultKind, OwnedObject, Target};
use super::*;

fn waiting(scene: &Scene) -> Waiting {
    match scene.decide().action {
        Action::Wait(waiting) => waiting,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_status_names_reason_object_and_actor() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).ready = false;
    scene.store();
    let stored = scene.stored.waiting.clone().unwrap();
    assert_eq!(
        (stored.reason, stored.object.as_deref(), stored.actor),
        (
            Some(WaitReason::StandbyJoining),
            Some("pod/demo-2"),
            Some(WaitActor::Agents)
        )
    );
}

#[test]
fn the_actor_is_the_one_who_can_end_this_very_wait() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).ready = false;
    assert_eq!(waiting(&scene).actor, WaitActor::Agents);
    scene.report_mut(2).full = [super::super::Volume::Data].into();
    assert_eq!(waiting(&scene).actor, WaitActor::User, "its volume is full");
    scene.observed.storage_class =
        super::super::Known::Known(super::super::StorageClass::Present { expandable: false });
    assert_eq!(waiting(&scene).actor, WaitActor::External, "and cannot grow");
}

#[test]
fn each_kind_of_failure_is_for_another_actor() {
    let kinds = [
        (FaultKind::Quota, WaitActor::External),
        (FaultKind::Forbidden, WaitActor::External),
        (FaultKind::Invalid, WaitActor::User),
        (FaultKind::Transient, WaitActor::Kubernetes),
    ];
    for (kind, actor) in kinds {
        let mut scene = Scene::ready(3);
        scene.set_child(OwnedObject::Role, super::super::OwnedState::Missing);
        scene.observed.faults = vec![Fault {
            target: Target::Child(OwnedObject::Role),
            kind,
            message: "no".to_owned(),
            attempts: 1,
            at: scene.now,
        }];
        let waiting = waiting(&scene);
        let found = (waiting.object.as_deref(), waiting.actor);
        assert_eq!(found, (Some("role/demo"), actor), "{kind:?}");
    }
}

/// Another message of the same fault is another text, and the same wait.
#[test]
fn other_words_of_the_api_server_restart_no_time() {
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(Phase::Updating);
    scene.set_child(OwnedObject::Role, super::super::OwnedState::Missing);
    let fault = |message: &str, at| Fault {
        target: Target::Child(OwnedObject::Role),
        kind: FaultKind::Transient,
        message: message.to_owned(),
        attempts: 1,
        at,
    };
    scene.observed.faults = vec![fault("no leader", scene.now)];
    scene.store();
    let first = scene.stored.waiting.clone().unwrap();
    scene.now += TimeDelta::seconds(1);
    scene.observed.faults = vec![fault("timeout", scene.now)];
    scene.store();
    let second = scene.stored.waiting.clone().unwrap();
    assert_ne!(first.what, second.what);
    assert_eq!((first.since, first.deadline), (second.since, second.deadline));
}

/// The operator before this one wrote no reason: the time begins once more, and only once.
#[test]
fn a_wait_of_an_older_operator_is_taken_over_with_a_new_time() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).ready = false;
    scene.store();
    let mut older = scene.stored.waiting.clone().unwrap();
    (older.reason, older.object, older.actor) = (None, None, None);
    scene.stored.waiting = Some(older);
    scene.stored.memo.late.clear();
    scene.now += TimeDelta::minutes(1);
    scene.store();
    let since = scene.now;
    scene.now += TimeDelta::minutes(1);
    assert_eq!(waiting(&scene).since, since);
}

#[test]
fn each_of_several_members_has_its_own_time_for_settings() {
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(Phase::Updating);
    let old = "old".to_owned();
    scene.report_mut(2).settings.clone_from(&old);
    scene.store();
    let began = scene.now;
    for minute in 1..=9 {
        scene.now = began + TimeDelta::minutes(minute);
        let settings = scene.report_mut(0).settings.clone();
        scene.report_mut(1).settings = if minute % 2 == 0 { settings } else { old.clone() };
        scene.store();
        let stored = scene.stored.waiting.clone().unwrap();
        assert_eq!(
            (stored.reason, stored.object.as_deref(), stored.since),
            (Some(WaitReason::SettingsReload), Some("pod/demo-2"), began)
        );
        assert_eq!(stored.deadline, Some(began + TimeDelta::minutes(10)));
    }
}

#[test]
fn late_members_alone_are_no_promise_that_has_to_be_written_at_once() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).ready = false;
    scene.store();
    let decision = scene.decide();
    let mut next = scene.stored.clone();
    next.memo.late.clear();
    let due = super::super::due(&scene.stored, &next, &decision);
    assert!(matches!(due, super::super::StatusWrite::Debounced(_)), "{due:?}");
}
