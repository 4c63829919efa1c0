//! The dead-man: a second tiny process that ends PostgreSQL when the agent does not push the deadline on.
//!
//! The agent may hang, be stopped or starve; a stopped process cannot fence itself. This one has no runtime and no
//! memory to ask for: it waits for a deadline of `CLOCK_BOOTTIME` and then sends SIGKILL to everything.

use machine::timing::BootTime;

/// Now, on the clock that goes on while the machine sleeps.
pub fn boot_time() -> BootTime {
    todo!()
}

/// The hidden first argument with which the agent's binary becomes the dead-man.
pub const SUBCOMMAND: &str = "dead-man";

/// If this process was started as the dead-man: be it, and never return. To be called first in `main`, before any
/// thread exists.
pub fn become_dead_man_if_asked() {
    todo!()
}

/// The agent's end of the dead-man. Dropping it (or dying) makes the dead-man kill everything.
#[derive(Debug)]
pub struct DeadMan {}

/// Why the dead-man is of no use; the holder of the lease must not go on without it.
#[derive(Debug, thiserror::Error)]
pub enum DeadManError {
    /// It could not be started.
    #[error("start the dead-man")]
    Start(#[source] std::io::Error),
    /// It does not take deadlines.
    #[error("tell the dead-man its deadline")]
    Tell(#[source] std::io::Error),
}

impl DeadMan {
    /// Starts the dead-man from `/proc/self/exe`. To be called before the asynchronous runtime starts.
    pub fn start() -> Result<Self, DeadManError> {
        todo!()
    }
    /// As [`DeadMan::start`], with another binary that calls [`become_dead_man_if_asked`] (tests).
    pub fn start_program(_program: &std::path::Path) -> Result<Self, DeadManError> {
        todo!()
    }
    /// Its process id: for [`crate::process::Supervisor::kill_everything_else`].
    pub fn pid(&self) -> u32 {
        todo!()
    }
    /// Everything dies at `deadline`, unless a later one is set before. Never blocks.
    pub fn arm(&self, _deadline: BootTime) -> Result<(), DeadManError> {
        todo!()
    }
    /// No deadline. Never blocks.
    pub fn disarm(&self) -> Result<(), DeadManError> {
        todo!()
    }
}
