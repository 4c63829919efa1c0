//! The operator killed after its k-th request, for every k of a creation: with the request carried out and the answer
//! lost, and with the request lost. It goes on from what is stored, comes to the same end, and makes nothing twice that is
//! made once.

use std::collections::BTreeMap;
use std::time::Duration;

use fake_api::Kill;
use fake_api::faults::Faults;
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{Operator, World, run};

/// How long a pod takes from one thing to the next.
pub const PACE: Duration = Duration::from_millis(400);

/// What must be the same whatever happened on the way: names, labels and specs without UIDs, times, nodes, addresses and
/// what is random, and where the database stands.
pub fn outcome(world: &World) -> BTreeMap<String, Value> {
    let objects = world.server.within(|store, _| {
        let all = store
            .everything()
            .filter(|(key, _)| !["events", "leases"].contains(&key.kind.plural));
        all.map(|(key, object)| (format!("{} {}", key.kind.plural, key.name), (**object).clone()))
            .collect::<Vec<_>>()
    });
    objects
        .into_iter()
        .map(|(name, object)| (name, essence(object)))
        .collect()
}

fn essence(mut object: Value) -> Value {
    let status = object["status"].take();
    let metadata = object["metadata"].take();
    let secret = object["kind"].take() == "Secret" || object["type"] == "Opaque";
    if secret {
        let keys: Vec<_> = object["data"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .collect();
        object["data"] = json!(keys);
    }
    for random in ["clusterIP", "clusterIPs", "volumeName", "nodeName"] {
        object["spec"].as_object_mut().map(|spec| spec.remove(random));
    }
    object["endpoints"].take();
    json!({
        "object": object, "labels": metadata["labels"], "annotations": metadata["annotations"], "finalizers": metadata["finalizers"],
        "owners": metadata["ownerReferences"].as_array().map(|owners| owners.iter().map(|owner| owner["name"].clone()).collect::<Vec<_>>()),
        "database": standing(&status),
    })
}

/// Where the database stands, of its status; of other objects' nothing.
fn standing(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<_> = conditions
        .map(|found| (found["type"].clone(), found["status"].clone()))
        .collect();
    let names = |map: &Value| {
        map.as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .collect::<Vec<_>>()
    };
    let instances = status["instances"].as_array().into_iter().flatten();
    let instances: Vec<_> = instances.map(|instance| instance["name"].clone()).collect();
    match &status["memo"] {
        Value::Null => Value::Null,
        memo => json!({
            "phase": status["phase"], "ready": status["readySummary"], "primary": status["currentPrimary"], "conditions": conditions,
            "instances": instances, "made": names(&memo["made"]), "lease": memo["leaseMade"],
        }),
    }
}

/// A creation, with the operator killed once; its requests, and what came of it.
fn creation(kill: Option<Kill>) -> (Vec<String>, BTreeMap<String, Value>) {
    run(1, async || {
        let world = World::new(Faults::none(), PACE);
        world.server.kill(kill);
        let mut operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3}));
        let course = async {
            world.ready().await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        };
        if let Some(kill) = kill {
            tokio::select! {
                () = course => panic!("did not come to request {}", kill.at),
                () = world.server.killed() => {}
            }
            drop(operator);
            let (secrets, uids) = (world.secrets(), world.uids());
            world.server.kill(None);
            operator = Operator::start(&world.server, Config::default());
            world.ready().await;
            tokio::time::sleep(Duration::from_secs(10)).await;
            let (secrets_after, uids_after) = (world.secrets(), world.uids());
            for (name, secret) in secrets {
                assert!(secrets_after[&name] == secret, "{name} was made again: {kill:?}");
            }
            for (name, uid) in uids {
                assert_eq!(uids_after[&name], uid, "{name} was made again: {kill:?}");
            }
        } else {
            course.await;
        }
        drop(operator);
        assert_eq!(world.agents.lock().unwrap().initdbs, 1, "{kill:?}");
        let arrived = world.server.trace().into_iter().filter(|line| line.ends_with(')'));
        (arrived.collect(), outcome(&world))
    })
}

/// Whether the write with this number, at which the operator dies, is carried out: by turns, and in a long run both.
pub fn carried_out(number: usize) -> &'static [bool] {
    match (std::env::var_os("CDB_LONG"), number % 2) {
        (Some(_), _) => &[false, true],
        (None, 0) => &[false],
        (None, _) => &[true],
    }
}

/// One of several parts of all the kills, so that they can run side by side.
fn kills(part: usize, parts: usize) {
    let (requests, expected) = creation(None);
    println!("{} requests: {requests:#?}", requests.len());
    for (index, request) in requests.iter().enumerate().filter(|(index, _)| index % parts == part) {
        let reads = ["Get ", "List ", "Watch "].iter().any(|verb| request.starts_with(verb));
        // A read that is carried out and not answered is as one that is lost.
        let outcomes = if reads { &[false] } else { carried_out(index / parts) };
        for &carried_out in outcomes {
            let kill = Kill {
                at: index + 1,
                carried_out,
            };
            assert_eq!(creation(Some(kill)).1, expected, "{kill:?} at {request}");
        }
    }
}

#[test]
fn a_kill_at_any_request_leads_to_the_same_end_1() {
    kills(0, 2);
}

#[test]
fn a_kill_at_any_request_leads_to_the_same_end_2() {
    kills(1, 2);
}

#[test]
fn the_same_seed_gives_the_same_requests() {
    assert_eq!(creation(None), creation(None));
}
