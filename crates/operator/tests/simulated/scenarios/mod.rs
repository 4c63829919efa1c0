//! Scenarios of docs/scenarios.md, by number.

mod changes;
mod deletion;
mod every_field;
mod old_views;
mod operator_dies;
mod outages;
mod planned;
mod users;

use std::time::Duration;

use serde_json::{Value, json};

use super::scenario::{Scenario, from_nothing, scenario};
use super::world::World;

/// Two minutes.
const LONG_ENOUGH: Duration = Duration::from_secs(120);
/// All that an operator watches.
const ALL: &[&str] = &[
    "clustereddatabases",
    "statefulsets",
    "pods",
    "persistentvolumeclaims",
    "secrets",
    "leases",
    "services",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "endpointslices",
    "poddisruptionbudgets",
    "networkpolicies",
    "nodes",
    "storageclasses",
];

/// Nothing of the database is left; nodes and classes are the cluster's.
fn nothing_is_left(script: &Scenario) {
    for plural in ALL
        .iter()
        .filter(|plural| !["nodes", "storageclasses"].contains(plural))
    {
        assert_eq!(script.uids(plural).len(), 0, "{plural}");
    }
}

fn three() -> Value {
    json!({"replicas": 3})
}

fn set_replicas(world: &World) -> Value {
    world
        .get("statefulsets", "db")
        .map_or(Value::Null, |set| set["spec"]["replicas"].clone())
}

fn sizes(world: &World) -> Vec<String> {
    let claims = world.list("persistentvolumeclaims").into_iter();
    claims
        .map(|claim| {
            claim["spec"]["resources"]["requests"]["storage"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
}

/// Something is said in the status.
fn says(world: &World, what: &str) -> bool {
    world.status().to_string().contains(what)
}

fn node_of(world: &World, pod: &str) -> String {
    world.get("pods", pod).unwrap()["spec"]["nodeName"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// How many pods are ready.
fn ready(world: &World) -> usize {
    let is_ready = |pod: &Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    world.list("pods").iter().filter(|pod| is_ready(pod)).count()
}
