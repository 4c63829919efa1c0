use super::super::model::Scene;
use super::super::{Known, StorageClass};
use super::*;
use crate::protocol::MemberState;

/// The WAL volumes of these are full, and the primary, `demo-0`, does not serve.
fn without_room(ordinals: &[u32]) -> Scene {
    let mut scene = Scene::with_wal(3);
    for ordinal in ordinals {
        scene.report_mut(*ordinal).full = [Volume::Wal].into();
    }
    scene.report_mut(0).state = MemberState::Waiting;
    scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
    scene
}

const RAISE: &str = "the user, by raising spec.storage.wal.size (now ";

#[test]
fn the_wait_for_a_primary_names_full_volumes_and_the_field_to_raise() {
    let (what, who) = without_room(&[0, 1, 2]).waiting();
    assert_eq!(
        what,
        "room on volumes (reported full: wal-demo-0, wal-demo-1, wal-demo-2), and then a primary to serve: demo-0 holds the Lease and does not serve yet"
    );
    assert!(who.starts_with(RAISE), "{who}");
    assert!(!who.contains("accept-loss"), "nothing has to be given up: {who}");
    // Nobody holds the Lease: what all reported last is what is known.
    let mut released = without_room(&[0, 1, 2]);
    released.lease_mut().unwrap().holder = None;
    let (what, who) = released.waiting();
    assert!(
        what.starts_with("room on volumes (reported full: wal-demo-0,") && who.starts_with(RAISE),
        "{what}: {who}"
    );
    // Somebody has room: that one can be elected.
    let mut others = without_room(&[0, 1]);
    others.lease_mut().unwrap().holder = None;
    assert_eq!(others.awaits().0, api::status::WaitReason::PrimaryElection);
    let (what, _) = without_room(&[0]).waiting();
    assert!(
        what.contains("reported full: wal-demo-0)"),
        "it is what keeps the holder from serving: {what}"
    );
}

#[test]
fn what_a_silent_member_said_of_its_room_does_not_count() {
    let mut scene = without_room(&[0, 1, 2]);
    scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned());
    assert!(scene.waiting().0.contains("(reported full: wal-demo-0, wal-demo-1)"));
}

#[test]
fn who_can_end_it_depends_on_what_was_done_already() {
    let mut scene = without_room(&[0, 1, 2]);
    for claim in scene.claims_mut() {
        claim.capacity = Some(claim.requested);
    }
    scene.wal_bytes.0 *= 2;
    let wal_bytes = scene.wal_bytes;
    for claim in scene
        .claims_mut()
        .iter_mut()
        .filter(|claim| claim.volume == Volume::Wal)
    {
        claim.requested = wal_bytes;
    }
    assert!(scene.waiting().1.starts_with("the driver of their StorageClass"));
    let mut fixed = without_room(&[0, 1, 2]);
    fixed.observed.wal_storage_class = Known::Known(StorageClass::Present { expandable: false });
    assert!(fixed.waiting().1.starts_with("the cluster's administrator"));
}

#[test]
fn a_standby_that_cannot_stream_for_lack_of_room_is_named_with_the_field_to_raise() {
    let mut scene = Scene::ready(3);
    let report = scene.report_mut(2);
    (report.full, report.state) = ([Volume::Data].into(), MemberState::CatchingUp);
    report.fault = Some("its data volume is full".to_owned());
    let (what, who) = scene.waiting();
    assert_eq!(what, "demo-2 to stream from the primary");
    assert!(
        who.starts_with("reported full: data-demo-2; the user, by raising spec.storage.data.size (now "),
        "{who}"
    );
}

#[test]
fn a_full_volume_degrades_a_database_that_serves() {
    let condition = |scene: &Scene| {
        let status = scene.status(&scene.decide());
        let found = status
            .conditions
            .into_iter()
            .find(|found| found.type_ == "Degraded")
            .unwrap();
        (found.status, found.reason, found.message)
    };
    let mut scene = Scene::with_wal(3);
    assert_eq!(condition(&scene).0, "False");
    scene.report_mut(0).full = [Volume::Wal].into();
    let (status, reason, message) = condition(&scene);
    assert_eq!((status.as_str(), reason.as_str()), ("True", "VolumeFull"));
    assert!(
        message.starts_with("reported full: wal-demo-0; ") && message.contains(RAISE),
        "{message}"
    );
}
