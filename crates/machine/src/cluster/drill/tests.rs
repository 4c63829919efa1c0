use serde_json::{Value, json};

use super::super::Known;
use super::super::model::Scene;
use super::super::observed::DrillSeen;
use super::*;
use crate::reconcile::ObjectVersion;

const NAME: &str = "demo-drill-0307050000";

/// A database with a backup whose drills have been asked for since Monday, the first of March.
fn scene(drill: Value) -> Scene {
    let mut scene = Scene::ready(3);
    let mut with = json!({"schedule": "0 5 * * 0"});
    with.as_object_mut().unwrap().extend(drill.as_object().unwrap().clone());
    let backup = json!({"store": {"s3": {"bucket": "wal"}}, "drill": with});
    scene.spec.backup = Some(serde_json::from_value(backup).unwrap());
    let last = json!({"archive": {"archivedUpTo": {"timeline": 1, "lsn": "0/3000000", "time": "2027-03-01T00:01:00Z"}}, "lastBackup": {
        "name": "20270301T000000Z-F-7f3a", "timeline": 1, "startLsn": "0/2000028", "stopLsn": "0/2000100",
        "startTime": "2027-03-01T00:00:00Z", "stopTime": "2027-03-01T00:00:09Z", "dataBytes": 4, "storedBytes": 2,
    }});
    scene.stored.backup = Some(serde_json::from_value(last).unwrap());
    scene.observed.drill = Known::Known(None);
    at(&mut scene, "2027-03-01T12:00:00Z");
    scene.store();
    assert!(scene.stored.memo.drill.as_ref().is_some_and(|run| run.name.is_none()));
    scene
}

fn at(scene: &mut Scene, time: &str) {
    scene.now = time.parse().unwrap();
}

fn seen(phase: Phase) -> DrillSeen {
    DrillSeen {
        exact: ObjectVersion::of_any_version(NAME, "uid-of-the-drill"),
        is_ours: true,
        terminating: false,
        phase: Some(phase),
        message: Some("the store says no".to_owned()),
    }
}

fn find(scene: &mut Scene, seen: Option<DrillSeen>) {
    scene.observed.drill = Known::Known(seen);
}

/// A drill that has been made.
fn begun(drill: Value) -> Scene {
    let mut scene = scene(drill);
    at(&mut scene, "2027-03-07T05:00:00Z");
    scene.store();
    let make = Action::MakeDrill {
        name: NAME.to_owned(),
        backup: Some("20270301T000000Z-F-7f3a".to_owned()),
    };
    assert_eq!(scene.decide().action, make, "the newest backup, by its name");
    find(&mut scene, Some(seen(Phase::Restoring)));
    assert_ne!(scene.decide().rule, "drill");
    scene
}

fn result(scene: &Scene) -> DrillResult {
    scene
        .stored
        .backup
        .as_ref()
        .and_then(|backup| backup.drill.clone())
        .expect("a drill has ended")
}

/// What is recorded is removed, and then nothing is left of it.
fn ends(scene: &mut Scene) {
    let exact = ObjectVersion::of_any_version(NAME, "uid-of-the-drill");
    assert_eq!(scene.decide().action, Action::DeleteDrill(exact));
    find(
        scene,
        Some(DrillSeen {
            terminating: true,
            ..seen(Phase::Deleting)
        }),
    );
    assert_ne!(scene.decide().rule, "drill");
    find(scene, None);
    scene.store();
    assert_eq!(scene.stored.memo.drill.as_ref().unwrap().name, None);
    assert_ne!(scene.decide().rule, "drill", "once for each time");
}

#[test]
fn a_drill_is_recorded_made_told_and_removed() {
    let mut scene = begun(json!({}));
    scene.now += TimeDelta::minutes(3);
    find(&mut scene, Some(seen(Phase::Ready)));
    scene.store();
    let told = result(&scene);
    assert!(told.succeeded && told.message.is_none() && told.name == NAME);
    assert_eq!(told.end_time - told.start_time, TimeDelta::minutes(3));
    assert_eq!(told.last_success_time, Some(told.start_time));
    assert_eq!(told.proven_backup.as_deref(), Some("20270301T000000Z-F-7f3a"));
    assert_eq!(
        (told.data_bytes, told.archived_up_to.clone().map(|up_to| up_to.lsn)),
        (Some(4), Some("0/3000000".to_owned()))
    );
    ends(&mut scene);
    assert_eq!(result(&scene), told, "it stays in the status");
}

#[test]
fn a_drill_that_fails_or_takes_too_long_is_told_and_removed() {
    let mut failed = begun(json!({}));
    find(&mut failed, Some(seen(Phase::Failed)));
    failed.store();
    assert_eq!(result(&failed).message.as_deref(), Some("the store says no"));
    assert_eq!(result(&failed).proven_backup, None);
    ends(&mut failed);

    let mut slow = begun(json!({"limitMinutes": 30}));
    slow.now += TimeDelta::minutes(29);
    assert_ne!(slow.decide().rule, "drill");
    assert!(slow.decide().wake <= slow.now + TimeDelta::minutes(1));
    slow.now += TimeDelta::minutes(1);
    slow.store();
    let told = result(&slow);
    assert!(
        !told.succeeded
            && told
                .message
                .unwrap()
                .starts_with("it was not Ready within 30 minutes; it waits for the store")
    );
    ends(&mut slow);
}

#[test]
fn a_drill_goes_with_its_wish() {
    let mut scene = begun(json!({}));
    scene.spec.backup.as_mut().unwrap().drill = None;
    scene.store();
    assert!(matches!(scene.decide().action, Action::DeleteDrill(_)));
    find(&mut scene, None);
    scene.store();
    scene.store();
    assert_eq!(scene.stored.memo.drill, None);
}

#[test]
fn a_database_of_somebody_else_is_not_touched() {
    let mut scene = begun(json!({}));
    let foreign = DrillSeen {
        is_ours: false,
        ..seen(Phase::Ready)
    };
    find(&mut scene, Some(foreign));
    scene.store();
    assert!(!result(&scene).succeeded);
    scene.store();
    assert_eq!(scene.stored.memo.drill.as_ref().unwrap().name, None);
}

#[test]
fn none_begins_without_a_backup_or_while_the_user_wants_none() {
    let due = |change: fn(&mut Scene)| {
        let mut scene = scene(json!({}));
        change(&mut scene);
        at(&mut scene, "2027-03-07T05:00:00Z");
        scene.decide().rule == "drill"
    };
    assert!(due(|_| ()));
    assert!(!due(|scene| scene.stored.backup.as_mut().unwrap().last_backup = None));
    assert!(!due(|scene| scene
        .spec
        .backup
        .as_mut()
        .unwrap()
        .drill
        .as_mut()
        .unwrap()
        .suspend = true));
    assert!(!due(|scene| scene.spec.hibernated = true));
    let mut unknown = begun(json!({}));
    find(&mut unknown, None);
    unknown.observed.drill = Known::Unknown;
    assert_ne!(unknown.decide().rule, "drill");
}

#[test]
fn what_was_missed_is_caught_up_once_and_the_next_time_is_awaited() {
    let mut scene = scene(json!({"timeZone": "Europe/Berlin"}));
    assert_eq!(
        scene.with_facts(next_time),
        Some("2027-03-07T04:00:00Z".parse().unwrap())
    );
    at(&mut scene, "2027-03-22T00:00:00Z");
    scene.store();
    let name = scene.stored.memo.drill.as_ref().unwrap().name.clone();
    assert_eq!(name.as_deref(), Some("demo-drill-0321040000"));
    scene.spec.backup.as_mut().unwrap().drill.as_mut().unwrap().time_zone = Some("Nowhere".to_owned());
    assert!(
        scene
            .with_facts(fault)
            .unwrap()
            .starts_with("backup.drill: \"Nowhere\" is no time zone")
    );
}

#[test]
fn backups_are_healthy_as_long_as_the_proof_is_young() {
    let healthy = |scene: &Scene| {
        scene.with_facts(|facts| {
            let well = Answer {
                holds: Some(true),
                reason: Reason::Archiving,
                message: "WAL is archived".to_owned(),
            };
            proven(facts, well)
        })
    };
    let mut scene = begun(json!({"maxAgeDays": 8}));
    assert!(healthy(&scene).message.ends_with("No drill has been made yet"));
    find(&mut scene, Some(seen(Phase::Ready)));
    scene.store();
    ends(&mut scene);
    assert!(
        healthy(&scene)
            .message
            .ends_with("A drill of 2027-03-07T05:00:00Z recovered it")
    );
    scene.now += TimeDelta::days(8);
    assert_eq!(healthy(&scene).reason, Reason::ProofTooOld);

    let mut failed = begun(json!({}));
    find(&mut failed, Some(seen(Phase::Failed)));
    failed.store();
    assert_eq!(healthy(&failed).reason, Reason::DrillFails);
    failed.spec.backup.as_mut().unwrap().drill = None;
    assert_eq!(healthy(&failed).reason, Reason::Archiving);
}
