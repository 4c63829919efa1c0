//! 33. A deletion that begins in each phase: everything goes, and the claims by the policy.

use std::collections::BTreeSet;

use api::Phase;
use fake_api::Verb;
use fake_api::faults::Faults;
use operator::config::Config;

use super::*;
use crate::creation::PACE;
use crate::world::{Operator, run};

/// What makes a ready database enter this phase; `None` where nothing does.
fn enter(world: &World, phase: Phase) -> Option<()> {
    match phase {
        // A database is restored only before it is ready, and no feature upgrades one.
        Phase::Restoring | Phase::Upgrading => return None,
        Phase::Creating | Phase::Ready => {}
        Phase::Updating => world.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}})),
        Phase::SwitchingOver => world.edit(&json!({"primary": {"prefer": "db-1"}})),
        Phase::FailingOver => {
            world.agents.lock().unwrap().still = true;
            world.delete("pods", "db-0");
        }
        Phase::Hibernated => world.edit(&json!({"hibernated": true})),
        Phase::Deleting => world.delete("clustereddatabases", "db"),
        Phase::Failed => {
            let rule = json!({"metadata": {"annotations": {api::names::LEASE_RULE: "ANY 1 (db-1"}}});
            world.user(200, Verb::Merge, "leases", "db", rule);
        }
    }
    Some(())
}

fn uids(world: &World) -> BTreeSet<String> {
    let claims = world.list("persistentvolumeclaims").into_iter();
    claims.map(|claim| claim["metadata"]["uid"].to_string()).collect()
}

/// Deletes a database in this phase; whether it could be brought there.
async fn deleted_in(phase: Phase, on_delete: &str) -> bool {
    let world = World::new(Faults::none(), PACE);
    let _operator = Operator::start(&world.server, Config::default());
    let mut spec = json!({"replicas": 3, "storage": {"retentionPolicy": {"whenDeleted": on_delete}}});
    if phase == Phase::Failed {
        // Where commits wait for standbys, the holder writes a scribbled Lease again.
        spec["durability"] = json!({"mode": "Async"});
    }
    world.create(&spec);
    if phase != Phase::Creating {
        world.ready().await;
    }
    if enter(&world, phase).is_none() {
        return false;
    }
    let so = |world: &World| world.status()["phase"] == phase.as_str();
    world.until(phase.as_str(), so).await;
    let claims = uids(&world);
    world.delete("clustereddatabases", "db");
    let gone = |world: &World| world.list("clustereddatabases").is_empty();
    world.until("gone", gone).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    for plural in ALL {
        match *plural {
            "nodes" | "storageclasses" => {}
            "persistentvolumeclaims" if on_delete == "Retain" => {
                assert!(claims.is_subset(&uids(&world)), "in {phase}, a claim is gone");
            }
            // For a database that adopts the volumes, if there was one.
            "secrets" | "leases" if on_delete == "Retain" && phase != Phase::Creating => {
                let names = world
                    .list(plural)
                    .into_iter()
                    .map(|object| object["metadata"]["name"].clone());
                let expected = if *plural == "leases" {
                    json!(["db"])
                } else {
                    json!(["db-app", "db-ca"])
                };
                assert_eq!(names.collect::<Value>(), expected, "in {phase}");
            }
            _ => assert_eq!(world.list(plural).len(), 0, "{plural} in {phase} with {on_delete}"),
        }
    }
    true
}

#[test]
fn d_33_deleted_in_each_phase() {
    let mut left_out = Vec::new();
    for phase in Phase::ALL {
        for on_delete in ["Retain", "Delete"] {
            if !run(1, async || deleted_in(phase, on_delete).await) {
                left_out.push(phase);
            }
        }
    }
    left_out.dedup();
    assert_eq!(left_out, [Phase::Restoring, Phase::Upgrading]);
}
