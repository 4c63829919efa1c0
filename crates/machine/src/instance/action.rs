//! What an agent can do, one at a time. Each action names everything: its executor makes no choice.

use std::collections::BTreeSet;

use super::observed::Work;
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, MemberId, ReportRequest};
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
    /// Start PostgreSQL for writing.
    StartPrimary {
        /// The epoch in which the lease is held.
        epoch: Epoch,
        /// Do not start it at this time or later.
        until: BootTime,
        /// Hash of the settings to start with.
        settings: String,
    },
    /// Start PostgreSQL as standby.
    StartStandby {
        /// Address of the primary; `None` follows nobody.
        upstream: Option<String>,
        /// Hash of the settings to start with.
        settings: String,
    },
    /// Write the configuration of a running PostgreSQL and reload it.
    Configure {
        /// Hash of the settings.
        settings: String,
        /// Address of the primary that a standby follows.
        upstream: Option<String>,
    },
    /// Stop PostgreSQL; does not wait for it.
    Stop(Stop),
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
    /// This run stays its holder.
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
            Action::StartPrimary { .. } => Some(Work::StartPrimary),
            Action::StartStandby { .. } => Some(Work::StartStandby),
            Action::Configure { .. } => Some(Work::Configure),
            Action::Route { .. } => Some(Work::Route),
            Action::Admit { .. } => Some(Work::Admit),
            Action::DropSlots { .. } => Some(Work::DropSlots),
            Action::Report { .. } => Some(Work::Report),
            Action::Wait | Action::Stop(_) | Action::Exit | Action::GiveUp { .. } => None,
        }
    }
}
