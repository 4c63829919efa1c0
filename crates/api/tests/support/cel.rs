//! What the rules in CEL of a definition say.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// The schema of a definition's first version.
pub fn schema(crd: &CustomResourceDefinition) -> Value {
    let schema = crd.spec.versions[0].schema.clone().unwrap();
    serde_json::to_value(schema.open_api_v3_schema.unwrap()).unwrap()
}

/// What the rules in CEL say of a spec, and of changing `old` into it.
pub fn cel(schema: &Value, spec: &Value, old: Option<&Value>) -> Vec<String> {
    let whole = |spec: &Value| kube_cel::apply_defaults(schema, &json!({ "spec": spec }));
    match kube_cel::Validator::new().validate(schema, &whole(spec), old.map(whole).as_ref()) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}
