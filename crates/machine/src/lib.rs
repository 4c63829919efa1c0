//! Every decision about a `ClusteredDatabase`, as pure functions: no clock, no randomness, no I/O.
//!
//! [`protocol`] holds what members tell each other and what stands in the Lease.

// A new variant of an enum is to be thought of wherever one decides by it. Tests may look for one variant only.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]
// Every public function says when it fails. The lint sees only what other crates can use; `pub(crate)` is up to us.
#![warn(clippy::missing_errors_doc)]

pub mod access;
pub mod archive;
pub mod backoff;
pub mod backup;
pub mod breaker;
pub mod cluster;
pub mod database;
pub mod declaration;
pub mod drill;
pub mod instance;
pub mod json;
pub mod leader_lease;
pub mod lease_object;
mod numbers;
pub mod operation;
pub mod pooler;
pub mod protocol;
pub mod quorum;
pub mod reconcile;
pub mod recovery;
pub mod retention;
pub mod rotation;
pub mod saga;
pub mod timing;
pub mod turns;
pub mod units;
pub mod user;

/// The code of the page is run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/write-a-property.md")]
struct WriteAProperty;
