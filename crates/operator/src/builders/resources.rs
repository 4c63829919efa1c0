//! CPU and memory of PostgreSQL's container: the only part of a pod that can be changed while it runs.

use std::collections::BTreeMap;

use api::names::CONTAINER;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

/// What can be changed in a running pod.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Amounts by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// Takes cpu and memory out of a container's resources.
pub fn remove(resources: &mut Option<ResourceRequirements>) {
    let Some(some) = resources else { return };
    for amounts in [&mut some.requests, &mut some.limits] {
        let left = amounts.take().map(|mut amounts| {
            amounts.retain(|name, _| !RESIZABLE.contains(&name.as_str()));
            amounts
        });
        *amounts = left.filter(|left| !left.is_empty());
    }
    if *some == ResourceRequirements::default() {
        *resources = None;
    }
}

/// Requests and limits of cpu and memory as the API server completes them: a request that is not made is the limit.
pub fn amounts(resources: Option<&ResourceRequirements>) -> (Amounts, Amounts) {
    let of = |amounts: Option<&Amounts>| {
        let mut amounts = amounts.cloned().unwrap_or_default();
        amounts.retain(|name, _| RESIZABLE.contains(&name.as_str()));
        amounts
    };
    let mut requests = of(resources.and_then(|resources| resources.requests.as_ref()));
    let limits = of(resources.and_then(|resources| resources.limits.as_ref()));
    for (name, limit) in &limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    (requests, limits)
}

/// The strategic merge patch of a pod's subresource `resize` that asks for these.
pub fn resize(resources: Option<&ResourceRequirements>) -> Value {
    let (requests, limits) = amounts(resources);
    json!({"spec": {"containers": [{"name": CONTAINER, "resources": {"requests": requests, "limits": limits}}]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(value: Value) -> Option<ResourceRequirements> {
        Some(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn only_cpu_and_memory_are_taken_out() {
        let mut all =
            resources(json!({"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}, "limits": {"memory": "1Gi"}}));
        remove(&mut all);
        assert_eq!(all, resources(json!({"requests": {"ephemeral-storage": "1Gi"}})));
        let mut nothing_else = resources(json!({"limits": {"cpu": "1"}}));
        remove(&mut nothing_else);
        assert_eq!(nothing_else, None, "as if none had been asked for");
    }

    #[test]
    fn a_request_that_is_not_made_is_the_limit() {
        let wanted = resources(
            json!({"requests": {"cpu": "500m", "ephemeral-storage": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}),
        );
        assert_eq!(
            resize(wanted.as_ref()),
            json!({"spec": {"containers": [{"name": "postgres", "resources": {
                "requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}}]}})
        );
    }
}
