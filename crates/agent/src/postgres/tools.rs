//! Where PostgreSQL's programs are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{ProcessError, Supervisor};

/// PostgreSQL's programs of one major version, and the supervisor that runs them.
#[derive(Clone, Debug)]
pub struct Tools {
    supervisor: Supervisor,
    directory: PathBuf,
    major: u16,
    version: String,
}

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
    Version(#[from] ProcessError),
}

const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

impl Tools {
    /// Finds the programs of `major` in Debian's place or in `PATH`, and asks for their version.
    pub async fn find(supervisor: &Supervisor, major: u16) -> Result<Self, ToolsError> {
        let debian = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directory = std::iter::once(debian)
            .chain(std::env::split_paths(&path))
            .find(|directory| directory.join("postgres").is_file())
            .ok_or(ToolsError::Missing { major })?;
        Self::at(supervisor, &directory, major).await
    }

    /// As [`Tools::find`], in one directory.
    pub async fn at(supervisor: &Supervisor, directory: &Path, major: u16) -> Result<Self, ToolsError> {
        let mut tools = Self {
            supervisor: supervisor.clone(),
            directory: directory.to_owned(),
            major,
            version: String::new(),
        };
        let mut command = tools.command("postgres");
        command.arg("--version");
        let output = supervisor.run(command, VERSION_TIMEOUT).await?;
        tools.version = parse_version(&output.stdout).unwrap_or_default().to_owned();
        if tools.version.split('.').next().and_then(|major| major.parse().ok()) == Some(major) {
            return Ok(tools);
        }
        Err(ToolsError::OtherVersion {
            found: output.stdout.trim().to_owned(),
            wanted: major,
        })
    }

    /// The major version.
    pub fn major(&self) -> u16 {
        self.major
    }

    /// The whole version, such as `17.6`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The supervisor.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Path of a program.
    pub fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// A command for a program, with an environment of its own: nothing that was meant for the agent (`PG…`) reaches it,
    /// messages are in English, and no file in a home directory counts.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.path(program));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::iter::once(self.directory.clone()).chain(std::env::split_paths(&path));
        command
            .env_clear()
            .env("LC_ALL", "C")
            .env("HOME", "/nonexistent")
            .current_dir("/");
        command.env("PATH", std::env::join_paths(directories).unwrap_or(path));
        command
    }
}

/// `17.6` of `postgres (PostgreSQL) 17.6 (Debian 17.6-1.pgdg13+1)`.
fn parse_version(output: &str) -> Option<&str> {
    output.split_once("(PostgreSQL) ")?.1.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(
            parse_version("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n"),
            Some("15.14")
        );
        assert_eq!(parse_version("postgres (PostgreSQL) 18beta1\n"), Some("18beta1"));
        assert_eq!(parse_version("nothing"), None);
    }
}
