//! Changes of the spec: template, settings, number of instances.

use api::Phase;
use api::spec::{PrimaryUpdatePolicy, VolumeFate};
use chrono::TimeDelta;
use machine::cluster::Step;
use machine::cluster::model::{Crash, World};

use crate::{assert_rests, assert_stays, drift, order, ready};

#[test]
fn a_new_template_replaces_standbys_from_the_highest_and_the_primary_last() {
    let mut world = ready(3);
    world.scene.revision = "r2".to_owned();
    drift(&mut world);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    let replaced: Vec<&String> = world
        .writes
        .iter()
        .filter(|write| write.starts_with("ReplacePod"))
        .collect();
    let order: Vec<bool> = ["demo-2", "demo-1", "demo-0"]
        .iter()
        .zip(&replaced)
        .map(|(pod, write)| write.contains(pod))
        .collect();
    assert_eq!(order, [true; 3], "{replaced:?}");
    assert_eq!(
        world.primaries,
        ["demo-0", "demo-1"],
        "one switchover, to an updated instance"
    );
    assert_eq!(replaced.len(), 3);
    assert_eq!(world.initdbs, 1);
}

#[test]
fn volumes_that_grow_only_when_they_are_mounted_get_new_pods_once_wherever_the_operator_dies() {
    for write in 1..16 {
        let mut world = ready(3).crashing(Crash::After(write));
        world.grows_unmounted = true;
        world.scene.data_bytes.0 *= 2;
        world.scene.generation += 1;
        assert!(world.settle(), "{write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(order(&world, "ReplacePod"), ["demo-2", "demo-1", "demo-0"], "{write}");
        assert_eq!(world.primaries, ["demo-0", "demo-1"], "one switchover");
        assert_stays(&mut world);
    }
}

#[test]
fn agents_whose_service_account_was_made_again_are_replaced_wherever_the_operator_dies() {
    for replicas in [1, 2, 3] {
        for write in 1..12 {
            let mut world = ready(replicas).crashing(Crash::After(write));
            world.void_tokens();
            assert!(world.settle(), "{replicas}, {write}: {:#?}", world.scene.decide());
            assert_rests(&world);
            let replaced = order(&world, "ReplacePod");
            assert_eq!(replaced.len(), replicas as usize, "each once: {replaced:?}");
            assert_eq!(replaced.last(), Some(&"demo-0"), "the holder last");
        }
    }
}

#[test]
fn agents_whose_service_account_was_made_again_keep_serving_while_a_new_pod_cannot_run() {
    let mut world = ready(3);
    world.broken.insert("r1".to_owned());
    world.void_tokens();
    let fell = world.run_until(TimeDelta::minutes(5), |world, _| {
        world.scene.pods().iter().filter(|pod| pod.ready).count() < 2
    });
    assert!(!fell, "{:?}", world.writes);
    assert_eq!(order(&world, "ReplacePod"), ["demo-2"]);
    assert_eq!(world.scene.stored.phase, Some(Phase::Failed));
    world.scene.revision = "r2".to_owned();
    drift(&mut world);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(order(&world, "ReplacePod").last(), Some(&"demo-0"), "the holder last");
}

#[test]
fn an_image_that_does_not_run_costs_one_standby_and_a_revert_heals() {
    let mut world = ready(3);
    world.broken.insert("r2".to_owned());
    world.scene.revision = "r2".to_owned();
    drift(&mut world);
    let failed = world.run_until(TimeDelta::minutes(5), |world, _| {
        world.scene.stored.phase == Some(Phase::Failed)
    });
    assert!(failed, "{:#?}", world.scene.decide());
    let serving = world.scene.pods().iter().filter(|pod| pod.ready).count();
    assert_eq!(serving, 2, "at most one pod is lost");
    world.scene.revision = "r1".to_owned();
    drift(&mut world);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
}

#[test]
fn a_template_that_does_not_run_costs_one_member_whenever_the_primary_is_lost() {
    let spoils: [fn(&mut World); 2] = [
        |world| {
            world.broken.insert("r2".to_owned());
        },
        |world| world.scene.cordon(2, true),
    ];
    let spoiled = |spoil: fn(&mut World)| {
        let mut world = ready(3);
        spoil(&mut world);
        world.scene.revision = "r2".to_owned();
        drift(&mut world);
        world
    };
    let minutes = TimeDelta::minutes(5);
    for spoil in spoils {
        let mut reference = spoiled(spoil);
        reference.run_until(minutes, |_, _| false);
        for write in 0..=reference.writes.len() {
            let mut world = spoiled(spoil);
            world.run_until(minutes, |world, _| world.writes.len() >= write);
            world.lose_primary();
            world.run_until(minutes, |_, _| false);
            let serving = world.scene.pods().iter().filter(|pod| pod.ready).count();
            assert_eq!(serving, 2, "after {write}: {:?}", world.writes);
            world.scene.revision = "r1".to_owned();
            world.scene.cordon(2, false);
            drift(&mut world);
            assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
            assert_rests(&world);
        }
    }
}

#[test]
fn a_server_that_does_not_stay_up_costs_one_standby_wherever_the_operator_dies() {
    for write in 0..12 {
        let mut world = ready(3).crashing(if write == 0 { Crash::Never } else { Crash::After(write) });
        world.dying.insert("r2".to_owned());
        world.scene.revision = "r2".to_owned();
        drift(&mut world);
        world.run_until(TimeDelta::minutes(5), |_, _| false);
        assert_eq!(order(&world, "ReplacePod"), ["demo-2"], "dead after {write}");
        assert_eq!(world.primaries, ["demo-0"]);
        assert_eq!(world.scene.pods().iter().filter(|pod| pod.ready).count(), 2);
        world.scene.revision = "r1".to_owned();
        drift(&mut world);
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_rests(&world);
    }
}

#[test]
fn settings_that_need_a_restart_reach_every_member_one_at_a_time() {
    let mut world = ready(3);
    world.scene.edit(|spec| {
        spec.postgres
            .parameters
            .insert("shared_buffers".to_owned(), "256MB".to_owned());
    });
    let mut permits = Vec::new();
    let settled = world.run_until(TimeDelta::minutes(5), |world, decision| {
        if let Some(permit) = &world.scene.stored.intent.restart
            && permits.last() != Some(&permit.pod)
        {
            permits.push(permit.pod.clone());
        }
        decision.phase == Phase::Ready
    });
    assert!(settled, "{:#?}", world.scene.decide());
    assert_eq!(permits, ["demo-2", "demo-1", "demo-0"]);
    assert!(world.settle());
    assert_rests(&world);
    assert_eq!(world.scene.stored.intent.restart, None);
}

#[test]
fn three_to_five_to_three_leaves_what_the_policy_says() {
    for (fate, left) in [(VolumeFate::Retain, 5), (VolumeFate::Delete, 3)] {
        let mut world = ready(3);
        world
            .scene
            .edit(|spec| (spec.replicas, spec.storage.retention_policy.when_scaled) = (5, fate));
        assert!(world.settle());
        assert_eq!(world.scene.stored.ready, "5/5");
        world.scene.scale(3);
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.scene.claims_mut().len(), left);
        assert_eq!(world.scene.stored.members.len(), 3);
    }
}

#[test]
fn a_scale_down_moves_the_primary_first() {
    let mut world = ready(5);
    world.scene.edit(|spec| spec.primary.prefer = Some("demo-4".to_owned()));
    assert!(world.settle());
    let mut least = 5;
    world
        .scene
        .edit(|spec| (spec.primary.prefer, spec.replicas) = (None, 3));
    let done = world.run_until(TimeDelta::minutes(5), |world, decision| {
        let lease = world.scene.observed.lease.get().and_then(Option::as_ref).unwrap();
        let pods = world.scene.pods().iter().filter(|pod| !pod.terminating).count();
        if pods < least {
            least = pods;
            assert!(
                lease.rule.names.len() <= 2,
                "members leave the rule before they are removed: {:?}",
                lease.rule
            );
        }
        decision.phase == Phase::Ready
    });
    assert!(done, "{:#?}", world.scene.decide());
    assert!(world.settle());
    assert_rests(&world);
    assert_eq!(world.primaries, ["demo-0", "demo-4", "demo-0"]);
}

#[test]
fn a_supervised_change_waits_for_its_user() {
    let waits = |world: &mut World| {
        let stopped = world.run_until(TimeDelta::minutes(10), |world, decision| {
            decision.step == Some(Step::Supervised) && world.scene.stored.step.as_deref() == Some("Supervised")
        });
        assert!(stopped, "{:#?}", world.scene.decide());
        assert_stays(world);
    };
    for automatic in [false, true] {
        let mut world = ready(3);
        world
            .scene
            .edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Supervised);
        world.scene.revision = "r2".to_owned();
        drift(&mut world);
        let before = world.scene.pod_mut(0).uid.clone();
        waits(&mut world);
        assert_eq!(world.scene.pod_mut(0).uid, before);
        if automatic {
            world
                .scene
                .edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Automatic);
        } else {
            world.scene.ask_switchover("demo-2", "1");
        }
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_rests(&world);
        assert_ne!(world.scene.pod_mut(0).uid, before);
    }
    let mut world = ready(3);
    world.scene.edit(|spec| {
        spec.primary.update_policy = PrimaryUpdatePolicy::Supervised;
        spec.postgres
            .parameters
            .insert("shared_buffers".to_owned(), "1GB".to_owned());
    });
    waits(&mut world);
    world.scene.ask_switchover("demo-1", "1");
    let asked_again = world.run_until(TimeDelta::minutes(10), |_, decision| decision.phase == Phase::Ready);
    assert!(asked_again, "{:#?}", world.scene.decide());
}
