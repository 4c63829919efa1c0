//! Backups: one more, those that there are, and a database that is made from them.

use anyhow::{Context, Result, bail, ensure};
use api::backup::{BackupKind, BackupOrigin, BackupSource, DatabaseBackupSpec, StoredBackup};
use api::operation::{ClusterReference, OperationPhase};
use api::spec::RecoveryTarget;
use api::{ClusteredDatabase, DatabaseBackup};
use chrono::{DateTime, TimeDelta, Utc};
use kube::ResourceExt;
use machine::units::Bytes;
use serde::Serialize;

use crate::text::{Page, instant};

/// A backup of this database, to be made.
///
/// # Errors
/// If the database has no store.
pub fn one_more(
    db: &ClusteredDatabase,
    kind: BackupKind,
    source: BackupSource,
    now: DateTime<Utc>,
) -> Result<DatabaseBackup> {
    let name = db.name_any();
    has_store(db)?;
    let spec = DatabaseBackupSpec {
        cluster_ref: ClusterReference { name: name.clone() },
        kind,
        source,
    };
    Ok(DatabaseBackup::new(
        &format!("{name}-{}", now.format("%Y%m%d%H%M%S")),
        spec,
    ))
}

/// Fails if the database has no store.
pub(crate) fn has_store(db: &ClusteredDatabase) -> Result<()> {
    ensure!(
        db.spec.backup.is_some(),
        "{} has no store for backups: set its spec.backup.store",
        db.name_any()
    );
    Ok(())
}

/// The target of a recovery to this time.
pub(crate) fn target(time: DateTime<Utc>) -> RecoveryTarget {
    RecoveryTarget {
        time: Some(time),
        ..RecoveryTarget::default()
    }
}

/// The page of the backups.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct BackupsPage {
    /// The oldest first.
    pub backups: Vec<Line>,
}

/// One backup.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Name of the DatabaseBackup.
    pub name: String,
    /// Name of the database.
    pub cluster: String,
    /// `status.phase`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<OperationPhase>,
    /// Its name in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Whose files were copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<BackupOrigin>,
    /// The earliest time that it can be recovered to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recoverable_from: Option<DateTime<Utc>>,
    /// Bytes of the database's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Bytes in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// What the retention does with it, if it does not keep it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// How far it is, or why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What becomes of a backup that the retention does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Retention {
    /// It is still there: the retention is suspended, or something keeps it from removing it.
    ToBeRemoved,
    /// It is gone, and its DatabaseBackup is left.
    Removed,
}

impl Retention {
    /// By what the primary has seen in the store. Of a line after the first nothing is said: older backups may be in an earlier one.
    fn of(stored: &StoredBackup, db: &ClusteredDatabase) -> Option<Self> {
        let policy = db.spec.backup.as_ref()?.retention.as_ref()?;
        let known = db.status.as_ref()?.backup.as_ref()?;
        let catalogue = known.catalogue.as_ref().filter(|catalogue| catalogue.line.is_first())?;
        let proven = known.drill.as_ref().and_then(|drill| drill.proven_backup.as_ref());
        if policy.hold.iter().chain(proven).any(|held| *held == stored.name) {
            return None;
        }
        if stored.stop_time < catalogue.first_recoverable_time? {
            return Some(Self::Removed);
        }
        // A name begins with the time.
        let removal = catalogue.removal.as_ref()?;
        (stored.name < removal.oldest_kept).then_some(Self::ToBeRemoved)
    }

    const fn words(self) -> &'static str {
        match self {
            Self::ToBeRemoved => " (to be removed)",
            Self::Removed => " (removed)",
        }
    }
}

/// The page of these backups, or of those of one database. `databases` are those of the namespace.
pub fn page(backups: &[DatabaseBackup], databases: &[ClusteredDatabase], of: Option<&str>) -> BackupsPage {
    let cluster = |name: &str| databases.iter().find(|db| db.metadata.name.as_deref() == Some(name));
    let of_it = |backup: &&DatabaseBackup| of.is_none_or(|name| backup.spec.cluster_ref.name == name);
    let mut found: Vec<&DatabaseBackup> = backups.iter().filter(of_it).collect();
    found.sort_by_key(|backup| (backup.creation_timestamp().map(|time| time.0), backup.name_any()));
    BackupsPage {
        backups: found
            .into_iter()
            .map(|backup| line(backup, cluster(&backup.spec.cluster_ref.name)))
            .collect(),
    }
}

fn line(backup: &DatabaseBackup, db: Option<&ClusteredDatabase>) -> Line {
    let status = backup.status.clone().unwrap_or_default();
    let stored = status.backup.as_ref();
    Line {
        name: backup.name_any(),
        cluster: backup.spec.cluster_ref.name.clone(),
        phase: status.operation.phase,
        backup: stored.map(|stored| stored.name.clone()),
        source: stored.and_then(|stored| stored.source.clone()),
        recoverable_from: stored.map(|stored| stored.stop_time),
        data_bytes: stored.map(|stored| stored.data_bytes),
        stored_bytes: stored.map(|stored| stored.stored_bytes),
        retention: stored.zip(db).and_then(|(stored, db)| Retention::of(stored, db)),
        message: match (&status.progress, status.operation.phase) {
            (Some(progress), Some(OperationPhase::Running)) => Some(progress.clone()),
            _ => status.operation.message.clone(),
        },
    }
}

/// The page as text.
pub fn text(page: &BackupsPage) -> String {
    let mut out = Page::default();
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).rounded());
    let rows: Vec<Vec<String>> = page
        .backups
        .iter()
        .map(|line| {
            vec![
                line.name.clone(),
                line.cluster.clone(),
                line.phase.map_or("-".to_owned(), |phase| format!("{phase:?}")),
                line.source.as_ref().map_or("-".to_owned(), ToString::to_string),
                line.recoverable_from.map_or("-".to_owned(), instant),
                bytes(line.data_bytes),
                bytes(line.stored_bytes),
                line.backup
                    .as_ref()
                    .map(|name| format!("{name}{}", line.retention.map_or("", Retention::words)))
                    .or_else(|| line.message.clone())
                    .unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    let heads = [
        "NAME",
        "CLUSTER",
        "PHASE",
        "COPY OF",
        "RECOVERABLE FROM",
        "DATA",
        "STORED",
        "IN THE STORE",
    ];
    match rows.is_empty() {
        true => out.wrapped("There is no backup."),
        false => out.table(&heads, &rows),
    }
    out.finish()
}

/// A time: RFC 3339, or such as `10 minutes ago`.
///
/// # Errors
/// If the text is neither, or the time is still to come.
pub fn time(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let time = match words[..] {
        [number, unit, "ago"] => now.checked_sub_signed(span(number, unit)?),
        _ => text.parse().ok(),
    };
    let time = time
        .with_context(|| format!("{text:?} is no time: give one such as 2026-11-24T23:05:01Z or \"10 minutes ago\""))?;
    ensure!(time <= now, "{text:?} is still to come: give a time that has passed");
    Ok(time)
}

fn span(number: &str, unit: &str) -> Result<TimeDelta> {
    let number: u32 = number.parse().with_context(|| format!("{number:?} is no number"))?;
    let number = i64::from(number);
    Ok(match unit.trim_end_matches('s') {
        "second" => TimeDelta::seconds(number),
        "minute" => TimeDelta::minutes(number),
        "hour" => TimeDelta::hours(number),
        "day" => TimeDelta::days(number),
        _ => bail!("{unit:?} is no unit of time: use seconds, minutes, hours or days"),
    })
}

/// Why nothing can be recovered of this database.
pub fn no_store(name: &str) -> String {
    format!("{name} has no store: see `bootstrap.recovery` in docs/operation.md for a database whose store you know")
}

/// A new database that is made from the backups of `db`, as it was at `time`, or at the end of its archived WAL.
///
/// # Errors
/// If `db` has no store, or the new one has its name.
pub fn recovered(
    db: &ClusteredDatabase,
    name: &str,
    time: Option<DateTime<Utc>>,
    backup: Option<String>,
) -> Result<ClusteredDatabase> {
    let source = db.name_any();
    ensure!(name != source, "{source} is there: give the new database another name");
    let uid = db.uid().context("the database has no UID")?;
    let target = time.map(target);
    let spec = machine::drill::recovered(&source, &uid, &db.spec, backup, target).with_context(|| no_store(&source))?;
    let mut new = ClusteredDatabase::new(name, spec);
    new.metadata.namespace = db.namespace();
    Ok(new)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> DateTime<Utc> {
        "2027-01-01T00:00:00Z".parse().unwrap()
    }

    fn database(backup: bool) -> ClusteredDatabase {
        let mut db = json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
            "metadata": {"name": "demo", "namespace": "shop", "uid": "1a2b3c4d-0000"},
            "spec": {
                "storage": {"data": {"size": "1Gi"}}, "fenced": ["demo-2"], "paused": true,
                "bootstrap": {"initdb": {"database": "shop", "passwordSecretRef": {"name": "p"}}},
            },
        });
        if backup {
            db["spec"]["backup"] = json!({"store": {"s3": {"bucket": "wal"}}});
        }
        serde_json::from_value(db).unwrap()
    }

    #[test]
    fn a_backup_needs_a_store() {
        let made = one_more(&database(true), BackupKind::Full, BackupSource::Primary, now()).unwrap();
        assert_eq!(
            (
                made.name_any().as_str(),
                made.spec.cluster_ref.name.as_str(),
                made.spec.source
            ),
            ("demo-20270101000000", "demo", BackupSource::Primary)
        );
        let error = one_more(&database(false), BackupKind::Full, BackupSource::default(), now())
            .unwrap_err()
            .to_string();
        assert!(error.contains("spec.backup.store"), "{error}");
    }

    #[test]
    fn times_are_absolute_or_ago() {
        let of = |text: &str| time(text, now()).map_err(|error| error.to_string());
        assert_eq!(of("10 minutes ago"), Ok(now() - TimeDelta::minutes(10)));
        assert_eq!(of("1 day ago"), Ok(now() - TimeDelta::days(1)));
        assert_eq!(of("2026-12-31T23:00:00Z"), Ok(now() - TimeDelta::hours(1)));
        assert!(of("2027-01-01T00:00:01Z").unwrap_err().contains("still to come"));
        assert!(of("yesterday").unwrap_err().contains("is no time"));
        assert!(of("3 moons ago").unwrap_err().contains("no unit"));
    }

    #[test]
    fn a_recovered_database_is_as_the_old_one_and_obeys_the_rules() {
        let new = recovered(&database(true), "demo-2", Some(now()), None).unwrap();
        let recovery = new.spec.recovery().unwrap();
        assert_eq!(recovery.from.cluster.as_deref(), Some("demo-1a2b3c4d"));
        assert_eq!(recovery.target.as_ref().unwrap().time, Some(now()));
        assert_eq!(new.spec.initdb().database, "shop");
        assert_eq!(new.spec.initdb().password_secret_ref, None);
        assert!(new.spec.fenced.is_empty() && !new.spec.paused);
        assert_eq!(api::validate(&new), []);
        for (db, name) in [(database(true), "demo"), (database(false), "demo-2")] {
            assert!(recovered(&db, name, None, None).is_err());
        }
    }

    #[test]
    fn backups_are_listed_oldest_first() {
        let backup = |name: &str, cluster: &str, at: &str, status| -> DatabaseBackup {
            serde_json::from_value(json!({
                "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "DatabaseBackup",
                "metadata": {"name": name, "creationTimestamp": at}, "spec": {"clusterRef": {"name": cluster}}, "status": status,
            }))
            .unwrap()
        };
        let all = [
            backup(
                "b",
                "demo",
                "2027-01-01T00:00:00Z",
                json!({"phase": "Running", "progress": "25% of 4 GiB"}),
            ),
            backup(
                "a",
                "demo",
                "2026-12-31T00:00:00Z",
                json!({"phase": "Completed", "backup": {
                    "name": "20261231T000003Z-F-7f3a", "timeline": 1, "startLsn": "0/2000028", "stopLsn": "0/2000100",
                    "startTime": "2026-12-31T00:00:03Z", "stopTime": "2026-12-31T00:00:09Z", "dataBytes": 3_221_225_472_u64,
                    "storedBytes": 1_073_741_824, "source": {"member": "demo-2", "role": "Standby"},
                }}),
            ),
            backup("other", "shop", "2026-12-30T00:00:00Z", json!({})),
        ];
        let told = text(&page(&all, &[], Some("demo")));
        let lines: Vec<Vec<&str>> = told
            .lines()
            .map(|line| {
                line.split("  ")
                    .filter(|cell| !cell.is_empty())
                    .map(str::trim)
                    .collect()
            })
            .collect();
        assert_eq!(
            lines[1],
            [
                "a",
                "demo",
                "Completed",
                "demo-2 (standby)",
                "2026-12-31 00:00:09Z",
                "3 GiB",
                "1 GiB",
                "20261231T000003Z-F-7f3a"
            ]
        );
        assert_eq!(lines[2], ["b", "demo", "Running", "-", "-", "-", "-", "25% of 4 GiB"]);
        assert_eq!(lines.len(), 3);
        assert_eq!(text(&page(&all, &[], Some("none"))), "There is no backup.\n");

        let mut db = database(true);
        let policy = |hold: &[&str]| serde_json::from_value(json!({"minBackups": 1, "hold": hold})).unwrap();
        db.spec.backup.as_mut().unwrap().retention = Some(policy(&[]));
        let mut fate = |catalogue: serde_json::Value, hold: &[&str]| {
            db.spec.backup.as_mut().unwrap().retention = Some(policy(hold));
            db.status = serde_json::from_value(json!({"backup": {"archive": {}, "catalogue": catalogue}})).unwrap();
            page(&all, std::slice::from_ref(&db), Some("demo")).backups[0].retention
        };
        let store = |first: &str, removal| json!({"backups": 1, "storedBytes": 1, "firstRecoverableTime": first, "removal": removal});
        let removal =
            json!({"backups": 1, "storedBytes": 1, "walSegments": 0, "oldestKept": "20270102T000000Z-F-7f3a"});
        let is_there = store("2026-12-31T00:00:09Z", removal);
        let is_gone = store("2027-01-02T00:00:09Z", json!(null));
        assert_eq!(fate(is_there.clone(), &[]), Some(Retention::ToBeRemoved));
        assert_eq!(fate(is_gone.clone(), &[]), Some(Retention::Removed));
        assert_eq!(fate(is_gone.clone(), &["20261231T000003Z-F-7f3a"]), None);
        assert_eq!(fate(store("2026-12-31T00:00:09Z", json!(null)), &[]), None);
    }
}
