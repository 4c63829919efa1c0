//! The decisions of crate `machine`, checked without Kubernetes and without PostgreSQL.
//!
//! [`model`] explores every interleaving of a small world, with the real instance machine in each member. [`simulator`]
//! runs larger worlds for longer, in virtual time, under faults that a seed chooses.

pub mod computing;
pub mod model;
pub mod simulator;
