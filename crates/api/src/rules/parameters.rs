//! Rules about `spec.postgres.parameters`.

use std::collections::BTreeMap;

use super::{Rule, text};
use crate::ClusteredDatabase;
use crate::spec::PRELOAD;

const AT: &str = "spec.postgres.parameters";
/// More than the settings of PostgreSQL that users change.
const MAX_COUNT: usize = 256;
const MAX_KEY: usize = 63;
const MAX_VALUE: usize = 1_024;
const KEY: &str = "^[a-z_][a-z0-9_]*([.][a-z_][a-z0-9_]*)?$";

/// Settings that the operator and its agents set themselves or rely on: the server's addresses and authentication, its files,
/// replication, the log, loaded code, and settings that would lose data silently.
pub(crate) const FORBIDDEN: &[&str] = &[
    "allow_alter_system",
    "archive_cleanup_command",
    "archive_command",
    "archive_library",
    "archive_mode",
    "bonjour",
    "bonjour_name",
    "cluster_name",
    "config_file",
    "data_directory",
    "data_sync_retry",
    "db_user_namespace",
    "exit_on_error",
    "external_pid_file",
    "gss_accept_delegation",
    "hba_file",
    "hot_standby",
    "ident_file",
    "ignore_checksum_failure",
    "ignore_invalid_pages",
    "ignore_system_indexes",
    "include",
    "include_dir",
    "include_if_exists",
    "jit_provider",
    "krb_caseins_users",
    "krb_server_keyfile",
    "lc_messages",
    "listen_addresses",
    "local_preload_libraries",
    "log_destination",
    "log_directory",
    "log_file_mode",
    "log_filename",
    "log_line_prefix",
    "log_rotation_age",
    "log_rotation_size",
    "log_timezone",
    "log_truncate_on_rotation",
    "logging_collector",
    "oauth_validator_libraries",
    "password_encryption",
    "port",
    "post_auth_delay",
    "pre_auth_delay",
    "primary_conninfo",
    "primary_slot_name",
    "promote_trigger_file",
    "recovery_end_command",
    "recovery_init_sync_method",
    "recovery_min_apply_delay",
    "recovery_prefetch",
    "recovery_target",
    "recovery_target_action",
    "recovery_target_inclusive",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_timeline",
    "recovery_target_xid",
    "restart_after_crash",
    "restore_command",
    "session_preload_libraries",
    "shared_preload_libraries",
    "ssl",
    "synchronous_standby_names",
    "syslog_facility",
    "syslog_ident",
    "syslog_sequence_numbers",
    "syslog_split_messages",
    "unix_socket_directories",
    "unix_socket_group",
    "unix_socket_permissions",
    "wal_consistency_checking",
    "wal_receiver_create_temp_slot",
    "wal_receiver_status_interval",
    "wal_retrieve_retry_interval",
    "zero_damaged_pages",
];

/// Whether a setting is the operator's own, so that users may not set it. The agent checks that again where it writes settings,
/// in case the API server accepted one.
pub fn is_managed_parameter(name: &str) -> bool {
    FORBIDDEN.contains(&name) || name.starts_with("ssl_") && name != TLS_VERSION
}

/// The one setting about TLS that is the user's.
const TLS_VERSION: &str = "ssl_min_protocol_version";

/// Settings that are safe with this value alone.
const MUST_BE_ON: [&str; 3] = ["fsync", "full_page_writes", "wal_log_hints"];

/// Least values of settings that nine instances, or the operator's own sessions, need.
const AT_LEAST: [(&str, u64); 4] = [
    ("max_connections", 20),
    ("max_replication_slots", 20),
    ("max_wal_senders", 20),
    // The number of sessions that an agent has at once.
    ("superuser_reserved_connections", 6),
];

pub(super) fn rules() -> Vec<Rule> {
    let mut rules = shapes();
    rules.extend(FORBIDDEN.iter().copied().map(forbidden));
    rules.extend(MUST_BE_ON.map(must_be_on));
    rules.extend(AT_LEAST.map(|(name, least)| at_least(name, least)));
    rules
}

fn shapes() -> Vec<Rule> {
    vec![
        Rule::holds(
            AT,
            format!("size(self) <= {MAX_COUNT}"),
            "parameters must hold at most 256 settings: remove some",
            |resource| parameters(resource).len() <= MAX_COUNT,
        ),
        Rule::holds(
            AT,
            format!("self.all(key, size(key) <= {MAX_KEY} && key.matches('{KEY}'))"),
            "parameters must have names of at most 63 lower-case letters, digits and underscores, with at most one dot between (such as work_mem or auto_explain.log_min_duration): correct the name",
            |resource| parameters(resource).keys().all(|key| is_key(key)),
        ),
        Rule::holds(
            AT,
            format!(
                "self.all(key, size(self[key]) <= {MAX_VALUE} && self[key].matches('{}'))",
                text::NO_CONTROL
            ),
            "parameters must have values of at most 1024 characters without line breaks or other control characters: correct the value",
            |resource| {
                parameters(resource)
                    .values()
                    .all(|value| text::size(value) <= MAX_VALUE && !text::has_control(value))
            },
        ),
        ssl(),
        Rule::holds(
            AT,
            format!("!('{TLS_VERSION}' in self) || self['{TLS_VERSION}'] in ['TLSv1.2', 'TLSv1.3']"),
            "ssl_min_protocol_version must be TLSv1.2 or TLSv1.3: correct it, or remove it for TLSv1.3",
            |resource| {
                let version = parameters(resource).get(TLS_VERSION);
                version.is_none_or(|version| ["TLSv1.2", "TLSv1.3"].contains(&version.as_str()))
            },
        ),
        // A standby loads its WAL receiver by that path.
        Rule::holds(
            AT,
            "!('dynamic_library_path' in self) || self['dynamic_library_path'].matches('(^|:)[$]libdir(:|$)')",
            "dynamic_library_path must name $libdir, without which a standby cannot stream: add it, as in /extensions:$libdir",
            |resource| {
                parameters(resource)
                    .get("dynamic_library_path")
                    .is_none_or(|path| path.split(':').any(|directory| directory == "$libdir"))
            },
        ),
        Rule::holds(
            AT,
            "!('wal_level' in self) || self['wal_level'] in ['replica', 'logical']",
            "wal_level must be replica or logical: standbys need it",
            |resource| {
                parameters(resource)
                    .get("wal_level")
                    .is_none_or(|level| ["replica", "logical"].contains(&level.as_str()))
            },
        ),
    ]
}

fn forbidden(name: &'static str) -> Rule {
    Rule::holds(
        AT,
        format!("!('{name}' in self)"),
        forbidden_message(name),
        move |resource| !parameters(resource).contains_key(name),
    )
}

fn ssl() -> Rule {
    Rule::holds(
        AT,
        format!("self.all(key, !key.startsWith('ssl_') || key == '{TLS_VERSION}')"),
        "parameters must not begin with ssl_, except ssl_min_protocol_version: remove them, since the operator manages TLS",
        |resource| {
            let mut names = parameters(resource).keys();
            names.all(|name| !name.starts_with("ssl_") || name == TLS_VERSION)
        },
    )
}

/// The message for a forbidden parameter.
pub(crate) fn forbidden_message(name: &str) -> String {
    match name {
        PRELOAD => format!("parameters must not set {PRELOAD}: list the libraries in postgres.sharedPreloadLibraries"),
        name => format!("parameters must not set {name}, which the operator manages: remove it"),
    }
}

fn must_be_on(name: &'static str) -> Rule {
    Rule::holds(
        AT,
        format!("!('{name}' in self) || self['{name}'] == 'on'"),
        format!("{name} must be on, or data is lost in a crash or a failover: remove it"),
        move |resource| parameters(resource).get(name).is_none_or(|value| value == "on"),
    )
}

fn at_least(name: &'static str, least: u64) -> Rule {
    Rule::holds(
        AT,
        format!("!('{name}' in self) || (self['{name}'].matches('^[0-9]{{1,9}}$') && int(self['{name}']) >= {least})"),
        format!("{name} must be a whole number of at least {least}: raise it or remove it"),
        move |resource| {
            parameters(resource)
                .get(name)
                .is_none_or(|value| is_number_from(value, least))
        },
    )
}

fn parameters(resource: &ClusteredDatabase) -> &BTreeMap<String, String> {
    &resource.spec.postgres.parameters
}

fn is_number_from(value: &str, least: u64) -> bool {
    value.len() <= 9
        && value.bytes().all(|b| b.is_ascii_digit())
        && value.parse().is_ok_and(|number: u64| number >= least)
}

fn is_key(key: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    key.len() <= MAX_KEY
        && key
            .split_once('.')
            .map_or_else(|| part(key), |(class, name)| part(class) && part(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forbidden_stand_in_order_and_once() {
        assert!(FORBIDDEN.is_sorted_by(|a, b| a < b));
    }
}
