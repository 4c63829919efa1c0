//! What the rules ask of what is observed.

use super::Draft;
use super::failsafe;
use super::lost::Lost;
use super::observed::*;
use crate::protocol::{Epoch, HolderRecord, Incarnation, LeaseRecord, Position};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};

/// What is observed, and the questions that several rules ask of it.
pub(super) struct Context<'a> {
    pub observed: &'a Observed,
    pub now: BootTime,
}

/// How this run stands to the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure<'a> {
    /// It holds it now.
    Held {
        /// The epoch.
        epoch: Epoch,
        /// PostgreSQL must be stopped from this time on, unless the lease is renewed before.
        until: BootTime,
    },
    /// The Lease names it, but too long ago (or in an epoch) for it to rely on that before it has renewed.
    Lapsed,
    /// The Lease names an earlier run on the same volume.
    OwnBefore(&'a HolderRecord),
    /// The Lease names another member.
    Other(&'a HolderRecord),
    /// The Lease names nobody.
    Vacant,
    /// The Lease cannot be read, is missing, or is older than what the cluster's status has seen.
    Unknown,
}

impl<'a> Context<'a> {
    pub fn new(observed: &'a Observed, now: BootTime) -> Self {
        Self { observed, now }
    }

    pub fn cluster(&self) -> Option<&'a ClusterView> {
        self.observed.cluster.is()
    }
    pub fn record(&self) -> Option<&'a LeaseRecord> {
        self.observed.lease.record.is()
    }
    /// The Lease, if it is lost and this member may go by what it read last: commits waited for somebody by each rule that may
    /// have stood in it, and it was not released.
    pub fn lost(&self) -> Option<&'a Lost> {
        let lost = self.observed.lease.lost.as_ref()?;
        (!lost.releases && lost.rules.iter().all(SyncRule::is_synchronous)).then_some(lost)
    }
    /// What the Lease says, or said before it was lost: who held it then, and what elections counted by.
    pub fn last_record(&self) -> Option<&'a LeaseRecord> {
        self.record().or_else(|| self.lost().map(|lost| &lost.before))
    }
    pub fn volume(&self) -> Option<&'a VolumeView> {
        self.observed.volume.is()
    }
    pub fn member(&self) -> Option<&'a Member> {
        self.volume()?.member.as_ref()
    }
    pub fn database(&self) -> Option<&'a Database> {
        match &self.volume()?.data {
            Data::Present(database) => Some(database),
            Data::Unknown | Data::Empty | Data::Unfinished => None,
        }
    }
    pub fn tasks(&self) -> &'a Tasks {
        &self.observed.tasks
    }
    /// It is `at` or later. If not, another decision is asked for then.
    pub fn reached(&self, at: BootTime, draft: &mut Draft) -> bool {
        if self.now < at {
            draft.wake(at);
        }
        self.now >= at
    }
    /// A task of this class may begin now. If only later, another decision is asked for then.
    pub fn is_free(&self, task: &Task, longest: u64, draft: &mut Draft) -> bool {
        task.free_at(longest).is_some_and(|at| self.reached(at, draft))
    }
    /// The times in force; the default ones as long as the cluster has not been read.
    pub fn timing(&self) -> Timing {
        self.cluster().map_or(Timing::DEFAULT, |cluster| cluster.timing)
    }
    /// The kill budget, in milliseconds: the shorter one while the times change.
    pub fn kill(&self) -> u64 {
        let promised = self.observed.lease.confirmed.map(|confirmed| confirmed.timing.kill);
        promised.map_or(self.timing().kill, |kill| kill.min(self.timing().kill))
    }
    pub fn incarnation(&self) -> Option<Incarnation> {
        let own = &self.observed.own;
        Some(Incarnation {
            pod: own.pod.clone(),
            pod_uid: own.pod_uid.clone(),
            run: own.run.clone(),
            member: self.member()?.id.clone(),
        })
    }

    /// When PostgreSQL must be stopped, by the last successful write of the Lease, or by what enough others have promised
    /// since (protocol.md rule 19).
    pub fn fence_at(&self) -> Option<BootTime> {
        let confirmed = self.observed.lease.confirmed?;
        let sent = failsafe::sent(self).map_or(confirmed.sent, |promised| promised.max(confirmed.sent));
        Some(sent.plus(confirmed.timing.fence.min(self.timing().fence)))
    }

    /// How this run stands to the lease (docs/design.md, "Lease, fence, dead-man").
    pub fn tenure(&self) -> Tenure<'a> {
        let until = self.fence_at().filter(|until| self.now < *until);
        let confirmed = self.observed.lease.confirmed.map(|confirmed| confirmed.epoch);
        let record = match &self.observed.lease.record {
            Reading::Is(record) => record,
            Reading::Missing | Reading::Unknown => {
                return match (confirmed, until) {
                    (Some(epoch), Some(until)) => Tenure::Held { epoch, until },
                    _ => Tenure::Unknown,
                };
            }
        };
        let Some(holder) = &record.holder else {
            return Tenure::Vacant;
        };
        if self.is_self(holder) {
            return match until {
                // A higher epoch under this run's name was written by this run, and its answer is on the way.
                Some(until) if confirmed.is_some_and(|confirmed| confirmed <= record.epoch) => Tenure::Held {
                    epoch: record.epoch,
                    until,
                },
                _ => Tenure::Lapsed,
            };
        }
        if self.is_own_member(holder) {
            Tenure::OwnBefore(holder)
        } else {
            Tenure::Other(holder)
        }
    }
    pub fn held(&self) -> Option<(Epoch, BootTime)> {
        match self.tenure() {
            Tenure::Held { epoch, until } => Some((epoch, until)),
            Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Other(_) | Tenure::Vacant | Tenure::Unknown => None,
        }
    }
    pub fn is_own_pod(&self, holder: &HolderRecord) -> bool {
        holder.incarnation.pod_uid == self.observed.own.pod_uid
    }
    /// The Lease names this very run.
    pub fn is_self(&self, holder: &HolderRecord) -> bool {
        self.is_own_member(holder) && self.is_this_run(holder)
    }
    fn is_this_run(&self, holder: &HolderRecord) -> bool {
        self.is_own_pod(holder) && holder.incarnation.run == self.observed.own.run
    }
    pub fn is_own_member(&self, holder: &HolderRecord) -> bool {
        self.member()
            .is_some_and(|member| member.id == holder.incarnation.member)
    }
    /// The data of this member was the last to be written.
    pub fn was_last_holder(&self) -> bool {
        let Some(record) = self.record() else { return false };
        match (&record.holder, &record.release) {
            (Some(holder), _) => self.is_own_member(holder),
            (None, Some(release)) => self.member().is_some_and(|member| member.id == release.member),
            (None, None) => false,
        }
    }
    /// The holder has not been heard of, through the Lease, for its whole duration.
    pub fn expires_at(&self) -> Option<BootTime> {
        let duration = self.record()?.duration.max(self.timing().lease);
        Some(self.observed.lease.changed.plus(duration))
    }
    /// The data belongs to this cluster: its system identifier is the one that the Lease records.
    pub fn is_our_data(&self) -> bool {
        match (
            self.database(),
            self.record().and_then(|record| record.system_id.as_ref()),
        ) {
            (Some(database), Some(system_id)) => database.system_id == *system_id,
            _ => false,
        }
    }

    pub fn running(&self) -> Option<Mode> {
        match self.observed.postgres.process {
            Process::Running { mode } => Some(mode),
            Process::Stopped { .. } => None,
        }
    }
    pub fn starting(&self) -> Option<Mode> {
        match self.tasks().start.running? {
            Work::StartPrimary | Work::Promote => Some(Mode::Primary),
            Work::StartStandby
            | Work::CreateMember
            | Work::StoreCertificate
            | Work::DiscardStaging
            | Work::Initdb
            | Work::Clone
            | Work::Configure
            | Work::WriteLease
            | Work::ReadLease
            | Work::Route
            | Work::Admit
            | Work::DropSlots
            | Work::Report
            | Work::Promise
            | Work::Ask
            | Work::Failsafe
            | Work::SetSync
            | Work::Open
            | Work::Checkpoint
            | Work::Rewind
            | Work::SetAside
            | Work::DiscardKept => Some(Mode::Standby),
        }
    }
    /// Some process of PostgreSQL lives, or may be about to.
    pub fn alive(&self) -> bool {
        self.running().is_some() || self.starting().is_some() || self.observed.postgres.strays > 0
    }
    /// Something may write here, or be about to.
    pub fn writable(&self) -> bool {
        self.running() == Some(Mode::Primary) || self.starting() == Some(Mode::Primary) || self.promoted_standby()
    }
    /// What was started as a standby has left recovery, and no promotion of this agent's is under way.
    pub fn promoted_standby(&self) -> bool {
        let writes = self.observed.postgres.answer.is_some_and(|answer| !answer.in_recovery);
        self.running() == Some(Mode::Standby) && self.starting().is_none() && writes
    }
    /// The volume was read since PostgreSQL ended last: before that, what is known of its data is of another time.
    pub fn knows_data(&self) -> bool {
        match (self.observed.postgres.process, self.volume()) {
            (Process::Stopped { exit: Some(exit) }, Some(volume)) => volume.read >= exit.at,
            (Process::Stopped { exit: None } | Process::Running { .. }, Some(_)) => true,
            (_, None) => false,
        }
    }
    /// Nothing of PostgreSQL lives and nothing works on the volume.
    pub fn at_rest(&self) -> bool {
        !self.alive() && self.tasks().volume.running.is_none()
    }
    /// PostgreSQL can write: it runs as primary and has left recovery. Members may stream from it.
    pub fn accepting(&self) -> bool {
        self.running() == Some(Mode::Primary) && self.observed.postgres.answer.is_some_and(|answer| !answer.in_recovery)
    }
    /// It serves applications.
    pub fn serving(&self) -> bool {
        self.accepting() && self.observed.postgres.open
    }
    /// What this member has promised; `None` if that cannot be read.
    pub fn promise(&self) -> Option<Promise> {
        self.volume()?.promise
    }
    /// End of all WAL that this running standby has received, or holds so far.
    pub fn position(&self) -> Option<Position> {
        self.observed.postgres.answer?.position
    }
    /// The end of all WAL that this member has, now that it receives none (protocol.md rule 5). What PostgreSQL said before a promise
    /// ended tells no end: WAL may have come until then.
    pub fn final_position(&self) -> Option<Position> {
        let answer = self.observed.postgres.answer?;
        let standby = self.running() == Some(Mode::Standby) && answer.in_recovery && answer.received_all;
        let is_late = answer.asked >= self.tasks().promise.ended;
        answer
            .position
            .filter(|_| standby && is_late && self.starting().is_none())
    }
    /// The same, if an election may go by it (protocol.md rule 9: by the timeline of the last WAL received).
    ///
    /// A standby without a stream goes by the newest timeline that has a segment where its WAL ends. A stream of a new timeline begins
    /// with that segment's beginning, which is the ancestor's: torn off before the fork, it is a promise of the new timeline and no
    /// WAL of it, and PostgreSQL reads no further after a crash, though it had (and acknowledged) more. Counted on the new timeline it
    /// would win against members with more of the ancestor; counted on the ancestor it would speak for commits that it cannot show any
    /// more. So WAL that ends before its own timeline begins is no position: the member neither stands nor is counted, until it has
    /// streamed past the fork. (The agent removes such a segment before a start, if the ancestor's is there, and who has one while the
    /// primary is suspected is started again: `standby::stop_torn`.)
    pub fn electable_position(&self) -> Option<Position> {
        let begins = self.observed.postgres.answer?.begins?;
        self.final_position().filter(|position| position.lsn >= begins)
    }
    /// All instances are to be stopped.
    pub fn stop_intended(&self) -> bool {
        self.cluster().is_some_and(|cluster| cluster.stop)
    }
    /// The user has fenced this instance: its PostgreSQL is to be stopped, and to stay so.
    pub fn fenced(&self) -> bool {
        self.cluster()
            .is_some_and(|cluster| cluster.fenced.contains(&self.observed.own.pod))
    }
}
