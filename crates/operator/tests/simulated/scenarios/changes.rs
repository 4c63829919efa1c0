//! C. Changes that nobody saw; E, F: a slow API server.

use fake_api::Verb;
use fake_api::faults::{Faults, Rates};

use super::*;

#[test]
fn c_20_a_change_that_is_taken_back_at_once() {
    scenario("20-there-and-back-at-once", &three(), async |script| {
        let pods = script.uids("pods");
        let image = |image: Value| json!({"postgres": {"image": image}});
        script.edit(&image(json!("example.org/postgres:17.7")));
        script.edit(&image(Value::Null));
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(script.uids("pods"), pods);
        script.edit(&image(json!("example.org/postgres:17.7")));
        script
            .until("one pod goes", |world| world.list("pods").len() == 2)
            .await;
        script.edit(&image(Value::Null));
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0"]);
        let others = script
            .uids("pods")
            .iter()
            .filter(|(name, uid)| pods[*name] != **uid)
            .count();
        assert_eq!(others, 1, "one was replaced for nothing");
    });
}

#[test]
fn c_22_three_to_five_to_three_while_nobody_looks() {
    scenario("22-scaled-while-nobody-looks", &three(), async |script| {
        let all = script.world.uids();
        script.kill("a");
        script.edit(&json!({"replicas": 5}));
        script.edit(&three());
        script.start("b");
        script.rests().await;
        assert_eq!(script.world.uids(), all);
    });
}

#[test]
fn c_23_what_went_while_the_watch_was_broken() {
    scenario("23-deleted-in-a-gap-of-the-watch", &three(), async |script| {
        let before = script.uids("services");
        script.freeze("a", &["services", "poddisruptionbudgets"]);
        script.delete("services", "db-ro");
        script.delete("poddisruptionbudgets", "db");
        script.sleep(LONG_ENOUGH).await;
        script.does("the API server forgets what was", |world| {
            world.server.within(|store, _| store.compact())
        });
        script.thaw("a");
        script
            .until("made again", |world| world.list("services").len() == 4)
            .await;
        script.rests().await;
        let after = script.uids("services");
        assert_eq!(after.iter().filter(|(name, uid)| before[*name] != **uid).count(), 1);
        assert!(script.world.get("poddisruptionbudgets", "db").is_some());
    });
}

#[test]
fn c_87_a_network_policy_as_long_as_the_spec_asks_for_one() {
    scenario("87-a-network-policy", &three(), async |script| {
        let pods = script.uids("pods");
        let policy = |world: &World| world.get("networkpolicies", "db");
        let mode = |mode: &str| json!({"networkPolicy": {"mode": mode}});
        assert!(policy(&script.world).is_none());
        script.edit(&mode("Managed"));
        script.until("made", |world| policy(world).is_some()).await;
        script.rests().await;
        let made = policy(&script.world).unwrap()["spec"].clone();
        let opened = json!({"spec": {"ingress": [{}]}});
        script.merge("networkpolicies", "db", &opened);
        script
            .until("repaired", |world| policy(world).unwrap()["spec"] == made)
            .await;
        script.rests().await;
        script.edit(&mode("Off"));
        script.until("gone", |world| policy(world).is_none()).await;
        script.rests().await;
        script.does("user makes a NetworkPolicy of the same name", |world| {
            let own = json!({"metadata": {"name": "db"}, "spec": {"podSelector": {}}});
            world.user(201, Verb::Create, "networkpolicies", "", own)
        });
        script.sleep(LONG_ENOUGH).await;
        assert!(script.world.is_ready());
        let theirs = policy(&script.world);
        script.edit(&mode("Managed"));
        script.until("told", |world| world.status()["phase"] == "Failed").await;
        script.sleep(LONG_ENOUGH).await;
        assert_eq!(policy(&script.world), theirs, "somebody else's is left alone");
        script.edit(&mode("Off"));
        script.rests().await;
        assert_eq!(policy(&script.world), theirs);
        assert_eq!(script.uids("pods"), pods);
    });
}

#[test]
fn e_46_a_slow_api_server_that_refuses_a_part() {
    scenario("46-a-slow-api-server", &three(), async |script| {
        let pods = script.uids("pods");
        let slow = Rates {
            slow: [1_500, 4_000],
            throttled: 200,
            ..Rates::NONE
        };
        script.does("the API server needs 3 to 8 s, and refuses a fifth with 429", |world| {
            world.server.faults(|faults| *faults = Faults::new(1, slow));
        });
        script.always("the phase stays", |world| {
            ["Ready", "Updating"]
                .iter()
                .any(|phase| world.status()["phase"] == *phase)
        });
        script.sleep(Duration::from_secs(600)).await;
        assert_eq!(script.uids("pods"), pods);
        assert_eq!(script.told("the phase is"), 0, "nothing flaps");
        script.edit(&json!({"replicas": 4, "postgres": {"parameters": {"max_connections": "200"}}}));
        script.ready().await;
        script.does("it is quick again", |world| world.server.faults(Faults::stop));
        script.rests().await;
        assert_eq!(script.primaries(), ["db-0"]);
        let now = script.uids("pods");
        assert!(pods.iter().all(|(name, uid)| now[name] == *uid), "none is replaced");
    });
}
