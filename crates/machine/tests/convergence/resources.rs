//! Changes of CPU and memory, in place if that is possible.

use chrono::TimeDelta;
use machine::cluster::model::{Crash, Resizes};
use machine::cluster::{Action, StatusChange, StatusWrite};

use crate::{assert_rests, drift, order, ready, resized, uids};

#[test]
fn cpu_and_memory_are_changed_in_place_the_primary_last() {
    for pace in [1, 10] {
        let mut world = ready(3);
        world.pace = pace;
        let before = uids(&world);
        resized(&mut world, "large");
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(order(&world, "ResizePod"), ["demo-2", "demo-1", "demo-0"]);
        assert_eq!(uids(&world), before, "no pod is replaced");
        assert_eq!(world.primaries, ["demo-0"]);
    }
}

/// Changes CPU and memory together with a parameter that needs a restart; returns what was done, in order.
fn resized_with_settings(from: &str, to: &str) -> Vec<String> {
    let mut world = ready(3);
    resized(&mut world, from);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    world.writes.clear();
    world.scene.edit(|spec| {
        spec.postgres
            .parameters
            .insert("shared_buffers".to_owned(), "64MB".to_owned());
    });
    resized(&mut world, to);
    let before = uids(&world);
    let mut done = Vec::new();
    let settled = world.run_until(TimeDelta::minutes(10), |world, decision| {
        match &decision.action {
            Action::ResizePod(pod) => done.push(format!("resize {}", pod.name())),
            Action::WriteStatus(changes) => done.extend(changes.iter().filter_map(|change| match change {
                StatusChange::PermitRestart(permit) => Some(format!("restart {}", permit.pod)),
                _ => None,
            })),
            _ => {}
        }
        let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
        resting && world.scene.due(decision) == StatusWrite::None
    });
    assert!(settled, "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(uids(&world), before, "no pod is replaced");
    done
}

#[test]
fn less_memory_comes_after_the_restart_that_its_settings_need_and_more_before() {
    let [resize, restart] = ["resize", "restart"].map(|what| [2, 1, 0].map(|pod| format!("{what} demo-{pod}")));
    assert_eq!(
        resized_with_settings("a", "b"),
        [resize.clone(), restart.clone()].concat()
    );
    let pairs = restart.into_iter().zip(resize);
    let one_by_one: Vec<_> = pairs.flat_map(|(restart, resize)| [restart, resize]).collect();
    assert_eq!(resized_with_settings("b", "a"), one_by_one);
}

#[test]
fn if_less_memory_is_refused_at_most_one_pod_restarts_before_it_is_replaced() {
    let mut world = ready(3);
    resized(&mut world, "b");
    assert!(world.settle(), "{:#?}", world.scene.decide());
    world.writes.clear();
    world.resizes = Resizes::Refused;
    world.scene.edit(|spec| {
        spec.postgres
            .parameters
            .insert("shared_buffers".to_owned(), "64MB".to_owned());
    });
    resized(&mut world, "a");
    let mut permits = Vec::new();
    let settled = world.run_until(TimeDelta::minutes(10), |world, decision| {
        if let Action::WriteStatus(changes) = &decision.action {
            permits.extend(changes.iter().filter_map(|change| match change {
                StatusChange::PermitRestart(permit) => Some(permit.pod.clone()),
                _ => None,
            }));
        }
        let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
        resting && world.scene.due(decision) == StatusWrite::None
    });
    assert!(settled, "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(permits, ["demo-2"]);
    assert_eq!(order(&world, "ReplacePod"), ["demo-2", "demo-1", "demo-0"]);
}

#[test]
fn pods_that_cannot_be_resized_are_replaced_with_one_switchover() {
    let hopeless = [
        Resizes::Refused,
        Resizes::Infeasible,
        Resizes::Deferred,
        Resizes::Rewritten,
    ];
    for resizes in hopeless {
        let mut world = ready(3);
        world.resizes = resizes;
        resized(&mut world, "large");
        assert!(world.settle(), "{resizes:?}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(order(&world, "ReplacePod"), ["demo-2", "demo-1", "demo-0"]);
        assert_eq!(world.primaries, ["demo-0", "demo-1"], "{resizes:?}");
        let asked = order(&world, "ResizePod").len();
        assert!(asked <= 3, "{resizes:?}: asked {asked} times");
    }
}

#[test]
fn a_resize_ends_the_same_wherever_the_operator_dies_and_nothing_is_resized_twice_for_it() {
    for write in 1..30 {
        let mut world = ready(3).crashing(Crash::After(write));
        let before = uids(&world);
        resized(&mut world, "large");
        assert!(world.settle(), "{write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!((uids(&world), order(&world, "ResizePod").len()), (before, 3), "{write}");
    }
}

#[test]
fn resources_that_are_changed_back_on_the_way_are_changed_back_everywhere() {
    for ticks in 1..60 {
        let mut world = ready(3);
        world.pace = 5;
        let before = uids(&world);
        resized(&mut world, "large");
        world.run_until(TimeDelta::milliseconds(100 * ticks), |_, _| false);
        resized(&mut world, "small");
        world.run_until(TimeDelta::milliseconds(100 * ticks), |_, _| false);
        world.scene.revision = "r1".to_owned();
        drift(&mut world);
        assert!(world.settle(), "{ticks}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert!(
            world.resources().iter().all(|resources| resources.is_empty()),
            "{ticks}"
        );
        assert_eq!((uids(&world), world.primaries.len()), (before, 1), "{ticks}");
    }
}
