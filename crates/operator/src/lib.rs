//! The operator: observes a database's objects, lets the cluster machine decide, and carries out one action at a time.
//! No decision about a database is made here.

// Every public function says when it fails. The lint sees only what other crates can use; `pub(crate)` is up to us.
#![warn(clippy::missing_errors_doc)]

pub mod alive;
pub mod builders;
pub mod cache;
pub mod caches;
pub mod certificates;
pub mod config;
pub mod credentials;
pub mod decisions;
pub mod desired;
pub mod drift;
pub mod events;
pub mod execute;
pub mod http;
pub mod leader;
mod lists;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod panics;
mod prune;
pub mod queue;
pub mod rbac;
pub mod reconcile;
pub mod recording;
pub mod requests;
pub mod run;
