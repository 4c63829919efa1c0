//! Poolers: from a resource to its objects and back, whoever is lost meanwhile.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fake_api::Verb;
use fake_api::faults::Faults;
use machine::access::Database;
use operator::certificates;
use operator::config::Config;
use serde_json::{Value, json};

use super::declared::{Declared, handed_on, one};
use super::world::{LONG, Operator, World, run};

const POOLERS: Declared = Declared {
    plural: "poolers",
    kind: "Pooler",
    spec: || json!({}),
    drops: || json!({}),
};
/// Its objects: their kinds, and what is added to the name.
const PARTS: [(&str, &str); 7] = [
    ("serviceaccounts", "-pooler"),
    ("roles", "-pooler"),
    ("rolebindings", "-pooler"),
    ("secrets", "-pooler"),
    ("services", ""),
    ("poddisruptionbudgets", ""),
    ("deployments", ""),
];

/// There is the database that poolers look passwords up in.
fn postgres(world: &World) {
    let mut agents = world.agents.lock().unwrap();
    agents
        .catalogue
        .databases
        .insert("postgres".to_owned(), Database::default());
}

async fn ready(world: &World) -> Operator {
    one(world, postgres).await
}

fn parts(world: &World, name: &str) -> usize {
    let is_there = |(plural, suffix): &&(&str, &str)| world.get(plural, &format!("{name}{suffix}")).is_some();
    PARTS.iter().filter(is_there).count()
}

fn pods(world: &World, name: &str) -> Value {
    let found = world.get("deployments", name).unwrap_or_default();
    found["spec"]["template"]["spec"].clone()
}

#[test]
fn a_pooler_is_made_then_nothing_is_written_and_what_is_changed_by_hand_is_put_right() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = ready(&world).await;
        POOLERS.declare(&world, "pool", &json!({"replicas": 3}));
        world.until("ready", |world| POOLERS.is(world, "pool", "Ready")).await;
        assert_eq!(parts(&world, "pool"), PARTS.len());
        let told = POOLERS.status(&world, "pool");
        assert_eq!((&told["replicas"], &told["readyReplicas"]), (&json!(3), &json!(3)));
        let authority = world.get("secrets", "db-ca").unwrap()["data"]["ca.crt"].clone();
        let authority = STANDARD.decode(authority.as_str().unwrap()).unwrap();
        let authority = certificates::read(&String::from_utf8(authority).unwrap()).unwrap();
        assert_eq!(told["certificate"]["issuer"], authority.identifier);
        assert_eq!(
            told["sizing"],
            json!({"possibleServerConnections": 60, "available": 92})
        );
        {
            let agents = world.agents.lock().unwrap();
            assert!(agents.catalogue.has_lookup && agents.catalogue.roles.contains_key("cdb_pooler"));
        }
        world.rests(LONG).await;

        // The Deployment is watched; of the others it is noticed within ten minutes.
        world.user(
            200,
            Verb::Merge,
            "deployments",
            "pool",
            json!({"spec": {"replicas": 1}}),
        );
        let is_three = |world: &World| world.get("deployments", "pool").unwrap()["spec"]["replicas"] == 3;
        world.until("three again", is_three).await;
        world.delete("services", "pool");
        world
            .until("a Service again", |world| parts(world, "pool") == PARTS.len())
            .await;
        world.until("ready", |world| POOLERS.is(world, "pool", "Ready")).await;

        // A limit changes nothing of the pods.
        let before = pods(&world, "pool");
        POOLERS.change(&world, "pool", &json!({"limits": {"poolSize": 3}}));
        world.until("ready", |world| POOLERS.is(world, "pool", "Ready")).await;
        assert_eq!(pods(&world, "pool"), before);
        world.rests(LONG).await;

        world.delete(POOLERS.plural, "pool");
        world.until("gone", |world| world.list(POOLERS.plural).is_empty()).await;
        world
            .until("its objects are gone", |world| parts(world, "pool") == 0)
            .await;
        assert_eq!(handed_on(&world), 0);
    });
}

#[test]
fn another_version_of_the_operator_replaces_no_pod_until_something_else_does() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = ready(&world).await;
        POOLERS.declare(&world, "pool", &json!({}));
        world.until("ready", |world| POOLERS.is(world, "pool", "Ready")).await;
        let before = pods(&world, "pool");
        drop(operator);
        let next = Config {
            agent_image: "operator:next".to_owned(),
            ..Config::default()
        };
        let _operator = Operator::start(&world.server, next);
        world.rests(LONG).await;
        assert_eq!(pods(&world, "pool"), before);
        POOLERS.change(&world, "pool", &json!({"processes": 2}));
        let is_new = |world: &World| pods(world, "pool")["initContainers"][0]["image"] == "operator:next";
        world.until("new pods have the new agent", is_new).await;
    });
}

#[test]
fn an_object_of_somebody_else_is_named_and_left_alone() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = ready(&world).await;
        let theirs = json!({"metadata": {"name": "pool"}, "spec": {"ports": [{"port": 80}]}});
        world.user(201, Verb::Create, "services", "", theirs);
        let before = world.get("services", "pool");
        POOLERS.declare(&world, "pool", &json!({}));
        let told = |world: &World| POOLERS.is(world, "pool", "Failed") && POOLERS.says(world, "pool", "a Service pool");
        world.until("it is told", told).await;
        assert_eq!((world.get("services", "pool"), parts(&world, "pool")), (before, 1));
        world.delete("services", "pool");
        world.until("ready", |world| POOLERS.is(world, "pool", "Ready")).await;
    });
}

#[test]
fn a_pooler_waits_for_its_cluster_and_has_no_pods_while_that_hibernates() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        postgres(&world);
        POOLERS.declare(&world, "pool", &json!({}));
        let waits =
            |world: &World| POOLERS.is(world, "pool", "Pending") && POOLERS.says(world, "pool", "there is none");
        world.until("it waits", waits).await;
        world.create(&json!({"replicas": 1}));
        world.until("ready", |world| POOLERS.is(world, "pool", "Ready")).await;
        world.edit(&json!({"hibernated": true}));
        let has_none = |world: &World| POOLERS.status(world, "pool")["replicas"] == 0;
        world.until("no pods", has_none).await;
        assert!(POOLERS.says(&world, "pool", "it has no pods while db serves nobody"));
        world.edit(&json!({"hibernated": false}));
        world.until("ready", |world| POOLERS.is(world, "pool", "Ready")).await;
        // Its deletion ends, though its cluster serves nobody.
        world.edit(&json!({"hibernated": true}));
        world.until("no pods", has_none).await;
        world.delete(POOLERS.plural, "pool");
        world.until("gone", |world| world.list(POOLERS.plural).is_empty()).await;
    });
}

#[test]
fn a_kill_at_any_write_for_a_pooler_leads_to_the_same_end() {
    let writes = POOLERS.survives_kills(postgres, |world, is_there| {
        assert_eq!(parts(world, "o"), if is_there { PARTS.len() } else { 0 });
    });
    assert!(writes >= 14, "{writes}");
}
