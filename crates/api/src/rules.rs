//! The rules that a `ClusteredDatabase` must obey. Each exists twice, side by side and with one message: in CEL for the API
//! server and in Rust for the operator. A table of bad resources proves that the two agree.

mod backup;
mod bootstrap;
mod certificates;
mod durability;
mod failover;
mod fenced;
mod metadata;
mod network_policy;
mod parameters;
mod postgres;
pub(crate) mod recovery;
mod root;
mod services;
mod storage;
mod text;

use std::sync::LazyLock;

pub(crate) use self::bootstrap::is_locale;
pub use self::bootstrap::shortest_alike;
pub use self::parameters::is_managed_parameter;
pub(crate) use self::parameters::{FORBIDDEN, forbidden_message};
pub use self::postgres::is_hba_line;
use crate::ClusteredDatabase;

/// A field of a resource that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The field, such as `spec.storage.data.size`; `metadata.name` for a rule about the name.
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
    /// The field whose schema carries the rule, such as `spec.storage.data.size`; empty for the whole resource.
    pub at: String,
    /// The field that the rule is about, if that is another one.
    pub about: Option<&'static str>,
    /// The rule in CEL, where `self` is that field.
    pub cel: String,
    /// What is wrong and what to change. Fixed texts only: an API server accepts no message made from texts without a bound.
    pub message: String,
    /// The rule in Rust.
    pub check: Check,
}

/// A rule in Rust.
pub(crate) enum Check {
    /// Whether a resource obeys it.
    Holds(Holds),
    /// Whether a resource (first) may become another (second).
    MayBecome(MayBecome),
}

type Holds = Box<dyn Fn(&ClusteredDatabase) -> bool + Send + Sync>;
type MayBecome = Box<dyn Fn(&ClusteredDatabase, &ClusteredDatabase) -> bool + Send + Sync>;

impl Rule {
    fn holds(
        at: impl Into<String>,
        cel: impl Into<String>,
        message: impl Into<String>,
        check: impl Fn(&ClusteredDatabase) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            at: at.into(),
            about: None,
            cel: cel.into(),
            message: message.into(),
            check: Check::Holds(Box::new(check)),
        }
    }

    fn may_become(
        at: impl Into<String>,
        cel: impl Into<String>,
        message: impl Into<String>,
        check: impl Fn(&ClusteredDatabase, &ClusteredDatabase) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            at: at.into(),
            about: None,
            cel: cel.into(),
            message: message.into(),
            check: Check::MayBecome(Box::new(check)),
        }
    }

    fn about(self, field: &'static str) -> Self {
        Self {
            about: Some(field),
            ..self
        }
    }

    fn violation(&self) -> Violation {
        let path = match (self.about, &*self.at) {
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
        recovery::rules(),
        metadata::rules(),
        services::rules(),
        backup::rules(),
        network_policy::rules(),
        certificates::rules(),
    ];
    families.into_iter().flatten().collect()
});

/// Bounds that the schema itself sets, so that an API server can bound the cost of the rules: (field, keyword, bound).
/// Each is looser than the rule of the same field, whose message is better.
pub(crate) const LIMITS: [(&str, &str, u64); 147] = [
    ("spec.postgres.image", "maxLength", 1_024),
    ("spec.postgres.parameters", "maxProperties", 512),
    ("spec.postgres.parameters.*", "maxLength", 4_096),
    ("spec.postgres.sharedPreloadLibraries", "maxItems", 64),
    ("spec.postgres.sharedPreloadLibraries.*", "maxLength", 256),
    ("spec.postgres.hba", "maxItems", 64),
    ("spec.postgres.hba.*", "maxLength", 512),
    ("spec.postgres.imagePullSecrets", "maxItems", 64),
    ("spec.postgres.imagePullSecrets.*.name", "maxLength", 512),
    ("spec.storage.data.size", "maxLength", 128),
    ("spec.storage.data.volumeAttributesClassName", "maxLength", 512),
    ("spec.storage.data.metadata.labels", "maxProperties", 128),
    ("spec.storage.data.metadata.labels.*", "maxLength", 256),
    ("spec.storage.data.metadata.annotations", "maxProperties", 128),
    ("spec.storage.data.metadata.annotations.*", "maxLength", 32_768),
    ("spec.storage.wal.volumeAttributesClassName", "maxLength", 512),
    ("spec.storage.wal.metadata.labels", "maxProperties", 128),
    ("spec.storage.wal.metadata.labels.*", "maxLength", 256),
    ("spec.storage.wal.metadata.annotations", "maxProperties", 128),
    ("spec.storage.wal.metadata.annotations.*", "maxLength", 32_768),
    ("spec.storage.data.storageClassName", "maxLength", 512),
    ("spec.storage.wal.size", "maxLength", 128),
    ("spec.storage.wal.storageClassName", "maxLength", 512),
    ("spec.primary.prefer", "maxLength", 512),
    ("spec.fenced", "maxItems", 16),
    ("spec.fenced.*", "maxLength", 512),
    ("spec.bootstrap.initdb.database", "maxLength", 512),
    ("spec.bootstrap.initdb.owner", "maxLength", 512),
    ("spec.bootstrap.initdb.passwordSecretRef.name", "maxLength", 512),
    ("spec.bootstrap.initdb.passwordSecretRef.key", "maxLength", 512),
    ("spec.bootstrap.volumes.adopt", "maxLength", 128),
    ("spec.bootstrap.initdb.locale", "maxLength", 256),
    ("spec.bootstrap.initdb.postInitApplicationSQL", "maxItems", 128),
    ("spec.bootstrap.initdb.postInitApplicationSQL.*", "maxLength", 32_768),
    ("spec.bootstrap.recovery.checks.queries", "maxItems", 128),
    ("spec.bootstrap.recovery.checks.queries.*", "maxLength", 32_768),
    ("spec.backup.drill.checks.queries", "maxItems", 128),
    ("spec.backup.drill.checks.queries.*", "maxLength", 32_768),
    ("spec.resources.requests", "maxProperties", 32),
    ("spec.resources.requests.*", "maxLength", 64),
    ("spec.resources.limits", "maxProperties", 32),
    ("spec.resources.limits.*", "maxLength", 64),
    ("spec.scheduling.nodeSelector", "maxProperties", 128),
    ("spec.scheduling.nodeSelector.*", "maxLength", 256),
    ("spec.scheduling.priorityClassName", "maxLength", 512),
    ("spec.serviceAccount.metadata.labels", "maxProperties", 128),
    ("spec.serviceAccount.metadata.labels.*", "maxLength", 256),
    ("spec.serviceAccount.metadata.annotations", "maxProperties", 128),
    ("spec.serviceAccount.metadata.annotations.*", "maxLength", 32_768),
    ("spec.pods.metadata.labels", "maxProperties", 128),
    ("spec.pods.metadata.labels.*", "maxLength", 256),
    ("spec.pods.metadata.annotations", "maxProperties", 128),
    ("spec.pods.metadata.annotations.*", "maxLength", 32_768),
    ("spec.services.readWrite.loadBalancerClass", "maxLength", 512),
    ("spec.services.readWrite.loadBalancerSourceRanges", "maxItems", 64),
    ("spec.services.readWrite.loadBalancerSourceRanges.*", "maxLength", 64),
    ("spec.services.readWrite.metadata.labels", "maxProperties", 128),
    ("spec.services.readWrite.metadata.labels.*", "maxLength", 256),
    ("spec.services.readWrite.metadata.annotations", "maxProperties", 128),
    ("spec.services.readWrite.metadata.annotations.*", "maxLength", 32_768),
    ("spec.services.readOnly.loadBalancerClass", "maxLength", 512),
    ("spec.services.readOnly.loadBalancerSourceRanges", "maxItems", 64),
    ("spec.services.readOnly.loadBalancerSourceRanges.*", "maxLength", 64),
    ("spec.services.readOnly.metadata.labels", "maxProperties", 128),
    ("spec.services.readOnly.metadata.labels.*", "maxLength", 256),
    ("spec.services.readOnly.metadata.annotations", "maxProperties", 128),
    ("spec.services.readOnly.metadata.annotations.*", "maxLength", 32_768),
    ("spec.services.read.loadBalancerClass", "maxLength", 512),
    ("spec.services.read.loadBalancerSourceRanges", "maxItems", 64),
    ("spec.services.read.loadBalancerSourceRanges.*", "maxLength", 64),
    ("spec.services.read.metadata.labels", "maxProperties", 128),
    ("spec.services.read.metadata.labels.*", "maxLength", 256),
    ("spec.services.read.metadata.annotations", "maxProperties", 128),
    ("spec.services.read.metadata.annotations.*", "maxLength", 32_768),
    ("spec.backup.store.s3.s3Path", "maxLength", 1_024),
    ("spec.backup.store.s3.bucket", "maxLength", 128),
    ("spec.backup.store.s3.path", "maxLength", 1_024),
    ("spec.backup.store.s3.region", "maxLength", 128),
    ("spec.backup.store.s3.endpoint", "maxLength", 512),
    ("spec.backup.store.s3.serverSideEncryption.kmsKeyId", "maxLength", 1_024),
    ("spec.backup.store.s3.credentialsSecretRef.name", "maxLength", 512),
    ("spec.backup.store.s3.caSecretRef.name", "maxLength", 512),
    ("spec.backup.store.s3.caSecretRef.key", "maxLength", 512),
    ("spec.backup.store.azure.account", "maxLength", 64),
    ("spec.backup.store.azure.container", "maxLength", 128),
    ("spec.backup.store.azure.path", "maxLength", 1_024),
    ("spec.backup.store.azure.endpoint", "maxLength", 512),
    ("spec.backup.store.azure.credentialsSecretRef.name", "maxLength", 512),
    ("spec.backup.store.azure.caSecretRef.name", "maxLength", 512),
    ("spec.backup.store.azure.caSecretRef.key", "maxLength", 512),
    ("spec.backup.store.gcs.bucket", "maxLength", 128),
    ("spec.backup.store.gcs.path", "maxLength", 1_024),
    ("spec.backup.store.gcs.endpoint", "maxLength", 512),
    ("spec.backup.store.gcs.credentialsSecretRef.name", "maxLength", 512),
    ("spec.backup.store.gcs.caSecretRef.name", "maxLength", 512),
    ("spec.backup.store.gcs.caSecretRef.key", "maxLength", 512),
    ("spec.bootstrap.recovery.from.store.gcs.bucket", "maxLength", 128),
    ("spec.bootstrap.recovery.from.store.gcs.path", "maxLength", 1_024),
    ("spec.bootstrap.recovery.from.store.gcs.endpoint", "maxLength", 512),
    (
        "spec.bootstrap.recovery.from.store.gcs.credentialsSecretRef.name",
        "maxLength",
        512,
    ),
    (
        "spec.bootstrap.recovery.from.store.gcs.caSecretRef.name",
        "maxLength",
        512,
    ),
    (
        "spec.bootstrap.recovery.from.store.gcs.caSecretRef.key",
        "maxLength",
        512,
    ),
    ("spec.backup.volumeSnapshotClassName", "maxLength", 512),
    ("spec.backup.retention.hold", "maxItems", 16),
    ("spec.backup.retention.hold.*", "maxLength", 64),
    ("spec.backup.store.volume.claimName", "maxLength", 512),
    ("spec.bootstrap.recovery.from.store.volume.claimName", "maxLength", 512),
    ("spec.bootstrap.recovery.from.clusterRef.name", "maxLength", 128),
    ("spec.bootstrap.recovery.from.store.s3.s3Path", "maxLength", 1_024),
    ("spec.bootstrap.recovery.from.store.s3.bucket", "maxLength", 128),
    ("spec.bootstrap.recovery.from.store.s3.path", "maxLength", 1_024),
    ("spec.bootstrap.recovery.from.store.s3.region", "maxLength", 128),
    ("spec.bootstrap.recovery.from.store.s3.endpoint", "maxLength", 512),
    (
        "spec.bootstrap.recovery.from.store.s3.serverSideEncryption.kmsKeyId",
        "maxLength",
        1_024,
    ),
    (
        "spec.bootstrap.recovery.from.store.s3.credentialsSecretRef.name",
        "maxLength",
        512,
    ),
    (
        "spec.bootstrap.recovery.from.store.s3.caSecretRef.name",
        "maxLength",
        512,
    ),
    (
        "spec.bootstrap.recovery.from.store.s3.caSecretRef.key",
        "maxLength",
        512,
    ),
    ("spec.bootstrap.recovery.from.store.azure.account", "maxLength", 64),
    ("spec.bootstrap.recovery.from.store.azure.container", "maxLength", 128),
    ("spec.bootstrap.recovery.from.store.azure.path", "maxLength", 1_024),
    ("spec.bootstrap.recovery.from.store.azure.endpoint", "maxLength", 512),
    (
        "spec.bootstrap.recovery.from.store.azure.credentialsSecretRef.name",
        "maxLength",
        512,
    ),
    (
        "spec.bootstrap.recovery.from.store.azure.caSecretRef.name",
        "maxLength",
        512,
    ),
    (
        "spec.bootstrap.recovery.from.store.azure.caSecretRef.key",
        "maxLength",
        512,
    ),
    ("spec.bootstrap.recovery.from.cluster", "maxLength", 128),
    ("spec.bootstrap.recovery.from.namespace", "maxLength", 128),
    ("spec.bootstrap.recovery.backup", "maxLength", 64),
    ("spec.bootstrap.recovery.target.lsn", "maxLength", 64),
    ("spec.bootstrap.recovery.target.name", "maxLength", 128),
    ("spec.backup.schedules", "maxItems", 16),
    ("spec.backup.schedules.*.name", "maxLength", 64),
    ("spec.backup.schedules.*.schedule", "maxLength", 128),
    ("spec.backup.schedules.*.timeZone", "maxLength", 128),
    ("spec.backup.drill.schedule", "maxLength", 128),
    ("spec.backup.drill.timeZone", "maxLength", 128),
    ("spec.backup.encryption.recipients", "maxItems", 16),
    ("spec.backup.encryption.recipients.*", "maxLength", 128),
    ("spec.backup.encryption.identitySecretRef.name", "maxLength", 512),
    ("spec.backup.encryption.identitySecretRef.key", "maxLength", 512),
    ("spec.bootstrap.recovery.from.identitySecretRef.name", "maxLength", 512),
    ("spec.bootstrap.recovery.from.identitySecretRef.key", "maxLength", 512),
    ("spec.networkPolicy.clients", "maxItems", 64),
    ("spec.networkPolicy.clients.*.ipBlock.cidr", "maxLength", 64),
    ("spec.networkPolicy.monitoring", "maxItems", 64),
    ("spec.networkPolicy.monitoring.*.ipBlock.cidr", "maxLength", 64),
    ("status.memo.granted.data", "maxLength", 128),
    ("status.memo.granted.wal", "maxLength", 128),
];

/// The rules that a resource breaks. They are those that the API server checks. The definition on the server may be older or
/// looser than this program, so the operator checks them again.
pub fn validate(resource: &ClusteredDatabase) -> Vec<Violation> {
    let broken = |rule: &&Rule| matches!(&rule.check, Check::Holds(holds) if !holds(resource));
    RULES.iter().filter(broken).map(Rule::violation).collect()
}

/// The rules that a change of `old` into `new` breaks. Only rules about the change: [`validate`] checks `new` itself.
pub fn validate_update(old: &ClusteredDatabase, new: &ClusteredDatabase) -> Vec<Violation> {
    let broken = |rule: &&Rule| matches!(&rule.check, Check::MayBecome(may) if !may(old, new));
    RULES.iter().filter(broken).map(Rule::violation).collect()
}

/// A CEL list of these texts, none of which holds a quote or a backslash.
fn cel_list(texts: &[&str]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}
