//! The metrics of `/metrics`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabels {
    port: &'static str,
}

/// The agent's metrics. Fields are set by the event loop.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// PostgreSQL accepts connections (1) or not (0).
    pub up: Gauge,
    /// This instance holds the lease and accepts writes (1) or not (0).
    pub primary: Gauge,
    /// Epoch of the Lease as last seen.
    pub epoch: Gauge,
    /// Timeline of its WAL.
    pub timeline: Gauge,
    /// End of its WAL, in bytes.
    pub wal_position: Gauge,
    /// Standby: bytes that it has received but not replayed.
    pub replay_lag: Gauge,
    /// Primary: standbys that stream from it.
    pub streaming_standbys: Gauge,
    /// Client sessions.
    pub sessions: Gauge,
    /// Settings wait for a restart (1) or not (0).
    pub pending_restart: Gauge,
    /// Milliseconds since the last successful renewal of the lease was sent; 0 if it is not held.
    pub lease_age: Gauge,
    /// Primary: something keeps WAL from being archived (1) or not (0).
    pub archive_fails: Gauge,
    /// Primary: bytes of WAL that wait for the archive.
    pub archive_waiting: Gauge,
    /// Primary: all WAL before this position is archived, in bytes.
    pub archived_position: Gauge,
    /// Primary: backups in the store.
    pub backups: Gauge,
    /// Primary: when the last backup ended that was taken, in seconds since 1970; 0 if none was.
    pub last_backup: Gauge,
    /// When the certificate ends that agent and PostgreSQL present, in seconds since 1970; 0 before that is known.
    pub certificate: Gauge,
    /// How many times PostgreSQL was started by this run of the agent.
    pub starts: Counter,
    /// How many times PostgreSQL was fenced by this run of the agent.
    pub fences: Counter,
    dropped: Family<PortLabels, Counter>,
}

impl Metrics {
    /// Metrics that are all zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("cdb");
        let mut gauge = |name: &str, help: &str| {
            let gauge: Gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let up = gauge("postgres_up", "PostgreSQL accepts connections");
        let primary = gauge("primary", "This instance holds the lease and accepts writes");
        let epoch = gauge("lease_epoch", "Epoch of the Lease as last seen");
        let timeline = gauge("timeline", "Timeline of its write-ahead log");
        let wal_position = gauge("wal_position_bytes", "End of its write-ahead log");
        let replay_lag = gauge("replay_lag_bytes", "Received but not replayed");
        let streaming_standbys = gauge("streaming_standbys", "Standbys that stream from this instance");
        let sessions = gauge("client_sessions", "Client sessions");
        let pending_restart = gauge("pending_restart", "Settings wait for a restart");
        let lease_age = gauge("lease_age_milliseconds", "Since the last successful renewal was sent");
        let archive_fails = gauge("archive_fails", "Nothing is archived at present");
        let archive_waiting = gauge("archive_waiting_bytes", "Write-ahead log that waits for the archive");
        let archived_position = gauge("archived_position_bytes", "All write-ahead log before it is archived");
        let backups = gauge("backups", "Complete backups in the store");
        let last_backup = gauge("last_backup_timestamp_seconds", "When the last backup ended");
        let certificate = gauge(
            "certificate_expiration_timestamp_seconds",
            "When the certificate ends that agent and PostgreSQL present",
        );
        let (starts, fences) = (Counter::default(), Counter::default());
        registry.register(
            "postgres_starts",
            "Starts of PostgreSQL by this run of the agent",
            starts.clone(),
        );
        registry.register(
            "fences",
            "Times that this run of the agent fenced PostgreSQL",
            fences.clone(),
        );
        let dropped = Family::default();
        registry.register(
            "dropped_connections",
            "Connections to a port of the agent that were dropped for newer ones",
            dropped.clone(),
        );
        Self {
            registry,
            up,
            primary,
            epoch,
            timeline,
            wal_position,
            replay_lag,
            streaming_standbys,
            sessions,
            pending_restart,
            lease_age,
            archive_fails,
            archive_waiting,
            archived_position,
            backups,
            last_backup,
            certificate,
            starts,
            fences,
            dropped,
        }
    }

    /// Counts that a connection to this port was dropped for a newer one.
    pub fn dropped(&self, port: &'static str) {
        self.dropped.get_or_create(&PortLabels { port }).inc();
    }

    pub(super) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_shown() {
        let metrics = Metrics::new();
        metrics.timeline.set(3);
        metrics.starts.inc();
        metrics.dropped("peers");
        let text = metrics.text().expect("text");
        assert!(text.contains("cdb_timeline 3\n"), "{text}");
        assert!(text.contains("cdb_postgres_starts_total 1\n"), "{text}");
        assert!(
            text.contains("cdb_dropped_connections_total{port=\"peers\"} 1\n"),
            "{text}"
        );
    }
}
