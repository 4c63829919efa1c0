//! The CustomResourceDefinition, made from the types and adapted to what an API server accepts.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{
    ClusteredDatabase,
    rules::{LIMITS, RULES, Rule},
    values,
};

/// Fields whose types are Kubernetes' own. Their descriptions have many kilobytes, so only the first sentence stays.
const FOREIGN: [&str; 7] = [
    "/spec/properties/resources",
    "/spec/properties/scheduling/properties/affinity",
    "/spec/properties/scheduling/properties/tolerations",
    "/spec/properties/scheduling/properties/topologySpreadConstraints",
    "/spec/properties/networkPolicy/properties/clients",
    "/spec/properties/networkPolicy/properties/monitoring",
    "/status/properties/conditions",
];

/// Path of the schema in a CustomResourceDefinition.
pub(crate) const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

/// The CustomResourceDefinition of `ClusteredDatabase`.
///
/// # Panics
/// If the types in this crate do not make a definition, which the tests exclude.
pub fn crd() -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(ClusteredDatabase::crd()).expect("a definition is JSON");
    let schema = definition.pointer_mut(SCHEMA).expect("the definition has a schema");
    for field in FOREIGN {
        let field = schema
            .pointer_mut(&format!("/properties{field}"))
            .expect("the field stands in the schema");
        each_schema(field, &mut shorten_description);
    }
    each_schema(schema, &mut drop_what_means_nothing_to_a_server);
    values::explain::<ClusteredDatabase>(schema);
    each_schema(field_of(schema, "spec.bootstrap"), &mut drop_default);
    remove_claims(schema);
    for (field, keyword, bound) in LIMITS {
        set(field_of(schema, field), keyword, bound.into());
    }
    for rule in RULES.iter() {
        add_rule(field_of(schema, &rule.at), rule);
    }
    serde_json::from_value(definition).expect("still a definition")
}

/// [`crd`] as the YAML that is checked in as `manifests/crd/clustereddatabases.yaml`.
///
/// # Panics
/// As [`crd`].
pub fn crd_yaml() -> String {
    let yaml = serde_saphyr::to_string(&crd()).expect("a definition is YAML");
    format!("# Generated from crates/api; `UPDATE=1 cargo test -p api` writes it again.\n{yaml}")
}

/// The schema of a field such as `spec.storage.data.size`, where `*` stands for a list's items or a map's values.
pub(crate) fn field_of<'a>(schema: &'a mut Value, field: &str) -> &'a mut Value {
    let mut found = schema;
    for name in field.split('.').filter(|name| !name.is_empty()) {
        let inner = match name {
            "*" if found.get("items").is_some() => found.get_mut("items"),
            "*" => found.get_mut("additionalProperties"),
            name => found.get_mut("properties").and_then(|fields| fields.get_mut(name)),
        };
        found = inner.unwrap_or_else(|| panic!("the schema has no {field}"));
    }
    found
}

/// Sets a keyword of a schema.
pub(crate) fn set(schema: &mut Value, keyword: &str, value: Value) {
    schema
        .as_object_mut()
        .expect("a schema is an object")
        .insert(keyword.to_owned(), value);
}

/// Adds a rule to a schema.
fn add_rule(schema: &mut Value, rule: &Rule) {
    let object = schema.as_object_mut().expect("a schema is an object");
    let mut validation = json!({ "rule": rule.cel, "message": rule.message });
    if let Some(field) = rule.about.and_then(|field| field.strip_prefix(&*rule.at)) {
        validation["fieldPath"] = format!(".{}", field.trim_start_matches('.')).into();
    }
    let rules = object.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    rules.as_array_mut().expect("rules are a list").push(validation);
}

/// Takes `claims` out of `resources`: they name devices that a pod must declare, and ours declare none.
fn remove_claims(schema: &mut Value) {
    let resources = field_of(schema, "spec.resources");
    resources
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .and_then(|fields| fields.remove("claims"));
}

/// Calls `visit` for `schema` and every schema inside it.
pub(crate) fn each_schema(schema: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    visit(schema);
    let Some(object) = schema.as_object_mut() else { return };
    for (key, inner) in object {
        match (key.as_str(), inner) {
            ("properties", Value::Object(fields)) => fields.values_mut().for_each(|field| each_schema(field, visit)),
            ("items" | "additionalProperties", inner) => each_schema(inner, visit),
            _ => {}
        }
    }
}

/// Drops a default: the API server would write it into the user's object.
fn drop_default(schema: &mut Value) {
    schema.as_object_mut().map(|object| object.remove("default"));
}

/// Keeps the first sentence of a description.
pub(crate) fn shorten_description(schema: &mut Value) {
    let Some(Value::String(text)) = schema.get_mut("description") else {
        return;
    };
    let paragraph = text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let end = paragraph
        .match_indices(". ")
        .map(|(at, _)| at + 1)
        .find(|at| !paragraph[..*at].ends_with("e.g."));
    *text = paragraph[..end.unwrap_or(paragraph.len())].trim().to_owned();
}

/// Drops Rust's integer formats, which an API server does not know, with the bounds that they bring (where bounds matter
/// there is a rule, whose message is better), and `nullable`: without it the server drops nulls, so that a field is
/// either absent or has a value.
pub(crate) fn drop_what_means_nothing_to_a_server(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    object.remove("nullable");
    if object
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|format| format.starts_with("uint"))
    {
        object.remove("format");
        object.remove("minimum");
        object.remove("maximum");
    }
}
