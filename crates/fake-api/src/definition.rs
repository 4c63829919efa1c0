//! A CustomResourceDefinition's content about its kind: its fields, their values, defaults, and rules in CEL.

use kube_cel::apply_defaults;
use serde_json::Value;

use crate::kinds::Kind;
use crate::reply::Refusal;
use crate::schema::{Place, Schema};

/// A kind's fields, defaults and rules.
#[derive(Debug)]
pub struct Definition {
    pub(crate) kind: &'static Kind,
    defaults: Value,
    schema: Schema,
}

impl Definition {
    /// Reads the first version of a CustomResourceDefinition.
    ///
    /// # Panics
    /// If its kind is not served, a rule is invalid, or its schema has a keyword that this server does not know.
    pub fn new(definition: &Value) -> Self {
        let version = &definition["spec"]["versions"][0];
        let [group, name, plural] = [
            &definition["spec"]["group"],
            &version["name"],
            &definition["spec"]["names"]["plural"],
        ]
        .map(|text| text.as_str().unwrap_or_default());
        let kind = Kind::find(group, name, plural);
        let schema = &version["schema"]["openAPIV3Schema"];
        Self {
            kind: kind.unwrap_or_else(|| panic!("{plural} are not served")),
            defaults: schema.clone(),
            schema: Schema::new(schema),
        }
    }

    /// Removes unknown fields, and adds defaults.
    pub(crate) fn complete(&self, object: &mut Value) {
        self.schema.prune(object, true);
        *object = apply_defaults(&self.defaults, object);
    }

    /// Why a server-side apply of this cannot be read.
    pub(crate) fn unreadable(&self, applied: &Value) -> Option<String> {
        let whole = Place::root(&self.schema, applied, None);
        let again = || whole.duplicates().into_iter().next();
        whole.unreadable(false).or_else(again)
    }

    /// Completes an object, and refuses forbidden values. A write of the status is checked only for the status.
    pub(crate) fn check(&self, subresource: &str, new: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
        self.complete(new);
        let whole = Place::root(&self.schema, new, old);
        let mut wrong = match subresource {
            "status" => whole.field("status").map_or(Vec::new(), |status| status.values()),
            _ => whole.values(),
        };
        let before = old.map_or(Vec::new(), |old| Place::root(&self.schema, old, None).duplicates());
        if before.is_empty() {
            wrong.extend(whole.duplicates());
        }
        // Rules may trust in types.
        if wrong.is_empty() {
            wrong = whole.rules();
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let name = new["metadata"]["name"].as_str().unwrap_or_default();
        Err(Refusal::invalid(self.kind, name, &wrong.join("; ")))
    }
}
