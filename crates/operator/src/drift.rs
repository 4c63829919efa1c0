//! Whether an object is as it should be: the desired content must be contained in the live one. What the API server
//! adds by itself, and how it writes quantities, is no difference.

use api::names::OWN_KEYS;
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
        let annotation = self.key == ANNOTATIONS || self.parent == ANNOTATIONS && !self.key.starts_with(OWN_KEYS);
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
mod tests;
