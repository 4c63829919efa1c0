//! The operator's look at a database, from outside: the same code observes and decides, and nothing is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::names::{CONTAINER, LABEL_CLUSTER};
use api::status::FailureReason;
use api::{ClusteredDatabase, ClusteredDatabaseStatus, Guarded};
use chrono::{DateTime, Utc};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::runtime::watcher::Event;
use machine::cluster::{ChildKind, ChildState, Decision, Facts, Known, Observed, decide, status};
use operator::builders::Subject;
use operator::cache::{Cache, Kept, Key};
use operator::caches::Caches;
use operator::config::Config;
use operator::desired::{self, Wants};
use operator::execute::{WantedFacts, open_request};
use operator::memory::Memory;
use operator::observe::{Stray, observe};

use crate::snapshot::Snapshot;

/// One look at a database.
pub struct Look {
    /// The resource.
    pub db: ClusteredDatabase,
    /// Everything else that a decision looks at. What is not in the snapshot is unknown.
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
    /// The look at the database called `name`.
    ///
    /// # Errors
    /// When the resource is not in the snapshot, or an object cannot be read.
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
        let caches = caches(snapshot)?;
        let wal = operator::observe::wal_volumes(&caches, &key).unwrap_or_default();
        let subject = subject.with_wal(wal);
        memory.wants = Some(Arc::new(Wants::new(&subject)));
        let facts = WantedFacts::new(&db, &memory, open_request(&db));
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

    /// Takes the objects that could not be read for what the operator made them, unless the status speaks of a lost one;
    /// returns which these are. What the operator has made is known by the objects that it makes later, and by the status.
    /// Of the Lease and the StatefulSet, whose content decides, nothing is presumed.
    pub fn presume(&mut self) -> Vec<ChildKind> {
        let status = self.status();
        if status
            .failure
            .is_some_and(|failure| failure.reason == FailureReason::PartLost)
        {
            return Vec::new();
        }
        let ours = |kind: &ChildKind| {
            let state = &self.observed.children[*kind];
            matches!(
                state,
                Known::Known(ChildState::Current { .. } | ChildState::Drifted { .. })
            )
        };
        let last = ChildKind::ALL.into_iter().rfind(ours);
        let made = |kind: &ChildKind| status.system_identifier.is_some() || last.is_some_and(|last| *kind < last);
        let unknown = |kind: &ChildKind| self.observed.children[*kind] == Known::Unknown;
        let presumed: Vec<_> = ChildKind::ALL
            .into_iter()
            .filter(|kind| !matches!(kind, ChildKind::Lease | ChildKind::StatefulSet) && unknown(kind) && made(kind))
            .collect();
        for kind in &presumed {
            let name = desired::name(&self.key.name, *kind);
            let uid = status.memo.made.get(&name).cloned().unwrap_or_default();
            self.observed.children[*kind] = Known::Known(ChildState::Current { uid });
        }
        presumed
    }

    /// What a decision looks at and is not known, in words.
    pub fn unknown(&self) -> Vec<String> {
        let children = ChildKind::ALL
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

/// The operator's configuration as the live StatefulSet shows it: that is what its content is compared with.
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

fn caches(snapshot: &Snapshot) -> Result<Caches> {
    let caches = Caches::default();
    feed(snapshot, &caches.databases)?;
    feed(snapshot, &caches.service_accounts)?;
    feed(snapshot, &caches.roles)?;
    feed(snapshot, &caches.role_bindings)?;
    feed(snapshot, &caches.services)?;
    feed(snapshot, &caches.endpoint_slices)?;
    feed(snapshot, &caches.leases)?;
    feed(snapshot, &caches.budgets)?;
    feed(snapshot, &caches.network_policies)?;
    feed(snapshot, &caches.stateful_sets)?;
    feed(snapshot, &caches.pods)?;
    feed(snapshot, &caches.claims)?;
    feed(snapshot, &caches.storage_classes)?;
    feed(snapshot, &caches.nodes)?;
    Ok(caches)
}

/// What a watch would have listed. A kind of which nothing is known was never listed.
fn feed<K: Kept>(snapshot: &Snapshot, cache: &Cache<K>) -> Result<()> {
    if !snapshot.knows(cache.kind) {
        return Ok(());
    }
    cache.observe(Event::Init);
    for object in snapshot.typed::<Guarded<K>>(cache.kind)? {
        cache.take(Event::InitApply(object));
    }
    cache.observe(Event::InitDone);
    Ok(())
}

/// Objects with our names that lack our label: no watch of the operator shows them.
fn strays(snapshot: &Snapshot, database: &str) -> Vec<Stray> {
    let stray = |kind: ChildKind| {
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
    ChildKind::ALL.into_iter().filter_map(stray).collect()
}

/// An object that is not in a file may well exist, unless the file has all of its kind.
fn forget_absent(snapshot: &Snapshot, observed: &mut Observed) {
    for kind in ChildKind::ALL {
        if observed.children[kind] == Known::Known(ChildState::Missing) && !snapshot.complete.contains(kind.kind()) {
            observed.children[kind] = Known::Unknown;
        }
    }
    if observed.lease == Known::Known(None) && !snapshot.complete.contains("Lease") {
        observed.lease = Known::Unknown;
    }
}
