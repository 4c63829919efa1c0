//! The phases of a `ClusteredDatabase`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of the database. It is for people and dampens the operator's changes of phase. No decision about safety relies on
/// it: the operator derives safety again from what it observes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The objects and the first primary are being made, and the standbys cloned.
    #[default]
    Creating,
    /// The first primary is being restored from a backup.
    Restoring,
    /// The primary serves, all wanted members are ready and at the wanted revision.
    Ready,
    /// A change of the spec, or the repair of a lost part, is being carried out.
    Updating,
    /// The primary is being moved on request.
    SwitchingOver,
    /// The primary is lost; a new one is being established.
    FailingOver,
    /// A major version upgrade is under way.
    Upgrading,
    /// Stopped on request; the volumes stay.
    Hibernated,
    /// Being deleted.
    Deleting,
    /// Blocked until the spec is changed or the named fault is gone.
    Failed,
}

impl Phase {
    /// All phases, in declaration order.
    pub const ALL: [Phase; 10] = [
        Phase::Creating,
        Phase::Restoring,
        Phase::Ready,
        Phase::Updating,
        Phase::SwitchingOver,
        Phase::FailingOver,
        Phase::Upgrading,
        Phase::Hibernated,
        Phase::Deleting,
        Phase::Failed,
    ];

    /// The phase's name in `status.phase`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Creating => "Creating",
            Phase::Restoring => "Restoring",
            Phase::Ready => "Ready",
            Phase::Updating => "Updating",
            Phase::SwitchingOver => "SwitchingOver",
            Phase::FailingOver => "FailingOver",
            Phase::Upgrading => "Upgrading",
            Phase::Hibernated => "Hibernated",
            Phase::Deleting => "Deleting",
            Phase::Failed => "Failed",
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
