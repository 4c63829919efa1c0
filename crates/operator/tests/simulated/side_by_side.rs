//! The simulator has an API server, controllers, kubelets and an executor of its own, small enough for thousands of runs an hour. For
//! each edit, what its operator does is what the shipped one does against the API server in memory: the same actions, for the same
//! reasons, in the same order.

use std::sync::Arc;
use std::time::Duration;

use fake_api::Verb;
use fake_api::faults::Faults;
use operator::cache::Key;
use operator::config::Config;
use operator::decisions::Decisions;
use serde_json::{Value, json};
use sim::simulator::{Fault, Injection, Plan, Target};

use super::world::{LONG, NAME, NAMESPACE, Operator, World, run, switchover};

/// An edit, as the simulator knows it and as a user makes it.
struct Edit {
    fault: Fault,
    /// Of whom, and the simulator's number for what is wanted.
    of: (usize, usize),
    /// The change of the resource, and the one that takes it back.
    changes: Vec<Value>,
}

/// When the simulator's edit comes, and how long it stays where it is taken back, in milliseconds.
const EDITED: u64 = 30_000;
const STAYS: u64 = 120_000;

/// What the simulator's operator decides after this edit of a database of three.
fn simulated(edit: &Edit) -> Vec<String> {
    let injection = Injection {
        fault: edit.fault,
        at: EDITED,
        lasts: STAYS,
        target: Target::Node(edit.of.0),
        other: edit.of.1,
    };
    let plan = Plan {
        whole: true,
        members: 4,
        faults: vec![injection],
        rates: vec![0; 4],
        length: EDITED + 2 * STAYS,
        ..Plan::failovers(1, Fault::KillAgent, 0)
    };
    let outcome = sim::simulator::run(plan, true);
    assert_eq!(outcome.wrong, None);
    let lines = outcome.lines.iter();
    let since = lines.filter(|line| (EDITED..EDITED + 2 * STAYS).contains(&line.at));
    let told = since.filter_map(|line| line.what.strip_prefix("operator 0: "));
    told.map(str::to_owned).collect()
}

/// What the shipped operator does.
fn shipped(edit: &Edit) -> Vec<String> {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let operator = Operator::start(&world.server, Config::default());
        world.create(&json!({"replicas": 3, "storage": {"retentionPolicy": {"whenScaled": "Delete"}}}));
        world.ready().await;
        world.rests(LONG).await;
        let before = decisions(&operator.decisions).len();
        for change in &edit.changes {
            if change["kind"] == "ClusteredDatabaseOperation" {
                world.user(201, Verb::Create, "clustereddatabaseoperations", "", change.clone());
            } else {
                world.user(200, Verb::Merge, "clustereddatabases", NAME, change.clone());
            }
            tokio::time::sleep(Duration::from_millis(STAYS)).await;
        }
        decisions(&operator.decisions).split_off(before)
    })
}

fn decisions(of: &Arc<Decisions>) -> Vec<String> {
    let key = Key::database(NAMESPACE.to_owned(), NAME.to_owned());
    let text = of.text(&key).unwrap_or_default();
    // Lines without it are about operations.
    let about_the_database = |line| serde_json::from_str::<Value>(line).unwrap().get("decision").cloned();
    let decisions = text.lines().skip(1).filter_map(about_the_database);
    let told = decisions.map(|decision| {
        let text = |name: &str| decision[name].as_str().unwrap_or_default().to_owned();
        let action = &decision["action"];
        let name = action.as_object().and_then(|action| action.keys().next());
        let name = name.map_or(action.as_str().unwrap_or_default(), String::as_str);
        format!("{}: {name} — {}", text("rule"), text("because"))
    });
    told.collect()
}

/// What was done, without what was waited for: each rule with its action. Of what only the shipped one does is left out what the simulator's
/// world does not have: the objects other than the StatefulSet, and names of images. A pod that goes is not ready a moment sooner or later.
fn done(decisions: &[String]) -> Vec<String> {
    let elsewhere = |told: &str| {
        told.starts_with("children: Apply") && !told.contains(" — StatefulSet ")
            || told.contains("instances are to run")
    };
    let told = decisions
        .iter()
        .filter(|told| !told.contains(": Wait — ") && !elsewhere(told));
    let mut done: Vec<_> = told
        .filter_map(|told| Some(told.split_once(" — ")?.0.replace("-idle", "").replace("-serving", "")))
        .collect();
    done.dedup();
    done
}

#[test]
fn both_operators_do_the_same_about_each_edit() {
    let edit = |fault, of, changes: &[Value]| Edit {
        fault,
        of,
        changes: changes.to_vec(),
    };
    let spec = |spec: Value| json!({ "spec": spec });
    let image = spec(json!({"postgres": {"image": "example.org/postgres:17.7"}}));
    let parameter = spec(json!({"postgres": {"parameters": {"max_connections": "200"}}}));
    let mut switchover = switchover("move", "db-1");
    switchover["kind"] = json!("ClusteredDatabaseOperation");
    let [four, two] = [4, 2].map(|replicas| spec(json!({ "replicas": replicas })));
    let [sleep, wake] = [true, false].map(|hibernated| spec(json!({ "hibernated": hibernated })));
    let fence = |names: &[&str]| spec(json!({ "fenced": names }));
    let [prefer, any] = [json!("db-2"), Value::Null].map(|prefer| spec(json!({"primary": {"prefer": prefer}})));
    let table = [
        (edit(Fault::EditTemplate, (0, 0), &[image]), 10),
        (edit(Fault::EditParameter, (0, 2), &[parameter]), 1),
        (edit(Fault::RequestSwitchover, (0, 1), &[switchover]), 5),
        (edit(Fault::EditReplicas, (0, 3), &[four]), 2),
        (edit(Fault::EditReplicas, (0, 1), &[two]), 3),
        (edit(Fault::EditHibernated, (0, 0), &[sleep, wake]), 6),
        (edit(Fault::EditFenced, (1, 0), &[fence(&["db-1"]), fence(&[])]), 0),
        (edit(Fault::EditFenced, (0, 0), &[fence(&["db-0"]), fence(&[])]), 1),
        (edit(Fault::EditPrimary, (0, 2), &[prefer, any]), 3),
    ];
    for (edit, things) in table {
        let (theirs, ours) = (simulated(&edit), shipped(&edit));
        let both = || {
            format!(
                "{:?}\nsimulator:\n{}\nshipped:\n{}",
                edit.fault,
                theirs.join("\n"),
                ours.join("\n")
            )
        };
        assert_eq!(done(&theirs), done(&ours), "{}", both());
        assert_eq!(done(&ours).len(), things, "{}", both());
        let rests = |told: &[String]| told.last().is_some_and(|last| last.starts_with("rest: "));
        assert!(rests(&theirs) && rests(&ours), "{}", both());
    }
}
