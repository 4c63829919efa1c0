//! Who may do what in PostgreSQL: from what is declared and what the catalogue says, the statements that are missing.
//!
//! The primary's agent reads the catalogue, plans, and runs the plan. The plan is a pure function, and the
//! catalogue has a model ([`Catalogue::run`]), so that "a plan that was run leaves nothing to do" is tested without a server.
//!
//! - A role that was made for a DatabaseUser says so in its comment, which is written in the transaction that makes it.
//!   So nobody's role is taken for ours, whoever crashes when.
//! - Privileges that others than an object's owner have granted are not looked at: only those who granted them can revoke them.

mod catalogue;
mod declared;
mod exchange;
mod plan;
mod statement;

pub use catalogue::{Acl, Catalogue, Database, Relation, Role, Schema};
pub use declared::{Access, Declared, Password, mark};
pub use exchange::{Published, Report};
pub use plan::{Plan, Step, plan};
pub use statement::{Attributes, Object, Privilege, RelationKind, Secret, Statement};

#[cfg(test)]
mod tests;
