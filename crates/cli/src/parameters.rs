//! Which of PostgreSQL's settings take effect only with a restart.
//!
//! Settings with the context `postmaster` in `pg_settings`, of all supported major versions: PostgreSQL itself refuses
//! a setting that its version does not know. `postgres --describe-config` prints the list for one version.

use std::collections::{BTreeMap, BTreeSet};

const POSTMASTER: &[&str] = &[
    "archive_mode",
    "autovacuum_freeze_max_age",
    "autovacuum_max_workers",
    "autovacuum_multixact_freeze_max_age",
    "autovacuum_worker_slots",
    "bonjour",
    "bonjour_name",
    "cluster_name",
    "commit_timestamp_buffers",
    "config_file",
    "data_directory",
    "data_sync_retry",
    "debug_io_direct",
    "dynamic_shared_memory_type",
    "event_source",
    "external_pid_file",
    "hba_file",
    "hot_standby",
    "huge_page_size",
    "huge_pages",
    "ident_file",
    "ignore_invalid_pages",
    "io_max_combine_limit",
    "io_max_concurrency",
    "io_method",
    "jit_provider",
    "listen_addresses",
    "logging_collector",
    "max_active_replication_origins",
    "max_connections",
    "max_files_per_process",
    "max_locks_per_transaction",
    "max_logical_replication_workers",
    "max_notify_queue_pages",
    "max_pred_locks_per_transaction",
    "max_prepared_transactions",
    "max_replication_slots",
    "max_wal_senders",
    "max_worker_processes",
    "min_dynamic_shared_memory",
    "multixact_member_buffers",
    "multixact_offset_buffers",
    "notify_buffers",
    "old_snapshot_threshold",
    "port",
    "recovery_target",
    "recovery_target_action",
    "recovery_target_inclusive",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_timeline",
    "recovery_target_xid",
    "reserved_connections",
    "serializable_buffers",
    "shared_buffers",
    "shared_memory_type",
    "shared_preload_libraries",
    "subtransaction_buffers",
    "superuser_reserved_connections",
    "track_activity_query_size",
    "track_commit_timestamp",
    "transaction_buffers",
    "unix_socket_directories",
    "unix_socket_group",
    "unix_socket_permissions",
    "wal_buffers",
    "wal_decode_buffer_size",
    "wal_level",
    "wal_log_hints",
];

/// Limits, with PostgreSQL's defaults, that a standby may not have lower than its primary: when one is lowered, the primary
/// restarts first.
const LIMITS: [(&str, u64); 5] = [
    ("max_connections", 100),
    ("max_worker_processes", 8),
    ("max_wal_senders", 10),
    ("max_prepared_transactions", 0),
    ("max_locks_per_transaction", 64),
];

/// When a changed setting takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// With a restart of PostgreSQL.
    Restart,
    /// At once.
    Reload,
    /// Unknown: the setting is an extension's.
    Unknown,
}

/// When a changed setting of this major version takes effect.
pub fn effect(name: &str, major: u16) -> Effect {
    let name = name.to_ascii_lowercase();
    if name.contains('.') {
        return Effect::Unknown;
    }
    // Since PostgreSQL 18 its bound is autovacuum_worker_slots.
    if name == "autovacuum_max_workers" && major >= 18 {
        return Effect::Reload;
    }
    match POSTMASTER.binary_search(&name.as_str()) {
        Ok(_) => Effect::Restart,
        Err(_) => Effect::Reload,
    }
}

/// The names of the settings that differ.
pub fn changed<'a>(old: &'a BTreeMap<String, String>, new: &'a BTreeMap<String, String>) -> BTreeSet<&'a str> {
    let names = old.keys().chain(new.keys());
    names
        .filter(|name| old.get(*name) != new.get(*name))
        .map(String::as_str)
        .collect()
}

/// Whether one of the limits that bind standbys is lowered.
pub fn lowers_limits(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> bool {
    LIMITS.iter().any(|(name, default)| {
        let value =
            |of: &BTreeMap<String, String>| of.get(*name).map_or(Some(*default), |text| text.trim().parse().ok());
        matches!((value(old), value(new)), (Some(old), Some(new)) if new < old)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_postmaster_need_a_restart() {
        assert!(POSTMASTER.is_sorted());
        assert_eq!(effect("shared_buffers", 17), Effect::Restart);
        assert_eq!(effect("Max_Connections", 17), Effect::Restart);
        assert_eq!(effect("work_mem", 17), Effect::Reload);
        assert_eq!(effect("pg_stat_statements.max", 17), Effect::Unknown);
        assert_eq!(effect("autovacuum_max_workers", 17), Effect::Restart);
        assert_eq!(effect("autovacuum_max_workers", 18), Effect::Reload);
    }

    #[test]
    fn a_lowered_limit_is_seen_against_the_default_too() {
        let with = |value: &str| BTreeMap::from([("max_connections".to_owned(), value.to_owned())]);
        assert!(lowers_limits(&with("200"), &with("150")));
        assert!(lowers_limits(&with("200"), &BTreeMap::new()));
        assert!(lowers_limits(&BTreeMap::new(), &with("50")));
        assert!(!lowers_limits(&with("100"), &with("200")));
        assert!(!lowers_limits(&BTreeMap::new(), &BTreeMap::new()));
    }
}
