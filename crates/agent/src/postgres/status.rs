//! The server's status: the query, and the reading of its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use machine::instance::{WalSender, observer};
use machine::protocol::{Fork, Lsn, MemberId, Position, Timeline};
use machine::units::Millis;
use serde::Deserialize;

use super::config::Following;
use crate::volume::forks;

/// The server's status, read in one round trip.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// It recovers: a standby, or a server in crash recovery.
    pub in_recovery: bool,
    /// System identifier.
    pub system_id: String,
    /// Version, such as `17.6`.
    pub version: String,
    /// End of the WAL that it has: flushed (primary), or the larger of received and replayed (standby), with the
    /// timeline of that WAL.
    pub position: Position,
    /// Without a WAL receiver: where the timeline of `position` begins; `None` if its history file is not there.
    pub begins: Option<Lsn>,
    /// Primary: end of its WAL, flushed or not.
    pub inserted: Option<Lsn>,
    /// Standby: end of the WAL that it replayed.
    pub replayed: Option<Lsn>,
    /// Standby: it has no WAL receiver, and `position` is the end of all WAL that it has (protocol.md rule 5). That end
    /// does not grow any more.
    pub received_all: bool,
    /// Standby: it has read all WAL that it had when it was started; `position` is not before the end of that WAL.
    pub knows_end: bool,
    /// Standby: it has no WAL receiver, and has replayed all WAL that it has.
    pub replayed_all: bool,
    /// Standby: its startup process waits for more WAL, with or without a WAL receiver.
    pub waits_for_wal: bool,
    /// Standby: how it finds its primary.
    pub following: Following,
    /// Without a WAL receiver: ancestors of its timeline, oldest first.
    pub history: Vec<Fork>,
    /// Primary: where its oldest WAL begins; asked only while some slot is not in use.
    pub oldest: Option<Lsn>,
    /// Standby: its WAL receiver; `None` if it has none.
    pub receiver: Option<Receiver>,
    /// Its WAL senders.
    pub senders: Vec<Sender>,
    /// Its physical replication slots.
    pub slots: Vec<Slot>,
    /// Settings that wait for a restart.
    pub pending_restart: Vec<String>,
    /// True if some of these lower a limit that a standby must not have below its primary's, and none raises one.
    pub lowers_limits: bool,
    /// Client sessions, without the agent's.
    pub sessions: u32,
}

/// A WAL receiver.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receiver {
    /// `streaming`, `starting`, `waiting` …
    pub status: String,
    /// Address that it receives from.
    pub sender_host: Option<String>,
    /// Slot that it uses.
    pub slot: Option<String>,
    /// End of the WAL that it has flushed.
    pub flushed: Option<Lsn>,
    /// Timeline of the WAL that it receives.
    pub timeline: Option<Timeline>,
    /// How long ago it last heard the sender.
    pub heard_age: Option<Millis>,
}

/// A WAL sender.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sender {
    /// Role of its session: the member.
    pub user: String,
    /// `application_name`.
    pub application: String,
    /// Its process.
    pub pid: i32,
    /// `streaming`, `catchup`, `backup` …
    pub state: String,
    /// Sent.
    pub sent: Option<Lsn>,
    /// Flushed there.
    pub flushed: Option<Lsn>,
    /// Replayed there.
    pub replayed: Option<Lsn>,
    /// When the standby sent its last report (its own clock); changes with every report.
    pub reported: Option<String>,
}

impl Status {
    /// Its WAL senders, in the machine's terms.
    pub fn wal_senders(&self) -> Vec<WalSender> {
        let senders = self.senders.iter().map(|sender| WalSender {
            pid: sender.pid,
            role: sender.user.clone(),
            name: sender.application.clone(),
            streaming: sender.state == "streaming",
            flushed: sender.flushed,
        });
        senders.collect()
    }

    /// The part of the status that counts for decisions.
    pub fn seen(&self) -> observer::Status {
        observer::Status {
            in_recovery: self.in_recovery,
            position: self.position,
            begins: self.begins,
            inserted: self.inserted,
            replayed: self.replayed,
            received_all: self.received_all,
            knows_end: self.knows_end,
            waits_for_wal: self.waits_for_wal,
            following: self.following.clone(),
            history: self.history.clone(),
            oldest: self.oldest,
            receiver: self.receiver.as_ref().map(|receiver| observer::Receiver {
                status: receiver.status.clone(),
                heard_age: receiver.heard_age,
            }),
            senders: self.wal_senders(),
            slots: self.members_with_slots(),
            lost_slots: self.slots.iter().filter_map(Slot::lost_by).collect(),
            pending_restart: !self.pending_restart.is_empty(),
            lowers_limits: self.lowers_limits,
        }
    }

    /// How far the members that stream from here have flushed.
    pub fn standbys(&self) -> BTreeMap<MemberId, Lsn> {
        machine::instance::standbys(&self.wal_senders())
    }

    /// The members that have a slot here.
    pub fn members_with_slots(&self) -> BTreeSet<MemberId> {
        self.slots
            .iter()
            .filter_map(|slot| MemberId::parse(&slot.name))
            .collect()
    }

    /// How long ago the WAL receiver heard the primary; `None` without a WAL receiver.
    pub fn heard_age(&self) -> Option<Duration> {
        self.receiver.as_ref()?.heard_age.map(Millis::duration)
    }
}

/// A physical replication slot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
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

impl Slot {
    /// The member that the slot belongs to, if the slot is lost: WAL that it should have kept was removed.
    pub fn lost_by(&self) -> Option<MemberId> {
        let lost = self.wal_status.as_deref() == Some("lost") && !self.active;
        lost.then(|| MemberId::parse(&self.name)).flatten()
    }
}

/// The query for the status: one row with one JSON text. `pg_file_settings` reads the files again, so it is asked only
/// while a restart is pending.
///
/// The WAL receiver is read before the startup process. Once the receiver is gone, the received WAL does not grow. A
/// receiver is started only when all local WAL has been replayed. So if there ever was one since the server's start,
/// the larger of received and replayed is the end of all WAL, even if the replay of received WAL waits (for a reader,
/// say). A server that never had a receiver knows that end only when its startup process waits for more.
///
/// Without a receiver PostgreSQL does not tell the timeline of the WAL that it received last, and the control file
/// follows later. The newest segment that holds that position tells it.
pub(super) const STATUS_QUERY: &str = r#"
WITH r AS MATERIALIZED (SELECT pg_is_in_recovery() AS recovering),
w AS MATERIALIZED (
  SELECT w.status, w.sender_host, w.slot_name, w.flushed_lsn, w.received_tli,
         greatest(0, extract(epoch FROM clock_timestamp() - w.last_msg_receipt_time) * 1000)::bigint AS heard_age
    FROM r LEFT JOIN pg_stat_wal_receiver w ON true
   WHERE w.pid IS NOT NULL LIMIT 1),
l AS MATERIALIZED (
  SELECT (SELECT count(*) FROM w) > 0 AS receiving,
         CASE WHEN r.recovering THEN pg_last_wal_receive_lsn() END AS received,
         CASE WHEN r.recovering THEN pg_last_wal_replay_lsn() END AS replayed,
         CASE WHEN NOT r.recovering THEN pg_current_wal_flush_lsn() END AS written,
         CASE WHEN NOT r.recovering THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS written_timeline
    FROM r),
f AS MATERIALIZED (
  SELECT (greatest(l.received, l.replayed) - '0/0'::pg_lsn - 1)::bigint / s.bytes AS number, 4294967296 / s.bytes AS each
    FROM l, (SELECT setting::bigint AS bytes FROM pg_settings WHERE name = 'wal_segment_size') s
   WHERE greatest(l.received, l.replayed) > '0/0'::pg_lsn),
t AS MATERIALIZED (
  SELECT (SELECT greatest(c.timeline_id, m.min_recovery_end_timeline)
            FROM pg_control_checkpoint() c, pg_control_recovery() m) AS recovered,
         CASE WHEN r.recovering AND NOT l.receiving THEN (
           SELECT max(left(n.name, 8)) FROM f, pg_ls_dir('pg_wal') AS n(name)
            WHERE n.name ~ '^[0-9A-F]{24}$'
              AND right(n.name, 16) = upper(lpad(to_hex(f.number / f.each), 8, '0') || lpad(to_hex(f.number % f.each), 8, '0')))
         END AS file
    FROM r, l),
a AS MATERIALIZED (
  SELECT CASE WHEN r.recovering THEN EXISTS (
      SELECT FROM pg_stat_activity s
       WHERE s.backend_type = 'startup' AND s.wait_event IN ('RecoveryRetrieveRetryInterval', 'RecoveryWalStream')) END AS waits
    FROM r, l),
h AS MATERIALIZED (
  SELECT pg_read_file('pg_wal/' || o.timeline || '.history', 0, 1048576, true) AS text
    FROM l, t, LATERAL (
      SELECT CASE WHEN NOT l.receiving
                  THEN coalesce(l.written_timeline, greatest(t.file, upper(lpad(to_hex(t.recovered), 8, '0')))) END AS timeline) o
   WHERE o.timeline > '00000001')
SELECT json_build_object(
  'inRecovery', r.recovering,
  'systemId', (SELECT system_identifier::text FROM pg_control_system()),
  'version', current_setting('server_version'),
  'written', l.written::text,
  'writtenTimeline', l.written_timeline,
  'inserted', CASE WHEN NOT r.recovering THEN pg_current_wal_insert_lsn()::text END,
  'history', (SELECT h.text FROM h),
  'oldest', CASE WHEN NOT r.recovering AND EXISTS (
      SELECT FROM pg_replication_slots s WHERE s.slot_type = 'physical' AND NOT s.active)
    THEN (SELECT min(right(n.name, 16)) FROM pg_ls_dir('pg_wal') AS n(name) WHERE n.name ~ '^[0-9A-F]{24}$') END,
  'segment', (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'),
  'received', l.received::text,
  'replayed', l.replayed::text,
  'recoveredTimeline', t.recovered,
  'fileTimeline', t.file,
  'replayedAll', r.recovering AND NOT l.receiving AND (l.replayed >= l.received OR a.waits),
  'waitsForWal', r.recovering AND a.waits,
  'following', json_build_object('conninfo', current_setting('primary_conninfo'), 'slot', current_setting('primary_slot_name')),
  'receiver', (SELECT json_build_object('status', w.status, 'senderHost', w.sender_host, 'slot', w.slot_name,
                                        'flushed', w.flushed_lsn::text, 'timeline', w.received_tli,
                                        'heardAge', w.heard_age) FROM w),
  'senders', (SELECT coalesce(json_agg(json_build_object(
                       'user', s.usename, 'application', s.application_name, 'pid', s.pid,
                       'state', coalesce(s.state, ''), 'reported', s.reply_time::text,
                       'sent', s.sent_lsn::text, 'flushed', s.flush_lsn::text, 'replayed', s.replay_lsn::text)
                       ORDER BY s.application_name, s.pid), '[]'::json)
                FROM pg_stat_replication s),
  'slots', (SELECT coalesce(json_agg(json_build_object(
                     'name', l.slot_name, 'active', l.active, 'restart', l.restart_lsn::text,
                     'walStatus', l.wal_status) ORDER BY l.slot_name), '[]'::json)
              FROM pg_replication_slots l WHERE l.slot_type = 'physical'),
  'pendingRestart', p.names,
  'lowersLimits', CASE WHEN p.some THEN (
      SELECT coalesce(bool_and(f.setting::int < s.setting::int), false)
        FROM pg_settings s
        JOIN (SELECT DISTINCT ON (lower(name)) lower(name) AS name, setting
                FROM pg_file_settings ORDER BY lower(name), seqno DESC) f ON f.name = s.name
       WHERE s.pending_restart AND s.name IN ('max_connections', 'max_worker_processes', 'max_wal_senders',
                                              'max_prepared_transactions', 'max_locks_per_transaction')
         AND f.setting ~ '^[0-9]{1,9}$')
    ELSE false END,
  'sessions', (SELECT count(*) FROM pg_stat_activity a
                WHERE a.backend_type = 'client backend' AND a.application_name <> 'cdb_agent')
)::text
FROM r, l, t, a,
     (SELECT coalesce(json_agg(s.name ORDER BY s.name), '[]'::json) AS names, count(*) > 0 AS some
        FROM pg_settings s WHERE s.pending_restart) p
"#;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    in_recovery: bool,
    system_id: String,
    version: String,
    written: Option<Lsn>,
    written_timeline: Option<String>,
    inserted: Option<Lsn>,
    history: Option<String>,
    oldest: Option<String>,
    segment: u64,
    received: Option<Lsn>,
    replayed: Option<Lsn>,
    recovered_timeline: u32,
    file_timeline: Option<String>,
    replayed_all: Option<bool>,
    waits_for_wal: Option<bool>,
    following: Following,
    receiver: Option<Receiver>,
    senders: Vec<Sender>,
    slots: Vec<Slot>,
    pending_restart: Vec<String>,
    lowers_limits: bool,
    sessions: u32,
}

pub(super) fn parse(text: &str) -> Result<Status, String> {
    let raw: Raw = serde_json::from_str(text).map_err(|error| format!("its status is not understood: {error}"))?;
    let number = |digits: &Option<String>| {
        let digits = digits.as_deref().unwrap_or("0");
        u32::from_str_radix(digits, 16)
            .map(Timeline)
            .map_err(|error| format!("its status names timeline {digits:?}: {error}"))
    };
    let received = raw.receiver.as_ref().and_then(|receiver| receiver.timeline);
    let timeline = match number(&raw.written_timeline)? {
        Timeline(0) => received
            .unwrap_or_default()
            .max(number(&raw.file_timeline)?)
            .max(Timeline(raw.recovered_timeline)),
        written => written,
    };
    let history = forks(raw.history.as_deref().unwrap_or_default())?;
    let begins = match timeline {
        Timeline(1) => Some(Lsn(0)),
        _ => history.last().map(|fork| fork.end),
    };
    let replayed_all = raw.replayed_all.unwrap_or_default();
    let lsn = raw.written.max(raw.received).max(raw.replayed).unwrap_or_default();
    Ok(Status {
        in_recovery: raw.in_recovery,
        system_id: raw.system_id,
        version: raw.version.split_whitespace().next().unwrap_or_default().to_owned(),
        position: Position { timeline, lsn },
        begins: begins.filter(|_| raw.receiver.is_none()),
        inserted: raw.inserted,
        replayed: raw.replayed,
        received_all: raw.in_recovery && raw.receiver.is_none() && (raw.received.is_some() || replayed_all),
        knows_end: raw.in_recovery && (raw.received.is_some() || replayed_all),
        replayed_all,
        waits_for_wal: raw.waits_for_wal.unwrap_or_default(),
        following: raw.following,
        oldest: raw.oldest.map(|name| begin_of(&name, raw.segment)).transpose()?,
        history,
        receiver: raw.receiver,
        senders: raw.senders,
        slots: raw.slots,
        pending_restart: raw.pending_restart,
        lowers_limits: raw.lowers_limits,
        sessions: raw.sessions,
    })
}

/// Where a segment begins, by the last 16 digits of its file's name.
fn begin_of(name: &str, bytes: u64) -> Result<Lsn, String> {
    let number = |digits: Option<&str>| u64::from_str_radix(digits?, 16).ok();
    let (high, low) = (number(name.get(..8)), number(name.get(8..)));
    let begin = high
        .zip(low)
        .and_then(|(high, low)| Some(Lsn((high << 32) | low.checked_mul(bytes)?)));
    begin.ok_or_else(|| format!("its status names a WAL file {name:?}"))
}

#[cfg(test)]
mod tests;
