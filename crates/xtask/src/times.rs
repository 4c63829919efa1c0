//! How long each suite and each test took, read from what the test runners print.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use crate::budgets;

/// So many of the slowest tests are listed.
const SLOWEST: usize = 25;
/// Suites that took less are added up in one line.
const SHORT: Duration = Duration::from_secs(2);

/// Makes a program of tests print how long each test took. The option exists in stable Rust too, but has to be unlocked.
pub fn ask_for(tests: &mut Command) {
    tests
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["-Zunstable-options", "--report-time"]);
}

/// Reads the times of single tests from the lines of one program of tests.
#[derive(Debug, Default)]
pub struct Reader {
    /// The test whose name was printed last. With `--nocapture` its own output comes before its result.
    current: String,
    /// Names and times of the tests that ended.
    pub tests: Vec<(String, Duration)>,
}

impl Reader {
    /// Reads the next line.
    pub fn see(&mut self, line: &str) {
        // A test that starts another program of tests leaves its line open, and the next result continues it.
        let last = match line.rsplit_once(" ... test ") {
            Some((_, last)) => Some(last),
            None => line.strip_prefix("test "),
        };
        let named = last.and_then(|last| last.split_once(" ... "));
        let rest = match named {
            Some((name, rest)) => {
                self.current = name.trim_end_matches(" - should panic").to_owned();
                rest
            }
            None => line,
        };
        if let Some(took) = result(rest) {
            self.tests.push((std::mem::take(&mut self.current), took));
        }
    }
}

/// The time in a result such as `ok <1.234s>`.
fn result(text: &str) -> Option<Duration> {
    let (word, time) = text.split_once(" <")?;
    let known = ["ok", "FAILED"].contains(&word);
    let seconds = time.strip_suffix("s>").filter(|_| known)?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The times of all suites of a run.
#[derive(Debug, Default)]
pub struct Times {
    suites: BTreeMap<String, Duration>,
    tests: Vec<(String, String, Duration)>,
}

impl Times {
    /// Notes a program of tests. What is noted under the same name is added up.
    pub fn note(&mut self, suite: &str, took: Duration, tests: Vec<(String, Duration)>) {
        *self.suites.entry(suite.to_owned()).or_default() += took;
        let named = tests.into_iter().map(|(test, took)| (suite.to_owned(), test, took));
        self.tests.extend(named);
    }

    /// Two tables: the suites with their budgets, and the slowest tests.
    pub fn tables(&self) -> String {
        if self.suites.is_empty() {
            return String::new();
        }
        let (mut long, short): (Vec<_>, Vec<_>) = self.suites.iter().partition(|(_, took)| **took >= SHORT);
        long.sort_by_key(|(name, took)| (std::cmp::Reverse(**took), *name));
        let mut text = String::from("\n seconds  budget  suite\n");
        for (name, took) in long {
            let budget = budgets::of(name).as_secs();
            let over = if took.as_secs() > budget {
                "  (over its budget)"
            } else {
                ""
            };
            let _ = writeln!(text, "{:>8.1}  {budget:>6}  {name}{over}", took.as_secs_f64());
        }
        let together: Duration = short.iter().map(|(_, took)| **took).sum();
        let _ = writeln!(
            text,
            "{:>8.1}          {} suites that took less than {} s each",
            together.as_secs_f64(),
            short.len(),
            SHORT.as_secs()
        );
        let mut slowest: Vec<_> = self.tests.iter().collect();
        slowest.sort_by_key(|(suite, test, took)| (std::cmp::Reverse(*took), suite, test));
        text.push_str("\n seconds  the slowest tests\n");
        for (suite, test, took) in slowest.into_iter().take(SLOWEST) {
            let _ = writeln!(text, "{:>8.1}  {suite} {test}", took.as_secs_f64());
        }
        text
    }

    /// What is wrong with suites that took far longer than their budgets, one line each.
    pub fn over_budget(&self) -> Vec<String> {
        let suites = self.suites.iter();
        suites
            .filter_map(|(suite, took)| budgets::judge(suite, *took).err())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, f64)> {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.see(line));
        let tests = reader.tests.into_iter();
        tests.map(|(name, took)| (name, took.as_secs_f64())).collect()
    }

    #[test]
    fn reads_one_line_per_test() {
        let text = "running 4 tests\ntest a::b ... ok <0.250s>\ntest c ... FAILED <2.000s>\ntest d ... ignored\n\
                    test e - should panic ... ok <1.000s>\ntest result: FAILED. 2 passed; 1 failed";
        let expected = [("a::b", 0.25), ("c", 2.0), ("e", 1.0)];
        assert_eq!(read(text), expected.map(|(name, took)| (name.to_owned(), took)));
    }

    /// As with `--nocapture --test-threads 1`.
    #[test]
    fn reads_a_result_after_a_tests_own_output() {
        let text =
            "test one ... said by the test\ntest inner ... ok\nok\nmore <3s>\nok <4.500s>\ntest two ... ok <1.000s>";
        let read = read(text);
        assert_eq!(read.iter().map(|(_, took)| *took).collect::<Vec<_>>(), [4.5, 1.0]);
        assert_eq!(read[1].0, "two");
    }

    #[test]
    fn a_real_program_of_tests_tells_its_times() {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "times::tests::reads_one_line_per_test"]);
        ask_for(&mut command);
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let read = read(&text);
        assert_eq!(read.len(), 1, "{text}");
        assert_eq!(read[0].0, "times::tests::reads_one_line_per_test");
    }

    #[test]
    fn tables_begin_with_what_took_longest() {
        let mut times = Times::default();
        assert_eq!(times.tables(), "");
        let seconds = Duration::from_secs;
        times.note("sim tests/model.rs", seconds(3), vec![("a".to_owned(), seconds(3))]);
        times.note("e2e tests/none.rs", seconds(200), vec![("b".to_owned(), seconds(200))]);
        times.note("e2e tests/none.rs", seconds(1), vec![("c".to_owned(), seconds(1))]);
        times.note("api src/lib.rs", seconds(1), Vec::new());
        let text = times.tables();
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in {text}"));
        assert!(place("201.0      60  e2e tests/none.rs") < place("3.0  "));
        assert!(place("3.0  ") < place("1 suites that took less than 2 s each"));
        assert!(place("200.0  e2e tests/none.rs b") < place("3.0  sim tests/model.rs a"));
        assert_eq!(times.over_budget().len(), 1);
    }
}
