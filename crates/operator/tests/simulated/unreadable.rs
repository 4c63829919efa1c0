//! An object that the API server keeps and this operator cannot read: only its own database waits for it.

use std::time::Duration;

use fake_api::faults::Faults;
use fake_api::{Call, Kind, Verb};
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{NAMESPACE, Operator, World, run};

/// A time that Kubernetes takes, and that is past the last one that the operator's types can hold.
const FAR: &str = "9999-12-31T23:59:59.000000Z";

/// One object of a kind, and the change after which it cannot be read.
struct Case {
    plural: &'static str,
    name: &'static str,
    subresource: &'static str,
    change: Value,
    /// How the status of the database names it; `None` if it is no database's own.
    told: Option<&'static str>,
}

fn cases() -> Vec<Case> {
    let metadata = |plural, name, told| Case {
        plural,
        name,
        subresource: "",
        change: json!({"metadata": {"generateName": 7}}),
        told,
    };
    let changed = |plural, name, subresource, change, told| Case {
        plural,
        name,
        subresource,
        change,
        told: Some(told),
    };
    let condition = json!([{"type": "X", "status": "True", "reason": "X", "message": "", "lastTransitionTime": FAR}]);
    vec![
        changed("leases", "db", "", json!({"spec": {"renewTime": FAR}}), "Lease db"),
        changed("pods", "db-2", "", json!({"metadata": {"generateName": 7}}), "Pod db-2"),
        changed(
            "persistentvolumeclaims",
            "data-db-2",
            "status",
            json!({"status": {"conditions": condition}}),
            "PersistentVolumeClaim data-db-2",
        ),
        changed(
            "services",
            "db-rw",
            "status",
            json!({"status": {"conditions": condition}}),
            "Service db-rw",
        ),
        changed(
            "poddisruptionbudgets",
            "db",
            "status",
            json!({"status": {"disruptedPods": {"db-0": FAR}}}),
            "PodDisruptionBudget db",
        ),
        metadata("serviceaccounts", "db", Some("ServiceAccount db")),
        metadata("roles", "db", Some("Role db")),
        metadata("rolebindings", "db", Some("RoleBinding db")),
        metadata("secrets", "db-app", Some("Secret db-app")),
        metadata("endpointslices", "db-rw", Some("EndpointSlice db-rw")),
        metadata("statefulsets", "db", Some("StatefulSet db")),
        metadata("storageclasses", "other", None),
        metadata("nodes", "n3", None),
    ]
}

fn change(world: &World, case: &Case, body: Value) {
    let namespace = if Kind::of(case.plural).namespaced {
        NAMESPACE
    } else {
        ""
    };
    let call = Call::new(Verb::Merge, case.plural, namespace, case.name, body);
    let call = if case.subresource.is_empty() {
        call
    } else {
        call.to(case.subresource)
    };
    let reply = world
        .server
        .within(|store, now| store.call(&call.with("fieldManager", "user"), now));
    assert_eq!(reply.code, 200, "{}: {:#}", case.plural, reply.body);
}

/// The same change, taken back.
fn without(change: &Value) -> Value {
    match change {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), without(value)))
            .collect(),
        _ => Value::Null,
    }
}

fn make(world: &World, name: &str) {
    let db = json!({"metadata": {"name": name}, "spec": {"storage": {"data": {"size": "1Gi"}}}});
    world.user(201, Verb::Create, "clustereddatabases", "", db);
}

/// Every object of this database has been made: the StatefulSet is the last one.
async fn is_made(world: &World, name: &str, while_what: &str) {
    let what = format!("made: {name}, while {while_what} cannot be read");
    let set = |world: &World| world.get("statefulsets", name).is_some();
    let made = tokio::time::timeout(Duration::from_secs(60), world.until(&what, set));
    made.await.unwrap_or_else(|_| panic!("not {what}"));
}

#[test]
fn an_object_of_any_kind_that_cannot_be_read_holds_up_its_own_database_alone() {
    for case in cases() {
        run(1, async || {
            let what = format!("{} {}", case.plural, case.name);
            let world = World::new(Faults::none(), Duration::from_secs(1));
            let class = json!({"metadata": {"name": "other"}, "provisioner": "p"});
            world.user(201, Verb::Create, "storageclasses", "", class);
            let operator = Operator::start(&world.server, Config::default());
            world.create(&json!({"replicas": 3}));
            world.ready().await;
            world.agents.lock().unwrap().still = true;

            // A watch that runs goes on, and one that begins gets its list.
            change(&world, &case, case.change.clone());
            make(&world, "one");
            is_made(&world, "one", &what).await;
            let failed = |operator: &Operator| -> Vec<String> {
                let heard = operator.heard.lock().unwrap();
                let of_watches = heard.iter().filter(|line| line.starts_with("the watch of"));
                of_watches.cloned().collect()
            };
            assert_eq!(failed(&operator), Vec::<String>::new(), "{what}");
            drop(operator);
            let operator = Operator::start(&world.server, Config::default());
            make(&world, "two");
            is_made(&world, "two", &what).await;
            assert_eq!(failed(&operator), Vec::<String>::new(), "{what}");

            let degraded = |world: &World| {
                let conditions = world.status()["conditions"].as_array().cloned().unwrap_or_default();
                conditions
                    .into_iter()
                    .find(|found| found["type"] == "Degraded")
                    .unwrap()
            };
            match case.told {
                Some(told) => {
                    let named = |world: &World| degraded(world)["message"].as_str().unwrap().contains(told);
                    world.until(&format!("told: {told}"), named).await;
                    let degraded = degraded(&world);
                    assert_eq!(
                        (&degraded["status"], &degraded["reason"]),
                        (&json!("True"), &json!("UnreadableObject")),
                        "{degraded:#}"
                    );
                }
                None => assert!(world.is_ready(), "{what}: {:#}", world.status()),
            }

            change(&world, &case, without(&case.change));
            world.agents.lock().unwrap().still = false;
            world.ready().await;
        });
    }
}
