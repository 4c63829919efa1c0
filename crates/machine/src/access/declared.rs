//! What is declared.

use std::collections::BTreeSet;

use api::user::{Adoption, ManagementPolicy};
use serde::{Deserialize, Serialize};

use super::statement::{Attributes, Privilege, Secret};

/// A role that is declared by a DatabaseUser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Declared {
    /// UID of the DatabaseUser.
    pub uid: String,
    /// The role's name.
    pub name: String,
    /// What it may by itself.
    pub attributes: Attributes,
    /// Its password.
    pub password: Password,
    /// What it may do with the content of databases.
    pub grants: Vec<Access>,
    /// What becomes of a role of this name that was not made for this DatabaseUser.
    #[serde(default)]
    pub adoption: Adoption,
    /// How much of the plan is run.
    #[serde(default)]
    pub policy: ManagementPolicy,
    /// The DatabaseUser goes, and the role is to go with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop: bool,
}

/// The password of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Password {
    /// It has none.
    None,
    /// It has that of which this is a verifier. Which verifier of it PostgreSQL stores does not matter.
    Verifier(Secret),
    /// Somebody else sets it.
    External,
}

/// Access to the content of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// The database.
    pub database: String,
    /// Its schemas.
    pub schemas: Vec<String>,
    /// Privileges on the tables and views there. Sequences follow: who may insert or update may use them, who may select may read them.
    pub permissions: BTreeSet<Privilege>,
    /// The same goes for tables that the database's owner makes later.
    pub future: bool,
}

/// What the comment of a role says that was made for this DatabaseUser.
pub fn mark(uid: &str) -> String {
    format!("{MARK}{uid}")
}

pub(super) const MARK: &str = "made for DatabaseUser ";
