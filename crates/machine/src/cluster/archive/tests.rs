use api::backup::{BackupSource, BackupState, BackupTask, StoredBackup};
use api::spec::BackupSpec;
use api::status::ArchiveLine;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::super::StatusWrite;
use super::super::health::BACKUP_HEALTHY;
use super::super::model::Scene;
use super::*;
use crate::archive::Progress;
use crate::protocol::{Lsn, Position, Timeline};
use crate::units::Bytes;

fn archiving() -> Scene {
    let mut scene = Scene::ready(3);
    let backup: BackupSpec = serde_json::from_value(serde_json::json!({"store": {"s3": {"bucket": "wal"}}})).unwrap();
    scene.spec.backup = Some(backup);
    scene.store();
    scene
}

fn tell(scene: &mut Scene, lsn: u64, change: impl FnOnce(&mut ArchiveRecord)) {
    let up_to = Position {
        timeline: Timeline(1),
        lsn: Lsn(lsn),
    };
    let mut record = ArchiveRecord {
        progress: Progress {
            up_to: Some(up_to),
            waiting: Bytes::mib(4),
        },
        fence: Some(ArchiveFence::Enforced),
        ..ArchiveRecord::default()
    };
    change(&mut record);
    scene.lease_mut().expect("a Lease").archive = Some(record);
}

fn healthy(scene: &Scene) -> Option<Condition> {
    let conditions = scene.status(&scene.decide()).conditions;
    conditions.into_iter().find(|found| found.type_ == BACKUP_HEALTHY)
}

fn is(scene: &Scene) -> (String, String) {
    let found = healthy(scene).expect("the condition");
    (found.status, found.reason)
}

fn words(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn without_an_archive_nothing_is_said() {
    let mut scene = Scene::ready(3);
    tell(&mut scene, 64, |_| ());
    assert_eq!(healthy(&scene), None);
    assert_eq!(scene.status(&scene.decide()).backup, None);
}

#[test]
fn the_condition_says_what_the_primary_has_told() {
    let mut scene = archiving();
    assert_eq!(is(&scene), words("Unknown", "ArchiveUnknown"));
    tell(&mut scene, 64, |record| record.fence = None);
    assert_eq!(is(&scene), words("Unknown", "ArchiveUnknown"));
    tell(&mut scene, 64, |_| ());
    assert_eq!(is(&scene), words("False", "NoBackup"));
    tell(&mut scene, 64, |record| record.catalogue = Some(counted(1, None)));
    assert_eq!(is(&scene), words("True", "Archiving"));
    assert!(
        healthy(&scene).unwrap().message.contains("spec.backup.drill"),
        "it is not proven"
    );
    tell(&mut scene, 64, |record| record.given_up = 3);
    assert_eq!(is(&scene), words("False", "ArchiveHasGap"));
    tell(&mut scene, 64, |record| {
        record.fault = Some("the store denies access".to_owned())
    });
    assert_eq!(is(&scene), words("False", "ArchiveFails"));
    assert!(healthy(&scene).unwrap().message.contains("denies access"));
    let full = scene.now + chrono::TimeDelta::hours(2);
    tell(&mut scene, 64, |record| record.full_time = Some(full));
    assert_eq!(is(&scene), words("False", "ArchiveFallsBehind"));
    let archive = scene.status(&scene.decide()).backup.unwrap().archive;
    assert_eq!(archive.full_time, Some(full));
    tell(&mut scene, 64, |record| {
        (record.fault, record.full_time) = (Some("the store denies access".to_owned()), Some(full));
    });
    assert_eq!(is(&scene), words("False", "ArchiveFails"));
    let message = healthy(&scene).unwrap().message;
    let time = full.to_rfc3339_opts(SecondsFormat::Secs, true);
    assert!(
        message.contains("denies access") && message.contains(&time),
        "{message}"
    );
    tell(&mut scene, 64, |record| {
        record.catalogue = Some(counted(2, Some("the store denies access")))
    });
    assert_eq!(is(&scene), words("False", "CatalogueFails"));
}

#[test]
fn a_new_line_is_told_until_it_has_a_backup() {
    let mut scene = archiving();
    let in_line = |scene: &mut Scene, line: u32, of: u32, backups: u32| {
        tell(scene, 64, |record| {
            record.line = ArchiveLine(line);
            record.catalogue = Some(BackupCatalogue {
                line: ArchiveLine(of),
                ..counted(backups, None)
            });
        });
        is(scene)
    };
    let lacks = words("False", "ArchiveLineNew");
    assert_eq!(in_line(&mut scene, 2, 1, 5), lacks, "those are in the line before");
    assert_eq!(in_line(&mut scene, 2, 2, 0), lacks);
    assert!(healthy(&scene).unwrap().message.contains("line 2"));
    assert_eq!(in_line(&mut scene, 2, 2, 1), words("True", "Archiving"));
    assert_eq!(
        scene.status(&scene.decide()).backup.unwrap().archive.line,
        ArchiveLine(2)
    );
    assert_eq!(in_line(&mut scene, 1, 1, 0), words("False", "NoBackup"));
}

/// A backup that is never completed, or never made, is told as little by its own schedule as by a failure.
#[test]
fn a_schedule_that_has_had_its_time_twice_is_told() {
    let mut scene = archiving();
    let hourly = serde_json::json!([{"name": "hourly", "schedule": "0 * * * *"}]);
    scene.spec.backup.as_mut().unwrap().schedules = serde_json::from_value(hourly).unwrap();
    let begun: DateTime<Utc> = "2027-03-01T12:00:05Z".parse().unwrap();
    let last = serde_json::json!({"archive": {}, "lastBackup": {
        "name": "20270301T120005Z-F-7f3a", "timeline": 1, "startLsn": "0/2000028", "stopLsn": "0/2000100",
        "startTime": begun, "stopTime": begun, "dataBytes": 4, "storedBytes": 2,
    }});
    scene.stored.backup = Some(serde_json::from_value(last).unwrap());
    tell(&mut scene, 64, |record| record.catalogue = Some(counted(1, None)));
    for (time, told) in [
        ("2027-03-01T13:59:59Z", words("True", "Archiving")),
        ("2027-03-01T14:00:00Z", words("False", "BackupOverdue")),
    ] {
        scene.now = time.parse().unwrap();
        assert_eq!(is(&scene), told, "{time}");
    }
    scene.spec.backup.as_mut().unwrap().schedules[0].suspend = true;
    assert_eq!(is(&scene), words("True", "Archiving"));
}

fn counted(backups: u32, fault: Option<&str>) -> BackupCatalogue {
    BackupCatalogue {
        backups,
        fault: fault.map(str::to_owned),
        ..BackupCatalogue::default()
    }
}

#[test]
fn the_backups_in_the_store_are_told_until_a_holder_tells_anew() {
    let mut scene = archiving();
    let told = |scene: &Scene| scene.status(&scene.decide()).backup.expect("an archive").catalogue;
    assert_eq!(told(&scene), None);
    tell(&mut scene, 64, |record| record.catalogue = Some(counted(2, None)));
    assert_eq!(told(&scene), Some(counted(2, None)));
    scene.store();
    tell(&mut scene, 64, |_| ());
    assert_eq!(told(&scene), Some(counted(2, None)));
}

#[test]
fn a_fault_is_written_soon_and_progress_once_a_minute() {
    let mut scene = archiving();
    tell(&mut scene, 64, |_| ());
    scene.store();
    let stored = scene.status(&scene.decide()).backup.unwrap().archive;
    assert_eq!(
        (stored.archived_up_to.unwrap().lsn, stored.waiting_bytes),
        ("0/40".to_owned(), 4 << 20)
    );
    assert_eq!(scene.due(&scene.decide()), StatusWrite::None);
    tell(&mut scene, 128, |_| ());
    assert_eq!(scene.due(&scene.decide()), StatusWrite::Debounced(PROGRESS_SETTLES));
    tell(&mut scene, 128, |record| record.fault = Some("denied".to_owned()));
    let StatusWrite::Debounced(settles) = scene.due(&scene.decide()) else {
        panic!("people read it");
    };
    assert!(settles < PROGRESS_SETTLES);
}

#[test]
fn the_time_of_a_position_is_when_it_was_first_seen() {
    let mut scene = archiving();
    let seen = |scene: &Scene| {
        let backup = scene.status(&scene.decide()).backup.expect("an archive");
        backup.archive.archived_up_to.expect("a position").time
    };
    tell(&mut scene, 64, |_| ());
    let first = scene.now;
    scene.store();
    scene.now += chrono::TimeDelta::minutes(5);
    assert_eq!(seen(&scene), first);
    tell(&mut scene, 128, |_| ());
    assert_eq!(seen(&scene), scene.now);
}

#[test]
fn a_backup_is_asked_for_at_once_unless_the_user_wants_a_rest() {
    let mut scene = archiving();
    let asked = |scene: &Scene| scene.status(&scene.decide()).intent.backup;
    assert_eq!(asked(&scene), None);
    (scene.backup, scene.backup_source) = (Some("u1".to_owned()), BackupSource::Primary);
    let decision = scene.decide();
    let next = scene.status(&decision);
    assert_eq!(next.intent.backup.as_deref(), Some("u1"));
    assert_eq!(next.intent.backup_source, BackupSource::Primary);
    assert_eq!(
        super::super::due(&scene.stored, &next, &decision),
        StatusWrite::BeforeAction
    );
    scene.spec.paused = true;
    assert_eq!(asked(&scene), None, "as it was");
    scene.spec.paused = false;
    scene.spec.hibernated = true;
    assert_eq!(asked(&scene), None);
    scene.spec.hibernated = false;
    scene.spec.backup = None;
    assert_eq!(asked(&scene), None);
}

#[test]
fn the_last_backup_stays_in_the_status_while_another_is_taken() {
    let stored = |name: &str| StoredBackup {
        name: name.to_owned(),
        timeline: 1,
        start_lsn: "0/2000028".to_owned(),
        stop_lsn: "0/2000100".to_owned(),
        start_time: Scene::ready(3).now,
        stop_time: Scene::ready(3).now,
        data_bytes: 2,
        stored_bytes: 1,
        source: None,
        damaged_pages: name == "b",
        snapshot: None,
    };
    let task = |state, backup| BackupTask {
        uid: "u1".to_owned(),
        attempt: 1,
        source: None,
        state,
        copied_bytes: Some(1),
        total_bytes: Some(2),
        message: None,
        snapshot: None,
        damaged_pages: false,
        backup,
    };
    let mut scene = archiving();
    tell(&mut scene, 64, |record| {
        record.backup = Some(task(BackupState::Completed, Some(stored("a"))))
    });
    scene.store();
    tell(&mut scene, 64, |record| {
        record.backup = Some(task(BackupState::Copying, None))
    });
    let backup = scene.status(&scene.decide()).backup.unwrap();
    assert_eq!(backup.last_backup, Some(stored("a")));
    assert_eq!(backup.task, Some(task(BackupState::Copying, None)));
    assert_eq!(is(&scene), words("True", "Archiving"));
    tell(&mut scene, 64, |record| {
        let mut failed = task(BackupState::Failed, None);
        failed.message = Some("the store denies access".to_owned());
        record.backup = Some(failed);
        record.catalogue = Some(counted(0, None));
    });
    assert_eq!(is(&scene), words("False", "BackupFailed"));
    assert!(healthy(&scene).unwrap().message.contains("denies access"));
    for (name, told) in [("b", words("False", "DamagedPages")), ("c", words("True", "Archiving"))] {
        tell(&mut scene, 64, |record| {
            record.backup = Some(task(BackupState::Completed, Some(stored(name))))
        });
        scene.store();
        assert_eq!(is(&scene), told, "{name}");
    }
}
