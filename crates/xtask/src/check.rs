//! `cargo xtask test`: all set-up, then all checks.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use suites::Suite;
use suites::shell::{cargo_command, step};

use crate::{memory, mutants, summary, times};

/// Which checks to run; all without an option.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only what needs neither root nor a cluster nor a PostgreSQL server, and the broken rules that it must find.
    #[arg(long)]
    offline: bool,
    /// Only end-to-end tests whose name contains this.
    #[arg(long, value_name = "NAME")]
    e2e: Option<String>,
    /// The same checks with many more seeds, cases and minutes; takes some hours.
    #[arg(long)]
    long: bool,
}

/// Tells tests that repeat something that they are to repeat it more often.
const LONG_VARIABLE: &str = "CDB_LONG";

/// What `--long` sets, unless it is set: how often suites repeat what they do with other random choices.
const LONG: [(&str, &str); 7] = [
    (LONG_VARIABLE, "1"),
    ("CDB_FLOOD_SECONDS", "60"),
    ("CDB_SEEDS", "400"),
    ("CDB_WALKS", "64"),
    ("MODEL_COURSES", "20000"),
    ("PROPTEST_CASES", "100000"),
    ("SIM_SEEDS", "10000"),
];

/// Crates whose tests are pure: any operating system, no server.
#[rustfmt::skip]
const OFFLINE: [&str; 26] = [
    "-p", "api", "-p", "machine", "-p", "sim", "-p", "fake-api", "-p", "listen", "-p", "scram", "-p", "operator", "-p", "cli",
    "-p", "suites", "-p", "mutants", "-p", "xtask", "-p", "backup", "-p", "test-store",
];

/// Tests that pass and all the same have something to tell: how much they tried, and how fast.
const TELLING: [(&str, &str); 3] = [("sim", "model"), ("sim", "simulator"), ("sim", "operator")];

/// Runs the checks.
///
/// # Errors
/// When one fails; the others have run all the same where they do not build on it.
pub async fn run(arguments: Arguments) -> Result<()> {
    if arguments.long && std::env::var_os(LONG_VARIABLE).is_none() {
        return run_long();
    }
    let mut tally = summary::Tally::default();
    if arguments.offline {
        check_format()?;
        offline(&mut tally).await?;
    } else {
        all(arguments.e2e.as_deref(), &mut tally).await?;
    }
    if arguments.long {
        tally.run("memory of the operator", memory::command()).await?;
    }
    // Otherwise parts of suites run, or they run alone or for longer: the budgets are for the whole.
    if !arguments.offline && arguments.e2e.is_none() && !arguments.long {
        tally.hold_to_budgets();
    }
    tally.close()
}

/// Runs this program once more, with what makes everything that it starts repeat more.
fn run_long() -> Result<()> {
    let program = std::env::current_exe().context("find this program")?;
    let mut again = Command::new(program);
    again.args(std::env::args_os().skip(1));
    again.envs(LONG.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    let status = again.status().context("start this program again")?;
    ensure!(status.success(), "{status}: see above");
    Ok(())
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
    let suites = build(&OFFLINE, tally)?;
    let start = Instant::now();
    for suite in suites {
        run_suite(&suite, tally).await?;
    }
    tally.part("unit and property tests", start);
    run_documents(&OFFLINE, tally).await?;
    mutants::check(tally).await
}

/// Runs a suite, and records its result and the time of each test.
///
/// # Errors
/// When it cannot be started. A failed test is counted, not an error.
pub async fn run_suite(suite: &Suite, tally: &mut summary::Tally) -> Result<()> {
    println!("     Running {}", suite.name());
    let outcome = summary::watch(&suite.name(), command(suite), "").await?;
    tally.add_suite(&suite.name(), outcome);
    Ok(())
}

/// The command for a suite that prints its figures and times.
pub fn command(suite: &Suite) -> Command {
    let mut tests = suite.command();
    if TELLING
        .iter()
        .any(|(package, tests)| *package == suite.package && suite.tests.as_deref() == Some(*tests))
    {
        tests.arg("--show-output");
    }
    times::ask_for(&mut tests);
    tests
}

pub async fn run_documents(selection: &[&str], tally: &mut summary::Tally) -> Result<()> {
    let mut documents = cargo_command(&["test", "--quiet", "--locked", "--doc"]);
    documents.args(selection);
    suites::settle(&mut documents);
    tally.run("examples in the code's documentation", documents).await
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

    /// A misspelt name would repeat nothing.
    #[test]
    fn what_a_long_run_sets_is_read_by_a_test() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("crates");
        let readers = [
            "e2e/src/connect.rs",
            "listen/src/flood.rs",
            "operator/tests/simulated/seeds.rs",
            "sim/tests/model.rs",
        ];
        let more = [
            "operator/tests/simulated/scenarios/every_field.rs",
            "sim/tests/support/seeds.rs",
        ];
        let read = |file: &str| std::fs::read_to_string(crates.join(file)).expect(file);
        let sources: String = readers.into_iter().chain(more).map(read).collect();
        // This one is read by proptest.
        for (name, _) in LONG.into_iter().filter(|(name, _)| *name != "PROPTEST_CASES") {
            assert!(sources.contains(&format!("\"{name}\"")), "nobody reads {name}");
        }
    }

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
