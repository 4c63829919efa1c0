//! What the values of enumerations mean, in the definitions: the generator of definitions drops it, and with it what a field
//! of such a type says itself.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

/// Gives each field of `schema` whose type is an enumeration its own text and those of its values. `schema` is that of `T`.
pub(crate) fn explain<T: JsonSchema>(schema: &mut Value) {
    let own = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    fields(schema, &own, &own["$defs"]);
}

fn fields(schema: &mut Value, own: &Value, definitions: &Value) {
    let own = resolved(own, definitions);
    if let Some(values) = texts(own) {
        let text = own["description"].as_str().unwrap_or_default();
        schema["description"] = format!("{text} {values}").trim_start().into();
    }
    for (name, field) in schema
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        let own = &own["properties"][name];
        let text = own["description"].clone();
        fields(field, own, definitions);
        // The field's text says more than its type's.
        if let (Some(text), Some(values)) = (text.as_str(), texts(resolved(own, definitions))) {
            field["description"] = format!("{text} {values}").into();
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get_mut(inner) {
            fields(schema, &own[inner], definitions);
        }
    }
}

/// The definition that a schema refers to, itself or as the alternative to nothing.
fn resolved<'a>(schema: &'a Value, definitions: &'a Value) -> &'a Value {
    let alternative = schema["anyOf"].as_array().and_then(|either| either.first());
    let named = alternative.unwrap_or(schema)["$ref"].as_str();
    let name = named.and_then(|path| path.strip_prefix("#/$defs/"));
    name.map_or(schema, |name| &definitions[name])
}

/// The values of an enumeration with what each means.
fn texts(schema: &Value) -> Option<String> {
    let text = |value: &Value| {
        let (name, text) = (value["const"].as_str()?, value["description"].as_str()?);
        Some(format!("`{name}`: {text}"))
    };
    let values: Option<Vec<_>> = schema["oneOf"].as_array()?.iter().map(text).collect();
    Some(values?.join(" "))
}
