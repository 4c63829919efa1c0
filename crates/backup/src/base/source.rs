//! Where the bytes of a base backup come from.

use std::io;

use bytes::Bytes;

/// A base backup as PostgreSQL sends it: the tar of the data directory, then the manifest.
pub trait Source {
    /// The next bytes of the tar, at least one; `None` at its end.
    ///
    /// # Errors
    /// Fails if PostgreSQL does, or is lost.
    fn tar(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>>;

    /// The next bytes of the manifest; `None` at its end. It is asked for when the tar has ended.
    ///
    /// # Errors
    /// Fails if PostgreSQL does, which may be the last that it says, or is lost.
    fn manifest(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>>;
}
