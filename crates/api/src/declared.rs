//! What the kinds have in common that declare an object of PostgreSQL: `DatabaseUser` and `Database`.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::moment;

/// What becomes of an object of this name that was made by somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Adoption {
    /// It is left alone, and that is an error.
    #[default]
    Refuse,
    /// It is taken over, and loses nothing that this spec does not name.
    KeepUnlisted,
    /// It is taken over, and loses what this spec does not name.
    Full,
}

/// How much is done of what is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ManagementPolicy {
    /// All of it.
    #[default]
    Full,
    /// What gives something. Nothing is taken away.
    Additive,
    /// Nothing: `status.plan` says what would be done.
    Observe,
}

/// What is known of the object, whatever its kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeclaredStatus {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DeclaredPhase>,
    /// Why it is in this phase, or what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its OID in PostgreSQL. Another one means that it was made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oid: Option<u32>,
    /// The statements that are missing: those that a policy leaves out, or that PostgreSQL refuses. Twenty at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<PlannedStatement>,
    /// How many statements are missing beyond `plan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_statements: Option<u32>,
    /// What PostgreSQL had lost of a spec that had not changed, and was given again. The last time is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: PostgreSQL has it as this spec wants it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A statement that is missing, or that was run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedStatement {
    /// The database that it runs in. If absent, any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The statement, without verifiers of passwords.
    pub sql: String,
    /// It takes something away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes: bool,
    /// The lock that it needs on tables. If absent, none that reads and writes wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<String>,
}

/// Statements that the primary has run though the spec had not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// When they were run.
    #[serde(deserialize_with = "moment::deserialize")]
    pub at: DateTime<Utc>,
    /// The statements. Ten at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<PlannedStatement>,
    /// How many were run beyond these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<u32>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DeclaredPhase {
    /// It waits for its cluster, for something that the spec names, or for the primary.
    Pending,
    /// PostgreSQL has it as the spec wants it.
    Ready,
    /// Statements are missing, and the policy is `Observe`: `status.plan` has them.
    Planned,
    /// It cannot be done as the spec stands; the message says what to change.
    Failed,
    /// The resource is being deleted.
    Deleting,
}

impl DeclaredPhase {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Ready, Self::Planned, Self::Failed, Self::Deleting];
}

/// A rule about a spec: as CEL, what it says, and the same in Rust.
pub(crate) struct Rule<S> {
    pub(crate) cel: &'static str,
    pub(crate) message: &'static str,
    pub(crate) holds: fn(&S) -> bool,
}

/// Bytes of PostgreSQL's longest name. The API server counts characters, of which each has a byte at least.
pub(crate) const LONGEST_SQL_NAME: usize = 63;

/// Whether PostgreSQL can have this name.
pub(crate) fn is_sql_name(name: &str) -> bool {
    (1..=LONGEST_SQL_NAME).contains(&name.len()) && !name.contains('\0')
}

/// Whether a role of this name is PostgreSQL's, the operator's or the superuser.
pub(crate) fn is_reserved_role(name: &str) -> bool {
    ["postgres", "public", "none"].contains(&name) || name.starts_with("pg_") || name.starts_with("cdb_")
}

/// The first name that comes a second time.
pub(crate) fn first_repeated<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// The rules of a spec as the API server reads them: `rules`, and of two versions of a spec, by what each says.
pub(crate) fn validations<S>(rules: &[Rule<S>], unchanged: &[(&str, &str)]) -> serde_json::Value {
    let rules = rules.iter().map(|rule| (rule.cel, rule.message));
    let all = rules.chain(unchanged.iter().copied());
    all.map(|(rule, message)| serde_json::json!({ "rule": rule, "message": message }))
        .collect()
}
