//! The loss or the deletion of a database, or of one of its objects.

use api::operation::{Action, RecreateLease};
use api::spec::VolumeFate;
use api::{ClusteredDatabaseStatus, Phase};
use chrono::TimeDelta;
use machine::cluster::model::{Crash, World};
use machine::cluster::{Known, OwnedObject, OwnedState};
use machine::protocol::{Epoch, LeaseRecord};

use crate::{assert_rests, ready, timeless};

#[test]
fn an_operator_that_dies_during_a_deletion_goes_on_with_it() {
    let delete = |crash: Crash| {
        let mut world = ready(3).crashing(crash);
        world
            .scene
            .edit(|spec| spec.storage.retention_policy.when_deleted = VolumeFate::Delete);
        world.scene.deleting = true;
        assert!(
            world.run_until(TimeDelta::minutes(10), |_, _| false),
            "{:#?}",
            world.scene.decide()
        );
        world
    };
    let reference = delete(Crash::Never);
    assert!(reference.scene.pods().is_empty());
    for write in 1..reference.writes.len() {
        let world = delete(Crash::After(write));
        assert!(world.gone && world.scene.pods().is_empty());
        assert_eq!(
            world.scene.observed.claims,
            Known::Known(Vec::new()),
            "dead after {write}"
        );
    }
}

#[test]
fn a_deletion_in_any_state_ends_and_keeps_what_must_be_kept() {
    let mut reference = World::new(3);
    assert!(reference.settle());
    for write in 0..reference.writes.len() {
        let mut world = World::new(3);
        world.run_until(TimeDelta::minutes(1), |world, _| world.writes.len() >= write);
        let claims = world.scene.claims_mut().clone();
        world.scene.deleting = true;
        if !world.scene.finalizer {
            continue;
        }
        assert!(
            world.run_until(TimeDelta::minutes(10), |_, _| false),
            "{:#?}",
            world.scene.decide()
        );
        assert!(world.scene.pods().is_empty());
        for claim in claims {
            assert!(
                world.scene.claims_mut().contains(&claim),
                "{} had to be kept",
                claim.name
            );
        }
    }
}

#[test]
fn a_deleted_stateful_set_comes_back_without_touching_a_pod() {
    let mut world = ready(3);
    let pods = world.scene.pods().to_vec();
    world.scene.set_child(OwnedObject::StatefulSet, OwnedState::Missing);
    world.scene.observed.stateful_set = None;
    assert_eq!(world.scene.decide().phase, Phase::Updating);
    assert!(world.settle());
    assert_eq!(world.scene.pods(), pods);
    assert_rests(&world);
}

#[test]
fn a_lost_volume_of_a_standby_is_cloned_again() {
    let mut world = ready(3);
    let before = world.scene.stored.members["demo-2"].clone();
    world.scene.claims_mut().retain(|claim| claim.ordinal != 2);
    world.scene.pod_mut(2).terminating = true;
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    let after = &world.scene.stored.members["demo-2"];
    assert_ne!(
        (&after.member_id, &after.certificate),
        (&before.member_id, &before.certificate)
    );
}

#[test]
fn a_lost_lease_comes_back_only_by_the_users_order_and_only_for_the_last_primary() {
    let mut world = ready(3);
    world.lose_primary();
    assert!(world.settle());
    world.scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    world.scene.observed.lease = Known::Known(None);
    world.scene.pod_mut(1).ready = false;
    assert!(!world.settle());
    assert_eq!(world.scene.stored.phase, Some(Phase::Failed));
    world.scene.ask_switchover("demo-1", "another");
    assert!(!world.settle());
    world.scene.ask(Action::RecreateLease(RecreateLease {}));
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(
        (world.scene.stored.current_primary.as_deref(), world.initdbs),
        (Some("demo-1"), 1)
    );
}

#[test]
fn a_lost_lease_is_made_empty_for_a_serving_primary_and_only_that_one_writes_it() {
    let mut world = ready(3);
    let before = world.scene.lease_mut().expect("a Lease").clone();
    let epoch = world.scene.stored.epoch;
    world.scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    world.scene.observed.lease = Known::Known(None);
    assert!(!world.settle(), "its holder is waited for");
    let empty = world.scene.lease_mut().expect("an empty Lease");
    assert!(empty.is_empty(), "{empty:?}");
    let stored = &world.scene.stored;
    assert_eq!((stored.epoch, stored.phase == Some(Phase::Failed)), (epoch, false));
    // The holder has proven that it still holds it.
    let again = LeaseRecord {
        epoch: Epoch(before.epoch.0 + 1),
        ..before
    };
    world.scene.observed.lease = Known::Known(Some(again));
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(world.scene.stored.epoch, epoch.map(|epoch| epoch + 1));
    assert_eq!(world.initdbs, 1);
}

#[test]
fn a_wiped_status_comes_back() {
    let mut world = ready(3);
    let before = timeless(&world.scene.stored);
    world.scene.stored = ClusteredDatabaseStatus::default();
    assert_eq!(world.scene.decide().phase, Phase::Ready);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_eq!(world.initdbs, 1);
    let mut after = timeless(&world.scene.stored);
    assert_eq!(
        after.intent.bootstrap.take(),
        None,
        "no instance may make a second database"
    );
    for (pod, member) in &mut after.members {
        // The certificate is signed again.
        member.certificate.clone_from(&before.members[pod].certificate);
    }
    let mut before = before;
    before.intent.bootstrap = None;
    assert_eq!(after, before);
}
