//! What the operator sees, in plain values. "Could not read it" is a value of its own and never means "absent".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Index, IndexMut};

use api::Phase;
use api::operation::OperationPhase;
use api::spec::BackupSpec;
use api::status::WaitReason;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::owned::OwnedObject;
use super::wait::WaitKey;
use crate::protocol::LeaseRecord;
pub use crate::protocol::Volume;
use crate::reconcile::ObjectVersion;
use crate::rotation::Authorities;
use crate::units::Bytes;

/// What was read, or that it could not be read. Nothing is ever made or deleted because of `Unknown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Known<T> {
    /// Read.
    Known(T),
    /// Not read (yet): a watch that has not listed, a refused or failed request, content that does not parse.
    #[default]
    Unknown,
}

impl<T> Known<T> {
    /// The value, if it is known.
    pub const fn get(&self) -> Option<&T> {
        match self {
            Known::Known(value) => Some(value),
            Known::Unknown => None,
        }
    }

    /// The same with another value.
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Known::Known(value) => Known::Known(with(value)),
            Known::Unknown => Known::Unknown,
        }
    }
}

/// Everything that a decision looks at besides the resource itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The objects that belong to the database, each by its kind.
    pub children: Children,
    /// What the StatefulSet asks for, if there is one (known whenever `children[StatefulSet]` is).
    pub stateful_set: Option<StatefulSetView>,
    /// The pods of this database (label [`api::names::LABEL_CLUSTER`] and an ordinal in the name), in order of ordinal.
    pub pods: Known<Vec<Pod>>,
    /// All claims with names of this database's claims in the set of volumes in use, whoever made them, in order of ordinal, data
    /// before WAL.
    pub claims: Known<Vec<Claim>>,
    /// The same of other sets of volumes, before or after a recovery in place; none while `claims` are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_claims: Vec<Claim>,
    /// Names of the nodes that have pods of this database and are cordoned, or about to be removed. One under pressure takes no
    /// new pods either, and is not among them.
    pub unschedulable_nodes: Known<BTreeSet<String>>,
    /// The Lease's content; `None` if there is no Lease. `Unknown` if it does not parse.
    pub lease: Known<Option<LeaseRecord>>,
    /// The StorageClass that the data volumes ask for (the default one if they name none).
    pub storage_class: Known<StorageClass>,
    /// The one that the WAL volumes ask for; of no meaning if the spec asks for none.
    #[serde(default)]
    pub wal_storage_class: Known<StorageClass>,
    /// When the certificates are valid, as far as that is known.
    pub certificates: Certificates,
    /// The namespace is being deleted. Give `false` if unknown; asked only of a resource that is being deleted.
    pub namespace_terminating: bool,
    /// Whether the namespace is being deleted could not be read.
    #[serde(default)]
    pub namespace_unread: bool,
    /// Addresses to which `-rw` leads, and which no pod of this database has ([`super::foreign_route`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_route: Option<ForeignRoute>,
    /// The DatabaseBackups that exist, of those that schedules are making.
    #[serde(default)]
    pub scheduled: Known<BTreeSet<String>>,
    /// The ClusteredDatabase of the name that a drill has (`memo.drill`), if it exists.
    #[serde(default)]
    pub drill: Known<Option<DrillSeen>>,
    /// The ClusteredDatabase that this one is recovered from (`spec.bootstrap.recovery.from.clusterRef`), if it exists.
    #[serde(default)]
    pub recovery_source: Known<Option<SourceSeen>>,
    /// The VolumeSnapshots that [`super::snapshots_to_read`] names, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub snapshots: BTreeMap<String, Known<Option<SnapshotSeen>>>,
    /// The last backup before a deletion (`memo.finalBackup`), if its DatabaseBackup exists.
    #[serde(default)]
    pub final_backup: Known<Option<OpenBackup>>,
    /// Objects of this database that are there and cannot be read: what they hold is unknown above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// Actions that failed and have not succeeded since (kept by the executor in its memory; after a restart it starts empty).
    pub faults: Vec<Fault>,
}

/// The ClusteredDatabase of a drill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrillSeen {
    /// Its name and UID.
    pub exact: ObjectVersion,
    /// This database owns it.
    pub is_ours: bool,
    /// It is being deleted.
    pub terminating: bool,
    /// Its phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why it has failed, or what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A ClusteredDatabase that another one is recovered from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceSeen {
    /// Its UID.
    pub uid: String,
    /// Where its backups are; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupSpec>,
}

/// A DatabaseBackup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenBackup {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<OperationPhase>,
    /// What it waits for, or how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// An object that is there and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unreadable {
    /// Its kind and name: `Role orders`.
    pub object: String,
    /// Why, in the words of the parser.
    pub why: String,
}

impl Unreadable {
    /// What the timer of the wait for its correction hangs on.
    pub(super) fn wait_key(&self) -> WaitKey {
        let reason = WaitReason::ObjectCorrection;
        match self.object.split_once(' ') {
            Some((kind, name)) => WaitKey::of(reason, kind, name),
            None => reason.into(),
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which cannot be read: {}", self.object, self.why)
    }
}

/// One value for each [`OwnedObject`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    from = "BTreeMap<OwnedObject, Known<OwnedState>>",
    into = "BTreeMap<OwnedObject, Known<OwnedState>>"
)]
pub struct Children([Known<OwnedState>; OwnedObject::ALL.len()]);

impl Index<OwnedObject> for Children {
    type Output = Known<OwnedState>;
    fn index(&self, kind: OwnedObject) -> &Known<OwnedState> {
        &self.0[kind as usize]
    }
}

impl IndexMut<OwnedObject> for Children {
    fn index_mut(&mut self, kind: OwnedObject) -> &mut Known<OwnedState> {
        &mut self.0[kind as usize]
    }
}

/// Written by kind, so that a kind that is new is unknown in what was written before.
impl From<BTreeMap<OwnedObject, Known<OwnedState>>> for Children {
    fn from(states: BTreeMap<OwnedObject, Known<OwnedState>>) -> Self {
        let mut children = Children::default();
        for (kind, state) in states {
            children[kind] = state;
        }
        children
    }
}

impl From<Children> for BTreeMap<OwnedObject, Known<OwnedState>> {
    fn from(children: Children) -> Self {
        OwnedObject::ALL.into_iter().zip(children.0).collect()
    }
}

/// An object that a deleted database of this name has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Left {
    /// UID of that ClusteredDatabase.
    pub by: String,
    /// The object's UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
}

/// Where one object stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum OwnedState {
    /// There is none (or it is being deleted and will be none).
    Missing,
    /// An object with this name is not ours: it has another owner, or none and not our label either.
    Foreign {
        /// Whose it is, in words that end "… is": `owned by Deployment other`.
        why: String,
        /// It was left by a database of this name that was deleted.
        #[serde(default)]
        left: Option<Left>,
    },
    /// As it should be.
    Current {
        /// Its UID.
        uid: String,
    },
    /// Ours, but not as it should be.
    Drifted {
        /// Its UID.
        uid: String,
        /// Its version.
        resource_version: String,
        /// What differs, in a word (`spec.selector`).
        what: String,
        /// What differs cannot be changed in place (a StatefulSet's claim templates, a RoleBinding's role): the object
        /// has to be deleted, its dependents orphaned, and made again (unless it is not wanted, [`super::is_wanted`]).
        immutable: bool,
    },
    /// A Secret of ours whose content is of no use any more, or our Lease, if it cannot be understood.
    Damaged {
        /// Its UID.
        uid: String,
        /// Its version.
        resource_version: String,
        /// What is wrong with it, in words that follow its name: `holds no password`.
        what: String,
        /// The same content can be made again, or other content does no harm.
        recoverable: bool,
    },
}

/// What the certificates say. One that is not here is not renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// The authority's, in the Secret `-ca`.
    #[serde(default)]
    pub authority: Option<AuthorityCertificate>,
    /// The agents' common one, in the Secret `-tls`.
    pub agents: Option<AgentsCertificate>,
    /// The authorities that the application's Secret `-app` holds.
    #[serde(default)]
    pub application: Option<ApplicationTrust>,
    /// The members' in the status, by pod name.
    pub members: BTreeMap<String, MemberCertificate>,
    /// Key identifiers of the authorities that have issued applications' certificates, by kind and name of their DatabaseUsers and
    /// Poolers.
    #[serde(default)]
    pub clients: BTreeMap<String, String>,
    /// Some of these could not be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clients_unread: bool,
}

/// The authority as it stands in its Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityCertificate {
    /// The Secret, at the version that was read.
    pub secret: ObjectVersion,
    /// When the one that issues is valid.
    pub validity: Validity,
    /// All of them.
    pub authorities: Authorities,
}

/// What the application's Secret has it trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationTrust {
    /// The Secret, at the version that was read.
    pub secret: ObjectVersion,
    /// Key identifiers of the authorities.
    pub trusted: BTreeSet<String>,
}

/// A member's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberCertificate {
    /// When it is valid.
    pub validity: Validity,
    /// Key identifier of the authority that has issued it; empty if it does not say.
    pub issuer: String,
    /// See [`crate::protocol::certificate_digest`].
    pub digest: String,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Validity {
    /// `notBefore`.
    pub from: DateTime<Utc>,
    /// `notAfter`.
    pub until: DateTime<Utc>,
}

/// The certificate of the agents as it stands in its Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentsCertificate {
    /// The Secret, at the version that was read.
    pub secret: ObjectVersion,
    /// When it is valid.
    pub validity: Validity,
    /// Key identifier of the authority that has issued it; empty if it does not say.
    pub issuer: String,
    /// Key identifiers of the authorities beside it.
    pub trusted: BTreeSet<String>,
    /// Digest of both ([`crate::protocol::certificate_digest`]): what a member reports that has loaded them.
    pub digest: String,
}

/// `-rw` leads to addresses that no pod of the database has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForeignRoute {
    /// These addresses.
    pub addresses: BTreeSet<String>,
    /// Since when there has always been one, this one or another.
    pub since: DateTime<Utc>,
}

/// What the StatefulSet asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatefulSetView {
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// `spec.replicas`. How many it should be is decided here, so a difference is not drift.
    pub replicas: u32,
    /// Who gets a WAL volume. Who should is decided here, so a difference is not drift.
    #[serde(default)]
    pub wal: WalVolumes,
}

/// Which of the pods that a StatefulSet makes get a WAL volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WalVolumes {
    /// None: the spec asks for none, or there are pods without.
    #[default]
    Withheld,
    /// The pod with this ordinal: the pod template names that pod's claim, and would name it in every other pod, too.
    Of(u32),
    /// Each its own, by a claim template.
    Templated,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// The number at the end of its name.
    pub ordinal: u32,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// `metadata.creationTimestamp`.
    pub created: DateTime<Utc>,
    /// It has a node.
    pub node: Option<String>,
    /// The scheduler's words, if it finds no node for it.
    pub unschedulable: Option<String>,
    /// Its condition `Ready` is true.
    pub ready: bool,
    /// Since when, if that is known; by its kubelet's clock.
    #[serde(default)]
    pub ready_since: Option<DateTime<Utc>>,
    /// PostgreSQL's container has not started yet: a volume, an image or a container before it is not there.
    #[serde(default)]
    pub unstarted: bool,
    /// How often that container has been started again.
    #[serde(default)]
    pub restarts: u32,
    /// It is being deleted.
    pub terminating: bool,
    /// Its annotation [`api::names::ANNOTATION_REVISION`].
    pub revision: Option<String>,
    /// Its annotation [`api::names::ANNOTATION_BASE_REVISION`].
    pub base_revision: Option<String>,
    /// The claim that is its WAL volume.
    #[serde(default)]
    pub wal_claim: Option<String>,
    /// Its annotation [`api::names::ANNOTATION_RESIZING`]: it is not as any template says until this is gone.
    pub resizing: Option<Resizing>,
    /// Where PostgreSQL's container stands against the wanted cpu and memory.
    #[serde(default)]
    pub resources: Resources,
    /// Its label [`api::names::LABEL_ROLE`].
    pub role: Option<String>,
    /// Its agent's token was made for a ServiceAccount that is no more: the API server does not know this agent, so it
    /// can neither read the database nor hold the Lease, until the kubelet has got it another (after up to 48 min).
    #[serde(default, rename = "tokenVoid")]
    pub token_revoked: bool,
    /// PostgreSQL's image, or before it first ran that of a container that comes before it, cannot be pulled or started.
    pub image_error: Option<ImageError>,
    /// What else keeps a pod that has a node, and is not ready, from running or from staying up.
    #[serde(default)]
    pub trouble: Option<Trouble>,
    /// The agent's termination message, if it ended because the first database could not be made.
    pub bootstrap_error: Option<String>,
}

impl Pod {
    /// Its containers cannot have run: it has no node, or its image cannot be had.
    pub fn never_ran(&self) -> bool {
        self.node.is_none() || self.image_error.is_some()
    }

    /// It does not run, or does not stay up, for a reason that Kubernetes tells.
    pub fn does_not_run(&self) -> bool {
        self.never_ran() || self.trouble.is_some()
    }
}

/// A change of a pod's cpu and memory that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resizing {
    /// The revision that the pod is to have then.
    pub to: String,
    /// When it was begun.
    pub since: DateTime<Utc>,
}

/// Where a pod's container stands against the wanted cpu and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum Resources {
    /// It asks for others.
    #[default]
    Other,
    /// It asks for others, and its limit of memory is above the wanted one, or it has none.
    MoreMemory,
    /// It asks for them, and has not got them yet.
    Asked {
        /// The kubelet's words, if it waits for something.
        message: Option<String>,
    },
    /// It has them.
    Given,
    /// This pod cannot get them in place.
    Refused {
        /// Why not.
        message: String,
    },
}

/// An image that does not run: `ErrImagePull`, `ImagePullBackOff`, `ErrImageNeverPull`, `InvalidImageName`,
/// `RunContainerError`, `CreateContainerError`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageError {
    /// The kubelet's reason.
    pub reason: String,
    /// The image.
    pub image: String,
    /// The kubelet's words.
    pub message: String,
    /// Since when, as far as it can be told: when it was first seen, or the pod's creation.
    pub since: DateTime<Utc>,
}

/// What keeps a pod from running, or from staying up, as Kubernetes tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// In a few words, which stay the same from one attempt to the next: `OOMKilled, exit code 137`,
    /// `CreateContainerConfigError`, `FailedMount`.
    pub reason: String,
    /// The whole of it, which may change each time.
    pub message: String,
}

/// One PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Which volume it is for.
    pub volume: Volume,
    /// Of which set of volumes it is.
    #[serde(default)]
    pub set: u32,
    /// Ordinal of the pod that it is for.
    pub ordinal: u32,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// It is being deleted.
    pub terminating: bool,
    /// It has a volume.
    pub bound: bool,
    /// It has, or had, one: something may be on it.
    #[serde(default)]
    pub had_volume: bool,
    /// When it was made.
    #[serde(default)]
    pub created: DateTime<Utc>,
    /// Its StorageClass.
    #[serde(default)]
    pub class: Option<String>,
    /// The node for whose pod its volume is, or was, to be made. A provisioner takes this away when it gives up there.
    #[serde(default)]
    pub selected_node: Option<String>,
    /// `spec.resources.requests.storage`.
    pub requested: Bytes,
    /// `status.capacity.storage`: what it has, as far as that is told.
    #[serde(default)]
    pub capacity: Option<Bytes>,
    /// What Kubernetes says of a growth that it has accepted and not done yet.
    #[serde(default)]
    pub growth: Option<Growth>,
    /// UID of the ClusteredDatabase that it was made for (label [`api::names::LABEL_CLUSTER_UID`]).
    pub cluster_uid: Option<String>,
    /// It lacks labels, annotations or the attributes class that the spec asks for.
    #[serde(default)]
    pub differs: bool,
}

/// How far a claim's growth is, by its conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Growth {
    /// The condition's type: `Resizing`, `FileSystemResizePending`, `ControllerResizeError`, `NodeResizeError`.
    pub stage: String,
    /// Its message.
    pub message: String,
    /// Since when it is so.
    pub since: DateTime<Utc>,
}

/// A VolumeSnapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSeen {
    /// Its name and UID.
    pub exact: ObjectVersion,
    /// It was made of a volume of this database.
    pub is_ours: bool,
    /// It is being deleted.
    pub terminating: bool,
    /// It has the content of a moment (`status.creationTime`).
    pub taken: bool,
    /// Volumes can be made from it (`status.readyToUse`).
    pub ready: bool,
    /// What the storage says is wrong (`status.error`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether new volumes can be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum StorageClass {
    /// It exists.
    Present {
        /// `allowVolumeExpansion`.
        expandable: bool,
    },
    /// The class of this name does not exist.
    Missing {
        /// Its name.
        name: String,
    },
    /// The spec names none, and the cluster has no default one.
    NoDefault,
}

/// An action on a database that failed.
pub type Fault = crate::reconcile::Fault<Target>;

/// What an action is done to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    /// The ClusteredDatabase's metadata (its finalizer).
    Resource,
    /// The ClusteredDatabase's status.
    Status,
    /// One of its objects.
    Child(OwnedObject),
    /// A pod, by name. Also where a StatefulSet's failure to make that pod belongs.
    Pod(String),
    /// A claim, by name.
    Claim(String),
    /// The certificate of the member in this pod.
    Certificate(String),
    /// The cpu and memory of a pod, by name.
    Resize(String),
    /// A DatabaseBackup, by name.
    Backup(String),
    /// The ClusteredDatabase of a drill, by name.
    Drill(String),
    /// A VolumeSnapshot, by name.
    Snapshot(String),
}

#[cfg(test)]
mod tests {
    use super::super::model::Scene;
    use super::*;

    #[test]
    fn what_was_seen_of_objects_is_read_as_it_was_written() {
        let children = Scene::ready(3).observed.children;
        let written = serde_json::to_string(&children).unwrap();
        assert_eq!(serde_json::from_str::<Children>(&written).unwrap(), children);
    }
}
