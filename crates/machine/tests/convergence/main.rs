//! In an abstract cluster that carries out decisions, a database becomes ready, changes and is deleted. Wherever the
//! operator dies on the way, the end is the same.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod changes;
mod creation;
mod drain;
mod in_place;
mod loss;
mod primary;
mod resources;
mod wal;
mod walks;

use api::status::MemberRole;
use api::{ClusteredDatabaseStatus, Phase};
use chrono::TimeDelta;
use machine::cluster::model::World;
use machine::cluster::{Action, OwnedObject, OwnedState};

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

/// True if nothing is left to do or to write.
fn assert_rests(world: &World) {
    let decision = world.scene.decide();
    assert!(
        matches!(&decision.action, Action::Wait(waiting) if waiting.resting),
        "{decision:#?}"
    );
    assert_eq!(decision.phase, Phase::Ready);
    assert_eq!(world.scene.status(&decision), world.scene.stored);
}

/// Changes the template: the operator's comparison finds the StatefulSet drifted.
fn drift(world: &mut World) {
    let set = OwnedState::Drifted {
        uid: "uid-StatefulSet".to_owned(),
        resource_version: "1".to_owned(),
        what: "spec.template".to_owned(),
        immutable: false,
    };
    world.scene.generation += 1;
    world.scene.set_child(OwnedObject::StatefulSet, set);
}

/// Changes CPU and memory in the spec.
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

/// Checks that the labels, and the roles in the status, follow the Lease.
fn assert_roles(world: &World, primary: &str) {
    for pod in world.scene.pods() {
        let role = if pod.name == primary { "primary" } else { "replica" };
        assert_eq!(pod.role.as_deref(), Some(role), "{}", pod.name);
        let stored = world.scene.stored.members[&pod.name].role;
        assert_eq!(stored == Some(MemberRole::Primary), pod.name == primary);
    }
}

/// Checks that nothing moves any more, for five minutes.
fn assert_stays(world: &mut World) {
    let primaries = world.primaries.clone();
    world.run_until(TimeDelta::minutes(5), |_, _| false);
    assert_eq!(world.primaries, primaries);
}
