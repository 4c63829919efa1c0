//! `status`: the state of the database and of each of its instances.

use api::Phase;
use api::backup::StoredBackup;
use api::status::{
    ArchiveStatus, BackupCatalogue, BackupRemoval, DrillResult, DurabilityStatus, FailureStatus, NotedRequest,
    Transition, WaitingStatus,
};
use machine::cluster::{Facts, Pod, fence_of};
use machine::protocol::{LeaseRecord, MemberState, Position};
use machine::units::Bytes;
use serde::Serialize;

use crate::look::Look;
use crate::text::{Page, Style, Tone, instant, span};
use crate::verdict::{Actor, Headline, headline, is_stale};
use crate::words;

/// How many of the last changes of phase are shown.
const TRANSITIONS: usize = 5;

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusPage {
    /// The database's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// How it is, and who must act.
    pub headline: Headline,
    /// `status.phase`.
    pub phase: Option<Phase>,
    /// Seconds since this phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_seconds: Option<i64>,
    /// `status.step`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// `spec.paused`.
    pub paused: bool,
    /// `spec.hibernated`.
    pub hibernated: bool,
    /// The last request of an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<NotedRequest>,
    /// `status.waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingStatus>,
    /// `status.failure`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// `status.durability`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityStatus>,
    /// `status.backup.lastBackup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<StoredBackup>,
    /// `status.backup.catalogue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<BackupCatalogue>,
    /// `status.backup.drill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drill: Option<DrillResult>,
    /// `status.backup.archive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveStatus>,
    /// The status describes the spec's present generation.
    pub up_to_date: bool,
    /// Ready and wanted instances.
    pub ready: String,
    /// PostgreSQL's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The primary's timeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// The epoch of the Lease, a counter that never falls; each take of the lease raises it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The instances, in order of ordinal.
    pub instances: Vec<Instance>,
    /// The last changes of phase, newest last.
    pub transitions: Vec<Transition>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// One instance.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Its pod's name.
    pub name: String,
    /// `primary` or `standby`; absent while unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// It serves in its role; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Its agent's last reported state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<MemberState>,
    /// Timeline of its last WAL, by the Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// End of its WAL, by the Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wal: Option<String>,
    /// How much WAL it is behind the primary, by the Lease; absent on another timeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_bytes: Option<Bytes>,
    /// Its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// The page of one snapshot.
pub fn page(look: &Look) -> StatusPage {
    let status = look.status();
    let skip = status.history.len().saturating_sub(TRANSITIONS);
    StatusPage {
        name: look.db.metadata.name.clone().unwrap_or_default(),
        namespace: look.namespace().to_owned(),
        headline: headline(&look.db, look.now),
        phase: status.phase,
        phase_seconds: status
            .memo
            .phase_since
            .map(|since| (look.now - since).num_seconds().max(0)),
        step: status.step.clone(),
        paused: look.db.spec.paused,
        hibernated: look.db.spec.hibernated,
        request: status.memo.request.clone(),
        waiting: status.waiting.clone(),
        failure: status.failure.clone(),
        durability: status.durability.clone(),
        last_backup: status.backup.as_ref().and_then(|backup| backup.last_backup.clone()),
        catalogue: status.backup.as_ref().and_then(|backup| backup.catalogue.clone()),
        drill: status.backup.as_ref().and_then(|backup| backup.drill.clone()),
        archive: status.backup.clone().map(|backup| backup.archive),
        up_to_date: !is_stale(&look.db),
        ready: status.ready.clone(),
        version: status.version.clone(),
        timeline: status.timeline,
        epoch: status.epoch,
        instances: look.with_facts(instances),
        transitions: status.history.iter().skip(skip).cloned().collect(),
        unknown: look
            .unknown()
            .into_iter()
            .filter(|what| !what.starts_with("Secret "))
            .collect(),
    }
}

fn instances(facts: &Facts<'_>) -> Vec<Instance> {
    let holder = facts.holder().map(|holder| holder.incarnation.pod.clone());
    let primary = holder.as_ref().and_then(|holder| facts.lease?.positions.get(holder));
    let mut instances: Vec<_> = facts.pods().iter().map(|pod| instance(facts, pod, primary)).collect();
    // Members whose pods are gone or could not be read.
    for name in facts.status.members.keys() {
        if facts.pods().iter().all(|pod| pod.name != *name) {
            let gone = facts.observed.pods.get().is_some();
            instances.push(Instance {
                role: None,
                ready: gone.then_some(false),
                state: None,
                node: None,
                fault: gone.then(|| "has no pod".to_owned()),
                ..placed(name, facts.lease, primary)
            });
        }
    }
    instances.sort_by_key(|instance| facts.ordinal(&instance.name));
    instances
}

fn instance(facts: &Facts<'_>, pod: &Pod, primary: Option<&Position>) -> Instance {
    let report = facts.report(pod);
    let role = facts.holder().map(|holder| {
        let holds = holder.incarnation.pod_uid == pod.uid;
        if holds { "primary" } else { "standby" }
    });
    let image = pod
        .image_error
        .as_ref()
        .map(|error| format!("{} {}: {}", error.reason, error.image, error.message));
    let pending = report.is_some_and(|report| report.pending_restart);
    let fault = pod
        .terminating
        .then(|| "its pod is being deleted".to_owned())
        .or_else(|| fence_of(facts, &pod.name).map(str::to_owned))
        .or(image)
        .or_else(|| pod.unschedulable.clone())
        .or_else(|| pod.bootstrap_error.clone())
        .or_else(|| report.and_then(|report| report.fault.clone().or_else(|| report.settings_error.clone())))
        .or_else(|| pending.then(|| "settings need a restart".to_owned()));
    Instance {
        role,
        ready: facts.lease.map(|_| facts.serves(pod)),
        state: report.map(|report| report.state),
        node: pod.node.clone(),
        fault,
        ..placed(&pod.name, facts.lease, primary)
    }
}

/// The end of a member's WAL, by the Lease.
fn placed(name: &str, lease: Option<&LeaseRecord>, primary: Option<&Position>) -> Instance {
    let position = lease.and_then(|lease| lease.positions.get(name));
    let lag = match (position, primary) {
        (Some(own), Some(primary)) if own.timeline == primary.timeline => Some(primary.lsn.since(own.lsn)),
        _ => None,
    };
    Instance {
        name: name.to_owned(),
        role: None,
        ready: None,
        state: None,
        timeline: position.map(|position| position.timeline.0),
        wal: position.map(|position| position.lsn.to_string()),
        lag_bytes: lag,
        node: None,
        fault: None,
    }
}

/// The page as text.
pub fn text(page: &StatusPage, style: Style) -> String {
    let mut out = Page::default();
    let name = format!("{} ({})", page.name, page.namespace);
    let verdict = page.headline.line(page.durability.as_ref(), style);
    out.wrapped(format!("{}  {verdict}", style.paint(Tone::Strong, &name)));
    if let Some(action) = &page.headline.action {
        let needs_you = page.headline.actor == Some(Actor::You);
        let name = if needs_you { "  do" } else { "  see" };
        out.field(name, style.paint(Tone::Strong, action));
    }
    let since = page
        .phase_seconds
        .map(|seconds| format!(" for {}", span(chrono::TimeDelta::seconds(seconds))));
    let step = page.step.as_ref().map(|step| format!(" (step {step})"));
    let phase = style.phase(page.phase);
    out.field(
        "Phase",
        format!("{phase}{}{}", since.unwrap_or_default(), step.unwrap_or_default()),
    );
    if page.paused {
        out.field("Paused", "yes: the operator changes nothing until `kubectl cdb resume`");
    }
    if page.hibernated {
        out.field("Hibernated", "yes: the database is stopped until `kubectl cdb wake`");
    }
    if let Some(request) = &page.request {
        let outcome = request
            .outcome
            .map_or("open".to_owned(), |outcome| format!("{outcome:?}"));
        let message = request.message.as_ref().map(|message| format!(": {message}"));
        out.field(
            "Operation",
            format!(
                "{}, asked for at {}: {outcome}{}",
                request.request.action,
                instant(request.since),
                message.unwrap_or_default()
            ),
        );
    }
    if let Some(waiting) = &page.waiting {
        out.field("Waits for", &waiting.what);
        out.field("  who acts", words::actor(waiting.actor, &waiting.who_can_end_it));
        if let Some(reason) = waiting.reason {
            out.field("  reason", words::reason(reason, waiting.object.as_deref()));
        }
        let until = waiting
            .deadline
            .map(|deadline| format!(", to {} at most", instant(deadline)));
        out.field(
            "  since",
            format!("{}{}", instant(waiting.since), until.unwrap_or_default()),
        );
    }
    if let Some(durability) = &page.durability {
        out.field("Durability", format!("{:?}", durability.mode));
        out.field("  loss", &durability.loss_bound);
        out.field("  recovery", &durability.recovery_bound);
    }
    if let Some(backup) = &page.last_backup {
        let stored = Bytes(backup.stored_bytes).rounded();
        out.field(
            "Backup",
            format!("{} of {}, {stored}", backup.name, instant(backup.stop_time)),
        );
    }
    if let Some(drill) = &page.drill {
        out.field("Last drill", drilled(drill));
    }
    if let Some(catalogue) = &page.catalogue {
        out.field("Backups", counted(catalogue));
        if let Some(removal) = &catalogue.removal {
            out.field("  removal", removed(removal));
        }
        if let Some(fault) = &catalogue.fault {
            out.field("  fault", fault);
        }
    }
    if let Some(archive) = &page.archive {
        out.field("Archive", archived(archive));
        if let Some(fault) = &archive.fault {
            out.field("  fault", fault);
        }
        if let Some(full) = archive.full_time {
            let full = full.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
            out.field(
                "  room",
                format!("WAL that waits will have used it up at {full}, if it goes on growing"),
            );
        }
    }
    let version = page.version.as_ref().map(|version| format!("PostgreSQL {version}"));
    let timeline = page.timeline.map(|timeline| format!("timeline {timeline}"));
    let epoch = page.epoch.map(|epoch| format!("epoch {epoch}"));
    let server: Vec<_> = [version, timeline, epoch].into_iter().flatten().collect();
    if !server.is_empty() {
        out.field("Server", server.join(", "));
    }
    if !page.ready.is_empty() {
        out.field("Ready", format!("{} instances", page.ready));
    }
    out.line("");
    let heads = [
        "INSTANCE", "ROLE", "READY", "STATE", "TIMELINE", "WAL", "LAG", "NODE", "FAULT",
    ];
    let rows: Vec<_> = page.instances.iter().map(|instance| row(instance, style)).collect();
    if !rows.is_empty() {
        out.table(&heads, &rows);
        out.line("");
    }
    if !page.transitions.is_empty() {
        out.line(style.paint(Tone::Strong, "Last changes of phase"));
        let rows: Vec<_> = page
            .transitions
            .iter()
            .map(|change| transition(change, style))
            .collect();
        out.table(&[], &rows);
    }
    if !page.unknown.is_empty() {
        out.line("");
        out.line(format!("Not read: {}", page.unknown.join(", ")));
    }
    out.finish()
}

/// How many backups there are, and how far back they lead.
fn counted(catalogue: &BackupCatalogue) -> String {
    let backups = match catalogue.backups {
        1 => "1 backup".to_owned(),
        number => format!("{number} backups"),
    };
    let from = catalogue
        .first_recoverable_time
        .map(|time| format!(", recoverable from {}", instant(time)));
    let stored = Bytes(catalogue.stored_bytes).rounded();
    format!("{backups}, {stored}{}", from.unwrap_or_default())
}

/// How the last drill ended.
fn drilled(drill: &DrillResult) -> String {
    let seconds = (drill.end_time - drill.start_time).num_seconds();
    let of = instant(drill.start_time);
    match &drill.message {
        None => format!("{of}: recovered in {seconds} s"),
        Some(why) => format!("{of}: failed after {seconds} s: {why}"),
    }
}

/// What the retention does not keep.
fn removed(removal: &BackupRemoval) -> String {
    format!(
        "the retention does not keep {} of them ({}) and {} segments of WAL, all before {}",
        removal.backups,
        Bytes(removal.stored_bytes).rounded(),
        removal.wal_segments,
        removal.oldest_kept
    )
}

/// How far WAL is archived, and how much waits.
fn archived(archive: &ArchiveStatus) -> String {
    let up_to = match &archive.archived_up_to {
        Some(up_to) => format!("up to {} on timeline {}", up_to.lsn, up_to.timeline),
        None => "nothing is archived yet".to_owned(),
    };
    let line = (!archive.line.is_first()).then(|| format!(", in line {}", archive.line.0));
    let waiting = (archive.waiting_bytes > 0).then(|| format!(", {} wait", Bytes(archive.waiting_bytes).rounded()));
    let gap = archive
        .given_up_segments
        .map(|segments| format!(", with a gap of {segments} segments"));
    [Some(up_to), line, waiting, gap].into_iter().flatten().collect()
}

fn row(instance: &Instance, style: Style) -> Vec<String> {
    let or = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let ready = match instance.ready {
        Some(true) => style.paint(Tone::Good, "yes"),
        Some(false) => style.paint(Tone::Bad, "no"),
        None => "?".to_owned(),
    };
    vec![
        instance.name.clone(),
        or(instance.role.map(str::to_owned)),
        ready,
        or(instance.state.map(|state| state_text(state, instance.role))),
        or(instance.timeline.map(|timeline| timeline.to_string())),
        or(instance.wal.clone()),
        or(instance
            .lag_bytes
            .filter(|_| instance.role != Some("primary"))
            .map(Bytes::rounded)),
        or(instance.node.clone()),
        instance.fault.clone().unwrap_or_default(),
    ]
}

/// The agent's last reported state. An instance without the lease is no primary any more, whatever it reported last.
fn state_text(state: MemberState, role: Option<&str>) -> String {
    if state == MemberState::Primary && role != Some("primary") {
        "last primary".to_owned()
    } else {
        format!("{state:?}")
    }
}

fn transition(change: &Transition, style: Style) -> Vec<String> {
    let from = change
        .from
        .map_or_else(|| "(new)".to_owned(), |phase| phase.to_string());
    vec![
        instant(change.at),
        format!("{from} -> {}", style.phase(Some(change.to))),
        change.because.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_and_what_of_them_is_not_kept() {
        let catalogue = BackupCatalogue {
            backups: 3,
            stored_bytes: 3 << 30,
            first_recoverable_time: "2026-12-31T00:00:09Z".parse().ok(),
            ..BackupCatalogue::default()
        };
        assert_eq!(
            counted(&catalogue),
            "3 backups, 3 GiB, recoverable from 2026-12-31 00:00:09Z"
        );
        assert_eq!(counted(&BackupCatalogue::default()), "0 backups, 0 B");
        let removal = BackupRemoval {
            backups: 2,
            stored_bytes: 2 << 30,
            wal_segments: 7,
            oldest_kept: "20261231T000003Z-F-7f3a".to_owned(),
        };
        let told =
            "the retention does not keep 2 of them (2 GiB) and 7 segments of WAL, all before 20261231T000003Z-F-7f3a";
        assert_eq!(removed(&removal), told);
    }
}
