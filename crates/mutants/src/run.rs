//! Running the tests that come across a mutant, until one fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::build::{Built, FOLDER, TRACE_VARIABLE};
use suites::copies::SWITCH_VARIABLE;
use suites::{SEED_VARIABLE, Suite};

/// A test that takes longer is run alone, after the others.
const LONG: Duration = Duration::from_millis(100);
/// A test that took longer is not even looked at when only short ones are wanted.
const LONGEST: Duration = Duration::from_secs(1);
/// How much longer than without a mutant a test may take.
const SLOWER: u32 = 5;
/// For what has nothing to do with the test.
const LATER: Duration = Duration::from_secs(3);

/// A test, and what it comes across.
#[derive(Debug)]
pub struct Test {
    suite: usize,
    /// Its path.
    pub name: String,
    took: Duration,
    reaches: BTreeSet<usize>,
}

/// What came of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This test fails.
    Failed(String),
    /// These tests do not end.
    Hangs(String),
    /// No test fails, of as many as come across it; the long ones may not be among them.
    Survived(usize),
}

/// What is kept of a test, by the number of its program.
fn file_name(suite: usize, test: &str) -> String {
    format!("{suite} {}", test.replace("::", " "))
}

/// All tests.
#[derive(Debug)]
pub struct Tests<'a> {
    built: &'a Built,
    all: Vec<Test>,
    /// Tests that fail without a mutant in the copy.
    pub useless: Vec<String>,
}

impl<'a> Tests<'a> {
    /// Runs each test alone without a mutant, and sees what it comes across; with `quick` none that is known to be long.
    ///
    /// # Errors
    /// When a program cannot be started.
    pub async fn look(built: &'a Built, quick: bool) -> Result<Self> {
        let mut tests = Self {
            built,
            all: Vec::new(),
            useless: Vec::new(),
        };
        let traces = built.sources.join("../traces");
        let kept = traces.join(&built.hash);
        if !kept.exists() && traces.exists() {
            fs::remove_dir_all(&traces).context("remove the traces of before")?;
        }
        let times = built.sources.join("../times");
        for folder in [&kept, &times] {
            fs::create_dir_all(folder).context("make a folder for the traces")?;
        }
        for (index, suite) in built.suites.iter().enumerate() {
            for name in tests.names(suite).await? {
                let time = times.join(file_name(index, &name));
                let before = fs::read_to_string(&time).ok().and_then(|took| took.parse().ok());
                if !quick || before.is_none_or(|took| Duration::from_millis(took) < LONGEST) {
                    tests.look_at(index, name, &kept, &time).await?;
                }
            }
        }
        tests.all.sort_by_key(|test| test.took);
        Ok(tests)
    }

    async fn names(&self, suite: &Suite) -> Result<Vec<String>> {
        let output = self.command(suite).args(["--list", "--format", "terse"]).output().await;
        let output = output.with_context(|| format!("start {}", suite.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect())
    }

    /// `times` is where the last time of any sources is kept.
    async fn look_at(&mut self, index: usize, name: String, traces: &Path, times: &Path) -> Result<()> {
        let suite = &self.built.suites[index];
        let trace = traces.join(file_name(index, &name));
        let time = trace.with_extension("time");
        if !time.exists() {
            let _ = fs::remove_file(&trace);
            let start = Instant::now();
            let mut command = self.command(suite);
            command
                .args(["--exact", &name, "--test-threads", "1"])
                .env(TRACE_VARIABLE, &trace);
            let output = command.output().await.context("start a test")?;
            let took = if output.status.success() {
                start.elapsed().as_millis().to_string()
            } else {
                "fails".to_owned()
            };
            for path in [times, &time] {
                fs::write(path, &took).context("write how long a test takes")?;
            }
        }
        let took = fs::read_to_string(&time).context("read how long a test takes")?;
        let Ok(took) = took.parse().map(Duration::from_millis) else {
            self.useless.push(name);
            return Ok(());
        };
        let reaches = fs::read_to_string(&trace).unwrap_or_default();
        let reaches: BTreeSet<usize> = reaches.lines().filter_map(|line| line.parse().ok()).collect();
        if !reaches.is_empty() {
            self.all.push(Test {
                suite: index,
                name,
                took,
                reaches,
            });
        }
        Ok(())
    }

    /// Runs what comes across `mutant`, in the order of what is most likely to fail: `first` (by name), the tests of the
    /// mutant's own module, the short ones, and the long ones one by one.
    ///
    /// # Errors
    /// When a program cannot be started.
    pub async fn run(&self, mutant: usize, module: &str, first: Option<&str>, quick: bool) -> Result<Outcome> {
        let reached: Vec<&Test> = self.all.iter().filter(|test| test.reaches.contains(&mutant)).collect();
        let (short, long): (Vec<&Test>, Vec<&Test>) = reached.iter().partition(|test| test.took < LONG);
        let (own, others): (Vec<&Test>, Vec<&Test>) = short.iter().partition(|test| test.name.starts_with(module));
        let before: Vec<&Test> = reached
            .iter()
            .copied()
            .filter(|test| Some(test.name.as_str()) == first)
            .collect();
        let mut groups = vec![before];
        for group in [own, others] {
            let mut suites: BTreeMap<usize, Vec<&Test>> = BTreeMap::new();
            for test in group {
                suites.entry(test.suite).or_default().push(test);
            }
            groups.extend(suites.into_values());
        }
        if !quick {
            groups.extend(long.iter().map(|test| vec![*test]));
        }
        let mut run = 0;
        for group in groups.iter().filter(|group| !group.is_empty()) {
            if let Some(outcome) = self.first_failure(mutant, group).await? {
                return Ok(outcome);
            }
            run += group.len();
        }
        Ok(Outcome::Survived(run))
    }

    async fn first_failure(&self, mutant: usize, group: &[&Test]) -> Result<Option<Outcome>> {
        let mut command = self.command(&self.built.suites[group[0].suite]);
        command
            .args(group.iter().map(|test| &test.name))
            .args(["--exact", "--test-threads", "1"]);
        command
            .env(SWITCH_VARIABLE, mutant.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().context("start the tests")?;
        let mut lines = BufReader::new(child.stdout.take().context("read of the tests")?).lines();
        let failed = async {
            while let Some(line) = lines.next_line().await.context("read of the tests")? {
                let name = line
                    .strip_prefix("test ")
                    .and_then(|line| line.strip_suffix(" ... FAILED"));
                if let Some(name) = name {
                    return Ok(Some(name.to_owned()));
                }
            }
            anyhow::Ok(None)
        };
        let usual: Duration = group.iter().map(|test| test.took).sum();
        let name = group[0].name.clone();
        let outcome = match tokio::time::timeout(usual * SLOWER + LATER, failed).await {
            Err(_) => Some(Outcome::Hangs(name)),
            Ok(failed) => match failed? {
                Some(name) => Some(Outcome::Failed(name.trim_end_matches(" - should panic").to_owned())),
                // It may also have died.
                None => (!child.wait().await.context("wait for the tests")?.success()).then_some(Outcome::Failed(name)),
            },
        };
        // Ours, and nobody else's.
        let _ = child.kill().await;
        Ok(outcome)
    }

    fn command(&self, suite: &Suite) -> Command {
        let mut command = Command::new(&suite.program);
        command
            .current_dir(self.built.sources.join("crates/machine"))
            .kill_on_drop(true);
        command.env_remove(SWITCH_VARIABLE).env_remove(TRACE_VARIABLE);
        command
            .env(SEED_VARIABLE, "1")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env("RUST_BACKTRACE", "0").env_remove("PROPTEST_CASES");
        command
    }

    /// How long all of them take, and how many they are.
    pub fn in_words(&self) -> String {
        let long = self.all.iter().filter(|test| test.took >= LONG);
        let time: Duration = self.all.iter().map(|test| test.took).sum();
        format!(
            "{} tests, {} of them long, {:.1} s in all",
            self.all.len(),
            long.count(),
            time.as_secs_f64()
        )
    }
}

/// What is known of before: the outcome of a mutant, by its name.
#[derive(Debug, Default)]
pub struct Known {
    of: BTreeMap<String, (String, Outcome)>,
}

/// What an outcome is kept under.
pub fn kept_as(hash: &str, quick: bool) -> String {
    let tests = if quick { " quick" } else { "" };
    format!("{hash}{tests}")
}

/// Where it is kept.
fn path(repository: &Path) -> std::path::PathBuf {
    repository.join(FOLDER).join("outcomes")
}

impl Known {
    /// Reads it.
    pub fn read(repository: &Path) -> Self {
        let text = fs::read_to_string(path(repository)).unwrap_or_default();
        let entry = |line: &str| {
            let mut parts = line.split('\t').map(str::to_owned);
            let (hash, kind, what, key) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let outcome = match kind.as_str() {
                "failed" => Outcome::Failed(what),
                "hangs" => Outcome::Hangs(what),
                _ => Outcome::Survived(what.parse().ok()?),
            };
            Some((key, (hash, outcome)))
        };
        Self {
            of: text.lines().filter_map(entry).collect(),
        }
    }

    /// The outcome with the same sources and tests: what was found by short tests alone holds of all.
    pub fn same(&self, hash: &str, quick: bool, key: &str) -> Option<&Outcome> {
        let (of, outcome) = self.of.get(key)?;
        let found = quick || !matches!(outcome, Outcome::Survived(_));
        let same = *of == kept_as(hash, false) || found && *of == kept_as(hash, true);
        same.then_some(outcome)
    }

    /// The test that failed before.
    pub fn killer(&self, key: &str) -> Option<&str> {
        match self.of.get(key)? {
            (_, Outcome::Failed(test)) => Some(test),
            _ => None,
        }
    }

    /// Keeps an outcome.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&mut self, repository: &Path, hash: &str, key: &str, outcome: &Outcome) -> Result<()> {
        let (kind, what) = match outcome {
            Outcome::Failed(test) => ("failed", test.clone()),
            Outcome::Hangs(test) => ("hangs", test.clone()),
            Outcome::Survived(tests) => ("survived", tests.to_string()),
        };
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path(repository))
            .context("open the outcomes")?;
        let line = format!("{hash}\t{kind}\t{what}\t{key}\n");
        std::io::Write::write_all(&mut file, line.as_bytes()).context("write an outcome")?;
        self.of.insert(key.to_owned(), (hash.to_owned(), outcome.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_short_tests_have_found_holds_of_all_and_what_they_have_not_only_of_them() {
        let known = |quick: bool, outcome: Outcome| Known {
            of: BTreeMap::from([("key".to_owned(), (kept_as("1", quick), outcome))]),
        };
        let failed = || Outcome::Failed("test".to_owned());
        for (by_quick, outcome, counts) in [
            (true, failed(), [true, true]),
            (true, Outcome::Survived(1), [true, false]),
            (false, failed(), [true, true]),
            (false, Outcome::Survived(1), [true, true]),
        ] {
            let known = known(by_quick, outcome);
            let same = |hash: &str, quick: bool| known.same(hash, quick, "key").is_some();
            assert_eq!([same("1", true), same("1", false)], counts);
            assert!(!same("2", true), "of other sources");
        }
    }
}
