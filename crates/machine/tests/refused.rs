//! One object is refused for ever (by a quota or an admission webhook), in an abstract cluster that carries out
//! decisions. Everything that does not depend on the object continues, and the status says why it is missing.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use api::Phase;
use chrono::TimeDelta;
use machine::cluster::model::World;
use machine::cluster::{OwnedObject, OwnedState};

const LIMIT: TimeDelta = TimeDelta::minutes(10);
/// Services for clients, and budgets: no other object depends on them.
const FOR_OTHERS: [OwnedObject; 5] = [
    OwnedObject::RwService,
    OwnedObject::RoService,
    OwnedObject::RService,
    OwnedObject::PodDisruptionBudget,
    OwnedObject::PrimaryBudget,
];

/// A database of three that has lost this object, and never gets it back.
fn without(kind: OwnedObject) -> World {
    let mut world = World::new(3);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    world.scene.set_child(kind, OwnedState::Missing);
    world.refused.insert(kind);
    world
}

fn drifted() -> OwnedState {
    OwnedState::Drifted {
        uid: "uid-StatefulSet".to_owned(),
        resource_version: "1".to_owned(),
        what: "spec.template".to_owned(),
        immutable: false,
    }
}

fn roll_out(world: &mut World) {
    world.scene.revision = "r2".to_owned();
    world.scene.generation += 1;
    world.scene.set_child(OwnedObject::StatefulSet, drifted());
}

/// Only the refusal is left to wait for, and the status and the condition `Ready` quote it.
fn assert_said(world: &mut World, kind: OwnedObject) {
    world.run_until(TimeDelta::minutes(1), |_, _| false);
    let status = &world.scene.stored;
    assert_eq!(status.phase, Some(Phase::Updating), "{kind:?}");
    let said = |text: &str| assert!(text.contains("no-objects denied the request"), "{kind:?}: {text}");
    said(&status.waiting.as_ref().unwrap().what);
    said(
        &status
            .conditions
            .iter()
            .find(|found| found.type_ == "Ready")
            .unwrap()
            .message,
    );
}

#[test]
fn a_rollout_and_its_switchover_go_on_without_an_object_that_only_clients_need() {
    for kind in FOR_OTHERS {
        let mut world = without(kind);
        roll_out(&mut world);
        let updated = world.run_until(LIMIT, |world, _| {
            world
                .scene
                .pods()
                .iter()
                .all(|pod| pod.ready && pod.revision.as_deref() == Some("r2"))
        });
        assert!(updated, "{kind:?}: {:#?}", world.scene.decide());
        assert_eq!(world.primaries, ["demo-0", "demo-1"], "{kind:?}");
        assert_eq!(world.scene.stored.intent.primary, None, "{kind:?}");
        assert_said(&mut world, kind);
        world.refused.clear();
        assert!(world.settle(), "{kind:?}: {:#?}", world.scene.decide());
        assert_eq!(world.scene.stored.phase, Some(Phase::Ready), "{kind:?}");
    }
}

#[test]
fn a_running_switchover_ends_whatever_is_refused() {
    for kind in OwnedObject::ALL {
        let mut world = World::new(3);
        assert!(world.settle());
        world.scene.edit(|spec| spec.primary.prefer = Some("demo-2".to_owned()));
        let begun = world.run_until(LIMIT, |world, _| world.scene.stored.intent.primary.is_some());
        assert!(begun, "{:#?}", world.scene.decide());
        let state = if kind == OwnedObject::StatefulSet {
            drifted()
        } else {
            OwnedState::Missing
        };
        world.scene.set_child(kind, state);
        world.refused.insert(kind);
        let ended = world.run_until(LIMIT, |world, _| world.scene.stored.intent.primary.is_none());
        assert!(ended, "{kind:?}: {:#?}", world.scene.decide());
        assert_eq!(world.primaries, ["demo-0", "demo-2"], "{kind:?}");
    }
}

#[test]
fn a_refused_object_that_others_depend_on_holds_up_a_rollout() {
    for kind in [
        OwnedObject::ServiceAccount,
        OwnedObject::RoleBinding,
        OwnedObject::TlsSecret,
        OwnedObject::EndpointSlice,
    ] {
        let mut world = without(kind);
        roll_out(&mut world);
        let before: Vec<_> = world.scene.pods().iter().map(|pod| pod.uid.clone()).collect();
        assert_said(&mut world, kind);
        assert!(
            world.scene.pods().iter().map(|pod| pod.uid.clone()).eq(before),
            "{kind:?}"
        );
    }
}

#[test]
fn a_refused_template_does_not_replace_pods_repeatedly() {
    let mut world = World::new(3);
    assert!(world.settle());
    world.refused.insert(OwnedObject::StatefulSet);
    roll_out(&mut world);
    let before: Vec<_> = world.scene.pods().iter().map(|pod| pod.uid.clone()).collect();
    assert_said(&mut world, OwnedObject::StatefulSet);
    assert!(world.scene.pods().iter().map(|pod| pod.uid.clone()).eq(before));
}

#[test]
fn restarts_go_on_and_a_deletion_ends() {
    for kind in FOR_OTHERS {
        let mut world = without(kind);
        world.scene.edit(|spec| {
            spec.postgres
                .parameters
                .insert("shared_buffers".to_owned(), "256MB".to_owned());
        });
        let settings = |world: &World| world.scene.with_wanted(|wanted| wanted.settings.to_owned());
        let restarted = world.run_until(LIMIT, |world, _| {
            let lease = world.scene.observed.lease.get().and_then(Option::as_ref).unwrap();
            let wanted = settings(world);
            let mut reports = lease.members.values();
            let current = reports.all(|report| report.settings == wanted && !report.pending_restart);
            current && world.scene.stored.intent.restart.is_none()
        });
        assert!(restarted, "{kind:?}: {:#?}", world.scene.decide());
        world.scene.deleting = true;
        assert!(world.run_until(LIMIT, |_, _| false) && world.gone, "{kind:?}");
    }
}
