//! The decisions of crate `machine`, checked without Kubernetes and without PostgreSQL.
//!
//! [`model`] explores every interleaving of a small world with the real instance machine in each member. [`simulator`] runs
//! larger ones for longer, in virtual time, under faults chosen by a seed.

pub mod computing;
pub mod model;
pub mod simulator;
