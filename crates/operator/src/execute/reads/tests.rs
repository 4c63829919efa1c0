use std::sync::Arc;

use clap::Parser;
use kube::client::Body;
use kube::runtime::watcher;
use machine::cluster::model::Scene;
use machine::cluster::{Known, Wanted};

use super::*;
use crate::caches::Caches;
use crate::config::{Arguments, Config};
use crate::metrics::Metrics;
use crate::requests::Requests;

/// An API server that has this resource at most.
fn server(db: Option<&ClusteredDatabase>) -> kube::Client {
    let db = db.map(|db| serde_json::to_vec(db).unwrap());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let found = db
            .clone()
            .filter(|_| request.uri().path().ends_with("/clustereddatabases/a"));
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404});
        let answer = http::Response::builder().status(if found.is_some() { 200 } else { 404 });
        let body = Body::from(found.unwrap_or_else(|| status.to_string().into_bytes()));
        async { Ok::<_, std::convert::Infallible>(answer.body(body).unwrap()) }
    });
    kube::Client::new(service, "default")
}

fn database() -> ClusteredDatabase {
    serde_json::from_value(json!({
        "apiVersion": "clustereddatabase.io/v1", "kind": "ClusteredDatabase",
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        "spec": {"storage": {"data": {"size": "1Gi"}}},
    }))
    .unwrap()
}

/// An operator before this API server, and what it has decided about `db`.
fn decided(client: kube::Client, caches: &Arc<Caches>) -> (Executor, Basis) {
    let (arguments, metrics) = (Arguments::parse_from(["operator"]), Metrics::default());
    let executor = Executor::new(
        Requests::new(client, metrics.clone()),
        Arc::clone(caches),
        Config::new(&arguments, std::iter::empty()),
        metrics,
        "test".to_owned(),
    );
    let mut scene = Scene::ready(3);
    scene.observed.lease = Known::Known(None);
    let basis = scene.with_wanted(|wanted| {
        let wanted = Wanted {
            uid: "u",
            resource_version: "7",
            ..*wanted
        };
        Basis::new(&wanted, &scene.observed)
    });
    (executor, basis)
}

/// It was stopped when all was read, and the lead may have gone to another one meanwhile.
#[tokio::test]
async fn nothing_is_taken_away_unless_the_lead_was_renewed_lately() {
    let (db, caches) = (database(), Arc::new(Caches::default()));
    let (executor, basis) = decided(server(Some(&db)), &caches);
    let key = Key::database("ns", "a");
    assert_eq!(executor.confirm(&key, &basis).await, Ok(Outcome::Done));
    let executor = executor.with_lead(leader::Lead::default());
    let refused = executor.confirm(&key, &basis).await.unwrap_err();
    assert_eq!(refused.kind, FaultKind::Transient, "it is tried again");
    assert!(
        refused.message.contains("another operator may lead"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn a_resource_that_is_gone_is_forgotten_and_nothing_is_done_for_it() {
    let (db, caches) = (database(), Arc::new(Caches::default()));
    for event in [
        watcher::Event::Init,
        watcher::Event::InitApply(db.clone()),
        watcher::Event::InitDone,
    ] {
        caches.databases.observe(event);
    }
    let (executor, basis) = decided(server(None), &caches);
    let key = Key::database("ns", "a");
    assert!(matches!(caches.databases.get(&key, "a"), Some(Some(_))));
    assert_eq!(executor.confirm(&key, &basis).await, Ok(Outcome::Outdated));
    assert!(matches!(caches.databases.get(&key, "a"), Some(None)));
    assert_eq!(executor.look(&key).await.again, None, "the look ends");
}

fn event(message: &str, at: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {}, "involvedObject": {}, "message": message, "lastTimestamp": at,
    }))
    .unwrap()
}

#[test]
fn the_newest_event_of_each_pod_counts() {
    let quota = "create Pod db-1 in StatefulSet db failed error: pods \"db-1\" is forbidden: exceeded quota: q";
    let claim = "create Claim data-db-2 for Pod db-2 in StatefulSet db failed error: persistentvolumeclaims is forbidden: exceeded quota: q";
    let events = [
        event(
            "create Pod db-1 in StatefulSet db failed error: old",
            "2027-01-01T00:00:00Z",
        ),
        event(quota, "2027-01-01T00:01:00Z"),
        event(claim, "2027-01-01T00:01:00Z"),
        event(
            "create Pod db-3 in StatefulSet db failed error: long ago",
            "2026-12-31T00:00:00Z",
        ),
    ];
    let latest = latest(&events, "2027-01-01T00:02:00Z".parse().unwrap());
    assert_eq!(latest.keys().collect::<Vec<_>>(), ["db-1", "db-2"]);
    assert_eq!(kind_of(&latest["db-1"].1), FaultKind::Quota);
    assert_eq!(kind_of(&latest["db-2"].1), FaultKind::Quota);
    assert_eq!(
        kind_of("pods \"x\" is forbidden: violates PodSecurity"),
        FaultKind::Forbidden
    );
}

#[test]
fn the_newest_warning_about_a_pod_is_what_it_waits_for() {
    let told = |reason: &str, message: &str, at: &str| Event {
        reason: Some(reason.to_owned()),
        ..event(message, at)
    };
    let events = [
        told("FailedMount", "old", "2027-01-01T00:00:00Z"),
        told("FailedAttachVolume", "Multi-Attach error", "2027-01-01T00:01:00Z"),
        told("FailedScheduling", "0/3 nodes", "2027-01-01T00:01:30Z"),
    ];
    let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    let found = warning(&events, at("2027-01-01T00:02:00Z")).unwrap();
    assert_eq!(found.reason, "FailedAttachVolume");
    assert_eq!(found.message, "FailedAttachVolume: Multi-Attach error");
    assert_eq!(warning(&events, at("2027-01-01T01:00:00Z")), None, "long ago");
}
