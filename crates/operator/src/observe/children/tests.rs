use serde_json::json;

use super::*;
use crate::builders::fixture::database;
use crate::config::Config;
use crate::desired::{all, applied};

/// A database with every kind of object.
fn smallest() -> ClusteredDatabase {
    database(json!({"storage": {"data": {"size": "1Gi"}}, "networkPolicy": {"mode": "Managed"}}))
}

fn live(kind: OwnedObject) -> (Value, Desired) {
    let (db, config) = (smallest(), Config::default());
    let desired = all(&Subject::new(&db, &config).unwrap()).remove(&kind).unwrap();
    let mut live = applied(&desired, kind, Some(3));
    live["metadata"]["uid"] = json!("u");
    live["metadata"]["resourceVersion"] = json!("7");
    (live, desired)
}

fn state(live: &Value, kind: OwnedObject, desired: &Desired) -> OwnedState {
    verdict(live, kind, &smallest(), desired, &[])
}

#[test]
fn what_was_applied_is_current() {
    for kind in OwnedObject::ALL {
        let (live, desired) = live(kind);
        assert_eq!(
            state(&live, kind, &desired),
            OwnedState::Current { uid: "u".to_owned() },
            "{kind:?}"
        );
    }
}

#[test]
fn a_network_policy_that_is_not_wanted_has_drifted_unless_it_is_somebody_elses() {
    let (mut live, desired) = live(OwnedObject::NetworkPolicy);
    let off = database(json!({"storage": {"data": {"size": "1Gi"}}}));
    let state = |live: &Value| verdict(live, OwnedObject::NetworkPolicy, &off, &desired, &[]);
    assert!(matches!(state(&live), OwnedState::Drifted { .. }));
    live["metadata"]["ownerReferences"] = json!([]);
    live["metadata"]["labels"] = json!({});
    assert!(matches!(state(&live), OwnedState::Foreign { .. }));
}

#[test]
fn what_is_made_only_once_belongs_to_who_is_named_in_its_label() {
    for kind in OwnedObject::ALL.into_iter().filter(|kind| kind.owned().is_unique) {
        let (mut live, desired) = live(kind);
        assert!(
            live["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty),
            "{kind:?}"
        );
        live["metadata"]["labels"][LABEL_CLUSTER_UID] = json!("before");
        let OwnedState::Foreign { why, left } = state(&live, kind, &desired) else {
            panic!("{kind:?}")
        };
        assert!(why.contains("deleted (UID before)"), "{why}");
        assert_eq!(left.unwrap().by, "before");
        live["metadata"]["labels"][LABEL_CLUSTER] = json!("other");
        assert!(matches!(
            state(&live, kind, &desired),
            OwnedState::Foreign { left: None, .. }
        ));
    }
}

#[test]
fn a_secret_without_an_owner_is_the_databases_only_if_one_was_made_before() {
    for kind in OwnedObject::ALL {
        let (mut live, desired) = live(kind);
        live["metadata"]["ownerReferences"] = json!([]);
        live["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove(LABEL_CLUSTER_UID);
        let mut db = smallest();
        let secret = kind.kind() == "Secret";
        let is_foreign = |db: &ClusteredDatabase| {
            let state = verdict(&live, kind, db, &desired, &[]);
            matches!(state, OwnedState::Foreign { .. })
        };
        assert_eq!(
            is_foreign(&db),
            secret,
            "{kind:?}, planted before the database was made"
        );
        let status = db.status.get_or_insert_default();
        status.memo.made.insert(name("db", kind), "another UID".to_owned());
        assert!(!is_foreign(&db), "{kind:?}, restored from a copy");
    }
}

#[test]
fn every_edit_is_seen_and_named() {
    let drifted = |kind, pointer: &str, value: Value| {
        let (mut live, desired) = live(kind);
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        live.pointer_mut(parent).unwrap()[key] = value;
        match state(&live, kind, &desired) {
            OwnedState::Drifted { what, immutable, .. } => (what, immutable),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        drifted(OwnedObject::RwService, "/spec/selector", json!({"app": "x"})),
        ("spec.selector is {\"app\":\"x\"}".to_owned(), false)
    );
    assert_eq!(
        drifted(
            OwnedObject::StatefulSet,
            "/spec/updateStrategy/type",
            json!("RollingUpdate")
        )
        .0,
        "spec.updateStrategy.type is \"RollingUpdate\""
    );
    let size = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
    assert!(drifted(OwnedObject::RoleBinding, "/roleRef/name", json!("other")).1);
    assert!(!drifted(OwnedObject::RoleBinding, "/subjects", json!([])).1);
    assert!(
        drifted(OwnedObject::StatefulSet, size, json!("2Gi")).1,
        "claim templates cannot be changed in place"
    );
    assert_eq!(
        drifted(
            OwnedObject::Role,
            "/metadata/annotations",
            json!({"clustereddatabase.io/applied-hash": "other"})
        )
        .0,
        "another content was applied last"
    );
    assert_eq!(
        drifted(OwnedObject::TlsSecret, "/metadata/labels", json!({}))
            .0
            .split(' ')
            .next(),
        Some("metadata.labels.app.kubernetes.io/instance")
    );
}

#[test]
fn the_number_of_members_is_no_drift() {
    let (mut live, desired) = live(OwnedObject::StatefulSet);
    live["spec"]["replicas"] = json!(9);
    assert_eq!(
        state(&live, OwnedObject::StatefulSet, &desired),
        OwnedState::Current { uid: "u".to_owned() }
    );
}

#[test]
fn somebody_elses_objects_are_named_as_such() {
    let (mut live, desired) = live(OwnedObject::RwService);
    live["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "x", "controller": true}]);
    assert_eq!(
        state(&live, OwnedObject::RwService, &desired),
        OwnedState::Foreign {
            why: "owned by Deployment web".to_owned(),
            left: None,
        }
    );
    live["metadata"]["ownerReferences"] = json!([]);
    assert!(
        matches!(
            state(&live, OwnedObject::RwService, &desired),
            OwnedState::Drifted { .. }
        ),
        "our label, no owner"
    );
    live["metadata"]["labels"] = json!({});
    assert!(matches!(
        state(&live, OwnedObject::RwService, &desired),
        OwnedState::Foreign { .. }
    ));
    live["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
    assert_eq!(state(&live, OwnedObject::RwService, &desired), OwnedState::Missing);
}

#[test]
fn of_a_lease_only_the_label_matters() {
    let (mut live, desired) = live(OwnedObject::Lease);
    live["metadata"]["labels"]["app.kubernetes.io/name"] = json!("other");
    assert!(matches!(
        state(&live, OwnedObject::Lease, &desired),
        OwnedState::Current { .. }
    ));
    live["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove(LABEL_CLUSTER);
    let OwnedState::Drifted { what, .. } = state(&live, OwnedObject::Lease, &desired) else {
        panic!("without its label the watch does not show it");
    };
    assert_eq!(what, "metadata.labels.clustereddatabase.io/cluster is null");
}

#[test]
fn what_applying_did_not_change_is_tolerated_until_it_changes_again() {
    let (mut live, desired) = live(OwnedObject::StatefulSet);
    live["spec"]["template"]["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "sidecar"}));
    let found = differences(&desired.content, &live);
    assert_eq!(found, ["spec.template.spec.containers has 1 more"]);
    let db = smallest();
    assert!(matches!(
        verdict(&live, OwnedObject::StatefulSet, &db, &desired, &found),
        OwnedState::Current { .. }
    ));
    live["spec"]["template"]["spec"]["serviceAccountName"] = json!("other");
    assert!(matches!(
        verdict(&live, OwnedObject::StatefulSet, &db, &desired, &found),
        OwnedState::Drifted { .. }
    ));
}
