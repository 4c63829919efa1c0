//! The `Pooler` resource (short name `cdbpool`): PgBouncer in front of a ClusteredDatabase.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::{SCHEMA, drop_what_means_nothing_to_a_server, each_schema, field_of, set, shorten_description};
use crate::declared::{DeclaredStatus, Rule, validations};
use crate::operation::{ClusterReference, LONGEST_NAME};
use crate::spec::{SchedulingSpec, ServiceTemplate};
use crate::user::UserCertificate;

/// PgBouncer in front of a ClusteredDatabase: applications keep many connections to it, and it keeps few to PostgreSQL.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha2",
    kind = "Pooler",
    plural = "poolers",
    shortname = "cdbpool",
    namespaced,
    derive = "PartialEq",
    doc = "PgBouncer in front of a ClusteredDatabase.",
    status = "PoolerStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterRef.name"}"#,
    printcolumn = r#"{"name":"Role","type":"string","jsonPath":".spec.role"}"#,
    printcolumn = r#"{"name":"Mode","type":"string","jsonPath":".spec.poolMode"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PoolerSpec {
    /// The ClusteredDatabase in this namespace that is pooled. It cannot be changed.
    pub cluster_ref: ClusterReference,
    /// The instances that are connected to.
    #[serde(default)]
    pub role: PoolerRole,
    /// Number of pods.
    #[serde(default = "two")]
    pub replicas: i32,
    /// Number of PgBouncer processes in each pod, which share its port. Each keeps one CPU busy at most.
    #[serde(default = "one")]
    pub processes: i32,
    /// When a connection to PostgreSQL goes back to the pool.
    #[serde(default)]
    pub pool_mode: PoolMode,
    /// How many connections there may be.
    #[serde(default)]
    pub limits: PoolerLimits,
    /// Settings of PgBouncer by their names, as in its configuration file. The message of a refused one says which there are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub parameters: BTreeMap<String, String>,
    /// How long, in seconds, a pod that goes lets its clients finish. Then it lets each transaction end, and closes the connections.
    #[serde(default = "thirty")]
    pub drain_seconds: i32,
    /// Image with PgBouncer. If absent, the operator's default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// CPU and memory of each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Where the pods run.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    /// The Service of this resource's name, to which applications connect.
    #[serde(default)]
    pub service: ServiceTemplate,
}

const fn one() -> i32 {
    1
}

const fn two() -> i32 {
    2
}

const fn thirty() -> i32 {
    30
}

/// Which instances a pooler connects to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolerRole {
    /// The primary.
    #[default]
    ReadWrite,
    /// Standbys.
    ReadOnly,
}

/// When a connection to PostgreSQL goes back to the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolMode {
    /// At the end of each transaction. What belongs to a session, such as `SET` and advisory locks, does not outlive it; prepared
    /// statements do.
    #[default]
    Transaction,
    /// When the client disconnects.
    Session,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolerLimits {
    /// Clients of one pod.
    #[serde(default = "thousand")]
    pub max_client_connections: i32,
    /// Connections to PostgreSQL of one pod for each pair of database and user.
    #[serde(default = "twenty")]
    pub pool_size: i32,
    /// Connections to PostgreSQL of all pods for each database. It must fit into `max_connections`.
    #[serde(default = "sixty")]
    pub max_server_connections: i32,
}

const fn thousand() -> i32 {
    1_000
}

const fn twenty() -> i32 {
    20
}

const fn sixty() -> i32 {
    60
}

impl Default for PoolerLimits {
    fn default() -> Self {
        Self {
            max_client_connections: thousand(),
            pool_size: twenty(),
            max_server_connections: sixty(),
        }
    }
}

/// What is known of a Pooler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolerStatus {
    /// What is known of its role in PostgreSQL, and of the whole.
    #[serde(flatten)]
    pub declared: DeclaredStatus,
    /// Number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of pods that take clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Selects the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The certificate with which it logs in to look passwords up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<UserCertificate>,
    /// Whether the connections fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<PoolerSizing>,
}

/// Connections to PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolerSizing {
    /// Those that this pooler may open for one database.
    pub possible_server_connections: i32,
    /// Those that an instance has for applications: `max_connections` without those that are kept for superusers and for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<i32>,
}

/// What a setting of PgBouncer can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// A number from this to that.
    Number(u32, u32),
    /// Names of parameters of PostgreSQL, separated by commas; not `search_path` (CVE-2025-12819).
    Names,
}

/// The longest time that PgBouncer's settings may say, in seconds.
const WEEK: u32 = 604_800;

/// The settings of PgBouncer that can be set. The others the operator sets, or they would break what it promises.
const PARAMETERS: [(&str, Setting); 23] = [
    ("cancel_wait_timeout", Setting::Number(0, WEEK)),
    ("client_idle_timeout", Setting::Number(0, WEEK)),
    ("client_login_timeout", Setting::Number(1, WEEK)),
    ("idle_transaction_timeout", Setting::Number(0, WEEK)),
    ("ignore_startup_parameters", Setting::Names),
    ("log_connections", Setting::Number(0, 1)),
    ("log_disconnections", Setting::Number(0, 1)),
    ("log_pooler_errors", Setting::Number(0, 1)),
    ("max_packet_size", Setting::Number(65_536, 2_147_483_647)),
    ("max_prepared_statements", Setting::Number(0, 100_000)),
    ("min_pool_size", Setting::Number(0, 10_000)),
    ("query_timeout", Setting::Number(0, WEEK)),
    ("query_wait_timeout", Setting::Number(1, WEEK)),
    ("reserve_pool_size", Setting::Number(0, 10_000)),
    ("reserve_pool_timeout", Setting::Number(0, WEEK)),
    ("server_connect_timeout", Setting::Number(1, 60)),
    ("server_idle_timeout", Setting::Number(0, WEEK)),
    ("server_lifetime", Setting::Number(0, WEEK)),
    ("stats_period", Setting::Number(1, WEEK)),
    ("tcp_keepcnt", Setting::Number(1, 100)),
    ("tcp_keepidle", Setting::Number(1, 3_600)),
    ("tcp_keepintvl", Setting::Number(1, 3_600)),
    ("track_extra_parameters", Setting::Names),
];

impl Setting {
    fn takes(self, value: &str) -> bool {
        match self {
            Self::Number(least, most) => {
                let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
                is_plain && value.parse().is_ok_and(|number: u32| (least..=most).contains(&number))
            }
            Self::Names => value.split(',').map(str::trim).all(|name| {
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
                !name.is_empty() && name.bytes().all(is_name) && !name.eq_ignore_ascii_case("search_path")
            }),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Names => "names of PostgreSQL's parameters, separated by commas, without search_path".to_owned(),
        }
    }
}

const RULES: [Rule<PoolerSpec>; 9] = [
    Rule {
        cel: "!has(self.replicas) || (self.replicas >= 0 && self.replicas <= 50)",
        message: "replicas must be 0 to 50",
        holds: |spec| (0..=50).contains(&spec.replicas),
    },
    Rule {
        cel: "!has(self.processes) || (self.processes >= 1 && self.processes <= 16)",
        message: "processes must be 1 to 16: no more than the CPUs of a pod",
        holds: |spec| (1..=16).contains(&spec.processes),
    },
    Rule {
        cel: "!has(self.limits) || !has(self.limits.maxClientConnections) \
              || (self.limits.maxClientConnections >= 1 && self.limits.maxClientConnections <= 100000)",
        message: "limits.maxClientConnections must be 1 to 100000",
        holds: |spec| (1..=100_000).contains(&spec.limits.max_client_connections),
    },
    Rule {
        cel: "!has(self.limits) || !has(self.limits.poolSize) || (self.limits.poolSize >= 1 && self.limits.poolSize <= 10000)",
        message: "limits.poolSize must be 1 to 10000",
        holds: |spec| (1..=10_000).contains(&spec.limits.pool_size),
    },
    Rule {
        cel: "!has(self.limits) || !has(self.limits.maxServerConnections) \
              || (self.limits.maxServerConnections >= 1 && self.limits.maxServerConnections <= 10000)",
        message: "limits.maxServerConnections must be 1 to 10000",
        holds: |spec| (1..=10_000).contains(&spec.limits.max_server_connections),
    },
    Rule {
        cel: "!has(self.limits) || !has(self.limits.maxServerConnections) || self.limits.maxServerConnections >= \
              (has(self.replicas) ? self.replicas : 2) * (has(self.processes) ? self.processes : 1)",
        message: "limits.maxServerConnections must be at least replicas times processes, since each process has at least one",
        holds: |spec| spec.limits.max_server_connections >= spec.all_processes(),
    },
    Rule {
        cel: "!has(self.drainSeconds) || (self.drainSeconds >= 0 && self.drainSeconds <= 3600)",
        message: "drainSeconds must be 0 to 3600",
        holds: |spec| (0..=3_600).contains(&spec.drain_seconds),
    },
    Rule {
        cel: "!has(self.image) || (self.image.size() > 0 && self.image.size() <= 512 && !self.image.contains(' '))",
        message: "image must be the name of an image, such as registry.example/pooler:1",
        holds: |spec| {
            spec.image
                .as_deref()
                .is_none_or(|image| (1..=512).contains(&image.chars().count()) && !image.contains(' '))
        },
    },
    Rule {
        cel: "!has(self.resources) || !has(self.resources.claims)",
        message: "resources.claims cannot be used: the pods declare no devices",
        holds: |spec| {
            spec.resources
                .as_ref()
                .is_none_or(|resources| resources.claims.is_none())
        },
    },
];

const UNCHANGED: [(&str, &str); 1] = [(
    "self.clusterRef == oldSelf.clusterRef",
    "clusterRef cannot be changed: make another Pooler",
)];

/// Bounds of single fields.
const LIMITS: [(&str, &str, usize); 16] = [
    ("spec.clusterRef.name", "minLength", 1),
    ("spec.clusterRef.name", "maxLength", LONGEST_NAME),
    ("spec.image", "maxLength", 1_024),
    ("spec.parameters", "maxProperties", 64),
    ("spec.parameters.*", "maxLength", 1_024),
    ("spec.resources.requests", "maxProperties", 32),
    ("spec.resources.limits", "maxProperties", 32),
    ("spec.scheduling.nodeSelector", "maxProperties", 128),
    ("spec.scheduling.priorityClassName", "maxLength", 512),
    ("spec.service.loadBalancerClass", "maxLength", 512),
    ("spec.service.loadBalancerSourceRanges", "maxItems", 64),
    ("spec.service.loadBalancerSourceRanges.*", "maxLength", 64),
    ("spec.service.metadata.labels", "maxProperties", 128),
    ("spec.service.metadata.labels.*", "maxLength", 256),
    ("spec.service.metadata.annotations", "maxProperties", 128),
    ("spec.service.metadata.annotations.*", "maxLength", 32_768),
];

/// The longest name of a Pooler: the pods' labels hold it, and a Service of this name must be a DNS label.
const LONGEST: usize = 50;

impl PoolerSpec {
    /// All processes of all pods.
    pub fn all_processes(&self) -> i32 {
        self.replicas.max(1).saturating_mul(self.processes)
    }
}

/// What is wrong with a spec: the rules that the API server checks, checked again, and the settings.
pub fn refusal(spec: &PoolerSpec, resource: &str) -> Option<String> {
    let broken = RULES.iter().find(|rule| !(rule.holds)(spec));
    if let Some(rule) = broken {
        return Some(rule.message.to_owned());
    }
    let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = resource.starts_with(|first: char| first.is_ascii_lowercase());
    if resource.len() > LONGEST || !begins || !resource.bytes().all(is_label) {
        return Some(format!(
            "a Pooler must have a name of 1 to {LONGEST} lower-case letters, digits and dashes that begins with a letter, since its \
             Service has the same: make another one"
        ));
    }
    spec.parameters.iter().find_map(|(name, value)| {
        let Some((_, setting)) = PARAMETERS.iter().find(|(known, _)| known == name) else {
            let known: Vec<&str> = PARAMETERS.iter().map(|(known, _)| *known).collect();
            return Some(format!(
                "parameters.{name} cannot be set: remove it. Those that can be set: {}",
                known.join(", ")
            ));
        };
        (!setting.takes(value)).then(|| format!("parameters.{name} must be {}", setting.words()))
    })
}

/// The CustomResourceDefinition of `Pooler`.
///
/// # Panics
/// If the types in this file do not make a definition, which the tests exclude.
pub fn crd() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(Pooler::crd()).expect("a definition is JSON");
    let schema = definition.pointer_mut(SCHEMA).expect("the definition has a schema");
    for field in ["status.conditions", "spec.resources", "spec.scheduling"] {
        each_schema(field_of(schema, field), &mut shorten_description);
    }
    each_schema(schema, &mut drop_what_means_nothing_to_a_server);
    crate::values::explain::<Pooler>(schema);
    for (field, keyword, bound) in LIMITS {
        set(field_of(schema, field), keyword, bound.into());
    }
    let known: Vec<String> = PARAMETERS.iter().map(|(name, _)| format!("'{name}'")).collect();
    let known = serde_json::json!([{
        "rule": format!("self.all(name, name in [{}])", known.join(", ")),
        "messageExpression": format!(
            "'only these can be set: {}'",
            PARAMETERS.map(|(name, _)| name).join(", ")
        ),
        "message": "one of these settings of PgBouncer cannot be set",
    }]);
    set(field_of(schema, "spec.parameters"), "x-kubernetes-validations", known);
    let rules = validations(&RULES, &UNCHANGED);
    set(field_of(schema, "spec"), "x-kubernetes-validations", rules);
    serde_json::from_value(definition).expect("still a definition")
}

/// [`crd`] as the YAML that is checked in as `manifests/crd/poolers.yaml`.
///
/// # Panics
/// As [`crd`].
pub fn crd_yaml() -> String {
    let yaml = serde_saphyr::to_string(&crd()).expect("a definition is YAML");
    format!("# Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again.\n{yaml}")
}
