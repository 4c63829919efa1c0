//! What the operator decided about a database, its operations and its backups, with all that each decision was made from, as
//! text that other programs and later versions read: JSON, one object a line, the [`Header`] first, then one [`Line`] for each
//! decision.
//!
//! A change of the machine's input that older text lacks is given a default value there (`#[serde(default)]`); one that
//! cannot be raises [`VERSION`].

use api::backup::{BackupKind, BackupSource, DatabaseBackupSpec, DatabaseBackupStatus};
use api::operation::{ClusteredDatabaseOperationSpec, OperationStatus, Request};
use api::{ClusteredDatabaseSpec, ClusteredDatabaseStatus};
use chrono::{DateTime, Utc};
use machine::backup::Backup;
use machine::cluster::{Decision, Observed, Wanted, decide};
use machine::operation::{self, Operation};
use machine::reconcile::Controller;
use machine::units::Bytes;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// What such a text calls itself.
pub const FORMAT: &str = "clustereddatabase-decisions";
/// The version of the format that is written. The first had specs and statuses of `v1alpha1`.
pub const VERSION: u32 = 2;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Version of the operator that decided.
    pub operator: String,
    /// The database's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// How many older decisions were dropped to make room.
    pub dropped: u64,
}

/// One decision, and what it is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// An operation of the database.
    Operation {
        /// The decision.
        operation: Box<OperationEntry>,
    },
    /// A backup of the database.
    Backup {
        /// The decision.
        backup: Box<BackupEntry>,
    },
    /// The database itself.
    Database(Box<Entry>),
}

impl<'de> Deserialize<'de> for Line {
    /// As what its field says, so that an error names what is wrong with it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fn read<T: DeserializeOwned, E: Error>(value: Value) -> Result<Box<T>, E> {
            serde_json::from_value(value).map(Box::new).map_err(E::custom)
        }
        let mut value = Value::deserialize(deserializer)?;
        let mut only = |field: &str| {
            let fields = value.as_object_mut().filter(|fields| fields.len() == 1)?;
            fields.remove(field)
        };
        if let Some(operation) = only("operation") {
            return read(operation).map(|operation| Self::Operation { operation });
        }
        if let Some(backup) = only("backup") {
            return read(backup).map(|backup| Self::Backup { backup });
        }
        match value.as_object().filter(|fields| fields.len() == 1) {
            Some(fields) => {
                let about = fields.keys().next().map_or("", String::as_str);
                Err(D::Error::custom(format!("unknown object `{about}`")))
            }
            None => read(value).map(Self::Database),
        }
    }
}

/// A decision about an operation.
pub type OperationEntry = AskedEntry<ClusteredDatabaseOperationSpec, operation::Observed, OperationStatus>;
/// A decision about a backup.
pub type BackupEntry = AskedEntry<DatabaseBackupSpec, machine::backup::Observed, DatabaseBackupStatus>;

/// A decision about something that a database was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskedEntry<S, O, T> {
    /// When it was made: the machine's `now`.
    pub at: DateTime<Utc>,
    /// Name of the object.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was made.
    pub created: DateTime<Utc>,
    /// What is asked for.
    pub spec: S,
    /// What was observed.
    pub observed: O,
    /// The status as it was stored.
    pub stored: T,
    /// What was decided ([`operation::Decision`]).
    pub decision: Value,
}

impl<S: Clone, O: Clone, T: Clone> AskedEntry<S, O, T> {
    /// The entry for this decision about the object of this name.
    pub fn new(
        name: &str,
        wanted: &operation::Wanted<'_, S>,
        observed: &O,
        stored: &T,
        decision: &operation::Decision,
        now: DateTime<Utc>,
    ) -> Self {
        let operation::Wanted {
            uid,
            generation,
            created,
            spec,
        } = *wanted;
        Self {
            at: now,
            name: name.to_owned(),
            uid: uid.to_owned(),
            generation,
            created,
            spec: spec.clone(),
            observed: observed.clone(),
            stored: stored.clone(),
            decision: value(decision),
        }
    }

    fn replayed<M>(&self) -> operation::Decision
    where
        M: for<'a> Controller<
                Wanted<'a> = operation::Wanted<'a, S>,
                Observed = O,
                Status = T,
                Decision = operation::Decision,
            >,
    {
        let wanted = operation::Wanted {
            uid: &self.uid,
            generation: self.generation,
            created: self.created,
            spec: &self.spec,
        };
        M::decide(&wanted, &self.observed, &self.stored, self.at)
    }
}

impl OperationEntry {
    /// What this program's machine decides about it.
    pub fn replay(&self) -> operation::Decision {
        self.replayed::<Operation>()
    }
}

impl BackupEntry {
    /// What this program's machine decides about it.
    pub fn replay(&self) -> operation::Decision {
        self.replayed::<Backup>()
    }
}

/// A decision about the database itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When it was made: the machine's `now`.
    pub at: DateTime<Utc>,
    /// What the user wanted.
    pub wanted: OwnedWanted,
    /// What was observed.
    pub observed: Observed,
    /// The status as it was stored.
    pub stored: ClusteredDatabaseStatus,
    /// What was decided ([`Decision`]). As data: a later machine may decide what this one has no name for.
    pub decision: Value,
}

/// [`Wanted`], on its own, without what no decision looks at and might hold a secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "each is the field of the same name")]
pub struct OwnedWanted {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub deleting: bool,
    pub finalizer: bool,
    pub spec: ClusteredDatabaseSpec,
    pub invalid: Option<String>,
    pub settings: String,
    pub revision: String,
    #[serde(default)]
    pub base_revision: String,
    #[serde(default)]
    pub bare_revision: String,
    #[serde(default)]
    pub image: String,
    #[serde(default)]
    pub default_image: String,
    #[serde(default)]
    pub restarted_by: Option<String>,
    pub data_bytes: Bytes,
    pub wal_bytes: Option<Bytes>,
    #[serde(default)]
    pub request: Option<Request>,
    #[serde(default)]
    pub backup: Option<String>,
    #[serde(default)]
    pub backup_source: BackupSource,
    #[serde(default)]
    pub backup_kind: BackupKind,
    #[serde(default)]
    pub deletes_archive: bool,
}

impl Entry {
    /// The entry for this decision.
    pub fn new(
        wanted: &Wanted<'_>,
        observed: &Observed,
        stored: &ClusteredDatabaseStatus,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Self {
        Self {
            at: now,
            wanted: OwnedWanted::new(wanted),
            observed: observed.clone(),
            stored: stored.clone(),
            decision: value(decision),
        }
    }

    /// What this program's machine decides about it.
    pub fn replay(&self) -> Decision {
        decide(&self.wanted.lent(), &self.observed, &self.stored, self.at)
    }
}

/// A decision as it stands in a [`Line`].
pub fn value(decision: &impl Serialize) -> Value {
    // A decision has neither maps with other keys than text nor anything else that JSON cannot say.
    serde_json::to_value(decision).unwrap_or_default()
}

impl OwnedWanted {
    fn new(wanted: &Wanted<'_>) -> Self {
        let Wanted {
            name,
            uid,
            resource_version,
            generation,
            deleting,
            finalizer,
            spec,
            invalid,
            settings,
            revision,
            base_revision,
            bare_revision,
            image,
            default_image,
            restarted_by,
            data_bytes,
            wal_bytes,
            request,
            backup,
            backup_source,
            backup_kind,
            deletes_archive,
        } = *wanted;
        Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            resource_version: resource_version.to_owned(),
            generation,
            deleting,
            finalizer,
            spec: without_secrets(spec),
            invalid: invalid.map(str::to_owned),
            settings: settings.to_owned(),
            revision: revision.to_owned(),
            base_revision: base_revision.to_owned(),
            bare_revision: bare_revision.to_owned(),
            image: image.to_owned(),
            default_image: default_image.to_owned(),
            restarted_by: restarted_by.map(str::to_owned),
            data_bytes,
            wal_bytes,
            request: request.cloned(),
            backup: backup.map(str::to_owned),
            backup_source,
            backup_kind,
            deletes_archive,
        }
    }

    fn lent(&self) -> Wanted<'_> {
        Wanted {
            name: &self.name,
            uid: &self.uid,
            resource_version: &self.resource_version,
            generation: self.generation,
            deleting: self.deleting,
            finalizer: self.finalizer,
            spec: &self.spec,
            invalid: self.invalid.as_deref(),
            settings: &self.settings,
            revision: &self.revision,
            base_revision: &self.base_revision,
            bare_revision: &self.bare_revision,
            image: &self.image,
            default_image: &self.default_image,
            restarted_by: self.restarted_by.as_deref(),
            data_bytes: self.data_bytes,
            wal_bytes: self.wal_bytes,
            request: self.request.as_ref(),
            backup: self.backup.as_deref(),
            backup_source: self.backup_source,
            backup_kind: self.backup_kind,
            deletes_archive: self.deletes_archive,
        }
    }
}

/// Without the statements of the first start, which may make roles with passwords, and the values of settings and of the
/// user's annotations. Decisions know them by `settings` and `revision`.
fn without_secrets(spec: &ClusteredDatabaseSpec) -> ClusteredDatabaseSpec {
    let mut spec = spec.clone();
    if let Some(initdb) = spec.initdb_mut() {
        initdb.post_init_application_sql.clear();
    }
    let values = spec
        .postgres
        .parameters
        .values_mut()
        .chain(spec.pods.metadata.annotations.values_mut())
        .chain(spec.service_account.metadata.annotations.values_mut());
    values.for_each(String::clear);
    spec
}

#[cfg(test)]
mod tests {
    use api::spec::{BootstrapSpec, InitdbSpec};
    use machine::cluster::model::Scene;

    use super::*;

    /// What stands in a file is read as it was written, in every state of the machine's own examples, and decides the same.
    #[test]
    fn an_entry_is_read_as_it_was_written_and_decides_the_same() {
        let mut broken = Scene::ready(3);
        broken.lease_mut().unwrap().holder = None;
        broken.edit(|spec| {
            spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
            let initdb = InitdbSpec {
                post_init_application_sql: vec!["CREATE ROLE x PASSWORD 'hunter2'".to_owned()],
                ..InitdbSpec::default()
            };
            spec.bootstrap = Some(BootstrapSpec {
                initdb: Some(initdb),
                volumes: None,
                recovery: None,
            });
            spec.pods
                .metadata
                .annotations
                .insert("a".to_owned(), "hunter3".to_owned());
        });
        for scene in [Scene::new(3), Scene::ready(1), Scene::ready(3), broken] {
            let decision = scene.decide();
            let entry =
                scene.with_wanted(|wanted| Entry::new(wanted, &scene.observed, &scene.stored, &decision, scene.now));
            let text = serde_json::to_string(&entry).unwrap();
            assert!(!text.contains("hunter") && !text.contains("8MB"), "{text}");
            let read: Entry = serde_json::from_str(&text).unwrap();
            assert_eq!(read, entry);
            assert_eq!(read.replay(), decision);
            assert_eq!(value(&read.replay()), read.decision);
        }
    }

    #[test]
    fn a_line_is_read_as_what_it_is_about() {
        let spec: DatabaseBackupSpec = serde_json::from_str(r#"{"clusterRef": {"name": "demo"}}"#).unwrap();
        let wanted = operation::Wanted {
            uid: "u",
            generation: 1,
            created: DateTime::UNIX_EPOCH,
            spec: &spec,
        };
        let observed = machine::backup::Observed {
            cluster: machine::cluster::Known::Known(None),
            before: machine::cluster::Known::Unknown,
        };
        let (stored, now) = (DatabaseBackupStatus::default(), DateTime::UNIX_EPOCH);
        let decision = Backup::decide(&wanted, &observed, &stored, now);
        let backup = Box::new(AskedEntry::new("b", &wanted, &observed, &stored, &decision, now));
        let line = Line::Backup { backup };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        let scene = Scene::ready(1);
        let decision = scene.decide();
        let entry = scene.with_wanted(|wanted| Entry::new(wanted, &scene.observed, &scene.stored, &decision, now));
        let line = Line::Database(Box::new(entry));
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        let error = serde_json::from_str::<Line>(r#"{"operation": {"at": "2026-01-01T00:00:00Z"}}"#).unwrap_err();
        assert!(error.to_string().contains("missing field `name`"), "{error}");
        let error = serde_json::from_str::<Line>(r#"{"pooler": {}}"#).unwrap_err();
        assert_eq!(error.to_string(), "unknown object `pooler`");
    }
}
