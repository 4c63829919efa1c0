//! What an agent can do, one at a time. Each action names everything: its executor makes no choice.

use std::collections::{BTreeMap, BTreeSet};

use super::observed::{Upstream, Work};
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, FailsafeRequest, Fork, MemberId, PromiseRequest, ReportRequest, Timeline};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing now.
    Wait,
    /// Make this volume's identity and key.
    CreateMember {
        /// The claim that it is for.
        claim_uid: String,
    },
    /// Write down the replication certificate.
    StoreCertificate {
        /// The member that it was signed for.
        member: MemberId,
        /// PEM.
        pem: String,
    },
    /// Throw away an unfinished `initdb` or clone.
    DiscardStaging,
    /// Make the first database: note for whom, then work in the staging directory, then rename.
    Initdb {
        /// UID of the `ClusteredDatabase`.
        cluster_uid: String,
    },
    /// Copy the primary into the staging directory, then rename.
    Clone {
        /// Address of the primary.
        upstream: String,
        /// Whose role and slot to use.
        member: MemberId,
        /// System identifier that the copy must have.
        system_id: String,
    },
    /// Replace the Lease (compare-and-swap on its version).
    WriteLease {
        /// Its new content.
        content: Box<LeaseContent>,
        /// What becomes of the lease by it.
        purpose: Purpose,
        /// The times promised in it.
        timing: Timing,
    },
    /// Read the Lease, beside its watch; its absence is told by the watch alone.
    ReadLease,
    /// Start PostgreSQL for writing, on the timeline that its data has: closed to applications, with `rule` as
    /// `synchronous_standby_names`.
    StartPrimary {
        /// The epoch in which the lease is held.
        epoch: Epoch,
        /// Do not start it at this time or later.
        until: BootTime,
        /// Hash of the settings to start with.
        settings: String,
        /// The synchronous rule on record.
        rule: SyncRule,
    },
    /// Promise durably, in the order of protocol.md rule 4: persist the epoch; take away the credential of the WAL receiver;
    /// end the WAL receiver, and see that there is none.
    Promise {
        /// The epoch: nothing is received any more from one below.
        epoch: Epoch,
    },
    /// Ask the other members for promises, all at once; their answers come one by one.
    Ask {
        /// Pod names and addresses; in an address's place the name again, if none is known.
        peers: BTreeMap<String, String>,
        /// The request.
        request: PromiseRequest,
    },
    /// Ask the other members not to take the lease while it cannot be renewed, all at once; their answers come one by one.
    AskFailsafe {
        /// Pod names and addresses.
        peers: BTreeMap<String, String>,
        /// The request.
        request: FailsafeRequest,
    },
    /// Promote the running standby (protocol.md rules 13, 14): note the promotion on the volume; set `rule` and verify it;
    /// close to applications; make the slots of `members`, and drop those of all others; lay stub history files so that PostgreSQL
    /// picks `timeline`; promote; read the timeline back, and stop at once if it is another; drop the note.
    Promote {
        /// The epoch in which the lease is held.
        epoch: Epoch,
        /// Do not begin at this time or later.
        until: BootTime,
        /// The timeline reserved for it.
        timeline: Timeline,
        /// The synchronous rule on record.
        rule: SyncRule,
        /// Of its names those that may stream at once.
        members: BTreeSet<MemberId>,
    },
    /// Set `synchronous_standby_names` and prove that every WAL sender uses it (protocol.md rule 11).
    SetSync {
        /// The rule.
        rule: SyncRule,
    },
    /// Let applications connect.
    Open,
    /// Make a checkpoint, in bounded time.
    Checkpoint,
    /// Make the stopped, diverged data follow the primary again (`pg_rewind`), under a durable mark (protocol.md rule 17).
    Rewind {
        /// The primary.
        upstream: Upstream,
        /// Whose role to use.
        member: MemberId,
        /// The data may have acknowledged commits that the primary lacks. Before anything is changed its WAL is copied aside,
        /// once, from where this history of the primary's timeline leaves its own.
        keep: Option<Vec<Fork>>,
    },
    /// End `pg_rewind` or `pg_basebackup`: the task fails then.
    CancelCopy,
    /// Move the data aside, to be copied anew from the primary.
    SetAside {
        /// It may hold the only copy of acknowledged commits: keep it. Else it is removed.
        keep: bool,
    },
    /// Remove data that was set aside and kept.
    DiscardKept {
        /// Which.
        name: String,
    },
    /// Start PostgreSQL as standby. With an upstream, its epoch is promised before.
    StartStandby {
        /// The primary; `None` follows nobody.
        upstream: Option<Upstream>,
        /// Hash of the settings to start with.
        settings: String,
        /// What the volume is to say before, durably: [`super::VolumeView::was_primary`].
        was_primary: bool,
    },
    /// Write the configuration of a running PostgreSQL and reload it.
    Configure {
        /// Hash of the settings.
        settings: String,
        /// The primary that a standby follows; its epoch is promised before.
        upstream: Option<Upstream>,
    },
    /// Stop PostgreSQL; does not wait for it.
    Stop(Stop),
    /// End the WAL senders of a PostgreSQL that is asked to stop; does not wait for it.
    EndSenders {
        /// But those of these members.
        keep: BTreeSet<MemberId>,
    },
    /// End WAL senders that bear a member's name and are of another role; does not wait for it.
    EndImpostors {
        /// Which.
        impostors: BTreeSet<super::Impostor>,
    },
    /// Point `-rw` at this member, in one write.
    Route {
        /// This pod's address.
        address: String,
        /// The epoch in which the lease is held.
        epoch: Epoch,
    },
    /// Make a member's replication role and slot.
    Admit {
        /// The member.
        member: MemberId,
    },
    /// Drop the replication slots and roles of former members.
    DropSlots {
        /// The members there are.
        keep: BTreeSet<MemberId>,
    },
    /// Tell the primary about this member.
    Report {
        /// Address of the primary.
        address: String,
        /// The message.
        request: Box<ReportRequest>,
    },
    /// End the agent, and with it the container.
    Exit,
    /// End the agent with a failure, and leave word of it for the operator.
    GiveUp {
        /// Why the first database could not be made.
        message: String,
    },
}

/// What becomes of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// This run becomes its holder, in a new epoch.
    Take,
    /// This run stays its holder (perhaps in a higher epoch: protocol.md rule 7).
    Renew,
    /// Nobody holds it any more.
    Release,
}

/// How PostgreSQL is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Sessions are ended, a checkpoint is made (SIGINT to the postmaster).
    Fast,
    /// All processes quit at once (SIGQUIT to the postmaster).
    Immediate,
    /// SIGKILL to every process of the container but the agent and its dead-man.
    Kill,
}

impl Action {
    /// The task that it starts; `None` for what is done on the spot.
    pub fn work(&self) -> Option<Work> {
        match self {
            Action::CreateMember { .. } => Some(Work::CreateMember),
            Action::StoreCertificate { .. } => Some(Work::StoreCertificate),
            Action::DiscardStaging => Some(Work::DiscardStaging),
            Action::Initdb { .. } => Some(Work::Initdb),
            Action::Clone { .. } => Some(Work::Clone),
            Action::WriteLease { .. } => Some(Work::WriteLease),
            Action::ReadLease => Some(Work::ReadLease),
            Action::StartPrimary { .. } => Some(Work::StartPrimary),
            Action::StartStandby { .. } => Some(Work::StartStandby),
            Action::Configure { .. } => Some(Work::Configure),
            Action::Route { .. } => Some(Work::Route),
            Action::Admit { .. } => Some(Work::Admit),
            Action::DropSlots { .. } => Some(Work::DropSlots),
            Action::Report { .. } => Some(Work::Report),
            Action::Promise { .. } => Some(Work::Promise),
            Action::Ask { .. } => Some(Work::Ask),
            Action::AskFailsafe { .. } => Some(Work::Failsafe),
            Action::Promote { .. } => Some(Work::Promote),
            Action::SetSync { .. } => Some(Work::SetSync),
            Action::Open => Some(Work::Open),
            Action::Checkpoint => Some(Work::Checkpoint),
            Action::Rewind { .. } => Some(Work::Rewind),
            Action::SetAside { .. } => Some(Work::SetAside),
            Action::DiscardKept { .. } => Some(Work::DiscardKept),
            Action::Wait
            | Action::Stop(_)
            | Action::EndSenders { .. }
            | Action::EndImpostors { .. }
            | Action::CancelCopy
            | Action::Exit
            | Action::GiveUp { .. } => None,
        }
    }
}
