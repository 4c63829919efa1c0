//! What [`crate::reconcile`] needs of operations: observing them, writing their status.

use std::sync::Arc;

use api::ClusteredDatabaseOperation;
use api::operation::OperationStatus;
use chrono::{DateTime, Utc};
use kube::ResourceExt;
use machine::cluster::Known;
use machine::operation::{Cluster, Decision, Observed, Operation, Target, Wanted};
use machine::reconcile::{Controller, Next, Pass};

use super::Clock;
use crate::cache::Key;
use crate::caches::Caches;
use crate::metrics::Metrics;
use crate::observe;
use crate::reconcile::{Failure, Host, Looks, Outcome, Prepared, Sight};
use crate::requests::Requests;

/// The I/O of operations.
pub(super) struct Operations {
    pub requests: Requests,
    pub caches: Arc<Caches>,
    pub metrics: Metrics,
    pub clock: Clock,
    pub looks: Looks<Pass<Target>>,
}

/// An operation, and what is observed around it.
pub(super) struct Seen {
    operation: Arc<ClusteredDatabaseOperation>,
    uid: String,
    observed: Observed,
    stored: OperationStatus,
}

impl Seen {
    fn wanted(&self) -> Wanted<'_> {
        let created = self.operation.creation_timestamp().as_ref().map(observe::time);
        Wanted {
            uid: &self.uid,
            generation: self.operation.metadata.generation.unwrap_or(0),
            created: created.unwrap_or_default(),
            spec: &self.operation.spec,
        }
    }
}

fn database(operation: &ClusteredDatabaseOperation, key: &Key) -> Key {
    Key::database(&*key.namespace, &*operation.spec.cluster_ref.name)
}

impl Operations {
    fn find(&self, key: &Key) -> Option<Arc<ClusteredDatabaseOperation>> {
        self.caches.operations.get(key, &key.name).flatten()
    }

    fn observe(&self, key: &Key, operation: &ClusteredDatabaseOperation) -> Observed {
        let of = database(operation, key);
        let found = self.caches.databases.get(&of, &of.name);
        let cluster = match found {
            None => Known::Unknown,
            Some(None) if self.caches.databases.has(&of) => Known::Unknown,
            Some(found) => Known::Known(found.map(|found| Cluster {
                deleting: found.metadata.deletion_timestamp.is_some(),
                request: found.status.as_ref().and_then(|status| status.memo.request.clone()),
            })),
        };
        let noted = match &cluster {
            Known::Known(Some(cluster)) => cluster.request.as_ref(),
            Known::Known(None) | Known::Unknown => None,
        };
        let before = match self.caches.request(&of, noted) {
            None => Known::Unknown,
            Some(first) => Known::Known(first.map(|first| first.name).filter(|first| *first != key.name)),
        };
        Observed { cluster, before }
    }
}

impl Host for Operations {
    type Machine = Operation;
    type Memory = Pass<Target>;
    type Seen = Seen;

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
        let told = |found: Arc<ClusteredDatabaseOperation>| {
            (found.uid().unwrap_or_default(), found.metadata.generation.unwrap_or(0))
        };
        self.find(key).map(told).unwrap_or_default()
    }

    async fn see(&self, key: &Key, pass: &mut Pass<Target>, _now: DateTime<Utc>) -> Sight<Seen> {
        let Some(operation) = self.find(key) else {
            return Sight::Gone;
        };
        let (uid, generation) = self.spec(key);
        pass.begin(&uid, generation, |target| self.version(key, target));
        Sight::Seen(Box::new(Seen {
            observed: self.observe(key, &operation),
            stored: operation.status.clone().unwrap_or_default(),
            uid,
            operation,
        }))
    }

    fn decide(&self, _key: &Key, seen: &Seen, now: DateTime<Utc>) -> Decision {
        let decision = Operation::decide(&seen.wanted(), &seen.observed, &seen.stored, now);
        self.metrics.decided(decision.rule, decision.action.name());
        decision
    }

    async fn prepare(
        &self,
        _key: &Key,
        _pass: &mut Pass<Target>,
        _seen: &Seen,
        _decision: &Decision,
        _now: DateTime<Utc>,
    ) -> Result<Prepared<()>, Failure> {
        Ok(Prepared::Ready(()))
    }

    fn status(seen: &Seen, decision: &Decision, (): &(), now: DateTime<Utc>) -> OperationStatus {
        Operation::status(&seen.wanted(), &seen.observed, &seen.stored, decision, &(), now)
    }

    fn next(
        pass: &mut Pass<Target>,
        seen: &Seen,
        status: &OperationStatus,
        decision: &Decision,
        now: DateTime<Utc>,
    ) -> Next {
        pass.next::<Operation>(&seen.observed, &seen.stored, status, decision, now)
    }

    async fn write_status(
        &self,
        key: &Key,
        seen: &Seen,
        status: OperationStatus,
        decision: &Decision,
    ) -> Result<(), Failure> {
        if status.phase != seen.stored.phase {
            let (to, because) = (status.phase, status.message.as_deref());
            tracing::info!(operation = %key, from = ?seen.stored.phase, ?to, rule = decision.rule, because, "phase");
        }
        let mut changed = (*seen.operation).clone();
        changed.status = Some(status);
        let written = self.requests.replace_status(&key.namespace, &key.name, &changed);
        self.caches.operations.put(written.await?);
        self.caches.note_operation(key);
        Ok(())
    }

    fn prepared_is_written(_pass: &mut Pass<Target>, (): ()) {}

    async fn confirm(&self, _key: &Key, _seen: &Seen) -> Result<Outcome, Failure> {
        Ok(Outcome::Done)
    }

    async fn perform(
        &self,
        _key: &Key,
        _pass: &mut Pass<Target>,
        _seen: &Seen,
        _decision: &Decision,
    ) -> Result<Outcome, Failure> {
        // All that an operation does is its status.
        Ok(Outcome::Outdated)
    }

    fn version(&self, key: &Key, target: &Target) -> Option<String> {
        match target {
            Target::Status => self.find(key)?.resource_version(),
        }
    }

    fn wake(&self, _pass: &Pass<Target>, _seen: &Seen, wake: DateTime<Utc>, _now: DateTime<Utc>) -> DateTime<Utc> {
        wake
    }

    fn action_name(decision: &Decision) -> &'static str {
        decision.action.name()
    }

    fn log(key: &Key, decision: &Decision) {
        tracing::info!(operation = %key, rule = decision.rule, action = ?decision.action, "acting");
    }

    async fn tell_of_internal_error(&self, key: &Key, place: &str, _now: DateTime<Utc>) {
        let Some(operation) = self.find(key) else { return };
        let mut changed = (*operation).clone();
        let status = changed.status.get_or_insert_default();
        let message = format!("a bug in the operator stops its work for this operation (panic at {place})");
        if status.message.replace(message.clone()) == Some(message) {
            return;
        }
        let written = self.requests.replace_status(&key.namespace, &key.name, &changed);
        match written.await {
            Ok(written) => self.caches.operations.put(written),
            Err(error) => tracing::warn!(operation = %key, %error, "cannot say so in the status"),
        }
    }

    fn readers(&self, key: &Key) -> Vec<Key> {
        let Some(operation) = self.find(key) else {
            return Vec::new();
        };
        let of = database(&operation, key);
        let mut readers = self.caches.waiting_for(&of);
        readers.push(of);
        readers
    }

    fn forget(&self, _key: &Key) {}
}
