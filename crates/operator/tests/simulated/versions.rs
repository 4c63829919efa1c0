//! Two operators of different versions at once: the old leader may still be at work while the new one begins.

use std::time::Duration;

use fake_api::faults::{Faults, Rates};
use operator::config::Config;
use serde_json::json;

use super::world::{LONG, Operator, World, run};

fn version(image: &str) -> Config {
    Config {
        agent_image: image.to_owned(),
        ..Config::default()
    }
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
        let old = Operator::start(&world.server, version("example.org/operator:1"));
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        let (secrets, before) = (world.secrets(), pods(&world));
        let at_first = world.writes().len();
        let new = Operator::start(&world.server, version("example.org/operator:2"));
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
        assert_eq!(world.agents.lock().unwrap().initdbs, 1);
    });
}

#[test]
fn an_upgrade_with_both_versions_at_work_ends_with_the_new_one() {
    for (seed, overlap) in [(1, 0), (2, 1), (3, 5), (4, 20), (5, 90)] {
        upgrade(seed, Duration::from_secs(overlap));
    }
}
