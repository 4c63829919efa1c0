use serde_json::{Value, json};

use super::*;

fn small() -> Value {
    json!({"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}})
}

/// A pod that asks for `asked`, whose kubelet has given it `given` and says this.
fn seen(asked: Value, given: &Value, conditions: Value, wanted: &Value) -> Resources {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "db-1", "generation": 3},
        "spec": {"containers": [{"name": "postgres", "resources": asked}]},
        "status": {"conditions": conditions, "containerStatuses": [{
            "name": "postgres", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "resources": given, "allocatedResources": given["requests"],
        }]},
    }));
    let wanted: ResourceRequirements = serde_json::from_value(wanted.clone()).unwrap();
    resources(&pod.unwrap(), Some(&wanted))
}

fn pending(reason: &str, generation: i64) -> Value {
    json!([{"type": "PodResizePending", "status": "True", "reason": reason, "message": "no room",
            "observedGeneration": generation}])
}

fn refused(found: &Resources) -> &str {
    match found {
        Resources::Refused { message } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_has_what_the_kubelet_says_that_it_has() {
    let large = json!({"requests": {"cpu": "0.2", "memory": "256Mi"}, "limits": {"memory": "0.25Gi"}});
    let as_kubernetes_writes = json!({"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}});
    let none = json!([]);
    assert_eq!(seen(small(), &small(), none.clone(), &large), Resources::Other);
    let asked = Resources::Asked { message: None };
    assert_eq!(
        seen(as_kubernetes_writes.clone(), &small(), none.clone(), &large),
        asked
    );
    let given = seen(
        as_kubernetes_writes.clone(),
        &as_kubernetes_writes,
        none.clone(),
        &large,
    );
    assert_eq!(given, Resources::Given, "amounts are compared by value");
    assert_eq!(
        seen(as_kubernetes_writes, &json!({}), none, &large),
        asked,
        "a kubelet that does not say"
    );
}

#[test]
fn what_the_api_server_and_the_kubelet_round_up_is_no_difference() {
    let wanted = json!({"requests": {"cpu": "62.5m", "memory": "1.5"}, "limits": {"memory": "0.1Ki"}});
    let kept = json!({"requests": {"cpu": "63m", "memory": "1500m"}, "limits": {"memory": "102400m"}});
    let given = json!({"requests": {"cpu": "63m", "memory": "2"}, "limits": {"memory": "103"}});
    let none = json!([]);
    assert_eq!(seen(kept.clone(), &given, none.clone(), &wanted), Resources::Given);
    assert_eq!(
        seen(
            kept,
            &given,
            none,
            &json!({"requests": {"cpu": "63.5m", "memory": "1.5"}, "limits": {"memory": "0.1Ki"}})
        ),
        Resources::Other,
        "the next thousandth of a core is another amount"
    );
}

#[test]
fn more_memory_is_a_limit_above_the_wanted_one() {
    let seen = |asked: Value, wanted: Value| {
        let (asked, wanted) = (json!({"limits": asked}), json!({"limits": wanted}));
        seen(asked.clone(), &asked, json!([]), &wanted)
    };
    assert_eq!(
        seen(json!({"memory": "1Gi"}), json!({"memory": "1G"})),
        Resources::MoreMemory
    );
    assert_eq!(
        seen(json!({}), json!({"memory": "1Gi"})),
        Resources::MoreMemory,
        "it had no limit"
    );
    let (less, more) = (
        json!({"memory": "1Gi", "cpu": "2"}),
        json!({"memory": "2Gi", "cpu": "1"}),
    );
    assert_eq!(seen(less.clone(), more.clone()), Resources::Other);
    assert_eq!(seen(more, less), Resources::MoreMemory);
    let (few, many) = (
        json!({"memory": "1Gi", "cpu": "1"}),
        json!({"memory": "1024Mi", "cpu": "2"}),
    );
    assert_eq!(seen(few, many), Resources::Other, "it is the same memory");
}

#[test]
fn a_request_that_the_api_server_completed_is_no_difference() {
    let wanted = json!({"limits": {"cpu": "1"}});
    let completed = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
    assert_eq!(
        seen(completed.clone(), &completed, json!([]), &wanted),
        Resources::Given
    );
}

#[test]
fn what_is_wanted_no_more_needs_a_new_pod() {
    let found = seen(
        small(),
        &small(),
        json!([]),
        &json!({"requests": {"cpu": "100m", "memory": "256Mi"}}),
    );
    assert!(
        refused(&found).starts_with("it has a limit of memory that is not wanted"),
        "{found:?}"
    );
    let more = json!({"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi", "cpu": "1"}});
    assert_eq!(
        seen(small(), &small(), json!([]), &more),
        Resources::Other,
        "one more can be asked for"
    );
}

#[test]
fn the_kubelets_refusal_counts_if_it_is_of_the_present_spec() {
    let found = seen(small(), &small(), pending("Infeasible", 3), &small());
    assert_eq!(refused(&found), "Infeasible: no room");
    let before = seen(small(), &small(), pending("Infeasible", 2), &small());
    assert_eq!(before, Resources::Given, "that was about the spec of before");
    let waits = Resources::Asked {
        message: Some("Deferred: no room".to_owned()),
    };
    assert_eq!(seen(small(), &json!({}), pending("Deferred", 3), &small()), waits);
    let at_it = json!([{"type": "PodResizeInProgress", "status": "True"}]);
    let asked = Resources::Asked { message: None };
    assert_eq!(
        seen(small(), &small(), at_it, &small()),
        asked,
        "not done before it says so"
    );
}
