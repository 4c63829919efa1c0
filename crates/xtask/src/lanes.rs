//! Programs of tests side by side: most of them wait for something most of the time.

use std::collections::VecDeque;
use std::process::Command;

use anyhow::{Context, Result};
use suites::Suite;
use tokio::task::JoinSet;

use crate::summary::{Outcome, watch};

/// A program of tests, or one of its tests.
#[derive(Debug)]
pub struct Job {
    /// The suite to which its time is added.
    pub suite: String,
    /// Prefix of each line of its output while others run.
    pub name: String,
    /// What runs it.
    pub command: Command,
}

/// Jobs that run one after another, or so many at once.
#[derive(Debug)]
pub struct Lane {
    /// Those that have not begun, in their order.
    pub jobs: VecDeque<Job>,
    /// How many of them run at once.
    pub width: usize,
}

impl Lane {
    /// Whole suites, each run by what `command` makes of it.
    pub fn of(width: usize, suites: Vec<&Suite>, command: impl Fn(&Suite) -> Command) -> Self {
        let job = |suite: &Suite| Job {
            suite: suite.name(),
            name: suite.name(),
            command: command(suite),
        };
        Self {
            jobs: suites.into_iter().map(job).collect(),
            width,
        }
    }
}

/// Runs the jobs of all lanes beside each other, and hands each one's suite and outcome to `ended`.
///
/// # Errors
/// When a job cannot be started, or `ended` fails; the jobs that run are ended. A failed test is no error.
pub async fn run<const N: usize>(
    mut lanes: [Lane; N],
    mut ended: impl AsyncFnMut(&str, Outcome) -> Result<()>,
) -> Result<()> {
    let mut running = JoinSet::new();
    loop {
        for (number, lane) in lanes.iter_mut().enumerate() {
            while lane.width > 0
                && let Some(job) = lane.jobs.pop_front()
            {
                lane.width -= 1;
                println!("     Running {}", job.name);
                running.spawn(async move {
                    let outcome = watch(&job.name, job.command, &format!("[{}] ", job.name)).await;
                    (number, job.suite, outcome)
                });
            }
        }
        let Some(joined) = running.join_next().await else {
            return Ok(());
        };
        let (number, suite, outcome) = joined.context("await a program of tests")?;
        lanes[number].width += 1;
        ended(&suite, outcome?).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Tally;

    fn lane<const N: usize>(width: usize, jobs: [Job; N]) -> Lane {
        Lane {
            jobs: jobs.into(),
            width,
        }
    }

    fn job(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            suite: "none src/lib.rs".to_owned(),
            name: script.to_owned(),
            command,
        }
    }

    /// Each of three waits for what the others do: two in one lane, and one in another.
    #[tokio::test]
    async fn as_many_run_at_once_as_the_lanes_are_wide() {
        let place = std::env::temp_dir().join(format!("cdb-lanes-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a folder");
        let [one, two, three] = ["1", "2", "3"].map(|own| {
            let all = "until [ -e 1 ] && [ -e 2 ] && [ -e 3 ]; do sleep 0.01; done";
            let script = format!(
                "cd {}; touch {own}; {all}; echo 'test result: ok. 1 passed; 0 failed'",
                place.display()
            );
            job(&script)
        });
        let mut tally = Tally::default();
        run([lane(2, [one, two]), lane(1, [three])], async |suite, outcome| {
            tally.add_suite(suite, outcome);
            Ok(())
        })
        .await
        .expect("all run");
        std::fs::remove_dir_all(place).expect("removed");
        tally.close().expect("all passed");
    }

    #[tokio::test]
    async fn nothing_runs_on_when_the_run_is_given_up() {
        let place = std::env::temp_dir().join(format!("cdb-lanes-given-up-{}", std::process::id()));
        let long = job(&format!("echo $$ > {}; exec sleep 600", place.display()));
        let begun = job(&format!("until [ -s {} ]; do sleep 0.01; done", place.display()));
        let error = run([lane(2, [long, begun])], async |_, _| anyhow::bail!("given up")).await;
        assert_eq!(error.unwrap_err().to_string(), "given up");
        let pid = std::fs::read_to_string(&place).expect("it began");
        std::fs::remove_file(place).expect("removed");
        let start = std::time::Instant::now();
        let comm = format!("/proc/{}/comm", pid.trim());
        while std::fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n") {
            assert!(start.elapsed().as_secs() < 10, "it runs on");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_failed_job_is_counted_and_the_next_one_runs() {
        let place = std::env::temp_dir().join(format!("cdb-lanes-next-{}", std::process::id()));
        let jobs = [job("exit 1"), job(&format!("touch {}", place.display()))];
        let mut tally = Tally::default();
        run([lane(1, jobs)], async |suite, outcome| {
            tally.add_suite(suite, outcome);
            Ok(())
        })
        .await
        .expect("both run");
        std::fs::remove_file(place).expect("the second one ran");
        assert!(tally.close().is_err());
    }
}
