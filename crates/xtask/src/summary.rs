//! What the test runners report: counted, and gathered for a closing summary.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How a line begins that belongs into the summary.
const FIGURE: &str = "figure: ";
/// So many lines are told again of what a failed test said.
const LINES: usize = 12;
/// For so long the last of it is awaited.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tests that passed and failed so far, and what is told of them at the end.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u32,
    failed: u32,
    broken: Vec<String>,
    reasons: Vec<String>,
    figures: Vec<String>,
    parts: Vec<(String, Duration)>,
}

impl Tally {
    /// Runs a `cargo test`, or another check, and says how long it took.
    ///
    /// # Errors
    /// When it cannot be started. A failed test is counted, not an error.
    pub fn run(&mut self, what: &str, command: Command) -> Result<()> {
        println!("==> {what}");
        let start = Instant::now();
        let status = self.count(what, command)?;
        println!("    {what}: {status} after {:.1} s", start.elapsed().as_secs_f64());
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

    /// Runs tests, passes their output on, and counts their results.
    ///
    /// # Errors
    /// When they cannot be started. A failed test is counted, not an error.
    pub fn count(&mut self, what: &str, mut command: Command) -> Result<ExitStatus> {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("start {what}"))?;
        let output = child.stdout.take().context("read the tests' output")?;
        let errors = child.stderr.take().context("read the tests' errors")?;
        let (sender, said) = mpsc::channel();
        thread::spawn(move || {
            let mut reasons = Reasons::default();
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                eprintln!("{line}");
                reasons.see(&line);
            }
            sender.send(reasons)
        });
        let mut reasons = Reasons::default();
        for line in BufReader::new(output).lines() {
            let line = line.context("read the tests' output")?;
            println!("{line}");
            reasons.see(&line);
            self.figures.extend(line.strip_prefix(FIGURE).map(str::to_owned));
            if let Some((passed, failed)) = results(&line) {
                self.passed += passed;
                self.failed += failed;
            }
        }
        let status = child.wait().with_context(|| format!("await {what}"))?;
        if !status.success() {
            self.broken.push(what.to_owned());
            // What a test has left behind may hold the pipe.
            let errors = said.recv_timeout(PATIENCE).unwrap_or_default();
            let told = reasons.lines.into_iter().chain(errors.lines);
            self.reasons.extend(told.map(|line| format!("{what}: {line}")));
        }
        Ok(status)
    }

    /// Prints the figures, the time of each part, what failed tests said, and the closing line.
    ///
    /// # Errors
    /// When anything failed, or nothing ran.
    pub fn close(self) -> Result<()> {
        println!();
        for figure in &self.figures {
            println!("{figure}");
        }
        let together: Duration = self.parts.iter().map(|(_, took)| *took).sum();
        for (what, took) in &self.parts {
            println!("{:>8.1} s  {what}", took.as_secs_f64());
        }
        println!("{:>8.1} s  together", together.as_secs_f64());
        println!();
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

/// What failed tests said: how they ended, and a few lines after that.
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

    use super::{Tally, results};

    #[test]
    fn reads_the_runners_line() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(results(line), Some((12, 3)));
        assert_eq!(results("running 3 tests"), None);
    }

    #[test]
    fn what_a_failed_test_said_is_told_again_at_the_end() {
        let mut tally = Tally::default();
        let mut said = |script: &str| {
            let mut tests = Command::new("sh");
            tests.args(["-c", script]);
            tally.run("tests", tests).unwrap();
            std::mem::take(&mut tally.reasons)
        };
        let shows = "echo 'thread t panicked at a.rs:1'; echo 'Error: lost' >&2; echo of three >&2";
        assert!(said(shows).is_empty(), "that was meant");
        let failed = said(&format!("{shows}; echo more; exit 1"));
        let told = ["thread t panicked at a.rs:1", "more", "Error: lost", "of three"];
        assert_eq!(failed, told.map(|line| format!("tests: {line}")));
        let long = said("echo ' panicked at '; seq 100; exit 1");
        assert_eq!(long.len(), super::LINES, "{long:?}");
    }

    #[test]
    fn what_is_marked_as_a_figure_is_told_at_the_end() {
        let mut tally = Tally::default();
        let mut tests = Command::new("printf");
        tests.arg("figure: 7 states\nno figure: 8 states\ntest result: ok. 1 passed; 0 failed\n");
        tally.run("printf", tests).unwrap();
        tally.figure("mutants", Ok("3 found".to_owned()));
        assert_eq!(tally.figures, ["7 states", "3 found"]);
        assert_eq!((tally.passed, tally.parts.len()), (1, 1));
        tally.figure("mutants", Err(anyhow!("one lives")));
        assert!(tally.close().is_err());
    }
}
