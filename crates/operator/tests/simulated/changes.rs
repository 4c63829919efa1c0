//! The operator killed at its k-th write, for every k of a change: with the write carried out and the answer lost, and with
//! the write lost. It goes on from what is stored, and comes to the same end as one that is not killed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use api::names::{ANNOTATION_APPLIED, ANNOTATION_BASE_REVISION, ANNOTATION_REVISION};
use fake_api::faults::Faults;
use fake_api::{Kill, Verb};
use operator::config::Config;
use serde_json::{Value, json};

use super::creation::{PACE, carried_out, outcome};
use super::operations::{OPERATIONS, phase};
use super::world::{NAME, Operator, World, operation, run, switchover};

/// What the user does; each is awaited before the next.
enum Step {
    Edit(Value),
    /// Until the database has hibernated.
    Hibernate,
    Delete,
    /// Makes the database again with what was left.
    Adopt,
    /// The primary's pod goes, and another one takes over.
    LosePrimary,
    /// An operation asks for a switchover to this instance, and is awaited.
    Ask(&'static str),
    /// An operation asks for this, and is awaited.
    Operate(Value),
}

impl Step {
    async fn take(&self, world: &World) {
        match self {
            Step::Edit(spec) => {
                world.edit(spec);
                world.ready().await;
            }
            Step::Hibernate => {
                world.edit(&json!({"hibernated": true}));
                world
                    .until("hibernated", |world| world.status()["phase"] == "Hibernated")
                    .await;
            }
            Step::Delete => {
                world.delete("clustereddatabases", "db");
                world
                    .until("gone", |world| world.list("clustereddatabases").is_empty())
                    .await;
            }
            Step::Adopt => {
                world.create(&json!({
                    "replicas": 3, "storage": {"retentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Delete"}},
                    "bootstrap": {"volumes": {"adopt": "Newest"}},
                }));
                world.ready().await;
            }
            Step::Ask(to) => {
                world.user(201, Verb::Create, OPERATIONS, "", switchover(to, to));
                world.until("completed", |world| phase(world, to) == "Completed").await;
                assert_eq!(world.status()["currentPrimary"], *to);
                world.ready().await;
            }
            Step::Operate(action) => {
                world.user(201, Verb::Create, OPERATIONS, "", operation("asked", action.clone()));
                world
                    .until("completed", |world| phase(world, "asked") == "Completed")
                    .await;
                world.ready().await;
            }
            Step::LosePrimary => {
                let lost = world.status()["currentPrimary"].clone();
                world.delete("pods", lost.as_str().expect("a primary"));
                world
                    .until("another primary", |world| world.status()["currentPrimary"] != lost)
                    .await;
                world.ready().await;
            }
        }
    }
}

/// The operator's requests while these steps are taken, and what came of it.
fn change(steps: &[Step], kill: Option<Kill>) -> (Vec<String>, BTreeMap<String, Value>) {
    run(1, async || {
        let world = World::new(Faults::none(), PACE);
        let mut operator = Some(Operator::start(&world.server, Config::default()));
        world.create(
            &json!({"replicas": 3, "storage": {"retentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Delete"}}}),
        );
        world.ready().await;
        world.rests(Duration::from_secs(60)).await;
        world.server.kill(kill);
        let killed = Cell::new(false);
        let restart = async {
            world.server.killed().await;
            killed.set(true);
            drop(operator.take());
            world.server.kill(None);
            operator = Some(Operator::start(&world.server, Config::default()));
            std::future::pending::<()>().await;
        };
        let course = async {
            for step in steps {
                step.take(&world).await;
            }
            tokio::time::sleep(Duration::from_secs(20)).await;
        };
        tokio::select! {
            () = restart => unreachable!("it goes on without end"),
            () = course => {}
        }
        assert_eq!(killed.get(), kill.is_some(), "{kill:?}");
        assert_eq!(world.agents.lock().unwrap().initdbs, 1, "{kill:?}");
        let arrived = world.server.trace().into_iter().filter(|line| line.ends_with(')'));
        (arrived.collect(), masked(&world))
    })
}

/// The outcome without the resource's UID, and hashes of content that has it: one that is made again has another.
fn masked(world: &World) -> BTreeMap<String, Value> {
    let db = world.get("clustereddatabases", NAME);
    let uid = db.and_then(|db| db["metadata"]["uid"].as_str().map(str::to_owned));
    let mut outcome = outcome(world);
    if let Some(uid) = uid {
        outcome.values_mut().for_each(|object| mask(object, &uid));
    }
    outcome
}

fn mask(value: &mut Value, uid: &str) {
    match value {
        Value::Object(fields) => {
            for hash in [ANNOTATION_APPLIED, ANNOTATION_REVISION, ANNOTATION_BASE_REVISION] {
                if let Some(hash) = fields.get_mut(hash) {
                    *hash = json!("HASH");
                }
            }
            fields.values_mut().for_each(|inner| mask(inner, uid));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask(item, uid)),
        Value::String(text) if text == uid => *text = "UID".to_owned(),
        _ => {}
    }
}

fn kills(steps: &[Step], least: usize) {
    kills_from(steps, "", least, 1);
}

/// The same from the last request on that begins like this. Only at each `nth` write, but in a long run at all: a course may be long.
fn kills_from(steps: &[Step], first: &str, least: usize, nth: usize) {
    let nth = if std::env::var_os("CDB_LONG").is_some() { 1 } else { nth };
    let (requests, expected) = change(steps, None);
    let from = match first {
        "" => 0,
        first => requests
            .iter()
            .rposition(|request| request.starts_with(first))
            .expect("this request"),
    };
    let spares = ["Get ", "List ", "Watch ", "Create events "];
    let mut writes = 0_usize;
    for (index, request) in requests.iter().enumerate().skip(from) {
        if spares.iter().any(|spared| request.starts_with(spared)) {
            continue;
        }
        writes += 1;
        if !writes.is_multiple_of(nth) {
            continue;
        }
        for &carried_out in carried_out(writes / nth) {
            let kill = Kill {
                at: index + 1,
                carried_out,
            };
            assert_eq!(change(steps, Some(kill)).1, expected, "{kill:?} at {request}");
        }
    }
    assert!(writes >= least, "{requests:#?}");
}

#[test]
fn a_kill_at_any_write_of_a_switchover_leads_to_the_same_end() {
    kills(&[Step::Edit(json!({"primary": {"prefer": "db-2"}}))], 4);
}

#[test]
fn a_kill_at_any_write_of_an_operation_leads_to_the_same_end() {
    kills(&[Step::Ask("db-2")], 6);
}

#[test]
fn a_kill_at_any_write_of_a_restart_leads_to_the_same_end() {
    kills_from(&[Step::Operate(json!({"restart": {}}))], "", 12, 2);
}

#[test]
fn a_kill_at_any_write_to_sleep_and_back_leads_to_the_same_end() {
    kills_from(&[Step::Hibernate, Step::Edit(json!({"hibernated": false}))], "", 6, 2);
}

#[test]
fn a_kill_at_any_write_of_a_scale_down_with_its_claims_leads_to_the_same_end() {
    kills(
        &[Step::Edit(json!({"replicas": 1, "durability": {"mode": "Async"}}))],
        6,
    );
}

#[test]
fn a_kill_at_any_write_of_a_deletion_leads_to_the_same_end() {
    kills_from(&[Step::Delete], "", 6, 2);
}

#[test]
fn a_kill_at_any_write_of_a_databases_way_back_leads_to_the_same_end() {
    let retain = json!({"storage": {"retentionPolicy": {"whenDeleted": "Retain"}}});
    // From its finalizer on.
    let first = "Merge clustereddatabases.clustereddatabase.io ns/db";
    kills_from(&[Step::Edit(retain), Step::Delete, Step::Adopt], first, 15, 4);
}

#[test]
fn a_kill_at_any_write_of_another_image_leads_to_the_same_end() {
    let image = json!({"postgres": {"image": "localhost/cdb/postgres:17.7"}});
    kills_from(&[Step::Edit(image)], "", 6, 2);
}

#[test]
fn a_kill_at_any_write_of_a_parameter_that_needs_a_restart_leads_to_the_same_end() {
    kills(
        &[Step::Edit(
            json!({"postgres": {"parameters": {"max_connections": "200"}}}),
        )],
        3,
    );
}

#[test]
fn a_kill_at_any_write_of_a_growth_of_the_volumes_leads_to_the_same_end() {
    kills(&[Step::Edit(json!({"storage": {"data": {"size": "2Gi"}}}))], 6);
}

#[test]
fn a_kill_at_any_write_after_a_failover_leads_to_the_same_end() {
    kills(&[Step::LosePrimary], 1);
}
