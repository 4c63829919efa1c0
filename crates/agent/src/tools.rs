//! PostgreSQL's programs: where they are, and how they are run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{ProcessError, Supervisor};

/// PostgreSQL's programs of one major version, with the supervisor that runs them.
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
    /// The programs were not found.
    #[error("no PostgreSQL {major} here: looked for `postgres` in PATH and in /usr/lib/postgresql/{major}/bin")]
    Missing {
        /// The wanted major version.
        major: u16,
    },
    /// The programs are of another major version.
    #[error("the image has PostgreSQL {found}, but majorVersion is {wanted}")]
    OtherVersion {
        /// The output of `postgres --version`.
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
    /// Finds the programs of version `major` in Debian's directory or in `PATH`, and asks for their exact version.
    ///
    /// # Errors
    /// Fails with [`ToolsError::Missing`] if there is no `postgres`, with [`ToolsError::OtherVersion`] if it is of
    /// another major version, and with [`ToolsError::Version`] if `postgres --version` fails.
    pub async fn find(supervisor: &Supervisor, major: u16) -> Result<Self, ToolsError> {
        let debian = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directory = std::iter::once(debian)
            .chain(std::env::split_paths(&path))
            .find(|directory| directory.join("postgres").is_file())
            .ok_or(ToolsError::Missing { major })?;
        Self::at(supervisor, &directory, major).await
    }

    /// As [`Tools::find`], with the programs of one directory.
    ///
    /// # Errors
    /// Fails with [`ToolsError::OtherVersion`] or [`ToolsError::Version`], as [`Tools::find`].
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

    /// The directory of the programs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of a program.
    pub fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// A command for a program, with an environment of its own. Variables that were meant for the agent (`PG…`) do not
    /// reach it, its messages are in English, and files in a home directory have no effect.
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

/// Finds `17.6` in `postgres (PostgreSQL) 17.6 (Debian 17.6-1.pgdg13+1)`.
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
