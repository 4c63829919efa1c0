//! The decisions of crate `machine`, checked without Kubernetes and without PostgreSQL.
//!
//! [`model`] explores every interleaving of a small world with the real instance machine in each member.

pub mod model;
