//! Nodes are cordoned and drained.

use api::Phase;
use chrono::TimeDelta;

use crate::{assert_rests, assert_stays, ready};

#[test]
fn each_node_can_be_drained_without_help() {
    for replicas in [1, 2, 3, 5] {
        let mut world = ready(replicas);
        for node in (0..replicas).chain([0]) {
            world.scene.cordon(node, true);
            let pod = world.scene.pod_mut(node).uid.clone();
            let gone = world.run_until(TimeDelta::minutes(5), |_, _| false)
                || (0..3_000).any(|_| {
                    world.evict(node);
                    world.run_until(TimeDelta::milliseconds(200), |_, _| false);
                    world.scene.pods().iter().all(|found| found.uid != pod)
                });
            assert!(gone, "node {node} of {replicas}: {:#?}", world.scene.decide());
            let serves = world
                .scene
                .pods()
                .iter()
                .any(|pod| pod.role.as_deref() == Some("primary") && pod.ready);
            assert_eq!(serves, replicas > 1, "it was moved before it was evicted");
            world.scene.cordon(node, false);
            assert!(world.settle(), "{:#?}", world.scene.decide());
            assert_rests(&world);
        }
        assert!(world.primaries.len() <= replicas as usize + 2, "{:?}", world.primaries);
    }
}

#[test]
fn a_primary_is_not_evicted_before_it_has_moved() {
    let mut world = ready(3);
    world.stubborn = true;
    world.scene.cordon(0, true);
    for _ in 0..100 {
        assert!(!world.evict(0), "its agent does not hand over");
        world.run_until(TimeDelta::seconds(1), |_, _| false);
    }
    assert!(world.evict(2));
    world.run_until(TimeDelta::milliseconds(300), |_, _| false);
    assert_eq!(world.primaries, ["demo-0"]);
}

#[test]
fn if_all_nodes_are_cordoned_nothing_moves() {
    let mut world = ready(3);
    for node in 0..3 {
        world.scene.cordon(node, true);
    }
    assert_stays(&mut world);
    let decision = world.scene.decide();
    assert_eq!((decision.rule, decision.phase), ("await-refuge", Phase::Ready));
    assert_eq!(world.scene.status(&decision), world.scene.stored);
    world.scene.cordon(2, false);
    assert!(world.settle());
    assert_stays(&mut world);
    assert_eq!(world.primaries, ["demo-0", "demo-2"]);
}

#[test]
fn a_preferred_primary_gets_its_place_back_when_its_node_does() {
    let mut world = ready(3);
    world.scene.edit(|spec| spec.primary.prefer = Some("demo-0".to_owned()));
    world.scene.cordon(0, true);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_stays(&mut world);
    world.scene.cordon(0, false);
    assert!(world.settle());
    assert_eq!(world.primaries, ["demo-0", "demo-1", "demo-0"]);
}
