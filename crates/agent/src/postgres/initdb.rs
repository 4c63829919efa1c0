//! Making the first database.

use super::{PostgresError, Tools, Verifier};
use crate::volume::Volume;

/// How the first database is made.
#[derive(Clone, Debug)]
pub struct InitdbRequest {
    /// Name of the application's database.
    pub database: String,
    /// Role that owns it.
    pub owner: String,
    /// The owner's password, already hashed.
    pub verifier: Verifier,
    /// Keep checksums of data pages.
    pub data_checksums: bool,
    /// Locale of the databases.
    pub locale: String,
    /// Statements run in the application's database as superuser.
    pub post_init_sql: Vec<String>,
}

/// Makes a database in the staging directory (initdb, owner, database, role of the members, `postInitSql`), stops it cleanly, and
/// renames it into place. Fails if there is a complete PGDATA. What an interrupted run leaves is
/// [`crate::volume::DataState::Unfinished`] and must be discarded first. Errors carry PostgreSQL's message.
pub async fn initdb(_tools: &Tools, _volume: &Volume, _system_user: &str, _request: &InitdbRequest) -> Result<(), PostgresError> {
    todo!()
}
