//! How much of a database's objects is kept in memory. What the program takes in all is measured by `cargo xtask memory`.

use fake_api::Verb;
use fake_api::faults::Faults;
use operator::cache::Key;
use operator::config::Config;
use serde_json::json;

use super::creation::PACE;
use super::world::{NAME, NAMESPACE, Operator, World, run};

/// The most for a database of three instances that runs, in bytes.
const MOST: usize = 33_000;

#[test]
fn a_database_takes_few_bytes_and_nothing_more_when_it_is_gone() {
    run(1, async || {
        let world = World::new(Faults::none(), PACE);
        let operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3, "networkPolicy": {"mode": "Managed"}}));
        world.ready().await;
        let key = Key::database(NAMESPACE.to_owned(), NAME.to_owned());
        let bytes = || operator.caches.bytes(&key);
        let all = || bytes().iter().map(|(_, bytes)| bytes).sum::<usize>();
        // Only users need a ConfigMap, and only poolers a Deployment.
        let is_right = |(kind, bytes): &(&str, usize)| (*bytes > 0) != ["ConfigMap", "Deployment"].contains(kind);
        assert!(bytes().iter().all(is_right) && all() < MOST, "{:?}", bytes());

        // An agent and a user write something that nothing reads.
        let before = all();
        let long = json!({"metadata": {"annotations": {"a": "x".repeat(250_000)}}});
        for (plural, name) in [
            ("pods", "db-0"),
            ("leases", "db"),
            ("roles", "db"),
            ("clustereddatabases", NAME),
        ] {
            world.user(200, Verb::Merge, plural, name, long.clone());
        }
        world.ready().await;
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(all() < before + 500, "{before}, {:?}", bytes());

        // Its claims stay when it is deleted.
        world.delete("clustereddatabases", NAME);
        world
            .until("gone", |world| world.list("clustereddatabases").is_empty())
            .await;
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert_eq!(world.list("persistentvolumeclaims").len(), 3);
        assert_eq!(all(), 0, "{:?}", bytes());
        assert!(operator.caches.claims.has(&key), "that they are there is known");

        // A database of that name meets them again.
        world.create(&json!({"replicas": 3}));
        world
            .until("met", |_| {
                bytes()
                    .iter()
                    .any(|(kind, bytes)| *kind == "PersistentVolumeClaim" && *bytes > 0)
            })
            .await;
    });
}
