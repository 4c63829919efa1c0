//! What can be done. An action names everything that it touches; the executor makes no choice.

use std::borrow::Cow;

use api::status::{ChosenImage, GrantedStorage, RestartPermit, SwitchoverMemo, SwitchoverRequest};
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::observed::{ChildKind, Observed, Resizing, Target, WalVolumes};
use crate::protocol::{Epoch, MemberId, Timeline};
use crate::quorum::SyncRule;
use crate::reconcile::Exact;

/// One effect, or the reason for none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum Action {
    /// Nothing now.
    Wait(Waiting),
    /// Add [`api::names::FINALIZER`] to this very version of the resource.
    AddFinalizer(Exact),
    /// Remove it.
    RemoveFinalizer(Exact),
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
    /// Write the status that [`super::status`] computes for this decision: its changes are promises and records that must
    /// stand before anybody acts on them.
    WriteStatus(Vec<StatusChange>),
    /// Set the label [`api::names::LABEL_ROLE`] of one pod.
    LabelPod {
        /// The pod.
        pod: Exact,
        /// The label's value.
        role: &'static str,
    },
    /// Note on one pod how it stands to the template.
    MarkPod {
        /// The pod.
        pod: Exact,
        /// What to note.
        mark: PodMark,
    },
    /// Ask for the wanted cpu and memory of PostgreSQL's container in one running pod (its subresource `resize`).
    ResizePod(Exact),
    /// Delete one pod, so that the StatefulSet makes it again from its present template.
    ReplacePod(Exact),
    /// Delete the RoleBinding, whose role cannot be changed; the next decision makes it again.
    DeleteRoleBinding(Exact),
    /// Delete the NetworkPolicy, which the spec asks for no longer.
    DeleteNetworkPolicy(Exact),
    /// Delete the StatefulSet and orphan its pods; the next decision makes it again.
    OrphanStatefulSet(Exact),
    /// Delete the StatefulSet, and let its pods stop and go (propagation `Background`).
    DeleteStatefulSet(Exact),
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
        claim: Exact,
        /// The new size, as a Kubernetes quantity.
        size: String,
    },
    /// Delete a claim and the data on it.
    DeleteClaim(Exact),
}

impl Apply {
    /// Instances go by it. Like a delete, it is done only if resource and Lease, read once more, are what it was decided by: not to
    /// the one that has become primary meanwhile.
    pub fn takes_pods(&self, observed: &Observed) -> bool {
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
            Action::RecreateLease { .. } => Target::Child(ChildKind::Lease),
            Action::DeleteRoleBinding(_) => Target::Child(ChildKind::RoleBinding),
            Action::DeleteNetworkPolicy(_) => Target::Child(ChildKind::NetworkPolicy),
            Action::OrphanStatefulSet(_) | Action::DeleteStatefulSet(_) => Target::Child(ChildKind::StatefulSet),
            Action::LabelPod { pod, .. } | Action::MarkPod { pod, .. } | Action::ReplacePod(pod) => {
                Target::Pod(pod.name().to_owned())
            }
            Action::ResizePod(pod) => Target::Resize(pod.name().to_owned()),
            Action::MakeWalClaim { name, .. } => Target::Claim(name.clone()),
            Action::ResizeClaim { claim, .. } | Action::DeleteClaim(claim) => Target::Claim(claim.name().to_owned()),
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
            Action::WriteStatus(_) => "WriteStatus",
            Action::LabelPod { .. } => "LabelPod",
            Action::MarkPod { .. } => "MarkPod",
            Action::ResizePod(_) => "ResizePod",
            Action::ReplacePod(_) => "ReplacePod",
            Action::DeleteRoleBinding(_) => "DeleteRoleBinding",
            Action::DeleteNetworkPolicy(_) => "DeleteNetworkPolicy",
            Action::OrphanStatefulSet(_) => "OrphanStatefulSet",
            Action::DeleteStatefulSet(_) => "DeleteStatefulSet",
            Action::MakeWalClaim { .. } => "MakeWalClaim",
            Action::ResizeClaim { .. } => "ResizeClaim",
            Action::DeleteClaim(_) => "DeleteClaim",
        }
    }
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
    pub kind: ChildKind,
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
    Change(Exact),
    /// Make the content of this very Secret, at this version, anew. What can be kept of it (a password) is kept.
    Renew(Exact),
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// The unmet condition, naming the object that it is about; nothing in it moves while the condition stays the same.
    pub what: Cow<'static, str>,
    /// Since when this has been waited for (carried on from the status).
    pub since: DateTime<Utc>,
    /// Who or what can end it.
    pub who_can_end_it: Cow<'static, str>,
    /// When something else is done, or it is said that the wait takes too long (see [`super::patience`]).
    pub deadline: Option<DateTime<Utc>>,
    /// Nothing is missing: this is the wait of a database that is as it should be. Not shown in the status.
    pub resting: bool,
}

/// One change of what the status promises or remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum StatusChange {
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
        claim: Exact,
        /// The certificate's common name.
        member: MemberId,
        /// SubjectPublicKeyInfo, DER, base64.
        public_key: String,
    },
    /// `systemIdentifier`; the bootstrap grant is used up.
    RecordSystemIdentifier(String),
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
    /// `memo.image`.
    RecordImage(ChosenImage),
    /// `memo.request`.
    NoteRequest(Option<SwitchoverRequest>),
    /// `intent.stop`.
    RequestStop,
    /// Take `intent.stop` back.
    EndStop,
    /// `memo.deletionDone`.
    DeletionDone(DeletionStep),
}

/// Steps of a deletion that are recorded when done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DeletionStep {
    /// PostgreSQL has stopped everywhere, or the time for it has passed.
    Stopped,
    /// The pods are gone, or the time for it has passed.
    PodsGone,
    /// `volumePolicy.onDelete` has been carried out.
    Volumes,
}

impl DeletionStep {
    /// As it stands in `memo.deletionDone`.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeletionStep::Stopped => "Stopped",
            DeletionStep::PodsGone => "PodsGone",
            DeletionStep::Volumes => "Volumes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scene;
    use super::*;

    #[test]
    fn only_fewer_replicas_take_pods() {
        let observed = Scene::ready(3).observed;
        let takes = |replicas| {
            let apply = Apply {
                kind: ChildKind::StatefulSet,
                how: ApplyHow::Make,
                replicas,
                wal: None,
            };
            apply.takes_pods(&observed)
        };
        assert_eq!([None, Some(2), Some(3)].map(takes), [false, true, false]);
    }

    #[test]
    fn a_precondition_names_an_object_in_full() {
        let exact = Exact::new("name", "uid", "7");
        assert_eq!(
            (exact.name(), exact.uid(), exact.resource_version()),
            ("name", "uid", "7")
        );
    }
}
