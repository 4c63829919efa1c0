//! The `DatabaseBackup` resource (short name `dbb`): one backup of a ClusteredDatabase, into the store that its `spec.backup` names.

use std::fmt;

use chrono::{DateTime, Utc};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::crd::{SCHEMA, drop_what_means_nothing_to_a_server, each_schema, field_of, set};
use crate::moment;
use crate::operation::{ClusterReference, LONGEST_NAME, OperationStatus};

/// One backup of a ClusteredDatabase. It can be recovered to any time between its end and the end of the archived WAL.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha2",
    kind = "DatabaseBackup",
    plural = "databasebackups",
    shortname = "dbb",
    namespaced,
    derive = "PartialEq",
    doc = "One backup of a ClusteredDatabase. It can be recovered to any time between its end and the end of the archived WAL.",
    status = "DatabaseBackupStatus",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterRef.name"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Progress","type":"string","jsonPath":".status.progress"}"#,
    printcolumn = r#"{"name":"Backup","type":"string","jsonPath":".status.backup.name"}"#,
    printcolumn = r#"{"name":"Kind","type":"string","priority":1,"jsonPath":".spec.kind"}"#,
    printcolumn = r#"{"name":"Source","type":"string","priority":1,"jsonPath":".status.backup.source.member"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseBackupSpec {
    /// The ClusteredDatabase in this namespace that is backed up.
    pub cluster_ref: ClusterReference,
    /// What is made.
    #[serde(default)]
    pub kind: BackupKind,
    /// Whose files it has.
    #[serde(default)]
    pub source: BackupSource,
}

/// What a backup is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackupKind {
    /// All files, copied into the store.
    #[default]
    Full,
    /// A VolumeSnapshot of an instance's data volume; what else is needed to use it is in the store. Most storage makes one in seconds. It is
    /// as safe as the storage, and `spec.backup.encryption` does not encrypt it.
    Snapshot,
}

impl BackupKind {
    /// Whether it is what a spec that names none asks for.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Whose files a backup copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackupSource {
    /// Those of a standby that streams and is near the primary. Without such a standby, or after two attempts that did not end well,
    /// those of the primary.
    #[default]
    PreferStandby,
    /// Those of the primary.
    Primary,
}

impl BackupSource {
    /// Whether it is what a spec that names none asks for.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether this is the name in the store of a backup of kind [`BackupKind::Snapshot`].
pub fn is_snapshot(backup: &str) -> bool {
    backup.contains("-S-")
}

/// Name of the VolumeSnapshot that has the files of this backup of the database with this name.
pub fn snapshot_name(database: &str, backup: &str) -> String {
    format!("{database}-{}", backup.to_ascii_lowercase())
}

/// What is known of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseBackupStatus {
    /// How far it is, as of an operation. It is never `Cancelled`: to take a backup back, delete it before it has ended.
    #[serde(flatten)]
    pub operation: OperationStatus,
    /// How much is copied, such as `63% of 2 GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// The backup in the store, once it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<StoredBackup>,
}

/// A complete backup in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoredBackup {
    /// Its name in the store, such as `20261124T230501Z-F-7f3a`.
    pub name: String,
    /// PostgreSQL timeline on which it was taken.
    pub timeline: u32,
    /// Recovery begins at this position in the WAL, such as `16/B3000028`.
    pub start_lsn: String,
    /// Recovery must lead beyond this position before the data is consistent.
    pub stop_lsn: String,
    /// When it began.
    #[serde(deserialize_with = "moment::deserialize")]
    pub start_time: DateTime<Utc>,
    /// When it ended: the earliest time that it can be recovered to.
    #[serde(deserialize_with = "moment::deserialize")]
    pub stop_time: DateTime<Utc>,
    /// Bytes of the database's files.
    pub data_bytes: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// Whose files were copied. Absent in backups of earlier versions, which copied the primary's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<BackupOrigin>,
    /// Pages of its data have wrong checksums. It was taken all the same, since no member has better files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged_pages: bool,
    /// Name of the VolumeSnapshot that has its files, if the store does not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// The instance whose files a backup copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupOrigin {
    /// Name of the instance, such as `shop-1`.
    pub member: String,
    /// Its role at that time.
    pub role: BackupRole,
}

/// The role of an instance whose files a backup copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackupRole {
    /// It accepted writes.
    Primary,
    /// It streamed from the primary.
    Standby,
}

impl fmt::Display for BackupOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            BackupRole::Primary => "primary",
            BackupRole::Standby => "standby",
        };
        write!(f, "{} ({role})", self.member)
    }
}

/// A backup that is taken, or was taken last, as the primary's agent tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupTask {
    /// UID of the DatabaseBackup.
    pub uid: String,
    /// The number of this attempt, from 1. The primary begins the next one if the source fails, or if it has just become the primary.
    #[serde(default = "first_attempt")]
    pub attempt: u32,
    /// Whose files this attempt copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<BackupOrigin>,
    /// How far it is.
    pub state: BackupState,
    /// Bytes copied so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_bytes: Option<u64>,
    /// Bytes to be copied, as estimated at the begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Why it failed, or what keeps it from going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The VolumeSnapshot that the operator is to make of the source's data volume: PostgreSQL is in backup mode, or was, and it is not
    /// ready yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// PostgreSQL has found data pages with wrong checksums in the source's files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged_pages: bool,
    /// The backup, once it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<StoredBackup>,
}

fn first_attempt() -> u32 {
    1
}

/// How far a backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackupState {
    /// The database's files are being copied, by PostgreSQL or by the storage.
    Copying,
    /// The files are in the store, and the WAL that belongs to them is not there yet.
    WaitingForWal,
    /// It is complete.
    Completed,
    /// It cannot be taken.
    Failed,
}

impl BackupState {
    /// Whether nothing follows it.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Copying | Self::WaitingForWal => false,
            Self::Completed | Self::Failed => true,
        }
    }
}

/// How far a VolumeSnapshot is that belongs to a backup, as the operator tells the agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotProgress {
    /// Name of the VolumeSnapshot.
    pub name: String,
    /// How far it is.
    pub state: SnapshotState,
    /// What the storage says is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How far a VolumeSnapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum SnapshotState {
    /// The storage has not taken it yet.
    Asked,
    /// It has the content of that moment: PostgreSQL may leave backup mode.
    Taken,
    /// Volumes can be made from it.
    Ready,
    /// It cannot be made.
    Failed,
}

const UNCHANGED: &str = "a backup cannot be changed: make another one";

/// What is wrong with a spec: the rules that the API server checks, checked again.
pub fn refusal(spec: &DatabaseBackupSpec) -> Option<&'static str> {
    let name = &spec.cluster_ref.name;
    (name.is_empty() || name.len() > LONGEST_NAME).then_some("clusterRef.name must have 1 to 63 characters")
}

/// The CustomResourceDefinition of `DatabaseBackup`.
///
/// # Panics
/// If the types in this file do not make a definition, which the tests exclude.
pub fn crd() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(DatabaseBackup::crd()).expect("a definition is JSON");
    let schema = definition.pointer_mut(SCHEMA).expect("the definition has a schema");
    each_schema(schema, &mut drop_what_means_nothing_to_a_server);
    crate::values::explain::<DatabaseBackup>(schema);
    set(field_of(schema, "spec.clusterRef.name"), "minLength", 1.into());
    set(
        field_of(schema, "spec.clusterRef.name"),
        "maxLength",
        LONGEST_NAME.into(),
    );
    let rules = json!([{"rule": "self == oldSelf", "message": UNCHANGED}]);
    set(field_of(schema, "spec"), "x-kubernetes-validations", rules);
    serde_json::from_value(definition).expect("still a definition")
}

/// [`crd`] as the YAML that is checked in as `manifests/crd/databasebackups.yaml`.
///
/// # Panics
/// As [`crd`].
pub fn crd_yaml() -> String {
    let yaml = serde_saphyr::to_string(&crd()).expect("a definition is YAML");
    format!("# Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again.\n{yaml}")
}
