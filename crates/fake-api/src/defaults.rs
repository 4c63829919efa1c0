//! What the API server adds to objects: the defaults that a comparison of wanted and live objects meets.

use serde_json::{Value, json};

use crate::kinds::Kind;

/// The StorageClass that claims get which name none.
pub(crate) const STORAGE_CLASS: &str = "standard";
/// Keeps a namespace while there is something in it.
pub(crate) const CONTENT: &str = "kubernetes";
/// Keeps a claim while a pod uses it.
pub(crate) const CLAIM_IN_USE: &str = "kubernetes.io/pvc-protection";

/// Adds default values.
pub(crate) fn complete(kind: &Kind, object: &mut Value) {
    match (kind.group, kind.kind) {
        ("", "Namespace") => {
            default(object, "status", json!({"phase": "Active"}));
            if object["metadata"]["deletionTimestamp"].is_null() {
                default(&mut object["spec"], "finalizers", json!([CONTENT]));
            }
        }
        ("", "Pod") => {
            pod_spec(&mut object["spec"]);
            for containers in ["initContainers", "containers"] {
                list(&mut object["spec"], containers).for_each(requests);
            }
            default(object, "status", json!({"phase": "Pending"}));
        }
        ("", "Service") => service(object),
        ("", "Secret") => default(object, "type", json!("Opaque")),
        ("", "PersistentVolumeClaim") => claim(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("coordination.k8s.io", "Lease") => default(object, "spec", json!({})),
        ("discovery.k8s.io", "EndpointSlice") => {
            for port in list(object, "ports") {
                default(port, "name", json!(""));
                default(port, "protocol", json!("TCP"));
            }
            // A list that is required, and may be empty.
            default(object, "endpoints", Value::Array(Vec::new()));
        }
        ("storage.k8s.io", "StorageClass") => {
            default(object, "reclaimPolicy", json!("Delete"));
            default(object, "volumeBindingMode", json!("Immediate"));
        }
        ("rbac.authorization.k8s.io", "RoleBinding") => {
            default(&mut object["roleRef"], "apiGroup", json!("rbac.authorization.k8s.io"));
        }
        _ => {}
    }
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

fn list<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object
        .get_mut(field)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// An address that belongs to this object alone, by its UID.
fn address(object: &Value) -> String {
    let serial = object["metadata"]["uid"].as_str().and_then(|uid| uid.get(..8));
    let serial = serial
        .and_then(|serial| u32::from_str_radix(serial, 16).ok())
        .unwrap_or(0);
    format!("10.96.{}.{}", serial / 250 % 250, serial % 250 + 1)
}

fn service(object: &mut Value) {
    let address = address(object);
    let spec = &mut object["spec"];
    default(spec, "type", json!("ClusterIP"));
    default(spec, "clusterIP", json!(address));
    let address = spec["clusterIP"].clone();
    for (field, value) in [
        ("clusterIPs", json!([address])),
        ("sessionAffinity", json!("None")),
        ("ipFamilies", json!(["IPv4"])),
        ("ipFamilyPolicy", json!("SingleStack")),
        ("internalTrafficPolicy", json!("Cluster")),
    ] {
        default(spec, field, value);
    }
    for port in list(spec, "ports") {
        default(port, "protocol", json!("TCP"));
        let number = port["port"].clone();
        default(port, "targetPort", number);
    }
    if spec["selector"] == json!({}) {
        spec.as_object_mut().map(|spec| spec.remove("selector"));
    }
    default(object, "status", json!({"loadBalancer": {}}));
}

fn claim(object: &mut Value) {
    default(&mut object["spec"], "volumeMode", json!("Filesystem"));
    default(&mut object["spec"], "storageClassName", json!(STORAGE_CLASS));
    default(object, "status", json!({"phase": "Pending"}));
    if object["metadata"]["deletionTimestamp"].is_null() {
        default(&mut object["metadata"], "finalizers", json!([CLAIM_IN_USE]));
    }
}

fn stateful_set(object: &mut Value) {
    let spec = &mut object["spec"];
    for (field, value) in [
        ("replicas", json!(1)),
        ("podManagementPolicy", json!("OrderedReady")),
        ("revisionHistoryLimit", json!(10)),
        (
            "updateStrategy",
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
        ),
        (
            "persistentVolumeClaimRetentionPolicy",
            json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
        ),
    ] {
        default(spec, field, value);
    }
    pod_spec(&mut spec["template"]["spec"]);
    for claim in list(spec, "volumeClaimTemplates") {
        default(claim, "apiVersion", json!("v1"));
        default(claim, "kind", json!("PersistentVolumeClaim"));
        default(&mut claim["spec"], "volumeMode", json!("Filesystem"));
        default(claim, "status", json!({"phase": "Pending"}));
    }
    default(object, "status", json!({"replicas": 0, "availableReplicas": 0}));
}

fn pod_spec(spec: &mut Value) {
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("securityContext", json!({})),
    ] {
        default(spec, field, value);
    }
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        default(spec, "serviceAccount", account);
    }
    for containers in ["initContainers", "containers"] {
        list(spec, containers).for_each(container);
    }
    for volume in list(spec, "volumes") {
        for source in ["secret", "configMap", "projected", "downwardAPI"] {
            if volume.get(source).is_some() {
                default(&mut volume[source], "defaultMode", json!(0o644));
            }
        }
    }
}

fn container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let latest = image.ends_with(":latest") || !image.rsplit('/').next().is_some_and(|name| name.contains([':', '@']));
    let pull = if latest { "Always" } else { "IfNotPresent" };
    for (field, value) in [
        ("imagePullPolicy", json!(pull)),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("resources", json!({})),
    ] {
        default(container, field, value);
    }
    for port in list(container, "ports") {
        default(port, "protocol", json!("TCP"));
    }
    for variable in list(container, "env") {
        if variable.pointer("/valueFrom/fieldRef").is_some() {
            default(&mut variable["valueFrom"]["fieldRef"], "apiVersion", json!("v1"));
        }
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let Some(probe) = container.get_mut(probe) else {
            continue;
        };
        for (field, value) in [
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ] {
            default(probe, field, json!(value));
        }
        if probe.get("httpGet").is_some() {
            default(&mut probe["httpGet"], "scheme", json!("HTTP"));
        }
    }
}

/// A pod requests what it is limited to; its template says nothing of that.
fn requests(container: &mut Value) {
    let limits = container["resources"]["limits"].clone();
    for (name, limit) in limits.as_object().into_iter().flatten() {
        default(&mut container["resources"]["requests"], name, limit.clone());
    }
}
