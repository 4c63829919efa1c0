//! Writes that are refused since the watches are behind.

use std::time::Duration;

use fake_api::Verb;
use fake_api::faults::{Faults, Rates};
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{LONG, NAME, Operator, World, run};

/// How far the watches are behind.
const LAG: Duration = Duration::from_secs(40);

/// Refused writes of the status.
fn refused(world: &World) -> usize {
    let requests = world.server.trace().into_iter();
    requests
        .filter(|line| line.starts_with("409 Update clustereddatabases"))
        .count()
}

#[test]
fn a_write_over_an_old_version_is_repeated_ever_more_rarely_and_at_once_over_a_newer_one() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        world.rests(LONG).await;
        let millis = u64::try_from(LAG.as_millis()).unwrap();
        let rates = Rates {
            lag: [millis; 2],
            ..Rates::NONE
        };
        world.server.faults(|faults| *faults = Faults::new(1, rates));
        // The operator hears of the pod half of the time before it hears of the resource, and has to say so in its status.
        world.user(200, Verb::Delete, "pods", "db-0", Value::Null);
        tokio::time::sleep(LAG / 2).await;
        let note = json!({"metadata": {"annotations": {"note": "x"}}});
        let noted = world.user(200, Verb::Merge, "clustereddatabases", NAME, note);
        tokio::time::sleep(LAG - Duration::from_secs(1)).await;
        let before = refused(&world);
        // 100 ms and then twice as long each time: 19 s have room for eight.
        assert!((3..=9).contains(&before), "{before} refused writes");
        let version =
            |world: &World| world.get("clustereddatabases", NAME).unwrap()["metadata"]["resourceVersion"].clone();
        assert_eq!(
            version(&world),
            noted["metadata"]["resourceVersion"],
            "nobody wrote it since"
        );
        // Now the watch shows the version that is there: the next try would be far away by the clock alone.
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_ne!(
            version(&world),
            noted["metadata"]["resourceVersion"],
            "{:#}",
            world.status()
        );
        world.server.faults(Faults::stop);
        world.ready().await;
    });
}
