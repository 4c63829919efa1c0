//! What stands in the Lease, and what members tell each other.
//!
//! The Lease's record and annotations are one Kubernetes object, so that one compare-and-swap changes all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use api::backup::BackupTask;
use serde::{Deserialize, Serialize};

use crate::archive::ArchiveRecord;
pub use crate::numbers::{Epoch, InvalidLsn, Lsn, OutOfRange, REACH, Timeline, UNUSED};
use crate::quorum::SyncRule;
use crate::units::{Bytes, Millis};

/// Where a member's WAL ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Timeline of the last WAL.
    pub timeline: Timeline,
    /// Its end.
    pub lsn: Lsn,
}

/// Identity of the data on one volume (protocol.md rule 1): `cdb_<ordinal>_<claim>_<random>`, with eight hexadecimal
/// digits of the claim's UID and eight random ones. Serves as replication role, slot, `application_name` and common
/// name of the replication certificate: lower case, under 64 bytes, letters, digits and underscores only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MemberId(String);

/// Not the identity of a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it names a member whose identity is not cdb_<ordinal>_<claim>_<random>")]
pub struct InvalidMemberId;

impl From<MemberId> for String {
    fn from(member: MemberId) -> Self {
        member.0
    }
}

impl TryFrom<String> for MemberId {
    type Error = InvalidMemberId;

    fn try_from(text: String) -> Result<Self, InvalidMemberId> {
        Self::parse(&text).ok_or(InvalidMemberId)
    }
}

impl MemberId {
    /// The identity of data made on the claim `claim_uid` of the pod with `ordinal`; `random` is fresh.
    pub fn new(ordinal: u32, claim_uid: &str, random: u32) -> Self {
        let claim: String = claim_uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
        Self(format!("cdb_{ordinal}_{}_{random:08x}", claim.to_ascii_lowercase()))
    }
    /// Checks text from outside (a Lease, a peer, a file).
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("cdb_")?.split('_');
        let (ordinal, claim, random, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
            return None;
        };
        let ordinal_is_fine = ordinal.parse().is_ok_and(|number: u32| number.to_string() == ordinal);
        let is_hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let fine =
            ordinal_is_fine && claim.len() <= 8 && is_hex(claim) && (1..=8).contains(&random.len()) && is_hex(random);
        fine.then(|| Self(text.to_owned()))
    }
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// The ordinal of its pod.
    pub fn ordinal(&self) -> Option<u32> {
        self.0.split('_').nth(1)?.parse().ok()
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One run of one agent: a container of a pod, with the data that it found on its volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incarnation {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// Random name of this run of the agent: a new one is proof that the processes of the run before are gone, since
    /// the agent is PID 1 of its container.
    pub run: String,
    /// The data.
    pub member: MemberId,
}

impl Incarnation {
    /// The Lease's `holderIdentity`.
    pub fn identity(&self) -> String {
        format!("{}/{}/{}/{}", self.pod, self.pod_uid, self.run, self.member)
    }
}

/// The holder, as it describes itself in the Lease ([`api::names::LEASE_HOLDER`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderRecord {
    /// Who.
    #[serde(flatten)]
    pub incarnation: Incarnation,
    /// Address of its pod.
    pub address: String,
    /// Timeline that it writes, once it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// It accepts writes and clones.
    #[serde(default)]
    pub serving: bool,
}

/// Where a timeline ended and the next one of the primary's history began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fork {
    /// The timeline that ended.
    pub timeline: Timeline,
    /// Its last position that belongs to the primary's history.
    pub end: Lsn,
}

/// Where data on `timeline`, with these ancestors, leaves the history of a timeline that has the ancestors `others`; 0/0 if they
/// have none in common.
pub fn parting(ancestors: &[Fork], timeline: Timeline, others: &[Fork]) -> Lsn {
    let last = Fork {
        timeline,
        end: Lsn(u64::MAX),
    };
    let shared = |own: &Fork| {
        let other = others.iter().find(|other| other.timeline == own.timeline)?;
        Some(own.end.min(other.end))
    };
    ancestors
        .iter()
        .chain([&last])
        .rev()
        .find_map(shared)
        .unwrap_or_default()
}

/// What a holder left behind when it released the lease ([`api::names::LEASE_RELEASE`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Who released.
    pub member: MemberId,
    /// End of its WAL after a clean stop; absent after a stop that was not clean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Pod of the member that is to hold the lease next; the others hold back for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
}

/// The Lease as one value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRecord {
    /// `metadata.resourceVersion`: the version that a compare-and-swap expects.
    pub version: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Who holds it; `None` after a release and before the first holder.
    pub holder: Option<HolderRecord>,
    /// Changes with every renewal (`renewTime`); never compared with a clock, only noticed to change.
    pub renewal: Option<String>,
    /// How long it stays valid without a renewal, as its last writer promised (`leaseDurationSeconds`).
    pub duration: Millis,
    /// A counter that never falls. A take raises it, and so does a holder that learns of a higher promise (protocol.md rule 7).
    pub epoch: Epoch,
    /// System identifier of the data, from the first holder on.
    pub system_id: Option<String>,
    /// What the last holder left.
    pub release: Option<Release>,
    /// The synchronous rule in force: elections count by it (protocol.md rules 9, 10).
    pub rule: SyncRule,
    /// The timeline reserved for the holder of this epoch, the highest ever reserved; `None` until the first promotion:
    /// the first holder writes the timeline of its `initdb`.
    pub timeline: Option<Timeline>,
    /// The newest timeline that was reserved by an election which may have lost acknowledged commits: by the clock, while commits
    /// waited for nobody, or by an accepted loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lossy: Option<Timeline>,
    /// Ancestors of the timeline that the last serving holder wrote, oldest first (protocol.md rule 17).
    pub history: Vec<Fork>,
    /// What the primary knows of the members, by pod name.
    pub members: BTreeMap<String, MemberReport>,
    /// Ends of WAL of the members, by pod name.
    pub positions: BTreeMap<String, Position>,
    /// How far the archive of WAL is complete, by the holder or the one before it; `None` if there is no archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveRecord>,
    /// The set of volumes that the members, their rule, the release and the history are of ([`crate::lease_object::volumes_changed`]).
    /// Epoch and timelines are counted on from set to set.
    #[serde(default)]
    pub volume_set: u32,
    /// The set of before, whose members are kept beside; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_set: Option<u32>,
}

/// So much of the WAL that the last holder is known to have had may be lost by an election while commits wait for nobody.
/// A member that lacks more needs the user's word (Patroni has `maximum_lag_on_failover` for it, of 1 MiB).
pub const ASYNC_LOSS: Bytes = Bytes::mib(16);

impl LeaseRecord {
    /// Where the WAL of the last holder ended when that was told last: at its release, or with its last renewal.
    pub fn left(&self) -> Option<Position> {
        let pod = match (&self.holder, &self.release) {
            (Some(holder), _) => &holder.incarnation.pod,
            (
                None,
                Some(Release {
                    position: Some(left), ..
                }),
            ) => return Some(*left),
            (None, Some(release)) => {
                self.members
                    .iter()
                    .find(|(_, report)| report.member == release.member)?
                    .0
            }
            (None, None) => return None,
        };
        self.positions.get(pod).copied()
    }

    /// As the operator makes it.
    pub fn empty(uid: &str, version: &str) -> Self {
        Self {
            version: version.to_owned(),
            uid: uid.to_owned(),
            holder: None,
            renewal: None,
            duration: Millis::ZERO,
            epoch: Epoch(0),
            system_id: None,
            release: None,
            rule: SyncRule::default(),
            timeline: None,
            lossy: None,
            history: Vec::new(),
            members: BTreeMap::new(),
            positions: BTreeMap::new(),
            archive: None,
            volume_set: 0,
            former_set: None,
        }
    }

    /// As the operator makes it: by what it says, nobody has ever held it.
    pub fn is_empty(&self) -> bool {
        self.holder.is_none() && self.epoch == Epoch(0) && self.system_id.is_none() && self.release.is_none()
    }

    /// It was lost and made again, and nobody has held it since: what any member had is not on record, nor for whom commits waited.
    pub fn is_made_again(&self) -> bool {
        self.holder.is_none() && self.members.is_empty() && self.system_id.is_some()
    }

    /// Whose WAL an election has to know in a Lease that was made again: all whom it names, the last holder among them. Where commits
    /// waited for nobody, each may have some that no other has.
    pub fn to_be_heard(&self) -> BTreeSet<&MemberId> {
        let released = self.release.iter().map(|release| &release.member);
        let all = self.rule.names.iter().chain(released);
        all.filter(|_| self.is_made_again()).collect()
    }

    /// Data on `timeline` that does not follow may have acknowledged commits which the primary lacks.
    pub fn may_have_lost(&self, timeline: Timeline) -> bool {
        !self.rule.is_synchronous() || self.lossy.is_some_and(|lossy| timeline < lossy)
    }

    /// How much of that is not in WAL that ends at `own`; none if nothing is known of it, and [`Bytes::MAX`] if `own` is on a
    /// timeline that is no ancestor.
    pub fn lacks(&self, own: Position) -> Bytes {
        let Some(left) = self.left().filter(|left| own.timeline <= left.timeline) else {
            return Bytes::ZERO;
        };
        let common = match self.history.iter().find(|fork| fork.timeline == own.timeline) {
            _ if own.timeline == left.timeline => own.lsn,
            Some(fork) => own.lsn.min(fork.end),
            None => return Bytes::MAX,
        };
        left.lsn.since(common)
    }
}

/// What a member's agent says of itself, to the primary's agent; the primary copies it into the Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberReport {
    /// UID of its pod.
    pub pod_uid: String,
    /// Its data.
    pub member: MemberId,
    /// Address of its pod.
    pub address: String,
    /// What it is doing.
    pub state: MemberState,
    /// Hash of the settings that are in force in its PostgreSQL ([`crate::protocol::MemberReport::pending_restart`] aside).
    pub settings: String,
    /// Some of these settings need a restart of PostgreSQL that has not happened yet.
    #[serde(default)]
    pub pending_restart: bool,
    /// These lower limits below which no standby may be while the primary is above them (`max_connections`,
    /// `max_worker_processes`, `max_wal_senders`, `max_prepared_transactions`, `max_locks_per_transaction`), and raise none: the
    /// primary restarts first. A standby says so, too, that keeps one of them until the primary has: it needs no restart before.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lowers_limits: bool,
    /// Why the wanted settings were not taken up (PostgreSQL's own words).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings_error: Option<String>,
    /// Public key (SubjectPublicKeyInfo, DER, base64) to be signed as its replication certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Version of PostgreSQL, such as `17.6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,
    /// Version of the agent.
    pub agent_version: String,
    /// A fault that keeps it from its work, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Data that was set aside on its volume and kept, by name: it may have commits that nobody else has.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kept: BTreeSet<String>,
    /// Of a primary: roles that replicate from it under a member's name, or did a moment ago. PostgreSQL may have taken what they
    /// said for that member's acknowledgements.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub impostors: BTreeSet<String>,
    /// Its volumes that have no room left. Such a member cannot be promoted.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub full: BTreeSet<Volume>,
    /// Digest of the certificate of all agents, and of the authorities beside it, that its agent and its PostgreSQL have loaded
    /// ([`certificate_digest`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<String>,
    /// Digest of its replication certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_certificate: Option<String>,
}

/// A volume of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Volume {
    /// Data; also the write-ahead log, if that has no volume of its own.
    Data,
    /// Write-ahead log.
    Wal,
}

/// What the holder writes as [`MemberReport::fault`] of a member that it has not heard of for 5 s. Part of the protocol:
/// the rest of such a report is what the member said last, and nobody may count on it.
pub const FAULT_SILENT: &str = "has not reported to the primary for 5 seconds";

/// How a member's report begins that PostgreSQL does not stay up ([`MemberReport::fault`]): `… 3 times in a row`. It ends
/// when PostgreSQL has stayed up for a minute. Part of the protocol.
pub const FAULT_ENDS: &str = "PostgreSQL ended by itself";

/// Longest identifier or version in a report, in bytes: a UID has 36.
const SHORT: usize = 64;
/// Longest public key, in bytes: ours has 124.
const KEY: usize = 256;
/// Longest text in words, in bytes; more is cut off.
const WORDS: usize = 1024;
/// So many names of data that is kept are told, and of impostors.
const KEPT: usize = 4;

impl MemberReport {
    /// Refuses a report that is not as an agent writes it. All reports stand in the Lease, whose annotations may have 256 KiB together:
    /// with these bounds they stay below a third of that.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<(), String> {
        if self.address.parse::<IpAddr>().is_err() {
            return Err(format!("address: {:?} is no address", cut(&self.address, SHORT)));
        }
        let kept = self.kept.iter().map(|kept| ("kept", kept, SHORT));
        let impostors = self.impostors.iter().map(|role| ("impostors", role, SHORT));
        let key = self.public_key.as_ref().map(|key| ("publicKey", key, KEY));
        let optional = [
            ("serverVersion", &self.server_version),
            ("certificates", &self.certificates),
            ("replicationCertificate", &self.replication_certificate),
        ];
        let optional = optional
            .into_iter()
            .filter_map(|(field, text)| Some((field, text.as_ref()?, SHORT)));
        let texts = [
            ("podUid", &self.pod_uid, SHORT),
            ("settings", &self.settings, SHORT),
            ("agentVersion", &self.agent_version, SHORT),
        ];
        let texts = texts.into_iter().chain(optional);
        for (field, text, longest) in texts.chain(key).chain(kept).chain(impostors) {
            if text.len() > longest {
                return Err(format!("{field}: it is longer than {longest} bytes"));
            }
            if text.bytes().any(|byte| !(byte == b' ' || byte.is_ascii_graphic())) {
                return Err(format!("{field}: it has characters that are not printable ASCII"));
            }
        }
        Ok(())
    }

    /// Cuts what may be of any length, and takes control characters out of it.
    pub fn cut(&mut self) {
        for names in [&mut self.kept, &mut self.impostors] {
            while names.len() > KEPT {
                names.pop_last();
            }
        }
        for words in [&mut self.settings_error, &mut self.fault].into_iter().flatten() {
            *words = cut(&words.replace(char::is_control, " "), WORDS);
        }
    }

    /// The holder has not heard of this member for a while.
    pub fn is_silent(&self) -> bool {
        self.fault.as_deref() == Some(FAULT_SILENT)
    }

    /// Its PostgreSQL does not stay up.
    pub fn keeps_ending(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.starts_with(FAULT_ENDS))
    }
}

/// The beginning of `text`, of so many bytes at most.
fn cut(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    let mut ends = (0..=longest.saturating_sub('…'.len_utf8())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}…", &text[..end])
}

/// Hash of a set of server settings (`spec.postgres.parameters`): what [`MemberReport::settings`] and
/// `status.intent.restart.settings` hold. FNV-1a over the names and values, each ended by a zero byte.
pub fn settings_hash(parameters: &BTreeMap<String, String>) -> String {
    let texts = parameters.iter().flat_map(|(name, value)| [name, value]);
    fnv(texts.flat_map(|text| text.bytes().chain([0])))
}

/// Digest of certificates and of the authorities that are trusted beside them, both in PEM: what [`MemberReport::certificates`] holds.
/// FNV-1a over both, each ended by a zero byte: it tells what was loaded, and protects nothing.
pub fn certificate_digest(certificates: &[u8], authorities: &[u8]) -> String {
    let ended = |part: &[u8]| part.iter().copied().chain([0]).collect::<Vec<u8>>();
    fnv([certificates, authorities].into_iter().flat_map(ended))
}

fn fnv(bytes: impl Iterator<Item = u8>) -> String {
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// For fields that are left out when they are false.
fn is_false(value: &bool) -> bool {
    !value
}

/// What a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MemberState {
    /// Nothing on its volume yet, or not decided.
    Waiting,
    /// Making the first database.
    Initializing,
    /// Copying the primary.
    Cloning,
    /// PostgreSQL is starting.
    Starting,
    /// Holds the lease and accepts writes.
    Primary,
    /// Streams from the primary.
    Streaming,
    /// Runs as standby, not (yet) streaming.
    CatchingUp,
    /// PostgreSQL is stopped on purpose.
    Stopped,
}

/// A member's message to the primary (`POST /v1/report`), and the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportRequest {
    /// The epoch in which the sender believes; refused when older than the receiver's.
    pub epoch: Epoch,
    /// The sender's pod name.
    pub pod: String,
    /// What it says of itself.
    pub report: MemberReport,
    /// End of its WAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// A standby: end of what it has replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Lsn>,
    /// The epoch that it has promised (protocol.md rule 7: one above the primary's has to be taken up).
    #[serde(default)]
    pub promised: Epoch,
    /// How far the backup is for which it copies its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupTask>,
}

impl ReportRequest {
    /// Refuses what no agent says of a backup, and cuts its text: it goes into the Lease, as the report does.
    ///
    /// # Errors
    /// Names the field.
    pub fn check_backup(&mut self) -> Result<(), String> {
        let Some(task) = &mut self.backup else {
            return Ok(());
        };
        let stored = task.backup.iter();
        let texts = stored.flat_map(|stored| {
            let member = stored.source.as_ref().map(|source| &source.member);
            [&stored.name, &stored.start_lsn, &stored.stop_lsn]
                .into_iter()
                .chain(member)
        });
        if texts.chain([&task.uid]).any(|text| text.len() > SHORT) {
            return Err(format!("backup: a text in it is longer than {SHORT} bytes"));
        }
        if let Some(words) = &mut task.message {
            *words = cut(&words.replace(char::is_control, " "), WORDS);
        }
        Ok(())
    }
}

/// The primary's answer to a [`ReportRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportReply {
    /// The primary's epoch.
    pub epoch: Epoch,
    /// Its replication role and slot exist: the member may clone and stream.
    pub admitted: bool,
    /// The primary cannot write any more (its disk hangs, PostgreSQL does not come up): the others are to elect another.
    #[serde(default)]
    pub steps_down: bool,
    /// Where the oldest WAL begins that the primary has; told while some member does not stream. Who needs older WAL has to be
    /// copied anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Lsn>,
    /// The primary lets nobody in before this member has flushed what is in doubt: too few others receive WAL.
    #[serde(default)]
    pub awaits: bool,
}

/// A candidate's request for a promise (`POST /v1/promise`): receive nothing any more from an epoch below `epoch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromiseRequest {
    /// The epoch that the candidate would take.
    pub epoch: Epoch,
    /// The candidate's pod.
    pub pod: String,
    /// UID of the Lease: another cluster's candidate is refused.
    pub lease: String,
}

/// The answer to a [`PromiseRequest`]. A promise that has been made is durable; one that is being made is answered by the
/// state so far, and the candidate asks again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromiseReply {
    /// Who answers.
    pub member: MemberId,
    /// The epoch that it has promised so far.
    pub promised: Epoch,
    /// It does not hear the primary any more either: it promises, or would.
    pub suspects: bool,
    /// End of all that it has received, once nothing is received any more (protocol.md rule 5); absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
}

/// A primary's request while it cannot renew its lease (`POST /v1/failsafe`): do not take the lease for its duration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailsafeRequest {
    /// The epoch in which it holds the lease.
    pub epoch: Epoch,
    /// Its pod.
    pub pod: String,
    /// UID of the Lease: another cluster's primary is refused.
    pub lease: String,
}

/// The answer to a [`FailsafeRequest`]: for the lease's duration from now on, this member neither promises an election
/// nor takes the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailsafeReply {
    /// Who answers.
    pub member: MemberId,
    /// The epoch that it was asked for.
    pub epoch: Epoch,
}

/// The question of a pooler's pod to the primary's agent (`POST /v1/pooler`): is it to pause?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolerRequest {
    /// The pod.
    pub pod: String,
    /// It has paused: no connection of it to PostgreSQL is left, and its clients wait.
    pub paused: bool,
}

/// The answer to a [`PoolerRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolerReply {
    /// It is to pause for so long, because PostgreSQL stops next.
    pub pause_milliseconds: Option<u64>,
    /// It may soon be told to.
    pub soon: bool,
    /// Applications can write here.
    pub serves: bool,
}

#[cfg(test)]
mod tests;
