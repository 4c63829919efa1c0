//! A WAL volume is added to a running database.

use chrono::TimeDelta;
use machine::cluster::WalVolumes;
use machine::cluster::testing::{Crash, World};

use crate::{assert_rests, order, ready};

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
    assert!(
        waiting.what.contains("claim wal-demo-2 to have a volume"),
        "{}",
        waiting.what
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
