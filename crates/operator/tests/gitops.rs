//! What GitOps tools make of a database: Flux, Helm and kpt by the kstatus library, Argo CD by the script in
//! `manifests/argocd`. Both are run as they are, by the Go program beside this file, over objects that the machine made.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::Phase;
use chrono::TimeDelta;
use machine::cluster::model::{Scene, World};
use machine::cluster::{Fault, FaultKind, Known, StorageClass, Target};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Answer {
    kstatus: String,
    argo: String,
}

const CONFIG: &str = "manifests/argocd/argocd-cm.yaml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Go program, built if need be.
fn program() -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("health");
    let mut go = Command::new("go");
    go.current_dir(root().join("crates/operator/tests/gitops"));
    let built = go
        .env("CGO_ENABLED", "0")
        .args(["build", "-o"])
        .arg(&to)
        .arg(".")
        .status();
    let built = built.expect("Go is missing: install Go 1.25 or later");
    assert!(built.success(), "the Go program does not compile");
    to
}

/// What the tools say of these objects, the script being the one for `kind`.
fn judged(kind: &str, objects: &[(&str, Value)]) -> Vec<Answer> {
    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(root().join(CONFIG)).unwrap()).unwrap();
    let key = format!("resource.customizations.health.{}_{kind}", api::GROUP);
    let script = config["data"][&key].as_str().expect("a script for this kind");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{kind}.lua"));
    std::fs::write(&file, script).unwrap();
    let questions: Vec<_> = objects
        .iter()
        .map(|(name, object)| json!({"name": name, "object": object}))
        .collect();
    let mut child = Command::new(program())
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(json!(questions).to_string().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The resource as the API server has it after this operator's write.
fn object(scene: &Scene) -> Value {
    let mut object = json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
        "metadata": {"name": "demo", "namespace": "shop", "uid": "u", "generation": scene.generation},
        "spec": scene.spec, "status": scene.stored,
    });
    if scene.deleting {
        object["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
    }
    object
}

fn stored(mut scene: Scene) -> Scene {
    // Once for what is done, and once for what is then waited for.
    scene.store();
    scene.store();
    scene
}

fn with(change: impl FnOnce(&mut Scene)) -> Scene {
    let mut scene = Scene::ready(3);
    scene.store();
    change(&mut scene);
    stored(scene)
}

fn hibernated() -> Scene {
    let mut world = World::new(3);
    assert!(world.settle());
    world.scene.edit(|spec| spec.hibernated = true);
    let asleep = |world: &World| world.scene.stored.phase == Some(Phase::Hibernated) && world.scene.pods().is_empty();
    assert!(world.run_until(TimeDelta::minutes(10), |world, _| asleep(world)));
    stored(world.scene)
}

fn fenced(scene: &mut Scene, ordinals: &[u32]) {
    let names: Vec<_> = ordinals.iter().map(|ordinal| format!("demo-{ordinal}")).collect();
    scene.edit(|spec| spec.fenced = names);
    for ordinal in ordinals {
        scene.pod_mut(*ordinal).ready = false;
        scene.report_mut(*ordinal).state = machine::protocol::MemberState::Stopped;
    }
}

fn refused() -> Scene {
    with(|scene| {
        scene.claims_mut()[1].differs = true;
        scene.observed.faults = vec![Fault {
            target: Target::Claim("data-demo-1".to_owned()),
            kind: FaultKind::Invalid,
            message: "no".to_owned(),
            attempts: 2,
            at: scene.now,
        }];
    })
}

/// A state in words, its phase, an object in it, and what kstatus and Argo CD are to say.
type Case = (&'static str, Option<Phase>, Value, &'static str, &'static str);

fn cases() -> Vec<Case> {
    let case = |what, scene: Scene, kstatus, argo| (what, scene.stored.phase, object(&scene), kstatus, argo);
    let mut unseen = object(&Scene::new(3));
    unseen.as_object_mut().unwrap().remove("status");
    let mut changed = with(|_| {});
    changed.edit(|spec| spec.replicas = 5);
    let late = |mut scene: Scene| {
        scene.now += TimeDelta::hours(1);
        stored(scene)
    };
    let paused = |scene: &mut Scene| scene.edit(|spec| spec.paused = true);
    vec![
        (
            "the operator has not seen it yet",
            None,
            unseen,
            "Current",
            "Progressing",
        ),
        case("it is being made", stored(Scene::new(3)), "InProgress", "Progressing"),
        case("it is as wanted", with(|_| {}), "Current", "Healthy"),
        case(
            "the operator has not seen the change yet",
            changed,
            "InProgress",
            "Progressing",
        ),
        case(
            "a standby is away",
            with(|scene| scene.pod_mut(2).ready = false),
            "InProgress",
            "Progressing",
        ),
        case(
            "a standby is away for an hour",
            late(with(|scene| scene.pod_mut(2).ready = false)),
            "Failed",
            "Degraded",
        ),
        case(
            "Kubernetes refuses a change of a claim",
            refused(),
            "Failed",
            "Degraded",
        ),
        case(
            "a switchover",
            with(|scene| scene.ask_switchover("demo-1", "u")),
            "InProgress",
            "Progressing",
        ),
        case(
            "no primary serves",
            with(|scene| {
                scene.pod_mut(0).ready = false;
                if let Some(lease) = scene.lease_mut() {
                    lease.holder = None;
                }
            }),
            "InProgress",
            "Degraded",
        ),
        case("it hibernates", hibernated(), "Current", "Suspended"),
        case(
            "one instance is fenced",
            with(|scene| fenced(scene, &[2])),
            "Current",
            "Suspended",
        ),
        case(
            "all instances are fenced",
            with(|scene| {
                fenced(scene, &[0, 1, 2]);
                if let Some(lease) = scene.lease_mut() {
                    lease.holder = None;
                }
            }),
            "Current",
            "Suspended",
        ),
        case("it is paused, and as wanted", with(paused), "Current", "Suspended"),
        case(
            "it is paused, and a standby is away",
            with(|scene| {
                paused(scene);
                scene.pod_mut(2).ready = false;
            }),
            "Current",
            "Suspended",
        ),
        case(
            "it is paused, and no primary serves",
            with(|scene| {
                paused(scene);
                scene.pod_mut(0).ready = false;
            }),
            "InProgress",
            "Degraded",
        ),
        case(
            "its StorageClass does not exist",
            {
                let mut scene = Scene::new(3);
                let name = "gone".to_owned();
                scene.observed.storage_class = Known::Known(StorageClass::Missing { name });
                stored(scene)
            },
            "Failed",
            "Degraded",
        ),
        case(
            "it is being deleted",
            with(|scene| scene.deleting = true),
            "Terminating",
            "Progressing",
        ),
    ]
}

const PAGE: &str = "docs/gitops.md";

const HEAD: &str = "<!-- Made by `UPDATE=1 cargo test -p operator --test gitops`, which asks the tools themselves. -->

# GitOps tools

Flux, Helm (`--wait`) and kpt judge a database by
[kstatus](https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus), which reads
`status.observedGeneration` and the conditions `Ready`, `Reconciling` and `Stalled`. Nothing is to be
set up. An object that no operator has seen yet counts as `Current` there: wait for `Ready`
(`kubectl wait --for=condition=Ready`) where an operator may be missing.

Argo CD knows nothing of a kind without a script. `manifests/argocd/argocd-cm.yaml` has one each for
clusters, operations, backups, users, databases and poolers; its head says how to add them.

A rest that the spec asks for (`hibernated`, `fenced`, `paused`) is no progress: `Ready` is `True`,
and its reason says which rest it is. To wait until a database serves, wait for `Available`.

| state | phase | kstatus | Argo CD |
|---|---|---|---|
";

#[test]
fn tools_see_what_people_see() {
    let cases = cases();
    let objects: Vec<_> = cases
        .iter()
        .map(|(what, _, object, ..)| (*what, object.clone()))
        .collect();
    let answers = judged("ClusteredDatabase", &objects);
    let mut page = HEAD.to_owned();
    let mut wrong = Vec::new();
    for ((what, phase, object, kstatus, argo), answer) in cases.iter().zip(&answers) {
        if (&*answer.kstatus, &*answer.argo) != (*kstatus, *argo) {
            let found = (&answer.kstatus, &answer.argo);
            wrong.push(format!("{what}: {found:?}, {:#}", object["status"]["conditions"]));
        }
        let phase = phase.map_or_else(String::new, |phase| format!("`{phase}`"));
        page.push_str(&format!(
            "| {what} | {phase} | `{}` | `{}` |\n",
            answer.kstatus, answer.argo
        ));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(root().join(PAGE), &page).unwrap();
    }
    let stored = std::fs::read_to_string(root().join(PAGE)).unwrap_or_default();
    assert!(
        stored == page,
        "UPDATE=1 cargo test -p operator --test gitops writes {PAGE}"
    );
}

/// What Argo CD says of objects of this kind with these statuses.
fn argo(kind: &str, statuses: &[Value]) -> Vec<String> {
    let object = |status: &Value| {
        json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": kind,
            "metadata": {"name": "o", "namespace": "shop", "uid": "u", "generation": 2},
            "spec": {"clusterRef": {"name": "demo"}}, "status": status,
        })
    };
    let objects: Vec<_> = statuses.iter().map(|status| ("o", object(status))).collect();
    let answers = judged(kind, &objects);
    answers.into_iter().map(|answer| answer.argo).collect()
}

#[test]
fn operations_and_backups_are_healthy_once_they_are_over_as_their_user_wanted() {
    let cases = [
        (Value::Null, "Progressing"),
        (json!("Pending"), "Progressing"),
        (json!("Running"), "Progressing"),
        (json!("Completed"), "Healthy"),
        (json!("Cancelled"), "Healthy"),
        (json!("Failed"), "Degraded"),
    ];
    let statuses = cases
        .clone()
        .map(|(phase, _)| json!({"phase": phase, "message": "why"}));
    for kind in ["ClusteredDatabaseOperation", "DatabaseBackup"] {
        assert_eq!(argo(kind, &statuses), cases.clone().map(|(_, argo)| argo), "{kind}");
    }
}

#[test]
fn a_user_or_database_is_healthy_as_far_as_its_policy_goes() {
    let cases = [
        (json!({}), "Progressing"),
        (json!({"phase": "Pending", "observedGeneration": 2}), "Progressing"),
        (json!({"phase": "Ready", "observedGeneration": 1}), "Progressing"),
        (json!({"phase": "Ready", "observedGeneration": 2}), "Healthy"),
        (json!({"phase": "Planned", "observedGeneration": 2}), "Healthy"),
        (json!({"phase": "Failed", "observedGeneration": 2}), "Degraded"),
    ];
    let statuses = cases.clone().map(|(status, _)| status);
    for kind in ["DatabaseUser", "Database"] {
        assert_eq!(argo(kind, &statuses), cases.clone().map(|(_, argo)| argo), "{kind}");
    }
    // A pooler has no policy.
    let cases = cases.map(|(status, argo)| match status["phase"].as_str() {
        Some("Planned") => (status, "Progressing"),
        _ => (status, argo),
    });
    assert_eq!(argo("Pooler", &statuses), cases.map(|(_, argo)| argo));
}
