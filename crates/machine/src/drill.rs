//! Databases that are made from the backups of another one.

use api::ClusteredDatabaseSpec;
use api::spec::{
    BackupSpec, BootstrapSpec, DurabilitySpec, InitdbSpec, RecoverySource, RecoverySpec, RecoveryTarget, ServicesSpec,
    VolumeFate,
};
use chrono::{DateTime, Utc};

/// Names of databases may have 40 characters.
const LONGEST_NAME: usize = 40;

/// The spec of a database that is made from the backups of the one of this name, UID and spec: as that was at `target`, or at the end of
/// its archived WAL. `None` if it has no store.
pub fn recovered(
    source: &str,
    uid: &str,
    spec: &ClusteredDatabaseSpec,
    backup: Option<String>,
    target: Option<RecoveryTarget>,
) -> Option<ClusteredDatabaseSpec> {
    let recovery = recovery(source, uid, spec.backup.as_ref(), backup, target)?;
    let mut new = spec.clone();
    new.bootstrap = Some(BootstrapSpec {
        // The owner gets the password of the new database's own Secret.
        initdb: Some(InitdbSpec {
            password_secret_ref: None,
            post_init_application_sql: Vec::new(),
            ..spec.initdb().clone()
        }),
        volumes: None,
        recovery: Some(recovery),
    });
    // What is about instances of the old one.
    (new.primary.prefer, new.fenced) = (None, Vec::new());
    (new.hibernated, new.paused) = (false, false);
    Some(new)
}

/// Where the backups of the database of this name and UID are; `None` if it has no store.
pub fn source(name: &str, uid: &str, spec: Option<&BackupSpec>) -> Option<RecoverySource> {
    let spec = spec?;
    Some(RecoverySource {
        cluster_ref: None,
        store: Some(spec.store.clone()),
        cluster: Some(format!("{name}-{}", uid.get(..8)?)),
        namespace: None,
        identity_secret_ref: spec.identity_secret_ref().cloned(),
    })
}

/// A recovery from the backups of the database of this name and UID; `None` if it has no store.
pub fn recovery(
    name: &str,
    uid: &str,
    spec: Option<&BackupSpec>,
    backup: Option<String>,
    target: Option<RecoveryTarget>,
) -> Option<RecoverySpec> {
    Some(RecoverySpec {
        from: source(name, uid, spec)?,
        backup,
        target,
        verify_files: false,
        checks: None,
    })
}

/// The spec of a drill of this backup, or of the newest copy in the store: one instance, which archives nothing and leaves nothing, with the checks of `spec.backup.drill`. `None` if the database has no store.
pub fn spec(
    source: &str,
    uid: &str,
    spec: &ClusteredDatabaseSpec,
    backup: Option<String>,
) -> Option<ClusteredDatabaseSpec> {
    let mut drill = recovered(source, uid, spec, backup, None)?;
    let recovery = drill.bootstrap.as_mut()?.recovery.as_mut()?;
    recovery.verify_files = true;
    let asked = spec.backup.as_ref()?.drill.as_ref();
    recovery.checks = Some(asked.and_then(|asked| asked.checks.clone()).unwrap_or_default());
    drill.replicas = 1;
    drill.durability = DurabilitySpec::default();
    drill.services = ServicesSpec::default();
    drill.storage.retention_policy.when_deleted = VolumeFate::Delete;
    drill.backup = None;
    Some(drill)
}

const MARK: &str = "-drill-";

/// The name of a drill that begins then.
pub fn name(source: &str, time: DateTime<Utc>) -> String {
    let end = format!("{MARK}{}", time.format("%m%d%H%M%S"));
    let begin: String = source.chars().take(LONGEST_NAME - end.len()).collect();
    format!("{}{end}", begin.trim_end_matches('-'))
}

/// False for a name that no drill has.
pub fn may_be(name: &str) -> bool {
    name.contains(MARK)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_drill_makes_the_checks_that_the_spec_asks_for_and_compares_collations_in_any_case() {
        let checks = |drill: serde_json::Value| {
            let source = json!({
                "storage": {"data": {"size": "1Gi"}}, "backup": {"store": {"s3": {"bucket": "wal"}}, "drill": drill},
            });
            let source = serde_json::from_value(source).unwrap();
            let made = spec("shop", "1a2b3c4d-0000", &source, None).unwrap();
            made.recovery().unwrap().checks.clone()
        };
        let asked = json!({"amcheck": true, "queries": ["SELECT true"]});
        let expected = serde_json::from_value(asked.clone()).unwrap();
        assert_eq!(
            checks(json!({"schedule": "0 5 * * 0", "checks": asked})),
            Some(expected)
        );
        assert_eq!(checks(json!(null)), Some(api::spec::RecoveryChecks::default()));
    }
}
