//! Rules about labels and annotations, and about where instances may run.

use std::collections::BTreeMap;

use super::{Rule, cel_list, text};

/// Enough for people and tools, and small enough that the pods' template stays well below the API server's bounds.
const MAX_COUNT: usize = 64;
/// A quarter of what Kubernetes allows all annotations of an object to hold.
const MAX_ANNOTATIONS: usize = 65_536;
/// What begins a key of this project.
const OURS: &str = "clustereddatabase.io/";
/// Labels that the StatefulSet's controller sets.
const STATEFUL_SET: [&str; 3] = [
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
];

type Map = BTreeMap<String, String>;

pub(super) fn rules() -> Vec<Rule> {
    let keys = format!(
        "self.all(key, size(key) <= {} && key.matches('{}'))",
        text::MAX_KEY,
        text::KEY
    );
    let values = format!("self.all(key, self[key].matches('{}'))", text::LABEL_VALUE);
    let total = format!("self.map(key, size(key) + size(self[key])).sum() <= {MAX_ANNOTATIONS}");
    let count = format!("size(self) <= {MAX_COUNT}");
    let mut rules = vec![
        Rule::holds(
            "spec.scheduling.nodeSelector",
            format!("{keys} && {values}"),
            "nodeSelector must hold valid label keys and values: correct them",
            |resource| are_labels(&resource.spec.scheduling.node_selector),
        ),
        Rule::holds(
            "spec.scheduling.nodeSelector",
            count.clone(),
            "nodeSelector must hold at most 64 labels: remove some",
            |resource| resource.spec.scheduling.node_selector.len() <= MAX_COUNT,
        ),
        Rule::holds(
            "spec.scheduling.priorityClassName",
            format!(
                "size(self) <= {} && self.matches('{}')",
                text::MAX_DNS_SUBDOMAIN,
                text::DNS_SUBDOMAIN
            ),
            "priorityClassName must name a PriorityClass (lower-case letters, digits, dashes and dots); leave it out for the default one",
            |resource| {
                resource
                    .spec
                    .scheduling
                    .priority_class_name
                    .as_deref()
                    .is_none_or(text::is_dns_subdomain)
            },
        ),
    ];
    rules.extend(service_account(&keys, &total, &count));
    rules.extend(labels(&keys, &values, &count));
    rules.extend(pod_annotations(&keys, &total, &count));
    rules
}

fn service_account(keys: &str, total: &str, count: &str) -> [Rule; 4] {
    const AT: &str = "spec.serviceAccountAnnotations";
    [
        Rule::holds(
            AT,
            count,
            "serviceAccountAnnotations must hold at most 64 annotations: remove some",
            |resource| resource.spec.service_account_annotations.len() <= MAX_COUNT,
        ),
        Rule::holds(
            AT,
            keys,
            "serviceAccountAnnotations must have keys like example.com/name or name: correct the key",
            |resource| have_keys(&resource.spec.service_account_annotations),
        ),
        Rule::holds(
            AT,
            total,
            "serviceAccountAnnotations must hold at most 64 KiB in all: remove some",
            |resource| total_size(&resource.spec.service_account_annotations) <= MAX_ANNOTATIONS,
        ),
        Rule::holds(
            AT,
            no_own_keys(),
            "serviceAccountAnnotations must not have keys of clustereddatabase.io/, which are the operator's: remove them",
            |resource| !has_own_keys(&resource.spec.service_account_annotations),
        ),
    ]
}

fn labels(keys: &str, values: &str, count: &str) -> [Rule; 4] {
    const AT: &str = "spec.podMetadata.labels";
    [
        Rule::holds(
            AT,
            count,
            "podMetadata.labels must hold at most 64 labels: remove some",
            |resource| resource.spec.pod_metadata.labels.len() <= MAX_COUNT,
        ),
        Rule::holds(
            AT,
            format!("{keys} && {values}"),
            "podMetadata.labels must hold valid label keys and values: correct them",
            |resource| are_labels(&resource.spec.pod_metadata.labels),
        ),
        Rule::holds(
            AT,
            no_own_keys(),
            "podMetadata.labels must not have keys of clustereddatabase.io/, which are the operator's: remove them",
            |resource| !has_own_keys(&resource.spec.pod_metadata.labels),
        ),
        Rule::holds(
            AT,
            format!("!({}.exists(key, key in self))", cel_list(&STATEFUL_SET)),
            "podMetadata.labels must not have apps.kubernetes.io/pod-index, controller-revision-hash or statefulset.kubernetes.io/pod-name, which Kubernetes sets: remove them",
            |resource| {
                STATEFUL_SET
                    .iter()
                    .all(|key| !resource.spec.pod_metadata.labels.contains_key(*key))
            },
        ),
    ]
}

fn pod_annotations(keys: &str, total: &str, count: &str) -> [Rule; 4] {
    const AT: &str = "spec.podMetadata.annotations";
    [
        Rule::holds(
            AT,
            count,
            "podMetadata.annotations must hold at most 64 annotations: remove some",
            |resource| resource.spec.pod_metadata.annotations.len() <= MAX_COUNT,
        ),
        Rule::holds(
            AT,
            keys,
            "podMetadata.annotations must have keys like example.com/name or name: correct the key",
            |resource| have_keys(&resource.spec.pod_metadata.annotations),
        ),
        Rule::holds(
            AT,
            total,
            "podMetadata.annotations must hold at most 64 KiB in all: remove some",
            |resource| total_size(&resource.spec.pod_metadata.annotations) <= MAX_ANNOTATIONS,
        ),
        Rule::holds(
            AT,
            no_own_keys(),
            "podMetadata.annotations must not have keys of clustereddatabase.io/, which are the operator's: remove them",
            |resource| !has_own_keys(&resource.spec.pod_metadata.annotations),
        ),
    ]
}

fn no_own_keys() -> String {
    format!("self.all(key, !key.startsWith('{OURS}'))")
}

fn has_own_keys(map: &Map) -> bool {
    map.keys().any(|key| key.starts_with(OURS))
}

fn have_keys(map: &Map) -> bool {
    map.keys().all(|key| text::is_key(key))
}

fn are_labels(map: &Map) -> bool {
    have_keys(map) && map.values().all(|value| text::is_label_value(value))
}

fn total_size(map: &Map) -> usize {
    map.iter().map(|(key, value)| text::size(key) + text::size(value)).sum()
}
