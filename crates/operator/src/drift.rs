//! Whether an object is as it should be: the desired content must be contained in the live one. What the API server
//! adds by itself, and how it writes quantities, is no difference.

use api::quantity::Quantity;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Maps that mean "exactly these": one label more selects other pods.
const EXACT: [&str; 3] = ["selector", "matchLabels", "nodeSelector"];
/// Lists to which others may add.
const OPEN_LISTS: [&str; 2] = ["ownerReferences", "finalizers"];
/// Maps whose values are quantities.
const QUANTITY_MAPS: [&str; 3] = ["requests", "limits", "overhead"];
/// Single values that are quantities.
const QUANTITIES: [&str; 1] = ["sizeLimit"];

/// Maps whose values may be secrets, unless their names begin as the operator's own do.
const ANNOTATIONS: &str = "annotations";
const OWN: &str = "clustereddatabase.io/";

/// A short hash of an object's content, stable over restarts: 16 hexadecimal digits.
pub fn hash<T: Serialize>(content: &T) -> String {
    // Through a JSON value, whose maps are sorted. These types always serialise.
    let value = serde_json::to_value(content).unwrap_or_default();
    let digest = Sha256::digest(value.to_string());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The paths at which `live` is not what `desired` says, each with what stands there; empty if it is. What stands there ends
/// in the status, in events and in records: values of annotations that are not the operator's own are not told.
///
/// - A map must hold all that is desired; more is fine, except in [`EXACT`] maps, and where an empty map is desired.
/// - Lists must be equally long, and are compared by `name`, `type` or `uid` if their elements have one, else in order.
/// - Quantities are compared by value.
pub fn differences(desired: &Value, live: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(
        desired,
        live,
        &Place {
            path: String::new(),
            key: "",
            parent: "",
        },
        &mut found,
    );
    found
}

/// Where in the object the comparison is.
struct Place<'a> {
    path: String,
    key: &'a str,
    parent: &'a str,
}

impl<'a> Place<'a> {
    fn child(&self, key: &'a str) -> Place<'a> {
        let path = if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        };
        Place {
            path,
            key,
            parent: self.key,
        }
    }

    fn element(&self, index: &str) -> Place<'a> {
        Place {
            path: format!("{}[{index}]", self.path),
            key: self.key,
            parent: self.parent,
        }
    }

    /// That this stands here; without the value, if that may be a secret of the user's.
    fn holds(&self, live: &str) -> String {
        let annotation = self.key == ANNOTATIONS || self.parent == ANNOTATIONS && !self.key.starts_with(OWN);
        let told = if annotation && live != "null" {
            "another value"
        } else {
            live
        };
        format!("{} is {told}", self.path)
    }

    fn is_quantity(&self) -> bool {
        QUANTITIES.contains(&self.key) || QUANTITY_MAPS.contains(&self.parent)
    }
}

fn compare(desired: &Value, live: &Value, place: &Place<'_>, found: &mut Vec<String>) {
    match (desired, live) {
        // Nothing is desired, and nothing is there: whether as `null`, as an empty value or not at all.
        (desired, live) if is_nothing(desired) && is_nothing(live) => {}
        (Value::Object(desired), Value::Object(live)) if !desired.is_empty() => {
            for (key, value) in desired {
                compare(value, live.get(key).unwrap_or(&Value::Null), &place.child(key), found);
            }
            if EXACT.contains(&place.key) {
                let more = live.keys().filter(|key| !desired.contains_key(*key));
                found.extend(more.map(|key| format!("{}.{key} is there", place.path)));
            }
        }
        (Value::Array(desired), Value::Array(live)) => compare_lists(desired, live, place, found),
        (Value::String(desired), Value::String(live)) if place.is_quantity() && desired != live => {
            let parsed = Quantity::parse(desired);
            if parsed.is_err() || parsed != Quantity::parse(live) {
                found.push(place.holds(live));
            }
        }
        (desired, live) if desired == live => {}
        (_, live) => found.push(place.holds(&live.to_string())),
    }
}

fn compare_lists(desired: &[Value], live: &[Value], place: &Place<'_>, found: &mut Vec<String>) {
    if live.len() > desired.len() && !OPEN_LISTS.contains(&place.key) {
        found.push(format!("{} has {} more", place.path, live.len() - desired.len()));
    }
    for (index, value) in desired.iter().enumerate() {
        let name = identity(value);
        let other = match &name {
            Some((key, name)) => live
                .iter()
                .find(|other| other.get(key).and_then(Value::as_str) == Some(name)),
            None => live.get(index),
        };
        let place = match name {
            Some((_, name)) => place.element(name),
            None => place.element(&index.to_string()),
        };
        compare(value, other.unwrap_or(&Value::Null), &place, found);
    }
}

/// The key and value by which an element of a list is known.
fn identity(element: &Value) -> Option<(&'static str, &str)> {
    // `mountPath` before `name`: one volume can be mounted twice. A claim template has its name in its metadata, and
    // keeps its place.
    ["mountPath", "uid", "name", "type"]
        .into_iter()
        .find_map(|key| Some((key, element.get(key)?.as_str()?)))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_nothing),
        Value::Array(list) => list.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
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
        let more =
            json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]});
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
}
