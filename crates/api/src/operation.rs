//! The `ClusteredDatabaseOperation` resource (short name `cdbop`): one thing that the user asks for once, with a status that
//! says what came of it.

use chrono::{DateTime, Utc};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::crd::{SCHEMA, drop_what_means_nothing_to_a_server, each_schema, field_of, set};

/// One thing to be done once to a ClusteredDatabase.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha1",
    kind = "ClusteredDatabaseOperation",
    plural = "clustereddatabaseoperations",
    shortname = "cdbop",
    namespaced,
    derive = "PartialEq",
    doc = "One thing to be done once to a ClusteredDatabase.",
    status = "OperationStatus",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterRef.name"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusteredDatabaseOperationSpec {
    /// The ClusteredDatabase in this namespace that it is done to.
    pub cluster_ref: ClusterReference,
    /// Make another instance the primary, without losing a commit.
    pub switchover: Option<Switchover>,
    /// Take it back: an operation that has not begun is not done, one that has begun is given up where that is possible.
    #[serde(default)]
    pub cancel: bool,
}

/// A ClusteredDatabase of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReference {
    /// Its name.
    pub name: String,
}

/// Make another instance the primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Switchover {
    /// The instance that is to be the primary: the cluster's name, a dash and a number.
    pub to: String,
}

/// What is known of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<OperationPhase>,
    /// What came of it, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the cluster took it up.
    #[serde(
        default,
        deserialize_with = "crate::moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_time: Option<DateTime<Utc>>,
    /// When it ended.
    #[serde(
        default,
        deserialize_with = "crate::moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub completion_time: Option<DateTime<Utc>>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OperationPhase {
    /// It waits for the cluster, or for an earlier operation.
    Pending,
    /// The cluster has taken it up.
    Running,
    /// It is done. It stays so.
    Completed,
    /// It could not be done. It stays so.
    Failed,
    /// It was taken back before it was done. It stays so.
    Cancelled,
}

impl OperationPhase {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether nothing follows it.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// A rule about an operation: where it stands in the schema, as CEL, what it says, and the same in Rust (`old` is the spec
/// before a change).
struct Rule {
    cel: &'static str,
    message: &'static str,
    holds: fn(&ClusteredDatabaseOperationSpec, Option<&ClusteredDatabaseOperationSpec>) -> bool,
}

const RULES: [Rule; 4] = [
    Rule {
        cel: "has(self.switchover)",
        message: "spec must say what is to be done: add switchover",
        holds: |spec, _| spec.switchover.is_some(),
    },
    Rule {
        cel: "!has(self.switchover) || self.switchover.to.startsWith(self.clusterRef.name + '-')",
        message: "switchover.to must name an instance of the cluster: clusterRef.name, a dash and a number",
        holds: |spec, _| {
            let prefix = format!("{}-", spec.cluster_ref.name);
            spec.switchover
                .as_ref()
                .is_none_or(|switchover| switchover.to.starts_with(&prefix))
        },
    },
    Rule {
        cel: "self.clusterRef == oldSelf.clusterRef && has(self.switchover) == has(oldSelf.switchover) \
              && (!has(self.switchover) || self.switchover == oldSelf.switchover)",
        message: "what an operation is to do cannot be changed: make another one, and set cancel in this one",
        holds: |spec, old| {
            old.is_none_or(|old| (&spec.cluster_ref, &spec.switchover) == (&old.cluster_ref, &old.switchover))
        },
    },
    Rule {
        cel: "!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)",
        message: "an operation that is taken back stays so: make another one",
        holds: |spec, old| old.is_none_or(|old| !old.cancel || spec.cancel),
    },
];

/// Names of clusters and instances are shorter than this; the bound lets an API server bound the cost of the rules.
const LONGEST_NAME: u64 = 63;

/// What is wrong with a spec, or with changing `old` into it: the rules that the API server checks, checked again.
pub fn refusal(
    spec: &ClusteredDatabaseOperationSpec,
    old: Option<&ClusteredDatabaseOperationSpec>,
) -> Option<&'static str> {
    let broken = RULES.iter().find(|rule| !(rule.holds)(spec, old));
    broken.map(|rule| rule.message)
}

/// The CustomResourceDefinition of `ClusteredDatabaseOperation`.
///
/// # Panics
/// If the types in this file do not make a definition, which the tests exclude.
pub fn crd() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(ClusteredDatabaseOperation::crd()).expect("a definition is JSON");
    let schema = definition.pointer_mut(SCHEMA).expect("the definition has a schema");
    each_schema(schema, &mut drop_what_means_nothing_to_a_server);
    for name in ["spec.clusterRef.name", "spec.switchover.to"] {
        set(field_of(schema, name), "minLength", 1.into());
        set(field_of(schema, name), "maxLength", LONGEST_NAME.into());
    }
    let rules = RULES
        .iter()
        .map(|rule| json!({"rule": rule.cel, "message": rule.message}));
    set(field_of(schema, "spec"), "x-kubernetes-validations", rules.collect());
    serde_json::from_value(definition).expect("still a definition")
}

/// [`crd`] as the YAML that is checked in as `manifests/crd/clustereddatabaseoperations.yaml`.
///
/// # Panics
/// As [`crd`].
pub fn crd_yaml() -> String {
    let yaml = serde_saphyr::to_string(&crd()).expect("a definition is YAML");
    format!("# Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again.\n{yaml}")
}
