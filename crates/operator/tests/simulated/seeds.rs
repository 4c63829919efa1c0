//! Random edits of a user and a cluster that fails in random ways, by a seed: when the faults stop, the database becomes
//! ready, and then nothing is written.

use std::time::Duration;

use fake_api::faults::{Faults, Rates};
use fake_api::{Call, Verb};
use fastrand::Rng;
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{NAME, NAMESPACE, Operator, World, run};

/// How many seeds are run, in two halves side by side; the environment may ask for more.
const SEEDS: u64 = 30;
const SEEDS_VARIABLE: &str = "CDB_SEEDS";

/// One run; its requests.
fn course(seed: u64) -> Vec<String> {
    run(seed, async || {
        let mut rng = Rng::with_seed(seed);
        let pace = Duration::from_millis(rng.u64(200..4_000));
        let world = World::new(Faults::new(seed, Rates::swarm(seed)), pace);
        let mut operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": rng.i32(1..=3)}));
        for _ in 0..rng.u32(3..10) {
            tokio::time::sleep(Duration::from_millis(rng.u64(0..30_000))).await;
            if rng.u32(0..5) == 0 {
                drop(operator);
                operator = Operator::start(&world.server, Config::default());
            } else {
                disturb(&world, &mut rng);
            }
        }
        world.server.faults(Faults::stop);
        world.each_node(&json!({"spec": {"unschedulable": null}}));
        world.edit(&json!({"hibernated": false, "fenced": []}));
        world.ready().await;
        world.rests(Duration::from_secs(60)).await;
        drop(operator);
        assert_eq!(world.agents.lock().unwrap().initdbs, 1, "one database was made");
        world.server.trace()
    })
}

/// One thing that a user or an accident does.
fn disturb(world: &World, rng: &mut Rng) {
    let replicas = rng.i32(1..=5);
    // The API server demands that fewer instances go with a lower promise.
    let mode = if replicas < 3 { "Async" } else { "Required" };
    let edits = [
        json!({"replicas": replicas, "durability": {"mode": mode}}),
        json!({"postgres": {"parameters": {"work_mem": format!("{}MB", rng.u32(4..8))}}}),
        json!({"postgres": {"image": format!("example.org/postgres:17.{}", rng.u32(5..8))}}),
        json!({"resources": {"requests": {"cpu": format!("{}m", rng.u32(1..4) * 100)}}}),
        json!({"hibernated": rng.bool()}),
        json!({"fenced": if rng.bool() { json!(["db-0"]) } else { json!([]) }}),
        json!({"pods": {"metadata": {"labels": {"team": format!("t{}", rng.u32(0..3))}}}}),
    ];
    if rng.bool() {
        world.edit(&edits[rng.usize(0..edits.len())]);
    } else {
        accident(world, rng);
    }
}

/// One thing that happens to a cluster.
pub fn accident(world: &World, rng: &mut Rng) {
    let merge = |plural, name, change| {
        attempt(world, Verb::Merge, plural, name, change);
    };
    match rng.u32(0..6) {
        0 => remove(world, "pods", &format!("{NAME}-{}", rng.u32(0..3))),
        1 => {
            let removable = [
                ("services", "db-ro"),
                ("services", "db-pods"),
                ("roles", "db"),
                ("rolebindings", "db"),
                ("poddisruptionbudgets", "db"),
                ("statefulsets", "db"),
                ("secrets", "db-tls"),
            ];
            let (plural, name) = removable[rng.usize(0..removable.len())];
            remove(world, plural, name);
        }
        2 => merge("services", "db-rw", json!({"spec": {"selector": {"app": "evil"}}})),
        3 => {
            let edited = json!({"metadata": {"annotations": {"clustereddatabase.io/revision": "edited"}}});
            merge("statefulsets", NAME, json!({"spec": {"template": edited}}));
        }
        4 => {
            let node = ["n1", "n2", "n3"][rng.usize(0..3)];
            merge("nodes", node, json!({"spec": {"unschedulable": rng.bool()}}));
        }
        _ => world.server.within(|store, _| store.compact()),
    }
}

/// As `kubectl delete` does; a StatefulSet without its pods, as people do it who know.
fn remove(world: &World, plural: &str, name: &str) {
    let policy = if plural == "statefulsets" {
        "Orphan"
    } else {
        "Background"
    };
    attempt(world, Verb::Delete, plural, name, json!({"propagationPolicy": policy}));
}

/// What may be refused; says whether it was done.
pub fn attempt(world: &World, verb: Verb, plural: &str, name: &str, body: Value) -> bool {
    let namespace = if plural == "nodes" { "" } else { NAMESPACE };
    let call = Call::new(verb, plural, namespace, name, body).with("fieldManager", "user");
    world.server.within(|store, now| store.call(&call, now)).code == 200
}

/// Runs one half of the seeds.
fn courses(half: u64) {
    let seeds = std::env::var(SEEDS_VARIABLE).map_or(SEEDS, |seeds| seeds.parse().unwrap());
    for seed in (0..seeds).filter(|seed| seed % 2 == half) {
        let began = std::time::Instant::now();
        let done = std::panic::catch_unwind(|| course(seed));
        println!(
            "seed {seed}: {} lines in {:.2?}",
            done.as_ref().map_or(0, Vec::len),
            began.elapsed()
        );
        assert!(done.is_ok(), "seed {seed}: see above");
    }
}

#[test]
fn a_seed_gives_the_same_requests_each_time() {
    for seed in [3, 4, 5] {
        let (one, other) = (course(seed), course(seed));
        let differs = one.iter().zip(&other).position(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.len(), other.len(), "seed {seed}");
    }
}

#[test]
fn it_becomes_ready_when_the_faults_stop_1() {
    courses(0);
}

#[test]
fn it_becomes_ready_when_the_faults_stop_2() {
    courses(1);
}
