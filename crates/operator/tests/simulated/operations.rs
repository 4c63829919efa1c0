//! Operations: one after the other, each once, and what becomes of those that are taken back or come too early.

use std::collections::BTreeSet;
use std::time::Duration;

use fake_api::Verb;
use fake_api::faults::{Faults, Rates};
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{LONG, Operator, World, operation, run, switchover};

/// Their name in paths.
pub const OPERATIONS: &str = "clustereddatabaseoperations";

/// The phase of an operation; empty if it has none.
pub fn phase(world: &World, name: &str) -> String {
    let operation = world.get(OPERATIONS, name);
    let phase = operation.and_then(|operation| operation["status"]["phase"].as_str().map(str::to_owned));
    phase.unwrap_or_default()
}

/// Its message; empty if it has none.
pub fn message(world: &World, name: &str) -> String {
    let operation = world.get(OPERATIONS, name).unwrap();
    operation["status"]["message"].as_str().unwrap_or_default().to_owned()
}

fn primary(world: &World) -> String {
    world.status()["currentPrimary"].as_str().unwrap_or_default().to_owned()
}

fn ask(world: &World, name: &str, to: &str) {
    world.user(201, Verb::Create, OPERATIONS, "", switchover(name, to));
}

/// A database of three that rests.
async fn three() -> (World, Operator) {
    let world = World::new(Faults::none(), Duration::from_secs(1));
    let operator = Operator::start(&world.server, Config::default());
    world.create(&json!({"replicas": 3}));
    world.ready().await;
    world.rests(LONG).await;
    (world, operator)
}

#[test]
fn operations_of_one_database_are_done_one_after_the_other_each_once() {
    run(1, async || {
        let (world, operator) = three().await;
        ask(&world, "first", "db-2");
        ask(&world, "second", "db-1");
        let both = |world: &World| phase(world, "second") == "Completed";
        world.until("both done", both).await;
        assert_eq!(
            (phase(&world, "first").as_str(), &*primary(&world)),
            ("Completed", "db-1")
        );
        assert_eq!(message(&world, "first"), "db-2 is the primary");
        world.ready().await;
        world.rests(LONG).await;
        // Another operator finds what is stored, and does nothing again.
        drop(operator);
        let _operator = Operator::start(&world.server, Config::default());
        world.rests(LONG).await;
        assert_eq!(primary(&world), "db-1");
    });
}

#[test]
fn an_operation_waits_for_its_database_and_fails_without_one() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        ask(&world, "early", "db-1");
        let waits = |world: &World| message(world, "early").contains("there is no ClusteredDatabase db");
        world.until("that is said", waits).await;
        assert_eq!(phase(&world, "early"), "Pending");
        world.create(&json!({"replicas": 3}));
        world.until("done", |world| phase(world, "early") == "Completed").await;
        assert_eq!(primary(&world), "db-1");
        let mut of_none = switchover("of-none", "other-1");
        of_none["spec"]["clusterRef"]["name"] = json!("other");
        world.user(201, Verb::Create, OPERATIONS, "", of_none);
        world.until("failed", |world| phase(world, "of-none") == "Failed").await;
    });
}

#[test]
fn what_is_taken_back_or_deleted_before_it_begins_is_not_done() {
    run(1, async || {
        let (world, _operator) = three().await;
        // No instance of this number: it cannot begin, and would be given up after five minutes.
        for name in ["cancelled", "deleted"] {
            ask(&world, name, "db-7");
            let begun = |world: &World| phase(world, name) == "Running";
            world.until("it runs", begun).await;
            ask(&world, &format!("behind-{name}"), "db-0");
            let behind = format!("operation {name} to end");
            let waits = |world: &World| message(world, &format!("behind-{name}")).contains(&behind);
            world.until("the one behind it says so", waits).await;
            if name == "cancelled" {
                let cancel = json!({"spec": {"cancel": true}});
                world.user(200, Verb::Merge, OPERATIONS, name, cancel);
                world
                    .until("cancelled", |world| phase(world, name) == "Cancelled")
                    .await;
            } else {
                world.delete(OPERATIONS, name);
            }
            let done = |world: &World| phase(world, &format!("behind-{name}")) == "Completed";
            world.until("the one behind it is done", done).await;
        }
        world.ready().await;
        world.rests(LONG).await;
        assert_eq!(primary(&world), "db-0");
    });
}

#[test]
fn what_an_operation_is_to_do_cannot_be_changed_and_must_make_sense() {
    run(1, async || {
        let (world, _operator) = three().await;
        ask(&world, "move", "db-1");
        let refused = |verb, name: &str, body: Value, why: &str| {
            let answer = world.user(422, verb, OPERATIONS, name, body);
            let text = answer["message"].as_str().unwrap_or_default().to_owned();
            assert!(text.contains(why), "{text}");
        };
        let change = json!({"spec": {"switchover": {"to": "db-2"}}});
        refused(Verb::Merge, "move", change, "make another one");
        refused(
            Verb::Create,
            "",
            switchover("other", "shop-1"),
            "must name an instance of the cluster",
        );
        let mut nothing = switchover("nothing", "db-1");
        nothing["spec"].as_object_mut().unwrap().remove("switchover");
        refused(Verb::Create, "", nothing, "one thing only");
        world.until("done", |world| phase(world, "move") == "Completed").await;
    });
}

/// Requests fail, are answered late or twice, watches break: each operation ends, in the end as the last one asks.
#[test]
fn operations_end_whatever_becomes_of_single_requests() {
    for seed in 0..8 {
        run(seed, async || {
            let world = World::new(Faults::new(seed, Rates::swarm(seed)), Duration::from_secs(1));
            let mut operator = Operator::start(&world.server, Config::default());
            world.create(&json!({"replicas": 3}));
            for (number, to) in ["db-1", "db-2", "db-0", "db-2"].into_iter().enumerate() {
                tokio::time::sleep(Duration::from_secs(20 + seed * 3)).await;
                ask(&world, &format!("move-{number}"), to);
                if number == 2 {
                    drop(operator);
                    operator = Operator::start(&world.server, Config::default());
                }
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            world.server.faults(Faults::stop);
            for number in 0..4 {
                let name = format!("move-{number}");
                let ended = |world: &World| ["Completed", "Failed"].contains(&&*phase(world, &name));
                world.until(&format!("{name} of seed {seed} ended"), ended).await;
            }
            world.ready().await;
            world.rests(LONG).await;
            if phase(&world, "move-3") == "Completed" {
                assert_eq!(primary(&world), "db-2", "seed {seed}");
            }
            drop(operator);
        });
    }
}

/// The primary's pod goes while no agent does anything: nobody is elected.
async fn without_a_primary(world: &World) -> u64 {
    world.agents.lock().unwrap().still = true;
    world.delete("pods", "db-0");
    let lost = |world: &World| world.status()["phase"] == "FailingOver";
    world.until("failing over", lost).await;
    world.status()["epoch"].as_u64().unwrap()
}

fn accepted(world: &World) -> Value {
    world.status()["intent"]["acceptLoss"].clone()
}

#[test]
fn a_loss_is_accepted_in_the_present_epoch_until_there_is_another_primary() {
    run(1, async || {
        let (world, _operator) = three().await;
        let accept = |name: &str, epoch: u64| {
            let asked = operation(name, json!({"acceptLoss": {"epoch": epoch}}));
            world.user(201, Verb::Create, OPERATIONS, "", asked);
        };
        let ended = async |name: &str, as_: &str| {
            world.until(name, |world| phase(world, name) == as_).await;
        };
        accept("too-early", 1);
        ended("too-early", "Failed").await;
        assert!(message(&world, "too-early").contains("db-0 is the primary and serves"));
        let epoch = without_a_primary(&world).await;
        world.edit(&json!({"paused": true}));
        accept("stale", epoch + 1);
        ended("stale", "Failed").await;
        let told = message(&world, "stale");
        assert!(told.ends_with(&format!("kubectl cdb accept-loss db {epoch}")), "{told}");
        accept("cancelled", epoch);
        let given = |world: &World| accepted(world) == epoch;
        world.until("accepted", given).await;
        let cancel = json!({"spec": {"cancel": true}});
        world.user(200, Verb::Merge, OPERATIONS, "cancelled", cancel);
        ended("cancelled", "Cancelled").await;
        assert!(accepted(&world).is_null());
        accept("used", epoch);
        world.until("accepted", given).await;
        world.agents.lock().unwrap().still = false;
        ended("used", "Completed").await;
        let told = message(&world, "used");
        assert!(
            told.ends_with(&format!("has taken the Lease in epoch {}", epoch + 1)),
            "{told}"
        );
        assert!(accepted(&world).is_null());
        world.edit(&json!({"paused": false}));
        world.ready().await;
        world.rests(LONG).await;
    });
}

#[test]
fn quarantined_data_is_removed_by_the_instance_that_has_it() {
    run(1, async || {
        let (world, _operator) = three().await;
        let keep = |name: &str| {
            let mut agents = world.agents.lock().unwrap();
            agents
                .kept
                .entry("db-1".to_owned())
                .or_default()
                .insert(name.to_owned());
        };
        keep("1-0_3000060-1");
        keep("1-0_3000060-2");
        let told = |world: &World| world.status()["conditions"].to_string();
        let said = |world: &World| told(world).contains("kubectl cdb discard-quarantined db db-1 1-0_3000060-1");
        world.until("said", said).await;
        let discard = |name: &str, instance: &str| {
            let action = json!({"discardQuarantined": {"instance": instance, "name": "1-0_3000060-1"}});
            world.user(201, Verb::Create, OPERATIONS, "", operation(name, action));
        };
        discard("elsewhere", "db-2");
        discard("there", "db-1");
        world.until("done", |world| phase(world, "there") == "Completed").await;
        assert_eq!(phase(&world, "elsewhere"), "Failed");
        assert_eq!(message(&world, "there"), "db-1 has removed 1-0_3000060-1");
        world.ready().await;
        world.rests(LONG).await;
        assert!(
            told(&world).contains("1-0_3000060-2") && !told(&world).contains("1-0_3000060-1"),
            "{}",
            told(&world)
        );
        assert!(world.status()["intent"]["discard"].is_null());
    });
}

#[test]
fn a_lost_lease_is_made_again_for_the_last_primary_and_one_that_is_there_is_left_alone() {
    run(1, async || {
        let (world, _operator) = three().await;
        let recreate = |name: &str| {
            let asked = operation(name, json!({"recreateLease": {}}));
            world.user(201, Verb::Create, OPERATIONS, "", asked);
        };
        recreate("too-early");
        world
            .until("refused", |world| phase(world, "too-early") == "Failed")
            .await;
        let epoch = without_a_primary(&world).await;
        world.delete("leases", "db");
        let told = |world: &World| world.status()["failure"]["message"].to_string();
        let lost = |world: &World| told(world).contains("kubectl cdb recreate-lease db");
        world.until("lost", lost).await;
        recreate("lost");
        world
            .until("made again", |world| phase(world, "lost") == "Completed")
            .await;
        world.agents.lock().unwrap().still = false;
        world.ready().await;
        world.rests(LONG).await;
        assert_eq!(primary(&world), "db-0", "it is the last primary's");
        assert!(world.status()["epoch"].as_u64().unwrap() > epoch);
    });
}

/// The same of every kind of operation at once, with an operator that is killed on the way.
#[test]
fn every_kind_of_operation_ends_whatever_becomes_of_single_requests() {
    for seed in 0..6 {
        run(seed, async || {
            let world = World::new(Faults::new(seed, Rates::swarm(seed)), Duration::from_secs(1));
            let mut operator = Operator::start(&world.server, Config::default());
            world.create(&json!({"replicas": 3}));
            world.until("made", |world| !primary(world).is_empty()).await;
            let actions = [
                ("restart", json!({"restart": {}}), "Completed"),
                ("image", json!({"takeImage": {"image": "example.org/none:1"}}), "Failed"),
                ("loss", json!({"acceptLoss": {"epoch": 1_000}}), "Failed"),
                (
                    "discard",
                    json!({"discardQuarantined": {"instance": "db-0", "name": "none"}}),
                    "Failed",
                ),
                (
                    "authority",
                    json!({"rotateAuthority": {"compromised": true}}),
                    "Completed",
                ),
                ("again", json!({"restart": {}}), "Completed"),
            ];
            for (name, action, _) in &actions {
                world.user(201, Verb::Create, OPERATIONS, "", operation(name, action.clone()));
                tokio::time::sleep(Duration::from_secs(3 + seed)).await;
            }
            drop(operator);
            operator = Operator::start(&world.server, Config::default());
            tokio::time::sleep(Duration::from_secs(120)).await;
            world.server.faults(Faults::stop);
            for (name, _, end) in &actions {
                let ended = |world: &World| phase(world, name) == *end;
                world.until(&format!("{name} of seed {seed} is {end}"), ended).await;
            }
            world.ready().await;
            world.rests(LONG).await;
            let template = &world.list("statefulsets")[0]["spec"]["template"];
            let by = &template["metadata"]["annotations"][api::names::ANNOTATION_RESTARTED_BY];
            // An operation that is accepted late, since its status could not be written, comes late.
            let restarts = ["restart", "again"].map(|name| world.get(OPERATIONS, name).unwrap());
            let last = restarts
                .iter()
                .max_by_key(|operation| operation["status"]["completionTime"].to_string());
            assert_eq!(*by, last.unwrap()["metadata"]["uid"], "seed {seed}");
            drop(operator);
        });
    }
}

#[test]
fn a_database_is_recovered_in_place_goes_back_and_is_at_rest_after_each() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3, "backup": {"store": {"s3": {"bucket": "backups"}}}}));
        world.ready().await;
        world.rests(LONG).await;
        let sets = |world: &World| {
            let claims = world.list("persistentvolumeclaims");
            let names = claims
                .iter()
                .filter_map(|claim| claim["metadata"]["name"].as_str().map(str::to_owned));
            names
                .filter_map(|name| Some(name.split_once('-')?.0.to_owned()))
                .collect::<BTreeSet<_>>()
        };
        for (name, action, kept) in [
            ("recover", json!({"recover": {}}), vec!["data", "data1"]),
            ("undo", json!({"undoRecovery": {}}), vec!["data", "data1"]),
            ("confirm", json!({"confirmRecovery": {}}), vec!["data"]),
        ] {
            world.user(201, Verb::Create, OPERATIONS, "", operation(name, action));
            world.until(name, |world| phase(world, name) == "Completed").await;
            world.ready().await;
            world.rests(LONG).await;
            assert!(sets(&world).iter().eq(&kept), "{:?}", sets(&world));
        }
        let history = world.status()["history"].clone();
        let failed = |change: &Value| change["to"] == "Failed";
        assert!(!history.as_array().unwrap().iter().any(failed), "{history}");
        // Another operator finds nothing to do.
        drop(operator);
        let _operator = Operator::start(&world.server, Config::default());
        world.rests(LONG).await;
    });
}
