//! Statements, as data: the agent renders them, with one quoting function for each kind of word.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A statement that a plan runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields of PostgreSQL's statements")]
pub enum Statement {
    /// A role without any right beyond these.
    CreateRole {
        name: String,
        attributes: Attributes,
    },
    /// The role has these attributes and no others: no superuser's or others' rights.
    AlterRole {
        name: String,
        attributes: Attributes,
    },
    /// The verifier of its password.
    SetVerifier {
        name: String,
        verifier: Option<Secret>,
    },
    /// A comment on a role.
    Comment {
        name: String,
        text: String,
    },
    /// The role goes. PostgreSQL refuses that while it owns something, or has been granted something.
    DropRole {
        name: String,
    },
    /// Membership in a role with these options and no others. `plain`: PostgreSQL before 16, which knows ADMIN only, and adds it.
    GrantRole {
        role: String,
        to: String,
        membership: Membership,
        plain: bool,
    },
    RevokeRole {
        role: String,
        from: String,
    },
    /// The role's sessions here are ended.
    EndSessions {
        name: String,
    },
    /// Another role owns what the role owns in the database that it runs in, and the databases that it owns.
    Reassign {
        from: String,
        to: String,
    },
    /// Of a whole database.
    Database {
        name: String,
        change: DatabaseChange,
    },
    /// Of a schema of the database that it runs in.
    Schema {
        name: String,
        change: SchemaChange,
    },
    /// Of an extension of the database that it runs in.
    Extension {
        name: String,
        change: ExtensionChange,
    },
    /// The function that tells poolers the verifiers of passwords, in a schema of its own, anew.
    MakeLookup,
    Grant {
        on: Object,
        privileges: BTreeSet<Privilege>,
        to: String,
    },
    Revoke {
        on: Object,
        privileges: BTreeSet<Privilege>,
        from: String,
    },
}

impl Statement {
    /// Whether it is about the membership of a role in another.
    pub fn is_membership(&self) -> bool {
        matches!(self, Self::GrantRole { .. } | Self::RevokeRole { .. })
    }

    /// Whether it runs in a transaction of its own: PostgreSQL asks for that, or what stands before it must hold already.
    pub fn runs_alone(&self) -> bool {
        match self {
            Self::Database { change, .. } => {
                matches!(change, DatabaseChange::Create { .. } | DatabaseChange::Drop { .. })
            }
            // A session that begins before NOLOGIN is committed would not be ended.
            Self::EndSessions { .. } => true,
            Self::CreateRole { .. }
            | Self::AlterRole { .. }
            | Self::SetVerifier { .. }
            | Self::Comment { .. }
            | Self::DropRole { .. }
            | Self::GrantRole { .. }
            | Self::RevokeRole { .. }
            | Self::Reassign { .. }
            | Self::Schema { .. }
            | Self::Extension { .. }
            | Self::MakeLookup
            | Self::Grant { .. }
            | Self::Revoke { .. } => false,
        }
    }

    /// The lock that it needs on tables, as far as PostgreSQL's manual names it: `None` if no read and no write waits for it.
    pub fn locks(&self) -> Option<&'static str> {
        match self {
            Self::Reassign { .. } => Some("ACCESS EXCLUSIVE on each table that changes its owner"),
            Self::Extension {
                change: ExtensionChange::Update { .. },
                ..
            } => Some("what the extension's script needs, until it has ended"),
            Self::Extension { .. }
            | Self::CreateRole { .. }
            | Self::AlterRole { .. }
            | Self::SetVerifier { .. }
            | Self::Comment { .. }
            | Self::DropRole { .. }
            | Self::GrantRole { .. }
            | Self::RevokeRole { .. }
            | Self::EndSessions { .. }
            | Self::Database { .. }
            | Self::Schema { .. }
            | Self::MakeLookup
            | Self::Grant { .. }
            | Self::Revoke { .. } => None,
        }
    }
}

/// What is done to a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields of PostgreSQL's statements")]
pub enum DatabaseChange {
    /// It is made from `template0`, and takes no connections yet.
    Create {
        owner: String,
        locale: Option<String>,
    },
    /// A comment on it.
    Comment(String),
    Rename {
        to: String,
    },
    /// It takes connections.
    Open,
    /// How many sessions it may have; `None` for any number.
    Limit(Option<u32>),
    SetOwner(String),
    /// Whether PUBLIC may connect and make temporary tables.
    SetPublic(bool),
    /// It goes, with all its data, if it has this OID and no sessions.
    Drop {
        oid: u32,
    },
}

/// What is done to a schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields of PostgreSQL's statements")]
pub enum SchemaChange {
    Create { owner: String },
    SetOwner(String),
}

/// What is done to an extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields of PostgreSQL's statements")]
pub enum ExtensionChange {
    /// `None`: the default version; the schema that the extension asks for.
    Create {
        version: Option<String>,
        schema: Option<String>,
    },
    Update {
        to: String,
    },
}

/// What privileges are granted on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "names")]
pub enum Object {
    Database(String),
    Schema(String),
    Relation {
        schema: String,
        name: String,
        kind: RelationKind,
    },
    /// What `owner` makes later in the schema (`ALTER DEFAULT PRIVILEGES`).
    Future {
        schema: String,
        owner: String,
        kind: RelationKind,
    },
}

/// What a role may by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// It may log in.
    pub login: bool,
    /// How many sessions it may have; `None` for any number.
    pub connection_limit: Option<u32>,
    /// Until when its password may be used; `None` for ever.
    pub valid_until: Option<DateTime<Utc>>,
}

/// How a role is a member of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// It may make others members.
    pub admin: bool,
    /// It may do what the other role may.
    pub inherit: bool,
    /// It may become the other role by `SET ROLE`.
    pub set: bool,
}

/// Kinds of relations that have privileges of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RelationKind {
    /// A table, a view, or another relation with rows.
    Table,
    /// A sequence.
    Sequence,
}

/// A privilege that is granted on something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "PostgreSQL's words")]
pub enum Privilege {
    Select,
    Insert,
    Update,
    Delete,
    Truncate,
    References,
    Trigger,
    /// Since PostgreSQL 17.
    Maintain,
    Usage,
    Create,
    Connect,
    Temporary,
}

impl Privilege {
    /// PostgreSQL's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Select => "SELECT",
            Self::Insert => "INSERT",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Truncate => "TRUNCATE",
            Self::References => "REFERENCES",
            Self::Trigger => "TRIGGER",
            Self::Maintain => "MAINTAIN",
            Self::Usage => "USAGE",
            Self::Create => "CREATE",
            Self::Connect => "CONNECT",
            Self::Temporary => "TEMPORARY",
        }
    }

    /// Whether it can be granted on tables.
    pub fn is_of_tables(self) -> bool {
        ![Self::Usage, Self::Create, Self::Connect, Self::Temporary].contains(&self)
    }
}

/// Text that is not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}
