//! Tools that run to their end (`initdb`, `pg_basebackup`, `pg_controldata`).

use std::process::{Command, ExitStatus};
use std::time::Duration;

use super::{ProcessError, Supervisor};

/// What a tool left behind.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output (the last MiB).
    pub stdout: String,
    /// What it wrote to standard error (the last MiB).
    pub stderr: String,
}

impl Supervisor {
    /// Runs a tool to its end, without standard input. Killed with its whole process group after `timeout`, or when this future is
    /// dropped. A failure status is an error with the end of its standard error.
    pub async fn run(&self, _command: Command, _timeout: Duration) -> Result<Output, ProcessError> {
        todo!()
    }
    /// As [`Supervisor::run`]; `on_line` sees every line of standard error as it comes.
    pub async fn run_with(
        &self,
        _command: Command,
        _timeout: Duration,
        _on_line: impl FnMut(&str) + Send,
    ) -> Result<Output, ProcessError> {
        todo!()
    }
}
