//! Where PostgreSQL's programs are.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Supervisor;

/// PostgreSQL's programs of one major version, and the supervisor that runs them.
#[derive(Clone, Debug)]
pub struct Tools {}

/// Why PostgreSQL's programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// They are nowhere.
    #[error("no PostgreSQL {major} here: looked for `postgres` in PATH and in /usr/lib/postgresql/{major}/bin")]
    Missing {
        /// The wanted major version.
        major: u16,
    },
    /// They are of another major version.
    #[error("the image has PostgreSQL {found}, but majorVersion is {wanted}")]
    OtherVersion {
        /// What `postgres --version` says.
        found: String,
        /// The wanted major version.
        wanted: u16,
    },
    /// `postgres --version` failed.
    #[error("ask postgres for its version")]
    Version(#[from] crate::process::ProcessError),
}

impl Tools {
    /// Finds the programs of `major` in `PATH` and Debian's places, and asks for their version.
    pub async fn find(_supervisor: &Supervisor, _major: u16) -> Result<Self, ToolsError> {
        todo!()
    }
    /// As [`Tools::find`], in one directory.
    pub async fn at(_supervisor: &Supervisor, _directory: &Path, _major: u16) -> Result<Self, ToolsError> {
        todo!()
    }
    /// The major version.
    pub fn major(&self) -> u16 {
        todo!()
    }
    /// The whole version, such as `17.6`.
    pub fn version(&self) -> &str {
        todo!()
    }
    /// The supervisor.
    pub fn supervisor(&self) -> &Supervisor {
        todo!()
    }
    /// Path of a program.
    pub fn path(&self, _program: &str) -> PathBuf {
        todo!()
    }
    /// A command for a program, with a clean environment (`LC_ALL=C`).
    pub fn command(&self, _program: &str) -> Command {
        todo!()
    }
}
