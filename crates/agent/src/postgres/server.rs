//! Starting and stopping the server.

use std::process::ExitStatus;
use std::time::Duration;

use super::{Config, PostgresError, Tools};
use crate::process::ProcessError;
use crate::volume::Volume;

/// A running PostgreSQL server. Its end is reported on the supervisor's channel under [`Server::NAME`], too.
#[derive(Debug)]
pub struct Server {}

/// Why the server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Other servers still run here.
    #[error("postgres already runs here (process {pid})")]
    AlreadyRuns {
        /// One of them.
        pid: u32,
    },
    /// A setting is refused; PostgreSQL's words.
    #[error("the settings are refused: {0}")]
    Settings(String),
    /// It ended before it accepted connections.
    #[error("postgres ended while starting ({0}); its log says why")]
    Ended(ExitStatus),
}

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended, WAL is sent to the standbys, a checkpoint is made (SIGINT).
    Fast,
    /// At once, to be recovered at the next start (SIGQUIT).
    Immediate,
}

impl Server {
    /// Name of the server's process in [`crate::process::Exit`].
    pub const NAME: &'static str = "postgres";

    /// Writes the configuration, checks it (PostgreSQL itself reads it), and starts the server on the volume's PGDATA; does not wait until it
    /// accepts connections. Its log is forwarded as JSON. Removes what a dead container left (`postmaster.pid`, sockets).
    pub async fn start(_tools: &Tools, _volume: &Volume, _files: &super::Files, _config: &Config) -> Result<Self, PostgresError> {
        todo!()
    }
    /// Process id of the postmaster.
    pub fn pid(&self) -> u32 {
        todo!()
    }
    /// It has ended.
    pub fn exited(&self) -> Option<ExitStatus> {
        todo!()
    }
    /// Asks it to stop; returns at once. Harmless if it has ended.
    pub fn stop(&self, _mode: StopMode) -> Result<(), ProcessError> {
        todo!()
    }
    /// Waits until the postmaster has ended and its children with it; `None` if `timeout` came first.
    pub async fn stopped(&self, _timeout: Duration) -> Option<ExitStatus> {
        todo!()
    }
    /// Tells it to read its configuration files again (SIGHUP).
    pub fn reload(&self) -> Result<(), ProcessError> {
        todo!()
    }
}
