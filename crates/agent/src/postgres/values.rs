//! The settings in `postgresql.conf`.

use std::collections::BTreeMap;

use api::spec::{HBA, PRELOAD};
use machine::protocol::MemberId;

use super::conninfo;
use super::settings::{Files, Role, Settings, SettingsError};
use crate::archive::Archiving;
use crate::logs::LINE_PREFIX;
use crate::volume::{EnforcedSettings, WalRoom};

/// At least this many WAL senders and slots: nine members, each with a clone and a stream, and a few to spare.
const SENDERS: u32 = 20;
/// Sessions that are reserved for superusers. The agent needs six, and two are for people. The agent's sessions are:
/// its questions, its changes, its canary, one that shows that new ones are taken, one that proves what new ones see,
/// and one for a checkpoint.
const RESERVED: u32 = api::spec::RESERVED_CONNECTIONS;
const MIB: u64 = 1 << 20;
/// The least size of WAL, in MiB. A running PostgreSQL accepts less, but does not start with less than two segments. A
/// segment has at most 16 MiB unless the user chose another size.
const LEAST_WAL: f64 = 32.0;

/// All settings of a server in `role`, by name.
///
/// # Errors
/// Fails if a user's setting has no valid name, is managed by the operator, or has a value with control characters.
pub(super) fn render(
    settings: &Settings,
    files: &Files,
    role: &Role,
) -> Result<BTreeMap<String, String>, SettingsError> {
    let mut values = defaults(settings);
    for (name, value) in settings.parameters.iter().filter(|(name, _)| *name != HBA) {
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

/// A name that no member has.
const NOBODY: &str = "cdb_nobody";

/// The value of `synchronous_standby_names`.
///
/// A standby needs no names, since its commits wait for no other. It gets one all the same: whether there are any names
/// is kept in shared memory by the checkpointer, which may notice a change late. With a name from the beginning, a
/// promotion changes only which names there are.
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

/// The settings that users may override.
fn defaults(settings: &Settings) -> BTreeMap<String, String> {
    let WalRoom { capacity, left } = settings.wal;
    // PostgreSQL's default of 1 GB, less on small volumes.
    let checkpoint = (capacity / 4 / MIB).clamp(96, 1024);
    // A slot keeps WAL for a member that is away: at most half of the space beside the data, lest it fill the volume.
    // It may always keep as much as lies between two checkpoints anyway. The limit is a multiple of a sixteenth of the
    // volume, so that not every reload changes it. A member that needs more is cloned again.
    let step = (capacity / 16).max(1);
    let kept = (left / 2 / step * step / MIB).max(checkpoint);
    let locale = settings.locale.as_str();
    let kept = format!("{kept}MB");
    // A standby that lags has no slot on a new primary until its agent has promised the epoch, and never has one on a
    // standby. Meanwhile checkpoints leave it WAL that is mostly there anyway.
    let without_slot = format!("{}MB", checkpoint / 2);
    let checkpoint = format!("{checkpoint}MB");
    let senders = SENDERS.to_string();
    let pairs = [
        ("datestyle", "iso, mdy"),
        ("default_text_search_config", "pg_catalog.english"),
        // The primary's vacuum does not cancel reads on a standby.
        ("hot_standby_feedback", "on"),
        ("lc_monetary", locale),
        ("lc_numeric", locale),
        ("lc_time", locale),
        ("max_replication_slots", &senders),
        ("max_slot_wal_keep_size", &kept),
        ("max_wal_senders", &senders),
        ("max_wal_size", &checkpoint),
        // A connection whose other end is dead ends within half a minute.
        ("tcp_keepalives_count", "3"),
        ("tcp_keepalives_idle", "15"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_user_timeout", "30000"),
        ("ssl_min_protocol_version", "TLSv1.3"),
        ("timezone", "UTC"),
        ("wal_keep_size", &without_slot),
        ("wal_level", "replica"),
    ];
    let timeout = settings.archive.is_some().then_some(("archive_timeout", "60s"));
    pairs
        .into_iter()
        .chain(timeout)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The settings that only the agent sets.
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
    // Standbys keep their WAL until it is archived, too: one of them may have to archive it.
    let mode = if settings.archive.is_some() { "always" } else { "off" };
    let command = settings.archive.as_ref().map(archive_command).unwrap_or_default();
    let mut pairs = vec![
        ("archive_mode", mode),
        ("archive_command", &command),
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
        // Only the agent starts PostgreSQL: it alone knows whether the lease is held.
        ("restart_after_crash", "off"),
        ("ssl", "on"),
        ("ssl_ca_file", &authority),
        ("ssl_cert_file", &certificate),
        ("ssl_key_file", &key),
        ("synchronous_standby_names", &synchronous),
        ("unix_socket_directories", &socket),
        ("unix_socket_permissions", "0700"),
        ("wal_log_hints", "on"),
        ("wal_receiver_status_interval", "1s"),
        ("wal_receiver_timeout", &suspicion),
        // If a standby asks the primary just before its slot exists, it waits this long, and applications with it.
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

/// PostgreSQL replaces `%f` by the file's name.
fn archive_command(archive: &Archiving) -> String {
    let quoted = |path: &std::path::Path| format!("'{}'", path.to_string_lossy().replace('%', "%%"));
    format!("{} archive {} %f", quoted(&archive.program), quoted(&archive.socket))
}

/// Checks again the rules that the API server should have enforced.
fn check(name: &str, value: &str) -> Result<(), SettingsError> {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if name.len() > 63 || !name.split('.').all(part) || name.split('.').count() > 2 {
        return Err(SettingsError::Name(name.to_owned()));
    }
    // The libraries are the user's, though not among the parameters.
    if name != PRELOAD && api::rules::is_managed_parameter(&name.to_ascii_lowercase()) {
        return Err(SettingsError::Managed(name.to_owned()));
    }
    if value.chars().any(char::is_control) {
        return Err(SettingsError::Value(name.to_owned()));
    }
    Ok(())
}

/// Raises the settings that a standby must not have lower than its primary had: else it refuses to start. Written for a
/// primary, too, and also where the value is PostgreSQL's default: a line that vanishes with a promotion would ask for
/// a restart.
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

/// Reserves sessions for the agent: applications that take every connection must not keep it from changing settings or
/// promoting.
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

/// A size in mebibytes, as PostgreSQL reads it: a number without a unit counts mebibytes. `None`: PostgreSQL may refuse
/// it.
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

/// Raises a number that is too low. A value that is no number stays: PostgreSQL will refuse it.
fn raise(values: &mut BTreeMap<String, String>, name: &str, least: u32) {
    if let Some(value) = values.get_mut(name)
        && value.trim().parse::<u32>().is_ok_and(|number| number < least)
    {
        *value = least.to_string();
    }
}
