//! What [`crate::reconcile`] needs of the kinds that ask a database for something, and do nothing but write their status: operations and
//! backups.

use std::marker::PhantomData;
use std::sync::Arc;

use api::backup::{DatabaseBackupSpec, DatabaseBackupStatus};
use api::operation::{ClusteredDatabaseOperationSpec, OperationStatus};
use api::{ClusteredDatabase, ClusteredDatabaseOperation, DatabaseBackup};
use chrono::{DateTime, Utc};
use kube::core::object::{HasSpec, HasStatus};
use kube::{Resource, ResourceExt};
use machine::cluster::Known;
use machine::operation::{Action, Decision, Target, Wanted, idle};
use machine::reconcile::{Controller, Next, Pass};

use super::Clock;
use crate::cache::{Cache, Key};
use crate::caches::Caches;
use crate::decisions::Decisions;
use crate::metrics::Metrics;
use crate::observe;
use crate::reconcile::{Failure, Host, Looks, Outcome, Prepared, Sight};
use crate::recording::{AskedEntry, BackupEntry, Line, OperationEntry};
use crate::requests::{Requests, Writable};

/// A kind that asks a database for something.
pub(super) trait Asking: 'static + Sized {
    /// What it asks for.
    type Spec: Clone + Send + Sync;
    /// What came of it.
    type Status: Clone + Default + PartialEq + Send + Sync;
    /// What is observed around it.
    type Observed: Clone + Send + Sync;
    /// Its objects.
    type Object: Writable + HasSpec<Spec = Self::Spec> + HasStatus<Status = Self::Status>;
    /// Its machine.
    type Machine: for<'a> Controller<
            Wanted<'a> = Wanted<'a, Self::Spec>,
            Observed = Self::Observed,
            Status = Self::Status,
            Action = Action,
            Prepared = (),
            Decision = Decision,
        >;

    /// Its objects that are known.
    fn cache(caches: &Caches) -> &Cache<Self::Object>;
    /// Name of the database that is asked.
    fn cluster(spec: &Self::Spec) -> &str;
    /// What is observed around the object of this key. `cluster` is the database.
    fn observe(caches: &Caches, key: &Key, of: &Key, cluster: Known<Option<Arc<ClusteredDatabase>>>) -> Self::Observed;
    /// The part of the status that both kinds have.
    fn common(status: &mut Self::Status) -> &mut OperationStatus;
    /// A decision, as the record has it.
    fn line(entry: Box<AskedEntry<Self::Spec, Self::Observed, Self::Status>>) -> Line;
}

/// Operations.
pub(super) struct OfOperations;
/// Backups.
pub(super) struct OfBackups;

impl Asking for OfOperations {
    type Spec = ClusteredDatabaseOperationSpec;
    type Status = OperationStatus;
    type Observed = machine::operation::Observed;
    type Object = ClusteredDatabaseOperation;
    type Machine = machine::operation::Operation;

    fn cache(caches: &Caches) -> &Cache<Self::Object> {
        &caches.operations
    }

    fn cluster(spec: &Self::Spec) -> &str {
        &spec.cluster_ref.name
    }

    fn observe(caches: &Caches, key: &Key, of: &Key, cluster: Known<Option<Arc<ClusteredDatabase>>>) -> Self::Observed {
        let cluster = cluster.map(|found| {
            found.map(|found| machine::operation::Cluster {
                deleting: found.metadata.deletion_timestamp.is_some(),
                idle: idle(&found.spec),
                request: found.status.as_ref().and_then(|status| status.memo.request.clone()),
            })
        });
        let noted = cluster.get().and_then(Option::as_ref);
        let noted = noted.and_then(|cluster| cluster.request.as_ref());
        let before = others(
            caches.request(of, noted).map(|first| first.map(|first| first.name)),
            key,
        );
        Self::Observed { cluster, before }
    }

    fn common(status: &mut OperationStatus) -> &mut OperationStatus {
        status
    }

    fn line(operation: Box<OperationEntry>) -> Line {
        Line::Operation { operation }
    }
}

impl Asking for OfBackups {
    type Spec = DatabaseBackupSpec;
    type Status = DatabaseBackupStatus;
    type Observed = machine::backup::Observed;
    type Object = DatabaseBackup;
    type Machine = machine::backup::Backup;

    fn cache(caches: &Caches) -> &Cache<Self::Object> {
        &caches.backups
    }

    fn cluster(spec: &Self::Spec) -> &str {
        &spec.cluster_ref.name
    }

    fn observe(caches: &Caches, key: &Key, of: &Key, cluster: Known<Option<Arc<ClusteredDatabase>>>) -> Self::Observed {
        let status = cluster
            .get()
            .and_then(Option::as_ref)
            .and_then(|found| found.status.as_ref());
        let asked = status.and_then(|status| status.intent.backup.as_deref());
        let before = others(caches.backup(of, asked).map(|first| first.map(|first| first.name)), key);
        let cluster = cluster.map(|found| {
            found.map(|found| machine::backup::Cluster {
                deleting: found.metadata.deletion_timestamp.is_some() && !is_last(&found, &key.name),
                idle: idle(&found.spec),
                has_store: found.spec.backup.is_some(),
                has_wal_volume: has_wal_volume(&found),
                snapshots: found.status.as_ref().map_or(0, |status| status.memo.snapshots.len()),
                task: found
                    .status
                    .as_ref()
                    .and_then(|status| status.backup.as_ref()?.task.clone()),
            })
        });
        Self::Observed { cluster, before }
    }

    fn common(status: &mut DatabaseBackupStatus) -> &mut OperationStatus {
        &mut status.operation
    }

    fn line(backup: Box<BackupEntry>) -> Line {
        Line::Backup { backup }
    }
}

/// Whether the WAL of an instance is, or may be, on a volume of its own.
fn has_wal_volume(cluster: &ClusteredDatabase) -> bool {
    let given = cluster.status.as_ref().map(|status| &status.memo.wal_volumes);
    cluster.spec.storage.wal.is_some() || given.is_some_and(|pods| !pods.is_empty())
}

/// Whether this is the last backup of the database before its deletion.
fn is_last(cluster: &ClusteredDatabase, name: &str) -> bool {
    let memo = cluster
        .status
        .as_ref()
        .and_then(|status| status.memo.final_backup.as_ref());
    memo.is_some_and(|memo| memo.name == name)
}

/// The first one, if that is another one than `key`.
fn others(first: Option<Option<String>>, key: &Key) -> Known<Option<String>> {
    first.map_or(Known::Unknown, |first| {
        Known::Known(first.filter(|first| *first != key.name))
    })
}

/// The I/O of a kind.
pub(super) struct Askers<A> {
    pub requests: Requests,
    pub caches: Arc<Caches>,
    pub metrics: Metrics,
    pub clock: Clock,
    pub looks: Looks<Pass<Target>>,
    decisions: Arc<Decisions>,
    kind: PhantomData<fn() -> A>,
}

/// An object, and what is observed around it.
pub(super) struct Seen<A: Asking> {
    object: Arc<A::Object>,
    uid: String,
    observed: A::Observed,
    stored: A::Status,
}

impl<A: Asking> Seen<A> {
    fn wanted(&self) -> Wanted<'_, A::Spec> {
        let created = self.object.creation_timestamp().as_ref().map(observe::time);
        Wanted {
            uid: &self.uid,
            generation: self.object.meta().generation.unwrap_or(0),
            created: created.unwrap_or_default(),
            spec: self.object.spec(),
        }
    }
}

fn database<A: Asking>(object: &A::Object, key: &Key) -> Key {
    Key::database(&*key.namespace, A::cluster(object.spec()))
}

impl<A: Asking> Askers<A> {
    pub fn new(
        requests: &Requests,
        caches: &Arc<Caches>,
        metrics: &Metrics,
        clock: &Clock,
        decisions: &Arc<Decisions>,
    ) -> Self {
        Self {
            requests: requests.clone(),
            caches: Arc::clone(caches),
            metrics: metrics.clone(),
            clock: Arc::clone(clock),
            looks: Looks::default(),
            decisions: Arc::clone(decisions),
            kind: PhantomData,
        }
    }

    fn find(&self, key: &Key) -> Option<Arc<A::Object>> {
        A::cache(&self.caches).get(key, &key.name).flatten()
    }

    fn observe(&self, key: &Key, object: &A::Object) -> A::Observed {
        let of = database::<A>(object, key);
        let cluster = self.caches.databases.own(&of);
        let cluster = cluster.map_or(Known::Unknown, Known::Known);
        A::observe(&self.caches, key, &of, cluster)
    }
}

impl<A: Asking> Host for Askers<A> {
    type Machine = A::Machine;
    type Memory = Pass<Target>;
    type Seen = Seen<A>;

    fn pass(memory: &mut Pass<Target>) -> &mut Pass<Target> {
        memory
    }

    fn looks(&self) -> &Looks<Pass<Target>> {
        &self.looks
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn now(&self) -> DateTime<Utc> {
        (self.clock)()
    }

    fn spec(&self, key: &Key) -> (String, i64) {
        let told = |found: Arc<A::Object>| (found.uid().unwrap_or_default(), found.meta().generation.unwrap_or(0));
        self.find(key).map(told).unwrap_or_default()
    }

    async fn see(&self, key: &Key, pass: &mut Pass<Target>, _now: DateTime<Utc>) -> Sight<Seen<A>> {
        let Some(object) = self.find(key) else {
            return Sight::Gone;
        };
        let (uid, generation) = self.spec(key);
        pass.begin(&uid, generation, |target| self.version(key, target));
        Sight::Seen(Box::new(Seen {
            observed: self.observe(key, &object),
            stored: object.status().cloned().unwrap_or_default(),
            uid,
            object,
        }))
    }

    fn decide(&self, key: &Key, seen: &Seen<A>, now: DateTime<Utc>) -> Decision {
        let wanted = seen.wanted();
        let decision = A::Machine::decide(&wanted, &seen.observed, &seen.stored, now);
        self.metrics.decided(decision.rule, decision.action.name());
        let of = database::<A>(&seen.object, key);
        let uid = self.caches.databases.own(&of).flatten().and_then(|of| of.uid());
        // That one has ended is no news: a new operator sees all that have ever ended.
        if let (Some(uid), true) = (uid, decision.action != Action::Wait(None)) {
            // What is waited for names the others that wait, and changes with each that ends.
            let enters = matches!(decision.action, Action::Enter(..)).then_some(&decision.action);
            let decided = (&seen.uid, enters, decision.rule);
            let line = || {
                let entry = AskedEntry::new(&key.name, &wanted, &seen.observed, &seen.stored, &decision, now);
                A::line(Box::new(entry))
            };
            self.decisions.note_about(&of, &uid, key, &decided, line);
        }
        decision
    }

    async fn prepare(
        &self,
        _key: &Key,
        _pass: &mut Pass<Target>,
        _seen: &Seen<A>,
        _decision: &Decision,
        _now: DateTime<Utc>,
    ) -> Result<Prepared<()>, Failure> {
        Ok(Prepared::Ready(()))
    }

    fn status(seen: &Seen<A>, decision: &Decision, (): &(), now: DateTime<Utc>) -> A::Status {
        A::Machine::status(&seen.wanted(), &seen.observed, &seen.stored, decision, &(), now)
    }

    fn next(
        pass: &mut Pass<Target>,
        seen: &Seen<A>,
        status: &A::Status,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Next {
        pass.next::<A::Machine>(&seen.observed, &seen.stored, status, decision, now)
    }

    async fn write_status(
        &self,
        key: &Key,
        seen: &Seen<A>,
        status: A::Status,
        decision: &Decision,
    ) -> Result<(), Failure> {
        let (mut before, mut after) = (seen.stored.clone(), status.clone());
        let (before, after) = (A::common(&mut before), A::common(&mut after));
        if after.phase != before.phase {
            let (from, to, because) = (before.phase, after.phase, after.message.as_deref());
            tracing::info!(object = %key, database = %database::<A>(&seen.object, key), ?from, ?to, rule = decision.rule, because, "phase");
        }
        let mut changed = (*seen.object).clone();
        *changed.status_mut() = Some(status);
        let written = self.requests.replace_status(&key.namespace, &key.name, &changed);
        A::cache(&self.caches).put(written.await?);
        self.caches.note_asking(key);
        Ok(())
    }

    fn prepared_is_written(_pass: &mut Pass<Target>, (): ()) {}

    async fn confirm(&self, _key: &Key, _seen: &Seen<A>) -> Result<Outcome, Failure> {
        Ok(Outcome::Done)
    }

    async fn perform(
        &self,
        _key: &Key,
        _pass: &mut Pass<Target>,
        _seen: &Seen<A>,
        _decision: &Decision,
    ) -> Result<Outcome, Failure> {
        // All that these kinds do is their status.
        Ok(Outcome::Outdated)
    }

    fn version(&self, key: &Key, target: &Target) -> Option<String> {
        match target {
            Target::Status => self.find(key)?.resource_version(),
        }
    }

    fn wake(&self, _pass: &Pass<Target>, _seen: &Seen<A>, wake: DateTime<Utc>, _now: DateTime<Utc>) -> DateTime<Utc> {
        wake
    }

    fn action_name(decision: &Decision) -> &'static str {
        decision.action.name()
    }

    fn log(key: &Key, decision: &Decision) {
        tracing::info!(object = %key, rule = decision.rule, action = ?decision.action, "acting");
    }

    async fn tell_of_internal_error(&self, key: &Key, place: &str, _now: DateTime<Utc>) {
        let Some(object) = self.find(key) else { return };
        let mut changed = (*object).clone();
        let status = changed.status_mut().get_or_insert_default();
        let message = format!("a bug in the operator stops its work for this object (panic at {place})");
        if A::common(status).message.replace(message.clone()) == Some(message) {
            return;
        }
        let written = self.requests.replace_status(&key.namespace, &key.name, &changed);
        match written.await {
            Ok(written) => A::cache(&self.caches).put(written),
            Err(error) => {
                tracing::warn!(object = %key, database = %database::<A>(&object, key), %error, "cannot say so in the status");
            }
        }
    }

    fn readers(&self, key: &Key) -> Vec<Key> {
        let Some(object) = self.find(key) else {
            return Vec::new();
        };
        let of = database::<A>(&object, key);
        let mut readers = self.caches.waiting_for(&of);
        readers.push(of);
        readers
    }

    fn forget(&self, key: &Key) {
        self.decisions.forget(key);
    }
}
