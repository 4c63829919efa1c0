//! A database in memory, for the tests and benchmarks of this crate and of those that use it: [`Scene`] is one input of
//! a decision, [`World`] carries decisions out in an abstract cluster.

mod scene;
mod world;

#[cfg(test)]
pub(super) use scene::wal_claim;
pub use scene::{Scene, empty_lease};
pub use world::{Crash, Refusal, Resizes, World, Write};
