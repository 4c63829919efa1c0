//! Questions that decision rules ask about what is observed.

pub(super) mod following;
pub(super) mod lineage;
pub(super) mod promises;

use std::collections::BTreeMap;

use api::names::Names;

use super::draft::Draft;
use super::observed::*;
use crate::protocol::{Epoch, HolderRecord, Incarnation, LeaseRecord, MemberId, Position};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};
use crate::units::Millis;

/// What is observed, with the questions that several decision rules ask.
pub struct Context<'a> {
    pub observed: &'a Observed,
    pub now: BootTime,
}

/// The relation of this run to the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure<'a> {
    /// It holds it now.
    Held {
        /// The epoch.
        epoch: Epoch,
        /// PostgreSQL must be stopped from this time on, unless the lease is renewed before that.
        until: BootTime,
    },
    /// The Lease names this run, but the run must renew before it relies on the lease. Its last successful write is too
    /// long ago, it has made none, or the Lease shows an older epoch than that write had.
    Lapsed,
    /// The Lease names an earlier run on the same volume.
    OwnBefore(&'a HolderRecord),
    /// The Lease names another member.
    Other(&'a HolderRecord),
    /// The Lease names no holder.
    Vacant,
    /// The Lease cannot be read or is missing, and this run's last successful write is too long ago to rely on it.
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
    /// The lost Lease, if this member may rely on what it read last: commits wait for a standby by each rule that may
    /// have been in it, and it was not released.
    pub fn lost(&self) -> Option<&'a Lost> {
        let lost = self.observed.lease.lost.as_ref()?;
        (!lost.releases && lost.rules.iter().all(SyncRule::is_synchronous)).then_some(lost)
    }
    /// The content of the Lease, or its last content if it is lost: who held it, and by which rule elections counted.
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
    /// True if it is `at` or later. Otherwise another decision is requested for then.
    pub fn reached(&self, at: BootTime, draft: &mut Draft) -> bool {
        if self.now < at {
            draft.wake(at);
        }
        self.now >= at
    }
    /// True if a task of this class may begin now. If it may begin later, another decision is requested for then.
    pub fn is_free(&self, task: &Task, longest: Millis, draft: &mut Draft) -> bool {
        task.free_at(longest).is_some_and(|at| self.reached(at, draft))
    }
    /// The times in force; the defaults while the cluster has not been read.
    pub fn timing(&self) -> Timing {
        self.cluster().map_or(Timing::DEFAULT, |cluster| cluster.timing)
    }
    /// The kill time; while the times change, the shorter one.
    pub fn kill(&self) -> Millis {
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

    /// When PostgreSQL must be stopped, by the last successful write of the Lease or by what enough others have
    /// promised since (protocol.md rule 19).
    pub fn fence_at(&self) -> Option<BootTime> {
        let confirmed = self.observed.lease.confirmed?;
        let sent = failsafe_sent(self).map_or(confirmed.sent, |promised| promised.max(confirmed.sent));
        Some(sent.plus(confirmed.timing.fence.min(self.timing().fence)))
    }

    /// The relation of this run to the lease (docs/design.md, "Lease, fence, dead-man").
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
                // A higher epoch under this run's name was written by this run, and the answer is still in flight.
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
    /// True if the Lease names this run.
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
    /// True if this member was the last holder, so its data was the last to be written.
    pub fn was_last_holder(&self) -> bool {
        let Some(record) = self.record() else { return false };
        match (&record.holder, &record.release) {
            (Some(holder), _) => self.is_own_member(holder),
            (None, Some(release)) => self.member().is_some_and(|member| member.id == release.member),
            (None, None) => false,
        }
    }
    /// When the lease runs out: the holder has not been heard of through the Lease for a whole duration.
    pub fn expires_at(&self) -> Option<BootTime> {
        let duration = self.record()?.duration.max(self.timing().lease);
        Some(self.observed.lease.changed.plus(duration))
    }
    /// True if the data belongs to this cluster: its system identifier is the one in the Lease.
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
            | Work::TakeSnapshot
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
            | Work::FetchWal
            | Work::SetAside
            | Work::DiscardKept => Some(Mode::Standby),
        }
    }
    /// True if a process of PostgreSQL lives or may be about to.
    pub fn alive(&self) -> bool {
        self.running().is_some() || self.starting().is_some() || self.observed.postgres.strays > 0
    }
    /// True if something writes here or may be about to.
    pub fn writable(&self) -> bool {
        self.running() == Some(Mode::Primary) || self.starting() == Some(Mode::Primary) || self.promoted_standby()
    }
    /// True if PostgreSQL was started as a standby and has left recovery, without a promotion by this agent.
    pub fn promoted_standby(&self) -> bool {
        let writes = self.observed.postgres.answer.is_some_and(|answer| !answer.in_recovery);
        self.running() == Some(Mode::Standby) && self.starting().is_none() && writes
    }
    /// True if the volume was read after PostgreSQL ended. What was read before that may be outdated.
    pub fn knows_data(&self) -> bool {
        match (self.observed.postgres.process, self.volume()) {
            (Process::Stopped { exit: Some(exit) }, Some(volume)) => volume.read >= exit.at,
            (Process::Stopped { exit: None } | Process::Running { .. }, Some(_)) => true,
            (_, None) => false,
        }
    }
    /// True if no process of PostgreSQL lives and no task works on the volume.
    pub fn at_rest(&self) -> bool {
        !self.alive() && self.tasks().volume.running.is_none()
    }
    /// True if PostgreSQL can write: it runs as primary and has left recovery. Members may stream from it.
    pub fn accepting(&self) -> bool {
        self.running() == Some(Mode::Primary) && self.observed.postgres.answer.is_some_and(|answer| !answer.in_recovery)
    }
    /// True if it serves applications.
    pub fn serving(&self) -> bool {
        self.accepting() && self.observed.postgres.open
    }
    /// What this member has promised; `None` if that cannot be read.
    pub fn promise(&self) -> Option<Promise> {
        self.volume()?.promise
    }
    /// End of all WAL that this running standby has received, or that it holds so far.
    pub fn position(&self) -> Option<Position> {
        self.observed.postgres.answer?.position
    }
    /// The end of all WAL that this member has, once it receives none (protocol.md rule 5). An answer of PostgreSQL
    /// from before a promise does not count, because WAL may have arrived until then.
    pub fn final_position(&self) -> Option<Position> {
        let answer = self.observed.postgres.answer?;
        let standby = self.running() == Some(Mode::Standby) && answer.in_recovery && answer.received_all;
        let is_late = answer.asked >= self.tasks().promise.ended;
        answer
            .position
            .filter(|_| standby && is_late && self.starting().is_none())
    }
    /// The same, if an election may count it (protocol.md rule 9: by the timeline of the last WAL received).
    ///
    /// A standby without a stream uses the newest timeline that has a segment where its WAL ends. A stream of a new
    /// timeline starts with the beginning of that segment, which is a copy of the ancestor's. If the stream breaks
    /// before the fork, the segment carries the new timeline's name but none of its WAL. After a crash PostgreSQL reads
    /// no further than that, although it had, and acknowledged, more.
    ///
    /// Counted on the new timeline, this member would win against members with more WAL of the ancestor. Counted on the
    /// ancestor, it would vouch for commits that it no longer has. So WAL that ends before its own timeline begins is
    /// no position: the member neither stands nor is counted until it has streamed past the fork. (The agent removes
    /// such a segment before a start if it has the ancestor's. It restarts a standby that has one while the primary is
    /// suspected: `standby::stop_torn`.)
    pub fn electable_position(&self) -> Option<Position> {
        let begins = self.observed.postgres.answer?.begins?;
        self.final_position().filter(|position| position.lsn >= begins)
    }
    /// True if the operator wants all instances stopped.
    pub fn stop_intended(&self) -> bool {
        self.cluster().is_some_and(|cluster| cluster.stop)
    }
    /// True if the user has fenced this instance: its PostgreSQL must be stopped and stay stopped.
    pub fn fenced(&self) -> bool {
        self.cluster()
            .is_some_and(|cluster| cluster.fenced.contains(&self.observed.own.pod))
    }
}

/// The newest time at which enough others had promised this holder not to take its lease. `None` if they have not, or
/// if the Lease says that its tenure is over.
pub(super) fn failsafe_sent(context: &Context) -> Option<BootTime> {
    let observed = context.observed;
    let record = context.last_record()?;
    let (epoch, confirmed) = (record.epoch, observed.lease.confirmed?.epoch);
    let holds = record.holder.as_ref().is_some_and(|holder| context.is_self(holder));
    if !holds || epoch < confirmed || observed.failsafe.is_empty() {
        return None;
    }
    // The others may see a write that was sent and not confirmed. Their promises must be enough by its rule as well.
    let unsettled = observed.lease.unsettled.as_ref();
    let unsettled = unsettled.filter(|unsettled| unsettled.version == record.version);
    if unsettled.is_some_and(|unsettled| unsettled.releases) {
        return None;
    }
    let unsettled = unsettled.into_iter().flat_map(|unsettled| &unsettled.rules);
    let lost = context.lost().into_iter().flat_map(|lost| &lost.rules);
    let rules = unsettled.chain(lost);
    let times: Option<Vec<_>> = rules
        .chain([&record.rule])
        .map(|rule| sent_under(context, record, rule, epoch))
        .collect();
    times?.into_iter().min()
}

/// The same for one `rule`: so many of its names have promised that the others cannot elect a holder. If commits wait
/// for no standby: all members that might take the lease by the clock.
fn sent_under(context: &Context, record: &LeaseRecord, rule: &SyncRule, epoch: Epoch) -> Option<BootTime> {
    let promised = context.observed.failsafe.iter();
    let promised = promised.filter(|(_, promise)| promise.epoch == epoch);
    if rule.is_synchronous() {
        let named = promised.filter(|(_, promise)| rule.names.contains(&promise.member));
        let latest: BTreeMap<_, _> = named.map(|(_, promise)| (&promise.member, promise.sent)).collect();
        let mut times: Vec<_> = latest.into_values().collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        return times.get(rule.required.checked_sub(1)?).copied();
    }
    let promised: BTreeMap<_, _> = promised.collect();
    let times: Option<Vec<_>> = others(context, record)
        .into_iter()
        .map(|(pod, (member, _))| Some(promised.get(pod).filter(|promise| promise.member == *member)?.sent))
        .collect();
    times?.into_iter().min()
}

/// Members that may take the lease, with their addresses, by pod name: all others in the Lease, and those that have
/// reported since it was written.
pub(super) fn others<'a>(
    context: &'a Context,
    record: &'a LeaseRecord,
) -> BTreeMap<&'a String, (&'a MemberId, &'a String)> {
    let own = &context.observed.own.pod;
    let reported = context.observed.peers.iter().map(|(pod, peer)| (pod, &peer.report));
    let reported = reported.filter(|(pod, _)| is_wanted(context, pod));
    record
        .members
        .iter()
        .chain(reported)
        .filter(|(pod, _)| *pod != own)
        .map(|(pod, report)| (pod, (&report.member, &report.address)))
        .collect()
}

/// True if the spec wants this pod, or is not known.
pub(super) fn is_wanted(context: &Context, pod: &str) -> bool {
    context
        .cluster()
        .is_none_or(|cluster| ordinal(pod).is_some_and(|ordinal| ordinal < cluster.replicas))
}

/// The number at the end of a pod's name, if an instance can have it.
fn ordinal(pod: &str) -> Option<u32> {
    Names::new(pod.rsplit_once('-')?.0).instance(pod)
}
