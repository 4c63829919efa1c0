//! A bug in the operator's own code that one database's objects bring out: only that database waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fake_api::faults::Faults;
use fake_api::{Key, Store, Verb};
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{NAME, Operator, World, run};

#[test]
fn a_time_on_a_pod_that_no_clock_shows_is_no_time() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        let pod = world.get("pods", "db-2").unwrap();
        let revision = pod["metadata"]["annotations"]["clustereddatabase.io/revision"]
            .as_str()
            .unwrap();
        for time in [
            "+262142-12-31T23:59:59Z",
            "-262143-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
        ] {
            let note = json!({"clustereddatabase.io/resizing": format!("{revision} {time}")});
            world.user(
                200,
                Verb::Merge,
                "pods",
                "db-2",
                json!({"metadata": {"annotations": note}}),
            );
            let noted = |world: &World| {
                let pod = world.get("pods", "db-2").unwrap();
                pod["metadata"]["annotations"]["clustereddatabase.io/resizing"] != Value::Null
            };
            world.until(&format!("as it was: {time}"), |world| !noted(world)).await;
            world.ready().await;
        }
        assert_eq!(
            world.get("pods", "db-2").unwrap()["metadata"]["uid"],
            pod["metadata"]["uid"]
        );
    });
}

/// The condition `Degraded` of the database.
fn degraded(world: &World) -> (Value, Value) {
    let conditions = world.status()["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|found| found["type"] == "Degraded");
    found.map_or((Value::Null, Value::Null), |found| {
        (found["status"].clone(), found["reason"].clone())
    })
}

fn has_internal_error(world: &World) -> bool {
    degraded(world) == (json!("True"), json!("InternalError"))
}

#[test]
fn a_decision_that_panics_rests_its_database_alone() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let (broken, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let _operator = Operator::start_with_a_bug(&world.server, NAME, {
            let (broken, tries) = (Arc::clone(&broken), Arc::clone(&tries));
            move || {
                let so = broken.load(Ordering::SeqCst);
                tries.fetch_add(usize::from(so), Ordering::SeqCst);
                so
            }
        });
        let tried = || tries.load(Ordering::SeqCst);
        world.create(&json!({"replicas": 3}));
        world.ready().await;
        broken.store(true, Ordering::SeqCst);
        world.edit(&json!({"replicas": 5}));
        world.until("told", has_internal_error).await;
        let other = json!({"metadata": {"name": "other"}, "spec": {"storage": {"data": {"size": "1Gi"}}}});
        world.user(201, Verb::Create, "clustereddatabases", "", other);
        let made = |world: &World| world.get("statefulsets", "other").is_some();
        let soon = tokio::time::timeout(Duration::from_secs(60), world.until("the other is made", made));
        soon.await.unwrap();
        let events = |world: &World| {
            let is_told = |(key, object): (&Key, &Arc<Value>)| {
                key.kind.group == "events.k8s.io" && object["reason"] == "InternalError"
            };
            let count = |store: &Store| store.everything().filter(|found| is_told(*found)).count();
            world.server.within(|store, _| count(store))
        };
        assert_eq!(events(&world), 1);

        // 1, 2, 4 ... 512 and 600 s, and events (the agents renew the Lease, a user writes) at most ten times as often.
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!((8..=100).contains(&tried()), "{} tries", tried());
        assert_eq!(events(&world), 1, "told once");
        let before = tried();
        for second in 0..300 {
            let note = json!({"metadata": {"annotations": {"note": second.to_string()}}});
            world.user(200, Verb::Merge, "services", "db-rw", note);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let meanwhile = tried() - before;
        assert!(
            (1..=7).contains(&meanwhile),
            "{meanwhile} tries in 5 min of events each second"
        );

        // A changed spec is tried at once, though not in a loop.
        let before = tried();
        world.edit(&json!({"replicas": 4}));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(tried() - before, 1);
        assert!(has_internal_error(&world));
        broken.store(false, Ordering::SeqCst);
        world.edit(&json!({"replicas": 3}));
        let soon = tokio::time::timeout(Duration::from_secs(120), world.ready());
        soon.await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(degraded(&world).0, "False");
    });
}

#[test]
fn what_panicked_is_tried_again_by_itself() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let broken = Arc::new(AtomicBool::new(true));
        let so = Arc::clone(&broken);
        let _operator = Operator::start_with_a_bug(&world.server, NAME, move || so.load(Ordering::SeqCst));
        world.create(&json!({"replicas": 1}));
        world.until("told", has_internal_error).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        broken.store(false, Ordering::SeqCst);
        let soon = tokio::time::timeout(Duration::from_secs(660), world.ready());
        soon.await.unwrap();
    });
}
