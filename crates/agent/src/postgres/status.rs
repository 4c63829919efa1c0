//! What the server says of itself.

use machine::protocol::{Lsn, Position, Timeline};
use serde::Deserialize;

/// What the server says of itself, read in one round trip.
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
    /// Standby: end of the WAL that it replayed.
    pub replayed: Option<Lsn>,
    /// Standby: who sends it WAL; `None` if nobody.
    pub receiver: Option<Receiver>,
    /// Who gets WAL from it.
    pub senders: Vec<Sender>,
    /// Its physical replication slots.
    pub slots: Vec<Slot>,
    /// Settings that wait for a restart.
    pub pending_restart: Vec<String>,
    /// One of these lowers a limit below which a standby may not be while its primary has more.
    pub lowers_limits: bool,
    /// Client sessions, the agent's aside.
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
    /// End of what it flushed.
    pub flushed: Option<Lsn>,
    /// Timeline that it receives.
    pub timeline: Option<Timeline>,
}

/// A WAL sender.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Sender {
    /// Role that it is logged in as: the member.
    pub user: String,
    /// `application_name`.
    pub application: String,
    /// `streaming`, `catchup`, `backup` …
    pub state: String,
    /// Sent.
    pub sent: Option<Lsn>,
    /// Flushed there.
    pub flushed: Option<Lsn>,
    /// Replayed there.
    pub replayed: Option<Lsn>,
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

/// One row with one JSON text. `pg_file_settings` reads the files anew, so it is asked only when a restart is pending.
pub(super) const STATUS_QUERY: &str = r#"
SELECT json_build_object(
  'inRecovery', r.recovering,
  'systemId', (SELECT system_identifier::text FROM pg_control_system()),
  'version', current_setting('server_version'),
  'written', CASE WHEN NOT r.recovering THEN pg_current_wal_flush_lsn()::text END,
  'writtenTimeline', CASE WHEN NOT r.recovering THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
  'received', CASE WHEN r.recovering THEN pg_last_wal_receive_lsn()::text END,
  'replayed', CASE WHEN r.recovering THEN pg_last_wal_replay_lsn()::text END,
  'recoveredTimeline', (SELECT greatest(c.timeline_id, m.min_recovery_end_timeline)
                          FROM pg_control_checkpoint() c, pg_control_recovery() m),
  'receiver', (SELECT json_build_object('status', w.status, 'senderHost', w.sender_host, 'slot', w.slot_name,
                                        'flushed', w.flushed_lsn::text, 'timeline', w.received_tli)
                 FROM pg_stat_wal_receiver w WHERE w.pid IS NOT NULL LIMIT 1),
  'senders', (SELECT coalesce(json_agg(json_build_object(
                       'user', s.usename, 'application', s.application_name, 'state', coalesce(s.state, ''),
                       'sent', s.sent_lsn::text, 'flushed', s.flush_lsn::text, 'replayed', s.replay_lsn::text)
                       ORDER BY s.application_name, s.pid), '[]'::json)
                FROM pg_stat_replication s),
  'slots', (SELECT coalesce(json_agg(json_build_object(
                     'name', l.slot_name, 'active', l.active, 'restart', l.restart_lsn::text,
                     'walStatus', l.wal_status) ORDER BY l.slot_name), '[]'::json)
              FROM pg_replication_slots l WHERE l.slot_type = 'physical'),
  'pendingRestart', p.names,
  'lowersLimits', CASE WHEN p.some THEN EXISTS (
      SELECT FROM pg_settings s
        JOIN (SELECT DISTINCT ON (lower(name)) lower(name) AS name, setting
                FROM pg_file_settings ORDER BY lower(name), seqno DESC) f ON f.name = s.name
       WHERE s.pending_restart AND s.name IN ('max_connections', 'max_worker_processes', 'max_wal_senders',
                                              'max_prepared_transactions', 'max_locks_per_transaction')
         AND CASE WHEN f.setting ~ '^[0-9]{1,9}$' THEN f.setting::int < s.setting::int ELSE false END)
    ELSE false END,
  'sessions', (SELECT count(*) FROM pg_stat_activity a
                WHERE a.backend_type = 'client backend' AND a.application_name <> 'cdb_agent')
)::text
FROM (SELECT pg_is_in_recovery() AS recovering) r,
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
    received: Option<Lsn>,
    replayed: Option<Lsn>,
    recovered_timeline: u32,
    receiver: Option<Receiver>,
    senders: Vec<Sender>,
    slots: Vec<Slot>,
    pending_restart: Vec<String>,
    lowers_limits: bool,
    sessions: u32,
}

pub(super) fn parse(text: &str) -> Result<Status, String> {
    let raw: Raw = serde_json::from_str(text).map_err(|error| format!("its status is not understood: {error}"))?;
    let written = raw
        .written_timeline
        .as_deref()
        .and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let received = raw
        .receiver
        .as_ref()
        .and_then(|receiver| receiver.timeline)
        .unwrap_or_default();
    let timeline = match written {
        Some(written) => Timeline(written),
        None => received.max(Timeline(raw.recovered_timeline)),
    };
    let lsn = raw.written.max(raw.received).max(raw.replayed).unwrap_or_default();
    Ok(Status {
        in_recovery: raw.in_recovery,
        system_id: raw.system_id,
        version: raw.version.split_whitespace().next().unwrap_or_default().to_owned(),
        position: Position { timeline, lsn },
        replayed: raw.replayed,
        receiver: raw.receiver,
        senders: raw.senders,
        slots: raw.slots,
        pending_restart: raw.pending_restart,
        lowers_limits: raw.lowers_limits,
        sessions: raw.sessions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDBY: &str = r#"{"inRecovery": true, "systemId": "7444", "version": "17.6 (Debian 17.6-1)",
        "written": null, "writtenTimeline": null, "received": "0/5000000", "replayed": "0/50000A0",
        "recoveredTimeline": 2, "receiver": {"status": "streaming", "senderHost": "10.0.0.2",
        "slot": "cdb_1_a_b", "flushed": "0/5000000", "timeline": 3}, "senders": [], "slots": [],
        "pendingRestart": ["max_connections"], "lowersLimits": true, "sessions": 4}"#;

    #[test]
    fn the_position_of_a_standby_is_the_larger_one() {
        let status = parse(STANDBY).expect("readable");
        assert_eq!(
            status.position,
            Position {
                timeline: Timeline(3),
                lsn: Lsn(0x500_00A0)
            }
        );
        assert_eq!(status.version, "17.6");
        assert!(status.lowers_limits);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(parse("{}").is_err());
        assert!(parse(&STANDBY.replace("0/5000000", "somewhere")).is_err());
    }
}
