use api::Phase;
use serde_json::json;

use super::super::model::Scene;
use super::super::observed::OpenBackup;
use super::*;

fn deleting(policy: &str) -> Scene {
    let mut scene = Scene::ready(3);
    let backup = json!({"store": {"s3": {"bucket": "wal"}}, "onDelete": {"finalBackup": policy}});
    scene.spec.backup = Some(serde_json::from_value(backup).unwrap());
    scene.observed.final_backup = Known::Known(None);
    scene.deleting = true;
    scene
}

fn name(scene: &Scene) -> String {
    scene.stored.memo.final_backup.as_ref().expect("begun").name.clone()
}

/// The present attempt is like this.
fn found(scene: &mut Scene, phase: OperationPhase) {
    scene.observed.final_backup = Known::Known(Some(OpenBackup {
        phase: Some(phase),
        message: Some("the store says no".to_owned()),
    }));
}

/// An attempt is recorded and made.
fn begin(scene: &mut Scene) {
    scene.store();
    scene.observed.final_backup = Known::Known(None);
    assert!(matches!(scene.decide().action, Action::MakeBackup { name: made, .. } if made == name(scene)));
}

/// The present attempt fails.
fn fail(scene: &mut Scene) {
    found(scene, OperationPhase::Failed);
    scene.store();
}

fn is_done(scene: &Scene) -> bool {
    scene.deletion_steps().contains(&"FinalBackup")
}

#[test]
fn it_is_recorded_made_and_awaited_before_postgresql_stops() {
    let mut scene = deleting("Required");
    scene.spec.paused = true;
    begin(&mut scene);
    assert!(name(&scene).starts_with("demo-final-"), "{}", name(&scene));
    assert_eq!(scene.stored.phase, Some(Phase::Deleting));
    for phase in [OperationPhase::Pending, OperationPhase::Running] {
        found(&mut scene, phase);
        scene.backup = Some("uid-of-the-backup".to_owned());
        let decision = scene.store();
        assert!(matches!(&decision.action, Action::Wait(wait) if wait.reason == WaitReason::FinalBackup));
        assert_eq!(scene.stored.intent.backup.as_deref(), Some("uid-of-the-backup"));
        scene.now += TimeDelta::days(1);
    }
    found(&mut scene, OperationPhase::Completed);
    scene.store();
    assert!(is_done(&scene));
    let decision = scene.store();
    assert_eq!(decision.action, Action::WriteStatus(vec![StatusChange::RequestStop]));
    assert_eq!(scene.stored.intent.backup, None, "no other one is taken");
}

#[test]
fn nothing_is_made_while_it_cannot_be_known_what_is_there() {
    let mut scene = deleting("Required");
    scene.store();
    scene.observed.final_backup = Known::Unknown;
    assert!(matches!(scene.decide().action, Action::Wait(_)));
}

#[test]
fn a_required_one_is_tried_again_for_ever_with_the_pauses_of_the_breaker() {
    let mut scene = deleting("Required");
    begin(&mut scene);
    let mut names = vec![name(&scene)];
    for failures in 1..9 {
        fail(&mut scene);
        let decision = scene.store();
        let Action::Wait(wait) = &decision.action else {
            panic!("{decision:?}")
        };
        assert_eq!(wait.reason, WaitReason::FinalBackupRetry);
        assert!(wait.what.contains("the store says no"), "{}", wait.what);
        assert_eq!(wait.what.contains("now and then"), failures >= breaker::OPENS_AT);
        assert!(wait.who_can_end_it.contains("finalBackup to None"));
        assert_eq!(wait.deadline, Some(scene.now + breaker::pause(failures)));
        scene.now += breaker::pause(failures);
        begin(&mut scene);
        names.push(name(&scene));
    }
    names.dedup();
    assert_eq!(names.len(), 9, "each attempt has a DatabaseBackup of its own");
    assert!(names[8].ends_with("-9"), "{names:?}");
    scene.spec.backup = deleting("None").spec.backup;
    assert_eq!(
        scene.decide().action,
        Action::WriteStatus(vec![StatusChange::RequestStop])
    );
}

#[test]
fn best_effort_gives_up_after_five_failures() {
    let mut scene = deleting("BestEffort");
    for failures in 1..=breaker::OPENS_AT {
        begin(&mut scene);
        fail(&mut scene);
        assert!(!is_done(&scene));
        scene.now += breaker::pause(failures);
    }
    scene.store();
    assert!(is_done(&scene));
}

#[test]
fn best_effort_waits_five_minutes_for_a_primary_and_as_long_as_it_takes_for_a_copy() {
    let mut scene = deleting("BestEffort");
    begin(&mut scene);
    found(&mut scene, OperationPhase::Pending);
    let mut running = scene.clone();
    let decision = scene.store();
    assert!(matches!(decision.action, Action::Wait(wait) if wait.deadline == Some(scene.now + BEGINS)));
    scene.now += BEGINS;
    scene.store();
    assert!(is_done(&scene));
    found(&mut running, OperationPhase::Running);
    running.store();
    running.now += BEGINS;
    assert!(matches!(running.decide().action, Action::Wait(_)));
}

#[test]
fn without_an_instance_the_user_has_the_word_and_best_effort_goes_on() {
    let hibernated = |policy| {
        let mut scene = deleting(policy);
        scene.spec.hibernated = true;
        scene.stored.intent.stop = true;
        scene.pods_mut().clear();
        scene
    };
    let decision = hibernated("Required").decide();
    assert!(matches!(&decision.action, Action::Wait(wait) if wait.reason == WaitReason::FinalBackupSource));
    let mut scene = hibernated("BestEffort");
    scene.store();
    assert!(is_done(&scene));
}

#[test]
fn nothing_is_asked_of_a_database_that_was_never_made_or_asks_for_none() {
    let mut never = Scene::new(3);
    never.spec.backup = deleting("Required").spec.backup;
    (never.deleting, never.finalizer) = (true, true);
    assert!(matches!(never.decide().action, Action::RemoveFinalizer(_)));
    let mut scene = deleting("Required");
    scene.observed.namespace_terminating = true;
    assert!(matches!(scene.decide().action, Action::RemoveFinalizer(_)));
    for policy in ["None", "absent"] {
        let mut scene = deleting("None");
        if policy == "absent" {
            scene.spec.backup.as_mut().unwrap().on_delete = None;
        }
        scene.store();
        assert!(scene.stored.intent.stop && scene.stored.memo.final_backup.is_none());
    }
}
