//! What the API server refuses: names, required fields, fields that never change.

use serde_json::Value;

use crate::kinds::Kind;
use crate::reply::Refusal;

/// What of a StatefulSet's spec may change.
const SET_MAY_CHANGE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// Whether an object may be made.
pub(crate) fn check_new(kind: &Kind, name: &str, new: &Value) -> Result<(), Refusal> {
    let refuse = |why: &str| Err(Refusal::invalid(kind, name, why));
    let rbac = kind.group == "rbac.authorization.k8s.io";
    if !rbac && !is_subdomain(name) {
        return refuse(
            "metadata.name: Invalid value: a lowercase RFC 1123 subdomain must consist of lower case \
                       alphanumeric characters, '-' or '.'",
        );
    }
    let labels = &new["spec"]["template"]["metadata"]["labels"];
    match kind.kind {
        "StatefulSet" if !contains(labels, &new["spec"]["selector"]["matchLabels"]) => {
            refuse("spec.template.metadata.labels: Invalid value: `selector` does not match template `labels`")
        }
        "PersistentVolumeClaim" if new["spec"]["resources"]["requests"]["storage"].is_null() => {
            refuse("spec.resources[storage]: Required value")
        }
        "Service" => check_ports(kind, name, new),
        "Lease" => check_lease(kind, name, new),
        _ => Ok(()),
    }
}

/// Whether an object may become this.
pub(crate) fn check_change(
    (kind, name, subresource): (&Kind, &str, &str),
    old: &Value,
    new: &Value,
) -> Result<(), Refusal> {
    let refuse = |why: &str| Err(Refusal::invalid(kind, name, why));
    let changes = |path: &str| old.pointer(path) != new.pointer(path);
    let finalizers = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let going = !old["metadata"]["deletionTimestamp"].is_null();
    if going && finalizers(new).iter().any(|one| !finalizers(old).contains(one)) {
        return refuse("metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted");
    }
    match kind.kind {
        "StatefulSet" if without(&old["spec"], &SET_MAY_CHANGE) != without(&new["spec"], &SET_MAY_CHANGE) => refuse(
            "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                    'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                    'minReadySeconds' are forbidden",
        ),
        "Pod" if subresource.is_empty() && pod_essence(old) != pod_essence(new) => refuse(
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, \
                    `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations`",
        ),
        "RoleBinding" if changes("/roleRef") => refuse("roleRef: Invalid value: cannot change roleRef"),
        "PersistentVolumeClaim" => check_claim(kind, name, old, new),
        "Service" if changes("/spec/clusterIP") && old["spec"]["type"] == new["spec"]["type"] => {
            refuse("spec.clusterIPs[0]: Invalid value: may not change once set")
        }
        "Service" => check_ports(kind, name, new),
        "Secret" if changes("/type") => refuse("type: Invalid value: field is immutable"),
        "Secret" | "ConfigMap" if old["immutable"] == true && (changes("/data") || changes("/immutable")) => {
            refuse("data: Forbidden: field is immutable when `immutable` is set")
        }
        "EndpointSlice" if changes("/addressType") => refuse("addressType: Invalid value: field is immutable"),
        "Lease" => check_lease(kind, name, new),
        _ => Ok(()),
    }
}

/// What of a pod never changes.
fn pod_essence(pod: &Value) -> Value {
    let mut spec = without(&pod["spec"], &["activeDeadlineSeconds", "tolerations"]);
    for containers in ["initContainers", "containers"] {
        for container in spec[containers].as_array_mut().into_iter().flatten() {
            container["image"].take();
        }
    }
    spec
}

/// Names of several ports tell them from each other.
fn check_ports(kind: &Kind, name: &str, new: &Value) -> Result<(), Refusal> {
    let ports = new["spec"]["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let names: Vec<_> = ports
        .iter()
        .map(|port| port["name"].as_str().unwrap_or_default())
        .collect();
    let told = |index: usize, name: &&str| !name.is_empty() && !names[..index].contains(name);
    if names.len() > 1 && !names.iter().enumerate().all(|(index, name)| told(index, name)) {
        return Err(Refusal::invalid(
            kind,
            name,
            "spec.ports[1].name: Duplicate value or required",
        ));
    }
    Ok(())
}

fn check_lease(kind: &Kind, name: &str, new: &Value) -> Result<(), Refusal> {
    let number = |field: &str| new["spec"][field].as_i64();
    if number("leaseDurationSeconds").is_some_and(|seconds| seconds <= 0) {
        return Err(Refusal::invalid(
            kind,
            name,
            "spec.leaseDurationSeconds: Invalid value: must be greater than 0",
        ));
    }
    if number("leaseTransitions").is_some_and(|times| times < 0) {
        let why = "spec.leaseTransitions: Invalid value: must be greater than or equal to 0";
        return Err(Refusal::invalid(kind, name, why));
    }
    Ok(())
}

fn check_claim(kind: &Kind, name: &str, old: &Value, new: &Value) -> Result<(), Refusal> {
    let rest = |claim: &Value| {
        let mut spec = without(
            &claim["spec"],
            &["resources", "volumeAttributesClassName", "volumeName"],
        );
        spec["limits"] = claim["spec"]["resources"]["limits"].clone();
        spec
    };
    if rest(old) != rest(new) {
        let why = "spec: Forbidden: spec is immutable after creation except resources.requests and \
                   volumeAttributesClassName for bound claims";
        return Err(Refusal::invalid(kind, name, why));
    }
    Ok(())
}

fn without(spec: &Value, fields: &[&str]) -> Value {
    let mut spec = spec.clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|key, _| !fields.contains(&key.as_str()));
    }
    spec
}

fn contains(all: &Value, some: &Value) -> bool {
    let some = some.as_object();
    some.is_some_and(|some| some.iter().all(|(key, value)| all[key] == *value))
}

fn is_subdomain(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let part = |part: &str| {
        part.starts_with(fits) && part.ends_with(fits) && part.chars().all(|letter| fits(letter) || letter == '-')
    };
    name.len() <= 253 && name.split('.').all(part)
}
