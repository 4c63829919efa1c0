//! The only waiter for children, and the registry of those that it started.

use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};

use tokio::sync::{mpsc, watch};

use super::{ProcessError, Signal};

/// Starts, watches and ends processes. There is one per agent; clones share it.
#[derive(Clone, Debug)]
pub struct Supervisor {}

/// A child of [`Supervisor::spawn`] has ended.
#[derive(Clone, Debug)]
pub struct Exit {
    /// The name that [`Supervisor::spawn`] was given.
    pub name: &'static str,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
}

/// A child that was started.
#[derive(Debug)]
pub struct Running {
    /// Its process id.
    pub pid: u32,
    /// How it ended; `None` while it runs.
    pub exit: watch::Receiver<Option<ExitStatus>>,
    /// Its standard input, if piped.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if piped.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, if piped.
    pub stderr: Option<ChildStderr>,
}

impl Running {
    /// Waits for its end.
    pub async fn wait(&mut self) -> ExitStatus {
        todo!()
    }
}

impl Supervisor {
    /// Starts the reaper: from now on nobody else may wait for a child (no `tokio::process`, no `Child::wait`). If the
    /// agent is not PID 1 it becomes a child subreaper, so that its orphans still are its own. Also returns where the
    /// ends of children arrive.
    pub fn start() -> Result<(Self, mpsc::UnboundedReceiver<Exit>), ProcessError> {
        todo!()
    }
    /// Starts a child in a process group of its own; its end is reported on the channel under `name` and in
    /// [`Running::exit`].
    pub fn spawn(&self, _name: &'static str, _command: Command) -> Result<Running, ProcessError> {
        todo!()
    }
    /// Sends `signal` to a child. `false` if it has ended: the id may then belong to another process, and is left alone.
    pub fn signal(&self, _pid: u32, _signal: Signal) -> Result<bool, ProcessError> {
        todo!()
    }
    /// Kills every process of the PID namespace but PID 1 (this agent) and `except` with SIGKILL, and returns when none
    /// is left alive: the proof that a lease may be released on. If the agent is not PID 1, its descendants are meant.
    /// Meanwhile nothing can be started. Does not return as long as one of them hangs in the kernel.
    pub async fn kill_everything_else(&self, _except: &[u32]) -> Result<(), ProcessError> {
        todo!()
    }
}
