//! Backups: one after the other, each once, whoever is lost meanwhile.

use std::time::Duration;

use fake_api::Verb;
use fake_api::faults::Faults;
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{LONG, NAME, Operator, World, run};

const BACKUPS: &str = "databasebackups";

fn backup(name: &str) -> Value {
    json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "DatabaseBackup",
        "metadata": {"name": name}, "spec": {"clusterRef": {"name": NAME}},
    })
}

fn status(world: &World, name: &str) -> Value {
    world
        .get(BACKUPS, name)
        .map(|found| found["status"].clone())
        .unwrap_or_default()
}

fn is(world: &World, name: &str, phase: &str) -> bool {
    status(world, name)["phase"] == phase
}

fn ask(world: &World, name: &str) {
    world.user(201, Verb::Create, BACKUPS, "", backup(name));
}

/// A database of three that archives its WAL.
async fn three() -> (World, Operator) {
    let world = World::new(Faults::none(), Duration::from_secs(1));
    let operator = Operator::start(&world.server, Config::default());
    world.create(&json!({"replicas": 3, "backup": {"store": {"s3": {"bucket": "wal"}}}}));
    world.ready().await;
    world.rests(LONG).await;
    (world, operator)
}

#[test]
fn backups_of_one_database_are_taken_one_after_the_other_each_once() {
    run(1, async || {
        let (world, operator) = three().await;
        ask(&world, "first");
        ask(&world, "second");
        world
            .until("both taken", |world| is(world, "second", "Completed"))
            .await;
        let first = status(&world, "first");
        assert_eq!(first["phase"], "Completed");
        assert_eq!(first["progress"], "100% of 4 B");
        assert_eq!(first["backup"]["source"]["role"], "Standby");
        let told = first["message"].as_str().unwrap();
        assert!(told.ends_with("a copy of db-1 (standby)"), "{told}");
        assert!(
            first["backup"]["name"]
                .as_str()
                .unwrap()
                .starts_with("20270101T000000Z-F-")
        );
        assert_eq!(
            world.status()["backup"]["lastBackup"]["name"],
            status(&world, "second")["backup"]["name"]
        );
        world.rests(LONG).await;
        assert_eq!(world.status()["intent"]["backup"], Value::Null);
        // Another operator finds what is stored, and asks for nothing again.
        drop(operator);
        let _operator = Operator::start(&world.server, Config::default());
        world.rests(LONG).await;
        assert_eq!(world.agents.lock().unwrap().backups, 2);
    });
}

#[test]
fn whose_files_are_copied_is_what_the_backup_asks_for() {
    run(1, async || {
        let (world, _operator) = three().await;
        let mut wrong = backup("wrong");
        wrong["spec"]["source"] = json!("Standby");
        let answer = world.user(422, Verb::Create, BACKUPS, "", wrong);
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("Unsupported value: \"Standby\""), "{answer}");
        let mut of_primary = backup("first");
        of_primary["spec"]["source"] = json!("Primary");
        world.user(201, Verb::Create, BACKUPS, "", of_primary);
        ask(&world, "second");
        let asked = |world: &World| world.status()["intent"]["backupSource"] == "Primary";
        world.until("that is handed on", asked).await;
        world
            .until("both taken", |world| is(world, "second", "Completed"))
            .await;
        let roles = ["first", "second"].map(|name| status(&world, name)["backup"]["source"]["role"].clone());
        assert_eq!(roles, [json!("Primary"), json!("Standby")]);
    });
}

#[test]
fn an_operator_that_is_lost_while_a_backup_is_taken_learns_how_it_ended() {
    run(1, async || {
        let (world, operator) = three().await;
        ask(&world, "nightly");
        world
            .until("it is asked for", |world| {
                world.status()["intent"]["backup"].is_string()
            })
            .await;
        drop(operator);
        let ended = |world: &World| {
            let lease = world.get("leases", NAME).unwrap_or_default();
            let told = lease["metadata"]["annotations"]["clustereddatabase.io/archive"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            told.contains("Completed")
        };
        world.until("it has ended", ended).await;
        assert!(!is(&world, "nightly", "Completed"));
        let _operator = Operator::start(&world.server, Config::default());
        world
            .until("that is told", |world| is(world, "nightly", "Completed"))
            .await;
        assert_eq!(world.agents.lock().unwrap().backups, 1);
    });
}

#[test]
fn a_backup_that_is_deleted_before_its_turn_is_never_taken() {
    run(1, async || {
        let (world, _operator) = three().await;
        world.edit(&json!({"paused": true}));
        ask(&world, "first");
        ask(&world, "second");
        let waits = |world: &World| {
            status(world, "first")["message"]
                .as_str()
                .unwrap_or_default()
                .contains("it is paused")
        };
        world.until("it waits, and says for what", waits).await;
        let behind = |world: &World| {
            status(world, "second")["message"]
                .as_str()
                .unwrap_or_default()
                .contains("backup first to end")
        };
        world.until("the other one waits behind it", behind).await;
        world.delete(BACKUPS, "first");
        world.edit(&json!({"paused": false}));
        world
            .until("the other one is taken", |world| is(world, "second", "Completed"))
            .await;
        world.rests(LONG).await;
        assert_eq!(world.agents.lock().unwrap().backups, 1);
    });
}

#[test]
fn a_backup_of_a_database_without_a_store_fails_with_words_and_none_is_changed() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 1}));
        world.ready().await;
        ask(&world, "nightly");
        world.until("it fails", |world| is(world, "nightly", "Failed")).await;
        let why = status(&world, "nightly")["message"].as_str().unwrap().to_owned();
        assert!(why.contains("set its spec.backup.store"), "{why}");
        for change in [json!({"clusterRef": {"name": "other"}}), json!({"source": "Primary"})] {
            let answer = world.user(422, Verb::Merge, BACKUPS, "nightly", json!({ "spec": change }));
            let message = answer["message"].as_str().unwrap();
            assert!(message.contains("make another one"), "{answer}");
        }
        world.rests(LONG).await;
        assert_eq!(world.agents.lock().unwrap().backups, 0);
    });
}

#[test]
fn backups_are_taken_on_schedule_and_what_was_missed_is_caught_up_once() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = Operator::start(&world.server, Config::default());
        let schedules = json!([{"name": "hourly", "schedule": "0 * * * *", "source": "Primary"}]);
        world.create(&json!({"replicas": 1, "backup": {"store": {"s3": {"bucket": "wal"}}, "schedules": schedules}}));
        world.ready().await;
        let told = |world: &World| world.status()["backup"]["nextBackupTime"] == "2027-01-01T01:00:00Z";
        world.until("the next time is told", told).await;
        let hour = Duration::from_secs(3_600);
        tokio::time::sleep(hour).await;
        let first = |world: &World| is(world, "db-hourly-202701010100", "Completed");
        world.until("the first is taken", first).await;
        let spec = world.get(BACKUPS, "db-hourly-202701010100").unwrap()["spec"].clone();
        assert_eq!(spec["source"], "Primary");
        drop(operator);
        tokio::time::sleep(3 * hour).await;
        let _operator = Operator::start(&world.server, Config::default());
        let second = |world: &World| is(world, "db-hourly-202701010400", "Completed");
        world.until("one is taken for all that were missed", second).await;
        world.rests(LONG).await;
        assert_eq!(world.agents.lock().unwrap().backups, 2);
    });
}
