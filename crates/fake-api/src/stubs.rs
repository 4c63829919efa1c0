//! The other parts of a cluster that an operator of StatefulSets sees: the controllers of StatefulSets and Deployments, the scheduler, the kubelets,
//! volumes, the garbage collector, and the namespace controller. A test plays the programs in the pods and sets readiness.
//!
//! StatefulSets follow `OnDelete`: a changed template replaces no pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::defaults::CLAIM_IN_USE;
use crate::merge::{merge_patch, without_nulls};
use crate::reply::Reply;
use crate::request::{Call, Verb};
use crate::store::{Key, Store, stamp};

/// An image with this in its name is in no registry.
pub const NO_IMAGE: &str = "missing";
/// A container of an image with this in its name ends again and again.
pub const CRASHES: &str = "crashing";
/// A pod of an image with this in its name never gets its volumes.
pub const NO_MOUNT: &str = "unmounted";

/// Time after which the pods of a silent node are not ready.
const SILENT: TimeDelta = TimeDelta::seconds(40);
/// Time after which they are deleted; the silent node does not carry that out.
const EVICTED: TimeDelta = TimeDelta::seconds(340);
/// A class with this in its name has no volumes.
pub const NO_VOLUMES: &str = "exhausted";

/// A claim with this annotation does not grow any more: its growth stays at this condition.
pub const GROWTH: &str = "growth-stays-at";

/// All pods of a Deployment are there and ready at once; there is no object of any of them.
fn move_deployment(store: &mut Store, deployment: &Value, now: DateTime<Utc>) {
    let (pods, generation) = (&deployment["spec"]["replicas"], &deployment["metadata"]["generation"]);
    let status = json!({
        "observedGeneration": generation, "replicas": pods, "readyReplicas": pods, "updatedReplicas": pods,
    });
    if deployment["status"] != status {
        rewrite(store, "deployments", deployment, &json!({ "status": status }), now);
    }
}

/// Controllers and kubelets.
#[derive(Debug)]
pub struct Stubs {
    /// Nodes without power, by name: their kubelets do nothing.
    pub lost: BTreeSet<String>,
    /// How long a pod takes from its node to its start, and a claim to its volume.
    pub pace: TimeDelta,
    /// UIDs of the pods whose readiness probe succeeds.
    pub ready: BTreeSet<String>,
    /// Since when something is so, by UID.
    since: BTreeMap<String, DateTime<Utc>>,
}

impl Stubs {
    /// Stubs that need so long for what takes time.
    pub fn new(pace: TimeDelta) -> Self {
        Self {
            lost: BTreeSet::new(),
            pace,
            ready: BTreeSet::new(),
            since: BTreeMap::new(),
        }
    }

    /// Everything moves on by one step.
    pub fn tick(&mut self, store: &mut Store, now: DateTime<Utc>) {
        store.collect(now);
        store
            .list("namespaces")
            .iter()
            .for_each(|namespace| empty(store, namespace, now));
        for set in store.list("statefulsets") {
            move_set(store, &set, now);
        }
        for deployment in store.list("deployments") {
            move_deployment(store, &deployment, now);
        }
        for claim in store.list("persistentvolumeclaims") {
            self.move_claim(store, &claim, now);
        }
        for pod in store.list("pods") {
            self.move_pod(store, &pod, now);
        }
    }

    /// It has been so for the pace.
    fn has_waited(&mut self, uid: &str, what: &str, now: DateTime<Utc>) -> bool {
        let since = *self.since.entry(format!("{uid} {what}")).or_insert(now);
        now - since >= self.pace
    }

    fn move_claim(&mut self, store: &mut Store, claim: &Value, now: DateTime<Utc>) {
        let (name, uid) = (text(&claim["metadata"]["name"]), text(&claim["metadata"]["uid"]));
        if !claim["metadata"]["deletionTimestamp"].is_null() {
            // One that has no node yet does not hold it.
            let uses = |pod: &Arc<Value>| {
                if pod["spec"]["nodeName"].is_null() {
                    return false;
                }
                let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
                volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == name)
            };
            if !store.list("pods").iter().any(uses) {
                store.take_finalizer(&key_of("persistentvolumeclaims", claim), CLAIM_IN_USE, now);
            }
            return;
        }
        if text(&claim["spec"]["storageClassName"]).contains(NO_VOLUMES) {
            return;
        }
        let wanted = &claim["spec"]["resources"]["requests"]["storage"];
        let bound = claim["status"]["phase"] == "Bound" && claim["status"]["capacity"]["storage"] == *wanted;
        if let Some(stage) = claim["metadata"]["annotations"][GROWTH].as_str() {
            if !bound && claim["status"]["conditions"].is_null() {
                let condition =
                    json!({"type": stage, "status": "True", "message": "in vain", "lastTransitionTime": stamp(now)});
                rewrite(
                    store,
                    "persistentvolumeclaims",
                    claim,
                    &json!({"status": {"conditions": [condition]}}),
                    now,
                );
            }
        } else if !bound && self.has_waited(uid, &format!("claims {wanted}"), now) {
            let status = json!({"phase": "Bound", "capacity": {"storage": wanted}, "conditions": null});
            let change = json!({"spec": {"volumeName": format!("pv-{uid}")}, "status": status});
            rewrite(store, "persistentvolumeclaims", claim, &change, now);
        }
    }

    /// What the controllers do with a pod of a node that is silent.
    fn leave(&mut self, store: &mut Store, pod: &Value, now: DateTime<Utc>) {
        let uid = text(&pod["metadata"]["uid"]);
        let since = *self.since.entry(format!("{uid} lost")).or_insert(now);
        if now - since >= SILENT && is_ready(pod) {
            let conditions = json!([{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]);
            rewrite(store, "pods", pod, &json!({"status": {"conditions": conditions}}), now);
        }
        if now - since >= EVICTED && pod["metadata"]["deletionTimestamp"].is_null() {
            call(store, Verb::Delete, "pods", pod, json!({}), now);
        }
    }

    fn move_pod(&mut self, store: &mut Store, pod: &Value, now: DateTime<Utc>) {
        let uid = text(&pod["metadata"]["uid"]);
        if self.lost.contains(text(&pod["spec"]["nodeName"])) {
            return self.leave(store, pod, now);
        }
        self.since.remove(&format!("{uid} lost"));
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            if self.has_waited(uid, "ends", now) {
                let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
                call(store, Verb::Delete, "pods", pod, options, now);
                self.ready.remove(uid);
            }
            return;
        }
        if pod["spec"]["nodeName"].is_null() {
            return schedule(store, pod, now);
        }
        if pod["status"]["phase"] != "Running" && !self.has_waited(uid, "starts", now) {
            return;
        }
        let ready = if self.ready.contains(uid) { "True" } else { "False" };
        let mut containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let status = containers.find_map(not_running).unwrap_or_else(|| running(pod, ready));
        let mut next = pod["status"].clone();
        merge_patch(&mut next, &status);
        if next != pod["status"] {
            rewrite(store, "pods", pod, &json!({"status": next}), now);
        }
    }
}

/// Deletes the objects of a namespace that is being deleted; then removes the namespace.
fn empty(store: &mut Store, namespace: &Value, now: DateTime<Utc>) {
    if namespace["metadata"]["deletionTimestamp"].is_null() {
        return;
    }
    let inside = store
        .everything()
        .filter(|(key, _)| namespace["metadata"]["name"] == *key.namespace);
    let inside: Vec<_> = inside.map(|(key, object)| (key.kind, Arc::clone(object))).collect();
    if inside.is_empty() {
        let mut next = namespace.clone();
        next["spec"]["finalizers"].take();
        let key = key_of("namespaces", namespace);
        store.take_out(&key, next, now);
    }
    for (kind, object) in inside
        .iter()
        .filter(|(_, object)| object["metadata"]["deletionTimestamp"].is_null())
    {
        let options = json!({"propagationPolicy": "Background"});
        let deletion = Call {
            kind,
            ..Call::new(
                Verb::Delete,
                kind.plural,
                text(&object["metadata"]["namespace"]),
                text(&object["metadata"]["name"]),
                options,
            )
        };
        store.call(&deletion, now);
    }
}

/// The status of a pod with a container that does not run.
fn not_running(container: &Value) -> Option<Value> {
    let image = text(&container["image"]);
    let (reason, why, restarts, last) = if image.contains(NO_IMAGE) {
        let why = format!("Back-off pulling image {}: not found", container["image"]);
        ("ImagePullBackOff", why, 0, Value::Null)
    } else if image.contains(CRASHES) {
        let last = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "out of luck"}});
        (
            "CrashLoopBackOff",
            "back-off 10s restarting failed container".to_owned(),
            1,
            last,
        )
    } else if image.contains(NO_MOUNT) {
        ("ContainerCreating", String::new(), 0, Value::Null)
    } else {
        return None;
    };
    Some(json!({
        "phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [{
            "name": container["name"], "image": container["image"], "imageID": "", "ready": false, "restartCount": restarts,
            "started": false, "state": {"waiting": {"reason": reason, "message": why}}, "lastState": last,
        }],
    }))
}

/// The status of a pod that runs.
fn running(pod: &Value, ready: &str) -> Value {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let statuses: Vec<Value> = containers
        .map(|container| {
            json!({
                "name": container["name"], "image": container["image"], "imageID": container["image"], "ready": ready == "True",
                "restartCount": 0, "started": true, "state": {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}},
                "resources": container["resources"], "allocatedResources": container["resources"]["requests"],
            })
        })
        .map(|mut status| {
            without_nulls(&mut status);
            status
        })
        .collect();
    let uid = text(&pod["metadata"]["uid"]);
    let serial = uid
        .get(..8)
        .and_then(|serial| u32::from_str_radix(serial, 16).ok())
        .unwrap_or(0);
    json!({
        "phase": "Running", "podIP": format!("10.244.{}.{}", serial / 250 % 250, serial % 250 + 1),
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}],
        "containerStatuses": statuses,
    })
}

/// A pod goes to the node that has the fewest, once its volumes are there; back to its volume's node, if it had one.
fn schedule(store: &mut Store, pod: &Value, now: DateTime<Utc>) {
    const NODE: &str = "volume.kubernetes.io/selected-node";
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let names = volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
    let namespace = text(&pod["metadata"]["namespace"]);
    let claims: Vec<_> = names
        .map(|name| store.get("persistentvolumeclaims", namespace, name))
        .collect();
    let mut chosen = None;
    for claim in &claims {
        match claim {
            Some(claim) if claim["status"]["phase"] == "Bound" && claim["metadata"]["deletionTimestamp"].is_null() => {
                chosen = chosen.or(claim["metadata"]["annotations"][NODE].as_str());
            }
            _ => return,
        }
    }
    let pods = store.list("pods");
    let load = |node: &str| pods.iter().filter(|other| other["spec"]["nodeName"] == node).count();
    let nodes = store.list("nodes");
    let free = nodes
        .iter()
        .filter(|node| node["spec"]["unschedulable"] != true && fits(pod, node));
    let names = free.map(|node| text(&node["metadata"]["name"]));
    let node = names
        .filter(|name| chosen.is_none_or(|chosen| chosen == *name))
        .min_by_key(|name| load(name));
    let Some(node) = node else {
        let condition =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"});
        if pod["status"]["conditions"] != json!([condition]) {
            rewrite(store, "pods", pod, &json!({"status": {"conditions": [condition]}}), now);
        }
        return;
    };
    for claim in claims.iter().flatten() {
        let note = json!({"metadata": {"annotations": {NODE: node}}});
        rewrite(store, "persistentvolumeclaims", claim, &note, now);
    }
    rewrite(store, "pods", pod, &json!({"spec": {"nodeName": node}}), now);
}

/// The node has what the pod's node selector and its required node affinity ask for.
fn fits(pod: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let meets = |term: &Value| {
        let mut expressions = term["matchExpressions"].as_array().into_iter().flatten();
        expressions.all(|expression| {
            let value = &labels[text(&expression["key"])];
            let listed = expression["values"]
                .as_array()
                .is_some_and(|values| values.contains(value));
            match text(&expression["operator"]) {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => !value.is_null(),
                "DoesNotExist" => value.is_null(),
                other => panic!("{other}: not known here"),
            }
        })
    };
    let mut selector = pod["spec"]["nodeSelector"].as_object().into_iter().flatten();
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = required["nodeSelectorTerms"].as_array();
    selector.all(|(key, value)| labels[key] == *value) && terms.is_none_or(|terms| terms.iter().any(meets))
}

fn move_set(store: &mut Store, set: &Value, now: DateTime<Utc>) {
    if !set["metadata"]["deletionTimestamp"].is_null() {
        return;
    }
    adopt(store, set, now);
    let pods = pods_of(store, set);
    let wanted = set["spec"]["replicas"].as_u64().unwrap_or(1);
    let parallel = set["spec"]["podManagementPolicy"] == "Parallel";
    for ordinal in 0..wanted {
        match pods.get(&ordinal) {
            None => {
                start(store, set, ordinal, now);
                if !parallel {
                    break;
                }
            }
            Some(pod) if !parallel && !is_ready(pod) => break,
            Some(pod) if pod["spec"]["nodeName"].is_null() => {
                make_claims(store, set, ordinal, now);
            }
            Some(_) => {}
        }
    }
    let above: Vec<_> = pods.iter().filter(|(ordinal, _)| **ordinal >= wanted).rev().collect();
    for (_, pod) in above {
        if pod["metadata"]["deletionTimestamp"].is_null() {
            call(store, Verb::Delete, "pods", pod, json!({}), now);
        }
        if !parallel {
            break;
        }
    }
    let pods = pods_of(store, set);
    let ready = pods.values().filter(|pod| is_ready(pod)).count();
    let status = json!({
        "observedGeneration": set["metadata"]["generation"], "replicas": pods.len(), "currentReplicas": pods.len(),
        "readyReplicas": ready, "availableReplicas": ready,
    });
    let mut next = set["status"].clone();
    merge_patch(&mut next, &status);
    if next != set["status"] {
        rewrite(store, "statefulsets", set, &json!({"status": next}), now);
    }
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The set's pods by ordinal.
fn pods_of(store: &Store, set: &Value) -> BTreeMap<u64, Arc<Value>> {
    let pods = store.list("pods").into_iter().filter(|pod| {
        let mut owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.any(|owner| owner["uid"] == set["metadata"]["uid"])
    });
    pods.filter_map(|pod| Some((ordinal(set, &pod)?, pod))).collect()
}

fn ordinal(set: &Value, pod: &Value) -> Option<u64> {
    let rest = text(&pod["metadata"]["name"]).strip_prefix(text(&set["metadata"]["name"]))?;
    rest.strip_prefix('-')?.parse().ok()
}

/// Adopts pods without an owner that have the set's labels and a name of its pods.
fn adopt(store: &mut Store, set: &Value, now: DateTime<Utc>) {
    for pod in store.list("pods") {
        let metadata = &pod["metadata"];
        let selector = set["spec"]["selector"]["matchLabels"].as_object();
        let selected =
            selector.is_some_and(|selector| selector.iter().all(|(key, value)| metadata["labels"][key] == *value));
        let free =
            metadata["ownerReferences"].as_array().is_none_or(Vec::is_empty) && metadata["deletionTimestamp"].is_null();
        if selected && free && metadata["namespace"] == set["metadata"]["namespace"] && ordinal(set, &pod).is_some() {
            rewrite(
                store,
                "pods",
                &pod,
                &json!({"metadata": {"ownerReferences": [owner(set)]}}),
                now,
            );
        }
    }
}

fn owner(set: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": set["metadata"]["name"], "uid": set["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Makes a pod and its missing claims. A refusal becomes an event, as with the real controller.
fn start(store: &mut Store, set: &Value, ordinal: u64, now: DateTime<Utc>) {
    let (name, namespace) = (text(&set["metadata"]["name"]), text(&set["metadata"]["namespace"]));
    let pod_name = format!("{name}-{ordinal}");
    let Some(claims) = make_claims(store, set, ordinal, now) else {
        return;
    };
    let mut volumes = set["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    volumes.extend(claims);
    let template = &set["spec"]["template"];
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    let more = json!({
        "name": pod_name, "ownerReferences": [owner(set)],
        "labels": {"statefulset.kubernetes.io/pod-name": pod_name, "apps.kubernetes.io/pod-index": ordinal.to_string()},
    });
    merge_patch(&mut pod["metadata"], &more);
    pod["spec"]["volumes"] = json!(volumes);
    pod["spec"]["hostname"] = json!(pod_name);
    pod["spec"]["subdomain"] = set["spec"]["serviceName"].clone();
    if let Err(message) = make(store, "pods", namespace, pod, now) {
        tell(
            store,
            set,
            &format!("create Pod {pod_name} in StatefulSet {name} failed error: {message}"),
            now,
        );
    }
}

/// Makes the claims that a pod lacks; the volumes for them, unless one is refused.
fn make_claims(store: &mut Store, set: &Value, ordinal: u64, now: DateTime<Utc>) -> Option<Vec<Value>> {
    let (name, namespace) = (text(&set["metadata"]["name"]), text(&set["metadata"]["namespace"]));
    let pod_name = format!("{name}-{ordinal}");
    let mut volumes = Vec::new();
    for template in set["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
        let volume = text(&template["metadata"]["name"]);
        let claim_name = format!("{volume}-{pod_name}");
        volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim_name}}));
        if store.get("persistentvolumeclaims", namespace, &claim_name).is_none() {
            let metadata = json!({"name": claim_name, "labels": template["metadata"]["labels"]});
            let claim = json!({"metadata": metadata, "spec": template["spec"]});
            let refused = make(store, "persistentvolumeclaims", namespace, claim, now);
            if let Err(message) = refused {
                let what = format!("create Claim {claim_name} for Pod {pod_name} in StatefulSet {name}");
                tell(store, set, &format!("{what} failed error: {message}"), now);
                return None;
            }
        }
    }
    Some(volumes)
}

fn make(store: &mut Store, plural: &str, namespace: &str, body: Value, now: DateTime<Utc>) -> Result<(), String> {
    let Reply { code, body } = store.call(&Call::new(Verb::Create, plural, namespace, "", body), now);
    if code < 300 {
        Ok(())
    } else {
        Err(text(&body["message"]).to_owned())
    }
}

/// An event of a set; a repeated event only raises the count.
fn tell(store: &mut Store, set: &Value, message: &str, now: DateTime<Utc>) {
    let namespace = text(&set["metadata"]["namespace"]);
    let known = store
        .list("events")
        .into_iter()
        .find(|event| event["message"] == message);
    if let Some(event) = known {
        return rewrite(store, "events", &event, &json!({"lastTimestamp": stamp(now)}), now);
    }
    let involved = json!({"kind": "StatefulSet", "name": set["metadata"]["name"], "uid": set["metadata"]["uid"]});
    let event = json!({
        "metadata": {"generateName": "failed-"}, "involvedObject": involved, "reason": "FailedCreate", "type": "Warning",
        "message": message, "lastTimestamp": stamp(now),
    });
    let _ = make(store, "events", namespace, event, now);
}

fn call(store: &mut Store, verb: Verb, plural: &str, object: &Value, body: Value, now: DateTime<Utc>) -> Reply {
    let metadata = &object["metadata"];
    let call = Call::new(
        verb,
        plural,
        text(&metadata["namespace"]),
        text(&metadata["name"]),
        body,
    );
    store.call(&call, now)
}

/// Merges `change` into the present object; the written fields have no owner.
fn rewrite(store: &mut Store, plural: &str, object: &Value, change: &Value, now: DateTime<Utc>) {
    let key = key_of(plural, object);
    let Some(live) = store.get(plural, &key.namespace, &key.name) else {
        return;
    };
    let mut next = (*live).clone();
    merge_patch(&mut next, change);
    store.rewrite(&key, next, now);
}

fn key_of(plural: &str, object: &Value) -> Key {
    Key {
        kind: crate::kinds::Kind::of(plural),
        namespace: text(&object["metadata"]["namespace"]).to_owned(),
        name: text(&object["metadata"]["name"]).to_owned(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
