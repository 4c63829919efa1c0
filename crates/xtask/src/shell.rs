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
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Says what is done, runs it with its output passed on, and says how long it took.
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

/// A cargo command in the workspace.
#[must_use]
pub fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.args(arguments);
    command
}
