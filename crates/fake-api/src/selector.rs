//! Label and field selectors.

use serde_json::Value;

/// Whether an object is selected by `labelSelector` and `fieldSelector` (equality, existence, and `in`-lists of labels).
pub(crate) fn selects(labels: Option<&str>, fields: Option<&str>, object: &Value) -> bool {
    labels.is_none_or(|selector| parts(selector).iter().all(|part| label(part, object)))
        && fields.is_none_or(|selector| parts(selector).iter().all(|part| field(part, object)))
}

/// The selector's parts: split at commas that are not within parentheses.
fn parts(selector: &str) -> Vec<String> {
    let mut depth = 0;
    let mut found = vec![String::new()];
    for letter in selector.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match (letter, found.last_mut()) {
            (',', _) if depth == 0 => found.push(String::new()),
            (letter, Some(last)) => last.push(letter),
            (_, None) => {}
        }
    }
    found.retain(|part| !part.trim().is_empty());
    found
}

fn label(part: &str, object: &Value) -> bool {
    let value = |key: &str| object["metadata"]["labels"][key.trim()].as_str();
    let part = part.trim();
    if let Some((key, list)) = part.split_once(" notin ") {
        return !value(key).is_some_and(|value| among(list, value));
    }
    if let Some((key, list)) = part.split_once(" in ") {
        return value(key).is_some_and(|value| among(list, value));
    }
    match (part.split_once("!="), part.split_once("==").or(part.split_once('='))) {
        (Some((key, wanted)), _) => value(key) != Some(wanted.trim()),
        (None, Some((key, wanted))) => value(key) == Some(wanted.trim()),
        (None, None) => match part.strip_prefix('!') {
            Some(key) => value(key).is_none(),
            None => value(part).is_some(),
        },
    }
}

fn among(list: &str, value: &str) -> bool {
    let list = list.trim().trim_start_matches('(').trim_end_matches(')');
    list.split(',').any(|one| one.trim() == value)
}

fn field(part: &str, object: &Value) -> bool {
    let value = |path: &str| {
        let found = path.trim().split('.').try_fold(object, |value, key| value.get(key));
        found.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    match (part.split_once("!="), part.split_once("==").or(part.split_once('='))) {
        (Some((path, wanted)), _) => value(path) != wanted.trim(),
        (None, Some((path, wanted))) => value(path) == wanted.trim(),
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_select() {
        let object = json!({"metadata": {"name": "a", "labels": {"x/app": "db", "tier": "1"}}, "reason": "R"});
        for yes in [
            "x/app",
            "x/app=db",
            "x/app==db,tier",
            "tier!=2",
            "!none",
            "tier in (1, 2),x/app",
            "tier notin (2)",
        ] {
            assert!(selects(Some(yes), None, &object), "{yes}");
        }
        for no in [
            "none",
            "x/app=other",
            "!tier",
            "tier!=1",
            "tier in (2,3)",
            "tier notin (1)",
        ] {
            assert!(!selects(Some(no), None, &object), "{no}");
        }
        assert!(selects(None, Some("metadata.name=a,reason=R"), &object));
        assert!(!selects(None, Some("metadata.name=a,reason=S"), &object));
        assert!(selects(None, None, &object));
    }
}
