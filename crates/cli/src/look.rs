//! The operator's view of a database, from outside: the operator's own code observes and decides, and nothing is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::names::{CONTAINER, LABEL_CLUSTER};
use api::status::FailureReason;
use api::{ClusteredDatabase, ClusteredDatabaseStatus, Guarded};
use chrono::{DateTime, Utc};
use k8s_openapi::api::apps::v1::StatefulSet;
use machine::cluster::{Decision, Facts, Known, Observed, OwnedObject, OwnedState, decide, status};
use operator::builders::Subject;
use operator::cache::{Kept, Key, Lister};
use operator::caches::Caches;
use operator::config::Config;
use operator::desired::{self, Wants};
use operator::execute::{WantedFacts, asked_backup, open_request};
use operator::memory::Memory;
use operator::observe::{Stray, observe};

use crate::snapshot::Snapshot;

/// What the operator would see of a database.
pub struct Look {
    /// The resource.
    pub db: ClusteredDatabase,
    /// All other input of a decision. What is not in the snapshot is unknown.
    pub observed: Observed,
    /// The operator's configuration, as far as the StatefulSet shows it.
    pub config: Config,
    /// When the objects were read.
    pub now: DateTime<Utc>,
    key: Key,
    uid: String,
    facts: WantedFacts,
}

impl Look {
    /// The view of the database called `name`.
    ///
    /// # Errors
    /// If the resource is not in the snapshot, or an object cannot be read.
    pub fn new(snapshot: &Snapshot, namespace: Option<&str>, name: &str) -> Result<Self> {
        let db = snapshot.database(namespace, name)?;
        let config = config(snapshot, &db)?;
        let subject = Subject::new(&db, &config).with_context(|| {
            format!("ClusteredDatabase {name} was never in a cluster: record it with `kubectl get -o yaml`")
        })?;
        let (namespace, uid) = (subject.namespace.clone(), subject.uid.clone());
        let key = Key::database(namespace, name.to_owned());
        let mut memory = Memory::default();
        memory.begin(&uid, db.metadata.generation.unwrap_or(0), |_| None);
        let caches = Caches::default();
        caches.fill(snapshot)?;
        let wal = operator::observe::wal_volumes(&caches, &key).unwrap_or_default();
        let subject = subject.with_wal(wal);
        memory.wants = Some(Arc::new(Wants::new(&subject)));
        let facts = WantedFacts::new(&db, &memory, open_request(&db), asked_backup(&db));
        let mut observed = observe(
            &caches,
            &key,
            &subject,
            &mut memory,
            &strays(snapshot, name),
            snapshot.at,
        );
        forget_absent(snapshot, &mut observed);
        Ok(Self {
            db,
            observed,
            config,
            now: snapshot.at,
            key,
            uid,
            facts,
        })
    }

    /// The status as it is stored.
    pub fn status(&self) -> ClusteredDatabaseStatus {
        self.db.status.clone().unwrap_or_default()
    }

    /// The database's namespace.
    pub fn namespace(&self) -> &str {
        &self.key.namespace
    }

    /// What the operator would decide.
    pub fn decide(&self) -> Decision {
        let wanted = self.facts.wanted(&self.db, &self.key, &self.uid);
        decide(&wanted, &self.observed, &self.status(), self.now)
    }

    /// The status that the operator would store with this decision. `certificates` are those that it has signed for it.
    pub fn status_after(
        &self,
        decision: &Decision,
        certificates: &BTreeMap<String, String>,
    ) -> ClusteredDatabaseStatus {
        let wanted = self.facts.wanted(&self.db, &self.key, &self.uid);
        status(
            &wanted,
            &self.observed,
            &self.status(),
            decision,
            certificates,
            self.now,
        )
    }

    /// Calls `with` with the facts of the decision.
    pub fn with_facts<R>(&self, with: impl FnOnce(&Facts<'_>) -> R) -> R {
        let wanted = self.facts.wanted(&self.db, &self.key, &self.uid);
        let status = self.status();
        with(&Facts::new(&wanted, &self.observed, &status, self.now))
    }

    /// Assumes that unread objects are as the operator made them, unless the status names a lost one; returns these objects. The
    /// objects that the operator makes later, and the status, show which ones it has made. Never assumes a Lease or a
    /// StatefulSet, because decisions depend on their content.
    pub fn presume(&mut self) -> Vec<OwnedObject> {
        let status = self.status();
        if status
            .failure
            .is_some_and(|failure| failure.reason == FailureReason::PartLost)
        {
            return Vec::new();
        }
        let ours = |kind: &OwnedObject| {
            let state = &self.observed.children[*kind];
            matches!(
                state,
                Known::Known(OwnedState::Current { .. } | OwnedState::Drifted { .. })
            )
        };
        let last = OwnedObject::ALL.into_iter().rfind(ours);
        let made = |kind: &OwnedObject| status.system_identifier.is_some() || last.is_some_and(|last| *kind < last);
        let unknown = |kind: &OwnedObject| self.observed.children[*kind] == Known::Unknown;
        let presumed: Vec<_> = OwnedObject::ALL
            .into_iter()
            .filter(|kind| {
                !matches!(kind, OwnedObject::Lease | OwnedObject::StatefulSet) && unknown(kind) && made(kind)
            })
            .collect();
        for kind in &presumed {
            let name = desired::name(&self.key.name, *kind);
            let uid = status.memo.made.get(&name).cloned().unwrap_or_default();
            self.observed.children[*kind] = Known::Known(OwnedState::Current { uid });
        }
        presumed
    }

    /// Describes the unknown input of a decision.
    pub fn unknown(&self) -> Vec<String> {
        let children = OwnedObject::ALL
            .into_iter()
            .filter(|kind| self.observed.children[*kind] == Known::Unknown)
            .map(|kind| format!("{} {}", kind.kind(), desired::name(&self.key.name, kind)));
        let mut unknown: Vec<_> = children.collect();
        let lists = [
            (self.observed.pods.get().is_none(), "the pods"),
            (self.observed.claims.get().is_none(), "the claims"),
            (self.observed.storage_class.get().is_none(), "the StorageClass"),
        ];
        unknown.extend(
            lists
                .iter()
                .filter(|(unknown, _)| *unknown)
                .map(|(_, what)| (*what).to_owned()),
        );
        unknown
    }
}

/// The operator's configuration as the live StatefulSet shows it: the view compares its content with that.
fn config(snapshot: &Snapshot, db: &ClusteredDatabase) -> Result<Config> {
    let mut config = Config::default();
    let sets: Vec<Guarded<StatefulSet>> = snapshot.typed("StatefulSet")?;
    let set = sets
        .into_iter()
        .filter_map(|set| set.0.ok())
        .find(|set| set.metadata.name == db.metadata.name);
    let Some(pod) = set.and_then(|set| set.spec?.template.spec) else {
        return Ok(config);
    };
    if let Some(image) = pod
        .init_containers
        .iter()
        .flatten()
        .find_map(|container| container.image.clone())
    {
        config.agent_image = image;
    }
    let postgres = pod.containers.iter().find(|container| container.name == CONTAINER);
    if let (None, Some(image)) = (
        &db.spec.postgres.image,
        postgres.and_then(|container| container.image.clone()),
    ) {
        config.postgres_images.insert(db.spec.postgres.major_version, image);
    }
    Ok(config)
}

/// Fills the operator's caches from the snapshot. An unknown kind was never listed.
impl Lister for Snapshot {
    type Error = anyhow::Error;

    fn list<K: Kept>(&self, kind: &str) -> Result<Option<Vec<Guarded<K>>>> {
        self.knows(kind).then(|| self.typed(kind)).transpose()
    }
}

/// Objects with our names that lack our label: no watch of the operator shows them.
fn strays(snapshot: &Snapshot, database: &str) -> Vec<Stray> {
    let stray = |kind: OwnedObject| {
        let name = desired::name(database, kind);
        let object = snapshot
            .of(kind.kind())
            .find(|object| crate::snapshot::name(object) == name)?;
        let labelled = object["metadata"]["labels"][LABEL_CLUSTER] == database;
        (!labelled).then(|| Stray {
            kind,
            object: Some(Ok(object.clone())),
        })
    };
    OwnedObject::ALL.into_iter().filter_map(stray).collect()
}

/// An object that is not in a file may exist, unless the file has all of its kind.
fn forget_absent(snapshot: &Snapshot, observed: &mut Observed) {
    for kind in OwnedObject::ALL {
        if observed.children[kind] == Known::Known(OwnedState::Missing) && !snapshot.complete.contains(kind.kind()) {
            observed.children[kind] = Known::Unknown;
        }
    }
    if observed.lease == Known::Known(None) && !snapshot.complete.contains("Lease") {
        observed.lease = Known::Unknown;
    }
}
