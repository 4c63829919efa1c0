//! Where PostgreSQL's container in a running pod stands against the wanted cpu and memory.

use api::names::CONTAINER;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, ResourceRequirements};
use machine::cluster::Resources;

use crate::builders::resources::{Amounts, amounts};

/// The kubelet has not begun, and says why (reason `Infeasible`, `Deferred`).
const PENDING: &str = "PodResizePending";
/// The kubelet is at it.
const IN_PROGRESS: &str = "PodResizeInProgress";
const INFEASIBLE: &str = "Infeasible";
const MEMORY: &str = "memory";

/// Where the pod stands.
pub fn resources(pod: &Pod, wanted: Option<&ResourceRequirements>) -> Resources {
    let wanted = amounts(wanted);
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let asked = containers
        .filter(|container| container.name == CONTAINER)
        .map(|container| amounts(container.resources.as_ref()))
        .next()
        .unwrap_or_default();
    for (kind, wanted, asked) in [("request", &wanted.0, &asked.0), ("limit", &wanted.1, &asked.1)] {
        if let Some(name) = asked.keys().find(|name| !wanted.contains_key(*name)) {
            return Resources::Refused {
                message: format!(
                    "it has a {kind} of {name} that is not wanted, and Kubernetes takes none away from a running pod"
                ),
            };
        }
    }
    if !same(&wanted.0, &asked.0) || !same(&wanted.1, &asked.1) {
        let limit = |limits: &Amounts| rounded(MEMORY, &limits.get(MEMORY)?.0);
        let less = limit(&wanted.1).is_some_and(|wanted| limit(&asked.1).is_none_or(|asked| asked > wanted));
        return if less { Resources::MoreMemory } else { Resources::Other };
    }
    let pending = condition(pod, PENDING);
    if let Some(condition) = pending.filter(|pending| pending.reason.as_deref() == Some(INFEASIBLE)) {
        return Resources::Refused {
            message: words(condition),
        };
    }
    let under_way = pending.or_else(|| condition(pod, IN_PROGRESS));
    if under_way.is_none() && has(pod, &wanted.0, &wanted.1) {
        return Resources::Given;
    }
    Resources::Asked {
        message: under_way.map(words).filter(|words| !words.is_empty()),
    }
}

/// What the kubelet says of a resize, if it says it of the pod's present spec.
fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.find(|found| found.type_ == kind && found.status == "True")?;
    let stale = found.observed_generation.is_some() && found.observed_generation < pod.metadata.generation;
    // Until it has seen the present spec, it is at it.
    (kind != PENDING || !stale).then_some(found)
}

fn words(condition: &PodCondition) -> String {
    let parts = [condition.reason.as_deref(), condition.message.as_deref()];
    let parts: Vec<_> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}

/// The kubelet says that the container has these.
fn has(pod: &Pod, requests: &Amounts, limits: &Amounts) -> bool {
    let mut containers = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let Some(status) = containers.find(|container| container.name == CONTAINER) else {
        return false;
    };
    let ContainerStatus {
        resources: Some(actual),
        allocated_resources,
        ..
    } = status
    else {
        return false;
    };
    let none = Amounts::new();
    let actual_requests = actual.requests.as_ref().unwrap_or(&none);
    holds(actual_requests, requests)
        && holds(allocated_resources.as_ref().unwrap_or(actual_requests), requests)
        && holds(actual.limits.as_ref().unwrap_or(&none), limits)
}

fn same(one: &Amounts, other: &Amounts) -> bool {
    one.len() == other.len() && holds(one, other)
}

/// Whether `all` has each of `some`, by value.
fn holds(all: &Amounts, some: &Amounts) -> bool {
    some.iter().all(|(name, amount)| {
        let found = all.get(name).and_then(|found| rounded(name, &found.0));
        found.is_some() && found == rounded(name, &amount.0)
    })
}

/// The amount as it comes back: the API server rounds all up to thousandths, and a kubelet gives memory in whole bytes.
fn rounded(name: &str, amount: &str) -> Option<i128> {
    let amount = Quantity::parse(amount).ok()?;
    Some(match name {
        MEMORY => amount.bytes().into(),
        _ => amount.thousandths(),
    })
}

#[cfg(test)]
mod tests;
