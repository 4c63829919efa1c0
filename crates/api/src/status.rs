//! What the operator reports about a database: to people, and to its agents.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::backup::{BackupKind, BackupSource, BackupTask, SnapshotProgress, StoredBackup};
use crate::durability::WantedDurability;
use crate::operation::{DiscardQuarantined, Recover, Request};
use crate::spec::RecoverySource;
pub use crate::waiting::{LateObject, WaitActor, WaitReason, WaitingStatus};
use crate::{Phase, moment};

/// What the operator observes, decides and promises. Only the operator writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusteredDatabaseStatus {
    /// State of the database; for people only, no program may rely on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What the operator does within the phase, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What the next step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingStatus>,
    /// Why the phase is `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many instances exist.
    #[serde(default)]
    pub replicas: i32,
    /// How many instances are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Ready and wanted instances, such as `3/3`.
    #[serde(default, rename = "readySummary", skip_serializing_if = "String::is_empty")]
    pub ready: String,
    /// Label selector of the instances' pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// Pod of the instance that holds the lease and serves writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_primary: Option<String>,
    /// PostgreSQL timeline of the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// The epoch of the Lease, a counter that never falls; each take of the lease raises it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Version of the running PostgreSQL, such as `17.6`.
    #[serde(default, rename = "postgresVersion", skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// System identifier of the data; recorded once, never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_identifier: Option<String>,
    /// What is guaranteed at the moment about acknowledged writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityStatus>,
    /// The Secret with all that an application needs to connect, as the Service Binding specification has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// The certificates in Secrets: that of the database's authority, and that which all agents share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub certificates: Vec<CertificateStatus>,
    /// The archive of WAL, if `spec.backup` asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupStatus>,
    /// Steps of the deletion that are over, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletion: Vec<DeletionOutcome>,
    /// Conditions, each computed only from what is observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The instances.
    #[serde(
        default,
        rename = "instances",
        skip_serializing_if = "BTreeMap::is_empty",
        with = "by_name"
    )]
    #[schemars(
        with = "Vec<InstanceStatus>",
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub members: BTreeMap<String, MemberStatus>,
    /// The last 20 changes of phase, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Transition>,
    /// What the operator asks of its agents. `bootstrap` and `restart` name a UID, and only the agent with that UID acts.
    #[serde(default)]
    pub intent: Intent,
    /// What the operator must remember because it cannot be observed again.
    #[serde(default)]
    pub memo: Memo,
}

/// A step of a deletion that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionOutcome {
    /// `FinalBackup`, `Archive`, `Stopped`, `PodsGone` or `Volumes`.
    pub step: String,
    /// What came of it.
    pub outcome: String,
    /// When it was over.
    #[serde(deserialize_with = "moment::deserialize")]
    pub time: DateTime<Utc>,
}

/// A certificate, and who renews it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// `authority` or `agents`.
    pub name: String,
    /// When it ends.
    #[serde(deserialize_with = "moment::deserialize")]
    pub not_after: DateTime<Utc>,
    /// When the operator renews it; absent if nobody does.
    #[serde(
        default,
        deserialize_with = "moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub renewal_time: Option<DateTime<Utc>>,
    /// Of an authority that another one is replacing: how far that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationStatus>,
}

/// How far the rotation of an authority is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotationStatus {
    /// Its state.
    pub state: RotationState,
    /// What it waits for, such as an instance that cannot say that it trusts the new authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The states of a rotation, in their order. `Stable` is none of them: then there is one authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RotationState {
    /// All that verify certificates are being made to trust the next authority.
    Distribute,
    /// They do. Applications, which cannot say so, are given time.
    Overlap,
    /// The next authority has taken the place of the former, and everything is issued anew. Both are trusted.
    Issue,
    /// Everything is. Applications with certificates of their own are given time to read theirs.
    Retire,
}

/// A Secret that an application is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Name of the Secret, in the namespace of the database.
    pub name: String,
}

/// What is known of the archive of WAL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// The archive of WAL.
    #[serde(default)]
    pub archive: ArchiveStatus,
    /// The backup that is taken, or was taken last. While files are copied this is brought up to date once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<BackupTask>,
    /// The last backup that was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<StoredBackup>,
    /// When a schedule takes the next one.
    #[serde(
        default,
        deserialize_with = "moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub next_backup_time: Option<DateTime<Utc>>,
    /// The backups in the store, as the primary has seen them last: after each backup, when the retention changes, and each hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<BackupCatalogue>,
    /// The last drill (`spec.backup.drill`) that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<DrillResult>,
}

/// How a drill ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrillResult {
    /// Name of the ClusteredDatabase that was made and removed again.
    pub name: String,
    /// It became Ready.
    pub succeeded: bool,
    /// When it began.
    #[serde(deserialize_with = "moment::deserialize")]
    pub start_time: DateTime<Utc>,
    /// When it was Ready, or had failed.
    #[serde(deserialize_with = "moment::deserialize")]
    pub end_time: DateTime<Utc>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Bytes of the database's files in the backup; absent if that was for the agent to choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Up to where WAL was archived when it began. If it succeeded, at least that was recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_up_to: Option<ArchivedUpTo>,
    /// When the last drill began that succeeded: what was archived then can be recovered.
    #[serde(
        default,
        deserialize_with = "moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_success_time: Option<DateTime<Utc>>,
    /// Name of the backup that the last drill recovered that succeeded. No retention removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven_backup: Option<String>,
}

/// A line of the archive, by its number. There is one, unless a segment had a name that was taken by other content: nothing is archived in
/// that line any more, and WAL goes on in the next one, which needs a backup of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ArchiveLine(pub u32);

impl Default for ArchiveLine {
    fn default() -> Self {
        Self(1)
    }
}

impl ArchiveLine {
    /// True for the one with which an archive begins.
    pub fn is_first(&self) -> bool {
        *self == Self::default()
    }

    /// The one after it.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The backups in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupCatalogue {
    /// The line of the archive that they are in.
    #[serde(default, skip_serializing_if = "ArchiveLine::is_first")]
    pub line: ArchiveLine,
    /// How many complete ones there are.
    pub backups: u32,
    /// Bytes of these backups in the store, without the WAL.
    pub stored_bytes: u64,
    /// The earliest time that the database can be recovered to; absent without a backup.
    #[serde(
        default,
        deserialize_with = "moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub first_recoverable_time: Option<DateTime<Utc>>,
    /// What the retention does not keep and is still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<BackupRemoval>,
    /// VolumeSnapshots of this database whose backups are removed from the store, or can never become complete. At most 16 at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_snapshots: Vec<String>,
    /// Why it could not be brought up to date, in the store's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// What a retention does not keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRemoval {
    /// How many complete backups.
    pub backups: u32,
    /// Bytes of these backups in the store.
    pub stored_bytes: u64,
    /// How many segments of WAL.
    pub wal_segments: u64,
    /// Name of the oldest backup that stays.
    pub oldest_kept: String,
}

/// The last run of `spec.backup.drill`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrillRun {
    /// Its time.
    #[serde(deserialize_with = "moment::deserialize")]
    pub time: DateTime<Utc>,
    /// Name of the ClusteredDatabase, until that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The backup that it recovers; absent if that is for the agent to choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Bytes of the database's files in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Up to where WAL is archived when it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_up_to: Option<ArchivedUpTo>,
    /// When it was begun.
    #[serde(
        default,
        deserialize_with = "moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub begun_at: Option<DateTime<Utc>>,
    /// How it ended is in `status.backup.drill`, and the database goes.
    #[serde(default)]
    pub ended: bool,
}

/// The last backup before a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinalBackupMemo {
    /// Name of its DatabaseBackup. Each attempt has one of its own.
    pub name: String,
    /// How many attempts have failed.
    #[serde(default)]
    pub failures: u32,
    /// When the attempt of this name was seen to have failed; absent before that.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub failure_time: Option<DateTime<Utc>>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The last run of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledRun {
    /// Its time.
    #[serde(deserialize_with = "moment::deserialize")]
    pub time: DateTime<Utc>,
    /// Name of the DatabaseBackup that is being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub making: Option<String>,
    /// How many times before it were missed, and are caught up by this run; at most 1000 are counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed: u32,
    /// The line of the archive at that time.
    #[serde(default, skip_serializing_if = "ArchiveLine::is_first")]
    pub line: ArchiveLine,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// How far the archive of WAL is complete. Under writes it is brought up to date once a minute; the Lease has the present state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveStatus {
    /// The line that WAL is archived in.
    #[serde(default, skip_serializing_if = "ArchiveLine::is_first")]
    pub line: ArchiveLine,
    /// Whether the store itself refuses to write an object twice; absent until that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<ArchiveFence>,
    /// All WAL before this position is archived; absent until something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_up_to: Option<ArchivedUpTo>,
    /// How many bytes of complete WAL wait for the archive.
    #[serde(default)]
    pub waiting_bytes: u64,
    /// How many segments were given up lest a volume fill, since the primary's agent started. The archive has a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up_segments: Option<u64>,
    /// Why nothing is archived at present, in the store's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// When WAL that waits will have used up its room on the primary's volume, if it goes on growing as in the last ten minutes. Segments
    /// are given up then, and the archive has a gap. Absent if it does not grow, or if that is more than a day ahead.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub full_time: Option<DateTime<Utc>>,
}

/// Whether a store refuses to write an object twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ArchiveFence {
    /// It does, however many write at once: nobody can replace what is archived.
    Enforced,
    /// It does not. Each write looks first whether the object is there, and reads it back.
    BestEffort,
}

/// A position in the archived WAL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchivedUpTo {
    /// PostgreSQL timeline.
    pub timeline: u32,
    /// Position in the WAL, such as `16/B3000000`.
    pub lsn: String,
    /// When the operator saw that.
    #[serde(deserialize_with = "moment::deserialize")]
    pub time: DateTime<Utc>,
}

/// Why a database cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// The kind of fault.
    pub reason: FailureReason,
    /// What is wrong and what to change.
    pub message: String,
}

/// Faults that do not go away by waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailureReason {
    /// The named StorageClass does not exist, or there is no default one.
    StorageClassNotFound,
    /// The spec breaks a rule that the API server could not check.
    InvalidSpec,
    /// The image cannot be pulled or started.
    ImageCannotRun,
    /// A resource quota refuses an object.
    QuotaExceeded,
    /// An object that belongs to somebody else has the name of one that the operator needs.
    ForeignObject,
    /// What `spec.bootstrap.volumes` asks for is not there, or does not fit the spec.
    NothingToAdopt,
    /// The first database could not be made (for instance because of an error in `postInitApplicationSQL`).
    BootstrapFailed,
    /// An object is gone that nobody can make again with the same content: the authority, the application's credentials or
    /// the Lease.
    PartLost,
}

/// What is guaranteed about acknowledged writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DurabilityStatus {
    /// The mode in force.
    pub mode: DurabilityMode,
    /// For how many standbys commits wait.
    #[serde(default)]
    pub synchronous_standbys: u32,
    /// How many bytes of WAL with acknowledged commits can be lost at most by as many failures as the mode allows for, without
    /// the user's consent. Absent if there is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_loss_bytes: Option<u64>,
    /// How long writes stop, as a rule, when the primary is lost now. Absent if that is not known: while no primary serves, or
    /// with one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_recovery_milliseconds: Option<u64>,
    /// What can be lost when the primary is lost, in words.
    pub loss_bound: String,
    /// How long writes stop when the primary is lost, in words.
    pub recovery_bound: String,
}

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DurabilityMode {
    /// When it is on the primary's disk.
    #[default]
    Async,
    /// When it is also on the disks of `synchronousStandbys` standbys, or of fewer while fewer are there.
    Preferred,
    /// As `Preferred`, but with fewer standbys commits wait.
    Required,
}

/// What the operator knows of one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// UID of its pod.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// UID of its data claim.
    #[serde(default, rename = "claimUID", skip_serializing_if = "Option::is_none")]
    pub claim_uid: Option<String>,
    /// Identity of the data on its volume; also its replication role and slot.
    #[serde(default, rename = "memberID", skip_serializing_if = "Option::is_none")]
    pub member_id: Option<String>,
    /// Its present role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// Whether it serves in its role.
    #[serde(default)]
    pub ready: bool,
    /// Its replication certificate (PEM), signed by the cluster's authority for the key that its agent made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The public key that the certificate certifies (SubjectPublicKeyInfo, DER, base64).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified_key: Option<String>,
    /// Version of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
}

/// One instance, in the list of all.
#[derive(Serialize, Deserialize, JsonSchema)]
struct InstanceStatus {
    /// Name of its pod.
    name: String,
    #[serde(flatten)]
    status: MemberStatus,
}

/// A map as a list, whose entries have their keys as names.
mod by_name {
    use super::{BTreeMap, Deserialize, Deserializer, InstanceStatus, MemberStatus, Serializer};

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<String, MemberStatus>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map.iter().map(|(name, status)| InstanceStatus {
            name: name.clone(),
            status: status.clone(),
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, MemberStatus>, D::Error> {
        let list: Vec<InstanceStatus> = Vec::deserialize(from)?;
        Ok(list
            .into_iter()
            .map(|instance| (instance.name, instance.status))
            .collect())
    }
}

/// Role of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MemberRole {
    /// Holds the lease and accepts writes.
    Primary,
    /// Follows the primary.
    Standby,
}

/// One change of phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transition {
    /// The phase before; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Phase>,
    /// The phase after.
    pub to: Phase,
    /// Why.
    #[serde(rename = "message")]
    pub because: String,
    /// When.
    #[serde(rename = "time", deserialize_with = "moment::deserialize")]
    pub at: DateTime<Utc>,
}

/// What the operator asks of its agents. `bootstrap` and `restart` name a UID, and only the agent with that UID acts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// The data claim on which the first database may be made. It moves to another claim only if that claim is gone and no
    /// system identifier was ever recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapGrant>,
    /// The instance that may now restart PostgreSQL in place, to take up changed parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPermit>,
    /// The wanted primary: the holder hands the lease over to this pod once it streams and has caught up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// The switchover is urgent (the present primary's node is being drained): the holder does not wait until that pod has
    /// replayed much WAL.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub urgent: bool,
    /// The epoch of the Lease in which the user accepts the loss of what missing instances have: in this one, and in no other, the
    /// others may elect a primary without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_loss: Option<u64>,
    /// Quarantined data that the user has ordered to be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard: Option<DiscardQuarantined>,
    /// What the first database of a new set of volumes is made from: this database's own backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryOrder>,
    /// A recovery in place that is asked for: the primary's agent looks whether the store has all that it needs, and tells the Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_check: Option<RecoveryCheck>,
    /// UID of the DatabaseBackup that is to be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Whose files that backup is to copy.
    #[serde(default, skip_serializing_if = "BackupSource::is_default")]
    pub backup_source: BackupSource,
    /// What that backup is.
    #[serde(default, skip_serializing_if = "BackupKind::is_default")]
    pub backup_kind: BackupKind,
    /// How far the VolumeSnapshot of that backup is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotProgress>,
    /// The primary's agent deletes all backups and WAL in the store: the database is being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete_archive: bool,
    /// All instances stop cleanly (standbys last) and stay stopped: the database is being deleted, or is to hibernate.
    #[serde(default)]
    pub stop: bool,
}

/// The grant to make the first database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapGrant {
    /// The pod whose agent runs initdb.
    pub pod: String,
    /// UID of the data claim that the database is made on.
    #[serde(rename = "claimUID")]
    pub claim_uid: String,
}

/// A recovery in place, for the agent that has the bootstrap grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryOrder {
    /// What the operation asks for.
    #[serde(flatten)]
    pub recover: Recover,
    /// The epoch that the Lease had when the new volumes came: the first database on them is made in no later one.
    pub epoch: u64,
}

/// A recovery in place that may come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryCheck {
    /// UID of the operation.
    pub uid: String,
    /// What it asks for.
    #[serde(flatten)]
    pub recover: Recover,
}

/// Which set of volumes the instances run on. A recovery in place makes another one. Set 0 has the claims `data-…` and `wal-…`, set 1
/// `data1-…` and `wal1-…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSets {
    /// The one that instances run on.
    pub current: u32,
    /// The one from before the last change, which is kept until that is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<u32>,
    /// When it is given up without that.
    #[serde(
        default,
        deserialize_with = "moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub keep_until: Option<DateTime<Utc>>,
    /// The one that is to be used instead of the present one: instances stop first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
    /// What that one is recovered to, if it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover: Option<Recover>,
    /// One whose claims are being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded: Option<u32>,
    /// UID of the operation that the last change was for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Why the new set could not be recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The permit to restart PostgreSQL in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartPermit {
    /// The pod.
    pub pod: String,
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Hash of the settings for which it restarts (`MemberReport::settings` of crate `machine`).
    pub settings: String,
}

/// What the operator must remember because it cannot be observed again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Memo {
    /// When the current phase began.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub phase_since: Option<DateTime<Utc>>,
    /// UID of the deleted ClusteredDatabase whose volumes this one takes over (`spec.bootstrap.volumes`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<String>,
    /// Where the backups are of the ClusteredDatabase that this one is recovered from (`spec.bootstrap.recovery.from.clusterRef`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_source: Option<RecoverySource>,
    /// The Lease was made; a missing Lease is from now on a fault and never made again silently.
    #[serde(default)]
    pub lease_made: bool,
    /// Objects that were made once and must not be made again with other content (Secrets), by name, with their UID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub made: BTreeMap<String, String>,
    /// The switchover that was asked for last, until the primary is where it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover: Option<SwitchoverMemo>,
    /// What an operation asked for last, and what came of it: the same request is not acted upon again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<NotedRequest>,
    /// UID of the operation that asked last for a restart of all instances: pods are made with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_by: Option<String>,
    /// When the present permit to restart (`intent.restart`) was given.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub restart_since: Option<DateTime<Utc>>,
    /// The epoch in which all instances stopped for `spec.hibernated`. It stays after waking until a primary of a later epoch
    /// serves: until then the database is not failing over, because it was stopped on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_down: Option<u64>,
    /// Pods that have, or were about to get, a WAL volume: the data on their data volumes may need it. While this list has a
    /// pod, `spec.storage.wal` cannot be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wal_volumes: Vec<String>,
    /// Which volumes instances run on; absent until the first recovery in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumeSets>,
    /// Sizes that `spec.storage` may go back to, although volumes cannot shrink: Kubernetes refuses a larger size for all
    /// claims. Absent if nothing is refused, or if some claim has the size of the spec.
    #[serde(default, skip_serializing_if = "GrantedStorage::is_empty")]
    pub granted: GrantedStorage,
    /// What commits wait for, as `spec.durability` last asked for it, or as the default was when the database was made.
    /// A field that `spec.durability` leaves out stays as it is here, whatever `spec.replicas` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<WantedDurability>,
    /// Which image instances run. The operator's default stays what it was here, until `spec.postgres` or an
    /// operation (`takeImage`) changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ChosenImage>,
    /// Objects that are waited for at the same time, each since when: one that comes and goes does not postpone the
    /// deadline of another.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::waiting::known_late"
    )]
    pub late: Vec<LateObject>,
    /// The last run of each of `spec.backup.schedules`, by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub schedules: BTreeMap<String, ScheduledRun>,
    /// The last run of `spec.backup.drill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<DrillRun>,
    /// The last backup before the deletion (`spec.backup.onDelete`), once it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_backup: Option<FinalBackupMemo>,
    /// The VolumeSnapshots that were made of this database's volumes and not deleted again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotMemo>,
}

/// A VolumeSnapshot of this database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotMemo {
    /// Its name.
    pub name: String,
    /// UID of the DatabaseBackup that it was made for.
    pub uid: String,
    /// The primary's agent was told that it is ready, so that a complete backup may have it. Before that it has none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
}

/// An image with PostgreSQL, and how it was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChosenImage {
    /// The image.
    pub image: String,
    /// `spec.postgres.majorVersion` then.
    pub major_version: u16,
    /// It was the operator's default then, since `spec.postgres.image` named none.
    #[serde(default)]
    pub by_default: bool,
}

/// The largest size that a claim has got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantedStorage {
    /// Of the data volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Of the WAL volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal: Option<String>,
}

impl Memo {
    /// The set of volumes that instances run on.
    pub fn volume_set(&self) -> u32 {
        self.volumes.as_ref().map_or(0, |volumes| volumes.current)
    }
}

impl GrantedStorage {
    /// Nothing is refused.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What an operation asked for, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotedRequest {
    /// The request.
    #[serde(flatten)]
    pub request: Request,
    /// When it was seen first.
    #[serde(deserialize_with = "moment::deserialize")]
    pub since: DateTime<Utc>,
    /// What came of it; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RequestOutcome>,
    /// The outcome in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What came of what an operation asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RequestOutcome {
    /// It is done.
    Done,
    /// It could not be done, or not in time.
    GivenUp,
}

/// A switchover that was asked for (`intent.primary`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SwitchoverMemo {
    /// The pod that was to take over.
    pub target: String,
    /// When it was asked for.
    #[serde(deserialize_with = "moment::deserialize")]
    pub since: DateTime<Utc>,
    /// How many times it was asked for without success, this time included.
    pub attempts: u32,
    /// When it was given up; absent while it is under way.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub ended: Option<DateTime<Utc>>,
}
