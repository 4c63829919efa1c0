//! The `ClusteredDatabaseOperation` resource (short name `cdbop`): one thing that the user asks for once, with a status that
//! says what came of it.

use std::fmt;

use chrono::{DateTime, Utc};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::backup::is_snapshot;
use crate::crd::{SCHEMA, drop_what_means_nothing_to_a_server, each_schema, field_of, set};
use crate::rules::recovery::{is_backup, is_lsn, is_restore_point};
use crate::spec::RecoveryTarget;

/// One thing to be done once to a ClusteredDatabase.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "clustereddatabase.io",
    version = "v1alpha2",
    kind = "ClusteredDatabaseOperation",
    plural = "clustereddatabaseoperations",
    shortname = "cdbop",
    namespaced,
    derive = "PartialEq",
    doc = "One thing to be done once to a ClusteredDatabase.",
    status = "OperationStatus",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.clusterRef.name"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusteredDatabaseOperationSpec {
    /// The ClusteredDatabase in this namespace that it is done to.
    pub cluster_ref: ClusterReference,
    /// What is to be done.
    #[serde(flatten)]
    pub actions: Actions,
    /// Take it back: an operation that has not begun is not done, one that has begun is given up where that is possible.
    #[serde(default)]
    pub cancel: bool,
}

/// A ClusteredDatabase of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReference {
    /// Its name.
    pub name: String,
}

/// What is to be done, as it stands in a spec: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Actions {
    /// Make another instance the primary, without losing a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover: Option<Switchover>,
    /// Take the operator's present default image, for a database whose spec names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_image: Option<TakeImage>,
    /// Replace the pods of all instances, one after the other: standbys first, the primary after a switchover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Let the instances that are left elect a primary without those that are lost for good. Commits that only the lost ones have
    /// are lost with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_loss: Option<AcceptLoss>,
    /// Remove data that an instance has quarantined: moved aside and kept, since it may have commits that no other has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_quarantined: Option<DiscardQuarantined>,
    /// Make the database's Lease again, which is lost, for the instance that is known to have held it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recreate_lease: Option<RecreateLease>,
    /// Recover the database to an earlier time, in place: under its name, on new volumes. Those of before are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover: Option<Recover>,
    /// Go back to the volumes of before the last recovery in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_recovery: Option<UndoRecovery>,
    /// Keep what was recovered, and delete the volumes of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_recovery: Option<ConfirmRecovery>,
    /// Put another certificate authority in the place of the present one, and issue all certificates anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_authority: Option<RotateAuthority>,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(with = "Actions")]
pub enum Action {
    /// See [`Actions::switchover`].
    Switchover(Switchover),
    /// See [`Actions::take_image`].
    TakeImage(TakeImage),
    /// See [`Actions::restart`].
    Restart(Restart),
    /// See [`Actions::accept_loss`].
    AcceptLoss(AcceptLoss),
    /// See [`Actions::discard_quarantined`].
    DiscardQuarantined(DiscardQuarantined),
    /// See [`Actions::recreate_lease`].
    RecreateLease(RecreateLease),
    /// See [`Actions::recover`].
    Recover(Recover),
    /// See [`Actions::undo_recovery`].
    UndoRecovery(UndoRecovery),
    /// See [`Actions::confirm_recovery`].
    ConfirmRecovery(ConfirmRecovery),
    /// See [`Actions::rotate_authority`].
    RotateAuthority(RotateAuthority),
}

impl Action {
    /// Its name, as the beginning of an event's reason.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Switchover(_) => "Switchover",
            Self::TakeImage(_) => "TakeImage",
            Self::Restart(_) => "Restart",
            Self::AcceptLoss(_) => "AcceptLoss",
            Self::DiscardQuarantined(_) => "DiscardQuarantined",
            Self::RecreateLease(_) => "RecreateLease",
            Self::Recover(_) => "Recover",
            Self::UndoRecovery(_) => "UndoRecovery",
            Self::ConfirmRecovery(_) => "ConfirmRecovery",
            Self::RotateAuthority(_) => "RotateAuthority",
        }
    }
}

/// In words that follow "the request for".
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switchover(Switchover { to }) => write!(f, "a switchover to {to}"),
            Self::TakeImage(TakeImage { image }) => write!(f, "the default image {image}"),
            Self::Restart(Restart {}) => write!(f, "a restart of all instances"),
            Self::AcceptLoss(AcceptLoss { epoch }) => write!(f, "the acceptance of a loss in epoch {epoch}"),
            Self::DiscardQuarantined(DiscardQuarantined { instance, name }) => {
                write!(f, "the removal of quarantined data {name} of {instance}")
            }
            Self::RecreateLease(RecreateLease {}) => write!(f, "another Lease in place of the lost one"),
            Self::Recover(Recover { dry_run: true, .. }) => write!(f, "the plan of a recovery in place"),
            Self::Recover(_) => write!(f, "a recovery in place"),
            Self::UndoRecovery(UndoRecovery {}) => write!(f, "the way back from the recovery in place"),
            Self::ConfirmRecovery(ConfirmRecovery {}) => write!(f, "the removal of the volumes of before the recovery"),
            Self::RotateAuthority(_) => write!(f, "another certificate authority"),
        }
    }
}

impl From<Action> for Actions {
    fn from(action: Action) -> Self {
        let mut actions = Self::default();
        match action {
            Action::Switchover(switchover) => actions.switchover = Some(switchover),
            Action::TakeImage(take_image) => actions.take_image = Some(take_image),
            Action::Restart(restart) => actions.restart = Some(restart),
            Action::AcceptLoss(accept_loss) => actions.accept_loss = Some(accept_loss),
            Action::DiscardQuarantined(discard) => actions.discard_quarantined = Some(discard),
            Action::RecreateLease(recreate) => actions.recreate_lease = Some(recreate),
            Action::Recover(recover) => actions.recover = Some(recover),
            Action::UndoRecovery(undo) => actions.undo_recovery = Some(undo),
            Action::ConfirmRecovery(confirm) => actions.confirm_recovery = Some(confirm),
            Action::RotateAuthority(rotate) => actions.rotate_authority = Some(rotate),
        }
        actions
    }
}

impl Actions {
    /// All that are set.
    fn set(&self) -> impl Iterator<Item = Action> {
        let Self {
            switchover,
            take_image,
            restart,
            accept_loss,
            discard_quarantined,
            recreate_lease,
            recover,
            undo_recovery,
            confirm_recovery,
            rotate_authority,
        } = self.clone();
        let all = [
            switchover.map(Action::Switchover),
            take_image.map(Action::TakeImage),
            restart.map(Action::Restart),
            accept_loss.map(Action::AcceptLoss),
            discard_quarantined.map(Action::DiscardQuarantined),
            recreate_lease.map(Action::RecreateLease),
            recover.map(Action::Recover),
            undo_recovery.map(Action::UndoRecovery),
            confirm_recovery.map(Action::ConfirmRecovery),
            rotate_authority.map(Action::RotateAuthority),
        ];
        all.into_iter().flatten()
    }

    /// The one that is set; `None` if there is none, or more than one.
    pub fn only(&self) -> Option<Action> {
        let mut set = self.set();
        set.next().filter(|_| set.next().is_none())
    }
}

/// What one operation asks its cluster for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// UID of the operation: another one asks again.
    pub uid: String,
    /// What is to be done.
    pub action: Action,
}

impl Request {
    /// What the operation with this UID and spec asks for, if that is one thing.
    pub fn new(spec: &ClusteredDatabaseOperationSpec, uid: &str) -> Option<Self> {
        Some(Self {
            uid: uid.to_owned(),
            action: spec.actions.only()?,
        })
    }
}

/// Make another instance the primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Switchover {
    /// The instance that is to be the primary: the cluster's name, a dash and a number.
    pub to: String,
}

/// Take the operator's default image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TakeImage {
    /// The operator's default image: so an operation that comes late does not take a later one.
    pub image: String,
}

/// Replace the pods of all instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restart {}

/// Accept the loss of what missing instances have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcceptLoss {
    /// The epoch of the database's Lease (its `status.epoch`): the loss is accepted in this one alone.
    pub epoch: u64,
}

/// Remove data that an instance has quarantined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscardQuarantined {
    /// The instance that has it on its volume.
    pub instance: String,
    /// Its name, as the condition `DataSetAside` says it.
    pub name: String,
}

/// Make a lost Lease again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecreateLease {}

/// Recover the database in place, from its own backups in `spec.backup.store`. It is stopped first. If it cannot be recovered, it goes on
/// as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recover {
    /// The backup's name in the store, such as `20261124T230501Z-F-7f3a`. If absent, the last one before the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Up to where. If absent, the end of the archived WAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<RecoveryTarget>,
    /// Only look whether the store has all that it needs, and say what would be done. Nothing stops, and nothing is changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Delete the volumes of before when what was recovered has served for so many hours. If absent, they stay until that is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_hours: Option<u32>,
}

/// Undo a recovery in place. What was written since is on volumes that are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UndoRecovery {}

/// Delete the volumes that a recovery in place, or its undoing, has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfirmRecovery {}

/// Rotate the certificate authority. Nobody restarts, and no connection is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotateAuthority {
    /// Its key is in wrong hands: applications get no time to read the new authority (`spec.certificates.clientTrustHours`). Those that
    /// verify the server cannot connect before they have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compromised: bool,
}

/// What is known of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<OperationPhase>,
    /// What came of it, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the cluster took it up.
    #[serde(
        default,
        deserialize_with = "crate::moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_time: Option<DateTime<Utc>>,
    /// When it ended.
    #[serde(
        default,
        deserialize_with = "crate::moment::deserialize_optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub completion_time: Option<DateTime<Utc>>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OperationPhase {
    /// It waits for the cluster, or for an earlier operation.
    Pending,
    /// The cluster has taken it up.
    Running,
    /// It is done. It stays so.
    Completed,
    /// It could not be done. It stays so.
    Failed,
    /// It was taken back before it was done. It stays so.
    Cancelled,
}

impl OperationPhase {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether nothing follows it.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// A rule about an operation: where it stands in the schema, as CEL, what it says, and the same in Rust (`old` is the spec
/// before a change).
struct Rule {
    cel: &'static str,
    message: &'static str,
    holds: fn(&ClusteredDatabaseOperationSpec, Option<&ClusteredDatabaseOperationSpec>) -> bool,
}

const RULES: [Rule; 12] = [
    Rule {
        cel: "[has(self.switchover), has(self.takeImage), has(self.restart), has(self.acceptLoss), \
              has(self.discardQuarantined), has(self.recreateLease), has(self.recover), has(self.undoRecovery), \
              has(self.confirmRecovery), has(self.rotateAuthority)].filter(is, is).size() == 1",
        message: "spec must say what is to be done, and one thing only: switchover, takeImage, restart, \
                  acceptLoss, discardQuarantined, recreateLease, recover, undoRecovery, confirmRecovery or rotateAuthority",
        holds: |spec, _| spec.actions.only().is_some(),
    },
    Rule {
        cel: "!has(self.switchover) || self.switchover.to.startsWith(self.clusterRef.name + '-')",
        message: "switchover.to must name an instance of the cluster: clusterRef.name, a dash and a number",
        holds: |spec, _| {
            let switchover = spec.actions.switchover.as_ref();
            switchover.is_none_or(|switchover| spec.may_be_an_instance(&switchover.to))
        },
    },
    Rule {
        cel: "!has(self.discardQuarantined) || self.discardQuarantined.instance.startsWith(self.clusterRef.name + '-')",
        message: "discardQuarantined.instance must name an instance of the cluster: clusterRef.name, a dash and a number",
        holds: |spec, _| {
            let discard = spec.actions.discard_quarantined.as_ref();
            discard.is_none_or(|discard| spec.may_be_an_instance(&discard.instance))
        },
    },
    Rule {
        cel: "!has(self.acceptLoss) || self.acceptLoss.epoch > 0",
        message: "acceptLoss.epoch must be the epoch of the database's Lease: see its status.epoch",
        holds: |spec, _| spec.actions.accept_loss.as_ref().is_none_or(|accept| accept.epoch > 0),
    },
    Rule {
        cel: "!has(self.recover) || !has(self.recover.backup) || self.recover.backup.matches('^[0-9]{8}T[0-9]{6}Z-[FD]-[0-9a-f]{4}$')",
        message: "recover.backup must be the name of a full backup in the store, such as 20261124T230501Z-F-7f3a: correct or remove it",
        holds: |spec, _| {
            let recover = spec.actions.recover.as_ref();
            let is_full = |name: &str| is_backup(name) && !is_snapshot(name);
            recover.is_none_or(|recover| recover.backup.as_deref().is_none_or(is_full))
        },
    },
    Rule {
        cel: "!has(self.recover) || !has(self.recover.keepHours) || self.recover.keepHours >= 1 && self.recover.keepHours <= 10000",
        message: "recover.keepHours must be 1 to 10000: correct it, or remove it to keep the volumes until you confirm the recovery",
        holds: |spec, _| {
            let keep = spec.actions.recover.as_ref().and_then(|recover| recover.keep_hours);
            keep.is_none_or(|hours| (1..=10_000).contains(&hours))
        },
    },
    Rule {
        cel: "!has(self.recover) || !has(self.recover.target) || [has(self.recover.target.time), has(self.recover.target.lsn), \
              has(self.recover.target.xid), has(self.recover.target.name), \
              has(self.recover.target.immediate) && self.recover.target.immediate].filter(is, is).size() == 1",
        message: "recover.target must be one of time, lsn, xid, name and immediate: set one of them, or remove target to recover \
                  all that is archived",
        holds: |spec, _| spec.target().is_none_or(|target| target.kinds() == 1),
    },
    Rule {
        cel: "!has(self.recover) || !has(self.recover.target) || !has(self.recover.target.exclusive) || !self.recover.target.exclusive \
              || has(self.recover.target.time) || has(self.recover.target.lsn) || has(self.recover.target.xid)",
        message: "recover.target.exclusive needs time, lsn or xid: remove it",
        holds: |spec, _| spec.target().is_none_or(RecoveryTarget::may_be_exclusive),
    },
    Rule {
        cel: "!has(self.recover) || !has(self.recover.target) || !has(self.recover.target.lsn) \
              || self.recover.target.lsn.matches('^[0-9A-F]{1,8}/[0-9A-F]{1,8}$')",
        message: "recover.target.lsn must be a position in the WAL, such as 16/B3000028: correct it",
        holds: |spec, _| {
            spec.target()
                .and_then(|target| target.lsn.as_deref())
                .is_none_or(is_lsn)
        },
    },
    Rule {
        cel: "!has(self.recover) || !has(self.recover.target) || !has(self.recover.target.name) \
              || self.recover.target.name.matches('^[^\\\\x00-\\\\x1f\\\\x7f]*$')",
        message: "recover.target.name must be the name of a restore point: 1 to 63 characters without control characters",
        holds: |spec, _| {
            spec.target()
                .and_then(|target| target.name.as_deref())
                .is_none_or(is_restore_point)
        },
    },
    Rule {
        cel: "self.clusterRef == oldSelf.clusterRef && has(self.switchover) == has(oldSelf.switchover) \
              && (!has(self.switchover) || self.switchover == oldSelf.switchover) \
              && has(self.takeImage) == has(oldSelf.takeImage) \
              && (!has(self.takeImage) || self.takeImage == oldSelf.takeImage) \
              && has(self.restart) == has(oldSelf.restart) \
              && has(self.acceptLoss) == has(oldSelf.acceptLoss) \
              && (!has(self.acceptLoss) || self.acceptLoss == oldSelf.acceptLoss) \
              && has(self.discardQuarantined) == has(oldSelf.discardQuarantined) \
              && (!has(self.discardQuarantined) || self.discardQuarantined == oldSelf.discardQuarantined) \
              && has(self.recreateLease) == has(oldSelf.recreateLease) \
              && has(self.recover) == has(oldSelf.recover) \
              && (!has(self.recover) || self.recover == oldSelf.recover) \
              && has(self.undoRecovery) == has(oldSelf.undoRecovery) \
              && has(self.confirmRecovery) == has(oldSelf.confirmRecovery) \
              && has(self.rotateAuthority) == has(oldSelf.rotateAuthority) \
              && (!has(self.rotateAuthority) || self.rotateAuthority == oldSelf.rotateAuthority)",
        message: "what an operation is to do cannot be changed: make another one, and set cancel in this one",
        holds: |spec, old| old.is_none_or(|old| (&spec.cluster_ref, &spec.actions) == (&old.cluster_ref, &old.actions)),
    },
    Rule {
        cel: "!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)",
        message: "an operation that is taken back stays so: make another one",
        holds: |spec, old| old.is_none_or(|old| !old.cancel || spec.cancel),
    },
];

impl ClusteredDatabaseOperationSpec {
    fn target(&self) -> Option<&RecoveryTarget> {
        self.actions.recover.as_ref()?.target.as_ref()
    }

    fn may_be_an_instance(&self, name: &str) -> bool {
        let number = name.strip_prefix(&self.cluster_ref.name);
        number.is_some_and(|number| number.starts_with('-'))
    }
}

/// Names of clusters and instances are shorter than this; the bound lets an API server bound the cost of the rules.
pub(crate) const LONGEST_NAME: usize = 63;
/// As `spec.postgres.image` of a database.
const LONGEST_IMAGE: usize = 1_024;
/// Quarantined data has a directory of this name.
const LONGEST_DIRECTORY: usize = 255;
/// The texts of a spec ([`texts`]), and how many bytes each may have: the cluster's status is to hold them.
const TEXTS: [(&str, usize); 8] = [
    ("spec.clusterRef.name", LONGEST_NAME),
    ("spec.switchover.to", LONGEST_NAME),
    ("spec.takeImage.image", LONGEST_IMAGE),
    ("spec.discardQuarantined.instance", LONGEST_NAME),
    ("spec.discardQuarantined.name", LONGEST_DIRECTORY),
    ("spec.recover.backup", LONGEST_NAME),
    ("spec.recover.target.lsn", LONGEST_NAME),
    ("spec.recover.target.name", LONGEST_NAME),
];

fn texts(spec: &ClusteredDatabaseOperationSpec) -> [Option<&str>; TEXTS.len()] {
    let actions = &spec.actions;
    let discard = actions.discard_quarantined.as_ref();
    [
        Some(&spec.cluster_ref.name),
        actions.switchover.as_ref().map(|switchover| switchover.to.as_str()),
        actions.take_image.as_ref().map(|take| take.image.as_str()),
        discard.map(|discard| discard.instance.as_str()),
        discard.map(|discard| discard.name.as_str()),
        actions.recover.as_ref().and_then(|recover| recover.backup.as_deref()),
        spec.target().and_then(|target| target.lsn.as_deref()),
        spec.target().and_then(|target| target.name.as_deref()),
    ]
}

/// What is wrong with a spec, or with changing `old` into it: the rules that the API server checks, checked again.
pub fn refusal(
    spec: &ClusteredDatabaseOperationSpec,
    old: Option<&ClusteredDatabaseOperationSpec>,
) -> Option<&'static str> {
    let mut texts = TEXTS.into_iter().zip(texts(spec));
    if texts.any(|((_, most), text)| text.is_some_and(|text| text.len() > most)) {
        return Some("a text in spec is longer than its definition allows");
    }
    let broken = RULES.iter().find(|rule| !(rule.holds)(spec, old));
    broken.map(|rule| rule.message)
}

/// The CustomResourceDefinition of `ClusteredDatabaseOperation`.
///
/// # Panics
/// If the types in this file do not make a definition, which the tests exclude.
pub fn crd() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(ClusteredDatabaseOperation::crd()).expect("a definition is JSON");
    let schema = definition.pointer_mut(SCHEMA).expect("the definition has a schema");
    each_schema(schema, &mut drop_what_means_nothing_to_a_server);
    crate::values::explain::<ClusteredDatabaseOperation>(schema);
    for (place, most) in TEXTS {
        set(field_of(schema, place), "minLength", 1.into());
        set(field_of(schema, place), "maxLength", most.into());
    }
    let rules = RULES
        .iter()
        .map(|rule| json!({"rule": rule.cel, "message": rule.message}));
    set(field_of(schema, "spec"), "x-kubernetes-validations", rules.collect());
    serde_json::from_value(definition).expect("still a definition")
}

/// [`crd`] as the YAML that is checked in as `manifests/crd/clustereddatabaseoperations.yaml`.
///
/// # Panics
/// As [`crd`].
pub fn crd_yaml() -> String {
    let yaml = serde_saphyr::to_string(&crd()).expect("a definition is YAML");
    format!("# Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again.\n{yaml}")
}
