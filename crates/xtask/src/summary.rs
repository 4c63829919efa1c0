//! Counting what the test runners report, for one closing line.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Tests that passed and failed so far.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u32,
    failed: u32,
    broken: Vec<String>,
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
        Ok(())
    }

    /// Runs tests, passes their output on, and counts their results.
    ///
    /// # Errors
    /// When they cannot be started. A failed test is counted, not an error.
    pub fn count(&mut self, what: &str, mut command: Command) -> Result<ExitStatus> {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {what}"))?;
        let output = child.stdout.take().context("read the tests' output")?;
        for line in BufReader::new(output).lines() {
            let line = line.context("read the tests' output")?;
            println!("{line}");
            if let Some((passed, failed)) = results(&line) {
                self.passed += passed;
                self.failed += failed;
            }
        }
        let status = child.wait().with_context(|| format!("await {what}"))?;
        if !status.success() {
            self.broken.push(what.to_owned());
        }
        Ok(status)
    }

    /// Prints the closing line.
    ///
    /// # Errors
    /// When anything failed, or nothing ran.
    pub fn close(self) -> Result<()> {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        if !self.broken.is_empty() {
            bail!("failed: {}", self.broken.join(", "));
        }
        if self.passed == 0 {
            bail!("no test ran");
        }
        Ok(())
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
    use super::results;

    #[test]
    fn reads_the_runners_line() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(results(line), Some((12, 3)));
        assert_eq!(results("running 3 tests"), None);
    }
}
