use api::backup::{BackupOrigin, BackupRole, StoredBackup};
use api::operation::{ClusterReference, OperationStatus};
use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;

fn now() -> DateTime<Utc> {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

fn spec() -> DatabaseBackupSpec {
    DatabaseBackupSpec {
        cluster_ref: ClusterReference {
            name: "demo".to_owned(),
        },
        kind: BackupKind::default(),
        source: BackupSource::default(),
    }
}

fn standby() -> BackupOrigin {
    BackupOrigin {
        member: "demo-2".to_owned(),
        role: BackupRole::Standby,
    }
}

fn stored_backup() -> StoredBackup {
    StoredBackup {
        name: "20261231T235900Z-F-7f3a".to_owned(),
        timeline: 2,
        start_lsn: "0/3000028".to_owned(),
        stop_lsn: "0/3000130".to_owned(),
        start_time: now() - TimeDelta::seconds(60),
        stop_time: now() - TimeDelta::seconds(30),
        data_bytes: 3 << 30,
        stored_bytes: 1 << 30,
        source: Some(standby()),
        damaged_pages: false,
        snapshot: None,
    }
}

fn task(uid: &str, state: BackupState) -> BackupTask {
    BackupTask {
        uid: uid.to_owned(),
        attempt: 1,
        source: Some(standby()),
        state,
        copied_bytes: Some(1 << 30),
        total_bytes: Some(4 << 30),
        message: (state == BackupState::Failed).then(|| "the store denies access".to_owned()),
        snapshot: None,
        damaged_pages: false,
        backup: (state == BackupState::Completed).then(stored_backup),
    }
}

fn cluster(task: Option<BackupTask>) -> Option<Cluster> {
    Some(Cluster {
        has_store: true,
        task,
        ..Cluster::default()
    })
}

fn stored(phase: Option<OperationPhase>) -> DatabaseBackupStatus {
    DatabaseBackupStatus {
        operation: OperationStatus {
            phase,
            ..OperationStatus::default()
        },
        ..DatabaseBackupStatus::default()
    }
}

/// What is decided, and the status after that.
fn decided(
    cluster: Option<Cluster>,
    before: Option<&str>,
    status: &DatabaseBackupStatus,
    age: TimeDelta,
) -> (Decision, DatabaseBackupStatus) {
    let observed = Observed {
        cluster: Known::Known(cluster),
        before: Known::Known(before.map(str::to_owned)),
    };
    let spec = spec();
    let wanted = Wanted {
        uid: "u1",
        generation: 1,
        created: now() - age,
        spec: &spec,
    };
    let decision = Backup::decide(&wanted, &observed, status, now());
    let next = Backup::status(&wanted, &observed, status, &decision, &(), now());
    (decision, next)
}

fn after(cluster: Option<Cluster>, phase: OperationPhase) -> DatabaseBackupStatus {
    decided(cluster, None, &stored(Some(phase)), TimeDelta::zero()).1
}

#[test]
fn a_backup_goes_through_its_phases() {
    use BackupState::{Completed, Copying, WaitingForWal};
    let (decision, accepted) = decided(cluster(None), None, &stored(None), TimeDelta::zero());
    assert_eq!(
        (decision.rule, accepted.operation.phase),
        ("accept", Some(OperationPhase::Pending))
    );
    let waits = after(cluster(None), OperationPhase::Pending);
    assert_eq!(
        waits.operation.message.as_deref(),
        Some("waiting for the primary of demo to begin")
    );
    let begun = after(cluster(Some(task("u1", Copying))), OperationPhase::Pending);
    assert_eq!(begun.operation.phase, Some(OperationPhase::Running));
    assert_eq!(begun.operation.start_time, Some(now()));
    assert_eq!(
        begun.operation.message.as_deref(),
        Some("the agents of demo have begun to copy demo-2 (standby)")
    );
    let again = BackupTask {
        message: Some("attempt 2: demo-1: it is gone".to_owned()),
        ..task("u1", Copying)
    };
    let copies = after(cluster(Some(again)), OperationPhase::Running);
    assert_eq!(copies.progress.as_deref(), Some("25% of 4 GiB"));
    assert_eq!(
        copies.operation.message.as_deref(),
        Some("waiting for the files of demo-2 (standby) to be copied (attempt 2: demo-1: it is gone)")
    );
    let waits = after(cluster(Some(task("u1", WaitingForWal))), OperationPhase::Running);
    assert!(waits.operation.message.unwrap().contains("WAL"));
    let done = after(cluster(Some(task("u1", Completed))), OperationPhase::Running);
    assert_eq!(done.operation.phase, Some(OperationPhase::Completed));
    assert_eq!(done.backup, Some(stored_backup()));
    assert_eq!(
        done.operation.message.as_deref(),
        Some("recoverable to any time from 2026-12-31T23:59:30Z, a copy of demo-2 (standby)")
    );
    let mut damaged = task("u1", Completed);
    damaged.message = Some("attempt 2: demo-2: base/5/1".to_owned());
    damaged.backup.as_mut().unwrap().damaged_pages = true;
    let done = after(cluster(Some(damaged)), OperationPhase::Running);
    let told = done.operation.message.unwrap();
    assert!(
        told.ends_with("(standby), with damaged pages (attempt 2: demo-2: base/5/1)"),
        "{told}"
    );
}

#[test]
fn what_fails_says_why() {
    let failed = after(cluster(Some(task("u1", BackupState::Failed))), OperationPhase::Running);
    assert_eq!(failed.operation.phase, Some(OperationPhase::Failed));
    assert_eq!(failed.operation.message.as_deref(), Some("the store denies access"));
    let without_store = Some(Cluster::default());
    let failed = after(without_store, OperationPhase::Pending);
    assert_eq!(failed.operation.phase, Some(OperationPhase::Failed));
    assert!(failed.operation.message.unwrap().contains("spec.backup.store"));
}

#[test]
fn a_cluster_that_is_not_there_is_waited_for() {
    let pending = stored(Some(OperationPhase::Pending));
    let (decision, _) = decided(None, None, &pending, TimeDelta::minutes(4));
    assert!(matches!(decision.action, Action::Wait(Some(_))));
    assert_eq!(decision.wake, now() + TimeDelta::minutes(1));
    let (_, late) = decided(None, None, &pending, TimeDelta::minutes(5));
    assert_eq!(late.operation.phase, Some(OperationPhase::Failed));
}

#[test]
fn another_backup_comes_first_and_is_no_outcome() {
    let pending = stored(Some(OperationPhase::Pending));
    let other = cluster(Some(task("u0", BackupState::Completed)));
    let (decision, status) = decided(other, Some("first"), &pending, TimeDelta::zero());
    assert_eq!(decision.rule, "turn");
    assert!(status.operation.message.unwrap().contains("kubectl delete dbb first"));
    assert_eq!(status.backup, None);
}

#[test]
fn one_that_was_asked_for_goes_before_older_ones() {
    let candidate = |name: &str, minutes| Candidate {
        name: name.to_owned(),
        created: now() + TimeDelta::minutes(minutes),
        request: Request {
            uid: name.to_owned(),
            kind: BackupKind::default(),
            source: BackupSource::default(),
        },
    };
    let open = || [candidate("a", 2), candidate("b", 1)].into_iter();
    assert_eq!(next(open(), None).unwrap().name, "b");
    assert_eq!(next(open(), Some("a")).unwrap().name, "a");
}

fn any_cluster() -> impl Strategy<Value = Option<Cluster>> {
    let states = [
        BackupState::Copying,
        BackupState::WaitingForWal,
        BackupState::Completed,
        BackupState::Failed,
    ];
    let told = (
        prop::sample::select(vec!["u0", "u1"]),
        prop::sample::select(states.to_vec()),
    );
    let task = prop::option::of(told.prop_map(|(uid, state)| task(uid, state)));
    let cluster = (any::<bool>(), any::<bool>(), task).prop_map(|(deleting, has_store, task)| Cluster {
        deleting,
        has_store,
        has_wal_volume: false,
        snapshots: 0,
        task,
        idle: None,
    });
    prop::option::of(cluster)
}

proptest! {
    /// An end stays, and says whether there is a backup; what is computed again is the same.
    #[test]
    fn an_end_is_an_end(clusters in prop::collection::vec(any_cluster(), 1..12)) {
        let mut status = stored(None);
        for cluster in clusters {
            let (decision, next) = decided(cluster.clone(), None, &status, TimeDelta::minutes(6));
            if status.operation.phase.is_some_and(OperationPhase::is_final) {
                prop_assert_eq!(&next, &status);
            }
            let completed = next.operation.phase == Some(OperationPhase::Completed);
            prop_assert_eq!(completed, next.backup.is_some() && next.operation.phase.is_some_and(OperationPhase::is_final));
            if matches!(decision.action, Action::Wait(_)) {
                prop_assert_eq!(&decided(cluster, None, &next, TimeDelta::minutes(6)).1, &next);
            }
            status = next;
        }
    }
}

#[test]
fn a_snapshot_that_cannot_be_made_fails_before_it_begins() {
    let decided = |kind, change: fn(&mut Cluster), phase| {
        let mut of = cluster(None).expect("a cluster");
        change(&mut of);
        let spec = DatabaseBackupSpec { kind, ..spec() };
        let wanted = Wanted {
            uid: "u1",
            generation: 1,
            created: now(),
            spec: &spec,
        };
        let observed = Observed {
            cluster: Known::Known(Some(of)),
            before: Known::Known(None),
        };
        let mut stored = DatabaseBackupStatus::default();
        stored.operation.phase = Some(phase);
        match Backup::decide(&wanted, &observed, &stored, now()).action {
            Action::Enter(OperationPhase::Failed, why) => Some(why),
            Action::Enter(..) | Action::Wait(_) => None,
        }
    };
    let wal: fn(&mut Cluster) = |of| of.has_wal_volume = true;
    let many: fn(&mut Cluster) = |of| of.snapshots = 200;
    let few: fn(&mut Cluster) = |of| of.snapshots = 199;
    let of_snapshot = |change, phase| decided(BackupKind::Snapshot, change, phase);
    let refused = of_snapshot(wal, OperationPhase::Pending).expect("refused");
    assert!(refused.contains("make a backup of kind Full"), "{refused}");
    let refused = of_snapshot(many, OperationPhase::Pending).expect("refused");
    assert!(refused.contains("spec.backup.retention"), "{refused}");
    assert_eq!(of_snapshot(few, OperationPhase::Pending), None);
    assert_eq!(of_snapshot(wal, OperationPhase::Running), None, "it has begun");
    assert_eq!(decided(BackupKind::Full, wal, OperationPhase::Pending), None);
}
