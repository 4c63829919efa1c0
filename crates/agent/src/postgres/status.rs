//! What the server says of itself.

use machine::protocol::{Lsn, Position, Timeline};
use serde::{Deserialize, Serialize};

/// What the server says of itself, read in one round trip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// It recovers: a standby, or a server in crash recovery.
    pub in_recovery: bool,
    /// System identifier.
    pub system_id: String,
    /// Version, such as `17.6`.
    pub version: String,
    /// End of the WAL that it has: flushed (primary), or the larger of received and replayed (standby), with the timeline of that WAL.
    pub position: Position,
    /// Timeline that it is on.
    pub timeline: Timeline,
    /// Standby: end of the WAL that it replayed.
    pub replayed: Option<Lsn>,
    /// Standby: who sends it WAL; `None` if nobody.
    pub receiver: Option<Receiver>,
    /// Who gets WAL from it.
    pub senders: Vec<Sender>,
    /// Its physical replication slots.
    pub slots: Vec<Slot>,
    /// Settings that wait for a restart.
    pub pending_restart: Vec<String>,
    /// Lines of its configuration files that it does not take (other than those that wait for a restart).
    pub settings_errors: Vec<String>,
    /// Sessions of applications.
    pub sessions: u32,
}

/// A WAL receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receiver {
    /// `streaming`, `starting`, `waiting` …
    pub status: String,
    /// Address that it receives from.
    pub sender_host: Option<String>,
    /// Slot that it uses.
    pub slot: Option<String>,
    /// End of what it flushed.
    pub flushed: Option<Lsn>,
    /// Timeline that it receives.
    pub timeline: Option<Timeline>,
}

/// A WAL sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sender {
    /// Role that it is logged in as: the member.
    pub user: String,
    /// `application_name`.
    pub application: String,
    /// `streaming`, `catchup`, `backup` …
    pub state: String,
    /// Sent.
    pub sent: Option<Lsn>,
    /// Flushed there.
    pub flushed: Option<Lsn>,
    /// Replayed there.
    pub replayed: Option<Lsn>,
}

/// A physical replication slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Name.
    pub name: String,
    /// In use.
    pub active: bool,
    /// Oldest WAL that it keeps.
    pub restart: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
}
