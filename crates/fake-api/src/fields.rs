//! An object's fields one by one, as server-side apply owns them: leaves, elements of lists that are known by keys, and
//! members of sets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::kinds::Kind;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// A key of a map.
    Field(String),
    /// An element of a list, by its keys (JSON).
    Item(String),
    /// A member of a set (JSON).
    Member(String),
}

/// The way to a field.
pub(crate) type Path = Vec<Step>;

/// Metadata without an owner.
const SYSTEM: [&str; 11] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "generateName",
];

/// How a list or map is owned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// As a whole.
    Atomic,
    /// A map by its keys; a list by its members.
    Granular,
    /// A list whose elements are known by these keys.
    Keyed(&'static [&'static str]),
}

/// What Kubernetes' schemas say of the field `field` within `parent`.
fn shape(kind: &Kind, parent: &str, field: &str, value: &Value) -> Shape {
    const NAME: &[&str] = &["name"];
    let list = value.is_array();
    match (parent, field) {
        ("metadata", "ownerReferences") => Shape::Keyed(&["uid"]),
        ("metadata", "finalizers") => Shape::Granular,
        _ if kind.custom => match list {
            true => Shape::Atomic,
            false => Shape::Granular,
        },
        ("containers" | "initContainers", "ports") => Shape::Keyed(&["containerPort", "protocol"]),
        ("spec", "ports") if kind.kind == "Service" => Shape::Keyed(&["port", "protocol"]),
        (_, "containers" | "initContainers" | "env" | "volumes") => Shape::Keyed(NAME),
        ("spec" | "", "imagePullSecrets") | ("", "secrets") => Shape::Keyed(NAME),
        (_, "volumeMounts") => Shape::Keyed(&["mountPath"]),
        (_, "conditions") => Shape::Keyed(&["type"]),
        (_, "topologySpreadConstraints") => Shape::Keyed(&["topologyKey", "whenUnsatisfiable"]),
        (_, "selector" | "nodeSelector" | "labelSelector" | "roleRef") => Shape::Atomic,
        (_, "secretKeyRef" | "configMapKeyRef" | "fieldRef" | "resourceFieldRef") => Shape::Atomic,
        _ if list => Shape::Atomic,
        _ => Shape::Granular,
    }
}

/// Everything in `object` that can be owned, with its value.
pub(crate) fn leaves(kind: &Kind, object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        let mut path = vec![Step::Field(key.clone())];
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                let metadata = value.as_object().into_iter().flatten();
                for (key, value) in metadata.filter(|(key, _)| !SYSTEM.contains(&key.as_str())) {
                    path.push(Step::Field(key.clone()));
                    walk(kind, "metadata", key, value, &mut path, &mut found);
                    path.pop();
                }
            }
            key => walk(kind, "", key, value, &mut path, &mut found),
        }
    }
    found
}

fn walk(kind: &Kind, parent: &str, field: &str, value: &Value, path: &mut Path, found: &mut BTreeMap<Path, Value>) {
    match (value, shape(kind, parent, field, value)) {
        (Value::Object(map), Shape::Granular) if !map.is_empty() => {
            for (key, value) in map {
                path.push(Step::Field(key.clone()));
                walk(kind, field, key, value, path, found);
                path.pop();
            }
        }
        (Value::Array(list), Shape::Keyed(keys)) => {
            for element in list {
                path.push(Step::Item(identity(element, keys)));
                found.insert(path.clone(), Value::Null);
                for (key, value) in element.as_object().into_iter().flatten() {
                    path.push(Step::Field(key.clone()));
                    walk(kind, field, key, value, path, found);
                    path.pop();
                }
                path.pop();
            }
        }
        (Value::Array(list), Shape::Granular) => {
            for member in list {
                path.push(Step::Member(member.to_string()));
                found.insert(path.clone(), Value::Null);
                path.pop();
            }
        }
        (value, _) => drop(found.insert(path.clone(), value.clone())),
    }
}

/// The keys that identify an element; the default protocol is TCP.
fn identity(element: &Value, keys: &[&str]) -> String {
    let key = |key: &&str| {
        let default = if *key == "protocol" { json!("TCP") } else { Value::Null };
        let value = element.get(key).cloned().unwrap_or(default);
        ((*key).to_owned(), value)
    };
    Value::Object(keys.iter().map(key).collect()).to_string()
}

/// Merges `config` into `live`: other fields stay.
pub(crate) fn overlay(kind: &Kind, live: &Value, config: &Value) -> Value {
    let mut merged = live.clone();
    for (key, value) in config.as_object().into_iter().flatten() {
        lay(kind, "", key, &mut merged[key], value);
    }
    merged
}

fn lay(kind: &Kind, parent: &str, field: &str, live: &mut Value, config: &Value) {
    match (config, shape(kind, parent, field, config)) {
        (Value::Object(config), Shape::Granular) => {
            if !live.is_object() {
                *live = Value::Object(Map::new());
            }
            for (key, value) in config {
                lay(kind, field, key, &mut live[key], value);
            }
        }
        (Value::Array(config), Shape::Keyed(keys)) => {
            let mut merged = live.as_array().cloned().unwrap_or_default();
            for element in config {
                let known = identity(element, keys);
                match merged.iter_mut().find(|other| identity(other, keys) == known) {
                    Some(other) => {
                        for (key, value) in element.as_object().into_iter().flatten() {
                            lay(kind, field, key, &mut other[key], value);
                        }
                    }
                    None => merged.push(element.clone()),
                }
            }
            *live = Value::Array(merged);
        }
        (Value::Array(config), Shape::Granular) => {
            let mut merged = live.as_array().cloned().unwrap_or_default();
            merged.extend(config.iter().filter(|member| !live_has(live, member)).cloned());
            *live = Value::Array(merged);
        }
        (config, _) => *live = config.clone(),
    }
}

fn live_has(live: &Value, member: &Value) -> bool {
    live.as_array().is_some_and(|live| live.contains(member))
}

/// Takes out what is at `path`, and what is empty then; what is `named` is `null` then, as Kubernetes leaves it.
pub(crate) fn remove(value: &mut Value, path: &[Step], named: &dyn Fn(&[Step]) -> bool) {
    remove_below(value, path, 0, named);
}

fn remove_below(value: &mut Value, path: &[Step], depth: usize, named: &dyn Fn(&[Step]) -> bool) {
    let (Some(first), here) = (path.get(depth), depth + 1) else {
        return;
    };
    match (first, value) {
        (Step::Field(key), Value::Object(map)) => {
            if here == path.len() {
                map.remove(key);
            } else if let Some(inner) = map.get_mut(key) {
                remove_below(inner, path, here, named);
                let empty = *inner == json!({}) || *inner == json!([]);
                match empty {
                    true if named(&path[..here]) => *inner = Value::Null,
                    true => drop(map.remove(key)),
                    false => {}
                }
            }
        }
        (Step::Item(known), Value::Array(list)) => {
            let keys: Value = serde_json::from_str(known).unwrap_or_default();
            let names: Vec<_> = keys
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key.as_str())
                .collect();
            let position = list.iter().position(|element| identity(element, &names) == *known);
            match position {
                Some(position) if here == path.len() => drop(list.remove(position)),
                Some(position) => remove_below(&mut list[position], path, here, named),
                None => {}
            }
        }
        (Step::Member(member), Value::Array(list)) => {
            let member: Value = serde_json::from_str(member).unwrap_or_default();
            list.retain(|other| *other != member);
        }
        _ => {}
    }
}

/// This is one of the keys by which an element is known.
pub(crate) fn is_key(path: &Path) -> bool {
    let [.., Step::Item(keys), Step::Field(field)] = path.as_slice() else {
        return false;
    };
    serde_json::from_str::<Value>(keys).is_ok_and(|keys| keys.get(field).is_some())
}

/// The fields in the format `fieldsV1`.
pub(crate) fn fields_v1(fields: &BTreeSet<Path>) -> Value {
    let mut root = Map::new();
    for path in fields {
        let mut map = &mut root;
        for step in path {
            let key = match step {
                Step::Field(key) => format!("f:{key}"),
                Step::Item(keys) => format!("k:{keys}"),
                Step::Member(member) => format!("v:{member}"),
            };
            let inner = map.entry(key).or_insert_with(|| json!({}));
            let Value::Object(inner) = inner else {
                return Value::Null;
            };
            map = inner;
        }
        if matches!(path.last(), Some(Step::Item(_))) {
            map.insert(".".to_owned(), json!({}));
        }
    }
    Value::Object(root)
}

/// A path as messages about conflicts say it.
pub(crate) fn spoken(path: &Path) -> String {
    let step = |step: &Step| match step {
        Step::Field(key) => format!(".{key}"),
        Step::Item(keys) => format!(
            "[{}]",
            keys.trim_matches(|letter| letter == '{' || letter == '}')
                .replace("\":", "\"=")
        ),
        Step::Member(member) => format!("[={member}]"),
    };
    path.iter().map(step).collect()
}
