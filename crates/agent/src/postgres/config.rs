//! The configuration files, as text: everything in them is the agent's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use machine::protocol::MemberId;

use super::{conninfo, hba, quote};
use crate::logs::LINE_PREFIX;
use crate::volume::EnforcedSettings;

/// Where PostgreSQL finds files and puts sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Directory of the Unix socket.
    pub socket: PathBuf,
    /// Directory with `tls.crt`, `tls.key` and `ca.crt`.
    pub tls: PathBuf,
    /// The member's replication certificate.
    pub certificate: PathBuf,
    /// The member's replication key.
    pub key: PathBuf,
    /// Name of the operating system's user that runs agent and server; maps to `postgres` on the socket.
    pub system_user: String,
}

/// The user's part of the configuration, and what depends on the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// PostgreSQL's major version.
    pub major: u16,
    /// Name of the ClusteredDatabase (`cluster_name`).
    pub cluster: String,
    /// TCP port.
    pub port: u16,
    /// `spec.bootstrap.initdb.locale`.
    pub locale: String,
    /// `spec.postgres.parameters`.
    pub parameters: BTreeMap<String, String>,
    /// Bytes of the file system that holds `pg_wal`: bounds what the write-ahead log may take by default.
    pub wal_capacity: u64,
}

/// What the server is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It accepts writes.
    Primary,
    /// It recovers, and streams if it has somebody to stream from.
    Standby {
        /// Whom it follows; `None`: nobody for now.
        primary: Option<Primary>,
        /// What its control file demands of its settings.
        enforced: EnforcedSettings,
    },
}

/// Whom a standby follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// Address of its pod.
    pub address: IpAddr,
    /// Its TCP port.
    pub port: u16,
    /// The standby's own identity: role, slot and `application_name`.
    pub member: MemberId,
}

/// The configuration files' content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `postgresql.conf`.
    pub postgresql_conf: String,
    /// `pg_hba.conf`.
    pub pg_hba_conf: String,
    /// `pg_ident.conf`.
    pub pg_ident_conf: String,
    /// `standby.signal` must exist at start.
    pub standby: bool,
}

/// A setting that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not the name of a setting.
    #[error("{0:?} is not the name of a PostgreSQL setting")]
    Name(String),
    /// The operator's own.
    #[error("{0} is managed by the operator and cannot be set")]
    Managed(String),
    /// A value that no configuration file can hold.
    #[error("the value of {0} holds a line break or another control character")]
    Value(String),
}

/// At least this many WAL senders and slots: nine members, each with a clone and a stream, and a few to spare.
const SENDERS: u32 = 20;
const MIB: u64 = 1 << 20;

impl Settings {
    /// Hash of the user's settings, as in the members' reports.
    pub fn hash(&self) -> String {
        machine::protocol::settings_hash(&self.parameters)
    }
}

impl Config {
    /// The files for a server in `role`.
    pub fn render(settings: &Settings, files: &Files, role: &Role) -> Result<Self, SettingsError> {
        let mut values = defaults(settings);
        for (name, value) in &settings.parameters {
            check(name, value)?;
            values.insert(name.to_ascii_lowercase(), value.clone());
        }
        raise(&mut values, "max_wal_senders", SENDERS);
        raise(&mut values, "max_replication_slots", SENDERS);
        if let Role::Standby { enforced, .. } = role {
            raise_to_enforced(&mut values, enforced);
        }
        values.extend(fixed(settings, files, role));
        let mut text = "# Written by the agent; changes made here are lost.\n".to_owned();
        for (name, value) in &values {
            text.push_str(&format!("{name} = {}\n", quote::setting(value)));
        }
        Ok(Self {
            postgresql_conf: text,
            pg_hba_conf: hba::pg_hba(),
            pg_ident_conf: hba::pg_ident(&files.system_user),
            standby: matches!(role, Role::Standby { .. }),
        })
    }
}

/// What users may set otherwise.
fn defaults(settings: &Settings) -> BTreeMap<String, String> {
    // A slot of a member that is away keeps WAL; this much at most, lest it fill the volume. A member that needs more is
    // cloned anew.
    let kept = (settings.wal_capacity / 2 / MIB).max(64);
    // PostgreSQL's own 1 GB, less on small volumes.
    let checkpoint = (settings.wal_capacity / 4 / MIB).clamp(96, 1024);
    let locale = settings.locale.as_str();
    let kept = format!("{kept}MB");
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
        ("wal_level", "replica"),
        ("wal_receiver_timeout", "10s"),
        ("wal_sender_timeout", "10s"),
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
        } => (conninfo::replication(primary, files), primary.member.to_string()),
        Role::Standby { primary: None, .. } | Role::Primary => (String::new(), String::new()),
    };
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
        ("unix_socket_directories", &socket),
        ("unix_socket_permissions", "0700"),
        ("wal_log_hints", "on"),
        ("wal_receiver_status_interval", "1s"),
        ("wal_retrieve_retry_interval", "500ms"),
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

/// A standby refuses to start with less than its primary had.
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

/// Raises a number that is too low; what is no number is left for PostgreSQL to refuse.
fn raise(values: &mut BTreeMap<String, String>, name: &str, least: u32) {
    if let Some(value) = values.get_mut(name)
        && value.trim().parse::<u32>().is_ok_and(|number| number < least)
    {
        *value = least.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(parameters: &[(&str, &str)]) -> Settings {
        Settings {
            major: 17,
            cluster: "orders".into(),
            port: 5432,
            locale: "C.UTF-8".into(),
            parameters: parameters
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            wal_capacity: 10 << 30,
        }
    }

    fn files() -> Files {
        Files {
            socket: "/run/socket".into(),
            tls: "/tls".into(),
            certificate: "/agent/replication.crt".into(),
            key: "/agent/it's.key".into(),
            system_user: "postgres".into(),
        }
    }

    fn standby(enforced: EnforcedSettings) -> Role {
        let member = MemberId::new(1, "1a2b3c4d", 7);
        let primary = Primary {
            address: IpAddr::from([10, 0, 0, 2]),
            port: 5432,
            member,
        };
        Role::Standby {
            primary: Some(primary),
            enforced,
        }
    }

    fn line<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
        config
            .postgresql_conf
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
    }

    #[test]
    fn users_settings_are_quoted_and_ours_stand() {
        let config = Config::render(&settings(&[("work_mem", "4'MB\\")]), &files(), &Role::Primary).expect("a config");
        assert_eq!(line(&config, "work_mem"), Some("'4''MB\\\\'"));
        assert_eq!(line(&config, "ssl"), Some("'on'"));
        assert_eq!(line(&config, "primary_conninfo"), Some("''"));
        assert_eq!(line(&config, "max_slot_wal_keep_size"), Some("'5120MB'"));
        assert_eq!(line(&config, "allow_alter_system"), Some("'off'"));
        assert!(!config.standby);
        assert!(
            config
                .postgresql_conf
                .lines()
                .skip(1)
                .all(|line| line.contains(" = '") && line.ends_with('\''))
        );
    }

    #[test]
    fn what_the_api_server_should_have_refused_is_refused() {
        for (name, value) in [
            ("work_mem\nport", "1"),
            ("", "1"),
            ("a.b.c", "1"),
            ("include_dir", "/tmp"),
            ("Archive_Command", "true"),
            ("ssl_ciphers", "NULL"),
            ("work_mem", "1\nport = 1"),
        ] {
            assert!(
                Config::render(&settings(&[(name, value)]), &files(), &Role::Primary).is_err(),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_standby_never_has_less_than_its_control_file_demands() {
        let enforced = EnforcedSettings {
            max_connections: 300,
            max_wal_senders: 30,
            ..EnforcedSettings::default()
        };
        let parameters = [("max_connections", "50"), ("max_worker_processes", "4")];
        let config = Config::render(&settings(&parameters), &files(), &standby(enforced)).expect("a config");
        assert_eq!(line(&config, "max_connections"), Some("'300'"));
        assert_eq!(line(&config, "max_wal_senders"), Some("'30'"));
        assert_eq!(line(&config, "max_worker_processes"), Some("'4'"));
        let config = Config::render(&settings(&parameters), &files(), &Role::Primary).expect("a config");
        assert_eq!(line(&config, "max_connections"), Some("'50'"));
    }

    #[test]
    fn a_standby_follows_with_its_certificate_and_slot() {
        let config = Config::render(&settings(&[]), &files(), &standby(EnforcedSettings::default())).expect("a config");
        let upstream = line(&config, "primary_conninfo").expect("a primary");
        assert!(upstream.contains("hostaddr=''10.0.0.2''"), "{upstream}");
        assert!(upstream.contains("sslmode=''verify-ca''"), "{upstream}");
        assert!(upstream.contains(r"sslkey=''/agent/it\\''s.key''"), "{upstream}");
        assert_eq!(line(&config, "primary_slot_name"), Some("'cdb_1_1a2b3c4d_00000007'"));
        assert!(config.standby);
    }

    #[test]
    fn superusers_and_members_are_told_apart() {
        let config = Config::render(&settings(&[]), &files(), &Role::Primary).expect("a config");
        let rules: Vec<Vec<&str>> = config
            .pg_hba_conf
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        let place = |rule: &[&str]| rules.iter().position(|found| found == rule).expect("the rule is there");
        let passwords = place(&["hostssl", "all", "all", "all", "scram-sha-256"]);
        assert!(place(&["host", "all", "postgres", "all", "reject"]) < passwords);
        assert!(place(&["host", "all", "+cdb_members", "all", "reject"]) < passwords);
        assert_eq!(rules.last().and_then(|rule| rule.last()), Some(&"reject"));
        assert!(config.pg_ident_conf.contains("cdb \"postgres\" postgres"));
    }
}
