//! What an agent observes, as data.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::super::{
    ClusterView, Configured, EnforcedSettings, Exit, LeaseVersion, Mode, Promise, Purpose, Reading, Refused, Reply,
    Route, VolumeView, WalSender, Work,
};
use api::backup::BackupTask;

use crate::archive::ArchiveRecord;
use crate::protocol::{FailsafeReply, Fork, LeaseRecord, Lsn, MemberId, Position, PromiseReply, Volume};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};
use crate::units::Millis;

/// A PostgreSQL server that this agent has started: its process id, or another number that distinguishes servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerId(pub u64);

/// Something that an agent has observed.
#[derive(Clone, Debug)]
pub enum Event {
    /// A version of a `ClusteredDatabase` of this name.
    Cluster(Box<ClusterView>),
    /// A version of the Lease from its watch, or its absence. [`Reading::Unknown`]: the object cannot be read at all.
    Lease(Reading<Box<SeenLease>>),
    /// The address in the EndpointSlice of `-rw`.
    Route(Option<Route>),
    /// The version of PostgreSQL's programs that were found.
    Version(String),
    /// Agent and PostgreSQL, if it runs, have loaded the certificates of this digest.
    Certificates(String),
    /// The volume was read outside a task.
    Scanned(Box<Scan>),
    /// A server has ended.
    Exited(ServerId),
    /// A task has ended.
    Done(Box<Done>),
    /// Another member has answered a request for a promise.
    Promise {
        /// Its pod.
        pod: String,
        /// Its answer.
        reply: PromiseReply,
        /// The key that the answer is signed with.
        key: Option<String>,
    },
    /// Another member has promised not to take the lease.
    Failsafe {
        /// Its pod.
        pod: String,
        /// Its answer.
        reply: FailsafeReply,
        /// The key that the answer is signed with.
        key: Option<String>,
        /// When the request was about to be sent.
        sent: BootTime,
    },
    /// The outcome of a question to PostgreSQL about its state.
    Status {
        /// The server that was asked.
        server: ServerId,
        /// When it was asked.
        asked: BootTime,
        /// What it answered.
        answer: Result<Box<Status>, NoAnswer>,
    },
    /// The canary's write, begun at that time, was flushed.
    Wrote {
        /// The server that flushed it.
        server: ServerId,
        /// When the write was begun.
        begun: BootTime,
    },
    /// PostgreSQL accepted a session that was begun at that time, or refused it with an error message.
    Greeted {
        /// The server.
        server: ServerId,
        /// When the session was begun.
        begun: BootTime,
    },
    /// The lowest settings that the control file allows a standby.
    Enforced(EnforcedSettings),
    /// PostgreSQL runs well with the settings of this hash, which are stored.
    GoodSettings(String),
    /// The quarantined data, by name.
    Kept(BTreeSet<String>),
    /// The volumes that have no room.
    Full(BTreeSet<Volume>),
    /// What the archive's worker says.
    Archive(Box<ArchiveRecord>),
    /// How far the backup is for which this member copies its files.
    Backup(Box<BackupTask>),
    /// How many PostgreSQL processes live without a postmaster.
    Strays(u32),
    /// The container is asked to end.
    Terminate,
}

/// What the agent should log or do about an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The `ClusteredDatabase` has another UID; nothing was taken from it.
    AnotherCluster,
    /// A task has failed in another way than before.
    Failed {
        /// The task.
        work: Work,
        /// Why.
        message: String,
    },
    /// PostgreSQL has not responded for too long: from now on it counts as not answering.
    Silent,
    /// PostgreSQL answered before, and does not now.
    Unanswered,
    /// PostgreSQL answered with settings that differ from the last good ones: they have just proved good.
    SettingsProved,
    /// The server has ended.
    Ended {
        /// The server that ended.
        server: ServerId,
        /// How it ended.
        exit: Exit,
    },
    /// A peer's message does not count.
    Refused {
        /// The kind of message.
        what: &'static str,
        /// Why.
        reason: String,
    },
}

impl Note {
    pub(super) fn refused(what: &'static str, reason: String) -> Self {
        Note::Refused { what, reason }
    }
}

/// A version of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLease {
    /// The object, and its version.
    pub place: LeaseVersion,
    /// Its content; `None` if it is not understood.
    pub record: Option<LeaseRecord>,
}

/// What was read from the volume at one time.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Identity and data.
    pub view: VolumeView,
    /// The lowest settings that the control file allows.
    pub enforced: Option<EnforcedSettings>,
    /// Hash of the settings that PostgreSQL last ran well with.
    pub good_settings: Option<String>,
}

/// How a standby finds its primary; both empty: it follows no primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Following {
    /// `primary_conninfo`.
    pub conninfo: String,
    /// `primary_slot_name`.
    pub slot: String,
}

/// PostgreSQL's answer about its state, as far as decisions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// True if it recovers: a standby, or a server in crash recovery.
    pub in_recovery: bool,
    /// End of the WAL that it has: flushed (primary), or the larger of received and replayed (standby).
    pub position: Position,
    /// Without a WAL receiver: where the timeline of `position` begins; `None` if that is not known.
    pub begins: Option<Lsn>,
    /// Primary: end of its WAL, flushed or not.
    pub inserted: Option<Lsn>,
    /// Standby: how far it has replayed.
    pub replayed: Option<Lsn>,
    /// Standby: true if it has no WAL receiver, and `position` is the end of all its WAL (protocol.md rule 5).
    pub received_all: bool,
    /// Standby: true if it has read all WAL that it had when it was started.
    pub knows_end: bool,
    /// Standby: true if its startup process waits for more WAL.
    pub waits_for_wal: bool,
    /// Standby: how it finds its primary.
    pub following: Following,
    /// Without a WAL receiver: ancestors of its timeline, oldest first.
    pub history: Vec<Fork>,
    /// Primary: where its oldest WAL begins; read only while a slot is not in use.
    pub oldest: Option<Lsn>,
    /// Standby: its WAL receiver.
    pub receiver: Option<Receiver>,
    /// Its WAL senders.
    pub senders: Vec<WalSender>,
    /// Members that have a replication slot here.
    pub slots: BTreeSet<MemberId>,
    /// Members whose slot lost WAL that it should have kept and is not in use.
    pub lost_slots: BTreeSet<MemberId>,
    /// True if some settings wait for a restart.
    pub pending_restart: bool,
    /// True if one of these lowers a limit that standbys must not be below.
    pub lowers_limits: bool,
}

/// A WAL receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// `pg_stat_wal_receiver.status`.
    pub status: String,
    /// How long ago it last heard its sender.
    pub heard_age: Option<Millis>,
}

/// Why PostgreSQL did not answer about its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No answer arrived in time.
    Silent,
    /// It refused with this error message, but accepts sessions otherwise.
    Refused(String),
    /// It accepts no sessions at the moment, or the connection broke.
    Unable,
}

/// A task has ended.
#[derive(Clone, Debug)]
pub struct Done {
    /// The task.
    pub work: Work,
    /// Its outcome.
    pub result: Result<Effect, Failure>,
}

/// The effect of a task.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The volume was changed, and read again.
    Volume(Box<Scan>),
    /// Quarantined data was removed; this is what remains.
    Discarded(BTreeSet<String>),
    /// PostgreSQL was started.
    Started {
        /// The server.
        server: ServerId,
        /// True if it has ended since.
        ended: bool,
        /// The mode in which it was started.
        mode: Mode,
        /// Its configuration.
        configured: Configured,
        /// How it finds its primary.
        following: Following,
        /// `synchronous_standby_names` of a primary.
        rule: SyncRule,
        /// The promise that was made before following a primary.
        promise: Option<Promise>,
    },
    /// The promise is kept: no WAL of a lower epoch is received any more.
    Promised(Promise),
    /// The other members were asked; their answers arrive as events of their own.
    Asked,
    /// The standby was promoted, closed to applications.
    Promoted {
        /// `synchronous_standby_names`.
        rule: SyncRule,
        /// Its configuration.
        configured: Configured,
        /// End of its WAL after that. WAL before it may be in doubt.
        in_doubt: Lsn,
        /// The promise on the volume, without the note of the promotion.
        promise: Promise,
        /// PostgreSQL's answer about its state after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
    },
    /// Every WAL sender uses a rule.
    Synced {
        /// The rule.
        rule: SyncRule,
        /// End of the WAL when that was proven.
        at: Lsn,
    },
    /// Applications may connect.
    Opened,
    /// A checkpoint was made.
    Checkpointed,
    /// PostgreSQL was configured again.
    Configured {
        /// The content of its configuration files now.
        configured: Configured,
        /// How it finds its primary.
        following: Following,
        /// PostgreSQL's answer about its state after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
        /// The promise that was made before following a primary.
        promise: Option<Promise>,
    },
    /// The Lease was written.
    Lease {
        /// The object as the API server stored it.
        written: Box<SeenLease>,
        /// When the request was sent.
        sent: BootTime,
        /// The purpose of the write.
        purpose: Purpose,
        /// The times promised in it.
        timing: Timing,
    },
    /// The Lease was read.
    LeaseRead(Box<SeenLease>),
    /// `-rw` points here.
    Routed(Option<Route>),
    /// A member's role and slot exist.
    Admitted(MemberId),
    /// Slots of all other members were dropped.
    Kept(BTreeSet<MemberId>),
    /// The primary has answered the report.
    Reported {
        /// The answer.
        reply: Box<Reply>,
        /// The holder's run to which the report was sent.
        run: Option<String>,
    },
}

/// A task has failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Why, as text.
    pub message: String,
    /// What the failure shows.
    pub news: Option<News>,
}

impl Failure {
    /// A failure that shows nothing else.
    pub fn said(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            news: None,
        }
    }
}

/// What a failed task can show.
#[derive(Clone, Debug)]
pub enum News {
    /// The present Lease.
    Lease(Box<SeenLease>),
    /// Settings that PostgreSQL refuses.
    Refused(Refused),
    /// The present content of the volume.
    Volume(Box<Scan>),
    /// The present promise.
    Promise(Promise),
    /// How the call to the holder's agent ended.
    Contact {
        /// The outcome of the call.
        contacted: Contacted,
        /// The holder's run to which the call was made.
        run: Option<String>,
    },
}

/// How a call to the holder's agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contacted {
    /// It answered as the holder.
    Heard,
    /// Its address refused the connection.
    Refused,
    /// It did neither.
    Silent,
}
