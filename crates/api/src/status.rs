//! What the operator says about a database: to people, and to its agents.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Phase, moment};

/// What is observed, decided and promised. Written by the operator alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusteredDatabaseStatus {
    /// Where the database stands; a hint for people, never an authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What is being done within the phase, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What the next step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingStatus>,
    /// Why the phase is `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many instances exist.
    #[serde(default)]
    pub replicas: i32,
    /// How many instances are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Ready and wanted instances, such as `3/3`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
    /// How many times the lease has changed hands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Version of the running PostgreSQL, such as `17.6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// System identifier of the data; recorded once, never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_identifier: Option<String>,
    /// What is promised right now about acknowledged writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityStatus>,
    /// Conditions, each computed from what is observed alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The instances, by pod name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<String, MemberStatus>,
    /// The last 20 changes of phase, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Transition>,
    /// What the operator allows its agents to do now.
    #[serde(default)]
    pub intent: Intent,
    /// What the operator must remember because it cannot be observed again.
    #[serde(default)]
    pub memo: Memo,
}

/// What the next step waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingStatus {
    /// The unmet condition, naming the object it is about.
    #[serde(rename = "for")]
    pub what: String,
    /// Since when.
    #[serde(deserialize_with = "moment::deserialize")]
    pub since: DateTime<Utc>,
    /// Who or what can end the wait.
    pub who_can_end_it: String,
    /// When the operator does something else; or, where only others can end the wait, when the condition `Progressing`
    /// turns `False` with reason `DeadlineExceeded`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub deadline: Option<DateTime<Utc>>,
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
    /// An object with a name that we need belongs to somebody else.
    ForeignObject,
    /// Making the first database failed (such as an error in `postInitSql`).
    BootstrapFailed,
    /// An object that cannot be made again with the same content (the authority, the application's credentials, the
    /// Lease) is gone.
    PartLost,
}

/// What is promised about acknowledged writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DurabilityStatus {
    /// The mode in force.
    pub mode: DurabilityMode,
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
    /// When it is on the disks of the primary and of as many standbys as are wanted, or of those that there are.
    Preferred,
    /// When it is on the disks of the primary and of as many standbys as are wanted; without them, commits wait.
    Required,
}

/// One instance, as far as the operator knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// UID of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// UID of its data claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_uid: Option<String>,
    /// Identity of the data on its volume; also its replication role and slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_id: Option<String>,
    /// What it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// Whether it serves in its role.
    #[serde(default)]
    pub ready: bool,
    /// Its replication certificate (PEM), signed by the cluster's authority for the key that its agent made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The public key that the certificate speaks for (SubjectPublicKeyInfo, DER, base64).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified_key: Option<String>,
    /// Version of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
}

/// What an instance is.
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
    pub because: String,
    /// When.
    #[serde(deserialize_with = "moment::deserialize")]
    pub at: DateTime<Utc>,
}

/// What the operator allows its agents to do. An agent acts on it only if the named UIDs are its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// Who may make the first database. Given to one data claim, and moved only if that claim is gone and no system
    /// identifier was ever recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapGrant>,
    /// Which instance may restart PostgreSQL in place now, to take up changed parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPermit>,
    /// Who is to be the primary: the holder hands the lease over to this pod once it streams and has caught up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Others wait for that (the present primary's node is being drained): it is not put off because that pod has much WAL to
    /// replay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub urgent: bool,
    /// All instances stop cleanly (standbys last) and stay stopped: the database is being deleted, or is to hibernate.
    #[serde(default)]
    pub stop: bool,
}

/// Leave to make the first database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapGrant {
    /// The pod whose agent runs initdb.
    pub pod: String,
    /// UID of the data claim that the database is made on.
    pub claim_uid: String,
}

/// Leave to restart PostgreSQL in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartPermit {
    /// The pod.
    pub pod: String,
    /// UID of the pod.
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
    /// The Lease was made; a missing Lease is from now on a fault and never made again silently.
    #[serde(default)]
    pub lease_made: bool,
    /// Objects that were made once and must not be made again with other content (Secrets), by name, with their UID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub made: BTreeMap<String, String>,
    /// Steps of the deletion that are done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletion_done: Vec<String>,
    /// The switchover that was asked for last, until the primary is where it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover: Option<SwitchoverMemo>,
    /// The switchover that an operation asked for last, and what came of it:
    /// the same request is not acted upon again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<SwitchoverRequest>,
    /// When the present leave to restart (`intent.restart`) was given.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub restart_since: Option<DateTime<Utc>>,
    /// All instances were told to stop for `spec.hibernated` while this epoch was the last, and need not any more; until a
    /// primary of a later epoch serves: it is not lost, it was put down on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_down: Option<u64>,
    /// Pods that have, or were about to get, a WAL volume: what is on their data volumes may need it. While one is named
    /// here `spec.storage.wal` cannot be taken away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wal_volumes: Vec<String>,
    /// Sizes that `spec.storage` may go back to, though volumes cannot shrink: no claim has got more, because Kubernetes
    /// refuses it. Absent where nothing is refused, or some claim has what the spec asks for.
    #[serde(default, skip_serializing_if = "GrantedStorage::is_empty")]
    pub granted: GrantedStorage,
    /// Which image instances run. The operator's default stays what it was here, until `spec.postgres` or an order
    /// (annotation `clustereddatabase.io/take-image`) changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ChosenImage>,
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

impl GrantedStorage {
    /// Nothing is refused.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A switchover that the user asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SwitchoverRequest {
    /// The annotation's value (its first 128 bytes).
    pub value: String,
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

/// What came of a switchover that the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RequestOutcome {
    /// The named instance is the primary.
    Done,
    /// It could not be, or did not take over in time.
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
