//! What an agent knows when it decides. Every field is a fact that the observer has seen. "Could not be read" is never
//! "does not exist".

use std::collections::{BTreeMap, BTreeSet};

use api::WantedDurability;
use api::status::{BootstrapGrant, RecoveryCheck, RestartPermit};

mod impostor;
mod lost;

pub use impostor::{Doubt, Impostor};
pub use lost::{LeaseVersion, Lost};

use api::backup::{BackupKind, BackupSource, BackupTask, SnapshotProgress};

use crate::archive::ArchiveRecord;
use crate::protocol::{
    Epoch, Fork, LeaseRecord, Lsn, MemberId, MemberReport, Position, PromiseReply, Timeline, Volume, settings_hash,
};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};
use crate::units::{Bytes, Millis};

/// Something that is read from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reading<T> {
    /// It could not be read or understood (yet).
    #[default]
    Unknown,
    /// It was read: it does not exist.
    Missing,
    /// It was read.
    Is(T),
}

impl<T> Reading<T> {
    /// The value, if it was read.
    pub fn is(&self) -> Option<&T> {
        match self {
            Reading::Is(value) => Some(value),
            Reading::Unknown | Reading::Missing => None,
        }
    }
}

/// Everything that an agent knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// This agent.
    pub own: Own,
    /// The `ClusteredDatabase`.
    pub cluster: Reading<ClusterView>,
    /// The Lease.
    pub lease: LeaseView,
    /// The data volume.
    pub volume: Reading<VolumeView>,
    /// PostgreSQL.
    pub postgres: PostgresView,
    /// The reports of the other members, by pod name.
    pub peers: BTreeMap<String, Peer>,
    /// Members whose replication role and slot are known to exist here.
    pub admitted: BTreeSet<MemberId>,
    /// Where `-rw` points, as last read or written by this agent.
    pub route: Option<Route>,
    /// The primary's last answer to a report of this member.
    pub reply: Option<Reply>,
    /// How the holder's agent responds to this one.
    pub contact: Contact,
    /// When this agent resumed after a stall that was longer than any of its sleeps. That it heard no other member
    /// meanwhile says nothing about them.
    pub went_on: Option<BootTime>,
    /// The newest epoch for which a candidate requested a promise.
    pub asked_for: Option<Epoch>,
    /// What other members answered to this member's request, by pod name.
    pub promises: BTreeMap<String, Promised>,
    /// Members that have promised this holder not to take its lease, by pod name; forgotten when it is renewed.
    pub failsafe: BTreeMap<String, Failsafe>,
    /// What this member has promised the holder.
    pub failsafe_given: Option<FailsafeGiven>,
    /// Names of the data that is quarantined on the volume, as it was last seen.
    pub kept: BTreeSet<String>,
    /// Volumes that are full, by the agent's last measurement: PostgreSQL cannot make another segment of WAL, or the
    /// agent cannot write its files.
    pub full: BTreeSet<Volume>,
    /// Digest of the agents' certificate, and of the authorities beside it, that this agent and its PostgreSQL have loaded.
    pub certificates: Option<String>,
    /// How far the archive is complete, by what this member's PostgreSQL has noted, and what keeps it from going on.
    pub archive: Option<ArchiveRecord>,
    /// The backup for which this member copies its files, or has copied them last.
    pub backup: Option<BackupTask>,
    /// The tasks, running and ended.
    pub tasks: Tasks,
    /// The container is asked to end (SIGTERM).
    pub terminating: bool,
}

impl Observed {
    /// The initial state: nothing is known yet.
    pub fn nothing(own: Own) -> Self {
        Self {
            own,
            cluster: Reading::Unknown,
            lease: LeaseView::default(),
            volume: Reading::Unknown,
            postgres: PostgresView::stopped(),
            peers: BTreeMap::new(),
            admitted: BTreeSet::new(),
            route: None,
            reply: None,
            contact: Contact::default(),
            went_on: None,
            asked_for: None,
            promises: BTreeMap::new(),
            failsafe: BTreeMap::new(),
            failsafe_given: None,
            kept: BTreeSet::new(),
            full: BTreeSet::new(),
            certificates: None,
            archive: None,
            backup: None,
            tasks: Tasks::default(),
            terminating: false,
        }
    }

    /// Takes a promise that was just made durable; returns whether its epoch is new. A higher epoch discards the known
    /// position, because WAL may have arrived until the WAL receiver was gone. The outcome of a lower one comes late
    /// (`None`): the higher one is on the volume. An upstream of a lower epoch is no longer followed, even if ending
    /// the WAL receiver failed: its credential was revoked first.
    pub fn promised(&mut self, promise: Promise) -> Option<bool> {
        let Reading::Is(volume) = &mut self.volume else {
            return None;
        };
        let known = volume.promise.map(|known| known.epoch);
        if known.is_some_and(|known| known > promise.epoch) {
            return None;
        }
        volume.promise = Some(promise);
        let new = known != Some(promise.epoch);
        if new && let Some(answer) = &mut self.postgres.answer {
            answer.received_all = false;
        }
        self.forget_overtaken_upstream();
        Some(new)
    }

    /// Forgets the upstream of a configuration that began before a promise ended what it follows. To be called when
    /// either becomes known.
    pub fn forget_overtaken_upstream(&mut self) {
        let promised = self.volume.is().and_then(|volume| volume.promise);
        if let (Some(promise), Some(configured)) = (promised, &mut self.postgres.configured) {
            configured.upstream.take_if(|upstream| upstream.epoch < promise.epoch);
        }
    }
}

/// This agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its pod's name.
    pub pod: String,
    /// The number at the end of the name.
    pub ordinal: u32,
    /// Its pod's UID.
    pub pod_uid: String,
    /// Random name of this run of the agent.
    pub run: String,
    /// Its pod's address.
    pub address: String,
    /// Its version.
    pub agent_version: String,
}

/// The parts of the `ClusteredDatabase` that concern this agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// `metadata.uid`.
    pub uid: String,
    /// `spec.replicas`.
    pub replicas: u32,
    /// `spec.failover`, validated.
    pub timing: Timing,
    /// Hash of `spec.postgres.parameters`.
    pub settings: String,
    /// `status.systemIdentifier`.
    pub system_id: Option<String>,
    /// `status.epoch`.
    pub epoch: Option<Epoch>,
    /// `status.instances[<this pod>].claimUID`.
    pub claim_uid: Option<String>,
    /// `status.instances[<this pod>].certificate`, with the member that it was signed for.
    pub certificate: Option<SignedCertificate>,
    /// `status.instances[*].certifiedKey` by pod, with the member that it was signed for.
    pub certified: BTreeMap<String, CertifiedKey>,
    /// `status.intent.bootstrap`.
    pub grant: Option<BootstrapGrant>,
    /// `status.intent.restart`.
    pub restart: Option<RestartPermit>,
    /// `status.intent.stop`.
    pub stop: bool,
    /// What commits are to wait for. `None` if the spec leaves it out and the status has lost what was chosen: then the rule in
    /// force stays until the operator has recorded it again.
    pub durability: Option<WantedDurability>,
    /// `spec.failover.staleReads` is `Forbid`: no election before the lease has run out.
    pub strict_reads: bool,
    /// `spec.primary.prefer`, if it names an instance.
    pub preferred: Option<String>,
    /// `status.intent.primary`.
    pub primary: Option<String>,
    /// `status.intent.urgent`.
    pub urgent: bool,
    /// `status.intent.acceptLoss`: the epoch of the Lease in which the user accepts the loss of what the missing members have.
    pub accepted_loss: Option<Epoch>,
    /// `spec.fenced`.
    pub fenced: BTreeSet<String>,
    /// Name of the quarantined data here that the user ordered to be removed (`status.intent.discard`).
    pub discard: Option<String>,
    /// `spec.backup` is there: WAL is archived.
    pub archives: bool,
    /// What is archived is not encrypted, so a member can read it.
    pub reads_archive: bool,
    /// `status.intent.deleteArchive`: nothing is archived any more, since all backups and WAL go.
    pub archive_ended: bool,
    /// The same, and the resource itself says so: it is being deleted, asks for that, and has the user's confirmation.
    pub deletes_archive: bool,
    /// `status.intent.backup`: UID of the DatabaseBackup that is to be taken.
    pub backup: Option<String>,
    /// `status.intent.backupSource`: whose files it copies.
    pub backup_source: BackupSource,
    /// `status.intent.backupKind`: what it is.
    pub backup_kind: BackupKind,
    /// `status.intent.snapshot`: how far its VolumeSnapshot is.
    pub snapshot: Option<SnapshotProgress>,
    /// `status.memo.snapshots`: the VolumeSnapshots of this database.
    pub snapshots: BTreeSet<String>,
    /// `status.backup.drill.provenBackup`: the retention keeps it.
    pub proven_backup: Option<String>,
    /// `status.intent.recoveryCheck`: a recovery for which the holder's archive worker looks through the store.
    pub recovery_check: Option<RecoveryCheck>,
    /// `spec.bootstrap.recovery` is there: the first database comes from a backup.
    pub recovers: bool,
    /// That backup is a VolumeSnapshot, which the volume of the first database is made from.
    pub recovers_snapshot: bool,
    /// The epoch in which nobody has held the Lease yet: that of a recovery in place, or the first.
    pub begins: Epoch,
}

/// What is heard of the holder's agent beside the Lease. Belongs to the run that the Lease names, and is forgotten when
/// that changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contact {
    /// When its agent last answered, in any way.
    pub heard: Option<BootTime>,
    /// Since when its agent's port refuses every connection: the pod's address exists, the process does not.
    pub refused: Option<BootTime>,
}

/// Another member's answer to a request for a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promised {
    /// The answer.
    pub reply: PromiseReply,
    /// When it came.
    pub at: BootTime,
}

/// A member's promise to this holder not to take its lease ([`crate::protocol::FailsafeReply`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failsafe {
    /// The member that promised.
    pub member: MemberId,
    /// The epoch for which it was given.
    pub epoch: Epoch,
    /// When the request was about to be sent: the promise is no older.
    pub sent: BootTime,
}

/// This member's promise to the holder not to take its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailsafeGiven {
    /// The epoch for which it was given.
    pub epoch: Epoch,
    /// The holder's run.
    pub run: String,
    /// Until when the promise binds.
    pub until: BootTime,
}

/// A key that the operator has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedKey {
    /// The member that owns the key.
    pub member: MemberId,
    /// SubjectPublicKeyInfo, DER, base64.
    pub key: String,
}

/// A replication certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCertificate {
    /// The member that it was signed for.
    pub member: String,
    /// PEM.
    pub pem: String,
}

/// The Lease, as far as this agent has followed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// The newest version seen.
    pub record: Reading<LeaseRecord>,
    /// When this agent last saw the holder, the epoch or the renewal change.
    pub changed: BootTime,
    /// When this agent first saw the present holder (its run), or that there is none, in the present epoch.
    pub holder_since: BootTime,
    /// This run's last write that made or kept it the holder, and succeeded.
    pub confirmed: Option<Confirmed>,
    /// This run's writes whose outcome is unknown: they were sent, and may be in the Lease by now.
    pub unsettled: Option<Unsettled>,
    /// Set if the Lease is lost, and was not before.
    pub lost: Option<Lost>,
}

/// Writes of the Lease that were sent on top of one version. Once another version is seen, either one of them made it,
/// or none of them can succeed any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// The version that they replace.
    pub version: String,
    /// The synchronous rules that they would record.
    pub rules: BTreeSet<SyncRule>,
    /// True if one of them releases the lease.
    pub releases: bool,
}

/// A successful write of the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The epoch written.
    pub epoch: Epoch,
    /// When the request was *sent*.
    pub sent: BootTime,
    /// The times promised in it.
    pub timing: Timing,
}

/// The data volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeView {
    /// Identity of the data on it.
    pub member: Option<Member>,
    /// UID of the `ClusteredDatabase` for which `initdb` was begun here; written before that.
    pub made_for: Option<String>,
    /// PGDATA and the staging directory.
    pub data: Data,
    /// What this member has promised; `None` if that cannot be read. Then it neither stands for election nor
    /// acknowledges WAL (protocol.md rule 2).
    pub promise: Option<Promise>,
    /// True if a rewind was begun and is not finished: the data must not be started.
    pub rewinding: bool,
    /// True if the data was a primary's and may have commits that exist nowhere else. It is noted before the data is
    /// started as a standby, because the control file no longer shows it after that.
    pub was_primary: bool,
    /// When `data` was read.
    pub read: BootTime,
}

/// The durable promise of a member, on its volume outside PGDATA (protocol.md rule 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// The member receives no WAL of an epoch below this one.
    pub epoch: Epoch,
    /// A promotion to this timeline was begun; written before it begins, removed when the data follows another primary
    /// (protocol.md rule 14).
    pub promoting: Option<Timeline>,
}

/// Identity of the data on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The member's name.
    pub id: MemberId,
    /// UID of the claim that it was made on.
    pub claim_uid: String,
    /// Public half of its replication key (SubjectPublicKeyInfo, DER, base64).
    pub public_key: String,
    /// Its replication certificate (PEM).
    pub certificate: Option<String>,
}

/// The content of PGDATA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// It could not be read.
    #[default]
    Unknown,
    /// Nothing.
    Empty,
    /// Nothing, but an unfinished `initdb` or clone lies in the staging directory.
    Unfinished,
    /// A database.
    Present(Database),
}

/// A database on the volume, by its control file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    /// System identifier.
    pub system_id: String,
    /// Timeline of the last WAL that is known to be in it: of the last checkpoint, or of the end of recovery if that is later.
    pub timeline: Timeline,
    /// Location of the last checkpoint in the WAL, or the end of recovery if that is later.
    pub checkpoint: Lsn,
    /// Where the next start begins to replay: the redo location of the last checkpoint.
    pub redo: Lsn,
    /// Where the WAL ends that is on the volume without a gap from there on; `redo` if there is none.
    pub written: Lsn,
    /// True if it was stopped cleanly as a primary: then the checkpoint is the end of its WAL.
    pub clean: bool,
    /// True if a primary wrote the control file last, and the data is not a fresh copy of one (no `standby.signal`, no
    /// `backup_label`).
    pub primary: bool,
}

/// PostgreSQL's processes and its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresView {
    /// The postmaster.
    pub process: Process,
    /// How many processes of PostgreSQL live without a postmaster.
    pub strays: u32,
    /// The content of its configuration files.
    pub configured: Option<Configured>,
    /// The lowest settings that the control file allows; read again while limits are raised for it.
    pub enforced: EnforcedSettings,
    /// Settings that PostgreSQL refused, and why.
    pub refused: Option<Refused>,
    /// Hash of the settings that it last ran with.
    pub good_settings: String,
    /// Its last answer; `None` while it accepts no connections.
    pub answer: Option<Answer>,
    /// Why it refused the last question, in its own words. `None` if it answered, did not respond, or accepts no
    /// sessions at the moment.
    pub refusal: Option<String>,
    /// State of its WAL receiver at that time (`pg_stat_wal_receiver.status`); `None`: there was none.
    pub receiver: Option<String>,
    /// True if it has streamed from a primary since it was started.
    pub streamed: bool,
    /// Its version.
    pub version: Option<String>,
    /// True if applications may connect over the network; a primary starts closed (protocol.md rule 13).
    pub open: bool,
    /// Where its WAL ended when it was started for writing, or where its timeline began. WAL before that may be in
    /// doubt.
    pub in_doubt: Option<Lsn>,
    /// The `synchronous_standby_names` of a primary.
    pub sync: SyncSetting,
    /// How far the standbys that stream from here have flushed (`pg_stat_replication`, state `streaming`).
    pub standbys: BTreeMap<MemberId, Lsn>,
    /// Members that receive WAL from here, in any state, and how far they report to have flushed; 0/0 before their
    /// first report.
    pub receiving: BTreeMap<MemberId, Lsn>,
    /// WAL senders that use a member's name without its role. The agent does not count their acknowledgements.
    pub impostors: BTreeSet<Impostor>,
    /// A primary's commits that PostgreSQL may have acknowledged because of an impostor.
    pub doubt: Option<Doubt>,
    /// Members that have a replication slot here, also on a standby.
    pub slots: BTreeSet<MemberId>,
    /// When a small write to the WAL was last flushed here (a primary's canary).
    pub wrote: Option<BootTime>,
    /// When a session was last begun that PostgreSQL accepted, or refused with an error message.
    pub greeted: Option<BootTime>,
    /// Ancestors of its timeline, by its history file, oldest first.
    pub history: Vec<Fork>,
    /// Where a primary's oldest WAL begins; known while a slot is not in use.
    pub oldest: Option<Lsn>,
}

impl PostgresView {
    /// PostgreSQL does not run, and nothing is known of it.
    pub fn stopped() -> Self {
        Self {
            process: Process::Stopped { exit: None },
            strays: 0,
            configured: None,
            enforced: EnforcedSettings::default(),
            refused: None,
            good_settings: settings_hash(&BTreeMap::new()),
            answer: None,
            refusal: None,
            receiver: None,
            streamed: false,
            version: None,
            open: false,
            in_doubt: None,
            sync: SyncSetting::default(),
            standbys: BTreeMap::new(),
            receiving: BTreeMap::new(),
            impostors: BTreeSet::new(),
            doubt: None,
            slots: BTreeSet::new(),
            wrote: None,
            greeted: None,
            history: Vec::new(),
            oldest: None,
        }
    }
}

/// The `synchronous_standby_names` of a primary (protocol.md rule 11).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncSetting {
    /// The setting that every WAL sender is proven to use.
    pub proven: SyncRule,
    /// End of the WAL when that was proven.
    pub proven_at: Lsn,
    /// A setting that some WAL senders may use: it was set, and is not proven yet.
    pub pending: Option<SyncRule>,
}

impl SyncSetting {
    /// Begins a setting: from now on a WAL sender may use it. If an earlier setting was not proven, other WAL senders
    /// may still use that one. A rule that covers the union of their names with the smaller number covers both.
    pub fn begins(&mut self, rule: SyncRule) {
        self.pending = Some(match self.pending.take() {
            None => rule,
            Some(before) => SyncRule {
                required: before.required.min(rule.required),
                names: before.names.into_iter().chain(rule.names).collect(),
            },
        });
    }

    /// True if commits wait for a standby, whichever setting is in force.
    pub fn waits(&self) -> bool {
        self.proven.is_synchronous() && self.pending.as_ref().is_none_or(SyncRule::is_synchronous)
    }
}

/// The postmaster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// No postmaster runs.
    Stopped {
        /// How the last postmaster of this run of the agent ended.
        exit: Option<Exit>,
    },
    /// A postmaster runs.
    Running {
        /// The mode in which this agent started it.
        mode: Mode,
    },
}

/// The mode in which PostgreSQL is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It accepts writes.
    Primary,
    /// With `standby.signal`: it cannot write.
    Standby,
}

/// How a postmaster ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// When it ended.
    pub at: BootTime,
    /// How long it had run.
    pub ran: Millis,
    /// True if this agent had asked it to stop.
    pub asked: bool,
}

/// The content of the configuration files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Hash of the settings.
    pub settings: String,
    /// The primary that a standby follows.
    pub upstream: Option<Upstream>,
    /// The limits of a standby's control file, if they were raised above the settings because of it.
    pub raised: Option<EnforcedSettings>,
}

/// Settings of a standby that must not be lower than on the primary whose WAL it replays. The control file records
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnforcedSettings {
    /// `max_connections`.
    pub max_connections: u32,
    /// `max_worker_processes`.
    pub max_worker_processes: u32,
    /// `max_wal_senders`.
    pub max_wal_senders: u32,
    /// `max_prepared_transactions`.
    pub max_prepared_transactions: u32,
    /// `max_locks_per_transaction`.
    pub max_locks_per_transaction: u32,
}

/// A primary to follow. The member must promise its epoch before it follows (protocol.md rule 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Address of its pod.
    pub address: String,
    /// The epoch in which it holds the lease.
    pub epoch: Epoch,
}

/// Settings that PostgreSQL refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Hash of the settings.
    pub settings: String,
    /// PostgreSQL's error message.
    pub error: String,
}

/// PostgreSQL's answer about its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When it was asked: the answer is no older.
    pub asked: BootTime,
    /// True if it is a standby, or has not finished its recovery.
    pub in_recovery: bool,
    /// End of its WAL; of a standby: of what it has received or replayed.
    pub position: Option<Position>,
    /// Without a WAL receiver: where the timeline of `position` begins, by the member's own history; `None` if that is
    /// not known.
    pub begins: Option<Lsn>,
    /// A standby: how far it has replayed.
    pub replayed: Option<Lsn>,
    /// True if its WAL receiver streams.
    pub streaming: bool,
    /// True if a standby has replayed all that it has and waits for more WAL.
    pub waits_for_wal: bool,
    /// True if a standby uses another `primary_conninfo` or `primary_slot_name` than the last configuration wrote.
    pub other_upstream: bool,
    /// When its WAL receiver last heard the primary.
    pub heard: Option<BootTime>,
    /// True if it has no WAL receiver and knows where all its WAL ends, replayed or not (protocol.md rule 5):
    /// `position` is final.
    pub received_all: bool,
    /// True if `position` is not before the end of the WAL that it had at its start: all of that has been read.
    pub knows_end: bool,
    /// True if some settings wait for a restart.
    pub pending_restart: bool,
    /// True if one of these lowers a limit that standbys must not be below
    /// ([`crate::protocol::MemberReport::lowers_limits`]).
    pub lowers_limits: bool,
}

/// What another member reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its report.
    pub report: MemberReport,
    /// End of its WAL.
    pub position: Option<Position>,
    /// How far it has replayed, if it says so.
    pub replayed: Option<Lsn>,
    /// When it was last heard.
    pub heard: BootTime,
    /// The epoch that it has promised ([`crate::protocol::ReportRequest::promised`]).
    pub promised: Epoch,
    /// The backup for which it copies its files.
    pub backup: Option<BackupTask>,
}

impl Peer {
    /// WAL that it has and has not replayed yet; none if it does not say. A promotion must replay it first.
    pub fn queue(&self) -> Bytes {
        let (Some(position), Some(replayed)) = (self.position, self.replayed) else {
            return Bytes::ZERO;
        };
        position.lsn.since(replayed)
    }
}

/// Where `-rw` points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address.
    pub address: String,
    /// Epoch of the holder that wrote it.
    pub epoch: Epoch,
}

/// The primary's answer to a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its epoch.
    pub epoch: Epoch,
    /// True if this member's replication role and slot exist there.
    pub admitted: bool,
    /// True if it cannot serve and steps down ([`crate::protocol::ReportReply::steps_down`]).
    pub steps_down: bool,
    /// Where its oldest WAL begins ([`crate::protocol::ReportReply::oldest`]).
    pub oldest: Option<Lsn>,
    /// True if it waits for this member ([`crate::protocol::ReportReply::awaits`]).
    pub awaits: bool,
    /// The report that it answers.
    pub report: MemberReport,
    /// When that report was sent.
    pub sent: BootTime,
}

/// The tasks, at most one of each class at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// On the volume: identity, certificate, `initdb`, clone.
    pub volume: Task,
    /// Starting PostgreSQL.
    pub start: Task,
    /// Changing the configuration of a running PostgreSQL.
    pub configure: Task,
    /// Writing the Lease.
    pub lease: Task,
    /// Reading the Lease.
    pub read: Task,
    /// Writing the EndpointSlice.
    pub route: Task,
    /// Admitting members and dropping slots.
    pub admit: Task,
    /// Reporting to the primary.
    pub report: Task,
    /// Promising: ends the stream and remembers the promise.
    pub promise: Task,
    /// Requesting promises, one round at a time.
    pub ask: Task,
    /// Asking the others not to take the lease, one round at a time.
    pub failsafe: Task,
    /// Changing `synchronous_standby_names`.
    pub sync: Task,
    /// Making a checkpoint.
    pub checkpoint: Task,
    /// Removing quarantined data.
    pub discard: Task,
}

/// One class of tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// The task in flight.
    pub running: Option<Work>,
    /// How many tasks have failed since the last success.
    pub failures: u32,
    /// When the last one ended.
    pub ended: BootTime,
    /// Why it failed.
    pub error: Option<String>,
}

/// A kind of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// See [`super::Action::CreateMember`].
    CreateMember,
    /// See [`super::Action::StoreCertificate`].
    StoreCertificate,
    /// See [`super::Action::DiscardStaging`].
    DiscardStaging,
    /// See [`super::Action::TakeSnapshot`].
    TakeSnapshot,
    /// See [`super::Action::Initdb`].
    Initdb,
    /// See [`super::Action::Clone`].
    Clone,
    /// See [`super::Action::StartPrimary`].
    StartPrimary,
    /// See [`super::Action::StartStandby`].
    StartStandby,
    /// See [`super::Action::Configure`].
    Configure,
    /// See [`super::Action::WriteLease`].
    WriteLease,
    /// See [`super::Action::ReadLease`].
    ReadLease,
    /// See [`super::Action::Route`].
    Route,
    /// See [`super::Action::Admit`].
    Admit,
    /// See [`super::Action::DropSlots`].
    DropSlots,
    /// See [`super::Action::Report`].
    Report,
    /// See [`super::Action::Promise`].
    Promise,
    /// See [`super::Action::Ask`].
    Ask,
    /// See [`super::Action::AskFailsafe`].
    Failsafe,
    /// See [`super::Action::Promote`].
    Promote,
    /// See [`super::Action::SetSync`].
    SetSync,
    /// See [`super::Action::Open`].
    Open,
    /// See [`super::Action::Checkpoint`].
    Checkpoint,
    /// See [`super::Action::Rewind`].
    Rewind,
    /// See [`super::Action::FetchWal`].
    FetchWal,
    /// See [`super::Action::SetAside`].
    SetAside,
    /// See [`super::Action::DiscardKept`].
    DiscardKept,
}

impl Tasks {
    /// The class of a kind of task.
    pub fn of_mut(&mut self, work: Work) -> &mut Task {
        match work {
            Work::CreateMember
            | Work::StoreCertificate
            | Work::DiscardStaging
            | Work::TakeSnapshot
            | Work::Initdb
            | Work::Clone
            | Work::Rewind
            | Work::FetchWal
            | Work::SetAside => &mut self.volume,
            Work::StartPrimary | Work::StartStandby | Work::Promote => &mut self.start,
            Work::Configure | Work::Open => &mut self.configure,
            Work::WriteLease => &mut self.lease,
            Work::ReadLease => &mut self.read,
            Work::Route => &mut self.route,
            Work::Admit | Work::DropSlots => &mut self.admit,
            Work::Report => &mut self.report,
            Work::Promise => &mut self.promise,
            Work::Ask => &mut self.ask,
            Work::Failsafe => &mut self.failsafe,
            Work::SetSync => &mut self.sync,
            Work::Checkpoint => &mut self.checkpoint,
            Work::DiscardKept => &mut self.discard,
        }
    }
}

impl Task {
    /// When the next task may begin: at once after a success, with back-off after failures in a row (0.2 s, doubling up
    /// to `longest`). `None` while a task is in flight.
    pub fn free_at(&self, longest: Millis) -> Option<BootTime> {
        if self.running.is_some() {
            return None;
        }
        if self.failures == 0 {
            return Some(BootTime(0));
        }
        let delay = FIRST_RETRY.doubled(self.failures - 1, longest);
        Some(self.ended.plus(delay))
    }
}

/// Back-off before the first retry of a failed task: longer than a lost race, shorter than anybody notices.
const FIRST_RETRY: Millis = Millis(200);

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::*;

    #[test]
    fn a_new_promise_ends_what_was_known_and_followed_and_a_late_lower_one_changes_nothing() {
        let promised = |epoch: u64, follows: u64| {
            let mut observed = silenced();
            volume(&mut observed).promise.as_mut().unwrap().epoch = Epoch(2);
            let configured = observed.postgres.configured.as_mut().unwrap();
            configured.upstream.as_mut().unwrap().epoch = Epoch(follows);
            let said = observed.promised(Promise {
                epoch: Epoch(epoch),
                promoting: None,
            });
            let postgres = &observed.postgres;
            let ended = postgres.answer.is_some_and(|answer| answer.received_all);
            let follows = postgres.configured.as_ref().unwrap().upstream.is_some();
            (said, volume(&mut observed).promise.unwrap().epoch.0, ended, follows)
        };
        assert_eq!(promised(1, 1), (None, 2, true, true));
        assert_eq!(promised(2, 2), (Some(false), 2, true, true));
        assert_eq!(promised(3, 2), (Some(true), 3, false, false));
        assert_eq!(promised(3, 3), (Some(true), 3, false, true));
    }

    #[test]
    fn commits_wait_for_certain_only_if_each_setting_that_may_be_in_force_requires_it() {
        let waits = |proven: usize, pending: Option<usize>| {
            let rule = |required| SyncRule::any(required, [third()]);
            let setting = SyncSetting {
                proven: rule(proven),
                pending: pending.map(rule),
                ..SyncSetting::default()
            };
            setting.waits()
        };
        assert!(waits(1, None) && waits(1, Some(1)));
        assert!(!waits(0, None) && !waits(0, Some(1)) && !waits(1, Some(0)));
    }

    #[test]
    fn what_covers_an_unproven_rule_covers_those_before_it() {
        let mut setting = SyncSetting::default();
        let rule = |required, names: &[u32]| {
            SyncRule::any(required, names.iter().map(|ordinal| MemberId::new(*ordinal, "aaaa", 1)))
        };
        let pending = |setting: &SyncSetting| setting.pending.clone().expect("it is being set");
        setting.begins(rule(1, &[1, 2]));
        assert_eq!(pending(&setting), rule(1, &[1, 2]));
        setting.begins(rule(1, &[1, 2]));
        assert_eq!(pending(&setting), rule(1, &[1, 2]), "the same again");
        setting.begins(rule(2, &[1, 3]));
        assert_eq!(pending(&setting), rule(1, &[1, 2, 3]));
        // A rule that covers the newer setting alone does not cover what may still be in use.
        assert!(rule(2, &[1, 3]).covers(&rule(2, &[1, 3])) && !rule(2, &[1, 3]).covers(&pending(&setting)));
    }

    #[test]
    fn all_tasks_on_the_volume_are_one_class() {
        let mut tasks = Tasks::default();
        tasks.of_mut(Work::Clone).running = Some(Work::Clone);
        assert_eq!(tasks.of_mut(Work::Initdb).running, Some(Work::Clone));
        assert_eq!(tasks.volume.running, Some(Work::Clone));
    }
}
