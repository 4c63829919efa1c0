//! Running programs, with their output passed on.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The checkout's root.
///
/// # Errors
/// When cargo cannot say where it is.
pub fn repository() -> Result<PathBuf> {
    let output = Command::new(cargo())
        .args(["locate-project", "--workspace", "--message-format=plain"])
        .stderr(Stdio::inherit())
        .output()
        .context("ask cargo for the workspace")?;
    let manifest = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(manifest.parent().context("find the workspace's folder")?.to_owned())
}

/// The cargo that runs us.
#[must_use]
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Prints a title, runs the command with its output passed on, and prints its time.
///
/// # Errors
/// When the program cannot be started or fails.
pub fn step(what: &str, command: &mut Command) -> Result<()> {
    println!("==> {what}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{what}: {status}");
    }
    println!("    {what}: done in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A cargo command in the workspace, the same however this program was started: `cargo xtask` adds variables about its own package, and
/// build scripts that read these (ring's) would run again, and compile half of the dependencies again.
#[must_use]
pub fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if OF_A_PACKAGE
            .iter()
            .any(|start| name.to_string_lossy().starts_with(start))
        {
            command.env_remove(name);
        }
    }
    command
}

/// How the names of variables begin that `cargo run` sets for the program.
const OF_A_PACKAGE: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_NAME", "CARGO_CRATE_NAME"];

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests themselves are started by cargo, or by this program, which has taken the variables away.
    #[test]
    fn no_variable_of_a_package_reaches_cargo() {
        let command = cargo_command(&["build"]);
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let is_gone = removed.iter().any(|(gone, _)| **gone == *name);
            assert_eq!(
                is_gone,
                OF_A_PACKAGE.iter().any(|start| name.starts_with(start)),
                "{name}"
            );
        }
    }
}
