//! The operator killed at its k-th write, for every k of a change: with the write carried out and the answer lost, and with
//! the write lost. It goes on from what is stored, and comes to the same end as one that is not killed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use fake_api::faults::Faults;
use fake_api::{Kill, Verb};
use operator::config::Config;
use serde_json::{Value, json};

use super::creation::{PACE, outcome};
use super::operations::{OPERATIONS, phase};
use super::world::{Operator, World, run, switchover};

/// What the user does; each is awaited before the next.
enum Step {
    Edit(Value),
    /// Until the database has hibernated.
    Hibernate,
    Delete,
    /// The primary's pod goes, and another one takes over.
    LosePrimary,
    /// An operation asks for a switchover to this instance, and is awaited.
    Ask(&'static str),
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
            Step::Ask(to) => {
                world.user(201, Verb::Create, OPERATIONS, "", switchover(to, to));
                world.until("completed", |world| phase(world, to) == "Completed").await;
                assert_eq!(world.status()["currentPrimary"], *to);
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
        world.create(&json!({"replicas": 3, "volumePolicy": {"onScaleDown": "Delete", "onDelete": "Delete"}}));
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
        (arrived.collect(), outcome(&world))
    })
}

fn kills(steps: &[Step], least: usize) {
    let (requests, expected) = change(steps, None);
    let spares = ["Get ", "List ", "Watch ", "Create events "];
    let mut writes = 0;
    for (index, request) in requests.iter().enumerate() {
        if spares.iter().any(|spared| request.starts_with(spared)) {
            continue;
        }
        writes += 1;
        for carried_out in [false, true] {
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
fn a_kill_at_any_write_of_two_operations_leads_to_the_same_end() {
    kills(&[Step::Ask("db-2"), Step::Ask("db-1")], 12);
}

#[test]
fn a_kill_at_any_write_to_sleep_and_back_leads_to_the_same_end() {
    kills(&[Step::Hibernate, Step::Edit(json!({"hibernated": false}))], 6);
}

#[test]
fn a_kill_at_any_write_of_a_scale_down_with_its_claims_leads_to_the_same_end() {
    kills(&[Step::Edit(json!({"replicas": 1}))], 6);
}

#[test]
fn a_kill_at_any_write_of_a_deletion_leads_to_the_same_end() {
    kills(&[Step::Delete], 6);
}

#[test]
fn a_kill_at_any_write_of_another_image_leads_to_the_same_end() {
    kills(
        &[Step::Edit(
            json!({"postgres": {"image": "localhost/cdb/postgres:17.7"}}),
        )],
        6,
    );
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
    kills(&[Step::Edit(json!({"storage": {"size": "2Gi"}}))], 6);
}

#[test]
fn a_kill_at_any_write_after_a_failover_leads_to_the_same_end() {
    kills(&[Step::LosePrimary], 1);
}
