//! JSON merge patches (RFC 7386), and the part of strategic merge patches that is used on pods.

use serde_json::{Map, Value};

/// Applies a JSON merge patch.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    merge(target, patch, false);
}

/// Applies a strategic merge patch: elements of lists are known by their `name`, if they have one.
pub(crate) fn strategic_patch(target: &mut Value, patch: &Value) {
    merge(target, patch, true);
}

fn merge(target: &mut Value, patch: &Value, strategic: bool) {
    match (patch, strategic) {
        (Value::Object(patch), _) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            for (key, value) in patch {
                if value.is_null() {
                    target.as_object_mut().map(|target| target.remove(key));
                } else {
                    merge(&mut target[key], value, strategic);
                }
            }
        }
        (Value::Array(patch), true) if patch.iter().all(|element| element["name"].is_string()) => {
            if !target.is_array() {
                *target = Value::Array(Vec::new());
            }
            let Value::Array(target) = target else { return };
            for element in patch {
                match target.iter_mut().find(|other| other["name"] == element["name"]) {
                    Some(other) => merge(other, element, strategic),
                    None => target.push(element.clone()),
                }
            }
        }
        (patch, _) => *target = patch.clone(),
    }
}

/// Takes every `null` out of maps, as typed objects lose them.
pub(crate) fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_patches_replace_lists_and_strategic_ones_find_elements() {
        let live = json!({"a": {"b": 1, "c": 2}, "l": [{"name": "x", "v": 1}, {"name": "y"}]});
        let patch = json!({"a": {"b": null, "d": 3}, "l": [{"name": "x", "w": 2}]});
        let mut merged = live.clone();
        merge_patch(&mut merged, &patch);
        assert_eq!(merged, json!({"a": {"c": 2, "d": 3}, "l": [{"name": "x", "w": 2}]}));
        let mut merged = live;
        strategic_patch(&mut merged, &patch);
        let list = json!([{"name": "x", "v": 1, "w": 2}, {"name": "y"}]);
        assert_eq!(merged, json!({"a": {"c": 2, "d": 3}, "l": list}));
    }
}
