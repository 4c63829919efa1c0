//! What leaves a cluster in a report holds no secret that can be told by its place or its name.

use serde_json::{Value, json};

use crate::snapshot::Snapshot;

/// What stands in the place of a secret.
pub const REDACTED: &str = "(redacted)";
/// Parts of names whose values are secrets.
const SECRET_NAMES: [&str; 8] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "private",
    "access_key",
];
/// Statements that the user runs once: they may make roles with passwords.
const STATEMENTS: &str = "postInitSql";
/// kubectl's copy of what was applied: everything in it stands elsewhere, or is secret.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Takes the secrets out of all objects, and what nobody reads.
pub fn snapshot(snapshot: &mut Snapshot) {
    snapshot.objects.retain(|object| object["kind"] != "Secret");
    for object in &mut snapshot.objects {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        value(object);
    }
}

/// Takes the secrets out of one object.
pub fn value(object: &mut Value) {
    match object {
        Value::Object(fields) => {
            let secret = fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            if let (true, Some(value)) = (secret, fields.get_mut("value").filter(|value| !value.is_null())) {
                *value = json!(REDACTED);
            }
            fields.remove(LAST_APPLIED);
            for (name, field) in fields.iter_mut() {
                if name == STATEMENTS {
                    statements(field);
                } else if field.is_string() && is_secret(name) && !is_reference(name) {
                    *field = json!(REDACTED);
                } else {
                    value(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(value),
        Value::String(text) => *text = self::text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Takes passwords out of URIs (`scheme://user:password@host`), wherever they stand.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '?'))
            .unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        match authority
            .rsplit_once('@')
            .map(|(user, host)| (user.split_once(':'), host))
        {
            Some((Some((user, _)), host)) => out.push_str(&format!("{user}:{REDACTED}@{host}")),
            _ => out.push_str(authority),
        }
        rest = tail;
    }
    out + rest
}

fn statements(field: &mut Value) {
    for statement in field.as_array_mut().into_iter().flatten() {
        *statement = json!(REDACTED);
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Fields that hold a Secret's name, or say where something is mounted, but nothing secret.
fn is_reference(field: &str) -> bool {
    ["passwordSecret", "secretName", "automountServiceAccountToken"].contains(&field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_by_their_names_and_places() {
        let mut object = json!({
            "metadata": {"name": "demo", "annotations": {LAST_APPLIED: "all of it", "kept": "postgres://u:p@h/db"}},
            "spec": {
                "bootstrap": {"initdb": {"postInitSql": ["CREATE ROLE a PASSWORD 'b'"], "passwordSecret": "mine"}},
                "containers": [{"env": [
                    {"name": "PGPASSWORD", "value": "b"},
                    {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
                    {"name": "PGHOST", "value": "h"},
                ]}],
                "volumes": [{"name": "tls", "secret": {"secretName": "demo-tls"}}],
                "parameters": {"app.password": "b", "work_mem": "8MB"},
            },
        });
        value(&mut object);
        let text = object.to_string();
        assert!(
            !text.contains("\"b\"") && !text.contains("CREATE ROLE") && !text.contains("all of it"),
            "{text}"
        );
        assert_eq!(
            object["metadata"]["annotations"]["kept"],
            "postgres://u:(redacted)@h/db"
        );
        assert_eq!(object["spec"]["bootstrap"]["initdb"]["passwordSecret"], "mine");
        assert_eq!(object["spec"]["volumes"][0]["secret"]["secretName"], "demo-tls");
        assert_eq!(object["spec"]["containers"][0]["env"][2]["value"], "h");
        assert_eq!(object["spec"]["parameters"]["work_mem"], "8MB");
    }

    #[test]
    fn uris_without_a_password_stay() {
        assert_eq!(
            text("see https://a/b?c=d://e and postgres://u@h"),
            "see https://a/b?c=d://e and postgres://u@h"
        );
        assert_eq!(
            text("x postgres://u:p@w@h:5432/db y"),
            "x postgres://u:(redacted)@h:5432/db y"
        );
    }
}
