//! What operator and agents tell each other: the operator writes what is declared into the Secret `NAME-access`, the primary's agent
//! what became of it into the ConfigMap of that name. Both have one key for each DatabaseUser and each Database, its UID.

use api::declared::PlannedStatement;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::declared::Declared;

/// An entry of the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// When it was written. A report that names another time is about another entry.
    pub at: DateTime<Utc>,
    /// What is declared, with a verifier and without a password.
    pub declared: Declared,
}

/// An entry of the ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The time of the entry that it is about.
    pub of: DateTime<Utc>,
    /// The OID of what was made for the resource, if there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oid: Option<u32>,
    /// PostgreSQL could not be looked at: that there is no `oid` says nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unseen: bool,
    /// Why nothing can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// `refusal` is something that is not there yet: what can be done without it is done, and the rest when it is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    /// Why not all of it was done, in PostgreSQL's words. It is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The statements that are missing still, the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<PlannedStatement>,
    /// How many are missing beyond these.
    #[serde(default)]
    pub more: u32,
}
