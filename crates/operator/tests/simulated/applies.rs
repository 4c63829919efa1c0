//! What a user applies (`kubectl apply --server-side`, a GitOps tool) and applies again.

use std::time::Duration;

use fake_api::Verb;
use fake_api::faults::Faults;
use serde_json::json;

use super::world::{NAME, World, run};

/// An API server makes null of a map that is applied empty and was not before, and refuses that where it has no default for it.
#[test]
fn what_was_applied_may_be_applied_empty() {
    run(1, async || {
        let world = World::new(Faults::none(), Duration::from_secs(1));
        let apply = |code, parameters, map| {
            let spec = json!({
                "storage": {"data": {"size": "1Gi"}}, "postgres": {"parameters": parameters}, "serviceAccount": {"metadata": {"annotations": map}},
                "pods": {"metadata": {"labels": map, "annotations": map}}, "scheduling": {"nodeSelector": map},
            });
            let kind = json!({"apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase"});
            let mut db = json!({"metadata": {"name": NAME}, "spec": spec});
            fake_api::merge_patch(&mut db, &kind);
            world.user(code, Verb::Apply, "clustereddatabases", NAME, db)
        };
        let said = apply(201, json!({"work_mem": "8MB"}), json!({"example.org/team": "a"}));
        assert_eq!(said["spec"]["postgres"]["parameters"]["work_mem"], "8MB");
        let said = apply(200, json!({}), json!({}));
        let spec = &said["spec"];
        for map in [
            &spec["postgres"]["parameters"],
            &spec["serviceAccount"]["metadata"]["annotations"],
            &spec["pods"]["metadata"]["labels"],
            &spec["pods"]["metadata"]["annotations"],
            &spec["scheduling"]["nodeSelector"],
        ] {
            assert_eq!(*map, json!({}), "{spec:#}");
        }
    });
}
