//! The backup machine, run by the operator: how far one `DatabaseBackup` is. It does nothing to the cluster. The cluster machine hands
//! its UID to the agents (`status.intent.backup`); the primary's agent has the backup taken and tells of it in the Lease, and the cluster
//! machine copies that into its status (`status.backup.task`), where this machine reads it.

use api::backup::{
    BackupKind, BackupSource, BackupState, BackupTask, DatabaseBackupSpec, DatabaseBackupStatus, StoredBackup, refusal,
};
use api::operation::OperationPhase;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::cluster::Known;
use crate::operation::{Action, Candidate, Decision, WAIT_LIMIT, decision, described, due, first};
use crate::reconcile::{Controller, OnBackoff, RuleKind, StatusWrite};
use crate::units::Bytes;

/// Where and what a backup is.
pub type Wanted<'a> = crate::operation::Wanted<'a, DatabaseBackupSpec>;

/// What is observed around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The cluster, if there is one.
    pub cluster: Known<Option<Cluster>>,
    /// The name of the backup of the same cluster that comes before this one, if it is not this one's turn.
    pub before: Known<Option<String>>,
}

/// A ClusteredDatabase, as far as its backups read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// It is being deleted, and this is not its last backup.
    pub deleting: bool,
    /// Why it takes no backup now, if that is the user's doing.
    pub idle: Option<String>,
    /// `spec.backup` is there.
    pub has_store: bool,
    /// Its WAL is, or may be, on volumes of its own.
    #[serde(default)]
    pub has_wal_volume: bool,
    /// How many VolumeSnapshots of it there are.
    #[serde(default)]
    pub snapshots: usize,
    /// The backup that is taken, or was taken last.
    pub task: Option<BackupTask>,
}

/// The status of a database has the names of all its VolumeSnapshots.
const MOST_SNAPSHOTS: usize = 200;

/// One rule.
pub type Rule = crate::reconcile::Rule<fn(&Facts<'_>) -> Option<Action>>;

const fn rule(name: &'static str, what: &'static str, decide: fn(&Facts<'_>) -> Option<Action>) -> Rule {
    Rule {
        name,
        family: "backup",
        what,
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide,
    }
}

/// All rules, the most important first. The last one always proposes something.
pub const RULES: [Rule; 8] = [
    rule("ended", "A backup that has ended stays as it is.", |facts| {
        facts
            .phase()
            .is_some_and(OperationPhase::is_final)
            .then_some(Action::Wait(None))
    }),
    rule("invalid", "A backup that breaks a rule fails.", |facts| {
        let why = refusal(facts.wanted.spec)?;
        Some(Action::Enter(OperationPhase::Failed, why.to_owned()))
    }),
    rule(
        "outcome",
        "What a primary tells as the end of a backup ends it.",
        outcome,
    ),
    rule(
        "accept",
        "A new backup is noted as pending before anything is done for it.",
        |facts| match facts.phase() {
            None => Some(Action::Enter(OperationPhase::Pending, "accepted".to_owned())),
            Some(_) => None,
        },
    ),
    rule(
        "cluster",
        "Without its cluster a backup waits 5 min, and fails then; without a store it fails at once.",
        cluster,
    ),
    rule(
        "no-snapshot",
        "A snapshot has one volume: of a database with WAL volumes none is made, nor one of a database that has 200.",
        no_snapshot,
    ),
    rule(
        "turn",
        "The backups of one cluster are taken one after the other, the oldest first.",
        |facts| match &facts.observed.before {
            Known::Unknown => Some(wait("the backups of the cluster to be read".to_owned())),
            Known::Known(Some(before)) => Some(wait(format!(
                "backup {before} to end; to take that one back: kubectl delete dbb {before}"
            ))),
            Known::Known(None) => None,
        },
    ),
    rule("run", "A backup runs when the primary tells of it.", run),
];

/// What rules look at.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    wanted: &'a Wanted<'a>,
    observed: &'a Observed,
    stored: &'a DatabaseBackupStatus,
    now: DateTime<Utc>,
}

impl Facts<'_> {
    fn phase(&self) -> Option<OperationPhase> {
        self.stored.operation.phase
    }

    /// What the primary tells of this backup.
    fn task(&self) -> Option<&BackupTask> {
        let cluster = self.observed.cluster.get()?.as_ref()?;
        cluster.task.as_ref().filter(|task| task.uid == self.wanted.uid)
    }

    fn cluster_name(&self) -> &str {
        &self.wanted.spec.cluster_ref.name
    }
}

fn wait(what: String) -> Action {
    Action::Wait(Some(what))
}

fn outcome(facts: &Facts<'_>) -> Option<Action> {
    let task = facts.task()?;
    let message = task.message.clone();
    match (task.state, &task.backup) {
        (BackupState::Completed, Some(backup)) => {
            let is_other = facts.wanted.spec.kind == BackupKind::Snapshot && backup.snapshot.is_none();
            let other = is_other.then(|| "a full copy: the primary's agent is of an earlier version".to_owned());
            Some(Action::Enter(
                OperationPhase::Completed,
                completed(backup, other.or(message)),
            ))
        }
        (BackupState::Failed, _) | (BackupState::Completed, None) => Some(Action::Enter(
            OperationPhase::Failed,
            message.unwrap_or_else(|| "the agent has not said why".to_owned()),
        )),
        (BackupState::Copying | BackupState::WaitingForWal, _) => None,
    }
}

/// `message` tells of earlier attempts.
fn completed(backup: &StoredBackup, message: Option<String>) -> String {
    let what = match &backup.snapshot {
        Some(snapshot) => format!("VolumeSnapshot {snapshot}"),
        None => "a copy".to_owned(),
    };
    let of = backup.source.as_ref().map(|source| format!(", {what} of {source}"));
    let from = backup.stop_time.format("%FT%TZ");
    let damage = if backup.damaged_pages {
        ", with damaged pages"
    } else {
        ""
    };
    let message = message.map(|words| format!(" ({words})"));
    format!(
        "recoverable to any time from {from}{}{damage}{}",
        of.unwrap_or_default(),
        message.unwrap_or_default()
    )
}

fn cluster(facts: &Facts<'_>) -> Option<Action> {
    let name = facts.cluster_name();
    let (why, may_come) = match &facts.observed.cluster {
        Known::Unknown => return Some(wait("the cluster to be read".to_owned())),
        Known::Known(None) => (format!("there is no ClusteredDatabase {name}"), true),
        Known::Known(Some(cluster)) if cluster.deleting => {
            (format!("ClusteredDatabase {name} is being deleted"), false)
        }
        Known::Known(Some(cluster)) if !cluster.has_store => (
            format!("ClusteredDatabase {name} has no store: set its spec.backup.store, and make another backup"),
            false,
        ),
        Known::Known(Some(_)) => return None,
    };
    let begun = facts.phase() == Some(OperationPhase::Running);
    if !may_come || begun || facts.now >= facts.wanted.created + WAIT_LIMIT {
        return Some(Action::Enter(OperationPhase::Failed, why));
    }
    Some(wait(format!("ClusteredDatabase {name} to be made: {why}")))
}

fn no_snapshot(facts: &Facts<'_>) -> Option<Action> {
    let cluster = facts.observed.cluster.get()?.as_ref()?;
    let (name, begun) = (facts.cluster_name(), facts.phase() == Some(OperationPhase::Running));
    if facts.wanted.spec.kind != BackupKind::Snapshot || begun {
        return None;
    }
    let why = match cluster {
        Cluster {
            has_wal_volume: true, ..
        } => format!(
            "the WAL of {name} is on a volume of its own, and a snapshot has one volume: make a backup of kind Full"
        ),
        Cluster { snapshots, .. } if *snapshots >= MOST_SNAPSHOTS => {
            format!("{name} has {snapshots} VolumeSnapshots: set its spec.backup.retention, so that old ones go")
        }
        Cluster { .. } => return None,
    };
    Some(Action::Enter(OperationPhase::Failed, why))
}

fn run(facts: &Facts<'_>) -> Option<Action> {
    let (name, running) = (facts.cluster_name(), facts.phase() == Some(OperationPhase::Running));
    let Some(task) = facts.task() else {
        let cluster = facts.observed.cluster.get().and_then(Option::as_ref);
        let idle = cluster.and_then(|cluster| cluster.idle.as_ref());
        let idle = idle.map_or(String::new(), |why| format!(": {why}"));
        return Some(wait(format!("the primary of {name} to begin{idle}")));
    };
    if !running {
        let of = task.source.as_ref().map(|source| format!(" to copy {source}"));
        return Some(Action::Enter(
            OperationPhase::Running,
            format!("the agents of {name} have begun{}", of.unwrap_or_default()),
        ));
    }
    let what = match (task.state, &task.snapshot) {
        (BackupState::Copying, Some(name)) => format!("VolumeSnapshot {name} to be ready"),
        (BackupState::WaitingForWal, _) => "the WAL that belongs to the copy to be in the store".to_owned(),
        (BackupState::Copying | BackupState::Completed | BackupState::Failed, _) => {
            let of = task.source.as_ref().map(|source| format!(" of {source}"));
            format!("the files{} to be copied", of.unwrap_or_default())
        }
    };
    let because = task.message.as_ref().map(|message| format!(" ({message})"));
    Some(wait(what + &because.unwrap_or_default()))
}

/// Whether the cluster is to be asked for this backup: not before it is noted as pending, and not after it has ended.
pub fn is_open(spec: &DatabaseBackupSpec, status: &DatabaseBackupStatus) -> bool {
    let phase = status.operation.phase;
    phase.is_some_and(|phase| !phase.is_final()) && refusal(spec).is_none()
}

/// What a backup asks its cluster for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// UID of the DatabaseBackup.
    pub uid: String,
    /// Whose files it has.
    pub source: BackupSource,
    /// What it is.
    pub kind: BackupKind,
}

/// Of the open backups of a cluster the one that is to be taken: the one that was asked for already (by UID), or else the oldest.
pub fn next(open: impl Iterator<Item = Candidate<Request>>, asked: Option<&str>) -> Option<Candidate<Request>> {
    first(open, |request| asked == Some(&request.uid))
}

/// How much of a backup is copied, in words.
fn progress(task: &BackupTask) -> Option<String> {
    let (copied, total) = (task.copied_bytes?, task.total_bytes?);
    // The total is an estimate.
    let percent = copied.saturating_mul(100).checked_div(total).unwrap_or(0).min(99);
    Some(format!("{percent}% of {}", Bytes(total).rounded()))
}

/// The machine of `DatabaseBackup`.
#[derive(Clone, Copy, Debug)]
pub struct Backup;

impl Controller for Backup {
    type Wanted<'a> = Wanted<'a>;
    type Observed = Observed;
    type Status = DatabaseBackupStatus;
    type Action = Action;
    type Prepared = ();
    type Decision = Decision;

    fn decide(wanted: &Wanted<'_>, observed: &Observed, stored: &DatabaseBackupStatus, now: DateTime<Utc>) -> Decision {
        let facts = Facts {
            wanted,
            observed,
            stored,
            now,
        };
        let proposed = RULES.iter().find_map(|rule| Some((rule.name, (rule.decide)(&facts)?)));
        decision(proposed, wanted.created, now)
    }

    fn status(
        wanted: &Wanted<'_>,
        observed: &Observed,
        stored: &DatabaseBackupStatus,
        decision: &Decision,
        (): &(),
        now: DateTime<Utc>,
    ) -> DatabaseBackupStatus {
        let mut next = stored.clone();
        next.operation = described(&stored.operation, decision, wanted.generation, now);
        let facts = Facts {
            wanted,
            observed,
            stored,
            now,
        };
        if let Some(task) = facts.task().filter(|_| decision.action != Action::Wait(None)) {
            next.backup.clone_from(&task.backup);
            next.progress = progress(task);
        }
        if next.operation.phase.is_some_and(OperationPhase::is_final) {
            next.progress = next
                .backup
                .as_ref()
                .map(|backup| format!("100% of {}", Bytes(backup.data_bytes).rounded()));
        }
        next
    }

    fn due(stored: &DatabaseBackupStatus, next: &DatabaseBackupStatus, decision: &Decision) -> StatusWrite {
        due(stored == next, decision)
    }

    fn confirms(_observed: &Observed, _action: &Action) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
