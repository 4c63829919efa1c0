//! Every field that `kubectl explain` can show has a description.

use serde_json::Value;

fn schema() -> Value {
    let definition = serde_json::to_value(api::crd()).expect("JSON");
    definition
        .pointer("/spec/versions/0/schema/openAPIV3Schema")
        .expect("the definition has a schema")
        .clone()
}

/// The paths of all fields of `schema` without a description; counts the fields seen.
fn undocumented(path: &str, schema: &Value, seen: &mut usize) -> Vec<String> {
    let mut found = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        *seen += 1;
        if field["description"].as_str().is_none_or(|text| text.trim().is_empty()) {
            found.push(path.clone());
        }
        found.extend(undocumented(&path, field, seen));
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            found.extend(undocumented(&format!("{path}.*"), &schema[inner], seen));
        }
    }
    found
}

#[test]
fn every_field_is_documented() {
    let mut seen = 0;
    assert_eq!(undocumented("", &schema(), &mut seen), Vec::<String>::new());
    assert!(seen > 100, "only {seen} fields were looked at");
}

#[test]
fn a_field_without_description_would_be_found() {
    let mut schema = schema();
    let field = schema.pointer_mut("/properties/status/properties/history/items/properties/message");
    field
        .and_then(Value::as_object_mut)
        .expect("a field")
        .remove("description");
    assert_eq!(undocumented("", &schema, &mut 0), [".status.history.*.message"]);
}

/// Schemas that an API server refuses or that need care with some clients: alternatives, as from enums that are not
/// externally tagged.
#[test]
fn no_schema_has_alternatives() {
    let text = schema().to_string();
    for keyword in ["\"oneOf\"", "\"anyOf\"", "\"allOf\"", "\"nullable\"", "\"$ref\""] {
        assert!(!text.contains(keyword), "{keyword} stands in the schema");
    }
}
