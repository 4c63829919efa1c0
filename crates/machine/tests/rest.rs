//! Fenced instances and hibernating databases, in an abstract cluster that carries out decisions.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use api::Phase;
use api::spec::VolumeFate;
use chrono::TimeDelta;
use machine::cluster::model::{Crash, World};
use machine::cluster::{Action, Claim, StatusWrite, Step};

const LIMIT: TimeDelta = TimeDelta::minutes(10);

fn ready(replicas: u32) -> World {
    let mut world = World::new(replicas);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    world.writes.clear();
    world
}

/// Continues until the database hibernates, its status says so, and nothing is left to write.
fn fall_asleep(world: &mut World) {
    world.scene.edit(|spec| spec.hibernated = true);
    let asleep = world.run_until(LIMIT, |world, decision| {
        let said = world.scene.stored.phase == Some(Phase::Hibernated) && decision.phase == Phase::Hibernated;
        said && matches!(decision.action, Action::Wait(_)) && world.scene.due(decision) == StatusWrite::None
    });
    assert!(asleep, "{:#?}", world.scene.decide());
    assert!(world.scene.pods().is_empty());
    assert!(
        world.scene.stored.ready.starts_with("0/"),
        "{}",
        world.scene.stored.ready
    );
}

fn wake(world: &mut World) {
    world.scene.edit(|spec| spec.hibernated = false);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_eq!(world.scene.stored.phase, Some(Phase::Ready));
    assert!(!world.scene.stored.intent.stop);
}

fn identities(claims: &[Claim]) -> Vec<(String, String)> {
    claims
        .iter()
        .map(|claim| (claim.name.clone(), claim.uid.clone()))
        .collect()
}

fn phases(world: &World) -> Vec<Phase> {
    world.scene.stored.history.iter().map(|change| change.to).collect()
}

#[test]
fn a_database_hibernates_and_wakes_with_all_that_it_had() {
    for replicas in 1..=3 {
        let mut world = ready(replicas);
        let claims = identities(world.scene.claims_mut());
        let (system, members) = (
            world.scene.stored.system_identifier.clone(),
            world.scene.stored.members.clone(),
        );
        fall_asleep(&mut world);
        wake(&mut world);
        assert_eq!(identities(world.scene.claims_mut()), claims);
        assert_eq!(
            (world.initdbs, world.scene.stored.system_identifier.clone()),
            (1, system)
        );
        for (pod, member) in &world.scene.stored.members {
            assert_eq!(
                member.member_id, members[pod].member_id,
                "the data of {pod} is the same"
            );
        }
        assert_eq!(world.primaries, ["demo-0"], "the same instance is primary again");
        assert_eq!(
            phases(&world),
            [
                Phase::Creating,
                Phase::Ready,
                Phase::Updating,
                Phase::Hibernated,
                Phase::Updating,
                Phase::Ready
            ]
        );
    }
}

#[test]
fn an_operator_that_dies_on_the_way_to_hibernation_or_back_goes_on() {
    let run = |crash: Crash| {
        let mut world = ready(3).crashing(crash);
        fall_asleep(&mut world);
        wake(&mut world);
        assert_eq!((world.initdbs, world.primaries.len()), (1, 1), "{crash:?}");
        world
    };
    let reference = run(Crash::Never);
    for write in 1..=reference.writes.len() {
        run(Crash::After(write));
    }
}

#[test]
fn a_creation_may_be_interrupted_anywhere() {
    let mut reference = World::new(3);
    assert!(reference.settle());
    for write in 0..reference.writes.len() {
        let mut world = World::new(3);
        world.run_until(TimeDelta::minutes(1), |world, _| world.writes.len() >= write);
        fall_asleep(&mut world);
        let made = world.scene.stored.system_identifier.is_some();
        wake(&mut world);
        assert_eq!(world.initdbs, 1, "after {write}");
        let back = if made { Phase::Updating } else { Phase::Creating };
        let phases = phases(&world);
        assert_eq!(phases[phases.len() - 2], back, "after {write}: {phases:?}");
    }
}

#[test]
fn a_broken_database_hibernates_too() {
    let broken: [fn(&mut World); 4] = [
        World::lose_primary,
        |world| {
            world.scene.pod_mut(0).terminating = true;
        },
        |world| {
            world.broken.insert("r2".to_owned());
            world.scene.revision = "r2".to_owned();
            world.scene.set_child(
                machine::cluster::OwnedObject::StatefulSet,
                machine::cluster::OwnedState::Drifted {
                    uid: "uid-StatefulSet".to_owned(),
                    resource_version: "1".to_owned(),
                    what: "spec.template".to_owned(),
                    immutable: false,
                },
            );
            let failed = world.run_until(LIMIT, |world, _| world.scene.stored.phase == Some(Phase::Failed));
            assert!(failed);
        },
        |world| {
            world
                .scene
                .edit(|spec| spec.fenced = vec!["demo-0".to_owned(), "demo-2".to_owned()])
        },
    ];
    for (index, spoil) in broken.iter().enumerate() {
        let mut world = ready(3);
        let claims = identities(world.scene.claims_mut());
        spoil(&mut world);
        fall_asleep(&mut world);
        assert_eq!(identities(world.scene.claims_mut()), claims, "{index}");
        world.broken.clear();
        world.scene.edit(|spec| spec.fenced.clear());
        wake(&mut world);
        assert_eq!(world.initdbs, 1, "{index}");
    }
}

#[test]
fn changes_are_applied_at_waking() {
    let mut world = ready(3);
    world.scene.edit(|spec| spec.primary.prefer = Some("demo-2".to_owned()));
    assert!(world.settle());
    fall_asleep(&mut world);
    world.scene.data_bytes.0 *= 2;
    world.scene.scale(1);
    world.scene.edit(|spec| spec.primary.prefer = None);
    wake(&mut world);
    assert_eq!(world.scene.pods().len(), 1);
    assert_eq!(
        world.primaries,
        ["demo-0", "demo-2", "demo-0"],
        "the newest data came back first"
    );
    let bytes = world.scene.data_bytes;
    let grown = world.scene.claims_mut().iter().filter(|claim| claim.requested == bytes);
    assert!(grown.count() >= 1);
    fall_asleep(&mut world);
    world.scene.scale(5);
    wake(&mut world);
    assert_eq!(world.scene.stored.ready, "5/5");
}

#[test]
fn a_database_that_hibernates_can_be_deleted() {
    let mut world = ready(3);
    world
        .scene
        .edit(|spec| spec.storage.retention_policy.when_deleted = VolumeFate::Delete);
    fall_asleep(&mut world);
    world.scene.deleting = true;
    assert!(world.run_until(LIMIT, |_, _| false), "{:#?}", world.scene.decide());
    assert!(world.gone && world.scene.claims_mut().is_empty());
}

#[test]
fn a_change_of_mind_is_followed_at_any_time() {
    let mut reference = ready(3);
    fall_asleep(&mut reference);
    for write in 0..=reference.writes.len() {
        let mut world = ready(3);
        world.scene.edit(|spec| spec.hibernated = true);
        world.run_until(TimeDelta::minutes(2), |world, _| world.writes.len() >= write);
        wake(&mut world);
        assert_eq!(world.initdbs, 1, "after {write}");
        let phases = phases(&world);
        assert!(!phases.contains(&Phase::FailingOver), "after {write}: {phases:?}");
    }
}

#[test]
fn a_fenced_primary_is_replaced_and_comes_back_as_a_standby() {
    let mut world = ready(3);
    let pod = world.scene.pod_mut(0).uid.clone();
    world.scene.edit(|spec| spec.fenced = vec!["demo-0".to_owned()]);
    let waits = |world: &World| {
        let status = &world.scene.stored;
        let replaced = status.current_primary.as_deref() == Some("demo-1");
        replaced && status.step.as_deref() == Some(Step::Fenced.as_str())
    };
    assert!(
        world.run_until(LIMIT, |world, _| waits(world)),
        "{:#?}",
        world.scene.decide()
    );
    assert_eq!(world.primaries, ["demo-0", "demo-1"]);
    assert_eq!(world.scene.pod_mut(0).uid, pod, "its pod stays");
    assert_eq!(world.scene.stored.phase, Some(Phase::Updating));
    world.scene.edit(|spec| spec.fenced.clear());
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_eq!((world.primaries.len(), world.initdbs), (2, 1));
    assert_eq!(world.scene.pod_mut(0).uid, pod);
}

#[test]
fn if_all_instances_are_fenced_the_database_is_down_until_the_user_changes_that() {
    let mut world = ready(3);
    let all = (0..3).map(|ordinal| format!("demo-{ordinal}"));
    world.scene.edit(|spec| spec.fenced = all.collect());
    world.run_until(TimeDelta::minutes(5), |_, _| false);
    let status = &world.scene.stored;
    assert_eq!((status.phase, status.ready.as_str()), (Some(Phase::Updating), "0/3"));
    let waiting = status.waiting.as_ref().unwrap();
    assert_eq!(waiting.who_can_end_it, "the user, by changing spec.fenced");
    assert_eq!(waiting.deadline, None);
    world
        .scene
        .edit(|spec| spec.fenced = vec!["demo-1".to_owned(), "demo-2".to_owned()]);
    let serves = world.run_until(LIMIT, |world, _| world.scene.stored.current_primary.is_some());
    assert!(serves, "{:#?}", world.scene.decide());
    world.scene.edit(|spec| spec.fenced.clear());
    assert!(world.settle(), "{:#?}", world.scene.decide());
}
