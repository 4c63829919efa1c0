//! Rules about labels and annotations, and about where instances may run.

use std::collections::BTreeMap;

use super::{Rule, cel_list, text};
use crate::ClusteredDatabase;
use crate::names::OWN_KEYS;
use crate::spec::MetadataTemplate;

/// Enough for people and tools, and small enough to keep the pods' template well below the API server's bounds.
const MAX_COUNT: usize = 64;
/// A quarter of the size that Kubernetes allows for all annotations of an object.
const MAX_ANNOTATIONS: usize = 65_536;
/// Labels that the StatefulSet's controller sets.
const STATEFUL_SET: [&str; 3] = [
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
];

type Map = BTreeMap<String, String>;
type Metadata = fn(&ClusteredDatabase) -> &MetadataTemplate;

/// Where labels and annotations for objects stand in the spec.
const TEMPLATES: [(&str, &str, Metadata); 7] = [
    (
        "spec.serviceAccount.metadata.labels",
        "spec.serviceAccount.metadata.annotations",
        |resource| &resource.spec.service_account.metadata,
    ),
    (
        "spec.pods.metadata.labels",
        "spec.pods.metadata.annotations",
        |resource| &resource.spec.pods.metadata,
    ),
    (
        "spec.storage.data.metadata.labels",
        "spec.storage.data.metadata.annotations",
        |resource| &resource.spec.storage.data.metadata,
    ),
    (
        "spec.storage.wal.metadata.labels",
        "spec.storage.wal.metadata.annotations",
        |resource| match &resource.spec.storage.wal {
            Some(wal) => &wal.metadata,
            None => &NONE,
        },
    ),
    (
        "spec.services.readWrite.metadata.labels",
        "spec.services.readWrite.metadata.annotations",
        |resource| &resource.spec.services.read_write.metadata,
    ),
    (
        "spec.services.readOnly.metadata.labels",
        "spec.services.readOnly.metadata.annotations",
        |resource| &resource.spec.services.read_only.metadata,
    ),
    (
        "spec.services.read.metadata.labels",
        "spec.services.read.metadata.annotations",
        |resource| &resource.spec.services.read.metadata,
    ),
];

static NONE: MetadataTemplate = MetadataTemplate {
    labels: BTreeMap::new(),
    annotations: BTreeMap::new(),
};

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
            text::dns_subdomain(),
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
    for (labels, annotations, metadata) in TEMPLATES {
        rules.extend(of_labels(labels, metadata, &keys, &values, &count));
        rules.extend(of_annotations(annotations, metadata, &keys, &total, &count));
    }
    rules.push(Rule::holds(
        "spec.pods.metadata.labels",
        format!("!({}.exists(key, key in self))", cel_list(&STATEFUL_SET)),
        "pods.metadata.labels must not have apps.kubernetes.io/pod-index, controller-revision-hash or statefulset.kubernetes.io/pod-name, which Kubernetes sets: remove them",
        |resource| {
            let labels = &resource.spec.pods.metadata.labels;
            STATEFUL_SET.iter().all(|key| !labels.contains_key(*key))
        },
    ));
    rules
}

fn of_labels(at: &'static str, metadata: Metadata, keys: &str, values: &str, count: &str) -> [Rule; 3] {
    let name = at.trim_start_matches("spec.");
    [
        Rule::holds(
            at,
            count,
            format!("{name} must hold at most 64 labels: remove some"),
            move |resource| metadata(resource).labels.len() <= MAX_COUNT,
        ),
        Rule::holds(
            at,
            format!("{keys} && {values}"),
            format!("{name} must hold valid label keys and values: correct them"),
            move |resource| are_labels(&metadata(resource).labels),
        ),
        Rule::holds(at, no_own_keys(), own_keys(name), move |resource| {
            !has_own_keys(&metadata(resource).labels)
        }),
    ]
}

fn of_annotations(at: &'static str, metadata: Metadata, keys: &str, total: &str, count: &str) -> [Rule; 4] {
    let name = at.trim_start_matches("spec.");
    [
        Rule::holds(
            at,
            count,
            format!("{name} must hold at most 64 annotations: remove some"),
            move |resource| metadata(resource).annotations.len() <= MAX_COUNT,
        ),
        Rule::holds(
            at,
            keys,
            format!("{name} must have keys like example.com/name or name: correct the key"),
            move |resource| have_keys(&metadata(resource).annotations),
        ),
        Rule::holds(
            at,
            total,
            format!("{name} must hold at most 64 KiB in all: remove some"),
            move |resource| total_size(&metadata(resource).annotations) <= MAX_ANNOTATIONS,
        ),
        Rule::holds(at, no_own_keys(), own_keys(name), move |resource| {
            !has_own_keys(&metadata(resource).annotations)
        }),
    ]
}

fn own_keys(name: &str) -> String {
    format!("{name} must not have keys of {OWN_KEYS}, which are the operator's: remove them")
}

fn no_own_keys() -> String {
    format!("self.all(key, !key.startsWith('{OWN_KEYS}'))")
}

fn has_own_keys(map: &Map) -> bool {
    map.keys().any(|key| key.starts_with(OWN_KEYS))
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
