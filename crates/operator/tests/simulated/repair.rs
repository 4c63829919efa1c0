//! What somebody else changes, removes or has made before.

use std::time::Duration;

use fake_api::Verb;
use fake_api::faults::Faults;
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{LONG, NAME, Operator, World, run, switchover};

fn world() -> World {
    World::new(Faults::none(), Duration::from_millis(400))
}

fn find(world: &World, plural: &str, name: &str) -> Value {
    world.get(plural, name).map_or(Value::Null, |object| (*object).clone())
}

/// What becomes of a ready database of two when `course` is done to it.
fn with_two(course: impl AsyncFnOnce(&World)) {
    run(1, async || {
        let world = world();
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 2}));
        world.ready().await;
        course(&world).await;
    });
}

#[test]
fn a_foreign_service_is_left_alone_and_named() {
    run(1, async || {
        let world = world();
        let service = json!({"metadata": {"name": "db-ro"}, "spec": {"ports": [{"port": 80}]}});
        world.user(201, Verb::Create, "services", "", service);
        let theirs = find(&world, "services", "db-ro");
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({}));
        world.until("failed", |world| world.status()["phase"] == "Failed").await;
        assert_eq!(world.status()["failure"]["reason"], "ForeignObject");
        assert_eq!(find(&world, "services", "db-ro"), theirs);
        world.user(200, Verb::Delete, "services", "db-ro", Value::Null);
        world.ready().await;
    });
}

/// Otherwise whoever may create a database could read any Secret of the namespace that has a key `password`.
#[test]
fn a_secret_is_used_as_a_password_only_with_its_consent() {
    run(1, async || {
        let world = world();
        let _operator = Operator::start(&world.server, Config::default());
        let given = json!({"metadata": {"name": "given"}, "data": {"password": "aHVudGVyMg=="}});
        world.user(201, Verb::Create, "secrets", "", given);
        world.create(&json!({"bootstrap": {"initdb": {"passwordSecretRef": {"name": "given"}}}}));
        let consent = "kubectl label secret given clustereddatabase.io/password-for=db";
        let asked = |world: &World| world.status()["waiting"].to_string().contains(consent);
        world.until("asks for consent", asked).await;
        assert!(world.get("secrets", "db-app").is_none() && world.get("statefulsets", NAME).is_none());
        let label = |of: &str| json!({"metadata": {"labels": {"clustereddatabase.io/password-for": of}}});
        world.user(200, Verb::Merge, "secrets", "given", label("other"));
        world.until("asks again", asked).await;
        assert!(world.get("secrets", "db-app").is_none());
        world.user(200, Verb::Merge, "secrets", "given", label("db"));
        world.ready().await;
        assert_eq!(find(&world, "secrets", "db-app")["data"]["password"], "aHVudGVyMg==");
    });
}

#[test]
fn an_edited_service_is_put_right() {
    with_two(async |world| {
        let ours = find(world, "services", "db-rw");
        let edit = json!({"spec": {"selector": {"app": "evil"}, "ports": [{"name": "postgres", "port": 1}]}});
        world.user(200, Verb::Merge, "services", "db-rw", edit);
        world
            .until("put right", |world| {
                let service = find(world, "services", "db-rw");
                service["spec"]["selector"].is_null() && service["spec"]["ports"] == ours["spec"]["ports"]
            })
            .await;
        assert_eq!(
            find(world, "services", "db-rw")["metadata"]["uid"],
            ours["metadata"]["uid"]
        );
        world.rests(LONG).await;
    });
}

/// What an edit is put right with must not keep what the spec asks for no longer.
#[test]
fn a_service_that_was_edited_loses_what_the_spec_asks_for_no_longer() {
    with_two(async |world| {
        let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "example.org/lb", "metadata": {"annotations": {"example.org/team": "a"}}});
        world.edit(&json!({"services": {"readWrite": balanced}}));
        let of_spec = |world: &World, field: &str| find(world, "services", "db-rw")["spec"][field].clone();
        let team =
            |world: &World| find(world, "services", "db-rw")["metadata"]["annotations"]["example.org/team"].clone();
        world
            .until("asked for", |world| {
                of_spec(world, "loadBalancerClass") == "example.org/lb" && team(world) == "a"
            })
            .await;
        let edit = json!({"spec": {"selector": {"app": "evil"}}});
        world.user(200, Verb::Merge, "services", "db-rw", edit);
        world
            .until("put right", |world| of_spec(world, "selector").is_null())
            .await;
        world.edit(&json!({"services": {"readWrite": null}}));
        world
            .until("taken away", |world| {
                of_spec(world, "type") == "ClusterIP"
                    && of_spec(world, "loadBalancerClass").is_null()
                    && team(world).is_null()
            })
            .await;
        world.rests(LONG).await;
    });
}

#[test]
fn an_edited_template_is_put_right_and_touches_no_pod() {
    with_two(async |world| {
        let before = world.uids();
        let edit = json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}});
        world.user(200, Verb::Merge, "statefulsets", NAME, edit);
        world
            .until("put right", |world| {
                find(world, "statefulsets", NAME)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] != 1
            })
            .await;
        world.rests(LONG).await;
        assert_eq!(world.uids(), before);
    });
}

#[test]
fn a_stateful_set_that_is_deleted_without_its_pods_comes_back_to_them() {
    with_two(async |world| {
        let pods: Vec<_> = world
            .list("pods")
            .iter()
            .map(|pod| pod["metadata"]["uid"].clone())
            .collect();
        let before = find(world, "statefulsets", NAME)["metadata"]["uid"].clone();
        world.user(
            200,
            Verb::Delete,
            "statefulsets",
            NAME,
            json!({"propagationPolicy": "Orphan"}),
        );
        world
            .until("made again", |world| {
                let set = find(world, "statefulsets", NAME);
                set.is_object() && set["metadata"]["uid"] != before && set["metadata"]["deletionTimestamp"].is_null()
            })
            .await;
        world.ready().await;
        world.rests(LONG).await;
        let after: Vec<_> = world
            .list("pods")
            .iter()
            .map(|pod| pod["metadata"]["uid"].clone())
            .collect();
        assert_eq!(after, pods);
    });
}

#[test]
fn an_emptied_secret_gets_its_content_again_and_a_lost_password_is_a_fault() {
    with_two(async |world| {
        let (app, tls) = (find(world, "secrets", "db-app"), find(world, "secrets", "db-tls"));
        let take_out = |name: &str, keys: Value| world.user(200, Verb::Merge, "secrets", name, json!({"data": keys}));
        take_out("db-tls", json!({"tls.crt": null, "tls.key": null}));
        take_out("db-app", json!({"uri": null}));
        world
            .until("filled again", |world| {
                find(world, "secrets", "db-tls")["data"]["tls.key"].is_string()
                    && find(world, "secrets", "db-app")["data"] == app["data"]
            })
            .await;
        let renewed = find(world, "secrets", "db-tls");
        assert_eq!(renewed["metadata"]["uid"], tls["metadata"]["uid"]);
        assert_ne!(renewed["data"]["tls.key"], tls["data"]["tls.key"]);
        assert_eq!(renewed["data"]["ca.crt"], tls["data"]["ca.crt"]);

        take_out("db-app", json!({"password": null}));
        world
            .until("a fault", |world| world.status()["failure"]["reason"] == "PartLost")
            .await;
        assert!(find(world, "secrets", "db-app")["data"]["password"].is_null());
        world.user(200, Verb::Merge, "secrets", "db-app", json!({"data": app["data"]}));
        world
            .until("no fault", |world| world.status()["failure"].is_null())
            .await;
        world.ready().await;
    });
}

#[test]
fn a_binding_to_another_role_is_made_again() {
    with_two(async |world| {
        let before = find(world, "rolebindings", "db");
        world.user(200, Verb::Delete, "rolebindings", "db", Value::Null);
        let mut other = before.clone();
        other["roleRef"]["name"] = json!("admin");
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            other["metadata"].as_object_mut().unwrap().remove(field);
        }
        world.user(201, Verb::Create, "rolebindings", "", other);
        world
            .until("made again", |world| {
                find(world, "rolebindings", "db")["roleRef"] == before["roleRef"]
            })
            .await;
        world.ready().await;
    });
}

#[test]
fn a_request_that_contradicts_the_spec_is_refused_with_one_event() {
    with_two(async |world| {
        let change = json!({"spec": {"primary": {"prefer": "db-0"}}});
        world.user(200, Verb::Merge, "clustereddatabases", NAME, change);
        let asked = switchover("move", "db-1");
        world.user(201, Verb::Create, "clustereddatabaseoperations", "", asked);
        world
            .until("given up", |world| {
                world.status()["memo"]["request"]["outcome"] == "GivenUp"
            })
            .await;
        world.rests(LONG).await;
        let events = world.list("events");
        let all = world.server.within(|store, _| {
            let events = store.everything().filter(|(key, _)| key.kind.group == "events.k8s.io");
            events.map(|(_, event)| (**event).clone()).collect::<Vec<_>>()
        });
        let told: Vec<_> = all
            .iter()
            .filter(|event| event["reason"] == "SwitchoverGivenUp")
            .collect();
        assert_eq!(told.len(), 1, "{all:?} {events:?}");
        let note = told[0]["note"].as_str().unwrap();
        assert!(note.contains("spec.primary.prefer names db-0"), "{note}");
        let operation = find(world, "clustereddatabaseoperations", "move");
        assert_eq!(operation["status"]["phase"], "Failed", "{operation}");
        assert_eq!(operation["status"]["message"], note);
    });
}

/// A compromised instance may write the EndpointSlice, and here its primary does not correct it.
#[test]
fn a_route_to_no_pod_of_the_database_is_told_after_a_minute_and_left_alone() {
    with_two(async |world| {
        let own = find(world, "endpointslices", "db-rw")["endpoints"].clone();
        let lead_to = |endpoints: &Value| {
            let change = json!({"endpoints": endpoints});
            world.user(200, Verb::Merge, "endpointslices", "db-rw", change);
        };
        let said = |world: &World| world.status()["conditions"].to_string().contains("AddressOfNoPod");
        lead_to(&json!([{"addresses": ["10.9.9.9"], "targetRef": {"kind": "Pod", "name": "db-1"}}]));
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert!(!said(world), "an election may be under way");
        tokio::time::timeout(Duration::from_secs(20), world.until("told", said))
            .await
            .unwrap();
        world.rests(LONG).await;
        let told = world.server.within(|store, _| {
            let events = store.everything().filter(|(key, _)| key.kind.group == "events.k8s.io");
            let events = events.filter(|(_, event)| event["reason"] == "ForeignRoute");
            events.map(|(_, event)| event["note"].to_string()).collect::<Vec<_>>()
        });
        assert!(told.len() == 1 && told[0].contains("-rw leads to 10.9.9.9"), "{told:?}");
        assert_eq!(
            find(world, "endpointslices", "db-rw")["endpoints"][0]["addresses"],
            json!(["10.9.9.9"])
        );
        lead_to(&own);
        world.until("over", |world| !said(world)).await;
    });
}

#[test]
fn a_quota_that_refuses_pods_is_told_and_its_end_is_noticed() {
    run(1, async || {
        let world = world();
        let quota = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let full = std::sync::Arc::clone(&quota);
        world.server.within(|store, _| {
            store.admit(Box::new(move |kind, _, old| {
                let refuses = kind.kind == "Pod" && old.is_none() && full.load(std::sync::atomic::Ordering::Relaxed);
                let message = "pods \"db-0\" is forbidden: exceeded quota: q";
                if refuses {
                    Err(fake_api::Refusal::new(403, "Forbidden", message))
                } else {
                    Ok(())
                }
            }));
        });
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 2}));
        world
            .until("told", |world| world.status().to_string().contains("exceeded quota"))
            .await;
        quota.store(false, std::sync::atomic::Ordering::Relaxed);
        world.ready().await;
    });
}
