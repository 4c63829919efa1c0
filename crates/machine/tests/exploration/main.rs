//! Every order of events at small scope, for the operator's machine: its single writes, what Kubernetes and the agents
//! do meanwhile, views that are outdated or not listed yet, writes of an operator that has ended and that arrive later,
//! lost pods and primaries, edits of the user. Each state is checked. From each state, once faults are over, every
//! order of the remaining steps ends in an idle database, within a number of steps that is asserted.
//!
//! An operator that dies between two writes and one that continues are the same here. It keeps nothing in memory
//! between them that decides, and a new one's first view may be outdated or not listed too.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod rules;
mod search;
mod view;
mod waits;

use api::spec::VolumeFate;
use machine::cluster::model::World;

use search::{Bounds, Edit, Found, search};

const NOTHING: Bounds = Bounds {
    views: 0,
    late: 0,
    damage: 0,
    edits: 0,
    wishes: &[],
};

/// Everything that may be deleted is deleted if the spec says so.
fn thrifty(replicas: u32) -> World {
    let mut world = World::new(replicas);
    let policy = &mut world.scene.spec.storage.retention_policy;
    (policy.when_scaled, policy.when_deleted) = (VolumeFate::Delete, VolumeFate::Delete);
    world
}

fn ready(replicas: u32) -> World {
    let mut world = thrifty(replicas);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    world
}

/// Asserts the number of states, the number of steps from the farthest state until idle, and which decision rules have
/// decided.
fn assert_found(found: Result<Found, String>, states: usize, steps: u32, goals: &[&str]) {
    let found = found.unwrap_or_else(|course| panic!("{course}"));
    println!("{found}");
    let missing: Vec<_> = goals.iter().filter(|goal| !found.rules.contains(*goal)).collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
    assert_eq!(
        (found.states, found.steps),
        (states, steps),
        "see that what is reached is as expected, then write the new numbers here and into docs/model.md"
    );
}

#[test]
fn a_creation_with_views_that_are_old_or_not_listed() {
    let bounds = Bounds { views: 1, ..NOTHING };
    assert_found(
        search(thrifty(2), bounds, true),
        2_233,
        33,
        &["blocked", "children", "await-database", "await-standbys"],
    );
}

#[test]
fn a_creation_of_three_with_a_write_of_an_operator_that_has_ended() {
    let bounds = Bounds { late: 1, ..NOTHING };
    assert_found(
        search(thrifty(3), bounds, true),
        1_043,
        35,
        &["children", "record", "label-roles"],
    );
}

#[test]
fn a_creation_of_three_that_loses_pods_and_primaries() {
    let bounds = Bounds { damage: 2, ..NOTHING };
    assert_found(
        search(thrifty(3), bounds, true),
        20_839,
        34,
        &["await-primary", "await-database", "await-standbys"],
    );
}

#[test]
fn edits_with_views_that_are_old_or_not_listed() {
    let bounds = Bounds {
        views: 1,
        edits: 1,
        wishes: &[
            Edit::Replicas(1),
            Edit::Replicas(3),
            Edit::Revision("r2"),
            Edit::Prefer(1),
            Edit::Hibernate(true),
            Edit::Delete,
        ],
        ..NOTHING
    };
    assert_found(
        search(ready(2), bounds, true),
        5_855,
        31,
        &[
            "scale",
            "removed-members",
            "replace-serving",
            "replace-idle",
            "switch-over",
            "hibernate",
            "await-waking",
            "remove-volumes",
            "finish",
            "blocked",
        ],
    );
}

#[test]
fn edits_that_are_reverted() {
    let bounds = Bounds {
        late: 1,
        edits: 2,
        wishes: &[
            Edit::Replicas(1),
            Edit::Replicas(2),
            Edit::Revision("r1"),
            Edit::Revision("r2"),
            Edit::Hibernate(true),
            Edit::Hibernate(false),
        ],
        ..NOTHING
    };
    assert_found(
        search(ready(2), bounds, true),
        95_672,
        38,
        &[
            "scale",
            "removed-members",
            "replace-serving",
            "hibernate",
            "await-waking",
        ],
    );
}

#[test]
fn a_change_that_loses_a_pod_or_its_primary() {
    let bounds = Bounds {
        damage: 1,
        edits: 1,
        wishes: &[Edit::Replicas(2), Edit::Revision("r2"), Edit::Prefer(2), Edit::Delete],
        ..NOTHING
    };
    assert_found(
        search(ready(3), bounds, true),
        8_215,
        47,
        &[
            "scale",
            "replace-serving",
            "replace-idle",
            "switch-over",
            "await-primary",
            "await-switchover",
            "finish",
        ],
    );
}

#[test]
fn an_api_server_that_does_not_compare_versions_is_found() {
    let bounds = Bounds {
        late: 1,
        edits: 2,
        wishes: &[Edit::Replicas(1), Edit::Replicas(2), Edit::Revision("r2")],
        ..NOTHING
    };
    let course = match search(ready(2), bounds, false) {
        Ok(found) => panic!("nothing is wrong: {found}"),
        Err(course) => course,
    };
    println!("{course}");
    assert!(course.contains("is deleted while"), "{course}");
}
