use api::Phase;
use api::backup::{BackupKind, BackupOrigin, BackupRole, BackupTask, StoredBackup};
use api::status::BackupCatalogue;
use serde_json::{Value, json};

use super::super::StatusWrite;
use super::super::model::Scene;
use super::super::observed::Claim;
use super::*;
use crate::reconcile::ObjectVersion;

const NAME: &str = "demo-1a2b3c4d-20270301t000000z-s-7f3a";
const BACKUP: &str = "20270301T000000Z-S-7f3a";

fn exact() -> ObjectVersion {
    ObjectVersion::of_any_version(NAME, "uid-of-the-snapshot")
}

fn found(taken: bool, ready: bool) -> SnapshotSeen {
    SnapshotSeen {
        exact: exact(),
        is_ours: true,
        terminating: false,
        taken,
        ready,
        message: None,
    }
}

fn see(scene: &mut Scene, seen: Option<SnapshotSeen>) {
    scene.observed.snapshots.insert(NAME.to_owned(), Known::Known(seen));
}

/// The primary tells that it is so far with the backup.
fn tell(scene: &mut Scene, state: BackupState) {
    let backup = (state == BackupState::Completed).then(|| StoredBackup {
        name: BACKUP.to_owned(),
        timeline: 1,
        start_lsn: "0/2000028".to_owned(),
        stop_lsn: "0/2000100".to_owned(),
        start_time: Scene::ready(3).now,
        stop_time: Scene::ready(3).now,
        data_bytes: 0,
        stored_bytes: 0,
        source: None,
        damaged_pages: false,
        snapshot: Some(NAME.to_owned()),
    });
    let task = BackupTask {
        uid: "u1".to_owned(),
        attempt: 1,
        source: Some(BackupOrigin {
            member: "demo-0".to_owned(),
            role: BackupRole::Primary,
        }),
        state,
        copied_bytes: None,
        total_bytes: None,
        message: None,
        snapshot: (state == BackupState::Copying).then(|| NAME.to_owned()),
        damaged_pages: false,
        backup,
    };
    let archive = &mut scene.lease_mut().expect("a Lease").archive;
    archive.get_or_insert_default().backup = Some(task);
}

/// The primary has seen in the store that the backup is removed.
fn removed(scene: &mut Scene) {
    let archive = &mut scene.lease_mut().expect("a Lease").archive;
    archive.get_or_insert_default().catalogue = Some(BackupCatalogue {
        removed_snapshots: vec![NAME.to_owned()],
        ..BackupCatalogue::default()
    });
}

fn archiving() -> Scene {
    let mut scene = Scene::ready(3);
    let backup = json!({"store": {"s3": {"bucket": "wal"}}, "retention": {"minBackups": 1, "hold": []}});
    scene.spec.backup = Some(serde_json::from_value(backup).unwrap());
    scene.store();
    scene
}

/// The primary is in backup mode, and the VolumeSnapshot was recorded.
fn waiting() -> Scene {
    let mut scene = archiving();
    (scene.backup, scene.backup_kind) = (Some("u1".to_owned()), BackupKind::Snapshot);
    scene.store();
    assert_eq!(scene.stored.intent.backup_kind, BackupKind::Snapshot);
    tell(&mut scene, BackupState::Copying);
    see(&mut scene, None);
    assert!(matches!(scene.store().action, Action::WriteStatus(_)));
    scene
}

fn state(scene: &Scene) -> Option<SnapshotState> {
    scene.stored.intent.snapshot.as_ref().map(|word| word.state)
}

/// The VolumeSnapshots that are on record, and whether they were told to be ready.
fn names(scene: &Scene) -> Vec<(&str, bool)> {
    let all = scene.stored.memo.snapshots.iter();
    all.map(|memo| (memo.name.as_str(), memo.ready)).collect()
}

/// A complete backup.
fn complete() -> Scene {
    let mut scene = waiting();
    see(&mut scene, Some(found(true, true)));
    scene.store();
    tell(&mut scene, BackupState::Completed);
    scene.store();
    scene.backup = None;
    scene.store();
    scene
}

fn to_read(scene: &Scene) -> Vec<String> {
    let lease = scene.observed.lease.get().and_then(Option::as_ref);
    snapshots_to_read(&scene.spec, &scene.stored, lease)
        .into_iter()
        .collect()
}

#[test]
fn a_snapshot_is_recorded_made_and_told_until_it_is_ready() {
    let mut scene = waiting();
    assert_eq!(names(&scene), [(NAME, false)]);
    assert_eq!(to_read(&scene), [NAME]);
    let make = Action::MakeSnapshot {
        name: NAME.to_owned(),
        claim: "data-demo-0".to_owned(),
    };
    assert_eq!(scene.decide().action, make);
    assert_eq!(scene.decide().action, make, "the write was lost");
    scene.store();
    assert_eq!(state(&scene), Some(SnapshotState::Asked));
    for (seen, told) in [
        (found(false, false), SnapshotState::Asked),
        (found(true, false), SnapshotState::Taken),
        // What was told is not taken back.
        (found(false, false), SnapshotState::Taken),
        (found(true, true), SnapshotState::Ready),
    ] {
        see(&mut scene, Some(seen));
        let decision = scene.decide();
        assert_ne!(decision.rule, SNAPSHOT.name);
        let next = scene.status(&decision);
        if next.intent != scene.stored.intent {
            let due = super::super::due(&scene.stored, &next, &decision);
            assert_eq!(due, StatusWrite::BeforeAction, "PostgreSQL waits for it");
        }
        scene.store();
        assert_eq!(state(&scene), Some(told));
        assert_eq!(scene.stored.phase, Some(Phase::Ready));
    }
    tell(&mut scene, BackupState::Completed);
    scene.store();
    assert_eq!((state(&scene), names(&scene)), (None, vec![(NAME, true)]));
}

#[test]
fn it_is_looked_at_often_while_postgresql_is_in_backup_mode() {
    let mut scene = waiting();
    scene.store();
    let wake = |scene: &Scene| scene.decide().wake - scene.now;
    assert_eq!(wake(&scene), TAKING);
    see(&mut scene, Some(found(true, false)));
    scene.store();
    assert_eq!(wake(&scene), READYING);
    see(&mut scene, Some(found(true, true)));
    scene.store();
    assert!(wake(&scene) > READYING);
}

#[test]
fn what_cannot_come_to_anything_is_told_as_failed() {
    let of = |seen: Option<SnapshotSeen>, before: Option<SnapshotSeen>| {
        let mut scene = waiting();
        if before.is_some() {
            see(&mut scene, before);
            scene.store();
        }
        see(&mut scene, seen);
        scene.store();
        let first = scene.stored.intent.snapshot.clone().expect("it is told");
        scene.store();
        assert_eq!(scene.stored.intent.snapshot.as_ref(), Some(&first), "the reason stays");
        (first.state, first.message.unwrap_or_default())
    };
    let foreign = SnapshotSeen {
        is_ours: false,
        ..found(true, true)
    };
    let going = SnapshotSeen {
        terminating: true,
        ..found(true, true)
    };
    assert_eq!(of(Some(foreign), None).0, SnapshotState::Failed);
    assert_eq!(of(Some(going), None).0, SnapshotState::Failed);
    assert_eq!(
        of(None, Some(found(true, false))),
        (SnapshotState::Failed, "it was deleted".to_owned())
    );
    let words = SnapshotSeen {
        message: Some("no such class".to_owned()),
        ..found(false, false)
    };
    assert_eq!(
        of(Some(words), None),
        (SnapshotState::Asked, "no such class".to_owned())
    );

    for (kind, told) in [
        (FaultKind::Invalid, SnapshotState::Failed),
        (FaultKind::Forbidden, SnapshotState::Failed),
        (FaultKind::Transient, SnapshotState::Asked),
    ] {
        let mut scene = waiting();
        scene.observed.faults.push(Fault {
            target: Target::Snapshot(NAME.to_owned()),
            kind,
            message: "there is no such kind".to_owned(),
            attempts: 1,
            at: scene.now,
        });
        for seen in [Known::Known(None), Known::Unknown] {
            scene.observed.snapshots.insert(NAME.to_owned(), seen);
            scene.store();
            let progress = scene.stored.intent.snapshot.clone().expect("it is told");
            let message = progress.message.as_deref();
            assert_eq!((progress.state, message), (told, Some("there is no such kind")));
        }
    }
}

#[test]
fn one_that_no_backup_can_have_goes_once_none_is_taken() {
    let mut scene = waiting();
    see(&mut scene, Some(found(true, false)));
    scene.store();
    tell(&mut scene, BackupState::Failed);
    assert_ne!(scene.decide().rule, SNAPSHOT.name, "the backup is asked for still");
    scene.backup = None;
    scene.store();
    assert_eq!(to_read(&scene), [NAME]);
    let mut paused = scene.clone();
    paused.spec.paused = true;
    assert_ne!(paused.decide().rule, SNAPSHOT.name);
    assert_eq!(scene.decide().action, Action::DeleteSnapshot(exact()));
    let going = SnapshotSeen {
        terminating: true,
        ..found(true, false)
    };
    for gone in [None, Some(going)] {
        let mut scene = scene.clone();
        see(&mut scene, gone);
        scene.store();
        assert_eq!(names(&scene), []);
    }
    scene.observed.snapshots.clear();
    assert_ne!(scene.decide().rule, SNAPSHOT.name, "nothing is known of it");
}

#[test]
fn one_of_an_earlier_attempt_goes_when_the_next_one_has_named_its_own() {
    let mut scene = waiting();
    see(&mut scene, Some(found(true, true)));
    scene.store();
    assert_eq!(names(&scene), [(NAME, true)]);
    let next = "demo-1a2b3c4d-20270301t000009z-s-7f3a";
    let archive = scene.lease_mut().expect("a Lease").archive.as_mut().expect("a record");
    archive.backup.as_mut().expect("a task").snapshot = Some(next.to_owned());
    scene.observed.snapshots.insert(next.to_owned(), Known::Known(None));
    assert_eq!(to_read(&scene), [NAME, next]);
    scene.store();
    assert_eq!(names(&scene), [(NAME, true), (next, false)]);
    assert!(matches!(scene.decide().action, Action::MakeSnapshot { .. }));
    let made = SnapshotSeen {
        exact: ObjectVersion::of_any_version(next, "another"),
        ..found(true, false)
    };
    scene
        .observed
        .snapshots
        .insert(next.to_owned(), Known::Known(Some(made)));
    assert_eq!(scene.decide().action, Action::DeleteSnapshot(exact()));
}

#[test]
fn one_that_a_backup_may_have_goes_only_when_the_store_has_the_mark_of_its_removal() {
    let mut scene = complete();
    assert_eq!(names(&scene), [(NAME, true)]);
    assert_eq!(to_read(&scene), Vec::<String>::new());
    assert_ne!(scene.decide().rule, SNAPSHOT.name);
    let mut without = scene.clone();
    without.spec.backup = None;
    without.store();
    assert_ne!(
        without.decide().rule,
        SNAPSHOT.name,
        "the store is not looked at any more"
    );
    removed(&mut scene);
    assert_eq!(to_read(&scene), [NAME]);
    assert_eq!(scene.decide().action, Action::DeleteSnapshot(exact()));
    see(&mut scene, None);
    scene.store();
    assert_eq!(names(&scene), []);
    scene.store();
    assert_eq!(names(&scene), [], "it is not learned again");
}

#[test]
fn all_go_with_all_backups() {
    let mut scene = complete();
    scene.deleting = true;
    scene.end_deletion_steps(&["Archive"]);
    let more = (0..9).map(|number| SnapshotMemo {
        name: format!("demo-{number}"),
        uid: "u0".to_owned(),
        ready: true,
    });
    scene.stored.memo.snapshots.extend(more);
    let mut deleted = 0;
    while !scene.stored.memo.snapshots.is_empty() {
        for name in to_read(&scene) {
            let there = SnapshotSeen {
                exact: ObjectVersion::of_any_version(name.clone(), "u"),
                ..found(true, true)
            };
            scene.observed.snapshots.insert(name, Known::Known(Some(there)));
        }
        let Action::DeleteSnapshot(exact) = scene.decide().action else {
            panic!("{:?}", scene.decide());
        };
        deleted += 1;
        scene
            .observed
            .snapshots
            .insert(exact.name().to_owned(), Known::Known(None));
        scene.store();
    }
    assert_eq!(deleted, 10);
}

#[test]
fn somebody_elses_is_left_alone() {
    let mut scene = complete();
    removed(&mut scene);
    let foreign = SnapshotSeen {
        is_ours: false,
        ..found(true, true)
    };
    see(&mut scene, Some(foreign));
    assert!(matches!(scene.store().action, Action::WriteStatus(_)));
    assert_eq!(names(&scene), []);
}

/// A new database that is to be made from a snapshot.
fn recovering() -> Scene {
    let mut scene = Scene::new(3);
    scene.finalizer = true;
    let from = json!({"store": {"s3": {"bucket": "wal"}}, "cluster": "demo-1a2b3c4d"});
    let recovery: Value = json!({"recovery": {"from": from, "backup": BACKUP}});
    scene.spec.bootstrap = Some(serde_json::from_value(recovery).unwrap());
    scene.store();
    scene
}

#[test]
fn the_first_claim_is_made_from_the_snapshot_before_anything_else() {
    let mut scene = recovering();
    assert_eq!(to_read(&scene), [NAME]);
    let reason = |scene: &Scene| {
        let decision = scene.decide();
        assert_eq!(decision.rule, CLAIM_FROM_SNAPSHOT.name);
        match decision.action {
            Action::Wait(waiting) => waiting.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reason(&scene), WaitReason::ObjectReading);
    see(&mut scene, None);
    assert_eq!(reason(&scene), WaitReason::RecoverySource);
    see(&mut scene, Some(found(true, false)));
    assert_eq!(reason(&scene), WaitReason::RecoverySource);
    let going = SnapshotSeen {
        terminating: true,
        ..found(true, true)
    };
    see(&mut scene, Some(going));
    assert_eq!(reason(&scene), WaitReason::RecoverySource);
    see(&mut scene, Some(found(true, true)));
    let make = Action::MakeDataClaim {
        name: "data-demo-0".to_owned(),
        snapshot: NAME.to_owned(),
    };
    assert_eq!(scene.decide().action, make);
    let ready = Scene::ready(3);
    let claim: Claim = ready.observed.claims.get().expect("claims")[0].clone();
    scene.observed.claims = Known::Known(vec![claim]);
    assert_ne!(scene.decide().rule, CLAIM_FROM_SNAPSHOT.name);
}

#[test]
fn a_database_that_is_there_and_one_from_a_full_backup_need_no_snapshot() {
    let mut scene = Scene::ready(3);
    scene.spec.bootstrap = recovering().spec.bootstrap;
    assert_eq!(to_read(&scene), Vec::<String>::new());
    assert_ne!(scene.decide().rule, CLAIM_FROM_SNAPSHOT.name);
    // A recovery in place, later.
    scene.stored.system_identifier = None;
    scene.stored.intent.recovery = Some(api::status::RecoveryOrder::default());
    assert_eq!(to_read(&scene), Vec::<String>::new());
    let mut full = recovering();
    let recovery = full
        .spec
        .bootstrap
        .as_mut()
        .and_then(|bootstrap| bootstrap.recovery.as_mut());
    recovery.expect("it is there").backup = Some("20270301T000000Z-F-7f3a".to_owned());
    assert_eq!(to_read(&full), Vec::<String>::new());
    assert_ne!(full.decide().rule, CLAIM_FROM_SNAPSHOT.name);
}
