use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn quantities_are_compared_by_value() {
    let of = |cpu: &str, memory: &str| json!({"resources": {"limits": {"cpu": cpu, "memory": memory}}});
    assert!(differences(&of("1000m", "1Gi"), &of("1", "1024Mi")).is_empty());
    assert_eq!(
        differences(&of("1", "1Gi"), &of("2", "1Gi")),
        ["resources.limits.cpu is 2"]
    );
    // Only there: the value of an environment variable is text.
    let env = |value: &str| json!({"env": [{"name": "X", "value": value}]});
    assert_eq!(differences(&env("1000m"), &env("1")).len(), 1);
}

#[test]
fn what_the_api_server_adds_is_no_difference() {
    let desired = json!({"spec": {"ports": [{"name": "postgres", "port": 5432}], "selector": {"a": "b"}}});
    let live = json!({"metadata": {"uid": "u"}, "spec": {
        "ports": [{"name": "postgres", "port": 5432, "protocol": "TCP"}],
        "selector": {"a": "b"}, "sessionAffinity": "None", "clusterIP": "10.0.0.1",
    }});
    assert!(differences(&desired, &live).is_empty());
}

#[test]
fn a_selector_means_exactly_what_it_says() {
    let desired = json!({"selector": {"a": "b"}});
    assert_eq!(
        differences(&desired, &json!({"selector": {"a": "b", "c": "d"}})),
        ["selector.c is there"]
    );
    let none = json!({"selector": {}});
    assert!(differences(&none, &json!({})).is_empty());
    assert_eq!(differences(&none, &json!({"selector": {"c": "d"}})).len(), 1);
}

#[test]
fn lists_are_compared_by_name_and_may_not_grow() {
    let desired = json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]});
    assert!(
        differences(
            &desired,
            &json!({"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]})
        )
        .is_empty()
    );
    let more = json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]});
    assert_eq!(differences(&desired, &more), ["env has 1 more"]);
    assert_eq!(
        differences(&desired, &json!({"env": [{"name": "A", "value": "1"}]})),
        ["env[B] is null"]
    );
    let verbs = json!({"verbs": ["get", "list"]});
    assert_eq!(
        differences(&verbs, &json!({"verbs": ["get", "*"]})),
        ["verbs[1] is \"*\""]
    );
    let owners = json!({"ownerReferences": [{"uid": "u"}]});
    assert!(differences(&owners, &json!({"ownerReferences": [{"uid": "v"}, {"uid": "u"}]})).is_empty());
}

#[test]
fn the_users_annotations_are_not_told() {
    let of = |value: &str| json!({"metadata": {"annotations": {"vault/token": value, "clustereddatabase.io/revision": value}}});
    assert_eq!(
        differences(&of("a"), &of("hunter2")),
        [
            "metadata.annotations.clustereddatabase.io/revision is \"hunter2\"",
            "metadata.annotations.vault/token is another value",
        ]
    );
    let none = differences(
        &of("a"),
        &json!({"metadata": {"annotations": {"clustereddatabase.io/revision": "a"}}}),
    );
    assert_eq!(none, ["metadata.annotations.vault/token is null"]);
    // A whole map in the place of nothing, or of something else.
    assert_eq!(
        differences(&of("a"), &json!({"metadata": {"annotations": "hunter2"}})),
        ["metadata.annotations is another value"]
    );
}

#[test]
fn a_hash_does_not_depend_on_the_order_of_keys() {
    assert_eq!(hash(&json!({"a": 1, "b": 2})), hash(&json!({"b": 2, "a": 1})));
    assert_ne!(hash(&json!({"a": 1})), hash(&json!({"a": 2})));
    assert_eq!(hash(&json!(null)).len(), 16);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z0-9]{0,4}".prop_map(Value::from),
    ];
    let key = prop_oneof![Just("selector".to_owned()), Just("limits".to_owned()), "[a-z]{1,3}"];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Adds to every map what an API server might add; `selector` maps are never defaulted.
fn default_like_a_server(value: &Value, key: &str) -> Value {
    match value {
        Value::Object(map) => {
            let mut map: serde_json::Map<_, _> = map
                .iter()
                .map(|(key, value)| (key.clone(), default_like_a_server(value, key)))
                .collect();
            if key != "selector" && !map.is_empty() {
                map.insert("Defaulted".to_owned(), json!({"by": "the server"}));
            }
            Value::Object(map)
        }
        Value::Array(list) => list.iter().map(|value| default_like_a_server(value, key)).collect(),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn nothing_has_drifted_from_itself(value in any_json()) {
        prop_assert!(differences(&value, &value).is_empty());
    }

    #[test]
    fn nothing_has_drifted_from_itself_after_defaulting(value in any_json()) {
        let live = default_like_a_server(&value, "");
        prop_assert!(differences(&value, &live).is_empty(), "{:?}", differences(&value, &live));
    }

    #[test]
    fn another_number_is_always_seen(value in any::<i32>(), other in any::<i32>()) {
        prop_assume!(value != other);
        let wrap = |value: i32| json!({"spec": {"list": [{"name": "a", "replicas": value}]}});
        prop_assert_eq!(differences(&wrap(value), &wrap(other)).len(), 1);
    }
}
