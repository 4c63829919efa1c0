//! A database from its creation to its deletion: every change of its spec comes to an end, and then nothing is written.

use std::time::Duration;

use fake_api::Verb;
use fake_api::faults::{Faults, Rates};
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{LONG, NAME, Operator, World, run};

/// What becomes of a ready database of three when `course` is done to it.
fn with_three(course: impl AsyncFnOnce(&World)) {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        course(&world).await;
    });
}

fn pods(world: &World) -> Vec<String> {
    let pods = world.list("pods").into_iter();
    pods.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn pod_uids(world: &World) -> Vec<String> {
    let pods = world.list("pods").into_iter();
    pods.map(|pod| pod["metadata"]["uid"].to_string()).collect()
}

#[test]
fn a_database_becomes_ready_within_its_budget_and_rests() {
    with_three(async |world| {
        let writes = world.writes();
        assert!(writes.len() <= 25, "the goal for a whole creation: {writes:#?}");
        assert_eq!(world.agents.lock().unwrap().initdbs, 1);
        assert_eq!(pods(world), ["db-0", "db-1", "db-2"]);
        world.rests(LONG).await;
        // Another process finds nothing to do, either, and nor does one that lists everything again.
        let before = world.writes();
        let _other = Operator::start(&world.server, Config::default());
        world.server.within(|store, _| store.compact());
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(world.writes(), before);
    });
}

#[test]
fn watches_that_are_behind_undo_nothing_that_was_written() {
    for seed in 0..4 {
        run(seed, async || {
            let rates = Rates {
                lag: [300, 3_000],
                ..Rates::NONE
            };
            let world = World::new(Faults::new(seed, rates), Duration::from_secs(1));
            let _operator = Operator::start(&world.server, Config::default());
            world.create(&json!({"replicas": 3}));
            world.ready().await;
            // Nobody else writes it: a conflict means that an older version was believed.
            let requests = world.server.trace().into_iter();
            let met: Vec<_> = requests
                .filter(|line| line.starts_with("409 Update clustereddatabases"))
                .collect();
            assert!(met.is_empty(), "{met:#?}");
            world.rests(LONG).await;
        });
    }
}

#[test]
fn it_is_scaled_up_and_down() {
    with_three(async |world| {
        let first = pod_uids(world);
        world.edit(&json!({"replicas": 5}));
        world.ready().await;
        assert_eq!(pods(world), ["db-0", "db-1", "db-2", "db-3", "db-4"]);
        assert_eq!(pod_uids(world)[..3], first, "the others are left alone");
        world.edit(&json!({"replicas": 3}));
        world.ready().await;
        assert_eq!(pod_uids(world), first);
        assert_eq!(world.list("persistentvolumeclaims").len(), 5, "volumes are kept");
        world.rests(LONG).await;
    });
}

#[test]
fn a_parameter_is_taken_up_by_restarts_in_place() {
    with_three(async |world| {
        let first = pod_uids(world);
        world.edit(&json!({"postgres": {"parameters": {"max_connections": "200"}}}));
        world.ready().await;
        assert_eq!(pod_uids(world), first, "no pod is replaced");
        assert_eq!(
            world.agents.lock().unwrap().primaries,
            ["db-0"],
            "nor does the primary move"
        );
        world.rests(LONG).await;
    });
}

#[test]
fn an_image_is_taken_up_pod_by_pod_and_the_primary_moves_once() {
    with_three(async |world| {
        let first = pod_uids(world);
        world.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        world.ready().await;
        assert!(
            pod_uids(world).iter().all(|uid| !first.contains(uid)),
            "all are replaced"
        );
        let deleted: Vec<_> = world
            .writes()
            .into_iter()
            .filter(|write| write.starts_with("Delete pods"))
            .collect();
        let order: Vec<_> = deleted
            .iter()
            .filter_map(|write| write.split(['/', ' ']).nth(3))
            .collect();
        assert_eq!(order, ["db-2", "db-1", "db-0"], "{deleted:?}");
        assert_eq!(world.agents.lock().unwrap().primaries.len(), 2);
        world.rests(LONG).await;
    });
}

#[test]
fn cpu_is_changed_in_the_running_pods() {
    with_three(async |world| {
        let first = pod_uids(world);
        world.edit(&json!({"resources": {"requests": {"cpu": "250m"}}}));
        world.ready().await;
        let resized: Vec<_> = world
            .writes()
            .into_iter()
            .filter(|write| write.contains("pods/resize"))
            .collect();
        assert_eq!(resized.len(), 3, "{resized:?}");
        assert_eq!(pod_uids(world), first, "no pod is replaced");
        world.rests(LONG).await;
    });
}

/// Nothing that belongs to the database is left, but for these: claims, Secrets and Leases.
fn assert_left(world: &World, counts: [usize; 3], which: &str) {
    let kept = ["persistentvolumeclaims", "secrets", "leases"];
    assert_eq!(kept.map(|plural| world.list(plural).len()), counts, "{which}");
    for plural in [
        "pods",
        "statefulsets",
        "services",
        "endpointslices",
        "roles",
        "rolebindings",
    ] {
        let left = world.list(plural);
        assert!(left.is_empty(), "{which}: {left:#?}");
    }
}

#[test]
fn it_is_deleted_with_or_without_its_volumes() {
    for (fate, counts) in [("Retain", [3, 2, 1]), ("Delete", [0, 0, 0])] {
        with_three(async |world| {
            world.edit(&json!({"storage": {"retentionPolicy": {"whenDeleted": fate}}}));
            world.ready().await;
            let gone = |world: &World| world.get("clustereddatabases", NAME).is_none();
            world.user(200, Verb::Delete, "clustereddatabases", NAME, Value::Null);
            assert!(!gone(world), "the finalizer keeps it");
            world.until("gone", gone).await;
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert_left(world, counts, fate);
        });
    }
}
