//! What a CustomResourceDefinition says of its kind: which fields there are, their values, defaults, and rules in CEL.

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
    /// Reads a CustomResourceDefinition, of its versions the first.
    ///
    /// # Panics
    /// If its kind is not served, a rule is none, or its schema says what is not looked at here.
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

    /// Takes out what is unknown, and adds what is not said.
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

    /// Completes an object, and refuses what may not be there. Who writes the status is not held to the values of the rest.
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
