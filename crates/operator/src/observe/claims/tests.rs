use api::Guarded;
use k8s_openapi::api::storage::v1::StorageClass as KubeClass;
use kube::runtime::watcher::Event;
use serde_json::json;

use super::*;
use crate::builders::fixture::{database, smallest};

fn key() -> Key {
    Key::database("ns", "db")
}

fn caches(claims: &[&str], classes: &[(&str, bool)]) -> Caches {
    let caches = Caches::default();
    caches.claims.observe(Event::Init);
    for (index, name) in claims.iter().enumerate() {
        let claim = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("u{index}"), "resourceVersion": "1",
                         "labels": {"clustereddatabase.io/uid": "c"}},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound"},
        });
        caches
            .claims
            .observe(Event::InitApply(serde_json::from_value(claim).unwrap()));
    }
    caches.claims.observe(Event::InitDone);
    caches.storage_classes.observe(Event::Init);
    for (name, default) in classes {
        let class = json!({
            "metadata": {"name": name, "resourceVersion": "1", "annotations": {DEFAULT_CLASS: default.to_string()}},
            "provisioner": "p", "allowVolumeExpansion": true,
        });
        caches
            .storage_classes
            .observe(Event::InitApply(serde_json::from_value(class).unwrap()));
    }
    caches.storage_classes.observe(Event::InitDone);
    caches
}

#[test]
fn claims_come_in_order_and_only_this_databases() {
    let caches = caches(
        &[
            "data-db-10",
            "wal-db-2",
            "data-db-2",
            "data-db-x-0",
            "data-other-0",
            "data1-db-2",
            "data01-db-2",
            "wal2-db-1",
        ],
        &[],
    );
    let of_set = |set| claims(&caches, &key(), &smallest().spec.storage, set).unwrap();
    let names = |claims: &[Claim]| claims.iter().map(|claim| claim.name.clone()).collect::<Vec<_>>();
    let (claims, others) = of_set(0);
    assert_eq!(names(&claims), ["data-db-2", "wal-db-2", "data-db-10"]);
    assert_eq!(names(&others), ["wal2-db-1", "data1-db-2"]);
    assert_eq!((others[0].set, names(&of_set(2).0)), (2, vec!["wal2-db-1".to_owned()]));
    assert_eq!(claims[0].requested, Bytes::gib(1));
    assert!(claims[0].bound);
    assert_eq!(claims[0].cluster_uid.as_deref(), Some("c"));
}

#[test]
fn what_a_claim_was_made_for_and_whether_it_ever_had_a_volume_is_read() {
    let read = |volume: &str, phase: &str| {
        let claim = json!({
            "metadata": {
                "name": "wal-db-1", "namespace": "ns", "uid": "u", "resourceVersion": "1",
                "creationTimestamp": "2027-01-01T00:00:00Z", "annotations": {SELECTED_NODE: "n1"},
            },
            "spec": {"storageClassName": "fast", "volumeName": volume}, "status": {"phase": phase},
        });
        claim_of(&serde_json::from_value(claim).unwrap())
    };
    let waits = read("", "Pending");
    assert_eq!((waits.bound, waits.had_volume), (false, false));
    assert_eq!(waits.created.to_rfc3339(), "2027-01-01T00:00:00+00:00");
    assert_eq!(
        (waits.class.as_deref(), waits.selected_node.as_deref()),
        (Some("fast"), Some("n1"))
    );
    let lost = read("pv", "Lost");
    assert_eq!((lost.bound, lost.had_volume), (false, true), "its volume is gone");
}

#[test]
fn what_a_claim_has_and_how_far_its_growth_is_are_read() {
    let read = |status: serde_json::Value| {
        let claim = json!({"metadata": {"name": "data-db-1", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"resources": {"requests": {"storage": "2Gi"}}}, "status": status});
        claim_of(&serde_json::from_value(claim).unwrap())
    };
    let unknown = read(json!({"phase": "Bound"}));
    assert_eq!((unknown.capacity, unknown.growth), (None, None));
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "message": kind, "lastTransitionTime": "2027-01-01T00:00:00Z"});
    let stage = |conditions: serde_json::Value| {
        let found = read(json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": conditions}));
        assert_eq!((found.requested, found.capacity), (Bytes::gib(2), Some(Bytes::gib(1))));
        found.growth.map(|growth| growth.stage)
    };
    let (goes_on, pending) = (
        condition("Resizing", "True"),
        condition("FileSystemResizePending", "True"),
    );
    let (failed, over) = (condition("NodeResizeError", "True"), condition("Resizing", "False"));
    assert_eq!(stage(json!([goes_on])).as_deref(), Some("Resizing"));
    assert_eq!(
        stage(json!([goes_on, pending])).as_deref(),
        Some("FileSystemResizePending")
    );
    assert_eq!(stage(json!([pending, failed])).as_deref(), Some("NodeResizeError"));
    assert_eq!(stage(json!([over])), None);
}

fn claim_of(found: &PersistentVolumeClaim) -> Claim {
    claim(&Names::new("db"), found, &smallest().spec.storage).unwrap()
}

#[test]
fn what_a_claim_lacks_is_a_difference_and_what_it_has_beside_is_none() {
    let found = serde_json::from_value(json!({
        "metadata": {"name": "data-db-1", "namespace": "ns", "uid": "u", "resourceVersion": "1",
            "labels": {"team": "shop", "other": "x"}, "annotations": {"a": "b"}},
        "spec": {"volumeAttributesClassName": "gold"},
    }));
    let found: PersistentVolumeClaim = found.unwrap();
    let differs = |data: serde_json::Value, wal: serde_json::Value| {
        let storage = serde_json::from_value(json!({"data": data, "wal": wal})).unwrap();
        claim(&Names::new("db"), &found, &storage).unwrap().differs
    };
    let asks = |more: serde_json::Value| {
        let mut asked = json!({"size": "1Gi"});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        asked
    };
    let none = || asks(json!({}));
    assert!(!differs(none(), none()));
    let same = json!({"volumeAttributesClassName": "gold", "metadata": {"labels": {"team": "shop"}, "annotations": {"a": "b"}}});
    assert!(!differs(asks(same), none()));
    for other in [
        json!({"volumeAttributesClassName": "silver"}),
        json!({"metadata": {"labels": {"team": "other"}}}),
        json!({"metadata": {"annotations": {"c": "d"}}}),
    ] {
        assert!(differs(asks(other.clone()), none()), "{other}");
        assert!(
            !differs(none(), asks(other.clone())),
            "{other} is asked of the other volume"
        );
    }
}

#[test]
fn nothing_is_known_before_the_list() {
    assert!(claims(&Caches::default(), &key(), &smallest().spec.storage, 0).is_none());
    assert!(storage_class(&Caches::default(), &smallest(), Volume::Data).is_none());
}

#[test]
fn the_class_is_the_named_one_or_the_default() {
    let class = |name: &str| json!({"size": "1Gi", "storageClassName": name});
    let present = Some(StorageClass::Present { expandable: true });
    let gone = Some(StorageClass::Missing {
        name: "gone".to_owned(),
    });
    let named = |name: &str| database(json!({"storage": {"data": class(name)}}));
    let both = caches(&[], &[("slow", false), ("fast", true)]);
    assert_eq!(storage_class(&both, &smallest(), Volume::Data), present);
    assert_eq!(storage_class(&both, &named("gone"), Volume::Data), gone);
    let none = caches(&[], &[("slow", false)]);
    assert_eq!(
        storage_class(&none, &smallest(), Volume::Data),
        Some(StorageClass::NoDefault)
    );
    assert_eq!(storage_class(&none, &named("slow"), Volume::Data), present);
    let far: Guarded<KubeClass> = serde_json::from_value(json!({
        "metadata": {"name": "far", "resourceVersion": "2"}, "provisioner": 7}))
    .unwrap();
    none.storage_classes.take(Event::Apply(far));
    assert_eq!(storage_class(&none, &named("slow"), Volume::Data), present);
    assert_eq!(storage_class(&none, &named("far"), Volume::Data), None, "it is there");
    assert_eq!(
        storage_class(&none, &smallest(), Volume::Data),
        None,
        "it may be the default"
    );
    let wal = |data: &str, wal: &str| database(json!({"storage": {"data": class(data), "wal": class(wal)}}));
    for (db, data_class, wal_class) in [
        (wal("slow", "gone"), &present, &gone),
        (wal("gone", "slow"), &gone, &present),
    ] {
        assert_eq!(storage_class(&both, &db, Volume::Data), *data_class);
        assert_eq!(storage_class(&both, &db, Volume::Wal), *wal_class);
    }
}
