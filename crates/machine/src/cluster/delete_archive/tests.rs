use api::spec::FinalBackup;
use serde_json::json;

use super::super::action::{Action, StatusChange};
use super::super::model::Scene;
use super::*;
use crate::archive::ArchiveRecord;

fn deleting() -> Scene {
    let mut scene = Scene::ready(3);
    let backup = json!({"store": {"s3": {"bucket": "wal"}}, "onDelete": {"finalBackup": "None", "data": "Delete"}});
    scene.spec.backup = Some(serde_json::from_value(backup).unwrap());
    scene.store();
    scene.deleting = true;
    scene
}

fn waits(scene: &mut Scene) -> (WaitReason, String, String) {
    match scene.store().action {
        Action::Wait(wait) => (wait.reason, wait.what.to_string(), wait.who_can_end_it.to_string()),
        other => panic!("{other:?}"),
    }
}

fn tell(scene: &mut Scene, change: impl FnOnce(&mut ArchiveRecord)) {
    change(scene.lease_mut().expect("a Lease").archive.get_or_insert_default());
}

fn stops(scene: &Scene) -> bool {
    scene.decide().action == Action::WriteStatus(vec![StatusChange::RequestStop])
}

#[test]
fn nothing_is_deleted_before_the_user_confirms() {
    let mut scene = deleting();
    let (reason, _, who) = waits(&mut scene);
    assert_eq!(reason, WaitReason::ArchiveDeletionConfirmation);
    let command = format!(
        "{ANNOTATION_DELETE_ARCHIVE}={}",
        scene.with_facts(|facts| facts.wanted.uid.to_owned())
    );
    assert!(who.contains(&command) && who.contains("Retain"), "{who}");
    assert!(!scene.stored.intent.delete_archive);
    scene.spec.backup.as_mut().unwrap().on_delete.as_mut().unwrap().data = ArchiveFate::Retain;
    assert!(stops(&scene));
}

#[test]
fn postgresql_stops_once_all_is_deleted() {
    let mut scene = deleting();
    scene.deletes_archive = true;
    assert_eq!(waits(&mut scene).0, WaitReason::ArchiveDeletion);
    assert!(scene.stored.intent.delete_archive);
    tell(&mut scene, |archive| {
        archive.fault = Some("the store denies access".to_owned())
    });
    let (_, what, _) = waits(&mut scene);
    assert!(what.contains("denies access"), "{what}");
    tell(&mut scene, |archive| (archive.fault, archive.deleted) = (None, true));
    assert_eq!(
        scene.store().action,
        Action::WriteStatus(vec![StatusChange::DeletionDone(
            DeletionStep::Archive,
            "all backups and WAL in the store are deleted"
        )])
    );
    assert!(stops(&scene));
    scene.store();
    assert!(scene.stored.intent.delete_archive, "nothing is archived after that");
}

#[test]
fn a_user_who_changes_the_mind_keeps_what_is_left_and_nothing_more_is_archived() {
    let mut scene = deleting();
    scene.deletes_archive = true;
    waits(&mut scene);
    scene.spec.backup.as_mut().unwrap().on_delete.as_mut().unwrap().data = ArchiveFate::Retain;
    assert!(stops(&scene));
    scene.store();
    assert!(scene.stored.intent.delete_archive);
}

#[test]
fn without_an_instance_that_could_delete_the_user_decides() {
    let mut scene = deleting();
    scene.deletes_archive = true;
    scene.stored.intent.stop = true;
    assert_eq!(waits(&mut scene).0, WaitReason::ArchiveDeletionConfirmation);
}

#[test]
fn a_last_backup_comes_first() {
    let mut scene = deleting();
    scene.deletes_archive = true;
    scene
        .spec
        .backup
        .as_mut()
        .unwrap()
        .on_delete
        .as_mut()
        .unwrap()
        .final_backup = FinalBackup::Required;
    assert_eq!(scene.decide().rule, "final-backup");
}

#[test]
fn nothing_is_deleted_while_the_namespace_goes_or_cannot_be_read() {
    let mut scene = deleting();
    scene.deletes_archive = true;
    scene.observed.namespace_unread = true;
    assert!(matches!(scene.store().action, Action::Wait(_)));
    assert!(!scene.stored.intent.delete_archive);
    scene.observed.namespace_unread = false;
    scene.store();
    assert!(scene.stored.intent.delete_archive);
    scene.observed.namespace_terminating = true;
    let decision = scene.decide();
    assert!(!scene.status(&decision).intent.delete_archive);
}
