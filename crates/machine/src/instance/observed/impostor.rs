//! WAL senders that use a member's name without its role (protocol.md rule 3).

use std::collections::BTreeSet;

use crate::protocol::Lsn;
use crate::timing::BootTime;

/// A WAL sender that uses a member's name with another role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Impostor {
    /// Process id of the WAL sender.
    pub pid: i32,
    /// The role of its session.
    pub role: String,
    /// Its `application_name`.
    pub name: String,
}

/// Commits may have been acknowledged because an impostor was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    /// The impostors' roles; if there are many, some of them.
    pub roles: BTreeSet<String>,
    /// The end of the commits that are in doubt.
    pub until: Lsn,
    /// When an impostor was last seen.
    pub seen: BootTime,
}
