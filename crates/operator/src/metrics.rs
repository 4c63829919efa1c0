//! What `/metrics` shows.

use std::sync::Arc;
use std::time::Duration;

use api::Phase;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::caches::CacheHealth;

/// All metrics of the operator; clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    reconciles: Counter,
    duration: Histogram,
    decisions: Family<DecisionLabels, Counter>,
    writes: Family<WriteLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    internal_errors: Counter,
    watch_errors: Family<KindLabels, Counter>,
    watch_silence: Family<KindLabels, Gauge>,
    stale_events: Family<KindLabels, Gauge>,
    unreadable: Family<KindLabels, Gauge>,
    phases: Family<PhaseLabels, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
    open_breakers: Gauge,
    queue: Gauge,
    leader: Gauge,
    dropped_connections: Family<PortLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    rule: &'static str,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    verb: &'static str,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    action: &'static str,
    fault: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabels {
    port: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    condition: String,
    status: String,
}

/// What is counted of a database.
#[derive(Clone, Debug, Default)]
pub struct DatabaseSeen {
    /// Its phase.
    pub phase: Phase,
    /// Type and status of each of its conditions.
    pub conditions: Vec<(String, String)>,
    /// Its last backup before the deletion has failed so often that it is tried now and then only.
    pub breaker_is_open: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cdb_operator");
        // From 1 ms (nothing to do) to 16 s (a request that hung).
        let duration = Histogram::new(exponential_buckets(0.001, 4.0, 8));
        let mut inner = Inner {
            registry: Registry::default(),
            reconciles: Counter::default(),
            duration,
            decisions: Family::default(),
            writes: Family::default(),
            failures: Family::default(),
            internal_errors: Counter::default(),
            watch_errors: Family::default(),
            watch_silence: Family::default(),
            stale_events: Family::default(),
            unreadable: Family::default(),
            phases: Family::default(),
            conditions: Family::default(),
            open_breakers: Gauge::default(),
            queue: Gauge::default(),
            leader: Gauge::default(),
            dropped_connections: Family::default(),
        };
        registry.register("reconciles", "Looks at a database", inner.reconciles.clone());
        registry.register_with_unit(
            "reconcile_duration",
            "Time of one look",
            Unit::Seconds,
            inner.duration.clone(),
        );
        registry.register("decisions", "Decisions by rule and action", inner.decisions.clone());
        registry.register("api_writes", "Writes to the API server", inner.writes.clone());
        registry.register("failures", "Actions that failed", inner.failures.clone());
        registry.register(
            "internal_errors",
            "Looks at a database that panicked: a bug in the operator",
            inner.internal_errors.clone(),
        );
        registry.register("watch_errors", "Failures of watches", inner.watch_errors.clone());
        registry.register_with_unit(
            "watch_last_event_age",
            "Time since the watch last reported anything",
            Unit::Seconds,
            inner.watch_silence.clone(),
        );
        registry.register(
            "stale_events",
            "Events older than our own writes, left out",
            inner.stale_events.clone(),
        );
        registry.register(
            "unreadable_objects",
            "Objects that this operator cannot read: their database alone waits",
            inner.unreadable.clone(),
        );
        registry.register("databases", "Databases by phase", inner.phases.clone());
        registry.register(
            "resource_conditions",
            "Databases by condition and its status",
            inner.conditions.clone(),
        );
        registry.register(
            "open_breakers",
            "Deletions that wait for a store which has failed five times or more",
            inner.open_breakers.clone(),
        );
        registry.register(
            "queue_length",
            "Databases that wait or are looked at",
            inner.queue.clone(),
        );
        registry.register("leader", "1 on the operator that acts", inner.leader.clone());
        registry.register(
            "dropped_connections",
            "Connections to a port of the operator that were dropped for newer ones",
            inner.dropped_connections.clone(),
        );
        inner.registry = registry;
        Self(Arc::new(inner))
    }
}

impl Metrics {
    /// One look at a database took this long.
    pub fn reconciled(&self, took: Duration) {
        self.0.reconciles.inc();
        self.0.duration.observe(took.as_secs_f64());
    }

    /// A rule decided.
    pub fn decided(&self, rule: &'static str, action: &'static str) {
        self.0.decisions.get_or_create(&DecisionLabels { rule, action }).inc();
    }

    /// A write is being sent.
    pub fn write(&self, verb: &'static str, kind: &str) {
        self.0
            .writes
            .get_or_create(&WriteLabels {
                verb,
                kind: kind.to_owned(),
            })
            .inc();
    }

    /// An action failed.
    pub fn failed(&self, action: &'static str, fault: impl std::fmt::Debug) {
        self.0
            .failures
            .get_or_create(&FailureLabels {
                action,
                fault: format!("{fault:?}"),
            })
            .inc();
    }

    /// A look at a database panicked.
    pub fn failed_inside(&self) {
        self.0.internal_errors.inc();
    }

    /// A watch failed.
    pub fn watch_failed(&self, kind: &'static str) {
        self.0.watch_errors.get_or_create(&KindLabels { kind }).inc();
    }

    /// A connection to this port was dropped for a newer one.
    pub fn dropped_connection(&self, port: &'static str) {
        self.0.dropped_connections.get_or_create(&PortLabels { port }).inc();
    }

    /// This operator acts, or stands by.
    pub fn set_leader(&self, leader: bool) {
        self.0.leader.set(leader.into());
    }

    /// What the caches, the queue and the databases look like now.
    pub fn set_state(&self, caches: &[CacheHealth], databases: &[DatabaseSeen], queue: usize) {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for cache in caches {
            let labels = KindLabels { kind: cache.kind };
            let set = |family: &Family<KindLabels, Gauge>, value: u64| {
                family.get_or_create(&labels).set(number(value));
            };
            set(&self.0.watch_silence, cache.silence.as_secs());
            set(&self.0.stale_events, cache.stale_events);
            set(&self.0.unreadable, u64::try_from(cache.unreadable).unwrap_or(u64::MAX));
        }
        for phase in Phase::ALL {
            let those = databases.iter().filter(|database| database.phase == phase);
            let labels = PhaseLabels { phase: phase.as_str() };
            self.0.phases.get_or_create(&labels).set(count(those.count()));
        }
        self.0.conditions.clear();
        for (condition, status) in databases.iter().flat_map(|database| database.conditions.clone()) {
            self.0
                .conditions
                .get_or_create(&ConditionLabels { condition, status })
                .inc();
        }
        let open = databases.iter().filter(|database| database.breaker_is_open);
        self.0.open_breakers.set(count(open.count()));
        self.0.queue.set(count(queue));
    }

    /// The text that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.0.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_was_counted() {
        let metrics = Metrics::default();
        metrics.write("apply", "Service");
        metrics.decided("rest", "Wait");
        metrics.failed_inside();
        let pods = CacheHealth {
            kind: "Pod",
            silence: Duration::from_secs(7),
            stale_events: 2,
            unreadable: 1,
        };
        let database = |status: &str, breaker_is_open: bool| DatabaseSeen {
            phase: Phase::Ready,
            conditions: vec![("BackupHealthy".to_owned(), status.to_owned())],
            breaker_is_open,
        };
        metrics.set_state(&[], &[database("Unknown", false)], 1);
        metrics.set_state(&[pods], &[database("True", false), database("True", true)], 3);
        let text = metrics.text();
        for line in [
            "cdb_operator_api_writes_total{verb=\"apply\",kind=\"Service\"} 1",
            "cdb_operator_decisions_total{rule=\"rest\",action=\"Wait\"} 1",
            "cdb_operator_watch_last_event_age_seconds{kind=\"Pod\"} 7",
            "cdb_operator_unreadable_objects{kind=\"Pod\"} 1",
            "cdb_operator_databases{phase=\"Ready\"} 2",
            "cdb_operator_resource_conditions{condition=\"BackupHealthy\",status=\"True\"} 2",
            "cdb_operator_open_breakers 1",
            "cdb_operator_queue_length 3",
            "cdb_operator_internal_errors_total 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("Unknown"), "it is no more: {text}");
    }
}
