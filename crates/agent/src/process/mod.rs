//! Processes: the duties of PID 1, tools that run to their end, and the proof that no process is left.

mod helper;
mod proc_fs;
mod supervisor;
mod tool;

pub(crate) use helper::Helper;
pub use proc_fs::{ProcessInfo, descendants, postgres_processes, processes};
pub(crate) use supervisor::wait_for;
pub use supervisor::{Exit, Running, Supervisor};
pub use tool::Output;

pub use rustix::process::Signal;

/// Why a process could not be started, watched or ended.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program could not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// All processes are being killed: no new one may be started.
    #[error("start {program}: all processes are being ended")]
    Closed {
        /// The program.
        program: String,
    },
    /// A tool did not end in time, and was killed.
    #[error("{program} did not end within {seconds} s and was killed")]
    TooSlow {
        /// The program.
        program: String,
        /// The limit.
        seconds: u64,
    },
    /// A tool reported failure.
    #[error("{program} failed ({status}): {message}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The end of its standard error.
        message: String,
    },
    /// The kernel refused.
    #[error("{action}")]
    System {
        /// What the agent tried.
        action: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}
