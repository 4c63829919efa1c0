//! The differences of two values, field by field: of two specs, or of two decisions.

use serde::Serialize;
use serde_json::Value;

/// One changed field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The field, such as `spec.replicas`.
    pub field: String,
    /// Its old value; absent if it was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// Its new value; absent if it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |value: &Option<Value>| match value {
            None => "(absent)".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        write!(f, "{}: {} -> {}", self.field, show(&self.old), show(&self.new))
    }
}

/// The fields below `root` that differ, those of maps one by one.
pub fn changes(root: &str, old: &Value, new: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    compare(root, Some(old), Some(new), &mut found);
    found
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Change>) {
    if old == new {
        return;
    }
    let map = |value: Option<&Value>| value.map_or(Some(serde_json::Map::new()), |value| value.as_object().cloned());
    let maps = old.is_some_and(Value::is_object) || new.is_some_and(Value::is_object);
    if let (true, Some(olds), Some(news)) = (maps, map(old), map(new)) {
        let mut keys: Vec<_> = olds
            .keys()
            .chain(news.keys().filter(|key| !olds.contains_key(*key)))
            .collect();
        keys.sort();
        for key in keys {
            compare(&below(path, key), olds.get(key), news.get(key), found);
        }
        return;
    }
    found.push(Change {
        field: path.to_owned(),
        old: old.cloned(),
        new: new.cloned(),
    });
}

/// Fields of `given`, whose path is `root`, that `understood` lacks: misspelt ones, or ones of another version. Empty fields do
/// not count.
pub fn unknown(root: &str, given: &Value, understood: &Value) -> Vec<String> {
    let mut found = Vec::new();
    miss(root, given, Some(understood), &mut found);
    found
}

fn miss(path: &str, given: &Value, understood: Option<&Value>, found: &mut Vec<String>) {
    let Some(understood) = understood else {
        if !is_empty(given) {
            found.push(path.to_owned());
        }
        return;
    };
    match (given, understood) {
        (Value::Object(fields), Value::Object(known)) => {
            for (key, value) in fields {
                miss(&below(path, key), value, known.get(key), found);
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            for (index, item) in items.iter().enumerate() {
                miss(&format!("{path}[{index}]"), item, known.get(index), found);
            }
        }
        _ => {}
    }
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_named_one_by_one() {
        let old = json!({"replicas": 3, "postgres": {"parameters": {"a": "1"}}, "same": [1]});
        let new = json!({"replicas": 5, "postgres": {"parameters": {"b": "2"}}, "same": [1], "resources": {"limits": {"cpu": "1"}}});
        let told: Vec<_> = changes("spec", &old, &new).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "spec.postgres.parameters.a: 1 -> (absent)",
                "spec.postgres.parameters.b: (absent) -> 2",
                "spec.replicas: 3 -> 5",
                "spec.resources.limits.cpu: (absent) -> 1",
            ]
        );
        assert!(changes("spec", &old, &old).is_empty());
    }

    #[test]
    fn misspelt_fields_are_found() {
        let given = json!({"replica": 3, "storage": {"data": {"size": "1Gi", "clas": "x"}}, "paused": null, "list": [{"a": 1, "b": 2}]});
        let understood = json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}, "list": [{"a": 1}]});
        assert_eq!(
            unknown("spec", &given, &understood),
            ["spec.list[0].b", "spec.replica", "spec.storage.data.clas"]
        );
    }
}
