//! What PostgreSQL's catalogue says of roles and of what they may do, as far as a [`super::plan`] looks at it.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::statement::{Attributes, Membership, Object, Privilege, RelationKind, Secret};

/// A snapshot of the catalogue, or a model of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    /// All roles, by name.
    pub roles: BTreeMap<String, Role>,
    /// All databases that take connections, by name.
    pub databases: BTreeMap<String, Database>,
    /// Databases that could not be read, and why. They are not among `databases`.
    #[serde(default)]
    pub unreadable: BTreeMap<String, String>,
    /// Databases that take no connections, templates, and those that cannot be read, by name.
    #[serde(default)]
    pub closed: BTreeMap<String, Closed>,
    /// Extensions that can be made, by name. They are read only if a declared database has extensions.
    #[serde(default)]
    pub available: BTreeMap<String, Available>,
    /// The function for poolers is there as it should be. It is read only if a Pooler is declared.
    #[serde(default)]
    pub has_lookup: bool,
    /// PostgreSQL before 16: a membership has no INHERIT and SET of its own.
    #[serde(default)]
    pub plain_memberships: bool,
    /// When it was read, by PostgreSQL's clock.
    #[serde(default)]
    pub now: DateTime<Utc>,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Its OID: another role of the same name has another one.
    pub oid: u32,
    /// What it may by itself.
    pub attributes: Attributes,
    /// It is a superuser, may create roles or databases, may replicate, or passes over row security.
    pub is_mighty: bool,
    /// Other roles that a superuser has made it a member of. Before PostgreSQL 16: that anybody has.
    #[serde(default)]
    pub member_of: BTreeMap<String, Membership>,
    /// All roles that it is a member of, whoever has granted that.
    #[serde(default)]
    pub groups: BTreeSet<String>,
    /// How many sessions it has here.
    #[serde(default)]
    pub sessions: u32,
    /// Databases in which it owns something. They are read only if that is to be given to another role.
    #[serde(default)]
    pub owns_in: BTreeSet<String>,
    /// The verifier of its password, as PostgreSQL stores it.
    pub verifier: Option<Secret>,
    /// Its comment.
    pub comment: Option<String>,
}

/// A database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    /// The role that owns it.
    pub owner: String,
    /// What its owner has granted on it.
    pub acl: Acl,
    /// Its schemas, by name, without PostgreSQL's own. They are read only where a grant or a declared database names the database.
    pub schemas: BTreeMap<String, Schema>,
    /// Its OID: another database of the same name has another one.
    #[serde(default)]
    pub oid: u32,
    /// Its comment.
    #[serde(default)]
    pub comment: Option<String>,
    /// How many sessions it may have; `None` for any number.
    #[serde(default)]
    pub connection_limit: Option<u32>,
    /// What its owner lets PUBLIC do.
    #[serde(default)]
    pub public: BTreeSet<Privilege>,
    /// Its encoding.
    #[serde(default)]
    pub encoding: String,
    /// Its locale, for sorting.
    #[serde(default)]
    pub locale: String,
    /// Its extensions, by name. They are read together with `schemas`.
    #[serde(default)]
    pub extensions: BTreeMap<String, Extension>,
}

/// What is read of a database in a session of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Its schemas.
    pub schemas: BTreeMap<String, Schema>,
    /// Its extensions.
    pub extensions: BTreeMap<String, Extension>,
}

/// A database that takes no connections, is a template, or cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Its OID.
    pub oid: u32,
    /// The role that owns it.
    pub owner: String,
    /// Its comment.
    pub comment: Option<String>,
    /// Its drop was interrupted: it can be dropped, and nothing else.
    #[serde(default)]
    pub is_invalid: bool,
}

/// An extension of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// Its version.
    pub version: String,
    /// The schema with its objects.
    pub schema: String,
}

/// An extension that can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    /// The version that is made if none is named.
    pub default_version: String,
    /// All versions.
    pub versions: BTreeMap<String, AvailableVersion>,
}

/// A version of an extension that can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailableVersion {
    /// The only schema that it can be in; `None` for any.
    pub schema: Option<String>,
    /// Extensions that it needs.
    pub requires: Vec<String>,
}

/// A schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The role that owns it.
    pub owner: String,
    /// What its owner has granted on it.
    pub acl: Acl,
    /// Tables, views and sequences, by name.
    pub relations: BTreeMap<String, Relation>,
    /// What is granted on what is made later, by the role that makes it.
    pub defaults: BTreeMap<String, BTreeMap<RelationKind, Acl>>,
}

/// A table or sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relation {
    /// Which of the two.
    pub kind: RelationKind,
    /// The role that owns it.
    pub owner: String,
    /// What its owner has granted on it.
    pub acl: Acl,
}

/// Privileges by the role that has them. What a role has by being the owner is not in it.
pub type Acl = BTreeMap<String, BTreeSet<Privilege>>;

impl Catalogue {
    /// OID and comment of a database, whether it takes connections or not.
    pub(super) fn oid_and_comment(&self, database: &str) -> Option<(u32, Option<&String>)> {
        let open = self.databases.get(database);
        let open = open.map(|found| (found.oid, found.comment.as_ref()));
        open.or_else(|| {
            let closed = self.closed.get(database)?;
            Some((closed.oid, closed.comment.as_ref()))
        })
    }

    /// What PostgreSQL grants on this to this role, apart from what it has as the owner.
    pub fn granted(&self, database: &str, on: &Object, role: &str) -> BTreeSet<Privilege> {
        let acl = self.find(database, on).and_then(|(_, acl)| acl);
        acl.and_then(|acl| acl.get(role)).cloned().unwrap_or_default()
    }

    /// Whether the role owns this, so that nothing has to be granted to it.
    pub fn owns(&self, database: &str, on: &Object, role: &str) -> bool {
        self.find(database, on).is_some_and(|(owner, _)| owner == role)
    }

    /// Who owns this, and what that role has granted on it.
    fn find<'a>(&'a self, database: &str, on: &'a Object) -> Option<(&'a str, Option<&'a Acl>)> {
        let database = self.databases.get(database)?;
        let schema = |name: &str| database.schemas.get(name);
        Some(match on {
            Object::Database(_) => (&database.owner, Some(&database.acl)),
            Object::Schema(name) => {
                let found = schema(name)?;
                (&found.owner, Some(&found.acl))
            }
            Object::Relation { schema: of, name, kind } => {
                let found = schema(of)?.relations.get(name).filter(|found| found.kind == *kind)?;
                (&found.owner, Some(&found.acl))
            }
            Object::Future {
                schema: of,
                owner,
                kind,
            } => (owner, schema(of)?.defaults.get(owner).and_then(|kinds| kinds.get(kind))),
        })
    }
}
