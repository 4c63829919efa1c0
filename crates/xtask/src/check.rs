//! `cargo xtask test`: all set-up, then all checks.

use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::shell::{cargo_command, step};
use crate::suites::{self, Suite};
use crate::{mutants, summary};

/// Which checks to run; all without an option.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only what needs neither root nor a cluster nor a PostgreSQL server, and the broken rules that it must find.
    #[arg(long)]
    offline: bool,
    /// Only end-to-end tests whose name contains this.
    #[arg(long, value_name = "NAME")]
    e2e: Option<String>,
}

/// Crates whose tests are pure: any operating system, no server.
#[rustfmt::skip]
const OFFLINE: [&str; 16] = [
    "-p", "api", "-p", "machine", "-p", "sim", "-p", "fake-api", "-p", "listen", "-p", "operator", "-p", "cli", "-p", "xtask",
];

/// Tests that pass and all the same have something to tell: how much they tried, and how fast.
const TELLING: [(&str, &str); 3] = [("sim", "model"), ("sim", "simulator"), ("sim", "operator")];

/// Runs the checks.
///
/// # Errors
/// When one fails; the others have run all the same where they do not build on it.
pub async fn run(arguments: Arguments) -> Result<()> {
    let mut tally = summary::Tally::default();
    if arguments.offline {
        check_format()?;
        offline(&mut tally).await?;
    } else {
        all(arguments.e2e.as_deref(), &mut tally).await?;
    }
    tally.close()
}

#[cfg(target_os = "linux")]
use crate::linux::whole::all;

/// The agent and the local cluster are made of what only Linux has.
#[cfg(not(target_os = "linux"))]
async fn all(_: Option<&str>, _: &mut summary::Tally) -> Result<()> {
    anyhow::bail!("all checks need Linux: `cargo xtask test --offline` runs what any system can")
}

pub fn check_format() -> Result<()> {
    step("checking the format", &mut cargo_command(&["fmt", "--all", "--check"]))
}

/// What needs no server, and the broken rules that it must find. These are built anew, for some minutes: the checks of a
/// submission have no time for them.
async fn offline(tally: &mut summary::Tally) -> Result<()> {
    for suite in build(&OFFLINE, tally)? {
        let start = Instant::now();
        run_suite(&suite, tally)?;
        tally.part(&suite.name(), start);
    }
    run_documents(&OFFLINE, tally)?;
    mutants::check(tally).await
}

pub fn run_suite(suite: &Suite, tally: &mut summary::Tally) -> Result<()> {
    println!("     Running {}", suite.name());
    let mut tests = suite.command();
    if TELLING
        .iter()
        .any(|(package, tests)| *package == suite.package && suite.tests.as_deref() == Some(*tests))
    {
        tests.arg("--show-output");
    }
    tally.count(&suite.name(), tests)?;
    Ok(())
}

pub fn run_documents(selection: &[&str], tally: &mut summary::Tally) -> Result<()> {
    let mut documents = cargo_command(&["test", "--quiet", "--locked", "--doc"]);
    documents.args(selection);
    suites::settle(&mut documents);
    tally.run("examples in the code's documentation", documents)
}

pub fn build(selection: &[&str], tally: &mut summary::Tally) -> Result<Vec<Suite>> {
    println!("==> building the tests");
    let start = Instant::now();
    let suites = suites::build(&[&["--locked"], selection].concat())?;
    println!("    building the tests: done in {:.1} s", start.elapsed().as_secs_f64());
    tally.part("building the tests", start);
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// A crate of ours that is made of what only Linux has, must be asked for on Linux only.
    #[test]
    fn what_runs_offline_needs_no_linux() {
        let output = cargo_command(&["metadata", "--no-deps", "--offline", "--format-version", "1"]).output();
        let metadata: Value = serde_json::from_slice(&output.expect("cargo runs").stdout).expect("JSON");
        let packages = metadata["packages"].as_array().expect("packages");
        let needed_by = |name: &str| {
            let package = packages.iter().find(|package| package["name"] == name);
            let dependencies = package.and_then(|package| package["dependencies"].as_array());
            let everywhere = dependencies
                .into_iter()
                .flatten()
                .filter(|needed| needed["target"].is_null());
            everywhere
                .filter_map(|needed| needed["name"].as_str())
                .collect::<Vec<_>>()
        };
        let mut found: BTreeSet<&str> = OFFLINE.into_iter().filter(|word| *word != "-p").collect();
        let mut open: Vec<&str> = found.iter().copied().collect();
        while let Some(name) = open.pop() {
            open.extend(needed_by(name).into_iter().filter(|needed| found.insert(needed)));
        }
        assert!(found.contains("machine") && found.contains("clap"), "{found:?}");
        for linux in ["agent", "e2e", "testbed"] {
            assert!(!found.contains(linux), "{linux}");
        }
    }
}
