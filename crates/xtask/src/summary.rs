//! What the test runners report: counted, and gathered for a closing summary.

use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::times::{Reader, Times};

/// How a line begins that belongs into the summary.
const FIGURE: &str = "figure: ";
/// Lines of a failed test's output that the summary repeats.
const LINES: usize = 12;
/// For so long the last of it is awaited.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tests that passed and failed so far, and the summary's texts about them.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u32,
    failed: u32,
    broken: Vec<String>,
    reasons: Vec<String>,
    figures: Vec<String>,
    parts: Vec<(String, Duration)>,
    times: Times,
}

/// What one program of tests, or another check, came to.
#[derive(Debug)]
pub struct Outcome {
    status: ExitStatus,
    took: Duration,
    passed: u32,
    failed: u32,
    figures: Vec<String>,
    reasons: Vec<String>,
    tests: Vec<(String, Duration)>,
}

impl Tally {
    /// Runs a `cargo test`, or another check, and prints its time.
    ///
    /// # Errors
    /// When it cannot be started. A failed test is counted, not an error.
    pub async fn run(&mut self, what: &str, command: Command) -> Result<()> {
        println!("==> {what}");
        let start = Instant::now();
        let outcome = watch(what, command, "").await?;
        let (status, took) = (outcome.status, outcome.took.as_secs_f64());
        println!("    {what}: {status} after {took:.1} s");
        self.add(what, outcome);
        self.part(what, start);
        Ok(())
    }

    /// Notes how long a part took, from its `start` to now.
    pub fn part(&mut self, what: &str, start: Instant) {
        self.parts.push((what.to_owned(), start.elapsed()));
    }

    /// Notes what came of a check that is no test: its figure, or why it failed.
    pub fn figure(&mut self, what: &str, done: Result<String>) {
        match done {
            Ok(figure) => self.figures.push(figure),
            Err(error) => {
                println!("    {what}: {error:#}");
                self.broken.push(what.to_owned());
                self.reasons.push(format!("{what}: {error:#}"));
            }
        }
    }

    /// Counts what a suite came to, and notes its time. The parts of a suite are added up.
    pub fn add_suite(&mut self, suite: &str, mut outcome: Outcome) {
        let tests = std::mem::take(&mut outcome.tests);
        self.times.note(suite, outcome.took, tests);
        self.add(suite, outcome);
    }

    fn add(&mut self, what: &str, outcome: Outcome) {
        self.passed += outcome.passed;
        self.failed += outcome.failed;
        self.figures.extend(outcome.figures);
        if outcome.status.success() {
            return;
        }
        if !self.broken.iter().any(|broken| broken == what) {
            self.broken.push(what.to_owned());
        }
        let reasons = outcome.reasons.into_iter();
        self.reasons.extend(reasons.map(|line| format!("{what}: {line}")));
    }

    /// Fails for each suite that took far longer than its budget.
    pub fn hold_to_budgets(&mut self) {
        let over = self.times.over_budget();
        self.broken.extend((!over.is_empty()).then(|| "budgets".to_owned()));
        self.reasons.extend(over);
    }

    /// Prints the figures, the times of suites, slow tests and parts, the output of failed tests, and the closing line.
    ///
    /// # Errors
    /// When anything failed, or nothing ran.
    pub fn close(self) -> Result<()> {
        println!();
        for figure in &self.figures {
            println!("{figure}");
        }
        print!("{}", self.times.tables());
        println!("\n minutes  part");
        let minutes = |time: Duration| time.as_secs_f64() / 60.0;
        let together: Duration = self.parts.iter().map(|(_, took)| *took).sum();
        for (what, took) in &self.parts {
            println!("{:>8.1}  {what}", minutes(*took));
        }
        println!("{:>8.1}  together\n", minutes(together));
        for reason in &self.reasons {
            println!("{reason}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if !self.broken.is_empty() {
            bail!("failed: {}", self.broken.join(", "));
        }
        if self.passed == 0 && self.figures.is_empty() {
            bail!("no test ran");
        }
        Ok(())
    }
}

/// Runs tests, passes their output on with `mark` before each line, and reads what they came to. They are ended when the
/// future is dropped.
///
/// # Errors
/// When they cannot be started. A failed test is counted, not an error.
pub async fn watch(what: &str, command: Command, mark: &str) -> Result<Outcome> {
    let start = Instant::now();
    let mut command = tokio::process::Command::from(command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("start {what}"))?;
    let output = child.stdout.take().context("read the tests' output")?;
    let errors = child.stderr.take().context("read the tests' errors")?;
    let mark_of_errors = mark.to_owned();
    let errors = tokio::spawn(async move {
        let (mut reasons, mut lines) = (Reasons::default(), BufReader::new(errors).lines());
        while let Ok(Some(line)) = lines.next_line().await {
            eprintln!("{mark_of_errors}{line}");
            reasons.see(&line);
        }
        reasons
    });
    let (mut reasons, mut reader) = (Reasons::default(), Reader::default());
    let (mut passed, mut failed, mut figures) = (0, 0, Vec::new());
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.context("read the tests' output")? {
        println!("{mark}{line}");
        reasons.see(&line);
        reader.see(&line);
        figures.extend(line.strip_prefix(FIGURE).map(str::to_owned));
        let (more, less) = results(&line).unwrap_or_default();
        passed += more;
        failed += less;
    }
    let status = child.wait().await.with_context(|| format!("await {what}"))?;
    let mut reasons = reasons.lines;
    // What a test has left behind may hold the pipe.
    if let Ok(Ok(errors)) = timeout(PATIENCE, errors).await {
        reasons.extend(errors.lines);
    }
    Ok(Outcome {
        status,
        took: start.elapsed(),
        passed,
        failed,
        figures,
        reasons,
        tests: reader.tests,
    })
}

/// The output of failed tests: how they ended, and a few lines after that.
#[derive(Debug, Default)]
struct Reasons {
    lines: Vec<String>,
    rest: usize,
}

impl Reasons {
    fn see(&mut self, line: &str) {
        if line.starts_with("Error: ") || line.contains(" panicked at ") {
            self.rest = LINES;
        }
        if self.rest > 0 {
            self.rest -= 1;
            self.lines.push(line.to_owned());
        }
    }
}

/// The numbers in a `test result: ok. 3 passed; 0 failed; …` line.
fn results(line: &str) -> Option<(u32, u32)> {
    let rest = line.strip_prefix("test result: ")?;
    let number = |word: &str| {
        let before = rest.split(word).next()?;
        before.rsplit([' ', ';']).find(|part| !part.is_empty())?.parse().ok()
    };
    Some((number(" passed")?, number(" failed")?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use anyhow::anyhow;

    use super::{Tally, results, watch};

    #[test]
    fn reads_the_runners_line() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(results(line), Some((12, 3)));
        assert_eq!(results("running 3 tests"), None);
    }

    async fn said(script: &str) -> Vec<String> {
        let mut tally = Tally::default();
        let mut tests = Command::new("sh");
        tests.args(["-c", script]);
        tally.run("tests", tests).await.unwrap();
        tally.reasons
    }

    #[tokio::test]
    async fn a_failed_tests_output_is_repeated_at_the_end() {
        let shows = "echo 'thread t panicked at a.rs:1'; echo 'Error: lost' >&2; echo of three >&2";
        assert!(said(shows).await.is_empty(), "that was meant");
        let failed = said(&format!("{shows}; echo more; exit 1")).await;
        let told = ["thread t panicked at a.rs:1", "more", "Error: lost", "of three"];
        assert_eq!(failed, told.map(|line| format!("tests: {line}")));
        let long = said("echo ' panicked at '; seq 100; exit 1").await;
        assert_eq!(long.len(), super::LINES, "{long:?}");
    }

    #[tokio::test]
    async fn a_suite_that_takes_more_than_three_budgets_fails() {
        let seconds = std::time::Duration::from_secs;
        for (took, fails) in [(180, false), (181, true)] {
            let mut tally = Tally::default();
            let mut outcome = watch("true", Command::new("true"), "").await.unwrap();
            outcome.passed = 1;
            outcome.took = seconds(took);
            tally.add_suite("none src/lib.rs", outcome);
            tally.hold_to_budgets();
            let told = tally.reasons.clone();
            assert_eq!(tally.close().is_err(), fails, "{told:?}");
            assert_eq!(told.len(), usize::from(fails));
        }
    }

    #[tokio::test]
    async fn marked_figures_are_printed_at_the_end() {
        let mut tally = Tally::default();
        let mut tests = Command::new("printf");
        tests.arg("figure: 7 states\nno figure: 8 states\ntest result: ok. 1 passed; 0 failed\n");
        tally.run("printf", tests).await.unwrap();
        tally.figure("mutants", Ok("3 found".to_owned()));
        assert_eq!(tally.figures, ["7 states", "3 found"]);
        assert_eq!((tally.passed, tally.parts.len()), (1, 1));
        tally.figure("mutants", Err(anyhow!("one lives")));
        assert!(tally.close().is_err());
    }
}
