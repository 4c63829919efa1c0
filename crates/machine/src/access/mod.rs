//! Roles, databases, and who may do what in PostgreSQL: from what is declared and what the catalogue says, the statements that are missing.
//!
//! The primary's agent reads the catalogue, plans, and runs the plan. The plan is a pure function, and the
//! catalogue has a model ([`Catalogue::run`]), so that "a plan that was run leaves nothing to do" is tested without a server.
//!
//! - A role that was made for a DatabaseUser says so in its comment, which is written in the transaction that makes it.
//!   So nobody's role is taken for ours, whoever crashes when.
//! - A database that is made for a Database has a name of its own until it has its comment ([`temporary_name`]).
//! - Privileges that others than an object's owner have granted are not looked at: only those who granted them can revoke them.

use std::collections::BTreeSet;

mod catalogue;
mod database;
mod declared;
mod exchange;
mod going;
mod membership;
mod model;
mod plan;
mod pooler;
mod role;
mod statement;

pub use catalogue::{
    Acl, Available, AvailableVersion, Catalogue, Closed, Content, Database, Extension, Relation, Role, Schema,
};
pub use declared::{
    Access, Declared, DeclaredDatabase, DeclaredExtension, DeclaredPooler, DeclaredRole, DeclaredSchema, Going,
    Password, PoolerProgram, mark, mark_of_database, quarantine_mark, temporary_name,
};
pub use exchange::{Published, Report};
pub use membership::CERTIFICATES_ROLE;
pub use plan::{Batch, Plan, Step};
pub use pooler::{LOOKUP, LOOKUP_DATABASE, POOLER_ROLE};
pub use statement::{
    Attributes, DatabaseChange, ExtensionChange, Membership, Object, Privilege, RelationKind, SchemaChange, Secret,
    Statement,
};

/// Plans what is missing. `others` are the UIDs of all DatabaseUsers and Databases that declare something here; `matches` says if a
/// stored verifier is one of the same password as the declared one.
pub fn plan(
    declared: &Declared,
    catalogue: &Catalogue,
    others: &BTreeSet<&str>,
    matches: impl Fn(&Secret, &Secret) -> bool,
) -> Plan {
    match declared {
        Declared::Role(role) => role::plan_role(role, catalogue, others, matches),
        Declared::Database(database) => database::plan_database(database, catalogue, others),
        Declared::Pooler(_) => pooler::plan_poolers(catalogue),
    }
}

#[cfg(test)]
mod tests;
