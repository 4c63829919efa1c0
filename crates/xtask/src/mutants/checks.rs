//! Building the checks of a copy, and running one with one mutant in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use suites::copies::SWITCH_VARIABLE;
use suites::shell::cargo_command;
use suites::{SEED_VARIABLE, Suite};
use tokio::process::Command;

use super::tree::Tree;
use super::{Check, Mutant};

/// What came of a check with a mutant in the code.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It failed, as it must; the first line of what it said.
    Found(String),
    /// It passed: the mutant lives.
    Passed,
    /// It had not ended within its budget; a mutant may also hang it.
    Late(Duration),
    /// It neither passed nor failed.
    Broken(String),
}

impl Outcome {
    /// For the terminal.
    pub fn in_words(&self) -> String {
        match self {
            Outcome::Found(why) => format!("found: {why}"),
            Outcome::Passed => "NOT FOUND: the check passes".to_owned(),
            Outcome::Late(budget) => format!(
                "NOT FOUND IN TIME: the check had not ended after {} s",
                budget.as_secs()
            ),
            Outcome::Broken(why) => format!("BROKEN: {why}"),
        }
    }
}

/// The programs that run the checks.
#[derive(Debug)]
pub struct Runner {
    sources: PathBuf,
    suites: Vec<Suite>,
}

impl Runner {
    /// Builds them.
    ///
    /// # Errors
    /// When the copy does not compile: the compiler says which mutant is no program.
    pub fn build(tree: &Tree) -> Result<Self> {
        println!("==> building the mutants' checks (the first time takes some minutes)");
        let start = Instant::now();
        let mut cargo = cargo_command(&["test", "--no-run", "--message-format", "json-render-diagnostics"]);
        cargo.args(["-p", "machine", "-p", "sim", "--lib"]);
        let targets: BTreeSet<_> = super::all().filter_map(|mutant| mutant.found_by.target).collect();
        cargo.args(targets.iter().flat_map(|target| ["--test", *target]));
        cargo.current_dir(&tree.sources).env("CARGO_TARGET_DIR", &tree.target);
        let suites = suites::built_by(&mut cargo).context("build the copy with all mutants")?;
        println!("    built after {:.1} s", start.elapsed().as_secs_f64());
        Ok(Self {
            sources: tree.sources.clone(),
            suites,
        })
    }

    /// Runs the checks of these mutants without any mutant.
    ///
    /// # Errors
    /// When one fails, or does not exist.
    pub async fn confirm(&self, mutants: &[&Mutant]) -> Result<()> {
        let mut checks: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
        for Check {
            package, target, path, ..
        } in mutants.iter().map(|mutant| mutant.found_by)
        {
            checks.entry((package, target)).or_default().insert(path);
        }
        println!("==> running the checks without a mutant");
        let start = Instant::now();
        for ((package, target), paths) in checks {
            let paths: Vec<_> = paths.into_iter().collect();
            let output = self.output(package, target, &paths, None).await?;
            let text = String::from_utf8_lossy(&output.stdout);
            let passed = text.contains(&format!("test result: ok. {} passed; 0 failed", paths.len()));
            if !passed {
                bail!("checks of {package} fail without a mutant, or are not there:\n{text}");
            }
        }
        println!("    all pass, after {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Runs a mutant's check, and says how long that took.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn run(&self, mutant: &Mutant) -> Result<(Outcome, Duration)> {
        let Check {
            package, target, path, ..
        } = mutant.found_by;
        let start = Instant::now();
        let budget = mutant.found_by.rung.budget();
        let done = tokio::time::timeout(budget, self.output(package, target, &[path], Some(mutant.name))).await;
        let outcome = match done {
            Ok(output) => outcome(&output?),
            Err(_) => Outcome::Late(budget),
        };
        Ok((outcome, start.elapsed()))
    }

    async fn output(
        &self,
        package: &str,
        target: Option<&str>,
        paths: &[&str],
        mutant: Option<&str>,
    ) -> Result<Output> {
        let mut suites = self.suites.iter();
        let program = suites
            .find(|suite| suite.package == package && suite.tests.as_deref() == target)
            .map(|suite| &suite.program)
            .with_context(|| format!("{package} has no tests {}", target.unwrap_or("beside its code")))?;
        let mut command = Command::new(program);
        command.args(paths).args(["--exact", "--test-threads", "1"]);
        command.current_dir(self.sources.join("crates").join(package));
        command.env_remove(SWITCH_VARIABLE).kill_on_drop(true);
        // The same cases each time, and none that is kept from the mutant before.
        command
            .env(SEED_VARIABLE, "1")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env("RUST_BACKTRACE", "0").env_remove("PROPTEST_CASES");
        if let Some(mutant) = mutant {
            command.env(SWITCH_VARIABLE, mutant);
        }
        command
            .output()
            .await
            .with_context(|| format!("start {}", program.display()))
    }
}

fn outcome(output: &Output) -> Outcome {
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("test result: FAILED. 0 passed; 1 failed") {
        return Outcome::Found(counterexample(&text));
    }
    if text.contains("test result: ok. 1 passed") {
        return Outcome::Passed;
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let last = error.lines().chain(text.lines()).rfind(|line| !line.is_empty());
    Outcome::Broken(format!("{}: {}", output.status, last.unwrap_or_default()))
}

/// Longest line that is shown, in characters.
const LONGEST: usize = 160;

/// The first line of what a failed test said.
pub fn counterexample(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.contains(" panicked at "));
    let said = lines.nth(1).unwrap_or_default().trim();
    let said = said.strip_prefix("Test failed: ").unwrap_or(said);
    let whole = said.trim_end_matches('.');
    match whole.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &whole[..end]),
        None => whole.to_owned(),
    }
}
