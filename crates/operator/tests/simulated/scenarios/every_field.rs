//! Scenario 32, walks through the whole spec: every leaf of the definition is set, changed and taken away in some order, while the
//! API server fails and accidents happen. At the end the cluster is what the same spec makes from nothing.

use std::collections::{BTreeMap, BTreeSet};

use api::{ClusteredDatabase, validate, validate_update};
use fake_api::Verb;
use fake_api::faults::{Faults, Rates};
use fastrand::Rng;
use operator::config::Config;

use super::*;
use crate::creation::{PACE, outcome};
use crate::seeds::{accident, attempt};
use crate::world::{NAME, Operator, run};

/// How many walks there are, in two halves side by side; the environment may ask for more.
const WALKS: u64 = 10;
const WALKS_VARIABLE: &str = "CDB_WALKS";
/// How many edits one walk has.
const STEPS: usize = 20;

/// Patches of the spec that hold every leaf that may change. What one sets, others change or take away.
fn later() -> Vec<Value> {
    let (image, mode) = (
        |image: &str| json!({"postgres": {"image": image}}),
        |mode: &str| json!({"durability": {"mode": mode}}),
    );
    let selector = json!({
        "matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}],
    });
    let block = json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]});
    let peers = json!([{"namespaceSelector": selector, "podSelector": selector}, {"ipBlock": block}]);
    let metadata = json!({"labels": {"user-label": "a"}, "annotations": {"example.org/user": "a"}});
    let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "example.org/lb",
        "loadBalancerSourceRanges": ["10.0.0.0/8"], "metadata": metadata});
    let mut all = vec![
        image("example.org/postgres:17.6"),
        image("example.org/postgres:17.7"),
        json!({"postgres": {"parameters": {"work_mem": "5MB"}}}),
        json!({"postgres": {"parameters": {"work_mem": "6MB", "log_min_messages": "error"}}}),
        json!({"postgres": {"parameters": {"max_connections": "50"}}}),
        json!({"postgres": {"parameters": {"max_connections": "200"}}}),
        json!({"storage": {"data": {"size": "2Gi"}}}),
        json!({"storage": {"data": {"size": "3Gi"}}}),
        json!({"storage": {"wal": {"size": "1Gi"}}}),
        json!({"storage": {"wal": {"size": "2Gi", "storageClassName": "standard"}}}),
        json!({"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}}),
        json!({"resources": {"requests": {"cpu": "200m"}, "limits": {"cpu": "1", "memory": "1Gi"}}}),
        json!({"failover": {"profile": "Fast"}}),
        json!({"failover": {"profile": "Standard", "staleReads": "Allow"}}),
        json!({"failover": {"profile": "Custom", "timing": {"leaseDurationMilliseconds": 20_000, "renewPeriodMilliseconds": 2_000, "fenceTimeoutMilliseconds": 8_000, "stopTimeoutMilliseconds": 2_000}}}),
        json!({"failover": {"staleReads": "Forbid"}}),
        mode("Async"),
        mode("Preferred"),
        mode("Required"),
        json!({"durability": {"mode": "Required", "synchronousStandbys": 1}}),
        json!({"durability": {"mode": "Preferred", "synchronousStandbys": 2}}),
        json!({"primary": {"prefer": "db-0", "updatePolicy": "Automatic"}}),
        json!({"primary": {"prefer": "db-1"}}),
        json!({"primary": {"prefer": null}}),
        json!({"primary": {"updatePolicy": "Supervised"}}),
        json!({"fenced": ["db-0"]}),
        json!({"fenced": ["db-1", "db-2"]}),
        json!({"hibernated": true}),
        json!({"hibernated": false}),
        json!({"paused": true}),
        json!({"paused": false}),
        json!({"serviceAccount": {"metadata": {"annotations": {"example.org/role": "a"}}}}),
        json!({"serviceAccount": {"metadata": {"annotations": {"example.org/role": "b", "example.org/other": ""}}}}),
        json!({"serviceAccount": {"metadata": {"labels": {"team": "a"}}}}),
        json!({"pods": {"metadata": {"labels": {"team": "a"}, "annotations": {"example.org/note": "a"}}}}),
        json!({"pods": {"metadata": {"labels": {"team": "b", "cost": "c"}}}}),
        json!({"pods": {"metadata": {"annotations": {"example.org/note": "b", "example.org/more": "c"}}}}),
        json!({"postgres": {"sharedPreloadLibraries": ["pg_stat_statements"]}}),
        json!({"postgres": {"hba": ["host all all 10.0.0.0/8 md5"]}}),
        json!({"postgres": {"imagePullPolicy": "Always"}}),
        json!({"postgres": {"imagePullSecrets": [{"name": "registry"}]}}),
        json!({"storage": {"data": {"metadata": metadata, "volumeAttributesClassName": "gold"}}}),
        json!({"storage": {"wal": {"size": "1Gi", "metadata": metadata, "volumeAttributesClassName": "gold"}}}),
        json!({"services": {"readWrite": balanced, "readOnly": {"type": "NodePort"}}}),
        json!({"services": {"readOnly": balanced, "read": {"metadata": metadata}}}),
        json!({"services": {"read": balanced}}),
        json!({"backup": {"store": {"s3": {"s3Path": "s3://wal/eu", "credentialsSecretRef": {"name": "store"}}}, "schedules": [
            {"name": "nightly", "schedule": "0 3 * * *", "timeZone": "Europe/Berlin", "suspend": true, "immediate": true, "source": "Primary", "kind": "Snapshot"},
        ], "volumeSnapshotClassName": "fast", "retention": {"minBackups": 7, "windowDays": 30, "hold": ["20261124T230501Z-F-7f3a"], "suspend": true}, "encryption": {
            "recipients": ["age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"], "identitySecretRef": {"name": "key", "key": "own"},
        }, "onDelete": {"finalBackup": "Required", "data": "Retain"}, "drill": {"schedule": "0 5 * * 0", "timeZone": "Europe/Berlin", "suspend": true, "limitMinutes": 60, "maxAgeDays": 8, "checks": {"amcheck": true, "queries": ["SELECT true"]}}}}),
        json!({"backup": {"store": {"s3": null, "gcs": {"bucket": "wal", "path": "eu", "endpoint": "https://storage.example.com",
            "credentialsSecretRef": {"name": "store"}, "caSecretRef": {"name": "store", "key": "ca.pem"},
        }}}}),
        json!({"backup": {"store": {"gcs": null, "azure": null, "volume": null, "s3": {"s3Path": "s3://wal/eu", "bucket": null, "path": null}},
            "onDelete": {"finalBackup": "None", "data": "Delete"}}}),
        json!({"backup": {"store": {"s3": {"s3Path": null, "bucket": "wal", "path": "us", "region": "us-east-1"}}}}),
        json!({"backup": {"store": {"s3": {"s3Path": null, "bucket": "wal", "endpoint": "https://store:9000", "addressing": "Path", "caSecretRef": {"name": "store", "key": "ca.pem"}}}}}),
        json!({"backup": {"store": {"s3": {"s3Path": null, "bucket": "wal", "serverSideEncryption": {"algorithm": "aws:kms", "kmsKeyId": "alias/wal"}}}}}),
        json!({"backup": {"store": {"s3": null, "azure": {
            "account": "shop", "container": "wal", "path": "eu", "endpoint": "https://shop.blob.core.windows.net",
            "credentialsSecretRef": {"name": "store"}, "caSecretRef": {"name": "store", "key": "ca.pem"},
        }}}}),
        json!({"backup": {"store": {"s3": null, "azure": null, "volume": {"claimName": "backups"}}}}),
        json!({"backup": null}),
        json!({"networkPolicy": {"mode": "Managed"}}),
        json!({"networkPolicy": {"mode": "Managed", "clients": peers}}),
        json!({"networkPolicy": {"mode": "Managed", "monitoring": peers}}),
        json!({"certificates": {"clientTrustHours": 1}}),
        json!({"storage": {"retentionPolicy": {"whenDeleted": "Delete"}}}),
        json!({"storage": {"retentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"}}}),
        json!({"storage": {"retentionPolicy": {"whenScaled": "Delete"}}}),
    ];
    all.extend((1..=5).map(|replicas| json!({"replicas": replicas})));
    all.extend(scheduling().map(|scheduling| json!({"scheduling": scheduling})));
    all
}

/// What every node of this world meets, with all that Kubernetes' own types have.
fn scheduling() -> [Value; 8] {
    let selector = json!({
        "matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}],
    });
    let nodes = json!({
        "matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}],
    });
    let pods = json!({
        "labelSelector": selector, "namespaceSelector": selector, "namespaces": ["other"], "topologyKey": "zone",
        "matchLabelKeys": ["tier"], "mismatchLabelKeys": ["shard"],
    });
    let near = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": [pods],
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 2, "podAffinityTerm": pods}],
    });
    let on = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [nodes]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": nodes}],
    });
    let spread = json!({
        "labelSelector": selector, "matchLabelKeys": ["tier"], "maxSkew": 1, "minDomains": 2, "topologyKey": "zone",
        "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor", "whenUnsatisfiable": "DoNotSchedule",
    });
    [
        json!({"affinity": {"nodeAffinity": on}}),
        json!({"affinity": {"podAffinity": near, "podAntiAffinity": near}}),
        json!({"tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 30}]}),
        json!({"tolerations": [{"operator": "Exists"}]}),
        json!({"nodeSelector": {"disk": "ssd"}}),
        json!({"topologySpreadConstraints": [spread]}),
        json!({"topologySpreadConstraints": []}),
        json!({"priorityClassName": "high"}),
    ]
}

/// Leaves that a resource is made with, and that never change.
fn at_first() -> [Value; 10] {
    let initdb = |initdb: Value| json!({"bootstrap": {"initdb": initdb}});
    [
        initdb(json!({"database": "shop"})),
        initdb(json!({"owner": "keeper"})),
        initdb(json!({"passwordSecretRef": {"name": "given", "key": "password"}})),
        initdb(json!({"dataChecksums": false})),
        initdb(json!({"locale": "de_DE.UTF-8"})),
        initdb(json!({"walSegmentSize": 16})),
        initdb(json!({"postInitApplicationSQL": ["SELECT 1"]})),
        json!({"postgres": {"majorVersion": 16}}),
        json!({"postgres": {"port": 5433}}),
        json!({"storage": {"data": {"storageClassName": "standard"}}}),
    ]
}

/// The patch that takes away what this one sets.
fn taken_away(patch: &Value) -> Value {
    let fields = patch.as_object().unwrap().iter();
    let gone = |inner: &Value| match inner {
        Value::Object(inner) => inner.keys().map(|name| (name.clone(), Value::Null)).collect(),
        _ => Value::Null,
    };
    fields.map(|(name, inner)| (name.clone(), gone(inner))).collect()
}

/// Leaves of a schema, such as `spec.scheduling.tolerations.*.key`, where `*` stands for an item of a list or a map. With
/// a value, those that it sets.
fn leaves(schema: &Value, value: Option<&Value>, path: &str, found: &mut BTreeSet<String>) {
    let below = |name: &str| format!("{path}.{name}");
    if let Some(fields) = schema["properties"].as_object() {
        for (name, inner) in fields {
            match value.map(|value| value.get(name)) {
                None => leaves(inner, None, &below(name), found),
                Some(None) => {}
                Some(value) => leaves(inner, value, &below(name), found),
            }
        }
        return;
    }
    let items = [&schema["items"], &schema["additionalProperties"]];
    let Some(items) = items.into_iter().find(|items| items.is_object()) else {
        found.insert(path.to_owned());
        return;
    };
    let values: Vec<Option<&Value>> = match value {
        None => vec![None],
        Some(Value::Array(values)) => values.iter().map(Some).collect(),
        Some(value) => value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, value)| Some(value))
            .collect(),
    };
    values
        .into_iter()
        .for_each(|value| leaves(items, value, &below("*"), found));
}

/// Three nodes with a label, and the password that is given.
fn world(faults: Faults, pace: Duration) -> World {
    let world = World::new(faults, pace);
    world.each_node(&json!({"metadata": {"labels": {"disk": "ssd"}}}));
    let secret = json!({"metadata": {"name": "given", "labels": {"clustereddatabase.io/password-for": "db"}}, "data": {"password": "aHVudGVyMg=="}});
    world.user(201, Verb::Create, "secrets", "", secret);
    let claim = json!({"metadata": {"name": "backups"}, "spec": {
        "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}},
    }});
    world.user(201, Verb::Create, "persistentvolumeclaims", "", claim);
    world
}

/// A user's edit; says whether it was taken.
fn edit(world: &World, patch: &Value) -> bool {
    attempt(world, Verb::Merge, "clustereddatabases", NAME, json!({"spec": patch}))
}

/// The spec as it stands.
fn spec(world: &World) -> Value {
    world.get("clustereddatabases", NAME).unwrap()["spec"].clone()
}

/// What everything must be by this spec: what has come of a resource that was made with it.
fn from_nothing_else(spec: &Value) -> BTreeMap<String, Value> {
    run(1, async || {
        let world = world(Faults::none(), PACE);
        let _operator = Operator::start(&world.server, Config::default());
        world.create(spec);
        settled(&world).await
    })
}

/// The outcome, once nothing is written any more and PostgreSQL has the parameters that are wanted.
async fn settled(world: &World) -> BTreeMap<String, Value> {
    world.ready().await;
    world.rests(Duration::from_secs(60)).await;
    let postgres = spec(world)["postgres"].clone();
    let wanted: api::spec::PostgresSpec = serde_json::from_value(postgres).unwrap_or_default();
    let (wanted, agents) = (wanted.settings(), world.agents.lock().unwrap());
    for pod in world.list("pods") {
        let in_force = agents.parameters(pod["metadata"]["uid"].as_str().unwrap());
        assert_eq!(in_force, wanted, "{}", pod["metadata"]["name"]);
    }
    assert_eq!(agents.initdbs, 1, "one database was made");
    alike(outcome(world), &spec(world))
}

/// Without what may differ between a database that has lived and one that was just made.
fn alike(mut objects: BTreeMap<String, Value>, spec: &Value) -> BTreeMap<String, Value> {
    objects.retain(|name, _| {
        !["nodes ", "storageclasses "]
            .iter()
            .any(|cluster| name.starts_with(cluster))
    });
    if spec["storage"]["retentionPolicy"]["whenScaled"] != "Delete" {
        // Claims of instances that were removed.
        let replicas = spec["replicas"].as_u64().unwrap_or(3);
        let stays = |name: &str| name.rsplit('-').next().and_then(|ordinal| ordinal.parse().ok()) < Some(replicas);
        objects.retain(|name, _| !name.starts_with("persistentvolumeclaims ") || stays(name));
    }
    let preferred = spec["primary"]["prefer"].is_string();
    for (name, object) in &mut objects {
        let mut without = |of: &str, field: &str| {
            let of = object.pointer_mut(of).and_then(Value::as_object_mut);
            of.map(|of| of.remove(field));
        };
        match name.split(' ').next() {
            // How often the Lease was taken.
            Some("endpointslices") => without("/annotations", api::names::ROUTE_EPOCH),
            // The stub of the StatefulSet's controller leaves it out, the operator does not.
            Some("persistentvolumeclaims") => {
                without("/object", "apiVersion");
                // What the spec has asked for once stays.
                without("/labels", "user-label");
                without("/annotations", "example.org/user");
                without("/object/spec", "volumeAttributesClassName");
                // Where the scheduler had room when its pod was new.
                without("/annotations", "volume.kubernetes.io/selected-node");
            }
            // What has ended keeps its cpu and memory when a pod is resized in place.
            Some("pods") => without("/object/spec/initContainers/0", "resources"),
            _ => {}
        }
        if !preferred {
            // Who is primary, where it is all the same.
            without("/database", "primary");
            without("/labels", api::names::LABEL_ROLE);
        }
        plain(object);
    }
    objects
}

/// An empty list is none; and a WAL volume that came later stands elsewhere among the volumes, and is told by a variable.
fn plain(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(plain);
            // No limits are an empty map after a change of requests in place, and nothing in a pod that was made so.
            fields.retain(|name, inner| *inner != json!([]) && !(name == "limits" && *inner == json!({})));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(plain);
            items.retain(|item| item["name"] != api::names::ENV_WAL_OF);
            items.sort_by_key(|item| item["name"].as_str().map(str::to_owned));
        }
        _ => {}
    }
}

/// One walk.
fn walk(seed: u64) {
    let (steps, spec, outcome) = run(seed, async || {
        let mut rng = Rng::with_seed(seed);
        let pace = Duration::from_millis(rng.u64(200..4_000));
        let world = world(Faults::new(seed, Rates::swarm(seed)), pace);
        let mut operator = Operator::start(&world.server, Config::default());
        let mut first = json!({"replicas": rng.i32(1..=3)});
        for patch in at_first().iter().filter(|_| rng.bool()) {
            fake_api::merge_patch(&mut first, patch);
        }
        world.create(&first);
        let (patches, mut steps) = (later(), Vec::new());
        while steps.len() < STEPS {
            tokio::time::sleep(Duration::from_millis(rng.u64(0..30_000))).await;
            match rng.u32(0..12) {
                0 => {
                    drop(operator);
                    operator = Operator::start(&world.server, Config::default());
                }
                1 | 2 => accident(&world, &mut rng),
                other => {
                    let patch = &patches[rng.usize(0..patches.len())];
                    let patch = if other < 6 { taken_away(patch) } else { patch.clone() };
                    if edit(&world, &patch) {
                        steps.push(patch.to_string());
                    }
                }
            }
        }
        world.server.faults(Faults::stop);
        world.each_node(&json!({"spec": {"unschedulable": null}}));
        // What waits for its user, or is to stay away, is let go on; how changes go is not what they lead to.
        let updates = spec(&world)["primary"]["updatePolicy"].clone();
        world.edit(
            &json!({"hibernated": false, "paused": false, "fenced": [], "primary": {"updatePolicy": "Automatic"}}),
        );
        world.ready().await;
        world.edit(&json!({"primary": {"updatePolicy": updates}}));
        let outcome = settled(&world).await;
        drop(operator);
        (steps.join("\n"), spec(&world), outcome)
    });
    let expected = from_nothing_else(&spec);
    let names: BTreeSet<_> = outcome.keys().chain(expected.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|name| outcome.get(*name) != expected.get(*name));
    let told = differing.map(|name| json!([name, outcome.get(name), expected.get(name)]).to_string());
    let told: Vec<_> = told.collect();
    assert!(told.is_empty(), "seed {seed}: {spec}\n{}\n{steps}", told.join("\n"));
}

/// Runs one half of the walks.
fn walks(half: u64) {
    let walks = std::env::var(WALKS_VARIABLE).map_or(WALKS, |walks| walks.parse().unwrap());
    let mine = (0..walks).filter(|seed| seed % 2 == half);
    let failed: Vec<_> = mine
        .filter(|seed| std::panic::catch_unwind(|| walk(*seed)).is_err())
        .collect();
    assert!(failed.is_empty(), "seeds {failed:?}: see above");
}

#[test]
fn d_32_every_leaf_of_the_spec_is_part_of_the_walks() {
    let definition = serde_json::to_value(api::crd()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let (mut all, mut set) = (BTreeSet::new(), BTreeSet::new());
    leaves(schema, None, "spec", &mut all);
    for patch in later().iter().chain(&at_first()) {
        leaves(schema, Some(patch), "spec", &mut set);
    }
    // It needs a database that was deleted: scenario 34.
    set.insert("spec.bootstrap.volumes.adopt".to_owned());
    // To the operator it is one of the ways to make the first database, and never changes: what agents do about it is theirs.
    all.retain(|leaf| !leaf.starts_with("spec.bootstrap.recovery."));
    assert_eq!(set, all);
}

/// What the CustomResourceDefinition's rules say, by those in Rust.
fn obeys_the_definition(new: &Value, old: &Value) -> bool {
    let read = |value: &Value| serde_json::from_value::<ClusteredDatabase>(value.clone());
    let (Ok(new), Ok(old)) = (read(new), read(old)) else {
        return false;
    };
    validate(&new).is_empty() && validate_update(&old, &new).is_empty()
}

#[test]
fn d_32_every_edit_is_taken_and_what_never_changes_is_refused() {
    let db = json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase", "metadata": {"name": NAME},
        "spec": {"replicas": 4, "storage": {"data": {"size": "1Gi"}}},
        "status": {"systemIdentifier": "7"},
    });
    let becomes = |patch: &Value| {
        let mut new = db.clone();
        fake_api::merge_patch(&mut new, &json!({"spec": patch}));
        obeys_the_definition(&new, &db)
    };
    for patch in later() {
        assert!(becomes(&patch), "{patch}");
    }
    for patch in at_first() {
        assert!(!becomes(&patch), "{patch}");
    }
}

#[test]
fn d_32_twenty_edits_lead_to_what_the_last_spec_makes_1() {
    walks(0);
}

#[test]
fn d_32_twenty_edits_lead_to_what_the_last_spec_makes_2() {
    walks(1);
}
