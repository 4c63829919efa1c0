//! The archive of WAL: PostgreSQL's archiver, and the worker that answers it. Every decision is `machine::archive`'s.

mod archiver;
mod checks;
mod files;
mod store;
mod worker;

use machine::units::Bytes;

pub use archiver::Archiver;
pub use checks::Archived;
pub use files::{WalFiles, Writer};
pub use store::Store;
pub use worker::{Archiving, Worker};

use super::world::World;

/// The archive of a run.
#[derive(Clone, Copy, Debug)]
pub struct Archive {
    /// Bytes of a segment. Small, so that a run has many.
    pub segment: Bytes,
    /// Space for WAL on each volume.
    pub room: Bytes,
}

impl World {
    /// Bytes of a segment, if there is an archive.
    pub fn segment(&self) -> Option<Bytes> {
        self.plan.archive.map(|archive| archive.segment)
    }
}
