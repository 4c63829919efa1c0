//! What the machines of the kinds have in common that declare an object of PostgreSQL, run by the operator: what one resource declares
//! is handed to the agents of its cluster, and what became of it is told. Unlike an operation it never ends: each decision begins
//! with what is observed.
//!
//! The operator runs no SQL. It writes what is declared into the Secret `NAME-access`, and the primary's agent plans and runs the
//! statements ([`crate::access`]). What differs between the kinds is in [`Declares`]: [`crate::user`], [`crate::database`], [`crate::pooler`].

mod controller;
mod declares;
mod rules;

pub use declares::{
    Action, Cluster, Credentials, Decision, Declares, Facts, Instances, Observed, Parts, Proposal, Rule, Target, Wanted,
};
pub(crate) use declares::{failed, pending, rule};
pub(crate) use rules::{
    cluster, conflict, drop_object, finalizer, foreign, invalid, publish, release, reports, size, tell, told, withdraw,
};
