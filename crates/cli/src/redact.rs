//! Removes secrets from a report: those that are known by their place or their name.

use api::names::OWN_KEYS;
use serde_json::{Value, json};

use crate::snapshot::Snapshot;

/// The replacement of a secret.
pub const REDACTED: &str = "(redacted)";
/// Parts of names whose values are secrets.
const SECRET_NAMES: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "private",
    "access_key",
    "api_key",
    "apikey",
    "encryption_key",
];
/// Annotations of Kubernetes itself, such as the mark of the default StorageClass.
const KUBERNETES: &str = "kubernetes.io/";
/// The user's statements: they may make roles with passwords.
const STATEMENTS: &str = "postInitApplicationSQL";
/// kubectl's copy of what was applied: the object has all of it, or it is secret.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes the secrets of all objects, and parts without use.
pub fn snapshot(snapshot: &mut Snapshot) {
    snapshot.objects.retain(|object| object["kind"] != "Secret");
    for object in &mut snapshot.objects {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.retain(|name, _| name.starts_with(OWN_KEYS) || name.contains(KUBERNETES));
            }
        }
        value(object);
    }
}

/// Removes the secrets of one object.
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

/// Removes secrets from a text: passwords of URIs (`scheme://user:password@host`), and the value after a secret's name and `=`
/// or `:`, or in quotes after the name (`password=x`, `PASSWORD 'x'`).
pub fn text(text: &str) -> String {
    named(&uris(text))
}

fn uris(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        // A password may hold anything but blanks: its end is the last @ before one.
        let end = after.find(char::is_whitespace).unwrap_or(after.len());
        let (word, tail) = after.split_at(end);
        match word.rsplit_once('@').map(|(user, host)| (user.split_once(':'), host)) {
            Some((Some((user, _)), host)) => out.push_str(&format!("{user}:{REDACTED}@{host}")),
            _ => out.push_str(word),
        }
        rest = tail;
    }
    out + rest
}

fn named(text: &str) -> String {
    let lower = text.to_ascii_lowercase().replace('-', "_");
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(name) = SECRET_NAMES.iter().filter_map(|part| lower[at..].find(part)).min() {
        let begin = at + name;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let after = text[begin..].trim_start_matches(is_name);
        let value = value_of(after);
        let end = value.map_or(text.len() - after.len(), |value| text.len() - value.len());
        out.push_str(&text[at..end]);
        at = end;
        if let Some(value) = value {
            out.push_str(REDACTED);
            at += value
                .find(|c: char| c.is_whitespace() || "'\",;&)}".contains(c))
                .unwrap_or(value.len());
        }
    }
    out + &text[at..]
}

/// The start of the value after a secret's name; `None` if there is none.
fn value_of(after: &str) -> Option<&str> {
    let quotes = ['\'', '"', '\\'];
    let bare = after.trim_start_matches(quotes).trim_start();
    let value = match bare.strip_prefix(['=', ':']) {
        Some(value) => value.trim_start().trim_start_matches(quotes),
        None => after
            .trim_start()
            .strip_prefix('\'')
            .filter(|_| after.starts_with(' '))?,
    };
    let taken = value.is_empty() || value.starts_with(REDACTED) || value.starts_with('/');
    (!taken).then_some(value)
}

fn statements(field: &mut Value) {
    for statement in field.as_array_mut().into_iter().flatten() {
        *statement = json!(REDACTED);
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Fields with a Secret's name or a mount path, which are not secret.
fn is_reference(field: &str) -> bool {
    ["passwordSecretRef", "secretName", "automountServiceAccountToken"].contains(&field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_by_their_names_and_places() {
        let mut object = json!({
            "metadata": {"name": "demo", "annotations": {LAST_APPLIED: "all of it", "kept": "postgres://u:p@h/db"}},
            "spec": {
                "bootstrap": {"initdb": {"postInitApplicationSQL": ["CREATE ROLE a PASSWORD 'b'"], "passwordSecretRef": {"name": "mine"}}},
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
        assert_eq!(
            object["spec"]["bootstrap"]["initdb"]["passwordSecretRef"]["name"],
            "mine"
        );
        assert_eq!(object["spec"]["volumes"][0]["secret"]["secretName"], "demo-tls");
        assert_eq!(object["spec"]["containers"][0]["env"][2]["value"], "h");
        assert_eq!(object["spec"]["parameters"]["work_mem"], "8MB");
    }

    #[test]
    fn secrets_in_texts_go_by_what_stands_before_them() {
        for (before, after) in [
            (
                "jdbc:postgresql://h/db?user=u&password=x&ssl=true",
                "jdbc:postgresql://h/db?user=u&password=(redacted)&ssl=true",
            ),
            ("PGPASSWORD=x cp %p", "PGPASSWORD=(redacted) cp %p"),
            ("host=h password = 'x y'", "host=h password = '(redacted) y'"),
            ("ALTER ROLE a PASSWORD 'x'", "ALTER ROLE a PASSWORD '(redacted)'"),
            (r#"{"apiKey":"x","n":1}"#, r#"{"apiKey":"(redacted)","n":1}"#),
            ("--encryption-key: x", "--encryption-key: (redacted)"),
            ("postgres://u:p/w?@h/db", "postgres://u:(redacted)@h/db"),
        ] {
            assert_eq!(text(before), after);
        }
        for plain in [
            "Secret demo-app is missing",
            "no password",
            "https://a/token",
            "the token of ServiceAccount demo",
        ] {
            assert_eq!(text(plain), plain);
        }
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
