//! Databases in states of interest, made by the machine's own world model, in the form of a report.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use api::ClusteredDatabase;
use api::names::{
    ANNOTATION_BASE_REVISION, ANNOTATION_REVISION, FINALIZER, LABEL_CLUSTER, LABEL_CLUSTER_UID, LABEL_ROLE,
};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use cli::snapshot::{Snapshot, kinds, name};
use k8s_openapi::api::coordination::v1::Lease;
use machine::cluster::model::World;
use machine::cluster::{Action, Known, OwnedObject, OwnedState, Resources, StatusWrite};
use machine::lease_object::{LeaseContent, write};
use machine::protocol::{LeaseRecord, Lsn, Position, Timeline};
use operator::builders::Subject;
use operator::cache::Key;
use operator::config::Config;
use operator::decisions::Decisions;
use operator::desired::{self, Desired};
use serde_json::{Value, json};

const NAMESPACE: &str = "shop";

/// Compares an output with a golden file; `UPDATE=1` writes that again.
pub fn golden(name: &str, text: &str) {
    // The pages and the documentation do not change with each version.
    let text = text.replace(env!("CARGO_PKG_VERSION"), "0.1.0");
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

/// The smallest spec with this many instances.
pub fn spec(replicas: u32) -> Value {
    json!({"replicas": replicas, "storage": {"data": {"size": "1Gi"}}, "postgres": {"parameters": {"max_connections": "200"}}})
}

/// A database without any object yet.
pub fn new(spec: &Value) -> World {
    let db = resource(spec, &json!({}), 1, Utc::now());
    let replicas = u32::try_from(db.spec.replicas).unwrap();
    let mut world = World::new(replicas);
    let set = &objects(&db)[&OwnedObject::StatefulSet];
    let revision = &set.content["spec"]["template"]["metadata"]["annotations"][ANNOTATION_REVISION];
    world.scene.revision = revision.as_str().unwrap().to_owned();
    world.scene.default_image = Config::default().postgres_image(db.spec.postgres.major_version);
    world.scene.spec = db.spec;
    world.scene.now += TimeDelta::hours(9);
    world
}

/// An idle database.
pub fn ready(spec: &Value) -> World {
    let mut world = new(spec);
    world.pace = 5;
    assert!(world.settle(), "{:#?}", world.scene.decide());
    world.scene.now += TimeDelta::minutes(42);
    world
}

/// The operator's record while the world runs until the database is idle.
pub fn followed(world: &mut World) -> String {
    let decisions = Decisions::default();
    let key = Key::database(NAMESPACE.to_owned(), "demo");
    let rests = world.run_until(TimeDelta::minutes(10), |world, decision| {
        let scene = &world.scene;
        scene.with_wanted(|wanted| {
            decisions.note(&key, wanted, &scene.observed, &scene.stored, decision, scene.now);
        });
        matches!(&decision.action, Action::Wait(waiting) if waiting.resting) && scene.due(decision) == StatusWrite::None
    });
    assert!(rests, "{:#?}", world.scene.decide());
    decisions.text(&key).unwrap()
}

/// The world's objects as a report writes them.
pub fn recorded(world: &World) -> String {
    let mut objects = all(world);
    let complete = cli::snapshot::kinds().into_iter().map(|kind| kind.kind);
    objects.iter_mut().for_each(|object| {
        object["metadata"]["namespace"] = json!(NAMESPACE);
    });
    let snapshot = cli::snapshot::Snapshot {
        objects,
        complete: complete.collect::<BTreeSet<_>>(),
        unreadable: BTreeMap::new(),
        at: world.scene.now,
    };
    let files = cli::report::files(snapshot, "demo", &Ok(Vec::new())).unwrap();
    files.into_iter().find(|(name, _)| name == "objects.yaml").unwrap().1
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn resource(spec: &Value, status: &Value, generation: i64, created: DateTime<Utc>) -> ClusteredDatabase {
    serde_json::from_value(json!({
        "apiVersion": "clustereddatabase.io/v1alpha2",
        "kind": "ClusteredDatabase",
        "metadata": {
            "name": "demo", "namespace": NAMESPACE, "uid": World::new(1).uid(), "resourceVersion": "1",
            "generation": generation, "finalizers": [FINALIZER], "creationTimestamp": time(created),
        },
        "spec": spec,
        "status": status,
    }))
    .unwrap()
}

fn objects(db: &ClusteredDatabase) -> BTreeMap<OwnedObject, Desired> {
    let config = Config::default();
    desired::all(&Subject::new(db, &config).unwrap())
}

fn all(world: &World) -> Vec<Value> {
    let scene = &world.scene;
    let (spec, status) = (json!(scene.spec), json!(scene.stored));
    let db = resource(&spec, &status, scene.generation, DateTime::UNIX_EPOCH);
    let mut all = vec![serde_json::to_value(&db).unwrap()];
    let desired = objects(&db);
    all.extend(
        OwnedObject::ALL
            .into_iter()
            .filter_map(|kind| child(world, kind, &desired[&kind])),
    );
    all.extend(scene.pods().iter().map(pod));
    for claim in scene.observed.claims.get().into_iter().flatten() {
        all.push(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim.name, "uid": claim.uid, "resourceVersion": "1",
                         "labels": {LABEL_CLUSTER_UID: claim.cluster_uid}},
            "spec": {"resources": {"requests": {"storage": claim.requested.0.to_string()}}},
            "status": {"phase": "Bound"},
        }));
    }
    all.push(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "p", "allowVolumeExpansion": true,
        "metadata": {"name": "fast", "uid": "c", "resourceVersion": "1",
                     "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    }));
    for pod in scene.pods() {
        all.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": pod.node, "uid": pod.node, "resourceVersion": "1"}}));
    }
    for change in &scene.stored.history {
        all.push(json!({
            "apiVersion": "v1", "kind": "Event", "type": if change.to == api::Phase::Failed { "Warning" } else { "Normal" },
            "metadata": {"name": format!("demo.{}", change.at.timestamp_millis()), "uid": "e", "resourceVersion": "1"},
            "involvedObject": {"kind": "ClusteredDatabase", "name": "demo"},
            "reason": change.to.as_str(), "message": change.because, "eventTime": time(change.at),
        }));
    }
    all
}

fn child(world: &World, kind: OwnedObject, desired: &Desired) -> Option<Value> {
    if kind.kind() == "Secret" {
        return None;
    }
    let replicas = world.scene.observed.stateful_set.as_ref().map(|set| set.replicas);
    let mut object = desired::applied(desired, kind, replicas);
    match &world.scene.observed.children[kind] {
        Known::Known(OwnedState::Current { uid } | OwnedState::Drifted { uid, .. }) => {
            (object["metadata"]["uid"], object["metadata"]["resourceVersion"]) = (json!(uid), json!("1"));
            object["metadata"]["creationTimestamp"] = json!(time(DateTime::UNIX_EPOCH));
        }
        Known::Known(OwnedState::Foreign { .. }) => {
            object = json!({"metadata": {"name": desired.name, "uid": "foreign", "resourceVersion": "1", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "w", "controller": true}]}});
        }
        _ => return None,
    }
    let resource = cli::snapshot::kinds()
        .into_iter()
        .find(|resource| resource.kind == kind.kind())
        .unwrap();
    if kind == OwnedObject::Lease {
        let record = world.scene.observed.lease.get().and_then(Option::as_ref).unwrap();
        object = lease(&object, record, world.scene.now);
    }
    (object["apiVersion"], object["kind"]) = (json!(resource.api_version), json!(resource.kind));
    Some(object)
}

fn lease(base: &Value, record: &LeaseRecord, now: DateTime<Utc>) -> Value {
    let base: Lease = serde_json::from_value(base.clone()).unwrap();
    let record = record.clone();
    let content = LeaseContent {
        uid: record.uid,
        version: record.version,
        holder: record.holder,
        duration: record.duration,
        epoch: record.epoch,
        system_id: record.system_id,
        release: record.release,
        rule: record.rule,
        timeline: record.timeline,
        lossy: record.lossy,
        history: record.history,
        members: record.members,
        positions: record.positions,
        archive: record.archive,
    };
    let now = serde_json::from_value(json!(now.to_rfc3339_opts(SecondsFormat::Micros, true))).unwrap();
    serde_json::to_value(write(&base, &content, now)).unwrap()
}

fn pod(pod: &machine::cluster::Pod) -> Value {
    let truth = |holds: bool| if holds { "True" } else { "False" };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod.name, "uid": pod.uid, "resourceVersion": "1", "creationTimestamp": time(pod.created),
            "deletionTimestamp": pod.terminating.then(|| time(pod.created)),
            "labels": {LABEL_CLUSTER: "demo", LABEL_ROLE: pod.role},
            "annotations": {ANNOTATION_REVISION: pod.revision, ANNOTATION_BASE_REVISION: pod.base_revision},
        },
        "spec": {"nodeName": pod.node, "containers": [{"name": "postgres"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": truth(pod.ready), "lastTransitionTime": pod.ready_since.map(time)}],
            "containerStatuses": [container_with(&pod.resources)],
        },
    })
}

/// The kubelet's status of PostgreSQL's container: the requested resources, or nothing.
fn container_with(resources: &Resources) -> Value {
    let mut status = json!({"name": "postgres", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}});
    if *resources == Resources::Given {
        status["resources"] = json!({});
    }
    status
}

/// Sets the end of each member's WAL, by ordinal, in bytes of timeline 1.
pub fn place(world: &mut World, ends: &[u64]) {
    let lease = world.scene.lease_mut().unwrap();
    if let Some(holder) = &mut lease.holder {
        holder.timeline = Some(Timeline(1));
    }
    for (ordinal, end) in ends.iter().enumerate() {
        let position = Position {
            timeline: Timeline(1),
            lsn: Lsn(*end),
        };
        lease.positions.insert(format!("demo-{ordinal}"), position);
    }
    world.scene.store();
}

/// An answer: its code and its body.
pub type Answer = (u16, Value);

/// A refusal of an API server.
pub fn refusal(code: u16, message: &str) -> Answer {
    let reason = if code == 404 { "NotFound" } else { "Forbidden" };
    let body = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message});
    (code, body)
}

/// Answers from the objects of a snapshot, by path.
pub fn serve(snapshot: &Snapshot, path: &str) -> Answer {
    let parts: Vec<_> = path.split('/').collect();
    let resource = kinds().into_iter().find(|kind| parts.contains(&kind.plural.as_str()));
    let Some(kind) = resource else {
        return refusal(404, "no such kind");
    };
    let mut objects = snapshot.of(&kind.kind);
    if parts.last() == Some(&kind.plural.as_str()) {
        let items: Vec<_> = objects.collect();
        return (
            200,
            json!({"apiVersion": kind.api_version, "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}),
        );
    }
    match objects.find(|object| parts.last() == Some(&name(object))) {
        Some(object) => (200, object.clone()),
        None => refusal(404, "not found"),
    }
}

/// The objects of a text.
pub fn of_file(text: &str) -> Snapshot {
    let mut snapshot = Snapshot {
        objects: Vec::new(),
        complete: Default::default(),
        unreadable: Default::default(),
        at: Default::default(),
    };
    cli::file::parse(text, &mut snapshot).unwrap();
    snapshot
}
