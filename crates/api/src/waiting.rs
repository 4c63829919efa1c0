//! What a database waits for, as data: a reason, the object that it is about, and the actor who can end the wait.
//!
//! Timers of the operator are keyed by reason and object. The texts beside them are for people, and may be reworded at any
//! time without moving a deadline.

use std::fmt;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::moment;

/// Who can end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
// Any name, for the API server: an operator must be able to write one that an older definition does not know.
#[schemars(with = "String")]
pub enum WaitActor {
    /// Whoever changes the resource: its spec, an annotation, or an object that belongs to it.
    User,
    /// The operator itself, after some time.
    Operator,
    /// The agents in the database's pods.
    Agents,
    /// Kubernetes: the API server, a controller, the scheduler, or a kubelet.
    Kubernetes,
    /// The driver or the provisioner of the volumes.
    Storage,
    /// People or programs outside of this database: the cluster's administrator, or the owner of another object.
    External,
}

impl WaitActor {
    /// As it stands in `status.waiting.actor`.
    pub const fn as_str(self) -> &'static str {
        match self {
            WaitActor::User => "User",
            WaitActor::Operator => "Operator",
            WaitActor::Agents => "Agents",
            WaitActor::Kubernetes => "Kubernetes",
            WaitActor::Storage => "Storage",
            WaitActor::External => "External",
        }
    }
}

impl fmt::Display for WaitActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Declares [`WaitReason`]: each reason with what it means, and who can usually end it.
macro_rules! reasons {
    ($($name:ident, $actor:ident, $meaning:literal;)*) => {
        /// What is waited for. Names are part of the interface: a reason may be added, and none gets another meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        // See `WaitActor`.
        #[schemars(with = "String")]
        pub enum WaitReason {
            $(#[doc = $meaning] $name,)*
        }

        impl WaitReason {
            /// All of them, in declaration order.
            pub const ALL: &[WaitReason] = &[$(WaitReason::$name,)*];

            /// As it stands in `status.waiting.reason`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(WaitReason::$name => stringify!($name),)*
                }
            }

            /// Who can end such a wait, unless the wait itself names another actor.
            pub const fn actor(self) -> WaitActor {
                match self {
                    $(WaitReason::$name => WaitActor::$actor,)*
                }
            }

            /// What it means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(WaitReason::$name => $meaning,)*
                }
            }
        }
    };
}

reasons! {
    Change, User, "Nothing is missing: the database waits for a change.";
    Unpause, User, "`spec.paused` is true.";
    WakeUp, User, "`spec.hibernated` is true.";
    Unfencing, User, "`spec.fenced` names instances that have to run.";
    FencedStop, Agents, "PostgreSQL has to stop in fenced instances.";
    CleanStop, Agents, "PostgreSQL has to stop cleanly in all instances.";
    FinalBackup, Agents, "The database is deleted once its last backup is complete.";
    FinalBackupRetry, Operator, "The last backup before the deletion failed and is tried again after a pause.";
    FinalBackupSource, User, "No instance runs that could take the last backup before the deletion.";
    ArchiveDeletion, Agents, "All backups and WAL in the store are being deleted, as the spec asks.";
    ArchiveDeletionConfirmation, User, "The deletion of all backups and WAL has to be confirmed, or no instance runs that could carry it out.";
    SupervisedUpdate, User, "The primary is the next to be updated, and `spec.primary.updatePolicy` is `Supervised`.";
    SpecCorrection, User, "The spec breaks a rule.";
    ObjectAcceptance, User, "The API server refuses an object as invalid; the spec has to change.";
    ObjectCorrection, User, "An object cannot be understood and has to be corrected.";
    ObjectRestoration, User, "An object that is made only once is lost or damaged and has to be restored.";
    ObjectReading, Kubernetes, "The API server has not answered yet, so that objects are unknown.";
    RequestRetry, Kubernetes, "A request to the API server failed and is tried again.";
    QuotaIncrease, External, "A quota refuses an object.";
    PermissionGrant, External, "The operator lacks a permission.";
    ForeignObjectRemoval, External, "An object with a name that is needed belongs to somebody else.";
    ForeignClaimRemoval, User, "A claim of the needed name was made for another database.";
    ResourceRemoval, Kubernetes, "The resource is about to be gone.";
    LeaseRewrite, Agents, "The primary has to write the lost Lease again.";
    RecoveryCheck, Agents, "The primary looks whether the store has all that a recovery in place needs.";
    RecoverySource, User, "The ClusteredDatabase to recover from is not there, or has no store.";
    FirstDatabase, Agents, "The first database is being made.";
    PodCreation, Kubernetes, "A pod does not exist yet.";
    PodRemoval, Kubernetes, "A pod is going away.";
    PodScheduling, Kubernetes, "A pod has no node.";
    ImageAvailability, Kubernetes, "A pod cannot run its image.";
    PodReadiness, Agents, "A pod is not ready.";
    StandbyJoining, Agents, "A standby does not stream from the primary yet.";
    CertificateSigning, Agents, "The key of a member cannot be signed.";
    PrimaryElection, Agents, "No primary serves, and the members elect one.";
    PrimaryStart, Agents, "The only instance holds the lease and does not serve yet.";
    VolumeRoom, User, "Volumes are full, so that no primary can serve.";
    HolderReturn, Agents, "The holder of the lease gets time to be ready again, before its pod is replaced.";
    PrimaryReturn, Agents, "A primary gets time to serve again, before pods of an older template are replaced.";
    OthersReadiness, Agents, "The other pods get time to be ready, before a pod with a revoked identity is replaced.";
    PodSettling, Agents, "A new pod has to stay ready for a while, before the next one is replaced.";
    OthersServing, Agents, "All others have to serve, before the next pod is replaced or resized.";
    InPlaceResize, Kubernetes, "A running pod is getting other cpu and memory.";
    SettingsAcceptance, User, "PostgreSQL refuses the settings.";
    SettingsReload, Agents, "A member has not taken up the settings yet.";
    PermittedRestart, Agents, "A member restarts PostgreSQL to take up settings.";
    DurabilityInForce, Agents, "Commits do not wait for as many standbys as `spec.durability` asks for.";
    DurabilityForScaleDown, Agents, "Commits still wait for standbys that are to be removed.";
    PrimaryForScaleDown, Agents, "A primary has to serve, before instances are removed.";
    RemainingMember, Agents, "An instance that stays has to serve, before one that serves is removed.";
    DataCopy, User, "The only copy of the data would be lost with a pod or a claim, so another one is needed first.";
    ClaimReplacement, User, "A claim was deleted while its pod uses it; it is made anew once the pod is replaced.";
    ClaimCreation, Operator, "A claim is about to be made.";
    ClaimRemoval, User, "A claim that cannot be used has to be deleted.";
    VolumeProvisioning, Storage, "A claim has no volume yet.";
    VolumeGrowth, Storage, "A volume is being made larger.";
    VolumeExpansion, External, "The StorageClass does not let volumes grow.";
    StorageClassCreation, External, "A StorageClass does not exist.";
    PrimaryTakeover, Agents, "A named instance is taking over as primary.";
    SwitchoverStart, Agents, "A requested switchover cannot begin yet.";
    SwitchoverRetry, Operator, "A switchover did not succeed and is tried again after a pause.";
    SwitchoverCandidate, Agents, "The primary has to move, and no standby is fit to take over.";
    NodeForPrimary, External, "The primary's node takes no pods, and no other instance has a node that does.";
}

impl WaitReason {
    /// The reason of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == name)
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the next step waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingStatus {
    /// What is waited for, in one word for programs. The words are listed below.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_reason")]
    pub reason: Option<WaitReason>,
    /// The object that is waited for, as kubectl takes it, such as `pod/orders-1`. Absent if it is no single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Who can end the wait: `User`, `Operator`, `Agents`, `Kubernetes`, `Storage`, or `External` (such as the
    /// cluster's administrator).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_actor")]
    pub actor: Option<WaitActor>,
    /// The unmet condition, naming the object it is about.
    #[serde(rename = "message")]
    pub what: String,
    /// Since when this object has been waited for, for this reason.
    #[serde(rename = "startTime", deserialize_with = "moment::deserialize")]
    pub since: DateTime<Utc>,
    /// How the actor, or somebody else, can end the wait.
    #[serde(rename = "endedBy")]
    pub who_can_end_it: String,
    /// When the operator does something else; or, where only others can end the wait, when the condition `Progressing`
    /// turns `False` with reason `DeadlineExceeded`.
    #[serde(
        default,
        rename = "deadlineTime",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "moment::deserialize_optional"
    )]
    pub deadline: Option<DateTime<Utc>>,
}

/// A reason that only another version of the operator knows is none.
fn known_reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WaitReason>, D::Error> {
    let name: Option<String> = Option::deserialize(deserializer)?;
    Ok(name.as_deref().and_then(WaitReason::parse))
}

/// The same of an actor.
fn known_actor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WaitActor>, D::Error> {
    use WaitActor::{Agents, External, Kubernetes, Operator, Storage, User};
    let name: Option<String> = Option::deserialize(deserializer)?;
    let mut all = [User, Operator, Agents, Kubernetes, Storage, External].into_iter();
    Ok(name.and_then(|name| all.find(|actor| actor.as_str() == name)))
}

/// One of several objects that are late, each with a time of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LateObject {
    /// What is waited for.
    pub reason: WaitReason,
    /// The object, as in `status.waiting.object`.
    pub object: String,
    /// Since when.
    #[serde(deserialize_with = "moment::deserialize")]
    pub since: DateTime<Utc>,
}

/// Those with a reason that this version knows.
pub(crate) fn known_late<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LateObject>, D::Error> {
    let all: Vec<serde_json::Value> = Vec::deserialize(deserializer)?;
    let known = all.into_iter().filter_map(|late| serde_json::from_value(late).ok());
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn each_reason_has_one_name_and_one_meaning() {
        for reason in WaitReason::ALL {
            assert_eq!(WaitReason::parse(reason.as_str()), Some(*reason));
            assert_eq!(serde_json::to_value(reason).unwrap(), json!(reason.as_str()));
            assert!(reason.meaning().ends_with('.'), "{reason}");
        }
        let meanings: BTreeSet<_> = WaitReason::ALL.iter().map(|reason| reason.meaning()).collect();
        assert_eq!(meanings.len(), WaitReason::ALL.len());
    }

    /// The operator before this one, or after it, wrote that status.
    #[test]
    fn a_wait_of_another_version_is_read() {
        let waiting = json!({"message": "x", "startTime": "2027-01-01T00:00:00Z", "endedBy": "y"});
        let older: WaitingStatus = serde_json::from_value(waiting.clone()).unwrap();
        assert_eq!((older.reason, older.actor), (None, None));
        assert_eq!(serde_json::to_value(&older).unwrap(), waiting);
        let mut newer = waiting;
        newer["reason"] = json!("SomethingNew");
        newer["actor"] = json!("Somebody");
        let newer: WaitingStatus = serde_json::from_value(newer).unwrap();
        assert_eq!((newer.reason, newer.actor), (None, None));
    }

    #[test]
    fn late_objects_of_another_version_are_left_out() {
        let known = json!({"reason": "PodCreation", "object": "pod/x-1", "since": "2027-01-01T00:00:00Z"});
        let mut other = known.clone();
        other["reason"] = json!("SomethingNew");
        let memo: crate::status::Memo = serde_json::from_value(json!({"late": [other, known]})).unwrap();
        assert_eq!(serde_json::to_value(&memo.late).unwrap(), json!([known]));
    }

    #[test]
    fn an_actor_is_read_as_it_was_written() {
        for reason in WaitReason::ALL {
            let waiting = json!({
                "message": "x", "startTime": "2027-01-01T00:00:00Z", "endedBy": "y",
                "reason": reason.as_str(), "actor": reason.actor().as_str(), "object": "pod/x-0",
            });
            let read: WaitingStatus = serde_json::from_value(waiting.clone()).unwrap();
            assert_eq!((read.reason, read.actor), (Some(*reason), Some(reason.actor())));
            assert_eq!(serde_json::to_value(&read).unwrap(), waiting);
        }
    }
}
