//! Runs the program as a user does, on recorded databases, and compares its output and exit code with golden files.
//! `UPDATE=1` writes them again.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use api::Phase;
use chrono::TimeDelta;
use machine::cluster::model::World;
use machine::cluster::{OwnedObject, OwnedState};
use machine::protocol::FAULT_SILENT;
use serde_json::{Value, json};
use support::{followed, new, of_file, place, ready, recorded, spec};

/// The number of decisions in the oldest file of the format.
const DECISIONS_IN_THE_SECOND: usize = 4;

/// A directory of its own for a test, with these files.
fn directory(test: &str, files: &[(&str, String)]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    if path.exists() {
        std::fs::remove_dir_all(&path).unwrap();
    }
    std::fs::create_dir_all(&path).unwrap();
    for (name, text) in files {
        std::fs::write(path.join(name), text).unwrap();
    }
    path
}

/// Runs the program in `directory`; returns its output on a terminal, and the exit code.
fn run(directory: &Path, command: &str) -> (String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-cdb"))
        .args(command.split(' '))
        .current_dir(directory)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code().unwrap())
}

/// Compares the output of commands with a golden file.
fn golden(name: &str, directory: &Path, commands: &[&str]) {
    let mut text = String::new();
    for command in commands {
        let (printed, code) = run(directory, command);
        text.push_str(&format!("$ kubectl cdb {command}\n{printed}exit code {code}\n\n"));
    }
    support::golden(name, &text);
}

/// Compares the three pages of a world.
fn pages(name: &str, world: &World) {
    let directory = directory(name, &[("demo.yaml", recorded(world))]);
    let commands = ["status", "why", "history"].map(|page| format!("{page} demo --file demo.yaml"));
    golden(name, &directory, &commands.each_ref().map(String::as_str));
}

#[test]
fn a_ready_database() {
    let mut world = ready(&spec(3));
    place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
    pages("ready", &world);
}

#[test]
fn a_database_that_is_being_created() {
    let mut world = new(&spec(3));
    world.pace = 20;
    assert!(world.run_until(TimeDelta::minutes(5), |_, decision| decision.rule == "await-standbys"));
    world.scene.now += TimeDelta::seconds(3);
    world.scene.store();
    place(&mut world, &[0x0200_0000]);
    pages("creating", &world);
}

/// The primary is lost, and a standby is silent.
fn failing_over() -> World {
    let mut world = ready(&spec(3));
    place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
    world.lose_primary();
    world.scene.pod_mut(1).ready = false;
    world.scene.report_mut(1).fault = Some(FAULT_SILENT.to_owned());
    world.scene.store();
    world.scene.now += TimeDelta::seconds(35);
    world.scene.store();
    assert_eq!(world.scene.stored.phase, Some(Phase::FailingOver));
    world
}

/// Users and a SQL database in each state that a plan of theirs can be in.
#[test]
fn the_statements_that_a_user_or_a_sql_database_lacks() {
    let object = |kind: &str, name: &str, spec: Value, status: Value| {
        let mut object = json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": kind,
            "metadata": {"name": name, "namespace": "shop", "generation": 2}, "spec": spec, "status": status,
        });
        object["spec"]["clusterRef"] = json!({"name": "demo"});
        serde_saphyr::to_string(&object).unwrap()
    };
    let statement =
        |database: Option<&str>, sql: &str, takes: bool| json!({"database": database, "sql": sql, "takes": takes});
    let observed = json!({
        "phase": "Planned", "message": "23 statements are missing, which the policy leaves to you: see status.plan",
        "observedGeneration": 2, "moreStatements": 20, "plan": [
            statement(None, "GRANT pg_monitor TO \"orders-rw\" WITH ADMIN FALSE, INHERIT TRUE, SET TRUE", false),
            statement(Some("app"), "GRANT SELECT ON TABLE public.orders TO \"orders-rw\"", false),
            statement(Some("app"), "REVOKE DELETE ON TABLE public.orders FROM \"orders-rw\"", true),
        ],
    });
    let ready = json!({
        "phase": "Ready", "message": "PostgreSQL has the role as the spec wants it", "observedGeneration": 2,
        "drift": {"at": "2027-01-01T00:00:00Z", "more": 1, "statements": [
            statement(Some("app"), "GRANT SELECT ON TABLE public.orders TO reader", false),
        ]},
    });
    let earlier =
        json!({"phase": "Ready", "message": "PostgreSQL has the role as the spec wants it", "observedGeneration": 1});
    let update = json!({"sql": "ALTER EXTENSION pg_trgm UPDATE TO '1.6'", "database": "orders",
        "locks": "what the extension's script needs, until it has ended"});
    let failed = json!({"phase": "Failed", "message": "there is a database orders that was made by somebody else", "observedGeneration": 2});
    let updated =
        json!({"phase": "Planned", "message": "1 statements are missing", "observedGeneration": 2, "plan": [update]});
    let observe = || json!({"managementPolicy": "Observe"});
    let owned = || json!({"owner": "app", "managementPolicy": "Observe"});
    let files = [
        object("DatabaseUser", "orders-rw", observe(), observed),
        object("DatabaseUser", "reader", json!({}), ready),
        object(
            "DatabaseUser",
            "changed",
            json!({"managementPolicy": "Additive"}),
            earlier,
        ),
        object("Database", "orders", json!({"owner": "app"}), failed),
        object("Database", "sales", owned(), updated),
    ];
    let directory = directory("plan-statements", &[("demo.yaml", files.join("---\n"))]);
    let commands = [
        "plan dbu/orders-rw --file demo.yaml",
        "plan databaseuser/reader --file demo.yaml",
        "plan dbu/changed --file demo.yaml",
        "plan dbd/orders --file demo.yaml",
        "plan database/sales --file demo.yaml",
        "plan dbu/nobody --file demo.yaml",
        "plan pod/demo-0 --file demo.yaml",
        "plan dbu/reader --file demo.yaml --filename new.yaml",
        "plan demo --file demo.yaml",
    ];
    golden("plan-statements", &directory, &commands);
}

#[test]
fn a_waiting_failover_names_the_missing_members() {
    pages("failing-over", &failing_over());
}

/// A Service of somebody else has the name of one that the operator needs.
fn failed() -> World {
    let mut world = new(&spec(3));
    let why = "owned by Deployment web".to_owned();
    world
        .scene
        .set_child(OwnedObject::RwService, OwnedState::Foreign { why, left: None });
    world.run_until(TimeDelta::seconds(20), |_, _| false);
    assert_eq!(world.scene.stored.phase, Some(Phase::Failed));
    world
}

#[test]
fn a_foreign_object_in_the_way() {
    pages("foreign-object", &failed());
}

fn paused() -> World {
    let mut world = ready(&spec(3));
    world.scene.edit(|spec| (spec.paused, spec.replicas) = (true, 5));
    world.scene.store();
    world.scene.now += TimeDelta::minutes(7);
    world
}

#[test]
fn a_paused_database() {
    pages("paused", &paused());
}

fn hibernated() -> World {
    let mut world = ready(&spec(3));
    world.scene.edit(|spec| spec.hibernated = true);
    assert!(world.run_until(TimeDelta::minutes(10), |_, decision| decision.rule == "await-waking"));
    world.scene.store();
    assert_eq!(world.scene.stored.phase, Some(Phase::Hibernated));
    world.scene.now += TimeDelta::hours(30);
    world
}

#[test]
fn a_hibernated_database() {
    pages("hibernated", &hibernated());
}

/// The verdict stays honest while a standby is away, and while the operator has not seen the spec.
#[test]
fn a_degraded_database_and_an_unseen_spec() {
    let mut world = ready(&spec(3));
    place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
    let healthy = recorded(&world);
    world.scene.pod_mut(2).ready = false;
    world.scene.store();
    world.scene.now += TimeDelta::seconds(40);
    world.scene.store();
    let unseen = healthy.replace("  generation: 1\n", "  generation: 2\n");
    assert_ne!(unseen, healthy);
    let files = [("demo.yaml", recorded(&world)), ("unseen.yaml", unseen)];
    let directory = directory("degraded", &files);
    let commands = ["demo.yaml", "unseen.yaml"].map(|file| format!("status demo --file {file}"));
    golden("degraded", &directory, &commands.each_ref().map(String::as_str));
}

/// A file with the resources of five databases in different states, in two namespaces.
fn fleet() -> String {
    let states = [
        ("orders", "shop", ready(&spec(3))),
        ("carts", "shop", failing_over()),
        ("ledger", "bank", hibernated()),
        ("audit", "bank", failed()),
        ("stock", "shop", paused()),
    ];
    let read = states[0].2.scene.now + TimeDelta::minutes(8);
    let mut text = format!("{}{}\n", cli::file::RECORDED, read.to_rfc3339());
    for (name, namespace, world) in &states {
        let mut db = of_file(&recorded(world))
            .of("ClusteredDatabase")
            .next()
            .unwrap()
            .clone();
        db["metadata"]["namespace"] = json!(namespace);
        text.push_str(&format!("---\n{}\n", db.to_string().replace("demo", name)));
    }
    text
}

#[test]
fn all_databases_at_a_glance_the_worst_first() {
    let directory = directory("fleet", &[("all.yaml", fleet())]);
    let commands = [
        "status --file all.yaml --all-namespaces",
        "status --file all.yaml --namespace shop",
        "status --file all.yaml --namespace empty",
    ];
    golden("fleet", &directory, &commands);
    let (text, _) = run(&directory, "status --file all.yaml -o json");
    let lines: Vec<Value> = serde_json::from_str(&text).unwrap();
    let verdicts: Vec<_> = lines.iter().map(|line| line["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["OUTAGE", "FAILED", "PAUSED", "HIBERNATED", "HEALTHY"]);
    for wrong in ["status", "status --file all.yaml --watch", "status a --all-namespaces"] {
        assert_eq!(
            run(&directory, &format!("{wrong} --kubeconfig missing")).1,
            1,
            "{wrong}"
        );
    }
}

/// The new resource with these changes of [`spec`].
fn changed(of: Value, changes: &Value) -> String {
    let mut spec = of;
    merge(&mut spec, changes);
    let resource = json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase", "metadata": {"name": "demo"}, "spec": spec,
    });
    serde_json::to_string_pretty(&resource).unwrap()
}

fn merge(into: &mut Value, changes: &Value) {
    for (key, value) in changes.as_object().unwrap() {
        if value.is_object() && into[key].is_object() {
            merge(&mut into[key], value);
        } else {
            into[key] = value.clone();
        }
    }
}

/// Compares the plan for these changes of the database, and checks the exit code.
fn plan(name: &str, of: Value, changes: &Value, code: i32) -> String {
    let world = ready(&of);
    plan_of(name, &world, of, changes, code)
}

/// The same, for the database of this world.
fn plan_of(name: &str, world: &World, of: Value, changes: &Value, code: i32) -> String {
    let files = [("demo.yaml", recorded(world)), ("new.yaml", changed(of, changes))];
    let directory = directory(name, &files);
    let command = "plan demo --filename new.yaml --file demo.yaml";
    golden(name, &directory, &[command]);
    let (printed, found) = run(&directory, command);
    assert_eq!(found, code);
    printed
}

#[test]
fn a_parameter_that_needs_a_restart_restarts_standbys_first() {
    let text = plan(
        "plan-parameter",
        spec(3),
        &json!({"postgres": {"parameters": {"max_connections": "300"}}}),
        2,
    );
    assert!(
        text.contains("Restarted in place  demo-2, then demo-1, then demo-0"),
        "{text}"
    );
}

#[test]
fn a_lowered_limit_restarts_the_primary_first() {
    let text = plan(
        "plan-lower",
        spec(3),
        &json!({"postgres": {"parameters": {"max_connections": "150"}}}),
        2,
    );
    assert!(text.contains("Restarted in place  demo-0, then "), "{text}");
}

#[test]
fn a_parameter_that_is_reloaded_restarts_no_instance() {
    let text = plan(
        "plan-reload",
        spec(3),
        &json!({"postgres": {"parameters": {"work_mem": "8MB", "x.y": "1"}}}),
        2,
    );
    assert!(text.contains("Restarted in place  none"), "{text}");
}

#[test]
fn another_image_replaces_standbys_and_moves_the_primary() {
    let text = plan(
        "plan-image",
        spec(3),
        &json!({"postgres": {"image": "example.org/postgres:17.7"}}),
        2,
    );
    assert!(
        text.contains("Pods replaced       demo-2, then demo-1, then demo-0"),
        "{text}"
    );
    assert!(text.contains("one switchover"), "{text}");
}

#[test]
fn other_cpu_and_memory_reach_running_pods_one_after_another() {
    let of = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    let mut before = spec(3);
    before["resources"] = of("250m")["resources"].take();
    let text = plan("plan-resources", before, &of("500m"), 2);
    assert!(text.contains("Pods replaced       none\n"), "{text}");
    let pods = ["demo-2", "demo-1", "demo-0"].map(|pod| text.find(&format!("cpu and memory of pod {pod} in place")));
    assert!(pods[0].is_some() && pods.is_sorted(), "{text}");
}

#[test]
fn a_supervised_change_ends_in_a_wait_for_the_user() {
    let changes =
        json!({"postgres": {"image": "example.org/postgres:17.7"}, "primary": {"updatePolicy": "Supervised"}});
    let text = plan("plan-supervised", spec(3), &changes, 2);
    assert!(text.contains("Pods replaced       demo-2, then demo-1\n"), "{text}");
    assert!(text.contains("Note: The plan ends in a wait for "), "{text}");
}

#[test]
fn more_and_fewer_instances() {
    let text = plan("plan-grow", spec(3), &json!({"replicas": 5}), 2);
    assert!(text.contains("Added               demo-3, then demo-4"), "{text}");
    let text = plan("plan-shrink", spec(5), &json!({"replicas": 3}), 2);
    assert!(text.contains("Removed             demo-3, then demo-4"), "{text}");
}

#[test]
fn a_change_of_the_promise_comes_first_and_fewer_instances_than_it_needs_are_refused() {
    let lower = json!({"replicas": 2, "durability": {"mode": "Async"}});
    let text = plan("plan-promise", spec(3), &lower, 2);
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(place("  before  Required: 1 standby") < place("  after   Async: no standby"));
    assert!(place("  after ") < place("Changes\n"));
    let text = plan("plan-below-the-promise", spec(3), &json!({"replicas": 1}), 3);
    assert!(
        text.contains("replicas must be more than status.memo.durability"),
        "{text}"
    );
}

#[test]
fn volumes_grow_and_never_shrink() {
    plan(
        "plan-volume",
        spec(3),
        &json!({"storage": {"data": {"size": "2Gi"}}}),
        2,
    );
    let text = plan(
        "plan-refused",
        spec(3),
        &json!({"storage": {"data": {"size": "512Mi"}}, "replicas": 10}),
        3,
    );
    assert!(
        text.contains("spec.storage.data.size: storage.data.size cannot shrink"),
        "{text}"
    );
}

/// A database ten minutes after these changes, such as a fence or hibernation.
fn after_ten_minutes_with(changes: &Value) -> World {
    let mut world = ready(&spec(3));
    let mut to = spec(3);
    merge(&mut to, changes);
    world.scene.edit(|spec| *spec = serde_json::from_value(to).unwrap());
    world.run_until(TimeDelta::minutes(10), |_, _| false);
    world
}

#[test]
fn a_database_hibernates_and_wakes() {
    let text = plan("plan-hibernate", spec(3), &json!({"hibernated": true}), 2);
    assert!(text.contains("Reads and writes stop until"), "{text}");
    assert!(text.contains("Removed             none"), "the instances stay: {text}");
    let world = after_ten_minutes_with(&json!({"hibernated": true}));
    assert_eq!(world.scene.stored.phase, Some(Phase::Hibernated));
    let text = plan_of(
        "plan-wake",
        &world,
        spec(3),
        &json!({"hibernated": false, "replicas": 5}),
        2,
    );
    assert!(text.contains("start PostgreSQL again everywhere"), "{text}");
    assert!(text.contains("Added               demo-3, then demo-4"), "{text}");
    assert!(!text.contains("The plan ends in a wait"), "{text}");
}

#[test]
fn an_instance_is_fenced_and_unfenced() {
    let text = plan("plan-fence", spec(3), &json!({"fenced": ["demo-0"]}), 2);
    assert!(text.contains("Primary             demo-0, then demo-1"), "{text}");
    let world = after_ten_minutes_with(&json!({"fenced": ["demo-0"]}));
    assert_eq!(world.scene.stored.step.as_deref(), Some("Fenced"));
    let text = plan_of("plan-unfence", &world, spec(3), &json!({"fenced": []}), 2);
    assert!(
        text.contains("start PostgreSQL again by themselves in demo-0"),
        "{text}"
    );
    assert!(text.contains("Primary             demo-1\n"), "{text}");
    let all = json!({"fenced": ["demo-0", "demo-1", "demo-2"]});
    let text = plan_of(
        "plan-unfence-all",
        &after_ten_minutes_with(&all),
        spec(3),
        &json!({"fenced": []}),
        2,
    );
    assert!(text.contains("Primary             demo-0\n"), "{text}");
}

#[test]
fn nothing_changes() {
    plan("plan-nothing", spec(3), &json!({}), 0);
}

/// A failover as the operator records it.
fn recording() -> String {
    let mut world = ready(&spec(3));
    place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
    world.lose_primary();
    followed(&mut world)
}

#[test]
fn recorded_decisions_are_made_again() {
    let text = recording();
    let lines: Vec<&str> = text.lines().collect();
    let mut other: Value = serde_json::from_str(lines[2]).unwrap();
    other["decision"]["rule"] = json!("await-something");
    other["decision"]["action"] = json!({"Invented": {"what": 1}});
    let other = format!("{}\n{}\n{other}\n", lines[0], lines[1]);
    let directory = directory("replay", &[("demo.jsonl", text), ("other.jsonl", other)]);
    golden("replay", &directory, &["replay demo.jsonl", "replay other.jsonl"]);
    assert_eq!(run(&directory, "replay demo.jsonl").1, 0);
    let (text, code) = run(&directory, "replay other.jsonl -o json");
    let page: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &page["differing"]), (2, &json!(1)));
}

#[test]
fn what_is_no_record_is_refused_with_the_line_and_the_way_out() {
    let text = recording();
    let lines: Vec<&str> = text.lines().collect();
    let with = |line: usize, change: &dyn Fn(&mut Value)| {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let mut value: Value = serde_json::from_str(&lines[line]).unwrap();
        change(&mut value);
        lines[line] = value.to_string();
        lines.join("\n")
    };
    let files = [
        ("empty.jsonl", String::new()),
        ("cut.jsonl", text[..text.len() - 100].to_owned()),
        ("garbled.jsonl", format!("{}\n{{\"at\": x}}\n", lines[0])),
        (
            "version.jsonl",
            with(0, &|header| {
                (header["version"], header["operator"]) = (json!(3), json!("3.0.0"));
            }),
        ),
        ("newer.jsonl", {
            let newer = with(0, &|header| header["operator"] = json!("3.0.0"));
            newer.replacen("\"observed\":{", "\"observed\":{\"moon\":\"full\",", 1)
        }),
        (
            "changed.jsonl",
            with(2, &|entry| entry["observed"]["pods"] = json!("none")),
        ),
        ("objects.yaml", recorded(&ready(&spec(3)))),
    ];
    let directory = directory("replay-errors", &files);
    let commands: Vec<_> = files
        .iter()
        .map(|(name, _)| format!("replay {name}"))
        .chain(["replay missing.jsonl".to_owned()])
        .collect();
    for command in &commands {
        let (text, code) = run(&directory, command);
        assert_eq!((code, text.lines().count()), (1, 1), "{command}: {text}");
        assert!(text.starts_with("error: cannot use "), "{text}");
    }
    golden(
        "replay-errors",
        &directory,
        &commands.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

/// A file of an earlier operator of this API must stay readable for ever; the first version had specs of `v1alpha1`. `UPDATE=1` does not write it again, because decisions may change.
#[test]
fn the_second_version_of_the_format_is_still_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decisions-2.jsonl");
    let read = cli::replay::read(&path).unwrap();
    assert_eq!((read.header.version, read.lines.len()), (2, DECISIONS_IN_THE_SECOND));
    assert_eq!(cli::replay::page(&read).decisions.len(), DECISIONS_IN_THE_SECOND);
}

#[test]
fn an_upgrade_changes_nothing_or_says_what() {
    let world = ready(&spec(3));
    let objects = recorded(&world);
    let older = objects.replace(&world.scene.revision, "0123456789abcdef");
    assert_ne!(older, objects);
    let directory = directory("upgrade", &[("demo.yaml", objects), ("older.yaml", older)]);
    let commands = ["demo.yaml", "older.yaml"].map(|file| format!("upgrade-preview demo --file {file}"));
    golden("upgrade-preview", &directory, &commands.each_ref().map(String::as_str));
    assert_eq!(run(&directory, &commands[0]).1, 0);
    let (text, code) = run(&directory, &commands[1]);
    assert!(
        code == 2 && text.contains("demo-0, demo-1 and demo-2, which are of an older template"),
        "{text}"
    );
}

/// Compares the pages of `what-if` for a world.
fn what_if(name: &str, world: &World, losses: &[&str]) -> String {
    let directory = directory(name, &[("demo.yaml", recorded(world))]);
    let commands: Vec<_> = losses
        .iter()
        .map(|loss| format!("what-if demo --lose {loss} --file demo.yaml"))
        .collect();
    golden(
        name,
        &directory,
        &commands.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    commands.iter().map(|command| run(&directory, command).0).collect()
}

#[test]
fn a_loss_of_three() {
    let mut world = ready(&spec(3));
    place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
    let text = what_if(
        "what-if",
        &world,
        &[
            "instance=demo-0",
            "node=node-2",
            "api",
            "operator",
            "instance=demo-7",
            "node=moon",
            "disk",
        ],
    );
    assert!(text.contains("nothing that was acknowledged"), "{text}");
    assert!(
        !text.contains("Ready: waits"),
        "a standby that is lost is not back soon: {text}"
    );
    assert!(
        text.contains("Kubernetes  makes no other pod while the Node object node-2 exists"),
        "{text}"
    );
}

#[test]
fn a_loss_of_what_commits_wait_for() {
    let mut two = spec(2);
    two["durability"] = json!({"mode": "Required"});
    let mut world = ready(&two);
    let text = what_if("what-if-two", &world, &["instance=demo-0", "instance=demo-1", "api"]);
    assert!(!text.contains("Ready: waits"), "{text}");
    let node = world.scene.pods()[0].node.clone();
    world.scene.pod_mut(1).node = node;
    let text = what_if("what-if-node", &world, &["node=node-0"]);
    assert!(
        text.contains("nobody: an election needs the answers of 1 of the 1 standby"),
        "{text}"
    );
}

#[test]
fn a_loss_without_a_rule() {
    let mut asynchronous = spec(3);
    asynchronous["durability"] = json!({"mode": "Async"});
    let mut world = ready(&asynchronous);
    place(&mut world, &[0x0300_0148, 0x0300_0108, 0x0300_0060]);
    let text = what_if("what-if-async", &world, &["instance=demo-0", "instance=demo-1"]);
    assert!(text.contains("the best of them is 64 B behind"), "{text}");
    what_if("what-if-one", &ready(&spec(1)), &["instance=demo-0", "api"]);
}

/// Commits wait for the last standby that is left, and for none if none is left.
#[test]
fn a_loss_under_preferred() {
    for (name, replicas) in [("what-if-preferred", 3), ("what-if-preferred-two", 2)] {
        let mut preferred = spec(replicas);
        preferred["durability"] = json!({"mode": "Preferred", "synchronousStandbys": 1});
        let mut world = ready(&preferred);
        if replicas == 3 {
            place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
        }
        what_if(name, &world, &["instance=demo-0", "instance=demo-1", "api"]);
    }
}

#[test]
fn a_loss_after_a_loss_is_refused() {
    let mut world = ready(&spec(3));
    world.lose_primary();
    let text = what_if("what-if-lost", &world, &["instance=demo-1"]);
    assert!(text.starts_with("error: no primary of demo serves now"), "{text}");
}

#[test]
fn errors_are_one_line_that_says_what_to_do() {
    let world = ready(&spec(3));
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}, {"name": "b", "context": {"cluster": "c", "user": "u"}}],
    });
    let files = [
        ("demo.yaml", recorded(&world)),
        ("broken.yaml", "kind: [".to_owned()),
        ("empty.yaml", "# nothing\n".to_owned()),
        ("misspelt.yaml", changed(spec(3), &json!({"replica": 5}))),
        ("wrong.yaml", changed(spec(3), &json!({"replicas": "five"}))),
        ("kubeconfig", kubeconfig.to_string()),
    ];
    let directory = directory("errors", &files);
    let commands = [
        "status other --file demo.yaml",
        "status demo --file missing.yaml",
        "status demo --file broken.yaml",
        "status demo --file empty.yaml",
        "status demo --namespace other --file demo.yaml",
        "plan demo --file demo.yaml --filename misspelt.yaml",
        "plan demo --file demo.yaml --filename wrong.yaml",
        "status demo --kubeconfig missing",
        "status demo --kubeconfig kubeconfig",
        "status demo --kubeconfig kubeconfig --context c",
    ];
    for command in commands {
        let (text, code) = run(&directory, command);
        assert_eq!((code, text.lines().count()), (1, 1), "{command}: {text}");
        assert!(text.starts_with("error: "), "{text}");
    }
    golden("errors", &directory, &commands);
}

#[test]
fn a_wrong_command_line_is_no_plan_with_changes() {
    let (_, code) = run(Path::new("."), "plan");
    assert_eq!(code, 1);
}

#[test]
fn pages_are_data_too() {
    let world = ready(&spec(3));
    let objects = recorded(&world);
    let files = [
        ("older.yaml", objects.replace(&world.scene.revision, "0123456789abcdef")),
        ("demo.yaml", objects),
        ("new.yaml", changed(spec(3), &json!({"replicas": 5}))),
        ("refused.yaml", changed(spec(3), &json!({"replicas": 10}))),
        ("demo.jsonl", recording()),
    ];
    let directory = directory("data", &files);
    let replicas = json!({"field": "spec.replicas", "old": 3, "new": 5});
    for (command, code, at, told) in [
        ("status demo -F demo.yaml", 0, "/name", json!("demo")),
        ("why demo -F demo.yaml", 0, "/name", json!("demo")),
        ("history demo -F demo.yaml", 0, "/name", json!("demo")),
        ("plan demo -f new.yaml -F demo.yaml", 2, "/changes", json!([replicas])),
        (
            "plan demo -f refused.yaml -F demo.yaml",
            3,
            "/refused/0",
            json!("spec.replicas: replicas must be 1 to 9"),
        ),
        (
            "what-if demo --lose instance=demo-0 -F demo.yaml",
            0,
            "/left",
            json!(["demo-1", "demo-2"]),
        ),
        ("replay demo.jsonl", 0, "/differing", json!(0)),
        (
            "upgrade-preview demo -F demo.yaml",
            0,
            "/databases/0/actions",
            json!([]),
        ),
        (
            "upgrade-preview demo -F older.yaml",
            2,
            "/databases/0/replaced",
            json!(["demo-0", "demo-1", "demo-2"]),
        ),
    ] {
        let (text, found) = run(&directory, &format!("{command} -o json"));
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((found, json.pointer(at)), (code, Some(&told)), "{command}: {text}");
        let (text, found) = run(&directory, &format!("{command} -o yaml"));
        let yaml: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!((found, yaml), (code, json), "{command}");
    }
    let (script, code) = run(&directory, "completion bash");
    assert!(code == 0 && script.contains("hibernate") && script.contains("kubectl-cdb"));
}

#[test]
fn the_documentation_shows_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/cli.md")).unwrap();
    let mut golden = String::new();
    for file in std::fs::read_dir(root.join("tests/golden")).unwrap() {
        golden.push_str(&std::fs::read_to_string(file.unwrap().path()).unwrap());
    }
    let shown: Vec<_> = page
        .split("```")
        .filter(|block| block.starts_with("\n$ kubectl cdb"))
        .collect();
    assert!(shown.len() >= 4, "the page shows outputs");
    for block in shown {
        assert!(golden.contains(block.trim()), "in no golden file:\n{block}");
    }
}
