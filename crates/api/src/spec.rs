//! What the user asks for.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ClusteredDatabaseStatus;
use crate::backup::{BackupKind, BackupSource};
use crate::names::{DATA_VOLUME, WAL_VOLUME, parse_claim};
use crate::operation::ClusterReference;
use crate::status::DurabilityMode;
use crate::store::StoreSpec;

/// A highly available PostgreSQL database.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha2",
    kind = "ClusteredDatabase",
    plural = "clustereddatabases",
    shortname = "cdb",
    category = "all",
    namespaced,
    derive = "PartialEq",
    doc = "A highly available PostgreSQL database.",
    status = "ClusteredDatabaseStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Phase", "type": "string", "description": "State of the database.", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "description": "Ready and wanted instances.", "jsonPath": ".status.readySummary"}"#,
    printcolumn = r#"{"name": "Primary", "type": "string", "description": "Pod that serves writes.", "jsonPath": ".status.currentPrimary"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Version of the running PostgreSQL.", "jsonPath": ".status.postgresVersion"}"#,
    printcolumn = r#"{"name": "Timeline", "type": "integer", "description": "PostgreSQL timeline of the primary.", "jsonPath": ".status.timeline", "priority": 1}"#,
    printcolumn = r#"{"name": "Durability", "type": "string", "description": "When a commit is acknowledged.", "jsonPath": ".status.durability.mode", "priority": 1}"#,
    printcolumn = r#"{"name": "Waiting", "type": "string", "description": "What the next step waits for.", "jsonPath": ".status.waiting.message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Time since the resource was created.", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusteredDatabaseSpec {
    /// Number of instances, 1 to 9: one primary, the others standbys.
    #[serde(default = "default_replicas")]
    pub replicas: i32,
    /// Image, version and settings of PostgreSQL.
    #[serde(default)]
    pub postgres: PostgresSpec,
    /// The volumes of each instance.
    pub storage: StorageSpec,
    /// CPU and memory of each instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// How soon the instances elect another primary when the present one is silent.
    #[serde(default)]
    pub failover: FailoverSpec,
    /// When a commit is acknowledged. A new database of three or more instances gets `Required` by default, a smaller one
    /// `Async`. A later change of `replicas` does not change that.
    #[serde(default)]
    pub durability: DurabilitySpec,
    /// The preferred primary, and how rolling changes treat the primary.
    #[serde(default)]
    pub primary: PrimarySpec,
    /// Where the first data comes from: a new, empty database if absent. Cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapSpec>,
    /// The nodes on which the instances may run.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    /// The instances' ServiceAccount.
    #[serde(default)]
    pub service_account: ServiceAccountSpec,
    /// The instances' pods.
    #[serde(default)]
    pub pods: PodsSpec,
    /// The Services that clients use.
    #[serde(default)]
    pub services: ServicesSpec,
    /// Where the database's WAL is archived. If absent, there is no archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupSpec>,
    /// Who may connect to the instances' pods.
    #[serde(default)]
    pub network_policy: NetworkPolicySpec,
    /// How the certificates are rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificatesSpec>,
    /// Names of instances (pods) whose PostgreSQL is stopped cleanly and stays stopped while they are in this list. Their
    /// pods and volumes stay for inspection. A primary hands over first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub fenced: Vec<String>,
    /// Stop the whole database cleanly and delete its pods. Volumes and all other objects stay. When this is false again,
    /// the database starts with all its data.
    #[serde(default)]
    pub hibernated: bool,
    /// Stop reconciling: the operator changes nothing until this is false again. The database keeps running.
    #[serde(default)]
    pub paused: bool,
}

/// How the certificates are rotated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificatesSpec {
    /// Before a new authority issues the servers' certificate, applications have so many hours to read it from their Secret (`ca.crt`);
    /// 168 (a week) if absent. With 0, applications that verify the server and have not read it yet cannot connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_trust_hours: Option<u32>,
}

/// Image, version and settings of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostgresSpec {
    /// Container image with PostgreSQL's binaries of `majorVersion`. If absent, the cluster keeps the operator's default image
    /// of the day on which it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// PostgreSQL's major version (15 to 18). Cannot be changed later.
    #[serde(default = "default_major_version")]
    pub major_version: u16,
    /// Server settings (`postgresql.conf`), by name. The API refuses settings that the operator manages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub parameters: BTreeMap<String, String>,
    /// TCP port of the server and of its Services. Cannot be changed later.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Libraries that PostgreSQL loads at its start, in this order, such as `pg_stat_statements`. The image must have them.
    /// A change restarts PostgreSQL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub shared_preload_libraries: Vec<String>,
    /// Lines of `pg_hba.conf`: connection type, databases, users, addresses and method, with one space between. They come
    /// after the operator's own lines for its instances, and before `hostssl all all all scram-sha-256`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub hba: Vec<String>,
    /// When the kubelet pulls the image, as in a pod.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,
    /// Secrets in the same namespace with which the kubelet pulls the images, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<PullSecret>,
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// If the node does not have it.
    #[default]
    IfNotPresent,
    /// At each start of a pod.
    Always,
    /// Never: the node must have it.
    Never,
}

/// A Secret of the type `kubernetes.io/dockerconfigjson`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullSecret {
    /// Its name.
    pub name: String,
}

impl PostgresSpec {
    /// All that a running server takes up without a new pod, by name: the parameters, the libraries and the lines of
    /// `pg_hba.conf`.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let mut settings = self.parameters.clone();
        // Not a parameter of the user's.
        settings.remove(PRELOAD);
        for (name, values, between) in [(PRELOAD, &self.shared_preload_libraries, ","), (HBA, &self.hba, "\n")] {
            if !values.is_empty() {
                settings.insert(name.to_owned(), values.join(between));
            }
        }
        settings
    }
}

/// Name of the setting for [`PostgresSpec::shared_preload_libraries`].
pub const PRELOAD: &str = "shared_preload_libraries";
/// Name for [`PostgresSpec::hba`] among the settings: one that no parameter can have.
pub const HBA: &str = "#pg_hba.conf";

/// The volumes of each instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// The volume for the data.
    pub data: VolumeSpec,
    /// A separate volume for the write-ahead log. Can be added later. Can be removed only until the first instance has its
    /// volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal: Option<VolumeSpec>,
    /// What the operator does with volumes that are no longer needed.
    #[serde(default)]
    pub retention_policy: RetentionPolicy,
}

impl StorageSpec {
    /// What is asked for of the volume of this claim, if any.
    pub fn volume(&self, claim: &str) -> Option<&VolumeSpec> {
        match parse_claim(claim)?.0 {
            DATA_VOLUME => Some(&self.data),
            WAL_VOLUME => self.wal.as_ref(),
            _ => None,
        }
    }
}

/// One kind of volume: each instance has a claim made from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// Size, 256Mi to 1Pi, as a Kubernetes quantity (such as `10Gi`). It can grow, never shrink.
    pub size: String,
    /// StorageClass; the cluster's default class if absent. Cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// VolumeAttributesClass, with which the driver sets such things as the rate of writes. Can be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,
    /// Labels and annotations of the claims.
    #[serde(default)]
    pub metadata: MetadataTemplate,
}

/// What the operator does with volumes that are no longer needed. The names and values are those of a StatefulSet's
/// `persistentVolumeClaimRetentionPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetentionPolicy {
    /// When the database is deleted.
    #[serde(default)]
    pub when_deleted: VolumeFate,
    /// When a lower `replicas` removes an instance.
    #[serde(default)]
    pub when_scaled: VolumeFate,
}

/// What the operator does with a volume claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeFate {
    /// It keeps the claim and its data.
    #[default]
    Retain,
    /// It deletes the claim.
    Delete,
}

/// How soon the instances elect another primary when the present one is silent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverSpec {
    /// A set of times.
    #[serde(default)]
    pub profile: FailoverProfile,
    /// Your own times, with the profile `Custom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<FailoverTiming>,
    /// Whether an old primary that is cut off may still answer reads while a new one already writes.
    #[serde(default)]
    pub stale_reads: StaleReads,
}

/// Whether an old primary that is cut off may answer reads with old data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StaleReads {
    /// It may, for at most the fence timeout. The election does not wait for it.
    #[default]
    Allow,
    /// It may not: the election waits until the old primary's lease has run out.
    Forbid,
}

/// When a commit is acknowledged, for sessions with `synchronous_commit` of `on` or stronger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DurabilitySpec {
    /// What a commit waits for. If absent, it stays as it was chosen last (`status.memo.durability`); a new database gets
    /// `Required` from three instances on, and `Async` below. One instance allows only `Async`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<DurabilityMode>,
    /// How many standbys must have a commit on disk, 1 to `replicas` - 1. If absent, it stays as it was chosen last; at first
    /// it is half of `replicas`, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchronous_standbys: Option<u32>,
}

/// The preferred primary, and how rolling changes treat the primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrimarySpec {
    /// Name of the instance (pod) that shall be the primary; any instance if absent. It becomes primary by a switchover once
    /// it streams and has caught up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefer: Option<String>,
    /// What a rolling change does when only the primary is left.
    #[serde(default)]
    pub update_policy: PrimaryUpdatePolicy,
}

/// What a rolling change does when only the primary is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PrimaryUpdatePolicy {
    /// It continues: the primary hands over to a standby, or is restarted in place.
    #[default]
    Automatic,
    /// It stops before that, and `status.waiting` has the command that continues it.
    Supervised,
}

/// A set of failover times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailoverProfile {
    /// Lease 10 s, renewed every 2 s, fenced after 6 s: survives an API server stall of up to 6 s.
    #[default]
    Standard,
    /// Lease 5 s, renewed every 0.8 s, fenced after 2.5 s: for API servers that never stall.
    Fast,
    /// The times of `timing`.
    Custom,
}

/// Your own failover times, in milliseconds. `fenceTimeoutMilliseconds + stopTimeoutMilliseconds` must be at most 95 % of
/// the lease's duration (5 % is for clocks that run at different rates), and the renewal period at most a third of the
/// fence timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverTiming {
    /// How long the lease of a silent primary stays valid: whole seconds, 2,000 to 600,000.
    pub lease_duration_milliseconds: u32,
    /// How often the primary renews its lease, at least 200.
    pub renew_period_milliseconds: u32,
    /// The primary stops itself after this time without a renewal.
    pub fence_timeout_milliseconds: u32,
    /// How long that stop may take, at least 500.
    pub stop_timeout_milliseconds: u32,
}

/// Where the first data comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapSpec {
    /// Make a new, empty database. Beside `volumes` or `recovery`: how that database was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initdb: Option<InitdbSpec>,
    /// Take over what a deleted database of this name has left, with all that it acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<RetainedVolumes>,
    /// Make the database from a backup, as it was at some time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoverySpec>,
}

/// A backup, and up to where the archived WAL is applied to it. The database becomes a new one: it archives in a place of its own. The
/// password of `initdb.owner` is set to that of this database's own Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoverySpec {
    /// Where the backup is.
    pub from: RecoverySource,
    /// The backup's name in the store, such as `20261124T230501Z-F-7f3a`. If absent, the last one before the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Up to where. If absent, the end of the archived WAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<RecoveryTarget>,
    /// Read all files again after they were unpacked, and compare them with the backup's manifest, as a drill does. In any case they are
    /// compared with it while they are unpacked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verify_files: bool,
    /// What is checked before anybody can connect; nothing more if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<RecoveryChecks>,
}

/// What is checked in a recovered database before anybody can connect to it; if a check fails, there is none. With any of these, also the
/// empty ones, no index may have been made with another version of a collation than the image has. Otherwise that is only logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryChecks {
    /// Have `pg_amcheck` look through all tables and B-tree indexes. Databases that lack its extension `amcheck` get it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub amcheck: bool,
    /// Queries that must each return one row with the one value `true`. They run in the application's database, as superuser, and
    /// cannot write to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<String>,
}

/// The backups of a ClusteredDatabase: of one that is there (`clusterRef`), or of one that may be gone (`store` and `cluster`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoverySource {
    /// The ClusteredDatabase, in the same namespace. Its store, folder and private key are taken from its `spec.backup` once, when this
    /// database is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ClusterReference>,
    /// The store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSpec>,
    /// Its folder in the store: name and first eight digits of the UID of the ClusteredDatabase, such as `orders-1a2b3c4d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The namespace that it was in; the new one's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The Secret with the private key of encrypted backups, in the new one's namespace. With `clusterRef`, instead of that of the
    /// ClusteredDatabase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_secret_ref: Option<IdentitySecretRef>,
}

/// Where recovery ends: one of these, as PostgreSQL's settings `recovery_target_*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryTarget {
    /// Commits up to this time, such as `2026-11-24T23:05:01Z`.
    #[serde(
        default,
        deserialize_with = "crate::moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub time: Option<DateTime<Utc>>,
    /// This position in the WAL, such as `16/B3000028`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsn: Option<String>,
    /// This transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// The restore point of this name (`pg_create_restore_point`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The end of the backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immediate: bool,
    /// End just before the target, instead of just after it. With `time`, `lsn` or `xid`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
}

impl RecoveryTarget {
    /// How many targets it names; it has to name one.
    pub(crate) fn kinds(&self) -> usize {
        let set = [
            self.time.is_some(),
            self.lsn.is_some(),
            self.xid.is_some(),
            self.name.is_some(),
            self.immediate,
        ];
        set.into_iter().filter(|is| *is).count()
    }

    /// `exclusive` is not set, or means something.
    pub(crate) fn may_be_exclusive(&self) -> bool {
        !self.exclusive || self.time.is_some() || self.lsn.is_some() || self.xid.is_some()
    }
}

/// Which deleted database of this name comes back. It was deleted with `storage.retentionPolicy.whenDeleted: Retain`, so
/// that its claims, its Lease, and the Secrets `<name>-ca` and `<name>-app` are still there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetainedVolumes {
    /// `Newest`, or the UID that the deleted ClusteredDatabase had: then nothing else is taken over.
    pub adopt: String,
}

/// [`RetainedVolumes::adopt`]: whichever it is.
pub const NEWEST: &str = "Newest";

/// How the operator makes a new, empty database. The definition has no defaults here, so that `bootstrap` stays as the user
/// wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitdbSpec {
    /// Name of the application's database; `app` if absent.
    #[serde(default = "default_database")]
    pub database: String,
    /// Role that owns the application's database; it logs in with a password. The name of the database if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Where the owner's password stands. If absent, the operator generates one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<PasswordSecretRef>,
    /// Keep checksums of data pages; `true` if absent.
    #[serde(default = "default_true")]
    pub data_checksums: bool,
    /// Locale of the databases, `C.UTF-8` if absent; the encoding is always UTF-8.
    #[serde(default = "default_locale")]
    pub locale: String,
    /// Size of a segment of WAL in MiB: 1, 2, 4, 8 or 16; 4 if absent. A promotion writes and flushes a whole one before the database
    /// accepts writes; each is a file of its own in the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal_segment_size: Option<u32>,
    /// SQL statements that run once in the application's database, as superuser, when it is made.
    #[serde(default, rename = "postInitApplicationSQL", skip_serializing_if = "Vec::is_empty")]
    pub post_init_application_sql: Vec<String>,
}

impl InitdbSpec {
    /// The role that owns the application's database.
    pub fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.database)
    }

    /// Size of a segment of WAL, in MiB.
    pub fn wal_segment_size(&self) -> u32 {
        self.wal_segment_size.unwrap_or(4)
    }
}

/// A key of a Secret in the same namespace. The Secret must name this database in its label
/// `clustereddatabase.io/password-for`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PasswordSecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Key of the password; `password` if absent, as in a Secret of type `kubernetes.io/basic-auth`.
    #[serde(default = "default_key")]
    pub key: String,
}

impl ClusteredDatabase {
    /// Where the backup is that the database is made from, if it is not a new one; `None` also while a `clusterRef` has not been followed.
    pub fn recovery_source(&self) -> Option<&RecoverySource> {
        let from = &self.spec.recovery()?.from;
        match self.spec.recovered_from() {
            Some(_) => self.status.as_ref()?.memo.recovery_source.as_ref(),
            None => Some(from),
        }
    }
}

/// Connections that the agent keeps for itself, unless the settings say otherwise.
pub const RESERVED_CONNECTIONS: u32 = 8;

impl PostgresSpec {
    /// How many connections an instance has for applications: `max_connections` without those that are reserved for superusers. `None`
    /// if a setting is not understood.
    pub fn connections(&self) -> Option<i32> {
        let number = |name: &str, default: u32| {
            let value = self.parameters.get(name);
            value.map_or(Some(default), |value| value.trim().parse().ok())
        };
        let all = number("max_connections", 100)?;
        let reserved = number("superuser_reserved_connections", RESERVED_CONNECTIONS)?;
        i32::try_from(all.saturating_sub(reserved)).ok()
    }
}

impl ClusteredDatabaseSpec {
    /// How long applications are given to trust a new authority, in hours.
    pub fn client_trust_hours(&self) -> u32 {
        let asked = self.certificates.as_ref();
        asked.and_then(|asked| asked.client_trust_hours).unwrap_or(168)
    }

    /// How a new, empty database is made.
    pub fn initdb(&self) -> &InitdbSpec {
        static DEFAULT: LazyLock<InitdbSpec> = LazyLock::new(InitdbSpec::default);
        let given = self.bootstrap.as_ref().and_then(|bootstrap| bootstrap.initdb.as_ref());
        given.unwrap_or(&DEFAULT)
    }

    /// The backup that the database is made from, if it is not a new one.
    pub fn recovery(&self) -> Option<&RecoverySpec> {
        self.bootstrap.as_ref()?.recovery.as_ref()
    }

    /// Name of the ClusteredDatabase from whose backups it is made (`clusterRef`).
    pub fn recovered_from(&self) -> Option<&str> {
        Some(self.recovery()?.from.cluster_ref.as_ref()?.name.as_str())
    }

    /// What the user wrote of it, to be changed.
    pub fn initdb_mut(&mut self) -> Option<&mut InitdbSpec> {
        self.bootstrap.as_mut()?.initdb.as_mut()
    }
}

/// The archive of WAL. `archive_timeout` is 60 s in a database with an archive, unless `postgres.parameters` sets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSpec {
    /// The object store.
    pub store: StoreSpec,
    /// When backups are taken by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub schedules: Vec<BackupSchedule>,
    /// Which backups are kept; all if absent. The WAL from the oldest kept one on is kept, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<BackupRetention>,
    /// The VolumeSnapshotClass of backups of kind `Snapshot`; the default one of the volume's driver if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    /// When it is tried by itself whether the backups can be used; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<BackupDrill>,
    /// What is done when the ClusteredDatabase is deleted; nothing if absent. The store then keeps its backups and WAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<BackupOnDelete>,
    /// Encrypt WAL and backups before they leave the pod; not if absent. What is stored stays as it is when this changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<BackupEncryption>,
}

impl BackupSpec {
    /// The Secret with the private key of encrypted backups, if it is named.
    pub fn identity_secret_ref(&self) -> Option<&IdentitySecretRef> {
        self.encryption.as_ref()?.identity_secret_ref.as_ref()
    }
}

/// Encryption with age (<https://age-encryption.org>). Whoever loses all private keys loses the backups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupEncryption {
    /// Public keys, as `age-keygen` prints them: `age1…`. The private key of any of them opens everything.
    pub recipients: Vec<String>,
    /// The Secret with the private key, for databases that `kubectl cdb recover` and drills make. This database's pods see it
    /// only after a recovery in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_secret_ref: Option<IdentitySecretRef>,
}

/// A key of a Secret in the same namespace, with private keys of age: `AGE-SECRET-KEY-1…`, one a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentitySecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Its key; `identity` if absent.
    #[serde(default = "default_identity_key")]
    pub key: String,
}

fn default_identity_key() -> String {
    crate::names::IDENTITY_KEY.to_owned()
}

/// Makes a database from the newest backup and all archived WAL at each of its times, and removes it once that is Ready. One that was
/// missed is caught up once. It has one instance, with the storage and resources of this database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupDrill {
    /// The times, as in a crontab: minute, hour, day of the month, month, day of the week, such as `0 5 * * 0`.
    pub schedule: String,
    /// Time zone of the times, such as `Europe/Berlin`; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Begin none until this is false again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// After so many minutes a drill has failed; 240 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_minutes: Option<u32>,
    /// The condition `BackupHealthy` is `False` if the last drill that succeeded began more than so many days ago. If absent, its age
    /// does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_days: Option<u32>,
    /// What is checked in the recovered database beside its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<RecoveryChecks>,
}

/// What is done for the store when the ClusteredDatabase is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupOnDelete {
    /// Whether a last backup is taken before PostgreSQL stops. It can be changed until that backup is complete.
    pub final_backup: FinalBackup,
    /// What becomes of the backups and the WAL in the store. It can be changed until PostgreSQL stops.
    #[serde(default, skip_serializing_if = "ArchiveFate::is_retain")]
    pub data: ArchiveFate,
}

/// What becomes of a database's backups and WAL when it is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ArchiveFate {
    /// They stay.
    #[default]
    Retain,
    /// All of them are deleted before PostgreSQL stops, once the annotation `clustereddatabase.io/delete-archive` has the UID of the
    /// ClusteredDatabase. If its namespace is being deleted, they stay.
    Delete,
}

impl ArchiveFate {
    fn is_retain(&self) -> bool {
        *self == Self::Retain
    }
}

/// Whether a last backup is taken before PostgreSQL stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FinalBackup {
    /// None is taken.
    None,
    /// One is tried five times at most. The database is deleted in any case.
    BestEffort,
    /// The database is not deleted before one is complete.
    Required,
}

/// Which backups are kept: those that every given field asks for. The newest one always is. Backups of a timeline that was abandoned do not
/// count, and go when they are older than the oldest kept one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRetention {
    /// At least so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_backups: Option<u32>,
    /// Those with which the database can be recovered to any time of the last so many days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_days: Option<u32>,
    /// Names of full backups or snapshots in the store that are kept beside those, with the WAL that they need to be consistent: such a
    /// backup can be recovered to its own end (`target: {immediate: true}`), also long after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub hold: Vec<String>,
    /// Delete nothing; `status.backup.catalogue.removal` says what would be deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// Makes a DatabaseBackup at each of its times. One that was missed is caught up once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSchedule {
    /// Its name; the names of its DatabaseBackups are the database's, this and the time.
    pub name: String,
    /// The times, as in a crontab: minute, hour, day of the month, month, day of the week, such as `0 3 * * *`.
    pub schedule: String,
    /// Time zone of the times, such as `Europe/Berlin`; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Take none until this is false again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Take the first one at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immediate: bool,
    /// What its backups are.
    #[serde(default)]
    pub kind: BackupKind,
    /// Whose files its backups have.
    #[serde(default)]
    pub source: BackupSource,
}

/// A Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    pub name: String,
}

/// The nodes on which the instances may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingSpec {
    /// Node and pod affinity, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Tolerations, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub node_selector: BTreeMap<String, String>,
    /// How to spread the instances, as in a pod. If absent, a soft spread over hosts and zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// PriorityClass of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// The instances' ServiceAccount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountSpec {
    /// Labels and annotations of the ServiceAccount (such as those of a cloud's workload identity).
    #[serde(default)]
    pub metadata: MetadataTemplate,
}

/// The instances' pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodsSpec {
    /// Labels and annotations of the pods.
    #[serde(default)]
    pub metadata: MetadataTemplate,
}

/// The Services that clients use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicesSpec {
    /// Service `<name>-rw`, which leads to the primary.
    #[serde(default)]
    pub read_write: ServiceTemplate,
    /// Service `<name>-ro`, which leads to the standbys.
    #[serde(default)]
    pub read_only: ServiceTemplate,
    /// Service `<name>-r`, which leads to all instances.
    #[serde(default)]
    pub read: ServiceTemplate,
}

/// What a Service for clients is to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTemplate {
    /// From where the Service can be reached.
    #[serde(default, rename = "type")]
    pub kind: ServiceType,
    /// Class of the load balancer, with the type `LoadBalancer`; the cluster's default one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
    /// Ranges of addresses (CIDR) from which the load balancer lets clients in, with the type `LoadBalancer`; all if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub load_balancer_source_ranges: Vec<String>,
    /// Labels and annotations of the Service.
    #[serde(default)]
    pub metadata: MetadataTemplate,
}

/// From where a Service can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// From inside the cluster.
    #[default]
    ClusterIP,
    /// Also by a port of each node.
    NodePort,
    /// Also by a load balancer outside the cluster.
    LoadBalancer,
}

/// Labels and annotations for objects that the operator makes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetadataTemplate {
    /// Additional labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub labels: BTreeMap<String, String>,
    /// Additional annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub annotations: BTreeMap<String, String>,
}

/// Who may connect to the instances' pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicySpec {
    /// Whether the operator keeps a NetworkPolicy for the instances. With `Managed` only the instances reach the peer port (8433).
    #[serde(default)]
    pub mode: NetworkPolicyMode,
    /// Clients of PostgreSQL, as in `ingress.from` of a NetworkPolicy: everybody if absent, only the instances if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<NetworkPolicyPeer>>,
    /// Readers of the metrics (port 8080), as in `ingress.from` of a NetworkPolicy: pods of the namespace `monitoring` if
    /// absent, nobody if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<Vec<NetworkPolicyPeer>>,
}

/// Whether the operator keeps a NetworkPolicy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkPolicyMode {
    /// The operator makes none; you may make one yourself.
    #[default]
    Off,
    /// The operator makes a NetworkPolicy with the database's name, and repairs it.
    Managed,
}

impl Default for PostgresSpec {
    fn default() -> Self {
        Self {
            image: None,
            major_version: default_major_version(),
            parameters: BTreeMap::new(),
            port: default_port(),
            shared_preload_libraries: Vec::new(),
            hba: Vec::new(),
            image_pull_policy: ImagePullPolicy::default(),
            image_pull_secrets: Vec::new(),
        }
    }
}

impl Default for InitdbSpec {
    fn default() -> Self {
        Self {
            database: default_database(),
            owner: None,
            password_secret_ref: None,
            data_checksums: true,
            locale: default_locale(),
            wal_segment_size: None,
            post_init_application_sql: Vec::new(),
        }
    }
}

fn default_replicas() -> i32 {
    3
}
fn default_major_version() -> u16 {
    17
}
fn default_port() -> u16 {
    5432
}
fn default_database() -> String {
    "app".to_owned()
}
fn default_key() -> String {
    "password".to_owned()
}
fn default_locale() -> String {
    "C.UTF-8".to_owned()
}
fn default_true() -> bool {
    true
}
