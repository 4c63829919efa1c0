//! Everything in a namespace that belongs to a database, whatever its kind.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use api::names::{ANNOTATION_APPLIED, ANNOTATION_BASE_REVISION, ANNOTATION_REVISION, LABEL_CLUSTER, LABEL_CLUSTER_UID};
use e2e::Namespace;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::{Discovery, Scope, verbs};
use serde_json::{Value, json};

/// Kinds that are made by Kubernetes' own controllers out of ours, with random names or addresses.
const DERIVED: [&str; 4] = ["Pod", "ControllerRevision", "Endpoints", "EndpointSlice"];

/// All objects of the namespace except its events, by kind and name.
async fn objects(namespace: &Namespace) -> Result<BTreeMap<String, DynamicObject>> {
    let discovered = Discovery::new(namespace.client.clone())
        .run()
        .await
        .context("discover the kinds")?;
    let mut all = BTreeMap::new();
    for (resource, capabilities) in discovered.groups().flat_map(|group| group.recommended_resources()) {
        let listed = capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST);
        if !listed || resource.kind == "Event" {
            continue;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource);
        let found = api.list(&ListParams::default()).await;
        for object in found.with_context(|| format!("list {}", resource.plural))? {
            let name = object.metadata.name.clone().unwrap_or_default();
            all.insert(format!("{}/{name}", resource.kind), object);
        }
    }
    Ok(all)
}

fn belongs(object: &DynamicObject, database: &str, uid: &str) -> bool {
    let labels = object.metadata.labels.clone().unwrap_or_default();
    let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
    labels.get(LABEL_CLUSTER).is_some_and(|name| name == database)
        || labels.get(LABEL_CLUSTER_UID).is_some_and(|of| of == uid)
        || owners.iter().any(|owner| owner.uid == uid)
}

/// Kinds and names of what belongs to the database, by label or by owner.
pub async fn left_of(namespace: &Namespace, database: &str, uid: &str) -> Result<Vec<String>> {
    let all = objects(namespace).await?;
    let theirs = all.into_iter().filter(|(_, object)| belongs(object, database, uid));
    Ok(theirs.map(|(name, _)| name).collect())
}

/// The objects that the operator makes for the database, without what differs from one database to the next.
pub async fn children(namespace: &Namespace, database: &str, uid: &str) -> Result<BTreeMap<String, Value>> {
    let ours = |name: &str| {
        let kind = name.split('/').next().unwrap_or_default();
        !DERIVED.contains(&kind) || name == format!("EndpointSlice/{database}-rw")
    };
    let all = objects(namespace).await?;
    all.into_iter()
        .filter(|(name, object)| belongs(object, database, uid) && ours(name))
        .map(|(name, object)| {
            let kind = name.split('/').next().unwrap_or_default().to_owned();
            let mut object = comparable(&kind, serde_json::to_value(&object)?);
            mask_hashes(&mut object);
            let text = object.to_string();
            let text = text.replace(&namespace.name, "NAMESPACE").replace(uid, "UID");
            Ok((name, serde_json::from_str(&text)?))
        })
        .collect()
}

/// Hashes of content that includes the database's UID and namespace.
fn mask_hashes(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if [ANNOTATION_APPLIED, ANNOTATION_BASE_REVISION, ANNOTATION_REVISION].contains(&key.as_str()) {
                    *value = json!("HASH");
                }
                mask_hashes(value);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(mask_hashes),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// An object of this kind without the values that come from the API server, the agents or chance.
pub fn comparable(kind: &str, mut object: Value) -> Value {
    let metadata = object["metadata"].take();
    let mut kept = json!({"labels": metadata["labels"], "annotations": metadata["annotations"]});
    kept["ownerReferences"] = metadata["ownerReferences"].clone();
    match kind {
        "Secret" => {
            let keys: Vec<String> = object["data"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key.clone())
                .collect();
            object["data"] = json!(keys);
        }
        "Service" => {
            for chance in ["clusterIP", "clusterIPs"] {
                // Whether a Service is headless is not chance.
                if object["spec"][chance] != "None" && object["spec"][chance] != json!(["None"]) {
                    object["spec"][chance] = Value::Null;
                }
            }
        }
        "PersistentVolumeClaim" => {
            object["spec"]["volumeName"] = Value::Null;
            kept["annotations"] = Value::Null;
        }
        // The agents write these.
        "Lease" => (object["spec"], kept["annotations"]) = (Value::Null, Value::Null),
        "EndpointSlice" => (object["endpoints"], kept["annotations"]) = (Value::Null, Value::Null),
        _ => {}
    }
    object["status"] = Value::Null;
    object["metadata"] = kept;
    object
}
