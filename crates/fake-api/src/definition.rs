//! What a CustomResourceDefinition says of its kind: defaults, and rules in CEL. Types, required fields and unknown ones are not
//! looked at, and a change is held against all rules, also against those whose fields stay as they were.

use kube_cel::{CompiledSchema, Validator, apply_defaults, compile_schema};
use serde_json::Value;

use crate::kinds::Kind;
use crate::reply::Refusal;

/// A kind's defaults and rules.
#[derive(Debug)]
pub struct Definition {
    pub(crate) kind: &'static Kind,
    schema: Value,
    rules: CompiledSchema,
}

impl Definition {
    /// Reads a CustomResourceDefinition, of its versions the first.
    ///
    /// # Panics
    /// If its kind is not served, or a rule is none.
    pub fn new(definition: &Value) -> Self {
        let version = &definition["spec"]["versions"][0];
        let [group, name, plural] = [
            &definition["spec"]["group"],
            &version["name"],
            &definition["spec"]["names"]["plural"],
        ]
        .map(|text| text.as_str().unwrap_or_default());
        let kind = Kind::find(group, name, plural);
        let schema = version["schema"]["openAPIV3Schema"].clone();
        let rules = compile_schema(&schema);
        assert!(!rules.has_errors(), "{:#?}", rules.compilation_errors());
        Self {
            kind: kind.unwrap_or_else(|| panic!("{plural} are not served")),
            schema,
            rules,
        }
    }

    /// Adds what is not said, and refuses what breaks a rule. What a subresource writes alone (`status`) has none.
    pub(crate) fn check(&self, new: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
        *new = apply_defaults(&self.schema, new);
        if old.is_some_and(|old| old["spec"] == new["spec"]) {
            return Ok(());
        }
        let Err(broken) = Validator::new().validate_compiled(&self.rules, new, old) else {
            return Ok(());
        };
        let words: Vec<_> = broken.as_slice().iter().map(ToString::to_string).collect();
        let name = new["metadata"]["name"].as_str().unwrap_or_default();
        Err(Refusal::invalid(self.kind, name, &words.join("; ")))
    }
}
