use api::backup::{BackupKind, BackupSource};
use chrono::TimeDelta;
use serde_json::json;

use super::super::Known;
use super::super::model::Scene;
use super::*;

fn scene(schedules: serde_json::Value) -> Scene {
    let mut scene = Scene::ready(3);
    let backup = json!({"store": {"s3": {"bucket": "wal"}}, "schedules": schedules});
    scene.spec.backup = Some(serde_json::from_value(backup).unwrap());
    scene.observed.scheduled = Known::Known(Default::default());
    scene.now = "2027-03-01T12:00:00Z".parse().unwrap();
    scene
}

fn nightly() -> serde_json::Value {
    json!([{"name": "nightly", "schedule": "0 3 * * *"}])
}

fn at(scene: &mut Scene, time: &str) {
    scene.now = time.parse().unwrap();
}

/// Carries out what the rule asks for, and returns the names of the DatabaseBackups that were made.
fn settle(scene: &mut Scene) -> Vec<String> {
    let mut made = Vec::new();
    for _ in 0..10 {
        let decision = scene.decide();
        if decision.rule != "scheduled-backup" {
            return made;
        }
        match &decision.action {
            Action::MakeBackup { name, .. } => {
                made.push(name.clone());
                scene.observed.scheduled = Known::Known([name.clone()].into());
            }
            Action::WriteStatus(_) => scene.stored = scene.status(&decision),
            other => panic!("{other:?}"),
        }
    }
    panic!("it never settles");
}

#[test]
fn a_schedule_begins_with_its_next_time_and_each_run_is_made_once() {
    let mut scene = scene(nightly());
    assert_eq!(settle(&mut scene), Vec::<String>::new());
    at(&mut scene, "2027-03-02T02:59:59Z");
    assert_eq!(settle(&mut scene), Vec::<String>::new());
    at(&mut scene, "2027-03-02T03:00:00Z");
    assert_eq!(settle(&mut scene), ["demo-nightly-202703020300"]);
    assert_eq!(settle(&mut scene), Vec::<String>::new());
    // An operator that was away for days.
    at(&mut scene, "2027-03-09T12:00:00Z");
    let told = scene.decide().because.to_string();
    assert!(told.ends_with("; 6 before it were missed"), "{told}");
    assert_eq!(
        settle(&mut scene),
        ["demo-nightly-202703090300"],
        "one for all that were missed"
    );
}

#[test]
fn a_run_is_recorded_before_it_is_made_and_looked_for_before_it_is_believed() {
    let mut scene = scene(
        json!([{"name": "now", "schedule": "0 3 * * *", "immediate": true, "source": "Primary", "kind": "Snapshot"}]),
    );
    let decision = scene.decide();
    assert!(matches!(&decision.action, Action::WriteStatus(_)), "{decision:?}");
    scene.stored = scene.status(&decision);
    let make = Action::MakeBackup {
        name: "demo-now-202703011200".to_owned(),
        source: BackupSource::Primary,
        kind: BackupKind::Snapshot,
    };
    assert_eq!(scene.decide().action, make);
    assert_eq!(scene.decide().action, make, "the write was lost");
    scene.observed.scheduled = Known::Unknown;
    assert_ne!(scene.decide().rule, "scheduled-backup", "not to be known now");
    scene.observed.scheduled = Known::Known(["demo-now-202703011200".to_owned()].into());
    assert_eq!(settle(&mut scene), Vec::<String>::new());
}

#[test]
fn a_new_line_of_the_archive_gets_a_backup_at_once() {
    let mut scene = scene(json!([
        {"name": "rests", "schedule": "0 1 * * *", "suspend": true},
        {"name": "nightly", "schedule": "0 3 * * *"},
        {"name": "weekly", "schedule": "0 4 * * 0"},
    ]));
    assert_eq!(settle(&mut scene), Vec::<String>::new());
    let archive = crate::archive::ArchiveRecord {
        line: crate::archive::ArchiveLine(2),
        ..Default::default()
    };
    scene.lease_mut().expect("a Lease").archive = Some(archive);
    assert_eq!(settle(&mut scene), ["demo-nightly-202703011200"]);
    at(&mut scene, "2027-03-02T02:59:59Z");
    assert_eq!(settle(&mut scene), Vec::<String>::new(), "once, whatever became of it");
    at(&mut scene, "2027-03-02T03:00:00Z");
    assert_eq!(settle(&mut scene), ["demo-nightly-202703020300"]);
}

/// The backups that it was made from are another database's.
#[test]
fn a_recovered_database_gets_a_backup_at_once() {
    let mut scene = scene(json!([
        {"name": "paused", "schedule": "0 3 * * *", "suspend": true},
        {"name": "nightly", "schedule": "0 3 * * *"}, {"name": "weekly", "schedule": "0 4 * * 0"},
    ]));
    let bootstrap = json!({"recovery": {"from": {"clusterRef": {"name": "other"}}}});
    scene.spec.bootstrap = Some(serde_json::from_value(bootstrap).unwrap());
    assert_eq!(settle(&mut scene), ["demo-nightly-202703011200"]);
    assert_eq!(settle(&mut scene), Vec::<String>::new(), "once");
}

#[test]
fn nothing_begins_while_another_is_open_or_the_user_wants_none() {
    let mut scene = scene(nightly());
    settle(&mut scene);
    at(&mut scene, "2027-03-02T03:00:00Z");
    scene.backup = Some("u1".to_owned());
    assert_eq!(settle(&mut scene), Vec::<String>::new(), "one is open");
    scene.backup = None;
    scene.spec.hibernated = true;
    assert_ne!(scene.decide().rule, "scheduled-backup");
    scene.spec.hibernated = false;
    scene.spec.backup.as_mut().unwrap().schedules[0].suspend = true;
    assert_eq!(settle(&mut scene), Vec::<String>::new(), "suspended");
    scene.spec.backup.as_mut().unwrap().schedules[0].suspend = false;
    assert_eq!(settle(&mut scene).len(), 1);
    scene.spec.backup.as_mut().unwrap().schedules.clear();
    settle(&mut scene);
    assert!(scene.stored.memo.schedules.is_empty(), "what is gone is forgotten");
}

#[test]
fn times_are_those_of_the_zone_and_none_is_lost_when_clocks_change() {
    let of = |schedule: &str, zone: &str| {
        let schedule = json!({"name": "n", "schedule": schedule, "timeZone": zone});
        Times::of(&serde_json::from_value(schedule).unwrap())
    };
    let berlin = of("30 2 * * *", "Europe/Berlin").unwrap();
    let next = |text: &str| berlin.next(text.parse().unwrap()).unwrap().to_rfc3339();
    assert_eq!(next("2027-01-01T00:00:00Z"), "2027-01-01T01:30:00+00:00");
    assert_eq!(next("2027-07-01T00:00:00Z"), "2027-07-01T00:30:00+00:00");
    // 02:30 is left out on 28 March 2027, and comes twice on 31 October.
    let march = berlin.next("2027-03-27T12:00:00Z".parse().unwrap()).unwrap();
    assert!(
        march < "2027-03-28T12:00:00Z".parse::<DateTime<Utc>>().unwrap(),
        "{march}"
    );
    let first = berlin.next("2027-10-30T12:00:00Z".parse().unwrap()).unwrap();
    let second = berlin.next(first).unwrap();
    assert!(second - first > TimeDelta::hours(20), "{first}, {second}");
    assert!(of("0 3 * * *", "Mars/Base").is_err_and(|error| error.contains("Europe/Berlin")));
    for bad in ["", "0 3 * *", "0 3 * * * *", "61 3 * * *", "sometimes"] {
        assert!(
            of(bad, "UTC").is_err_and(|error| error.contains("five fields")),
            "{bad}"
        );
    }
}

#[test]
fn a_schedule_that_is_none_is_told_and_stops_no_other() {
    let mut scene = scene(json!([
        {"name": "bad", "schedule": "61 3 * * *"}, {"name": "good", "schedule": "0 3 * * *", "immediate": true},
    ]));
    assert_eq!(settle(&mut scene).len(), 1);
    assert!(scene.with_facts(fault).is_some_and(|words| words.contains("bad")));
    assert_eq!(
        scene.with_facts(next_time),
        Some("2027-03-02T03:00:00Z".parse().unwrap())
    );
}
