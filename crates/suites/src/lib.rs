//! The programs of tests: built together, so that what they depend on is compiled once, and run one by one. Used by the project's
//! own tasks (`xtask`) and by what tries every mutant (`mutants`).

pub mod copies;
pub mod shell;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use shell::cargo_command;

/// Which cases the property tests make: read by proptest.
pub const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";

/// One program of tests.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suite {
    /// The package's folder's name.
    pub package: String,
    /// What cargo calls it, if it is not beside the code.
    pub tests: Option<String>,
    /// Its first file, in the package's folder.
    source: PathBuf,
    /// What to start.
    pub program: PathBuf,
    folder: PathBuf,
}

impl Suite {
    /// For the terminal.
    pub fn name(&self) -> String {
        format!("{} {}", self.package, self.source.display())
    }

    /// Whether it needs a Kubernetes.
    pub fn needs_cluster(&self) -> bool {
        self.package == "e2e" && self.tests.is_some()
    }

    /// The names of its tests.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn names(&self) -> Result<Vec<String>> {
        let output = self.command().args(["--list", "--format", "terse"]).output();
        let output = output.with_context(|| format!("list the tests of {}", self.name()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Starts it as `cargo test` does.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder);
        settle(&mut command);
        command
    }
}

/// What all tests are run with.
pub fn settle(command: &mut Command) {
    // A failure has a message; the stacks of async code would hide it.
    command.env("RUST_BACKTRACE", "0");
    // A test's thread gets as much as a program's first one: unoptimized futures around whole resources are large.
    command.env("RUST_MIN_STACK", "8388608");
    // The same code gets the same answer; `just properties` searches beyond these cases.
    if std::env::var_os(SEED_VARIABLE).is_none() {
        command.env(SEED_VARIABLE, "1");
    }
}

/// Builds the programs of tests that `cargo test` with `arguments` runs, in the order of their names.
///
/// # Errors
/// When they do not compile.
pub fn build(arguments: &[&str]) -> Result<Vec<Suite>> {
    let mut cargo = cargo_command(&["test", "--no-run", "--message-format", "json-render-diagnostics"]);
    cargo.args(arguments);
    built_by(&mut cargo)
}

/// Runs a cargo that reports in JSON what it builds.
///
/// # Errors
/// If it fails; cargo has printed why.
pub fn built_by(cargo: &mut Command) -> Result<Vec<Suite>> {
    let output = cargo.stderr(Stdio::inherit()).output().context("start cargo")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut suites: Vec<Suite> = messages.lines().filter_map(suite).collect();
    suites.sort();
    Ok(suites)
}

/// The program of tests in a message of cargo.
fn suite(line: &str) -> Option<Suite> {
    let message: Value = serde_json::from_str(line).ok()?;
    let program = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let source = Path::new(target["src_path"].as_str()?);
    let name = target["name"].as_str()?.to_owned();
    Some(Suite {
        package: folder.file_name()?.to_str()?.to_owned(),
        tests: (target["kind"][0] == "test").then_some(name),
        source: source.strip_prefix(folder).unwrap_or(source).to_owned(),
        program: PathBuf::from(program),
        folder: folder.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(kind: &str, source: &str, test: bool) -> String {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": "/w/crates/e2e/Cargo.toml",
            "target": {"kind": [kind], "name": "disks", "src_path": format!("/w/crates/e2e/{source}")},
            "profile": {"test": test},
            "executable": "/w/target/debug/deps/disks-1",
        })
        .to_string()
    }

    #[test]
    fn finds_what_cargo_built() {
        let found = suite(&message("test", "tests/disks.rs", true)).unwrap();
        assert_eq!(
            (found.name().as_str(), found.needs_cluster()),
            ("e2e tests/disks.rs", true)
        );
        assert_eq!(found.tests.as_deref(), Some("disks"));
        assert_eq!(found.command().get_current_dir(), Some(Path::new("/w/crates/e2e")));
        let beside = suite(&message("lib", "src/lib.rs", true)).unwrap();
        assert_eq!((beside.tests.as_deref(), beside.needs_cluster()), (None, false));
    }

    #[test]
    fn a_program_that_tests_only_start_is_none_of_tests() {
        assert_eq!(suite(&message("bin", "src/main.rs", false)), None);
        assert_eq!(suite(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(suite("no JSON"), None);
    }
}
