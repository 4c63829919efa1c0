//! B. Old views, two actors.

use super::*;

#[test]
fn b_11_a_cache_from_before_the_resource_was_made_again() {
    let spec = json!({"replicas": 3, "storage": {"retentionPolicy": {"whenDeleted": "Delete"}}});
    scenario("11-a-cache-from-before-it-was-made-again", &spec, async |script| {
        script.delete("clustereddatabases", "db");
        script
            .stops_before("a", "Delete persistentvolumeclaims ns/data-db-0")
            .await;
        // What the first will do when it goes on, and what another reads that starts with this view.
        script.freeze("c", ALL);
        script.start("b");
        script
            .until("gone", |world| world.list("clustereddatabases").is_empty())
            .await;
        script.kill("b");
        script.does("makes it again", |world| world.create(&spec));
        script.start("b2");
        script.ready().await;
        // What follows is written down in tenths of seconds, and would stand at the edge of one.
        script.sleep(Duration::from_millis(50)).await;
        script.kill("b2");
        let all = script.world.uids();
        script.goes_on("a");
        script.start("c");
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.world.uids(), all, "nothing of the new one is touched");
        script.kill("a");
        script.thaw("c");
        script.rests().await;
        assert_eq!(script.world.uids(), all);
    });
}

#[test]
fn b_12_a_cache_from_before_a_scale_up() {
    scenario(
        "12-a-cache-from-before-a-scale-up",
        &json!({"replicas": 1}),
        async |script| {
            script.freeze("b", ALL);
            script.edit(&three());
            script.ready().await;
            script.kill("a");
            let (pods, claims) = (script.uids("pods"), script.uids("persistentvolumeclaims"));
            script.always("three are wanted", |world| set_replicas(world) == 3);
            script.start("b");
            script.sleep(LONG_ENOUGH).await;
            script.thaw("b");
            script.rests().await;
            assert_eq!(
                (script.uids("pods"), script.uids("persistentvolumeclaims")),
                (pods, claims)
            );
        },
    );
}

#[test]
fn b_13_a_list_with_a_pod_that_was_replaced() {
    scenario("13-a-pod-that-was-replaced", &three(), async |script| {
        script.freeze("b", &["pods"]);
        script.delete("pods", "db-2");
        script.until("it is gone", |world| world.list("pods").len() == 2).await;
        script.until("it is back", |world| ready(world) == 3).await;
        script.ready().await;
        script.kill("a");
        let pods = script.uids("pods");
        script.start("b");
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.uids("pods"), pods, "what it meant is gone: nothing is deleted");
        script.thaw("b");
        script.rests().await;
        assert!(script.uids("pods").iter().all(|(name, uid)| pods[name] != *uid));
        assert_eq!(script.primaries().len(), 2);
    });
}

#[test]
fn b_13_a_claim_that_was_made_again() {
    scenario("13-a-claim-that-was-made-again", &three(), async |script| {
        let claims = script.uids("persistentvolumeclaims");
        script.freeze("a", &["persistentvolumeclaims"]);
        script.delete("persistentvolumeclaims", "data-db-2");
        script.delete("pods", "db-2");
        script.sleep(LONG_ENOUGH).await;
        script.thaw("a");
        script.rests().await;
        assert_ne!(
            script.uids("persistentvolumeclaims")["data-db-2"],
            claims["data-db-2"],
            "its copy is made for the new one"
        );
        assert_eq!(script.primaries(), ["db-0"]);
    });
}

#[test]
fn b_15_a_view_from_before_the_secrets() {
    from_nothing(
        "15-a-view-from-before-the-secrets",
        fake_api::faults::Rates::NONE,
        async |script| {
            script.freeze("b", &["secrets"]);
            script.start("a");
            script.world.create(&json!({"replicas": 2}));
            script.ready().await;
            script.forget();
            script.kill("a");
            let secrets = script.world.secrets();
            assert_eq!(secrets.len(), 3);
            script.start("b");
            script.sleep(LONG_ENOUGH).await;
            assert!(
                script.world.secrets() == secrets,
                "no key and no password is made again"
            );
            script.thaw("b");
            script.rests().await;
            assert!(script.world.secrets() == secrets);
        },
    );
}

#[test]
fn b_17_an_object_of_that_name_is_there() {
    from_nothing("17-a-foreign-service", fake_api::faults::Rates::NONE, async |script| {
        let service = json!({"metadata": {"name": "db-ro"}, "spec": {"ports": [{"port": 80}]}});
        script.does("has a Service db-ro", |world| {
            world.user(201, fake_api::Verb::Create, "services", "", service)
        });
        let theirs = script.world.get("services", "db-ro");
        script.start("a");
        script.world.create(&json!({}));
        script
            .until("failed", |world| world.status()["failure"]["reason"] == "ForeignObject")
            .await;
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.world.get("services", "db-ro"), theirs);
        script.delete("services", "db-ro");
        script.rests().await;
    });
}

#[test]
fn b_19_a_stopped_leader_goes_on() {
    scenario("19-a-stopped-leader-goes-on", &three(), async |script| {
        script.edit(&json!({"postgres": {"image": "example.org/postgres:17.7"}}));
        script.stops_before("a", "Delete pods ns/db-1").await;
        script.start("b");
        script.ready().await;
        let all = script.world.uids();
        script.goes_on("a");
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(
            script.told("409 for: Delete pods ns/db-1 (the request that was held up)"),
            1
        );
        script.rests().await;
        assert_eq!(script.world.uids(), all);
        assert_eq!(script.primaries().len(), 2);
    });
}

/// The same at every write of a change: whatever the first operator was about to write, it changes nothing that the
/// second has finished.
#[test]
fn b_19_a_leader_that_is_stopped_anywhere_changes_nothing_when_it_goes_on() {
    use fake_api::faults::Faults;
    use operator::config::Config;

    use crate::world::{Operator, run};

    let changes = [
        json!({"postgres": {"image": "example.org/postgres:17.7"}}),
        json!({"replicas": 4, "storage": {"data": {"size": "2Gi"}}, "postgres": {"parameters": {"max_connections": "200"}}}),
    ];
    let course = |change: &Value, stop: Option<usize>| -> usize {
        run(1, async || {
            let world = World::new(Faults::none(), Duration::from_millis(400));
            let process = fake_api::Process::new("a");
            let _first = Operator::start_in(&world.server, Config::default(), &process);
            world.create(&three());
            world.ready().await;
            let writes = |what: &str| !["Get ", "List ", "Watch "].iter().any(|verb| what.starts_with(verb));
            let before = process.answered().iter().filter(|answer| writes(&answer.what)).count();
            let mut left = stop;
            process.stop_before(move |what| {
                let this = writes(what) && left == Some(0);
                left = left.map(|left| left.saturating_sub(usize::from(writes(what))));
                this
            });
            world.edit(change);
            if stop.is_some() {
                process.stopped().await;
                let _second = Operator::start(&world.server, Config::default());
                world.ready().await;
                tokio::time::sleep(Duration::from_secs(40)).await;
                let (uids, primaries) = (world.uids(), world.agents.lock().unwrap().primaries.clone());
                process.go_on();
                tokio::time::sleep(Duration::from_secs(60)).await;
                let late: Vec<_> = process.answered().into_iter().filter(|answer| answer.late).collect();
                assert_eq!(late.len(), 1, "{change} {stop:?}");
                assert_eq!(world.uids(), uids, "{change} {stop:?}: {late:?}");
                assert_eq!(world.agents.lock().unwrap().primaries, primaries, "{late:?}");
                println!("{} {}", late[0].code, late[0].what);
            }
            world.ready().await;
            world.rests(Duration::from_secs(60)).await;
            process.answered().iter().filter(|answer| writes(&answer.what)).count() - before
        })
    };
    for change in changes {
        let writes = course(&change, None);
        assert!(writes > 10, "{writes}");
        for stop in 0..writes {
            course(&change, Some(stop));
        }
    }
}
