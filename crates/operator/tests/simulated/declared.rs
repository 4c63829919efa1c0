//! What the tests of the kinds share that declare an object of PostgreSQL: users and SQL databases.

use std::cell::Cell;
use std::time::Duration;

use fake_api::faults::Faults;
use fake_api::{Kill, Verb};
use operator::config::Config;
use serde_json::{Value, json};

use super::creation::{PACE, carried_out};
use super::world::{NAME, Operator, World, run};

/// Such a kind, and what a test has of it.
#[derive(Clone, Copy)]
pub struct Declared {
    pub plural: &'static str,
    pub kind: &'static str,
    /// A spec without the reference to the cluster.
    pub spec: fn() -> Value,
    /// What is added to it so that its object goes with it.
    pub drops: fn() -> Value,
}

impl Declared {
    pub fn declare(&self, world: &World, name: &str, spec: &Value) {
        let mut whole = (self.spec)();
        whole["clusterRef"] = json!({"name": NAME});
        fake_api::merge_patch(&mut whole, spec);
        let object = json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": self.kind,
            "metadata": {"name": name}, "spec": whole,
        });
        world.user(201, Verb::Create, self.plural, "", object);
    }

    pub fn change(&self, world: &World, name: &str, spec: &Value) {
        world.user(200, Verb::Merge, self.plural, name, json!({ "spec": spec }));
    }

    pub fn status(&self, world: &World, name: &str) -> Value {
        let found = world.get(self.plural, name);
        found.map(|found| found["status"].clone()).unwrap_or_default()
    }

    /// It is in this phase at its newest generation.
    pub fn is(&self, world: &World, name: &str, phase: &str) -> bool {
        let found = world.get(self.plural, name).unwrap_or_default();
        found["status"]["phase"] == phase && found["status"]["observedGeneration"] == found["metadata"]["generation"]
    }

    pub fn says(&self, world: &World, name: &str, words: &str) -> bool {
        let status = self.status(world, name);
        status["message"].as_str().unwrap_or_default().contains(words)
    }

    /// Deletes two of which one is to take its object with it, while the cluster hibernates, or after it is gone.
    pub fn deletions_end(&self, prepare: fn(&World)) {
        for gone in [false, true] {
            run(1, async || {
                let world = World::new(Faults::none(), Duration::from_secs(1));
                let _operator = one(&world, prepare).await;
                self.declare(&world, "stays", &json!({}));
                self.declare(&world, "goes", &(self.drops)());
                for name in ["stays", "goes"] {
                    world.until("ready", |world| self.is(world, name, "Ready")).await;
                }
                if gone {
                    world.delete("clustereddatabases", NAME);
                    let is_gone = |world: &World| world.list("clustereddatabases").is_empty();
                    world.until("the cluster is gone", is_gone).await;
                } else {
                    world.edit(&json!({"hibernated": true}));
                    world
                        .until("hibernated", |world| world.status()["phase"] == "Hibernated")
                        .await;
                }
                world.delete(self.plural, "stays");
                world
                    .until("gone", |world| world.get(self.plural, "stays").is_none())
                    .await;
                world.delete(self.plural, "goes");
                if !gone {
                    let waits =
                        |world: &World| self.says(world, "goes", "hibernated") && self.says(world, "goes", "Retain");
                    world
                        .until("it says what it waits for, and what ends that", waits)
                        .await;
                    self.change(&world, "goes", &json!({"onDelete": "Retain"}));
                }
                world.until("gone", |world| world.list(self.plural).is_empty()).await;
            });
        }
    }

    /// Kills the operator at each write while `o` comes and goes with its object, and returns the number of these writes. `check` looks
    /// at what is there, and after the deletion.
    pub fn survives_kills(&self, prepare: fn(&World), check: fn(&World, bool)) -> usize {
        let requests = self.life(prepare, check, None);
        let spares = ["Get ", "List ", "Watch ", "Create events "];
        let mut writes = 0;
        for (index, request) in requests.iter().enumerate() {
            if spares.iter().any(|spared| request.starts_with(spared)) {
                continue;
            }
            writes += 1;
            for &carried_out in carried_out(writes) {
                let at = index + 1;
                self.life(prepare, check, Some(Kill { at, carried_out }));
            }
        }
        println!("{requests:#?}");
        writes
    }

    /// The operator's requests while one comes and goes.
    fn life(&self, prepare: fn(&World), check: fn(&World, bool), kill: Option<Kill>) -> Vec<String> {
        run(1, async || {
            println!("{kill:?}");
            let world = World::new(Faults::none(), PACE);
            let mut operator = Some(one(&world, prepare).await);
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
                self.declare(&world, "o", &(self.drops)());
                world.until("ready", |world| self.is(world, "o", "Ready")).await;
                check(&world, true);
                world.delete(self.plural, "o");
                world.until("gone", |world| world.list(self.plural).is_empty()).await;
                tokio::time::sleep(Duration::from_secs(20)).await;
            };
            tokio::select! {
                () = restart => unreachable!("it goes on without end"),
                () = course => {}
            }
            assert_eq!(killed.get(), kill.is_some());
            check(&world, false);
            assert_eq!(handed_on(&world), 0);
            let trace = world.server.trace().into_iter();
            trace.filter(|line| line.ends_with(')')).collect()
        })
    }
}

/// What makes users and databases take their objects with them.
pub fn dropping() -> Value {
    json!({"onDelete": "Drop"})
}

/// Keys of the Secret that agents read.
pub fn handed_on(world: &World) -> usize {
    let found = world.get("secrets", "db-access").unwrap_or_default();
    found["data"].as_object().map_or(0, serde_json::Map::len)
}

/// An operator, and a cluster of one instance, in whose PostgreSQL `prepare` has made what is needed.
pub async fn one(world: &World, prepare: fn(&World)) -> Operator {
    let operator = Operator::start(&world.server, Config::default());
    prepare(world);
    world.create(&json!({"replicas": 1}));
    world.ready().await;
    operator
}
