//! Taking up changed settings while the server runs.

use super::{Config, PostgresError, Server, Sql, Tools};
use crate::volume::Volume;

/// What became of changed settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are in force, but for those named, which wait for a restart.
    Applied {
        /// Settings that wait for a restart.
        pending_restart: Vec<String>,
    },
    /// PostgreSQL refuses them (its words); the files and settings of before are in force.
    Refused {
        /// PostgreSQL's words.
        error: String,
    },
}

/// Writes the configuration if PostgreSQL accepts it, has the server read it, and waits until it has. Nothing is
/// written if nothing differs.
pub async fn reload(
    _tools: &Tools,
    _volume: &Volume,
    _server: &Server,
    _sql: &mut Sql,
    _config: &Config,
) -> Result<Reload, PostgresError> {
    todo!()
}
