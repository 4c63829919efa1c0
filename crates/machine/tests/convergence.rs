//! In an abstract cluster that carries decisions out, a database becomes ready, changes and goes, and wherever the
//! operator dies on the way, the end is the same.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use api::ClusteredDatabaseStatus;
use api::Phase;
use api::spec::{PrimaryUpdates, VolumeFate};
use api::status::{DurabilityMode, MemberRole, RequestOutcome};
use chrono::TimeDelta;
use machine::cluster::testing::{Crash, Resizes, World};
use machine::cluster::{Action, ChildKind, ChildState, Due, Known, StatusChange, Step};
use proptest::prelude::*;

/// The operator's writes for a database of three, events included: what the measured goal allows.
const CREATION_BUDGET: usize = 25;

fn ready(replicas: u32) -> World {
    let mut world = World::new(replicas);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    world.writes.clear();
    world
}

/// A status without times and texts that depend on when it was written.
fn timeless(status: &ClusteredDatabaseStatus) -> ClusteredDatabaseStatus {
    let mut status = status.clone();
    status.memo.phase_since = None;
    status.history.clear();
    for condition in &mut status.conditions {
        condition.last_transition_time.0 = Default::default();
    }
    status
}

/// Nothing is left to do or to write.
fn assert_rests(world: &World) {
    let decision = world.scene.decide();
    assert!(
        matches!(&decision.action, Action::Wait(waiting) if waiting.resting),
        "{decision:#?}"
    );
    assert_eq!(decision.phase, Phase::Ready);
    assert_eq!(world.scene.status(&decision), world.scene.stored);
}

#[test]
fn a_creation_keeps_to_its_budget() {
    // However long pods and agents take for each of their moves: nothing, a second, or ten.
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
fn an_operator_that_dies_during_a_deletion_goes_on_with_it() {
    let delete = |crash: Crash| {
        let mut world = ready(3).crashing(crash);
        world
            .scene
            .edit(|spec| spec.volume_policy.on_delete = VolumeFate::Delete);
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
fn a_deletion_in_any_state_ends_and_keeps_what_is_to_be_kept() {
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
                "{} was to be kept",
                claim.name
            );
        }
    }
}

#[test]
fn a_deleted_stateful_set_comes_back_without_touching_a_pod() {
    let mut world = ready(3);
    let pods = world.scene.pods().to_vec();
    world.scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
    world.scene.observed.stateful_set = None;
    assert_eq!(world.scene.decide().phase, Phase::Updating);
    assert!(world.settle());
    assert_eq!(world.scene.pods(), pods);
    assert_rests(&world);
}

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
        "one switchover, to one that is up to date"
    );
    assert_eq!(replaced.len(), 3);
    assert_eq!(world.initdbs, 1);
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

/// The template changes: the operator's comparison finds the StatefulSet drifted.
fn drift(world: &mut World) {
    let set = ChildState::Drifted {
        uid: "uid-StatefulSet".to_owned(),
        resource_version: "1".to_owned(),
        what: "spec.template".to_owned(),
        immutable: false,
    };
    world.scene.generation += 1;
    world.scene.set_child(ChildKind::StatefulSet, set);
}

/// The spec asks for other cpu and memory.
fn resized(world: &mut World, resources: &str) {
    world.scene.revision = format!("r1+{resources}");
    drift(world);
}

fn uids(world: &World) -> Vec<String> {
    world.scene.pods().iter().map(|pod| pod.uid.clone()).collect()
}

fn order<'a>(world: &'a World, action: &str) -> Vec<&'a str> {
    let writes = world.writes.iter().filter(|write| write.starts_with(action));
    writes.filter_map(|write| write.split('"').nth(1)).collect()
}

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

/// Changes cpu and memory together with a parameter that needs a restart; what was done, in order.
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
        resting && world.scene.due(decision) == Due::Never
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
fn what_cannot_be_resized_is_replaced_with_one_switchover() {
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
    assert_eq!(serving, 2, "one pod is sacrificed at most");
    world.scene.revision = "r1".to_owned();
    drift(&mut world);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
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
            .edit(|spec| (spec.replicas, spec.volume_policy.on_scale_down) = (5, fate));
        assert!(world.settle());
        assert_eq!(world.scene.stored.ready, "5/5");
        world.scene.edit(|spec| spec.replicas = 3);
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.scene.claims_mut().len(), left);
        assert_eq!(world.scene.stored.members.len(), 3);
    }
}

#[test]
fn a_primary_pod_that_is_deleted_hands_over_and_comes_back_as_a_standby() {
    let mut world = ready(3);
    world.scene.pod_mut(0).terminating = true;
    world.scene.pod_mut(0).ready = false;
    let decision = world.scene.decide();
    assert_eq!(
        (decision.phase, decision.step),
        (Phase::SwitchingOver, Some(Step::Primary))
    );
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!((world.scene.stored.epoch, world.initdbs), (Some(2), 1));
    assert_eq!(world.primaries, ["demo-0", "demo-1"]);
    assert_eq!(world.scene.stored.current_primary.as_deref(), Some("demo-1"));
    assert_roles(&world, "demo-1");
    let mut phases = world.scene.stored.history.iter().map(|change| change.to);
    assert_eq!(phases.next_back(), Some(Phase::Ready));
    assert!(phases.clone().any(|phase| phase == Phase::SwitchingOver));
    assert!(phases.all(|phase| phase != Phase::FailingOver), "it was planned");
}

#[test]
fn a_lost_primary_fails_over() {
    let mut world = ready(3);
    world.lose_primary();
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(world.primaries, ["demo-0", "demo-1"]);
    let mut phases = world.scene.stored.history.iter().map(|change| change.to);
    assert!(phases.any(|phase| phase == Phase::FailingOver));
}

#[test]
fn one_instance_comes_back_as_primary() {
    let mut world = ready(1);
    world.scene.pod_mut(0).terminating = true;
    world.scene.pod_mut(0).ready = false;
    assert_eq!(world.scene.decide().phase, Phase::Updating);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!((world.scene.stored.epoch, world.initdbs), (Some(2), 1));
}

/// The labels follow the Lease, and so do the roles in the status.
fn assert_roles(world: &World, primary: &str) {
    for pod in world.scene.pods() {
        let role = if pod.name == primary { "primary" } else { "replica" };
        assert_eq!(pod.role.as_deref(), Some(role), "{}", pod.name);
        let stored = world.scene.stored.members[&pod.name].role;
        assert_eq!(stored == Some(MemberRole::Primary), pod.name == primary);
    }
}

#[test]
fn agents_that_fail_over_at_any_time_change_no_outcome() {
    let mut reference = World::new(3);
    reference.scene.revision = "r1".to_owned();
    assert!(reference.settle());
    for write in 0..reference.writes.len() {
        let mut world = World::new(3);
        world.run_until(TimeDelta::minutes(1), |world, _| world.writes.len() >= write);
        world.lose_primary();
        assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.initdbs, 1, "after {write}");
        let primary = world.scene.stored.current_primary.clone().unwrap();
        assert_roles(&world, &primary);
    }
}

#[test]
fn a_rollout_goes_on_whoever_becomes_primary_on_the_way() {
    let rollout = || {
        let mut world = ready(3);
        world.scene.revision = "r2".to_owned();
        drift(&mut world);
        world
    };
    let mut reference = rollout();
    assert!(reference.settle());
    for write in 0..reference.writes.len() {
        let mut world = rollout();
        world.run_until(TimeDelta::minutes(1), |world, _| world.writes.len() >= write);
        world.lose_primary();
        assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.scene.stored.intent.primary, None);
    }
}

#[test]
fn an_operator_that_dies_during_a_switchover_goes_on_with_it() {
    let prefer = |crash: Crash| {
        let mut world = ready(3);
        world.primaries.clear();
        world.scene.edit(|spec| spec.primary.prefer = Some("demo-2".to_owned()));
        let mut world = world.crashing(crash);
        assert!(world.settle(), "{crash:?}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.primaries.last().map(String::as_str), Some("demo-2"), "{crash:?}");
        assert!(world.primaries.len() <= 2, "{crash:?}: {:?}", world.primaries);
        world
    };
    let reference = prefer(Crash::Never);
    for write in 1..=reference.writes.len() {
        prefer(Crash::After(write));
    }
}

#[test]
fn a_preferred_primary_gets_its_place_back_after_a_failover() {
    let mut world = ready(3);
    world.scene.edit(|spec| spec.primary.prefer = Some("demo-0".to_owned()));
    assert!(world.settle());
    world.scene.pod_mut(0).terminating = true;
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(world.primaries, ["demo-0", "demo-1", "demo-0"]);
}

#[test]
fn agents_that_do_not_hand_over_are_asked_again_and_nothing_is_taken_down() {
    let mut world = ready(3);
    world.stubborn = true;
    world.scene.revision = "r2".to_owned();
    drift(&mut world);
    let before = world.scene.pod_mut(0).uid.clone();
    let tried = world.run_until(TimeDelta::minutes(30), |world, _| {
        world
            .scene
            .stored
            .memo
            .switchover
            .as_ref()
            .is_some_and(|memo| memo.attempts >= 3)
    });
    assert!(tried, "{:#?}", world.scene.decide());
    assert_eq!(world.scene.pod_mut(0).uid, before, "the primary serves on");
    assert_eq!(world.primaries, ["demo-0"]);
    assert!(world.writes.len() < 60, "{} writes", world.writes.len());
    world.stubborn = false;
    assert!(
        world.run_until(TimeDelta::minutes(30), |world, _| world.scene.stored.phase
            == Some(Phase::Ready))
    );
    assert!(world.settle());
    assert_rests(&world);
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
                "members leave the rule before they go: {:?}",
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

/// Nothing moves any more, for five minutes.
fn assert_stays(world: &mut World) {
    let primaries = world.primaries.clone();
    world.run_until(TimeDelta::minutes(5), |_, _| false);
    assert_eq!(world.primaries, primaries);
}

#[test]
fn each_node_can_be_drained_without_anybodys_help() {
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
fn where_all_nodes_are_cordoned_nothing_moves() {
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

#[test]
fn a_request_is_carried_out_once_wherever_the_operator_dies() {
    let request = |crash: Crash| {
        let mut world = ready(3);
        world.primaries.clear();
        world.scene.switchover = Some("demo-2/1".to_owned());
        let mut world = world.crashing(crash);
        assert!(world.settle(), "{crash:?}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.primaries.last().map(String::as_str), Some("demo-2"), "{crash:?}");
        assert!(world.primaries.len() <= 2, "{crash:?}: {:?}", world.primaries);
        let outcome = world
            .scene
            .stored
            .memo
            .request
            .as_ref()
            .and_then(|request| request.outcome);
        assert_eq!(outcome, Some(RequestOutcome::Done));
        world
    };
    let mut reference = request(Crash::Never);
    for write in 1..=reference.writes.len() {
        request(Crash::After(write));
    }
    reference.lose_primary();
    assert!(reference.settle());
    assert_stays(&mut reference);
    assert_ne!(
        reference.scene.stored.current_primary.as_deref(),
        Some("demo-2"),
        "asked for once"
    );
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
            .edit(|spec| spec.primary.updates = PrimaryUpdates::Supervised);
        world.scene.revision = "r2".to_owned();
        drift(&mut world);
        let before = world.scene.pod_mut(0).uid.clone();
        waits(&mut world);
        assert_eq!(world.scene.pod_mut(0).uid, before);
        if automatic {
            world
                .scene
                .edit(|spec| spec.primary.updates = PrimaryUpdates::Automatic);
        } else {
            world.scene.switchover = Some("demo-2/1".to_owned());
        }
        assert!(world.settle(), "{:#?}", world.scene.decide());
        assert_rests(&world);
        assert_ne!(world.scene.pod_mut(0).uid, before);
    }
    let mut world = ready(3);
    world.scene.edit(|spec| {
        spec.primary.updates = PrimaryUpdates::Supervised;
        spec.postgres
            .parameters
            .insert("shared_buffers".to_owned(), "1GB".to_owned());
    });
    waits(&mut world);
    world.scene.switchover = Some("demo-1/1".to_owned());
    let asked_again = world.run_until(TimeDelta::minutes(10), |_, decision| decision.phase == Phase::Ready);
    assert!(asked_again, "{:#?}", world.scene.decide());
}

#[test]
fn a_lost_volume_of_a_standby_is_cloned_anew() {
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
fn a_lost_lease_comes_back_only_on_the_users_word_and_only_for_the_last_primary() {
    let mut world = ready(3);
    world.lose_primary();
    assert!(world.settle());
    world.scene.set_child(ChildKind::Lease, ChildState::Missing);
    world.scene.observed.lease = Known::Known(None);
    assert!(!world.settle());
    assert_eq!(world.scene.stored.phase, Some(Phase::Failed));
    world.scene.recreate_lease = Some("somebody else's".to_owned());
    assert!(!world.settle());
    world.scene.recreate_lease = Some(world.uid().to_owned());
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(
        (world.scene.stored.current_primary.as_deref(), world.initdbs),
        (Some("demo-1"), 1)
    );
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
    assert_eq!(after.intent.bootstrap.take(), None, "nobody may make a second database");
    for (pod, member) in &mut after.members {
        // The certificate is signed again.
        member.certificate.clone_from(&before.members[pod].certificate);
    }
    let mut before = before;
    before.intent.bootstrap = None;
    assert_eq!(after, before);
}

/// One thing that a user or the world does.
#[derive(Clone, Debug)]
enum Event {
    Replicas(i32),
    Revision(u8),
    Resources(u8),
    Resizes(Resizes),
    Parameter(u8),
    KillPod(u32),
    LosePrimary,
    Prefer(Option<u32>),
    Durability(Option<DurabilityMode>),
    Stubborn(bool),
    Fence(Vec<u32>),
    Hibernate(bool),
    Cordon(u32, bool),
    Evict(u32),
    Request(Option<(u32, u8)>),
    Supervised(bool),
    LoseChild(ChildKind),
    Wait(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let lossy = [
        ChildKind::StatefulSet,
        ChildKind::RwService,
        ChildKind::EndpointSlice,
        ChildKind::TlsSecret,
    ];
    let modes = vec![
        DurabilityMode::Async,
        DurabilityMode::Preferred,
        DurabilityMode::Required,
    ];
    let resizes = vec![
        Resizes::Done,
        Resizes::Refused,
        Resizes::Infeasible,
        Resizes::Deferred,
        Resizes::Rewritten,
    ];
    prop_oneof![
        (1..=5).prop_map(Event::Replicas),
        (0..3_u8).prop_map(Event::Revision),
        (0..3_u8).prop_map(Event::Resources),
        prop::sample::select(resizes).prop_map(Event::Resizes),
        (0..3_u8).prop_map(Event::Parameter),
        (0..5_u32).prop_map(Event::KillPod),
        Just(Event::LosePrimary),
        prop::option::of(0..5_u32).prop_map(Event::Prefer),
        prop::option::of(prop::sample::select(modes)).prop_map(Event::Durability),
        any::<bool>().prop_map(Event::Stubborn),
        prop::collection::btree_set(0..5_u32, 0..3).prop_map(|fenced| Event::Fence(fenced.into_iter().collect())),
        any::<bool>().prop_map(Event::Hibernate),
        (0..5_u32, any::<bool>()).prop_map(|(node, cordoned)| Event::Cordon(node, cordoned)),
        (0..5_u32).prop_map(Event::Evict),
        prop::option::of((0..6_u32, 0..3_u8)).prop_map(Event::Request),
        any::<bool>().prop_map(Event::Supervised),
        prop::sample::select(lossy.to_vec()).prop_map(Event::LoseChild),
        (0..50_u8).prop_map(Event::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(128)))]

    /// Whatever happens in whatever state, once it ends the database becomes as the spec wants it, and rests.
    #[test]
    fn every_walk_ends_in_ready(events in prop::collection::vec(event(), 1..20), crash in 1..60_usize) {
        let mut world = World::new(3).crashing(Crash::After(crash));
        for event in events {
            match event {
                Event::Replicas(replicas) => world.scene.edit(|spec| spec.replicas = replicas),
                Event::Revision(revision) => {
                    let resources = world.scene.revision.split_once('+').map_or("", |(_, resources)| resources);
                    world.scene.revision = format!("r{revision}+{resources}");
                    if world.scene.observed.stateful_set.is_some() {
                        drift(&mut world);
                    }
                }
                Event::Resources(resources) => {
                    let base = world.scene.revision.split('+').next().unwrap_or_default();
                    world.scene.revision = format!("{base}+{resources}");
                    if world.scene.observed.stateful_set.is_some() {
                        drift(&mut world);
                    }
                }
                Event::Resizes(resizes) => world.resizes = resizes,
                Event::Parameter(value) => world.scene.edit(|spec| {
                    spec.postgres.parameters.insert("shared_buffers".to_owned(), format!("{value}MB"));
                }),
                Event::KillPod(ordinal) => {
                    for pod in world.scene.pods_mut().iter_mut().filter(|pod| pod.ordinal == ordinal) {
                        pod.terminating = true;
                    }
                }
                Event::LosePrimary => world.lose_primary(),
                Event::Prefer(ordinal) => world.scene.edit(|spec| {
                    spec.primary.prefer = ordinal.map(|ordinal| format!("demo-{ordinal}"));
                }),
                Event::Durability(mode) => world.scene.edit(|spec| spec.durability.mode = mode),
                Event::Stubborn(stubborn) => world.stubborn = stubborn,
                Event::Fence(ordinals) => world.scene.edit(|spec| {
                    spec.fenced = ordinals.iter().map(|ordinal| format!("demo-{ordinal}")).collect();
                }),
                Event::Hibernate(hibernated) => world.scene.edit(|spec| spec.hibernated = hibernated),
                Event::Cordon(node, cordoned) => world.scene.cordon(node, cordoned),
                Event::Evict(ordinal) => {
                    world.evict(ordinal);
                }
                Event::Request(request) => {
                    world.scene.switchover = request.map(|(ordinal, token)| format!("demo-{ordinal}/{token}"));
                }
                Event::Supervised(supervised) => world.scene.edit(|spec| {
                    spec.primary.updates = if supervised {
                        PrimaryUpdates::Supervised
                    } else {
                        PrimaryUpdates::Automatic
                    };
                }),
                Event::LoseChild(kind) => {
                    world.scene.set_child(kind, ChildState::Missing);
                    if kind == ChildKind::StatefulSet {
                        world.scene.observed.stateful_set = None;
                    }
                }
                Event::Wait(ticks) => {
                    world.run_until(TimeDelta::milliseconds(100 * i64::from(ticks)), |_, _| false);
                }
            }
        }
        world.stubborn = false;
        world.scene.edit(|spec| {
            (spec.hibernated, spec.fenced) = (false, Vec::new());
            // What the API server refuses does not stay.
            let there = |pod: &String| (0..spec.replicas).any(|ordinal| *pod == format!("demo-{ordinal}"));
            spec.primary.prefer = spec.primary.prefer.take().filter(there);
        });
        // Nodes that are cordoned and a change that is supervised may hold it up: that is said, and nothing moves to and fro.
        let _ = world.settle() || world.settle();
        let decision = world.scene.decide();
        prop_assert!(matches!(&decision.action, Action::Wait(_)), "{decision:#?}");
        prop_assert!(decision.phase == Phase::Ready || world.scene.stored.waiting.is_some(), "{decision:#?}");
        assert_stays(&mut world);
        for node in 0..5 {
            world.scene.cordon(node, false);
        }
        world.scene.edit(|spec| spec.primary.updates = PrimaryUpdates::Automatic);
        // A switchover that was given up rests for ten minutes at most.
        prop_assert!(world.settle() || world.settle(), "{:#?}\n{:#?}", world.scene.decide(), world.scene);
        prop_assert_eq!(world.initdbs, 1);
        let primary = world.scene.stored.current_primary.clone().unwrap();
        assert_roles(&world, &primary);
        prop_assert!(world.scene.spec.primary.prefer.as_ref().is_none_or(|prefer| *prefer == primary));
        prop_assert_eq!(world.scene.stored.phase, Some(Phase::Ready));
        let wanted = world.scene.revision.split_once('+').map_or("", |(_, resources)| resources).to_owned();
        prop_assert!(world.resources().iter().all(|resources| *resources == wanted), "{:?}", world.resources());
        let kept = world.scene.pods().len();
        prop_assert_eq!(i32::try_from(kept).unwrap(), world.scene.spec.replicas);
    }
}
