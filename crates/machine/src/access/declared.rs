//! What is declared.

use std::collections::{BTreeMap, BTreeSet};

use api::declared::{Adoption, ManagementPolicy};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};

use super::catalogue::Catalogue;
use super::pooler::POOLER_ROLE;
use super::statement::{Attributes, Membership, Privilege, Secret};

/// What a resource declares. An agent that is older than a kind passes over what is declared of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Declared {
    /// By a DatabaseUser.
    Role(DeclaredRole),
    /// By a Database.
    Database(DeclaredDatabase),
    /// By a Pooler.
    Pooler(DeclaredPooler),
}

impl Declared {
    /// UID of the resource.
    pub fn uid(&self) -> &str {
        match self {
            Self::Role(role) => &role.uid,
            Self::Database(database) => &database.uid,
            Self::Pooler(pooler) => &pooler.uid,
        }
    }

    /// How much of the plan is run.
    pub fn policy(&self) -> ManagementPolicy {
        match self {
            Self::Role(role) => role.policy,
            Self::Database(database) => database.policy,
            Self::Pooler(_) => ManagementPolicy::Full,
        }
    }

    /// The resource goes, and what was made for it does not stay as it is.
    pub fn is_going(&self) -> bool {
        match self {
            Self::Role(role) => role.going.is_some(),
            Self::Database(database) => database.drop,
            Self::Pooler(_) => false,
        }
    }

    /// What was made for the resource is to go in the same way.
    pub fn goes_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Role(role), Self::Role(other)) => role.going == other.going,
            (Self::Database(database), Self::Database(other)) => database.drop == other.drop,
            (Self::Role(_) | Self::Database(_) | Self::Pooler(_), _) => false,
        }
    }

    /// What becomes of what was made for the resource that goes, in one word.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Role(DeclaredRole {
                going: Some(Going::Quarantine),
                ..
            }) => "quarantined",
            Self::Role(_) | Self::Database(_) | Self::Pooler(_) => "dropped",
        }
    }

    /// The same, with an empty text for the verifier of a password.
    #[must_use]
    pub fn without_verifier(&self) -> Self {
        match self {
            Self::Role(role) => {
                let password = match &role.password {
                    Password::Verifier(_) => Password::Verifier(Secret(String::new())),
                    Password::None => Password::None,
                    Password::External => Password::External,
                };
                Self::Role(DeclaredRole {
                    password,
                    ..role.clone()
                })
            }
            Self::Database(database) => Self::Database(database.clone()),
            Self::Pooler(pooler) => Self::Pooler(pooler.clone()),
        }
    }

    /// The OID of what PostgreSQL has that was made for this resource.
    pub fn oid(&self, catalogue: &Catalogue) -> Option<u32> {
        match self {
            Self::Role(declared) => {
                let role = catalogue.roles.get(&declared.name)?;
                let uid = role.comment.as_deref().and_then(marked);
                (uid == Some(&declared.uid)).then_some(role.oid)
            }
            Self::Database(declared) => {
                let own = mark_of_database(&declared.uid);
                let named = catalogue.oid_and_comment(&declared.name);
                let named = named.filter(|(_, comment)| *comment == Some(&own));
                let found = named.or_else(|| catalogue.oid_and_comment(&temporary_name(&declared.uid)));
                found.map(|(oid, _)| oid)
            }
            Self::Pooler(_) => catalogue.roles.get(POOLER_ROLE).map(|role| role.oid),
        }
    }
}

/// A role that is declared by a DatabaseUser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeclaredRole {
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
    /// Other roles that it is a member of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub member_of: BTreeMap<String, Membership>,
    /// These are all. An operator that does not know of memberships does not say so, and none is taken away then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lists_memberships: bool,
    /// Its sessions are ended when it may not log in any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_sessions: bool,
    /// It logs in with a certificate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub certificate: bool,
    /// What becomes of a role of this name that was not made for this DatabaseUser.
    #[serde(default)]
    pub adoption: Adoption,
    /// How much of the plan is run.
    #[serde(default)]
    pub policy: ManagementPolicy,
    /// The DatabaseUser goes, and this becomes of the role. An agent that is older than the quarantine knows `drop` as true or false:
    /// it passes over such an entry, and does not make the role again.
    #[serde(
        rename = "drop",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "going"
    )]
    pub going: Option<Going>,
}

/// An operator of before the quarantine says `true` for a drop.
fn going<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Going>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Drops(bool),
        Going(Going),
    }
    Ok(match Option::deserialize(deserializer)? {
        Some(Said::Drops(true)) => Some(Going::Drop { reassign_to: None }),
        Some(Said::Going(going)) => Some(going),
        Some(Said::Drops(false)) | None => None,
    })
}

/// What becomes of a role whose DatabaseUser goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Going {
    /// It stays, and may not log in any more.
    Quarantine,
    /// It is dropped.
    #[serde(rename_all = "camelCase")]
    Drop {
        /// Who is given what it owns.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reassign_to: Option<String>,
    },
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

/// A database that is declared by a Database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeclaredDatabase {
    /// UID of the Database.
    pub uid: String,
    /// The database's name.
    pub name: String,
    /// The role that owns it.
    pub owner: String,
    /// Its locale when it is made; `None`: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// How many sessions it may have; `None` for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_limit: Option<u32>,
    /// PUBLIC may connect to it and make temporary tables.
    pub public_connect: bool,
    /// Its extensions: each may need those before it.
    pub extensions: Vec<DeclaredExtension>,
    /// Its schemas.
    pub schemas: Vec<DeclaredSchema>,
    /// What becomes of a database of this name that was not made for this Database.
    #[serde(default)]
    pub adoption: Adoption,
    /// How much of the plan is run.
    #[serde(default)]
    pub policy: ManagementPolicy,
    /// The Database goes, and the database is to go with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop: bool,
    /// The OID of the database that is to go: one that was made again under the same name has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oid: Option<u32>,
}

/// What a Pooler needs: all of a cluster share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredPooler {
    /// UID of the Pooler.
    pub uid: String,
    /// PgBouncer, the only one so far; by this field the entry is known as a Pooler's.
    pub pooler: PoolerProgram,
}

/// Which program pools connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolerProgram {
    /// PgBouncer.
    #[default]
    PgBouncer,
}

/// An extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredExtension {
    /// Its name.
    pub name: String,
    /// Its version; `None`: any, and the default one when it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where its objects are; `None`: anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
}

/// A schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredSchema {
    /// Its name.
    pub name: String,
    /// The role that owns it; `None`: any, and the database's owner when it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// What the comment of a role says that was made for this DatabaseUser.
pub fn mark(uid: &str) -> String {
    format!("{MARK}{uid}")
}

const MARK: &str = "made for DatabaseUser ";

/// What the comment of a role says that was made for this DatabaseUser, and that may not log in since this one has gone.
pub fn quarantine_mark(uid: &str, since: DateTime<Utc>) -> String {
    format!("{}{QUARANTINED}{}", mark(uid), since.format("%Y-%m-%dT%H:%M:%SZ"))
}

const QUARANTINED: &str = ", quarantined since ";

/// The UID of the DatabaseUser that a role with this comment was made for.
pub(super) fn marked(comment: &str) -> Option<&str> {
    let uid = comment.strip_prefix(MARK)?;
    Some(uid.split_once(QUARANTINED).map_or(uid, |(uid, _)| uid))
}

/// What the comment of a database says that was made for this Database.
pub fn mark_of_database(uid: &str) -> String {
    format!("{MARK_OF_DATABASE}{uid}")
}

pub(super) const MARK_OF_DATABASE: &str = "made for Database ";

/// The name of a database that is being made for this Database, until it has its comment. No resource can ask for such a name.
pub fn temporary_name(uid: &str) -> String {
    format!("cdb_new_{uid}")
}
