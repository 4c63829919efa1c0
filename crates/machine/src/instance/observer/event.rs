//! What an agent sees, as data.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::super::{
    ClusterView, Configured, EnforcedSettings, Exit, LeaseVersion, Mode, Promise, Purpose, Reading, Refused, Reply,
    Route, VolumeView, WalSender, Work,
};
use crate::protocol::{FailsafeReply, Fork, LeaseRecord, Lsn, MemberId, Position, PromiseReply, Volume};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};

/// A PostgreSQL server that this agent has started: its process id, or another number that tells servers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerId(pub u64);

/// Something that an agent has seen.
#[derive(Clone, Debug)]
pub enum Event {
    /// A version of a `ClusteredDatabase` of this name.
    Cluster(Box<ClusterView>),
    /// A version of the Lease by its watch, or its absence. [`Reading::Unknown`]: the object cannot be read at all.
    Lease(Reading<Box<SeenLease>>),
    /// Where the EndpointSlice of `-rw` points.
    Route(Option<Route>),
    /// PostgreSQL's programs were found, of this version.
    Version(String),
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
    /// PostgreSQL was asked how it is.
    Status {
        /// The server that was asked.
        server: ServerId,
        /// When.
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
    /// PostgreSQL took a session that was begun at that time, or refused it with words.
    Greeted {
        /// The server.
        server: ServerId,
        /// When the session was begun.
        begun: BootTime,
    },
    /// What the control file demands of a standby.
    Enforced(EnforcedSettings),
    /// PostgreSQL runs well with the settings of this hash, and they are known.
    GoodSettings(String),
    /// Data that was set aside and kept, by name.
    Kept(BTreeSet<String>),
    /// The volumes that have no room.
    Full(BTreeSet<Volume>),
    /// So many PostgreSQL processes live without a postmaster.
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
    /// PostgreSQL has been silent for too long: it counts as not answering from now on.
    Silent,
    /// PostgreSQL answered before, and does not now.
    Unanswered,
    /// PostgreSQL runs with settings that are not those it last ran well with: they have just proved good.
    SettingsProved,
    /// The server has ended.
    Ended {
        /// Which.
        server: ServerId,
        /// How.
        exit: Exit,
    },
    /// A peer's message counts as nothing.
    Refused {
        /// What it was.
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
    /// Which object, and which version of it.
    pub place: LeaseVersion,
    /// What it says; `None` if that is not understood.
    pub record: Option<LeaseRecord>,
}

/// What was read from the volume at one time.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Identity and data.
    pub view: VolumeView,
    /// Settings that the control file demands.
    pub enforced: Option<EnforcedSettings>,
    /// Hash of the settings that PostgreSQL last ran well with.
    pub good_settings: Option<String>,
}

/// How a standby finds its primary; both empty: it follows nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Following {
    /// `primary_conninfo`.
    pub conninfo: String,
    /// `primary_slot_name`.
    pub slot: String,
}

/// What PostgreSQL says of itself, as far as it counts for decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// It recovers: a standby, or a server in crash recovery.
    pub in_recovery: bool,
    /// End of the WAL that it has: flushed (primary), or the larger of received and replayed (standby).
    pub position: Position,
    /// Without a WAL receiver: where the timeline of `position` begins; `None` if that is not known.
    pub begins: Option<Lsn>,
    /// Primary: end of its WAL, flushed or not.
    pub inserted: Option<Lsn>,
    /// Standby: end of the WAL that it has replayed.
    pub replayed: Option<Lsn>,
    /// Standby: it has no WAL receiver, and `position` is the end of all its WAL (protocol.md rule 5).
    pub received_all: bool,
    /// Standby: it has read all WAL that it had when it was started.
    pub knows_end: bool,
    /// Standby: its startup process waits for more WAL.
    pub waits_for_wal: bool,
    /// Standby: how it finds its primary.
    pub following: Following,
    /// Without a WAL receiver: ancestors of its timeline, oldest first.
    pub history: Vec<Fork>,
    /// Primary: where its oldest WAL begins; asked only while some slot is not in use.
    pub oldest: Option<Lsn>,
    /// Standby: its WAL receiver.
    pub receiver: Option<Receiver>,
    /// Its WAL senders.
    pub senders: Vec<WalSender>,
    /// Members that have a replication slot here.
    pub slots: BTreeSet<MemberId>,
    /// Members whose slot lost WAL that it should have kept, and is not in use.
    pub lost_slots: BTreeSet<MemberId>,
    /// Some settings wait for a restart.
    pub pending_restart: bool,
    /// One of these lowers a limit that standbys must not be below.
    pub lowers_limits: bool,
}

/// A WAL receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// `pg_stat_wal_receiver.status`.
    pub status: String,
    /// Milliseconds since it last heard its sender.
    pub heard_age: Option<u64>,
}

/// Why PostgreSQL did not say how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No answer came in time.
    Silent,
    /// It refused with these words, and takes sessions otherwise.
    Refused(String),
    /// It takes no sessions now, or the connection broke.
    Unable,
}

/// A task has ended.
#[derive(Clone, Debug)]
pub struct Done {
    /// Which.
    pub work: Work,
    /// How.
    pub result: Result<Effect, Failure>,
}

/// What a task has brought about.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The volume was changed, and read again.
    Volume(Box<Scan>),
    /// Something that was set aside is gone; this is left.
    Discarded(BTreeSet<String>),
    /// PostgreSQL was started.
    Started {
        /// The server.
        server: ServerId,
        /// It has ended by now.
        ended: bool,
        /// As what it was started.
        mode: Mode,
        /// Its configuration.
        configured: Configured,
        /// How it finds its primary.
        following: Following,
        /// `synchronous_standby_names` of a primary.
        rule: SyncRule,
        /// What was promised before a primary is followed.
        promise: Option<Promise>,
    },
    /// Nothing is received any more from an epoch below the promised one.
    Promised(Promise),
    /// The others were asked; their answers come by themselves.
    Asked,
    /// The standby was promoted, closed to applications.
    Promoted {
        /// `synchronous_standby_names`.
        rule: SyncRule,
        /// Its configuration.
        configured: Configured,
        /// End of its WAL after that: what may be in doubt is before it.
        in_doubt: Lsn,
        /// What is promised, without the note of the promotion.
        promise: Promise,
        /// What PostgreSQL said of itself after that.
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
    /// PostgreSQL was configured anew.
    Configured {
        /// What its files say now.
        configured: Configured,
        /// How it finds its primary.
        following: Following,
        /// What PostgreSQL said of itself after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
        /// What was promised before a primary is followed.
        promise: Option<Promise>,
    },
    /// The Lease was written.
    Lease {
        /// As the API server keeps it now.
        written: Box<SeenLease>,
        /// When the request was sent.
        sent: BootTime,
        /// What for.
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
    /// Slots of others than these members are dropped.
    Kept(BTreeSet<MemberId>),
    /// The primary has answered the report.
    Reported {
        /// The answer.
        reply: Box<Reply>,
        /// The holder's run that was called.
        run: Option<String>,
    },
}

/// A task has failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Why, in words.
    pub message: String,
    /// What was learned by it.
    pub news: Option<News>,
}

impl Failure {
    /// A failure that teaches nothing else.
    pub fn said(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            news: None,
        }
    }
}

/// What a failed task can teach.
#[derive(Clone, Debug)]
pub enum News {
    /// The Lease as it is now.
    Lease(Box<SeenLease>),
    /// Settings that PostgreSQL refuses.
    Refused(Refused),
    /// What is on the volume now.
    Volume(Box<Scan>),
    /// What is promised now.
    Promise(Promise),
    /// How the call to the holder's agent ended.
    Contact {
        /// How.
        contacted: Contacted,
        /// The holder's run that was called.
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
    /// Neither.
    Silent,
}
