//! The actions of an agent. Each names everything that it needs, so its executor makes no choice.

use std::collections::{BTreeMap, BTreeSet};

use super::observed::{Upstream, Work};
use crate::archive::Fetch;
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, FailsafeRequest, Fork, MemberId, PromiseRequest, ReportRequest, Timeline};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};

/// One action. The executor carries out one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do nothing now.
    Wait,
    /// Make the member's identity and key on this empty volume.
    CreateMember {
        /// UID of the claim that the identity is made for.
        claim_uid: String,
    },
    /// Store the replication certificate on the volume.
    StoreCertificate {
        /// The member that the operator signed it for.
        member: MemberId,
        /// PEM.
        pem: String,
    },
    /// Remove an unfinished `initdb` or clone.
    DiscardStaging,
    /// Take the data that came with this volume, which was made from a VolumeSnapshot, for the material of a recovery: forget whose they
    /// were, and put PGDATA where the recovery finds it.
    TakeSnapshot,
    /// Make the first database: write on the volume for which cluster it is, work in the staging directory, then rename
    /// that.
    Initdb {
        /// UID of the `ClusteredDatabase`.
        cluster_uid: String,
        /// It comes from a backup, as `spec.bootstrap.recovery` or a recovery in place says, and goes on in a timeline after this one;
        /// otherwise it is new.
        from_backup: Option<Timeline>,
    },
    /// Copy the primary into the staging directory, then rename that.
    Clone {
        /// Address of the primary.
        upstream: String,
        /// The member whose role and slot the copy uses.
        member: MemberId,
        /// System identifier that the copy must have.
        system_id: String,
    },
    /// Replace the Lease (compare-and-swap on its version).
    WriteLease {
        /// Its new content.
        content: Box<LeaseContent>,
        /// How the write changes the holder.
        purpose: Purpose,
        /// The times that the write promises.
        timing: Timing,
    },
    /// Read the Lease, in addition to the watch. Only the watch reports that the Lease is absent.
    ReadLease,
    /// Start PostgreSQL for writing, on the timeline of its data. It starts closed to applications, with `rule` as
    /// `synchronous_standby_names`.
    StartPrimary {
        /// The epoch in which the lease is held.
        epoch: Epoch,
        /// PostgreSQL must not be started at this time or later.
        until: BootTime,
        /// Hash of the settings to start with.
        settings: String,
        /// The synchronous rule in the Lease.
        rule: SyncRule,
    },
    /// Promise durably, in the order of protocol.md rule 4: persist the epoch; revoke the credential of the WAL
    /// receiver; end the WAL receiver, and verify that none is left.
    Promise {
        /// The epoch. From now on this member receives no WAL of a lower one.
        epoch: Epoch,
    },
    /// Request promises from the other members, all at once. Their answers arrive one by one.
    Ask {
        /// Pod names and addresses. If no address is known, the pod name stands in its place.
        peers: BTreeMap<String, String>,
        /// The request.
        request: PromiseRequest,
    },
    /// Ask the other members not to take the lease while it cannot be renewed, all at once. Their answers arrive one by
    /// one.
    AskFailsafe {
        /// Pod names and addresses.
        peers: BTreeMap<String, String>,
        /// The request.
        request: FailsafeRequest,
    },
    /// Promote the running standby (protocol.md rules 13, 14): note the promotion on the volume; set `rule` and verify
    /// it; close to applications; make the slots of `members`, and drop all others; write stub history files so that
    /// PostgreSQL picks `timeline`; promote; read the timeline back, and stop at once if it is another; remove the
    /// note.
    Promote {
        /// The epoch in which the lease is held.
        epoch: Epoch,
        /// The promotion must not begin at this time or later.
        until: BootTime,
        /// The timeline reserved for it.
        timeline: Timeline,
        /// The synchronous rule in the Lease.
        rule: SyncRule,
        /// The names of the rule that may stream at once.
        members: BTreeSet<MemberId>,
    },
    /// Set `synchronous_standby_names` and prove that every WAL sender uses it (protocol.md rule 11).
    SetSync {
        /// The rule.
        rule: SyncRule,
    },
    /// Let applications connect.
    Open,
    /// Make a checkpoint, within a time limit, and then have poolers pause ([`crate::pooler::pause`]): PostgreSQL stops next.
    Checkpoint,
    /// Make the stopped, diverged data follow the primary again (`pg_rewind`), under a durable marker (protocol.md rule
    /// 17).
    Rewind {
        /// The primary.
        upstream: Upstream,
        /// The member whose role the rewind uses.
        member: MemberId,
        /// Set if the data may have acknowledged commits that the primary lacks: the forks of the primary's history.
        /// Before anything is changed, the WAL from the fork on is copied aside once.
        keep: Option<Vec<Fork>>,
    },
    /// End `pg_rewind` or `pg_basebackup`. Their task fails then.
    CancelCopy,
    /// Fetch WAL that the primary has removed from the archive, as far as that is quick.
    FetchWal(Fetch),
    /// Move the data aside, so that the primary can be copied again.
    SetAside {
        /// True if the data may hold the only copy of acknowledged commits: it is quarantined. Otherwise it is removed.
        keep: bool,
    },
    /// Remove quarantined data.
    DiscardKept {
        /// Name of the quarantined data.
        name: String,
    },
    /// Start PostgreSQL as standby. If it has an upstream, that one's epoch must be promised before.
    StartStandby {
        /// The primary to follow; `None`: no primary.
        upstream: Option<Upstream>,
        /// Hash of the settings to start with.
        settings: String,
        /// What to write to the volume before the start, durably: [`super::VolumeView::was_primary`].
        was_primary: bool,
    },
    /// Write the configuration of a running PostgreSQL and reload it.
    Configure {
        /// Hash of the settings.
        settings: String,
        /// The primary that a standby follows; its epoch must be promised before.
        upstream: Option<Upstream>,
    },
    /// Ask PostgreSQL to stop, without waiting for its end.
    Stop(Stop),
    /// End the WAL senders of a PostgreSQL that is stopping, without waiting for their end.
    EndSenders {
        /// Members whose WAL senders stay.
        keep: BTreeSet<MemberId>,
    },
    /// End impostors: WAL senders that use a member's name without its role. Does not wait for their end.
    EndImpostors {
        /// The impostors to end.
        impostors: BTreeSet<super::Impostor>,
    },
    /// Point `-rw` at this member, with one write.
    Route {
        /// This pod's address.
        address: String,
        /// The epoch in which the lease is held.
        epoch: Epoch,
    },
    /// Make the replication role and slot of a member.
    Admit {
        /// The member.
        member: MemberId,
    },
    /// Drop the replication slots and roles of former members.
    DropSlots {
        /// The members that exist.
        keep: BTreeSet<MemberId>,
    },
    /// Report this member to the primary.
    Report {
        /// Address of the primary.
        address: String,
        /// The message.
        request: Box<ReportRequest>,
    },
    /// End the agent, and with it the container.
    Exit,
    /// End the agent with a failure, and leave a message for the operator.
    GiveUp {
        /// Why the first database could not be made.
        message: String,
    },
}

/// How a write changes the holder of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// This run becomes its holder, in a new epoch.
    Take,
    /// This run stays its holder, perhaps in a higher epoch (protocol.md rule 7).
    Renew,
    /// The Lease names no holder any more.
    Release,
}

/// How PostgreSQL is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Sessions are ended and a checkpoint is made (SIGINT to the postmaster).
    Fast,
    /// All processes quit at once (SIGQUIT to the postmaster).
    Immediate,
    /// SIGKILL to every process of the container except the agent and its dead-man.
    Kill,
}

impl Action {
    /// The kind of task that this action starts; `None` if it is done at once.
    pub fn work(&self) -> Option<Work> {
        match self {
            Action::CreateMember { .. } => Some(Work::CreateMember),
            Action::StoreCertificate { .. } => Some(Work::StoreCertificate),
            Action::DiscardStaging => Some(Work::DiscardStaging),
            Action::TakeSnapshot => Some(Work::TakeSnapshot),
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
            Action::FetchWal(_) => Some(Work::FetchWal),
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
