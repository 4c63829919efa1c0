//! What stands in `postgresql.conf`.

use std::collections::BTreeMap;

use machine::protocol::MemberId;

use super::config::{Files, Role, Settings, SettingsError};
use super::conninfo;
use crate::logs::LINE_PREFIX;
use crate::volume::{EnforcedSettings, WalRoom};

/// At least this many WAL senders and slots: nine members, each with a clone and a stream, and a few to spare.
const SENDERS: u32 = 20;
/// The agent's sessions: its questions, its changes, its canary, one that shows that new ones are taken, one that proves what these
/// see, and one for a checkpoint; and two for people.
const RESERVED: u32 = 8;
const MIB: u64 = 1 << 20;
/// PostgreSQL takes less while it runs, and does not start with less than two segments of WAL, which have 16 MiB at most where
/// nobody chose otherwise.
const LEAST_WAL: f64 = 32.0;

/// All settings of a server in `role`.
pub(super) fn of(settings: &Settings, files: &Files, role: &Role) -> Result<BTreeMap<String, String>, SettingsError> {
    let mut values = defaults(settings);
    for (name, value) in &settings.parameters {
        check(name, value)?;
        values.insert(name.to_ascii_lowercase(), value.clone());
    }
    raise(&mut values, "max_wal_senders", SENDERS);
    raise(&mut values, "max_replication_slots", SENDERS);
    for name in ["max_wal_size", "min_wal_size"] {
        if let Some(value) = values.get_mut(name)
            && mebibytes(value).is_some_and(|size| size < LEAST_WAL)
        {
            *value = format!("{LEAST_WAL}MB");
        }
    }
    let enforced = match role {
        Role::Primary { .. } => EnforcedSettings::default(),
        Role::Standby { enforced, .. } => *enforced,
    };
    raise_to_enforced(&mut values, &enforced);
    reserve_sessions(&mut values);
    values.extend(fixed(settings, files, role));
    Ok(values)
}

/// The name that nobody has.
const NOBODY: &str = "cdb_nobody";

/// `synchronous_standby_names`.
///
/// A standby acknowledges nothing and waits for nobody, but whether there are any names at all is kept in shared memory by
/// the checkpointer, which may be slow to notice a change: with a name from the beginning, a promotion changes only which.
pub(super) fn synchronous(role: &Role) -> String {
    match role {
        Role::Primary { rule, .. } if rule.is_synchronous() => {
            let names: Vec<&str> = rule.names.iter().map(MemberId::as_str).collect();
            format!("ANY {} ({})", rule.required, names.join(", "))
        }
        Role::Primary { .. } => String::new(),
        Role::Standby { .. } => format!("ANY 1 ({NOBODY})"),
    }
}

/// What users may set otherwise.
fn defaults(settings: &Settings) -> BTreeMap<String, String> {
    let WalRoom { capacity, left } = settings.wal;
    // PostgreSQL's own 1 GB, less on small volumes.
    let checkpoint = (capacity / 4 / MIB).clamp(96, 1024);
    // A slot of a member that is away keeps WAL: half of what data leaves at most, lest it fill the volume, and no less than is there
    // between two checkpoints anyway. By sixteenths of the volume, so that not each reload changes it. A member that needs more is
    // cloned anew.
    let step = (capacity / 16).max(1);
    let kept = (left / 2 / step * step / MIB).max(checkpoint);
    let locale = settings.locale.as_str();
    let kept = format!("{kept}MB");
    // A standby that is behind has no slot on whoever is promoted until its agent has promised the epoch, and on a standby never:
    // meanwhile checkpoints leave it what is mostly there anyway.
    let without_slot = format!("{}MB", checkpoint / 2);
    let checkpoint = format!("{checkpoint}MB");
    let senders = SENDERS.to_string();
    let pairs = [
        ("datestyle", "iso, mdy"),
        ("default_text_search_config", "pg_catalog.english"),
        // Reads on a standby are not cancelled by the primary's cleaning up.
        ("hot_standby_feedback", "on"),
        ("lc_monetary", locale),
        ("lc_numeric", locale),
        ("lc_time", locale),
        ("max_replication_slots", &senders),
        ("max_slot_wal_keep_size", &kept),
        ("max_wal_senders", &senders),
        ("max_wal_size", &checkpoint),
        // A connection whose other end is gone ends within half a minute.
        ("tcp_keepalives_count", "3"),
        ("tcp_keepalives_idle", "15"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_user_timeout", "30000"),
        ("timezone", "UTC"),
        ("wal_keep_size", &without_slot),
        ("wal_level", "replica"),
    ];
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// What nobody else sets.
fn fixed(settings: &Settings, files: &Files, role: &Role) -> BTreeMap<String, String> {
    let tls = |name: &str| files.tls.join(name).to_string_lossy().into_owned();
    let port = settings.port.to_string();
    let socket = files.socket.to_string_lossy();
    let (certificate, key, authority) = (tls("tls.crt"), tls("tls.key"), tls("ca.crt"));
    let (upstream, slot) = match role {
        Role::Standby {
            primary: Some(primary), ..
        } => (conninfo::streaming(primary, files), primary.member.to_string()),
        Role::Standby { primary: None, .. } | Role::Primary { .. } => (String::new(), String::new()),
    };
    let synchronous = synchronous(role);
    let suspicion = format!("{}ms", settings.suspicion.as_millis());
    let mut pairs = vec![
        ("archive_mode", "off"),
        ("cluster_name", settings.cluster.as_str()),
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("hot_standby", "on"),
        ("lc_messages", "C"),
        ("listen_addresses", "*"),
        ("log_destination", "stderr"),
        ("log_line_prefix", LINE_PREFIX),
        ("log_timezone", "UTC"),
        ("logging_collector", "off"),
        ("password_encryption", "scram-sha-256"),
        ("port", &port),
        ("primary_conninfo", &upstream),
        ("primary_slot_name", &slot),
        ("recovery_target_timeline", "latest"),
        // The agent starts PostgreSQL, nobody else: it alone knows whether the lease is held.
        ("restart_after_crash", "off"),
        ("ssl", "on"),
        ("ssl_ca_file", &authority),
        ("ssl_cert_file", &certificate),
        ("ssl_key_file", &key),
        ("ssl_min_protocol_version", "TLSv1.3"),
        ("synchronous_standby_names", &synchronous),
        ("unix_socket_directories", &socket),
        ("unix_socket_permissions", "0700"),
        ("wal_log_hints", "on"),
        ("wal_receiver_status_interval", "1s"),
        ("wal_receiver_timeout", &suspicion),
        // A standby that asks a holder right before its slot is there waits so long, and applications with it.
        ("wal_retrieve_retry_interval", "50ms"),
        ("wal_sender_timeout", "5s"),
    ];
    if settings.major >= 17 {
        pairs.push(("allow_alter_system", "off"));
    }
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Checks again what the API server should have refused.
fn check(name: &str, value: &str) -> Result<(), SettingsError> {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if name.len() > 63 || !name.split('.').all(part) || name.split('.').count() > 2 {
        return Err(SettingsError::Name(name.to_owned()));
    }
    if api::rules::is_managed_parameter(&name.to_ascii_lowercase()) {
        return Err(SettingsError::Managed(name.to_owned()));
    }
    if value.chars().any(char::is_control) {
        return Err(SettingsError::Value(name.to_owned()));
    }
    Ok(())
}

/// A standby refuses to start with less than its primary had. Written in either role, also where it is PostgreSQL's own
/// value: a line that goes with a promotion would ask for a restart.
fn raise_to_enforced(values: &mut BTreeMap<String, String>, enforced: &EnforcedSettings) {
    let own = [
        ("max_connections", 100, enforced.max_connections),
        ("max_worker_processes", 8, enforced.max_worker_processes),
        ("max_wal_senders", 10, enforced.max_wal_senders),
        ("max_prepared_transactions", 0, enforced.max_prepared_transactions),
        ("max_locks_per_transaction", 64, enforced.max_locks_per_transaction),
    ];
    for (name, built_in, least) in own {
        values
            .entry(name.to_owned())
            .or_insert_with(|| u32::to_string(&built_in));
        raise(values, name, least);
    }
}

/// Applications that take every connection must not keep the agent from changing settings or promoting.
fn reserve_sessions(values: &mut BTreeMap<String, String>) {
    let all = values
        .get("max_connections")
        .map_or(Ok(100), |value| value.trim().parse());
    if all.is_ok_and(|all: u32| all > 2 * RESERVED) {
        values
            .entry("superuser_reserved_connections".to_owned())
            .or_insert_with(|| RESERVED.to_string());
    }
}

/// A size as PostgreSQL reads it, where a number alone counts mebibytes; `None`: PostgreSQL may refuse it.
fn mebibytes(value: &str) -> Option<f64> {
    let value = value.trim();
    let end = value
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let unit = match unit.trim_start() {
        "B" => 1.0 / 1_048_576.0,
        "kB" => 1.0 / 1_024.0,
        "" | "MB" => 1.0,
        "GB" => 1_024.0,
        "TB" => 1_048_576.0,
        _ => return None,
    };
    number.parse().ok().map(|number: f64| number * unit)
}

/// Raises a number that is too low; what is no number is left for PostgreSQL to refuse.
fn raise(values: &mut BTreeMap<String, String>, name: &str, least: u32) {
    if let Some(value) = values.get_mut(name)
        && value.trim().parse::<u32>().is_ok_and(|number| number < least)
    {
        *value = least.to_string();
    }
}
