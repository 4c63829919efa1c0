use serde_json::{Value, json};

use super::*;

const NOW: &str = "2027-01-01T01:00:00Z";

/// Conditions as `type=status/reason`, each since 00:30 with the message `<type> message`.
fn conditions(told: &[&str]) -> Value {
    let one = |told: &&str| {
        let (kind, rest) = told.split_once('=').unwrap();
        let (status, reason) = rest.split_once('/').unwrap();
        json!({"type": kind, "status": status, "reason": reason, "message": format!("{kind} message"),
               "lastTransitionTime": "2027-01-01T00:30:00Z", "observedGeneration": 2})
    };
    told.iter().map(one).collect()
}

fn waiting(reason: &str, actor: &str, ended_by: &str) -> Value {
    json!({"reason": reason, "actor": actor, "message": "something", "startTime": "2027-01-01T00:59:00Z", "endedBy": ended_by})
}

/// A database of generation 2 with this status.
fn database(status: Value) -> ClusteredDatabase {
    serde_json::from_value(json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
        "metadata": {"name": "demo", "namespace": "shop", "generation": 2, "creationTimestamp": "2027-01-01T00:50:00Z"},
        "spec": {"replicas": 3, "storage": {"data": {"size": "1Gi"}}},
        "status": status,
    }))
    .unwrap()
}

/// The headline of a status with these conditions and other fields.
fn told(phase: &str, told: &[&str], more: Value) -> Headline {
    of(&database(status(phase, told, more)))
}

fn status(phase: &str, told: &[&str], more: Value) -> Value {
    let mut status = json!({"phase": phase, "observedGeneration": 2, "conditions": conditions(told),
                            "memo": {"phaseSince": "2027-01-01T00:40:00Z"}});
    let fields = status.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    status
}

fn of(db: &ClusteredDatabase) -> Headline {
    headline(db, NOW.parse().unwrap())
}

/// Verdict, minutes that it lasts, problem, actor and action.
fn parts(headline: &Headline) -> (Verdict, Option<i64>, &str, Option<Actor>, Option<&str>) {
    (
        headline.verdict,
        headline.lasts.map(|lasts| lasts.num_minutes()),
        headline.problem.as_deref().unwrap_or_default(),
        headline.actor,
        headline.action.as_deref(),
    )
}

const WELL: [&str; 6] = [
    "Ready=True/AsWanted",
    "Available=True/PrimaryServes",
    "Degraded=False/AllServe",
    "DataSafe=True/Replicated",
    "Reconciling=False/AsWanted",
    "Stalled=False/AsWanted",
];

/// [`WELL`], with these in place of those of the same type.
fn but(other: &[&'static str]) -> Vec<&'static str> {
    let kind = |told: &str| told.split('=').next().unwrap().to_owned();
    let kept = WELL
        .into_iter()
        .filter(|told| other.iter().all(|other| kind(other) != kind(told)));
    kept.chain(other.iter().copied()).collect()
}

const WHY: Option<&str> = Some("kubectl cdb why demo -n shop");
const CHANGE: [&str; 2] = ["Ready=False/PodReadiness", "Reconciling=True/PodReadiness"];

#[test]
fn a_healthy_database_needs_nobody() {
    let change = json!({"waiting": waiting("Change", "User", "the user")});
    let healthy = told("Ready", &WELL, change);
    assert_eq!(
        parts(&healthy),
        (Verdict::Healthy, Some(30), "", Some(Actor::Nobody), None)
    );
    let alone = told("Ready", &but(&["DataSafe=False/SingleInstance"]), json!({}));
    assert_eq!(alone.verdict, Verdict::Healthy, "the spec asks for one");
}

#[test]
fn a_healthy_database_says_what_a_failure_costs() {
    let line = |durability: Value| {
        let durability = serde_json::from_value(durability).unwrap();
        told("Ready", &WELL, json!({})).line(Some(&durability), Style::default())
    };
    let of = |more: Value| {
        let mut durability = json!({"mode": "Required", "lossBound": "", "recoveryBound": ""});
        durability
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        line(durability)
    };
    assert_eq!(
        of(json!({"maxLossBytes": 0, "expectedRecoveryMilliseconds": 4_700})),
        "HEALTHY for 30 min: any one failure loses nothing, and stops writes for about 4.7 s. Nobody needs to act."
    );
    assert!(
        of(json!({"maxLossBytes": 16_777_216, "expectedRecoveryMilliseconds": 12_000}))
            .contains("loses at most 16 MiB of the last commits, and stops writes for about 12 s.")
    );
    assert!(of(json!({})).contains("can lose any number of commits, and stops writes until the pod runs again."));
}

#[test]
fn without_a_primary_it_is_an_outage() {
    let no_primary = but(&[
        "Available=False/NoPrimary",
        "Degraded=True/NoPrimary",
        "Ready=False/PrimaryElection",
        "Reconciling=True/PrimaryElection",
    ]);
    let by = |actor: &str, ended_by: &str| json!({"waiting": waiting("PrimaryElection", actor, ended_by)});
    let agents = told("FailingOver", &no_primary, by("Agents", "their agents"));
    assert_eq!(
        parts(&agents),
        (
            Verdict::Outage,
            Some(30),
            "Available message",
            Some(Actor::Agents),
            None
        )
    );
    let user = told(
        "FailingOver",
        &no_primary,
        by("User", "the user, by raising spec.storage"),
    );
    let problem = "Available message; waits for something";
    let action = Some("end the wait by raising spec.storage");
    assert_eq!(
        parts(&user),
        (Verdict::Outage, Some(30), problem, Some(Actor::You), action)
    );
    let failure = json!({"failure": {"reason": "PartLost", "message": "restore it"}});
    let failed = told("Failed", &no_primary, failure);
    assert_eq!(
        parts(&failed),
        (
            Verdict::Outage,
            Some(30),
            "Available message; PartLost",
            Some(Actor::You),
            Some("restore it")
        )
    );
    let first = told("Creating", &no_primary, by("Agents", "their agents"));
    assert_eq!(first.verdict, Verdict::Creating, "its first primary");
}

#[test]
fn a_failure_says_what_to_change() {
    let failed = but(&["Ready=False/ForeignObject", "Stalled=True/ForeignObject"]);
    let more = json!({
        "failure": {"reason": "ForeignObject", "message": "x is in the way: delete it"},
        "waiting": waiting("ForeignObjectRemoval", "External", "its owner"),
    });
    assert_eq!(
        parts(&told("Failed", &failed, more)),
        (
            Verdict::Failed,
            Some(20),
            "ForeignObject",
            Some(Actor::You),
            Some("x is in the way: delete it")
        )
    );
}

#[test]
fn what_could_not_be_read_is_unknown() {
    let all =
        ["Ready", "Available", "DataSafe", "Reconciling", "Stalled"].map(|kind| format!("{kind}=Unknown/Unknown"));
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let unread: Vec<_> = all.iter().copied().chain(["Degraded=Unknown/Unknown"]).collect();
    let reading = json!({"waiting": waiting("ObjectReading", "Kubernetes", "the API server")});
    assert_eq!(
        parts(&told("Ready", &unread, reading)),
        (
            Verdict::Unknown,
            Some(30),
            "Available message",
            Some(Actor::Kubernetes),
            WHY
        )
    );
    let named: Vec<_> = all.iter().copied().chain(["Degraded=True/UnreadableObject"]).collect();
    let correct = json!({"waiting": waiting("ObjectCorrection", "User", "the user, by correcting that object")});
    let named = told("Ready", &named, correct);
    assert_eq!((named.verdict, named.actor), (Verdict::Unknown, Some(Actor::You)));
    assert!(
        named.problem.unwrap().starts_with("Degraded message"),
        "the object is named there"
    );
}

#[test]
fn a_database_without_a_status_was_not_looked_at() {
    for status in [json!(null), json!({})] {
        assert_eq!(
            parts(&of(&database(status))),
            (Verdict::Unknown, Some(10), NEW, Some(Actor::Operator), WHY)
        );
    }
}

#[test]
fn a_status_of_an_older_spec_says_so() {
    let older = |phase, conditions: &[&str]| {
        let mut status = status(phase, conditions, json!({}));
        status["observedGeneration"] = json!(1);
        of(&database(status))
    };
    assert_eq!(
        parts(&older("Ready", &WELL)),
        (Verdict::Changing, None, STALE, Some(Actor::Operator), WHY)
    );
    let degraded = older(
        "Ready",
        &but(&["Degraded=True/MembersMissing", "Ready=False/PodReadiness"]),
    );
    assert_eq!(degraded.verdict, Verdict::Degraded);
    assert_eq!(degraded.problem, Some(format!("Degraded message; {STALE}")));
    assert_eq!(degraded.action.as_deref(), WHY);
}

#[test]
fn a_primary_with_less_than_wanted_is_degraded() {
    let missing = but(&["Degraded=True/MembersMissing", CHANGE[0], CHANGE[1]]);
    let kubelet = json!({"waiting": waiting("PodScheduling", "Kubernetes", "the scheduler")});
    assert_eq!(
        parts(&told("Updating", &missing, kubelet)),
        (
            Verdict::Degraded,
            Some(30),
            "Degraded message",
            Some(Actor::Kubernetes),
            None
        )
    );
    let late = but(&[
        "Degraded=True/MembersMissing",
        CHANGE[0],
        "Stalled=True/DeadlineExceeded",
    ]);
    let node = json!({"waiting": waiting("PodRemoval", "Kubernetes", "the kubelet, or the user: kubectl delete pod")});
    assert_eq!(
        parts(&told("Updating", &late, node)),
        (
            Verdict::Degraded,
            Some(30),
            "Degraded message; waits for something",
            Some(Actor::You),
            Some("the kubelet, or the user: kubectl delete pod")
        )
    );
    let unsafe_data = told("Ready", &but(&["DataSafe=False/ClaimDeleted"]), json!({}));
    assert_eq!(
        (unsafe_data.verdict, unsafe_data.problem.as_deref()),
        (Verdict::Degraded, Some("DataSafe message"))
    );
}

#[test]
fn a_database_whose_wal_is_not_archived_needs_somebody() {
    let all: Vec<&str> = WELL.into_iter().chain(["BackupHealthy=False/ArchiveFails"]).collect();
    let headline = told("Ready", &all, json!({}));
    let why = Some("kubectl cdb why demo -n shop");
    let expected = (
        Verdict::Degraded,
        Some(30),
        "BackupHealthy message",
        Some(Actor::You),
        why,
    );
    assert_eq!(parts(&headline), expected);
    let all: Vec<&str> = WELL.into_iter().chain(["BackupHealthy=True/Archiving"]).collect();
    assert_eq!(told("Ready", &all, json!({})).verdict, Verdict::Healthy);
}

#[test]
fn a_bug_of_the_operator_hides_behind_no_older_condition() {
    let bug = told("Ready", &but(&["Degraded=True/InternalError"]), json!({}));
    assert_eq!((bug.verdict, bug.actor), (Verdict::Degraded, Some(Actor::You)));
}

#[test]
fn a_wait_that_takes_too_long_is_stalled() {
    let late = but(&["Ready=False/VolumeGrowth", "Stalled=True/DeadlineExceeded"]);
    let growth = json!({"waiting": waiting("VolumeGrowth", "Storage", "the driver")});
    assert_eq!(
        parts(&told("Updating", &late, growth)),
        (
            Verdict::Stalled,
            Some(30),
            "waits for something, for longer than it should",
            Some(Actor::You),
            Some("the driver")
        )
    );
}

#[test]
fn a_change_names_its_actor() {
    let with = |more| told("Updating", &but(&CHANGE), more);
    assert_eq!(
        parts(&with(json!({"step": "Rollout"}))),
        (
            Verdict::Changing,
            Some(30),
            "the operator makes changes (step Rollout)",
            Some(Actor::Operator),
            None
        )
    );
    let cases = [
        ("Operator", "x", Some(Actor::Operator), None),
        ("Agents", "x", Some(Actor::Agents), None),
        ("Storage", "x", Some(Actor::Storage), None),
        ("User", "the user", Some(Actor::You), WHY),
        ("User", "the user: kubectl x", Some(Actor::You), Some("kubectl x")),
        ("External", "its owner", Some(Actor::You), Some("its owner")),
        ("Somebody", "x", None, None),
    ];
    for (actor, ended_by, who, action) in cases {
        let found = with(json!({"waiting": waiting("PodReadiness", actor, ended_by)}));
        assert_eq!(
            parts(&found),
            (Verdict::Changing, Some(30), "waits for something", who, action)
        );
    }
}

#[test]
fn a_creation_counts_from_its_phase() {
    let made = but(&[
        "Available=False/NotMade",
        "Degraded=False/NotMade",
        CHANGE[0],
        CHANGE[1],
    ]);
    let agents = json!({"waiting": waiting("FirstDatabase", "Agents", "the agent")});
    assert_eq!(
        parts(&told("Creating", &made, agents)),
        (
            Verdict::Creating,
            Some(20),
            "waits for something",
            Some(Actor::Agents),
            None
        )
    );
}

#[test]
fn what_the_user_stopped_needs_nobody() {
    let hibernated = told(
        "Hibernated",
        &but(&[
            "Ready=True/Hibernated",
            "Available=False/Hibernated",
            "Degraded=False/Hibernated",
        ]),
        json!({"waiting": waiting("WakeUp", "User", "the user")}),
    );
    assert_eq!(
        parts(&hibernated),
        (
            Verdict::Hibernated,
            Some(30),
            "Ready message",
            Some(Actor::Nobody),
            None
        )
    );
    let fenced = told(
        "Updating",
        &but(&["Ready=True/Fenced", "Degraded=True/Fenced", "Available=False/Fenced"]),
        json!({"waiting": waiting("Unfencing", "User", "the user, by changing spec.fenced")}),
    );
    assert_eq!(
        parts(&fenced),
        (Verdict::Fenced, Some(30), "Degraded message", Some(Actor::Nobody), None)
    );
    let stopping = told(
        "Updating",
        &but(&["Ready=False/Fencing", "Degraded=True/Fencing"]),
        json!({"waiting": waiting("FencedStop", "Agents", "its agent")}),
    );
    assert_eq!(
        (stopping.verdict, stopping.actor),
        (Verdict::Fenced, Some(Actor::Agents))
    );
    let hibernating = told(
        "Updating",
        &but(&[
            "Available=False/Hibernated",
            "Degraded=False/Hibernated",
            CHANGE[0],
            CHANGE[1],
        ]),
        json!({}),
    );
    assert_eq!(hibernating.verdict, Verdict::Changing);
}

#[test]
fn a_pause_counts_from_the_pause() {
    let unpause = json!({"waiting": waiting("Unpause", "User", "the user")});
    let idle = told("Ready", &WELL, unpause.clone());
    assert_eq!(
        parts(&idle),
        (Verdict::Paused, Some(1), PAUSED, Some(Actor::Nobody), None)
    );
    let behind = but(&[
        "Ready=True/Paused",
        "Reconciling=False/Paused",
        "Degraded=True/MembersMissing",
    ]);
    let behind = told("Ready", &behind, unpause);
    assert_eq!(behind.verdict, Verdict::Paused);
    assert!(behind.problem.unwrap().ends_with("; Degraded message"));
}

#[test]
fn a_deletion_counts_from_the_deletion() {
    let finalizer = json!({"waiting": waiting("ResourceRemoval", "Kubernetes", "the API server")});
    let mut db = database(status("Deleting", &but(&["Ready=False/Deleting"]), finalizer));
    db.metadata.deletion_timestamp = serde_json::from_value(json!("2027-01-01T00:55:00Z")).unwrap();
    assert_eq!(
        parts(&of(&db)),
        (
            Verdict::Deleting,
            Some(5),
            "waits for something",
            Some(Actor::Kubernetes),
            None
        )
    );
}

#[test]
fn an_outage_is_worse_than_anything_and_nothing_is_better_than_healthy() {
    let mut all = [
        Verdict::Healthy,
        Verdict::Degraded,
        Verdict::Failed,
        Verdict::Outage,
        Verdict::Paused,
    ];
    all.sort();
    assert_eq!(
        all.map(Verdict::as_str),
        ["OUTAGE", "FAILED", "DEGRADED", "PAUSED", "HEALTHY"]
    );
    assert_eq!(serde_json::to_value(all[0]).unwrap(), json!(all[0].as_str()));
}
