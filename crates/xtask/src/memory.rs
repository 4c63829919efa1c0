//! `cargo xtask memory`: how much memory the operator takes.

use std::process::Command;

use anyhow::Result;
use suites::shell::{cargo_command, step};

/// Measures, prints the figures, and holds them to the bounds.
///
/// # Errors
/// When the operator takes more than it may.
pub fn run() -> Result<()> {
    step("measuring the operator's memory", &mut command())
}

/// The test that measures. It prints its figures.
pub fn command() -> Command {
    let mut tests = cargo_command(&["test", "--quiet", "--locked", "-p", "operator", "--test", "memory"]);
    tests.args(["--", "--nocapture", "--test-threads", "1"]);
    tests
}
