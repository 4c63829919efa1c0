//! The program as a user runs it, on recorded databases: what it prints, and its exit code. `UPDATE=1` writes the golden
//! files again.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use api::Phase;
use chrono::TimeDelta;
use machine::cluster::testing::World;
use machine::cluster::{ChildKind, ChildState};
use machine::protocol::FAULT_SILENT;
use serde_json::{Value, json};
use support::{new, place, ready, recorded, spec};

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

/// Runs the program in `directory`; what a terminal would show, and the exit code.
fn run(directory: &Path, command: &str) -> (String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-cdb"))
        .args(command.split(' '))
        .current_dir(directory)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code().unwrap())
}

/// Compares what commands print with a golden file.
fn golden(name: &str, directory: &Path, commands: &[&str]) {
    let mut text = String::new();
    for command in commands {
        let (printed, code) = run(directory, command);
        text.push_str(&format!("$ kubectl cdb {command}\n{printed}exit code {code}\n\n"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        golden,
        "{}: look at it, then UPDATE=1 cargo test -p cli",
        path.display()
    );
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

#[test]
fn a_failover_that_waits_says_for_whom() {
    let mut world = ready(&spec(3));
    place(&mut world, &[0x0300_0148, 0x0300_0148, 0x0300_0060]);
    world.lose_primary();
    world.scene.pod_mut(1).ready = false;
    world.scene.report_mut(1).fault = Some(FAULT_SILENT.to_owned());
    world.scene.store();
    world.scene.now += TimeDelta::seconds(35);
    world.scene.store();
    assert_eq!(world.scene.stored.phase, Some(Phase::FailingOver));
    pages("failing-over", &world);
}

#[test]
fn a_foreign_object_in_the_way() {
    let mut world = new(&spec(3));
    let why = "owned by Deployment web".to_owned();
    world.scene.set_child(ChildKind::RwService, ChildState::Foreign { why });
    world.run_until(TimeDelta::seconds(20), |_, _| false);
    assert_eq!(world.scene.stored.phase, Some(Phase::Failed));
    pages("foreign-object", &world);
}

#[test]
fn a_paused_database() {
    let mut world = ready(&spec(3));
    world.scene.edit(|spec| (spec.paused, spec.replicas) = (true, 5));
    world.scene.store();
    world.scene.now += TimeDelta::minutes(7);
    pages("paused", &world);
}

#[test]
fn a_hibernated_database() {
    let mut world = ready(&spec(3));
    world.scene.edit(|spec| spec.hibernated = true);
    assert!(world.run_until(TimeDelta::minutes(10), |_, decision| decision.rule == "await-waking"));
    world.scene.store();
    assert_eq!(world.scene.stored.phase, Some(Phase::Hibernated));
    world.scene.now += TimeDelta::hours(30);
    pages("hibernated", &world);
}

/// The new resource with these changes of [`spec`].
fn changed(of: Value, changes: &Value) -> String {
    let mut spec = of;
    merge(&mut spec, changes);
    let resource = json!({
        "apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase", "metadata": {"name": "demo"}, "spec": spec,
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

/// Compares the plan for changing a database of `replicas` so, and checks the exit code.
fn plan(name: &str, of: Value, changes: &Value, code: i32) -> String {
    let world = ready(&of);
    let files = [("demo.yaml", recorded(&world)), ("new.yaml", changed(of, changes))];
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
fn a_parameter_that_is_reloaded_restarts_nobody() {
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
fn a_supervised_change_ends_in_a_wait_for_the_user() {
    let changes = json!({"postgres": {"image": "example.org/postgres:17.7"}, "primary": {"updates": "Supervised"}});
    let text = plan("plan-supervised", spec(3), &changes, 2);
    assert!(text.contains("Pods replaced       demo-2, then demo-1\n"), "{text}");
    assert!(text.contains("Note: It ends in a wait for "), "{text}");
}

#[test]
fn more_and_fewer_instances() {
    let text = plan("plan-grow", spec(3), &json!({"replicas": 5}), 2);
    assert!(text.contains("Added               demo-3, then demo-4"), "{text}");
    let text = plan("plan-shrink", spec(5), &json!({"replicas": 3}), 2);
    assert!(text.contains("Removed             demo-3, then demo-4"), "{text}");
}

#[test]
fn volumes_grow_and_never_shrink() {
    plan("plan-volume", spec(3), &json!({"storage": {"size": "2Gi"}}), 2);
    let text = plan(
        "plan-refused",
        spec(3),
        &json!({"storage": {"size": "512Mi"}, "replicas": 10}),
        3,
    );
    assert!(text.contains("spec.storage.size: size cannot shrink"), "{text}");
}

#[test]
fn nothing_changes() {
    plan("plan-nothing", spec(3), &json!({}), 0);
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
    let directory = directory("data", &[("demo.yaml", recorded(&world))]);
    for page in ["status", "why", "history"] {
        let (text, code) = run(&directory, &format!("{page} demo -F demo.yaml -o json"));
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, json["name"].as_str()), (0, Some("demo")));
        let (text, _) = run(&directory, &format!("{page} demo -F demo.yaml -o yaml"));
        let yaml: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(yaml, json);
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
