//! The conditions' types, reasons and answers.

use api::status::{FailureReason, WaitReason};

/// A question about a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// Is it as the spec wants it, in every part?
    Ready,
    /// Does the primary serve?
    Available,
    /// Is something being changed or waited for?
    Progressing,
    /// Is less there than wanted, though it was made?
    Degraded,
    /// Does a second copy of the data follow the primary?
    DataSafe,
    /// As `Progressing`, under the name of kstatus
    /// (<https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus>), by which Flux, Helm and kpt wait.
    Reconciling,
    /// Does the operator get no further by itself? A name of kstatus, too: such a resource counts as failed.
    Stalled,
}

/// The condition that is there only as long as it is true: an instance keeps data that was set aside.
pub(super) const SET_ASIDE: &str = "DataSetAside";

/// The same of what the operator's default image is another one than instances run.
pub(super) const OTHER_DEFAULT: &str = "OtherDefaultImage";

/// The same of volumes of before a recovery in place.
pub(super) const FORMER_VOLUMES: &str = "FormerVolumesKept";

/// The same of certificates that end within a month.
pub(super) const CERTIFICATES_EXPIRE: &str = "CertificatesExpire";

/// The same of a route that leads to no pod of the database.
pub const FOREIGN_ROUTE: &str = "ForeignRoute";

/// The condition that is there as long as the spec asks for an archive.
pub const BACKUP_HEALTHY: &str = "BackupHealthy";

/// The answers' reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Everything is as wanted.
    AsWanted,
    /// Something is not as wanted yet, and nothing is waited for.
    NotAsWanted,
    /// What is waited for.
    Waiting(WaitReason),
    /// The API server refuses something that holds nothing else up: it is tried again, with growing pauses.
    Refused,
    /// What is waited for has not come in the time that it should take (`status.waiting.deadlineTime`).
    DeadlineExceeded,
    /// See [`FailureReason`].
    Failed(FailureReason),
    /// The resource is being deleted.
    Deleting,
    /// `spec.paused`.
    Paused,
    /// The primary serves.
    PrimaryServes,
    /// The database was not made yet.
    NotMade,
    /// It was made, and no primary serves.
    NoPrimary,
    /// All members serve.
    AllServe,
    /// Some members do not serve.
    MembersMissing,
    /// PostgreSQL refuses the settings.
    SettingsRefused,
    /// A member's volume has no room.
    VolumeFull,
    /// At least one standby streams from the primary.
    Replicated,
    /// No standby streams from the primary.
    NotReplicated,
    /// Commits wait for fewer standbys than `spec.durability` promises.
    DurabilityReduced,
    /// A role replicates under a member's name: commits may not be where they seem to be.
    MemberImpersonated,
    /// There is only one instance.
    SingleInstance,
    /// A claim was deleted, and lasts only as long as the pod that uses it.
    ClaimDeleted,
    /// A member's data is not this database's.
    ForeignData,
    /// `spec.fenced`, and PostgreSQL is known to have stopped there.
    Fenced,
    /// `spec.fenced`, and PostgreSQL may still run there.
    Fencing,
    /// `spec.hibernated`.
    Hibernated,
    /// Data that could not be made to follow the primary was moved aside.
    Kept,
    /// A certificate ends within a month.
    EndsSoon,
    /// It is on record which image instances run.
    OnRecord,
    /// `-rw` leads to an address that no pod of the database has.
    AddressOfNoPod,
    /// WAL is archived.
    Archiving,
    /// WAL is not archived at present.
    ArchiveFails,
    /// WAL is written faster than it is archived, and will use up its room.
    ArchiveFallsBehind,
    /// A new line of the archive has no backup yet.
    ArchiveLineNew,
    /// WAL is archived, and there is no backup to recover it with.
    NoBackup,
    /// The last backup has failed.
    BackupFailed,
    /// A schedule has had its time twice since the last backup began.
    BackupOverdue,
    /// WAL was given up before it was archived.
    ArchiveHasGap,
    /// The backups in the store cannot be listed, or not removed.
    CatalogueFails,
    /// The last backup has pages with wrong checksums, and no member has better ones.
    DamagedPages,
    /// The last drill failed: it is not proven that the backups can be used.
    DrillFails,
    /// No drill has succeeded for longer than `spec.backup.drill.maxAgeDays` says.
    ProofTooOld,
    /// Whether WAL is archived is not known yet.
    ArchiveUnknown,
    /// A schedule of backups is not understood.
    ScheduleInvalid,
    /// The operator's own code failed for this database.
    InternalError,
    /// An object of the database is there and cannot be read: nothing that depends on it is changed.
    UnreadableObject,
    /// Something could not be read.
    Unknown,
}

impl ConditionKind {
    /// All of them, in the order of the status.
    pub const ALL: [ConditionKind; 7] = [
        ConditionKind::Ready,
        ConditionKind::Available,
        ConditionKind::Progressing,
        ConditionKind::Degraded,
        ConditionKind::DataSafe,
        ConditionKind::Reconciling,
        ConditionKind::Stalled,
    ];

    /// The condition's `type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            ConditionKind::Ready => "Ready",
            ConditionKind::Available => "Available",
            ConditionKind::Progressing => "Progressing",
            ConditionKind::Degraded => "Degraded",
            ConditionKind::DataSafe => "DataSafe",
            ConditionKind::Reconciling => "Reconciling",
            ConditionKind::Stalled => "Stalled",
        }
    }
}

impl Reason {
    /// The condition's `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::AsWanted => "AsWanted",
            Reason::Waiting(reason) => reason.as_str(),
            Reason::NotAsWanted => "NotAsWanted",
            Reason::Refused => "Refused",
            Reason::DeadlineExceeded => "DeadlineExceeded",
            Reason::Failed(FailureReason::StorageClassNotFound) => "StorageClassNotFound",
            Reason::Failed(FailureReason::InvalidSpec) => "InvalidSpec",
            Reason::Failed(FailureReason::ImageCannotRun) => "ImageCannotRun",
            Reason::Failed(FailureReason::QuotaExceeded) => "QuotaExceeded",
            Reason::Failed(FailureReason::ForeignObject) => "ForeignObject",
            Reason::Failed(FailureReason::NothingToAdopt) => "NothingToAdopt",
            Reason::Failed(FailureReason::BootstrapFailed) => "BootstrapFailed",
            Reason::Failed(FailureReason::PartLost) => "PartLost",
            Reason::Deleting => "Deleting",
            Reason::Paused => "Paused",
            Reason::PrimaryServes => "PrimaryServes",
            Reason::NotMade => "NotMade",
            Reason::NoPrimary => "NoPrimary",
            Reason::AllServe => "AllServe",
            Reason::MembersMissing => "MembersMissing",
            Reason::SettingsRefused => "SettingsRefused",
            Reason::VolumeFull => "VolumeFull",
            Reason::Replicated => "Replicated",
            Reason::NotReplicated => "NotReplicated",
            Reason::DurabilityReduced => "DurabilityReduced",
            Reason::MemberImpersonated => "MemberImpersonated",
            Reason::SingleInstance => "SingleInstance",
            Reason::ClaimDeleted => "ClaimDeleted",
            Reason::ForeignData => "ForeignData",
            Reason::Fenced => "Fenced",
            Reason::Fencing => "Fencing",
            Reason::Hibernated => "Hibernated",
            Reason::Kept => "Kept",
            Reason::EndsSoon => "EndsSoon",
            Reason::OnRecord => "OnRecord",
            Reason::AddressOfNoPod => "AddressOfNoPod",
            Reason::Archiving => "Archiving",
            Reason::ArchiveFails => "ArchiveFails",
            Reason::ArchiveFallsBehind => "ArchiveFallsBehind",
            Reason::ArchiveLineNew => "ArchiveLineNew",
            Reason::NoBackup => "NoBackup",
            Reason::BackupFailed => "BackupFailed",
            Reason::BackupOverdue => "BackupOverdue",
            Reason::ArchiveHasGap => "ArchiveHasGap",
            Reason::CatalogueFails => "CatalogueFails",
            Reason::DamagedPages => "DamagedPages",
            Reason::DrillFails => "DrillFails",
            Reason::ProofTooOld => "ProofTooOld",
            Reason::ArchiveUnknown => "ArchiveUnknown",
            Reason::ScheduleInvalid => "ScheduleInvalid",
            Reason::InternalError => "InternalError",
            Reason::UnreadableObject => "UnreadableObject",
            Reason::Unknown => "Unknown",
        }
    }
}

/// One answer: `None` if it cannot be told.
pub(in crate::cluster) struct Answer {
    pub holds: Option<bool>,
    pub reason: Reason,
    pub message: String,
}

impl Answer {
    pub(in crate::cluster) fn new(holds: bool, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            holds: Some(holds),
            reason,
            message: message.into(),
        }
    }
}
