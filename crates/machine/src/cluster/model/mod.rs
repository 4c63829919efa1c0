//! A database in memory: [`Scene`] is one input of a decision, [`World`] carries decisions out in an abstract cluster. The
//! tests use it, and `kubectl cdb plan` runs on it.

mod scene;
mod world;

#[cfg(test)]
pub(super) use scene::wal_claim;
pub use scene::{Scene, empty_lease, set_replicas, switchover};
pub use world::{Crash, Refusal, Resizes, World, Write};
