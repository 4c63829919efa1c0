//! The creation of a database.

use api::Phase;
use chrono::TimeDelta;
use machine::cluster::model::{Crash, World};

use crate::{assert_rests, drift, timeless};

/// The operator's writes for a database of three, including events: what the measured goal allows.
const CREATION_BUDGET: usize = 25;

#[test]
fn a_creation_keeps_to_its_budget() {
    // For each duration of the steps of pods and agents: nothing, a second, or ten.
    for (replicas, pace) in [(1, 1), (1, 100), (2, 10), (3, 1), (3, 10), (3, 100)] {
        let mut world = World::new(replicas);
        world.pace = pace;
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_rests(&world);
        assert!(
            world.writes.len() <= CREATION_BUDGET,
            "{} writes: {:#?}",
            world.writes.len(),
            world.writes
        );
        assert_eq!(world.initdbs, 1);
        let status = &world.scene.stored;
        assert_eq!(status.ready, format!("{replicas}/{replicas}"));
        assert_eq!(status.current_primary.as_deref(), Some("demo-0"));
        assert!(
            status
                .history
                .iter()
                .map(|change| change.to)
                .eq([Phase::Creating, Phase::Ready]),
            "{status:#?}"
        );
    }
}

#[test]
fn an_operator_that_dies_after_any_write_of_a_creation_changes_nothing() {
    let mut reference = World::new(3);
    assert!(reference.settle());
    for write in 1..=reference.writes.len() {
        let mut world = World::new(3).crashing(Crash::After(write));
        assert!(world.settle(), "dead after {write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.initdbs, 1, "dead after {write}");
        assert_eq!(
            timeless(&world.scene.stored),
            timeless(&reference.scene.stored),
            "dead after {write}"
        );
        assert_eq!(world.scene.observed.children, reference.scene.observed.children);
        let uids = |world: &World| world.scene.pods().iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>();
        assert_eq!(uids(&world), uids(&reference), "no pod is made twice");
    }
}

#[test]
fn an_image_that_does_not_run_at_creation_fails_and_a_fix_heals() {
    let mut world = World::new(3);
    world.broken.insert("r1".to_owned());
    let failed = world.run_until(TimeDelta::minutes(5), |world, _| {
        world.scene.stored.phase == Some(Phase::Failed)
    });
    assert!(failed, "{:#?}", world.scene.decide());
    world.scene.revision = "r2".to_owned();
    drift(&mut world);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(world.initdbs, 1);
}
