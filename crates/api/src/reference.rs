//! The reference of the resource's fields, as a page of Markdown.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::rules::{FORBIDDEN, forbidden_message};
use crate::waiting::WaitReason;

/// Fields of Kubernetes' own types, with links to their descriptions instead of a copy.
const KUBERNETES: [(&str, &str, &str); 5] = [
    (
        "spec.resources",
        "ResourceRequirements",
        "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
    ),
    (
        "spec.scheduling.affinity",
        "Affinity",
        "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/",
    ),
    (
        "spec.scheduling.tolerations",
        "[]Toleration",
        "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",
    ),
    (
        "spec.scheduling.topologySpreadConstraints",
        "[]TopologySpreadConstraint",
        "https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/",
    ),
    (
        "status.conditions",
        "[]Condition",
        "https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/",
    ),
];

/// The reference of `ClusteredDatabase`, made from its definition: `docs/api.md`.
pub fn reference() -> String {
    let definition = serde_json::to_value(crate::crd()).unwrap_or_default();
    let schema = definition.pointer(crate::crd::SCHEMA).cloned().unwrap_or_default();
    let mut page = String::from(HEAD);
    rules(&mut page, &schema);
    for part in ["spec", "status"] {
        section(&mut page, part, &schema["properties"][part]);
    }
    reasons(&mut page);
    let others = [
        (OPERATIONS, crate::operation::crd()),
        (BACKUPS, crate::backup::crd()),
        (USERS, crate::user::crd()),
        (DATABASES, crate::database::crd()),
        (POOLERS, crate::pooler::crd()),
    ];
    for (head, definition) in others {
        let definition = serde_json::to_value(definition).unwrap_or_default();
        let schema = definition.pointer(crate::crd::SCHEMA).cloned().unwrap_or_default();
        page.push_str(head);
        for part in ["spec", "status"] {
            section(&mut page, part, &schema["properties"][part]);
        }
    }
    page
}

/// What `status.waiting.reason` can be.
fn reasons(page: &mut String) {
    page.push_str(REASONS);
    for reason in WaitReason::ALL.iter().filter(|reason| **reason != WaitReason::Change) {
        let _ = writeln!(page, "| `{reason}` | `{}` | {} |", reason.actor(), reason.meaning());
    }
}

const REASONS: &str = "
## Reasons of waits

What `status.waiting.reason` can be, and who can usually end such a wait. A later version may have more
reasons. In a single case `status.waiting.actor` may be another one: go by that.

| reason | actor | what it means |
|---|---|---|
";

const OPERATIONS: &str = "
# ClusteredDatabaseOperation

Short name `cdbop`: one thing that is done once to a ClusteredDatabase of the same namespace. Its
`spec` cannot be changed, except `cancel`.
";

const BACKUPS: &str = "
# DatabaseBackup

Short name `dbb`: one backup of a ClusteredDatabase of the same namespace, into the store that its
`spec.backup` names. Its `spec` cannot be changed.
";

const USERS: &str = "
# DatabaseUser

Short name `dbu`: a role of PostgreSQL, and what it may do in the databases of a ClusteredDatabase of the
same namespace.
";

const DATABASES: &str = "
# Database

Short name `dbd`: a database of PostgreSQL in a ClusteredDatabase of the same namespace, with its owner,
extensions and schemas.
";

const POOLERS: &str = "
# Pooler

Short name `cdbpool`: PgBouncer in front of a ClusteredDatabase of the same namespace.
";

const HEAD: &str = "<!-- Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again. -->

# ClusteredDatabase

`apiVersion: clustereddatabase.io/v1alpha2`, `kind: ClusteredDatabase`, short name `cdb`. The same text is in
`kubectl explain cdb.spec`. Only `spec` is yours to write; `status` is the operator's.

A field with no default may be left out unless it is marked *required*. The API server refuses what breaks a rule below,
with the rule's text as the message.

Rules:
";

/// One object's fields as a table, and then the objects inside it.
fn section(page: &mut String, path: &str, schema: &Value) {
    let Some(fields) = schema["properties"].as_object() else {
        return;
    };
    let _ = write!(page, "\n## {path}\n\n{}\n\n", wrapped("", &text(schema)));
    page.push_str("| field | type | default | what it says |\n|---|---|---|---|\n");
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (name, field) in fields {
        let inner = format!("{path}.{name}");
        let needed = required.iter().any(|one| one == name.as_str());
        let _ = writeln!(
            page,
            "| `{name}` | {} | {} | {} |",
            type_of(&inner, field),
            default_of(field, needed),
            text(field)
        );
    }
    rules_of_section(page, path, schema, fields);
    for (name, field) in fields {
        let inner = format!("{path}.{name}");
        if !is_kubernetes(&inner) {
            section(page, &inner, field);
            section(page, &format!("{inner}[]"), &field["items"]);
            section(page, &format!("{inner}.*"), &field["additionalProperties"]);
        }
    }
}

/// The rules of an object and of those of its fields that have no section of their own.
fn rules_of_section(page: &mut String, path: &str, schema: &Value, fields: &Map<String, Value>) {
    let mut lines = String::new();
    rules(&mut lines, schema);
    for (name, field) in fields {
        if field["properties"].is_null() || is_kubernetes(&format!("{path}.{name}")) {
            rules(&mut lines, field);
        }
    }
    if !lines.is_empty() {
        let _ = write!(page, "\nRules:\n{lines}");
    }
}

/// The messages of one schema's rules, as a list; those about each forbidden parameter as one.
fn rules(page: &mut String, schema: &Value) {
    let rules = schema["x-kubernetes-validations"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let messages: Vec<_> = rules.iter().filter_map(|rule| rule["message"].as_str()).collect();
    let is_forbidden = |message: &str| FORBIDDEN.iter().any(|name| message == forbidden_message(name));
    for message in messages.iter().filter(|message| !is_forbidden(message)) {
        let _ = writeln!(page, "{}", wrapped("- ", message));
    }
    if messages.iter().any(|message| is_forbidden(message)) {
        let names: Vec<_> = FORBIDDEN.iter().map(|name| format!("`{name}`")).collect();
        let message = forbidden_message(&format!("any of these ({})", names.join(", ")));
        let _ = writeln!(page, "{}", wrapped("- ", &message));
    }
}

/// Longest line of the page outside of tables, in characters.
const WIDTH: usize = 100;

/// A paragraph, or an item of a list that begins with `- `, broken into lines.
fn wrapped(begin: &str, paragraph: &str) -> String {
    let indent = begin.chars().count();
    let (mut lines, mut width) = (begin.to_owned(), indent);
    for (number, word) in paragraph.split(' ').enumerate() {
        let long = word.chars().count();
        if number > 0 && width + 1 + long > WIDTH {
            let _ = write!(lines, "\n{:indent$}{word}", "");
            width = indent + long;
        } else {
            lines.push_str(if number > 0 { " " } else { "" });
            lines.push_str(word);
            width += usize::from(number > 0) + long;
        }
    }
    lines
}

fn is_kubernetes(path: &str) -> bool {
    KUBERNETES.iter().any(|(field, _, _)| *field == path)
}

fn type_of(path: &str, field: &Value) -> String {
    if let Some((_, name, link)) = KUBERNETES.iter().find(|(field, _, _)| *field == path) {
        return format!("[{name}]({link})");
    }
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<_> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|value| format!("`{value}`"))
            .collect();
        return values.join(" or ");
    }
    match field["type"].as_str().unwrap_or("any") {
        "array" => format!("list of {}", type_of("", &field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map of {}", type_of("", &field["additionalProperties"]))
        }
        "string" if field["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    }
}

fn default_of(field: &Value, required: bool) -> String {
    match &field["default"] {
        _ if required => "*required*".to_owned(),
        Value::Null | Value::Object(_) => String::new(),
        default => format!("`{default}`"),
    }
}

fn text(schema: &Value) -> String {
    schema["description"]
        .as_str()
        .unwrap_or_default()
        .replace('\n', " ")
        .replace('|', "\\|")
}
