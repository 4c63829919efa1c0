//! Objects as writes name them.

use serde::{Deserialize, Serialize};

/// One object at one version: the precondition of every delete and of every change that cannot be taken back.
/// It cannot be made without all of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectVersion {
    name: String,
    uid: String,
    resource_version: String,
}

impl ObjectVersion {
    /// The object called `name` with this UID at this version.
    pub fn new(name: impl Into<String>, uid: impl Into<String>, resource_version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            uid: uid.into(),
            resource_version: resource_version.into(),
        }
    }
    /// The same at any version: what it holds does not matter, only that it is this very object.
    pub fn of_any_version(name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self::new(name, uid, "")
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// `preconditions.uid`.
    pub fn uid(&self) -> &str {
        &self.uid
    }
    /// `preconditions.resourceVersion`; empty for any.
    pub fn resource_version(&self) -> &str {
        &self.resource_version
    }
}
