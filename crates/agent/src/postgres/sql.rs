//! One supervised connection to the local server, as superuser, over its Unix socket.

use std::path::PathBuf;

use super::Status;

/// The connection: made when needed, made again when lost. `search_path` is pinned to `pg_catalog`, statements are bounded.
#[derive(Debug)]
pub struct Sql {}

/// Why the server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// Nothing listens.
    #[error("PostgreSQL does not listen on its socket")]
    NotListening,
    /// It starts, recovers or stops, and takes no sessions now; PostgreSQL's words.
    #[error("PostgreSQL takes no sessions now: {0}")]
    NotNow(String),
    /// It did not answer in time.
    #[error("PostgreSQL did not answer within {0} ms")]
    Silent(u64),
    /// It refused a statement; PostgreSQL's words.
    #[error("{0}")]
    Refused(String),
    /// The connection broke.
    #[error("the connection to PostgreSQL broke: {0}")]
    Broken(String),
}

impl Sql {
    /// A connection (not made yet) through the socket in `socket`.
    pub fn new(_socket: impl Into<PathBuf>, _port: u16) -> Self {
        todo!()
    }
    /// What the server says of itself, in one round trip.
    pub async fn status(&mut self) -> Result<Status, SqlError> {
        todo!()
    }
}
