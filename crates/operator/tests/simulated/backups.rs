//! Backups: one after the other, each once, whoever is lost meanwhile.

use std::time::Duration;

use fake_api::faults::Faults;
use fake_api::{Call, Verb};
use operator::config::Config;
use serde_json::{Value, json};

use super::world::{LONG, NAME, NAMESPACE, Operator, World, run};

const BACKUPS: &str = "databasebackups";
const SNAPSHOTS: &str = "volumesnapshots";

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

/// What the storage says of each VolumeSnapshot.
fn storage(world: &World, status: &Value) {
    for snapshot in world.list(SNAPSHOTS) {
        let name = snapshot["metadata"]["name"].as_str().unwrap();
        let call = Call::new(Verb::Merge, SNAPSHOTS, NAMESPACE, name, json!({ "status": status })).to("status");
        let reply = world.server.within(|store, now| store.call(&call, now));
        assert_eq!(reply.code, 200, "{reply:?}");
    }
}

fn ask_for_snapshot(world: &World, name: &str) {
    let mut snapshot = backup(name);
    snapshot["spec"]["kind"] = json!("Snapshot");
    world.user(201, Verb::Create, BACKUPS, "", snapshot);
}

async fn is_made(world: &World) -> String {
    world
        .until("it is made", |world| !world.list(SNAPSHOTS).is_empty())
        .await;
    let made = world.list(SNAPSHOTS).remove(0);
    made["metadata"]["name"].as_str().unwrap().to_owned()
}

#[test]
fn a_snapshot_is_made_once_and_complete_when_it_is_ready() {
    run(1, async || {
        let (world, operator) = three().await;
        world.edit(&json!({"backup": {"volumeSnapshotClassName": "fast"}}));
        ask_for_snapshot(&world, "nightly");
        let name = is_made(&world).await;
        let made = world.get(SNAPSHOTS, &name).unwrap();
        let claim = world.status()["backup"]["task"]["source"]["member"].clone();
        let claim = format!("data-{}", claim.as_str().unwrap());
        assert_eq!(
            made["spec"],
            json!({"source": {"persistentVolumeClaimName": claim}, "volumeSnapshotClassName": "fast"})
        );
        drop(operator);
        let operator = Operator::start(&world.server, Config::default());
        storage(
            &world,
            &json!({"creationTime": "2027-01-01T00:00:00Z", "readyToUse": false}),
        );
        let word = |world: &World| world.status()["intent"]["snapshot"]["state"].clone();
        world.until("it is taken", |world| word(world) == "Taken").await;
        assert!(is(&world, "nightly", "Running"), "{}", status(&world, "nightly"));
        storage(&world, &json!({"readyToUse": true}));
        world
            .until("it is complete", |world| is(world, "nightly", "Completed"))
            .await;
        let told = status(&world, "nightly");
        assert_eq!(told["backup"]["snapshot"], json!(name), "{told}");
        assert!(
            told["message"]
                .as_str()
                .unwrap()
                .contains(&format!("VolumeSnapshot {name} of db-")),
            "{told}"
        );
        world.rests(LONG).await;
        assert_eq!(world.list(SNAPSHOTS).len(), 1, "a backup has it");
        assert_eq!(world.status()["memo"]["snapshots"][0]["ready"], true);
        drop(operator);
    });
}

#[test]
fn a_snapshot_that_somebody_takes_back_or_that_is_deleted_leaves_nothing() {
    run(1, async || {
        let (world, _operator) = three().await;
        ask_for_snapshot(&world, "taken-back");
        is_made(&world).await;
        world.user(200, Verb::Delete, BACKUPS, "taken-back", Value::Null);
        world
            .until("it goes with its backup", |world| {
                world.list(SNAPSHOTS).is_empty() && world.status()["memo"]["snapshots"].is_null()
            })
            .await;

        ask_for_snapshot(&world, "deleted");
        let name = is_made(&world).await;
        storage(&world, &json!({"creationTime": "2027-01-01T00:00:00Z"}));
        let word = |world: &World| world.status()["intent"]["snapshot"]["state"].clone();
        world.until("it is taken", |world| word(world) == "Taken").await;
        world.user(200, Verb::Delete, SNAPSHOTS, &name, Value::Null);
        world
            .until("that is told", |world| is(world, "deleted", "Failed"))
            .await;
        world.rests(LONG).await;
        assert_eq!(world.list(SNAPSHOTS).len(), 0);
        assert_eq!(world.status()["memo"]["snapshots"], Value::Null);
    });
}

#[test]
fn a_database_is_made_on_a_volume_from_the_snapshot_that_its_spec_names() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        let from = json!({"store": {"s3": {"bucket": "wal"}}, "cluster": "shop-1a2b3c4d"});
        let recovery = json!({"from": from, "backup": "20270101T000000Z-S-7f3a"});
        world.create(&json!({"replicas": 3, "bootstrap": {"recovery": recovery}}));
        world
            .until("it waits", |world| {
                world.status()["waiting"]["reason"] == "RecoverySource"
            })
            .await;
        tokio::time::sleep(LONG).await;
        assert_eq!(world.list("statefulsets").len(), 0, "nothing is made before");
        let snapshot = json!({
            "metadata": {"name": "shop-1a2b3c4d-20270101t000000z-s-7f3a"},
            "spec": {"source": {"volumeSnapshotContentName": "brought"}},
        });
        world.user(201, Verb::Create, SNAPSHOTS, "", snapshot);
        storage(
            &world,
            &json!({"creationTime": "2027-01-01T00:00:00Z", "readyToUse": true}),
        );
        world.ready().await;
        let source = |ordinal: u32| {
            let claim = world.get("persistentvolumeclaims", &format!("data-{NAME}-{ordinal}"));
            claim.unwrap()["spec"]["dataSource"]["name"].clone()
        };
        assert_eq!(source(0), "shop-1a2b3c4d-20270101t000000z-s-7f3a");
        assert_eq!(
            [source(1), source(2)],
            [Value::Null, Value::Null],
            "standbys are copies"
        );
        assert_eq!(
            world.agents.lock().unwrap().primaries.first().map(String::as_str),
            Some("db-0")
        );
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
        let schedules = json!([{"name": "often", "schedule": "*/10 * * * *", "source": "Primary"}]);
        world.create(&json!({"replicas": 1, "backup": {"store": {"s3": {"bucket": "wal"}}, "schedules": schedules}}));
        world.ready().await;
        let told = |world: &World| world.status()["backup"]["nextBackupTime"] == "2027-01-01T00:10:00Z";
        world.until("the next time is told", told).await;
        let between = Duration::from_secs(600);
        tokio::time::sleep(between).await;
        let first = |world: &World| is(world, "db-often-202701010010", "Completed");
        world.until("the first is taken", first).await;
        let spec = world.get(BACKUPS, "db-often-202701010010").unwrap()["spec"].clone();
        assert_eq!(spec["source"], "Primary");
        drop(operator);
        tokio::time::sleep(3 * between).await;
        let _operator = Operator::start(&world.server, Config::default());
        let second = |world: &World| is(world, "db-often-202701010040", "Completed");
        world.until("one is taken for all that were missed", second).await;
        world.rests(LONG).await;
        assert_eq!(world.agents.lock().unwrap().backups, 2);
    });
}

/// A database of three that has to have a last backup before it goes.
async fn with_a_last_backup(policy: &str) -> (World, Operator) {
    let world = World::new(Faults::none(), Duration::from_secs(1));
    let operator = Operator::start(&world.server, Config::default());
    let backup = json!({"store": {"s3": {"bucket": "wal"}}, "onDelete": {"finalBackup": policy}});
    world.create(&json!({"replicas": 3, "backup": backup}));
    world.ready().await;
    (world, operator)
}

fn is_gone(world: &World) -> bool {
    world.list("clustereddatabases").is_empty()
}

/// The DatabaseBackups that are there, each with its phase.
fn all(world: &World) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let named = |backup: &Value| (text(&backup["metadata"]["name"]), text(&backup["status"]["phase"]));
    world.list(BACKUPS).iter().map(|backup| named(backup)).collect()
}

#[test]
fn a_last_backup_is_taken_before_a_deletion_and_outlives_the_database() {
    run(1, async || {
        let (world, operator) = with_a_last_backup("Required").await;
        ask(&world, "of-the-user");
        world.delete("clustereddatabases", NAME);
        let begun = |world: &World| !world.status()["memo"]["finalBackup"].is_null();
        world.until("it is begun", begun).await;
        drop(operator);
        let _operator = Operator::start(&world.server, Config::default());
        world.until("the database is gone", is_gone).await;
        let all = all(&world);
        let [(first, taken), (second, failed)] = &all[..] else {
            panic!("{all:?}")
        };
        assert!(first.starts_with("db-final-") && taken == "Completed", "{all:?}");
        assert_eq!((second.as_str(), failed.as_str()), ("of-the-user", "Failed"));
        assert!(world.list("pods").is_empty());
    });
}

#[test]
fn a_required_last_backup_holds_the_deletion_until_the_store_is_back_or_the_user_lets_go() {
    for lets_go in [false, true] {
        run(1, async || {
            let (world, _operator) = with_a_last_backup("Required").await;
            world.agents.lock().unwrap().store_is_away = true;
            world.delete("clustereddatabases", NAME);
            let often = |world: &World| world.status()["memo"]["finalBackup"]["failures"] == 4;
            world.until("it was tried often", often).await;
            let waiting = world.status()["waiting"].clone();
            assert_eq!(waiting["reason"], "FinalBackupRetry", "{waiting}");
            assert!(
                waiting["message"].as_str().unwrap().contains("the store is away"),
                "{waiting}"
            );
            assert!(
                world
                    .list("pods")
                    .iter()
                    .all(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            );
            if lets_go {
                world.edit(&json!({"backup": {"onDelete": {"finalBackup": "None"}}}));
            } else {
                world.agents.lock().unwrap().store_is_away = false;
            }
            world.until("the database is gone", is_gone).await;
            let completed = all(&world).iter().filter(|(_, phase)| phase == "Completed").count();
            assert_eq!(completed, usize::from(!lets_go));
        });
    }
}

#[test]
fn best_effort_goes_on_without_a_last_backup_after_five_failures() {
    run(1, async || {
        let (world, _operator) = with_a_last_backup("BestEffort").await;
        world.agents.lock().unwrap().store_is_away = true;
        world.delete("clustereddatabases", NAME);
        world.until("the database is gone", is_gone).await;
        assert_eq!(all(&world).len(), 5);
    });
}

#[test]
fn a_drill_that_does_not_become_ready_is_told_and_removed() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = Operator::start(&world.server, Config::default());
        let drill = json!({"schedule": "30 * * * *", "limitMinutes": 10});
        world.create(&json!({"replicas": 1, "backup": {"store": {"s3": {"bucket": "wal"}}, "drill": drill}}));
        world.ready().await;
        ask(&world, "first");
        world
            .until("a backup is taken", |world| is(world, "first", "Completed"))
            .await;
        tokio::time::sleep(Duration::from_secs(1_800)).await;
        let name = "db-drill-0101003000";
        let begun = |world: &World| world.get("clustereddatabases", name).is_some();
        world.until("a drill begins", begun).await;
        let made = world.get("clustereddatabases", name).unwrap();
        assert_eq!(made["metadata"]["ownerReferences"][0]["name"], NAME);
        assert_eq!(made["spec"]["backup"], Value::Null);
        assert!(made["spec"]["bootstrap"]["recovery"]["from"]["cluster"].is_string());
        // Nobody plays its agents. Another operator goes on.
        drop(operator);
        let _operator = Operator::start(&world.server, Config::default());
        let told = |world: &World| world.status()["backup"]["drill"]["succeeded"] == false;
        world.until("it is told", told).await;
        let why = world.status()["backup"]["drill"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(why.starts_with("it was not Ready within 10 minutes"), "{why}");
        let gone = |world: &World| {
            world.get("clustereddatabases", name).is_none() && world.status()["memo"]["drill"]["name"].is_null()
        };
        world.until("it is gone", gone).await;
        let conditions = world.status()["conditions"].as_array().unwrap().clone();
        let healthy = conditions
            .iter()
            .find(|condition| condition["type"] == "BackupHealthy")
            .unwrap();
        assert!(
            ["DrillFails", "ArchiveUnknown"].contains(&healthy["reason"].as_str().unwrap()),
            "{healthy}"
        );
        assert!(world.is_ready());
    });
}

#[test]
fn a_database_that_is_made_from_another_ones_backups_waits_for_its_store_and_goes_on_at_once() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let _operator = Operator::start(&world.server, Config::default());
        let copy = json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase", "metadata": {"name": "copy"},
            "spec": {
                "replicas": 1, "storage": {"data": {"size": "1Gi"}},
                "bootstrap": {"recovery": {"from": {"clusterRef": {"name": NAME}}}},
            },
        });
        world.user(201, Verb::Create, "clustereddatabases", "", copy);
        let status = |world: &World| world.get("clustereddatabases", "copy").unwrap()["status"].clone();
        let waits = |world: &World, end: &str| {
            let waiting = &status(world)["waiting"];
            waiting["reason"] == "RecoverySource" && waiting["message"].as_str().unwrap().ends_with(end)
        };
        world
            .until("no source is told", |world| waits(world, "to be there"))
            .await;
        assert_eq!(status(&world)["phase"], "Restoring");
        world.create(&json!({"replicas": 1}));
        world
            .until("no store is told", |world| waits(world, "to have a store"))
            .await;
        world.ready().await;
        assert!(world.get("statefulsets", "copy").is_none(), "nothing is made");

        world.edit(&json!({"backup": {"store": {"s3": {"bucket": "wal"}}}}));
        let known = |world: &World| status(world)["memo"]["recoverySource"]["cluster"].is_string();
        let at_once = tokio::time::timeout(Duration::from_secs(10), world.until("the source is known", known));
        at_once.await.expect("the copy is woken");
        let made = |world: &World| world.get("statefulsets", "copy").is_some();
        world.until("its pods can be made", made).await;
    });
}
