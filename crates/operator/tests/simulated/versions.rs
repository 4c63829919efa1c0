//! Two operators of different versions at once: the old leader may still be at work while the new one begins.

use std::time::Duration;

use fake_api::faults::{Faults, Rates};
use fake_api::{Call, Verb};
use operator::config::Config;
use serde_json::json;

use super::operations::{OPERATIONS, message, phase};
use super::world::{LONG, NAME, NAMESPACE, Operator, World, operation, run};

/// The operator of this version, whose default image of PostgreSQL is of its own, too.
fn version(version: u8) -> Config {
    Config {
        agent_image: format!("example.org/operator:{version}"),
        postgres_images: [(17, postgres(version))].into(),
        ..Config::default()
    }
}

fn postgres(version: u8) -> String {
    format!("example.org/postgres:17.{version}")
}

/// The image that the StatefulSet's pods are made with.
fn image(world: &World) -> String {
    let containers = &world.list("statefulsets")[0]["spec"]["template"]["spec"]["containers"];
    containers[0]["image"].as_str().unwrap_or_default().to_owned()
}

fn pods(world: &World) -> Vec<String> {
    let pods = world.list("pods").into_iter();
    pods.map(|pod| pod["metadata"]["uid"].to_string()).collect()
}

/// An upgrade of the operator under a database of three, with both versions at work for so long.
fn upgrade(seed: u64, overlap: Duration) {
    run(seed, async || {
        let rates = Rates {
            lag: [300, 2_000],
            ..Rates::NONE
        };
        let world = World::new(Faults::new(seed, rates), Duration::from_secs(1));
        let old = Operator::start(&world.server, version(1));
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        let (secrets, before) = (world.secrets(), pods(&world));
        let at_first = world.writes().len();
        let new = Operator::start(&world.server, version(2));
        tokio::time::sleep(overlap).await;
        drop(old);
        println!(
            "{} writes while both were at work for {overlap:?}",
            world.writes().len() - at_first
        );
        world.server.faults(Faults::stop);
        world.ready().await;
        world.rests(LONG).await;
        drop(new);
        let set = world.list("statefulsets")[0]["spec"].to_string();
        assert!(set.contains("operator:2") && !set.contains("operator:1"), "{set}");
        assert_eq!(world.secrets(), secrets, "no password is made again");
        assert_eq!(pods(&world), before, "an upgrade of the operator restarts nobody");
        assert_eq!(image(&world), postgres(1));
        assert_eq!(world.agents.lock().unwrap().initdbs, 1);
    });
}

#[test]
fn an_upgrade_with_both_versions_at_work_ends_with_the_new_one() {
    for (seed, overlap) in [(1, 0), (2, 1), (3, 5), (4, 20), (5, 90)] {
        upgrade(seed, Duration::from_secs(overlap));
    }
}

#[test]
fn another_default_image_is_taken_by_an_operation_alone_even_where_none_is_on_record() {
    run(1, async || {
        let world = World::new(Faults::new(1, Rates::NONE), Duration::from_secs(1));
        let old = Operator::start(&world.server, version(1));
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        world.rests(LONG).await;
        drop(old);
        let recorded = || world.status()["memo"]["image"]["image"].clone();
        assert_eq!(recorded(), postgres(1));
        // As an operator leaves it that keeps no record of images.
        let forget = json!({"status": {"memo": {"image": null}}});
        let forget = Call::new(Verb::Merge, "clustereddatabases", NAMESPACE, NAME, forget).to("status");
        world.server.within(|store, now| store.call(&forget, now));
        assert!(recorded().is_null());

        let before = pods(&world);
        let _new = Operator::start(&world.server, version(2));
        world.rests(LONG).await;
        assert_eq!((pods(&world), image(&world)), (before.clone(), postgres(1)));
        assert_eq!(recorded(), postgres(1));
        let told = world.status()["conditions"].to_string();
        assert!(
            told.contains("OtherDefaultImage") && told.contains(&postgres(2)),
            "{told}"
        );

        let ask = |name: &str, image: &str| {
            let asked = operation(name, json!({"takeImage": {"image": image}}));
            world.user(201, Verb::Create, OPERATIONS, "", asked);
        };
        ask("other", "example.org/other:1");
        ask("take", &postgres(2));
        world.until("taken", |world| phase(world, "take") == "Completed").await;
        assert_eq!(message(&world, "take"), format!("all instances run {}", postgres(2)));
        assert_eq!(phase(&world, "other"), "Failed");
        assert!(
            message(&world, "other").contains(&postgres(2)),
            "{}",
            message(&world, "other")
        );
        world.ready().await;
        world.rests(LONG).await;
        assert!(
            pods(&world).iter().all(|uid| !before.contains(uid)),
            "all pods are made again"
        );
        assert_eq!(image(&world), postgres(2));
        assert!(!world.status()["conditions"].to_string().contains("OtherDefaultImage"));
    });
}
