//! A WAL volume is added to a running database.

use chrono::TimeDelta;
use machine::cluster::model::{Crash, World};
use machine::cluster::{OwnedObject, OwnedState, Volume, WalVolumes};

use crate::{assert_rests, drift, order, ready, uids};

fn added(replicas: u32) -> World {
    let mut world = ready(replicas);
    world.scene.add_wal_volume();
    world
}

fn assert_each_has_its_own(world: &World) {
    for pod in world.scene.pods() {
        assert_eq!(pod.wal_claim, Some(format!("wal-{}", pod.name)));
    }
    let set = world.scene.observed.stateful_set.as_ref().unwrap();
    assert_eq!(set.wal, WalVolumes::Templated);
}

#[test]
fn a_wal_volume_comes_to_every_member_wherever_the_operator_dies() {
    for replicas in [1, 3] {
        for write in 0..30 {
            let crash = if write == 0 { Crash::Never } else { Crash::After(write) };
            let mut world = added(replicas).crashing(crash);
            assert!(world.settle(), "{replicas}, {write}: {:#?}", world.scene.decide());
            assert_rests(&world);
            assert_each_has_its_own(&world);
            let replaced = order(&world, "ReplacePod");
            assert_eq!(replaced.len(), replicas as usize, "each once: {replaced:?}");
            assert_eq!(replaced.last(), Some(&"demo-0"), "the primary's last");
            world.scene.edit(|spec| spec.replicas += 1);
            assert!(world.settle(), "{:#?}", world.scene.decide());
            assert_each_has_its_own(&world);
        }
    }
}

#[test]
fn a_pod_that_is_lost_meanwhile_comes_back() {
    for lost in 0..3 {
        for write in 1..40 {
            let mut world = added(3);
            world.run_until(TimeDelta::minutes(5), |world, _| world.writes.len() >= write);
            if let Some(pod) = world.scene.pods_mut().iter_mut().find(|pod| pod.ordinal == lost) {
                pod.terminating = true;
            }
            assert!(
                world.settle(),
                "{lost}, {write}: {:#?} {:?}",
                world.scene.decide(),
                world.writes
            );
            assert_rests(&world);
            assert_each_has_its_own(&world);
        }
    }
}

#[test]
fn volumes_that_cannot_be_had_cost_no_member() {
    let mut world = added(3);
    world.no_volumes = true;
    let fell = world.run_until(TimeDelta::minutes(5), |world, _| {
        world.scene.pods().iter().any(|pod| !pod.ready)
    });
    assert!(!fell, "{:?}", world.writes);
    let waiting = world.scene.stored.waiting.clone().unwrap();
    assert_eq!(
        (waiting.reason, waiting.object.as_deref()),
        (
            Some(api::status::WaitReason::VolumeProvisioning),
            Some("pvc/wal-demo-2")
        )
    );
    world.no_volumes = false;
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_each_has_its_own(&world);
}

#[test]
fn a_database_wakes_though_its_wal_volumes_cannot_be_had() {
    for asleep in [false, true] {
        let mut world = if asleep { ready(3) } else { added(3) };
        world.no_volumes = true;
        world.run_until(TimeDelta::minutes(1), |_, _| false);
        world.scene.edit(|spec| spec.hibernated = true);
        let down = world.run_until(TimeDelta::minutes(5), |world, _| world.scene.pods().is_empty());
        assert!(down, "{:#?}", world.scene.decide());
        world.run_until(TimeDelta::minutes(1), |_, _| false);
        if asleep {
            world.scene.add_wal_volume();
            world.run_until(TimeDelta::minutes(1), |_, _| false);
        }
        world.scene.edit(|spec| spec.hibernated = false);
        let serves = world.run_until(TimeDelta::minutes(5), |world, _| {
            let pods = world.scene.pods();
            pods.len() == 3 && pods.iter().all(|pod| pod.ready)
        });
        assert!(serves, "{asleep}: {:#?}", world.scene.decide());
        world.no_volumes = false;
        assert!(world.settle(), "{asleep}: {:#?}", world.scene.decide());
        assert_each_has_its_own(&world);
    }
}

#[test]
fn it_can_be_reverted_until_the_first_instance_gets_its_volume() {
    let (mut taken_back, mut refused) = (0, 0);
    for write in 1..30 {
        for no_volumes in [true, false] {
            let mut world = added(3);
            world.no_volumes = no_volumes;
            world.run_until(TimeDelta::seconds(40), |world, _| world.writes.len() >= write);
            let pods = uids(&world);
            // As the API server does, which refuses it then.
            let back = world.scene.stored.memo.wal_volumes.is_empty();
            if back {
                world.scene.take_wal_volume_back();
                taken_back += 1;
            } else {
                world.no_volumes = false;
                refused += 1;
            }
            assert!(world.settle(), "{write}: {:#?}", world.scene.decide());
            assert_rests(&world);
            if !back {
                assert_each_has_its_own(&world);
                continue;
            }
            assert_eq!(uids(&world), pods, "no pod is touched");
            assert_eq!(
                world.scene.observed.stateful_set.as_ref().unwrap().wal,
                WalVolumes::Withheld
            );
            let mut left = world
                .scene
                .claims_mut()
                .iter()
                .filter(|claim| claim.volume == Volume::Wal);
            assert!(left.all(|claim| claim.had_volume), "{write}");
            // Once more: the remaining claims are used.
            world.no_volumes = false;
            world.scene.add_wal_volume();
            assert!(world.settle(), "{write}: {:#?}", world.scene.decide());
            assert_each_has_its_own(&world);
        }
    }
    assert!(taken_back > 20 && refused > 20, "{taken_back} {refused}");
}

#[test]
fn an_image_comes_to_all_instances_while_volumes_cannot_be_had() {
    let image = |world: &mut World| {
        world.scene.revision = world.scene.revision.replace("r1", "r2");
        drift(world);
    };
    for replicas in [1, 3] {
        let mut world = added(replicas);
        world.no_volumes = true;
        world.run_until(TimeDelta::minutes(2), |_, _| false);
        image(&mut world);
        let done = world.run_until(TimeDelta::minutes(10), |world, _| {
            let mut pods = world.scene.pods().iter();
            pods.len() == replicas as usize && pods.all(|pod| pod.revision.as_deref() == Some("r2") && pod.ready)
        });
        assert!(done, "{:#?}", world.scene.decide());
        world.no_volumes = false;
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_each_has_its_own(&world);

        let mut world = added(replicas);
        image(&mut world);
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_each_has_its_own(&world);
        let mut replaced = order(&world, "ReplacePod");
        // A former primary that is still starting is replaced without waiting for its claim.
        if replicas > 1 {
            replaced.retain(|pod| *pod != "demo-0");
            assert_eq!(replaced, ["demo-2", "demo-1"], "both at once");
        } else {
            assert_eq!(replaced, ["demo-0"], "both at once");
        }
    }
}

/// The provisioner gives up on the nodes in this list.
fn give_up(world: &mut World) {
    for claim in world.scene.claims_mut().iter_mut().filter(|claim| !claim.bound) {
        claim.selected_node = None;
    }
}

#[test]
fn claims_that_a_provisioner_gave_up_are_made_again_but_not_too_often() {
    let mut world = added(3);
    world.no_volumes = true;
    for _ in 0..100 {
        world.run_until(TimeDelta::seconds(6), |_, _| false);
        give_up(&mut world);
    }
    let made = order(&world, "MakeWalClaim").len();
    assert!((8..=11).contains(&made), "{made} in ten minutes");
    assert!(order(&world, "ReplacePod").is_empty());
    world.no_volumes = false;
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_each_has_its_own(&world);
}

#[test]
fn volumes_that_were_added_grow_in_place() {
    let mut world = added(3);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    let pods = uids(&world);
    world.scene.wal_bytes.0 *= 2;
    world.scene.generation += 1;
    let set = OwnedState::Drifted {
        uid: "uid-StatefulSet".to_owned(),
        resource_version: "1".to_owned(),
        what: "spec.volumeClaimTemplates".to_owned(),
        immutable: true,
    };
    world.scene.set_child(OwnedObject::StatefulSet, set);
    world.writes.clear();
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_each_has_its_own(&world);
    assert_eq!(uids(&world), pods);
    let mut grown = order(&world, "ResizeClaim");
    grown.sort_unstable();
    assert_eq!(grown, ["wal-demo-0", "wal-demo-1", "wal-demo-2"]);
}
