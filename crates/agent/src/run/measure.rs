//! Filling the metrics from the world.

use machine::archive::ArchiveRecord;
use machine::instance::{Action, Mode, Process, Stop};
use machine::timing::BootTime;
use machine::units::{Bytes, Millis};

use crate::http::Metrics;
use crate::observe::World;

/// Counts a decision.
pub(super) fn count(metrics: &Metrics, rule: &str, action: &Action) {
    match action {
        Action::StartPrimary { .. } | Action::StartStandby { .. } => drop(metrics.starts.inc()),
        Action::Stop(Stop::Immediate) if rule == "fence" => drop(metrics.fences.inc()),
        _ => {}
    }
}

/// Sets the gauges.
pub(super) fn measure(metrics: &Metrics, world: &World, now: BootTime) {
    let observed = world.observed();
    let answer = observed.postgres.answer;
    let writes = matches!(observed.postgres.process, Process::Running { mode: Mode::Primary });
    let is_primary = writes && answer.is_some_and(|answer| !answer.in_recovery);
    metrics.up.set(answer.is_some().into());
    metrics.primary.set(is_primary.into());
    metrics
        .pending_restart
        .set(answer.is_some_and(|answer| answer.pending_restart).into());
    metrics
        .epoch
        .set(observed.lease.record.is().map_or(0, |record| signed(record.epoch.0)));
    let age = observed
        .lease
        .confirmed
        .map_or(Millis::ZERO, |confirmed| now.since(confirmed.sent));
    metrics.lease_age.set(signed(age.0));
    if let Some(position) = answer.and_then(|answer| answer.position) {
        metrics.timeline.set(position.timeline.0.into());
        metrics.wal_position.set(signed(position.lsn.0));
    }
    let archive = observed.lease.record.is().and_then(|record| record.archive.as_ref());
    measure_archive(metrics, archive.filter(|_| is_primary));
    let Some(status) = &world.status else { return };
    let streams = status
        .senders
        .iter()
        .filter(|sender| sender.state == "streaming")
        .count();
    metrics
        .streaming_standbys
        .set(i64::try_from(streams).unwrap_or(i64::MAX));
    metrics.sessions.set(status.sessions.into());
    let lag = status
        .replayed
        .map_or(Bytes::ZERO, |replayed| status.position.lsn.since(replayed));
    metrics.replay_lag.set(signed(lag.0));
}

/// What the Lease says of the archive; all 0 on others than the primary.
fn measure_archive(metrics: &Metrics, archive: Option<&ArchiveRecord>) {
    let fails = archive.is_some_and(|record| record.fault.is_some());
    let waiting = archive.map_or(0, |record| record.progress.waiting.0);
    let up_to = archive.and_then(|record| record.progress.up_to);
    let catalogue = archive.and_then(|record| record.catalogue.as_ref());
    metrics.archive_fails.set(fails.into());
    metrics.archive_waiting.set(signed(waiting));
    metrics
        .archived_position
        .set(signed(up_to.map_or(0, |up_to| up_to.lsn.0)));
    metrics
        .backups
        .set(catalogue.map_or(0, |catalogue| catalogue.backups).into());
    // While another one is taken, the last one is not in the Lease: it stays as it was.
    match archive.map(|record| record.backup.as_ref().and_then(|task| task.backup.as_ref())) {
        Some(Some(last)) => drop(metrics.last_backup.set(last.stop_time.timestamp())),
        None => drop(metrics.last_backup.set(0)),
        Some(None) => {}
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
