//! The rules that a `ClusteredDatabase` must obey. Each is written twice, in CEL for the API server and in Rust for the
//! operator, beside each other and with one message; a table of bad resources proves that the two say the same.

mod bootstrap;
mod durability;
mod failover;
mod fenced;
mod metadata;
mod network_policy;
mod parameters;
mod postgres;
mod root;
mod storage;
mod text;

use std::sync::LazyLock;

pub use self::bootstrap::shortest_alike;
pub use self::parameters::is_managed_parameter;
pub(crate) use self::parameters::{FORBIDDEN, forbidden_message};
use crate::ClusteredDatabase;

/// A field of a resource that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The field, such as `spec.storage.size`; `metadata.name` for a rule about the name.
    pub path: String,
    /// What is wrong and what to change.
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// One rule.
pub(crate) struct Rule {
    /// The field whose schema carries the rule, such as `spec.storage.size`; empty for the whole resource.
    pub at: &'static str,
    /// The field that it is about, where that is another one.
    pub about: Option<&'static str>,
    /// The rule in CEL, where `self` is that field.
    pub cel: String,
    /// What is wrong and what to change. Fixed texts only: an API server takes no message made from texts that it cannot
    /// bound.
    pub message: String,
    /// The rule in Rust.
    pub check: Check,
}

/// A rule in Rust.
pub(crate) enum Check {
    /// Whether a resource obeys it.
    Holds(Box<dyn Fn(&ClusteredDatabase) -> bool + Send + Sync>),
    /// Whether a resource (first) may become another (second).
    MayBecome(fn(&ClusteredDatabase, &ClusteredDatabase) -> bool),
}

impl Rule {
    fn holds(
        at: &'static str,
        cel: impl Into<String>,
        message: impl Into<String>,
        check: impl Fn(&ClusteredDatabase) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            at,
            about: None,
            cel: cel.into(),
            message: message.into(),
            check: Check::Holds(Box::new(check)),
        }
    }

    fn may_become(
        at: &'static str,
        cel: impl Into<String>,
        message: impl Into<String>,
        check: fn(&ClusteredDatabase, &ClusteredDatabase) -> bool,
    ) -> Self {
        Self {
            at,
            about: None,
            cel: cel.into(),
            message: message.into(),
            check: Check::MayBecome(check),
        }
    }

    fn about(self, field: &'static str) -> Self {
        Self {
            about: Some(field),
            ..self
        }
    }

    fn violation(&self) -> Violation {
        let path = match (self.about, self.at) {
            (Some(field), _) => field,
            (None, "") => root::PATH,
            (None, at) => at,
        };
        Violation {
            path: path.to_owned(),
            message: self.message.clone(),
        }
    }
}

/// All rules, in the order of the spec's fields.
pub(crate) static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let families = [
        root::rules(),
        postgres::rules(),
        parameters::rules(),
        storage::rules(),
        failover::rules(),
        durability::rules(),
        fenced::rules(),
        bootstrap::rules(),
        metadata::rules(),
        network_policy::rules(),
    ];
    families.into_iter().flatten().collect()
});

/// Bounds that the schema itself sets, so that an API server can bound the cost of the rules: (field, keyword, bound).
/// Each is looser than the rule of the same field, whose message is better.
pub(crate) const LIMITS: [(&str, &str, u64); 35] = [
    ("spec.postgres.image", "maxLength", 1_024),
    ("spec.postgres.parameters", "maxProperties", 512),
    ("spec.postgres.parameters.*", "maxLength", 4_096),
    ("spec.storage.size", "maxLength", 128),
    ("spec.storage.storageClassName", "maxLength", 512),
    ("spec.storage.wal.size", "maxLength", 128),
    ("spec.storage.wal.storageClassName", "maxLength", 512),
    ("spec.primary.prefer", "maxLength", 512),
    ("spec.fenced", "maxItems", 16),
    ("spec.fenced.*", "maxLength", 512),
    ("spec.bootstrap.initdb.database", "maxLength", 512),
    ("spec.bootstrap.initdb.owner", "maxLength", 512),
    ("spec.bootstrap.initdb.passwordSecret", "maxLength", 512),
    ("spec.bootstrap.initdb.locale", "maxLength", 256),
    ("spec.bootstrap.initdb.postInitSql", "maxItems", 128),
    ("spec.bootstrap.initdb.postInitSql.*", "maxLength", 32_768),
    ("spec.resources.requests", "maxProperties", 32),
    ("spec.resources.requests.*", "maxLength", 64),
    ("spec.resources.limits", "maxProperties", 32),
    ("spec.resources.limits.*", "maxLength", 64),
    ("spec.scheduling.nodeSelector", "maxProperties", 128),
    ("spec.scheduling.nodeSelector.*", "maxLength", 256),
    ("spec.scheduling.priorityClassName", "maxLength", 512),
    ("spec.serviceAccountAnnotations", "maxProperties", 128),
    ("spec.serviceAccountAnnotations.*", "maxLength", 32_768),
    ("spec.podMetadata.labels", "maxProperties", 128),
    ("spec.podMetadata.labels.*", "maxLength", 256),
    ("spec.podMetadata.annotations", "maxProperties", 128),
    ("spec.podMetadata.annotations.*", "maxLength", 32_768),
    ("spec.networkPolicy.clients", "maxItems", 64),
    ("spec.networkPolicy.clients.*.ipBlock.cidr", "maxLength", 64),
    ("spec.networkPolicy.monitoring", "maxItems", 64),
    ("spec.networkPolicy.monitoring.*.ipBlock.cidr", "maxLength", 64),
    ("status.memo.granted.data", "maxLength", 128),
    ("status.memo.granted.wal", "maxLength", 128),
];

/// What is wrong with a resource: the rules that the API server checks, checked again, since a definition on the
/// server may be older or looser than this program.
pub fn validate(resource: &ClusteredDatabase) -> Vec<Violation> {
    let broken = |rule: &&Rule| matches!(&rule.check, Check::Holds(holds) if !holds(resource));
    RULES.iter().filter(broken).map(Rule::violation).collect()
}

/// What is wrong with changing `old` into `new`: only what concerns the change; [`validate`] says what is wrong with
/// `new` itself.
pub fn validate_update(old: &ClusteredDatabase, new: &ClusteredDatabase) -> Vec<Violation> {
    let broken = |rule: &&Rule| matches!(rule.check, Check::MayBecome(may) if !may(old, new));
    RULES.iter().filter(broken).map(Rule::violation).collect()
}

/// A CEL list of these texts, none of which holds a quote or a backslash.
fn cel_list(texts: &[&str]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}
