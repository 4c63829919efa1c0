//! Copying the primary.

use super::{Files, PostgresError, Primary, Tools};
use crate::volume::Volume;

/// What is copied, and how it is reached.
#[derive(Clone, Debug)]
pub struct CloneSource {
    /// The primary, and who is copying: the slot of that name must exist.
    pub primary: Primary,
    /// Certificate, key and authority.
    pub files: Files,
}

/// Copies the primary with `pg_basebackup` over TLS and through the member's slot into the staging directory, and renames the copy into
/// place. Takes as long as it takes; dropping the future kills it and leaves [`crate::volume::DataState::Unfinished`].
/// Fails if there is a complete PGDATA.
pub async fn clone(_tools: &Tools, _volume: &Volume, _source: &CloneSource) -> Result<(), PostgresError> {
    todo!()
}
