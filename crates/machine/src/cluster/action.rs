//! What can be done. An action names everything that it touches; the executor makes no choice.

use api::WantedDurability;
use api::backup::{BackupKind, BackupSource};
use api::operation::DiscardQuarantined;
use api::spec::RecoverySource;
use api::status::{
    ChosenImage, DrillResult, DrillRun, FinalBackupMemo, GrantedStorage, NotedRequest, RestartPermit, ScheduledRun,
    SnapshotMemo, SwitchoverMemo, VolumeSets,
};
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::observed::{Observed, Resizing, Target, WalVolumes};
use super::owned::OwnedObject;
use super::wait::Waiting;
use crate::protocol::{Epoch, MemberId, Timeline};
use crate::quorum::SyncRule;
use crate::reconcile::ObjectVersion;
use crate::rotation::Step as RotationStep;

/// One effect, or the reason for none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum Action {
    /// Nothing now.
    Wait(Waiting),
    /// Add [`api::names::FINALIZER`] to this very version of the resource.
    AddFinalizer(ObjectVersion),
    /// Remove it.
    RemoveFinalizer(ObjectVersion),
    /// Bring one object to the content that its builder gives.
    Apply(Apply),
    /// Make the Lease again, with this content and no holder (release by `member`, no position): `member` can take it, and
    /// another one only with the answers of all the others. Create only; an existing Lease is a conflict.
    RecreateLease {
        /// The member that held it last.
        member: MemberId,
        /// One more than the last epoch that was recorded.
        epoch: Epoch,
        /// System identifier of the data.
        system_id: String,
        /// The rule by which elections count until the holder changes it: the one that was in force is not known, so all
        /// other members have to answer.
        rule: SyncRule,
        /// The timeline that was served last.
        timeline: Option<Timeline>,
        /// The one after that: what elections under the lost Lease may have given up is not known, so whatever any of its
        /// timelines has alone is kept ([`crate::protocol::LeaseRecord::lossy`]).
        lossy: Timeline,
    },
    /// Change what the Lease says of sets of volumes. Its holder, epoch and timelines stay.
    ChangeLease(ObjectVersion, LeaseChange),
    /// Write the status that [`super::status`] computes for this decision: its changes are promises and records that must
    /// stand before anybody acts on them.
    WriteStatus(Vec<StatusChange>),
    /// Set the label [`api::names::LABEL_ROLE`] of one pod.
    LabelPod {
        /// The pod.
        pod: ObjectVersion,
        /// The label's value.
        role: &'static str,
    },
    /// Note on one pod how it stands to the template.
    MarkPod {
        /// The pod.
        pod: ObjectVersion,
        /// What to note.
        mark: PodMark,
    },
    /// Ask for the wanted cpu and memory of PostgreSQL's container in one running pod (its subresource `resize`).
    ResizePod(ObjectVersion),
    /// Delete one pod, so that the StatefulSet makes it again from its present template.
    ReplacePod(ObjectVersion),
    /// Delete an object: the RoleBinding, whose role cannot be changed, so that the next decision makes it again; the
    /// NetworkPolicy, which the spec asks for no longer; or, with the database and its volumes, what is made only once.
    DeleteChild(OwnedObject, ObjectVersion),
    /// Delete the StatefulSet and orphan its pods; the next decision makes it again.
    OrphanStatefulSet(ObjectVersion),
    /// Delete the StatefulSet, and let its pods stop and go (propagation `Background`).
    DeleteStatefulSet(ObjectVersion),
    /// Make the WAL claim of one pod, as the claim template would. Create only; an existing claim is a conflict.
    MakeWalClaim {
        /// The claim's name.
        name: String,
        /// The node that the pod is on: there the volume has to be reached.
        node: String,
    },
    /// Raise what a claim asks for.
    ResizeClaim {
        /// The claim.
        claim: ObjectVersion,
        /// The new size, as a Kubernetes quantity.
        size: String,
    },
    /// Give a claim the labels, annotations and attributes class that the spec asks for.
    UpdateClaim(ObjectVersion),
    /// Make a claim of the database that is adopted one of this database.
    AdoptClaim(ObjectVersion),
    /// Delete a claim and the data on it.
    DeleteClaim(ObjectVersion),
    /// Make the DatabaseBackup of this name. One that is there by now is the one.
    MakeBackup {
        /// Its name.
        name: String,
        /// Whose files it has.
        source: BackupSource,
        /// What it is.
        kind: BackupKind,
    },
    /// Make the VolumeSnapshot of this name of a data volume. One that is there by now is left alone.
    MakeSnapshot {
        /// Its name.
        name: String,
        /// The volume's claim.
        claim: String,
    },
    /// Delete a VolumeSnapshot.
    DeleteSnapshot(ObjectVersion),
    /// Make the data claim of the first instance, as the claim template would, from a VolumeSnapshot. Create only.
    MakeDataClaim {
        /// The claim's name.
        name: String,
        /// The VolumeSnapshot's name.
        snapshot: String,
    },
    /// Make the ClusteredDatabase of this name from the backups: [`crate::drill::spec`]. One that is there by now is left alone.
    MakeDrill {
        /// Its name.
        name: String,
        /// The backup that it recovers; `None`: the newest copy in the store.
        backup: Option<String>,
    },
    /// Delete the ClusteredDatabase of a drill.
    DeleteDrill(ObjectVersion),
}

impl Apply {
    /// Instances go by it. Like a delete, it is done only if resource and Lease, read once more, are what it was decided by: not to
    /// the one that has become primary meanwhile.
    pub fn takes_pods_away(&self, observed: &Observed) -> bool {
        let now = observed.stateful_set.as_ref().map(|set| set.replicas);
        self.replicas.zip(now).is_some_and(|(wanted, now)| wanted < now)
    }
}

impl Action {
    /// What the action is done to: the key under which the executor keeps its failures.
    pub fn target(&self) -> Option<Target> {
        Some(match self {
            Action::Wait(_) => return None,
            Action::AddFinalizer(_) | Action::RemoveFinalizer(_) => Target::Resource,
            Action::WriteStatus(_) => Target::Status,
            Action::Apply(apply) => Target::Child(apply.kind),
            Action::RecreateLease { .. } | Action::ChangeLease(..) => Target::Child(OwnedObject::Lease),
            Action::DeleteChild(kind, _) => Target::Child(*kind),
            Action::OrphanStatefulSet(_) | Action::DeleteStatefulSet(_) => Target::Child(OwnedObject::StatefulSet),
            Action::LabelPod { pod, .. } | Action::MarkPod { pod, .. } | Action::ReplacePod(pod) => {
                Target::Pod(pod.name().to_owned())
            }
            Action::ResizePod(pod) => Target::Resize(pod.name().to_owned()),
            Action::MakeWalClaim { name, .. } | Action::MakeDataClaim { name, .. } => Target::Claim(name.clone()),
            Action::MakeSnapshot { name, .. } => Target::Snapshot(name.clone()),
            Action::DeleteSnapshot(snapshot) => Target::Snapshot(snapshot.name().to_owned()),
            Action::ResizeClaim { claim, .. }
            | Action::UpdateClaim(claim)
            | Action::AdoptClaim(claim)
            | Action::DeleteClaim(claim) => Target::Claim(claim.name().to_owned()),
            Action::MakeBackup { name, .. } => Target::Backup(name.clone()),
            Action::MakeDrill { name, .. } => Target::Drill(name.clone()),
            Action::DeleteDrill(drill) => Target::Drill(drill.name().to_owned()),
        })
    }

    /// The action's name, for logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Action::Wait(_) => "Wait",
            Action::AddFinalizer(_) => "AddFinalizer",
            Action::RemoveFinalizer(_) => "RemoveFinalizer",
            Action::Apply(_) => "Apply",
            Action::RecreateLease { .. } => "RecreateLease",
            Action::ChangeLease(..) => "ChangeLease",
            Action::WriteStatus(_) => "WriteStatus",
            Action::LabelPod { .. } => "LabelPod",
            Action::MarkPod { .. } => "MarkPod",
            Action::ResizePod(_) => "ResizePod",
            Action::ReplacePod(_) => "ReplacePod",
            Action::DeleteChild(..) => "DeleteChild",
            Action::OrphanStatefulSet(_) => "OrphanStatefulSet",
            Action::DeleteStatefulSet(_) => "DeleteStatefulSet",
            Action::MakeWalClaim { .. } => "MakeWalClaim",
            Action::ResizeClaim { .. } => "ResizeClaim",
            Action::UpdateClaim(_) => "UpdateClaim",
            Action::AdoptClaim(_) => "AdoptClaim",
            Action::DeleteClaim(_) => "DeleteClaim",
            Action::MakeBackup { .. } => "MakeBackup",
            Action::MakeSnapshot { .. } => "MakeSnapshot",
            Action::DeleteSnapshot(_) => "DeleteSnapshot",
            Action::MakeDataClaim { .. } => "MakeDataClaim",
            Action::MakeDrill { .. } => "MakeDrill",
            Action::DeleteDrill(_) => "DeleteDrill",
        }
    }
}

/// How a Lease is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LeaseChange {
    /// It is to be about this set of volumes ([`crate::lease_object::volumes_changed`]). Nobody may hold it.
    Volumes(u32),
    /// It is to say nothing of the former set ([`crate::lease_object::former_forgotten`]).
    ForgetFormer,
}

/// What is noted on a pod about a change of its cpu and memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum PodMark {
    /// It is begun (annotation [`api::names::ANNOTATION_RESIZING`]).
    Resizing(Resizing),
    /// It is done: the pod is as this revision of the template says.
    Current {
        /// The value of its annotation [`api::names::ANNOTATION_REVISION`].
        revision: String,
    },
}

/// Bring one object to its wanted content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Apply {
    /// Which.
    pub kind: OwnedObject,
    /// Make it or change it.
    pub how: ApplyHow,
    /// The StatefulSet's `spec.replicas`; `None` for others.
    pub replicas: Option<u32>,
    /// Which of the StatefulSet's pods get a WAL volume; `None`: those that do now, and for others.
    pub wal: Option<WalVolumes>,
}

/// How to bring an object to its wanted content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ApplyHow {
    /// Create only: if an object of that name exists by now, that is a conflict (observe again).
    Make,
    /// Change this very object, at this version. Secrets and the EndpointSlice: metadata only.
    Change(ObjectVersion),
    /// Make the content of this very Secret, at this version, anew. What can be kept of it (a password) is kept.
    Renew(ObjectVersion),
    /// Take this step of a rotation in this very Secret, at this version: that of the authority.
    Rotate(ObjectVersion, RotationStep),
}

impl ApplyHow {
    /// The object that is changed; `None` if one is made.
    pub const fn exact(&self) -> Option<&ObjectVersion> {
        match self {
            Self::Make => None,
            Self::Change(exact) | Self::Renew(exact) | Self::Rotate(exact, _) => Some(exact),
        }
    }
}

/// One change of what the status promises or remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum StatusChange {
    /// The last run of a schedule of backups.
    RecordSchedule(String, ScheduledRun),
    /// The spec has no schedule of this name.
    ForgetSchedule(String),
    /// `members[pod]`: who it is. A certificate of another member is dropped.
    PublishMember {
        /// The pod's name.
        pod: String,
        /// Its UID.
        pod_uid: String,
        /// UID of its data claim.
        claim_uid: String,
    },
    /// Drop `members[pod]`.
    ForgetMember {
        /// The pod's name.
        pod: String,
    },
    /// `intent.bootstrap`.
    GrantBootstrap {
        /// The pod that makes the first database.
        pod: String,
        /// UID of the claim that it is made on.
        claim_uid: String,
    },
    /// Sign this key with the cluster's authority and write the certificate to `members[pod].certificate`.
    /// The executor reads the claim once more, signs, and hands the certificate to [`super::status`].
    SignCertificate {
        /// The pod's name.
        pod: String,
        /// The pod's claim, which the member was made for. Where the API server has another one by now, nothing is signed:
        /// data that is copied for a claim of before would be nobody's.
        claim: ObjectVersion,
        /// The certificate's common name.
        member: MemberId,
        /// SubjectPublicKeyInfo, DER, base64.
        public_key: String,
    },
    /// `systemIdentifier`; the bootstrap grant is used up.
    RecordSystemIdentifier(String),
    /// `memo.adopted`: the UID of the deleted database whose volumes this one takes over, which set of them it ran on, and which it
    /// has kept.
    Adopt(String, u32, Option<u32>),
    /// Drop `intent.recovery`: what was recovered is served. The volumes of before are kept until this time; without one, until the
    /// recovery is confirmed.
    EndRecovery(Option<DateTime<Utc>>),
    /// `memo.recoverySource`.
    RecordRecoverySource(Box<RecoverySource>),
    /// `memo.volumes`.
    SetVolumes(VolumeSets),
    /// Instances run on this set of volumes from now on. Nothing is known of its members.
    UseVolumes {
        /// The set.
        set: u32,
        /// The epoch that the Lease has then.
        epoch: Epoch,
        /// The system identifier of the data there; `None` if it is to be recovered.
        system_id: Option<String>,
    },
    /// `memo.leaseMade`.
    RecordLeaseMade,
    /// `memo.made[name] = uid`.
    RecordMade {
        /// Name of the object.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// `intent.restart`.
    PermitRestart(RestartPermit),
    /// Drop `intent.restart`.
    EndRestart,
    /// `intent.primary` and `memo.switchover`.
    MovePrimary {
        /// The switchover.
        memo: SwitchoverMemo,
        /// `intent.urgent`.
        urgent: bool,
    },
    /// Drop `intent.primary`, and remember in `memo.switchover.ended` that it was given up at this time.
    GiveUpSwitchover(DateTime<Utc>),
    /// Drop `intent.primary` and `memo.switchover`.
    EndSwitchover,
    /// These pods in `memo.walVolumes`.
    GiveWalVolumes(Vec<String>),
    /// `memo.granted`.
    RecordGranted(GrantedStorage),
    /// `memo.durability`.
    RecordDurability(WantedDurability),
    /// `memo.image`.
    RecordImage(ChosenImage),
    /// `memo.restartedBy`: all pods are to be made again.
    RestartAll(String),
    /// `intent.acceptLoss`.
    AcceptLoss(u64),
    /// `intent.discard`.
    Discard(DiscardQuarantined),
    /// `memo.request`; what was allowed for the request before is taken back.
    NoteRequest(Option<NotedRequest>),
    /// `intent.stop`.
    RequestStop,
    /// Take `intent.stop` back.
    EndStop,
    /// `memo.drill`, and `status.backup.drill` if it has ended.
    RecordDrill(Box<DrillRun>, Option<Box<DrillResult>>),
    /// Take `memo.drill` back.
    ForgetDrill,
    /// One more in `memo.snapshots`.
    RecordSnapshot(SnapshotMemo),
    /// The VolumeSnapshot of this name is gone from `memo.snapshots`.
    ForgetSnapshot(String),
    /// `memo.finalBackup`.
    RecordFinalBackup(FinalBackupMemo),
    /// One more in `status.deletion`, and what came of it.
    DeletionDone(DeletionStep, &'static str),
}

/// Steps of a deletion that are recorded when done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DeletionStep {
    /// The last backup is complete, or was given up.
    FinalBackup,
    /// All backups and WAL in the store are deleted.
    Archive,
    /// PostgreSQL has stopped everywhere, or the time for it has passed.
    Stopped,
    /// The pods are gone, or the time for it has passed.
    PodsGone,
    /// `storage.retentionPolicy.whenDeleted` has been carried out.
    Volumes,
}

impl DeletionStep {
    /// As it stands in `status.deletion`.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeletionStep::FinalBackup => "FinalBackup",
            DeletionStep::Archive => "Archive",
            DeletionStep::Stopped => "Stopped",
            DeletionStep::PodsGone => "PodsGone",
            DeletionStep::Volumes => "Volumes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Scene;
    use super::*;

    #[test]
    fn only_fewer_replicas_take_pods() {
        let observed = Scene::ready(3).observed;
        let takes = |replicas| {
            let apply = Apply {
                kind: OwnedObject::StatefulSet,
                how: ApplyHow::Make,
                replicas,
                wal: None,
            };
            apply.takes_pods_away(&observed)
        };
        assert_eq!([None, Some(2), Some(3)].map(takes), [false, true, false]);
    }

    #[test]
    fn a_precondition_names_an_object_in_full() {
        let exact = ObjectVersion::new("name", "uid", "7");
        assert_eq!(
            (exact.name(), exact.uid(), exact.resource_version()),
            ("name", "uid", "7")
        );
    }
}
