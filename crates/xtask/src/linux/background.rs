//! Work beside tests that mostly wait, at the lowest priority, so that they do not notice.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinHandle;

/// Programs that run one after another beside other work; they end with this program. A failed one is run once more.
#[derive(Debug)]
pub struct Background {
    /// None once its end was seen.
    task: Option<JoinHandle<Result<()>>>,
}

impl Background {
    /// Starts the first of `steps`, each a name and a program. A program's output is shown as a whole when it ends.
    pub fn start(steps: impl IntoIterator<Item = (String, Command)>) -> Self {
        let steps: Vec<_> = steps.into_iter().collect();
        let work = async {
            for (what, command) in steps {
                // Once more: it may have been the network, or what ran beside it.
                if run(&what, &command).await.is_err() {
                    run(&what, &command).await?;
                }
            }
            Ok(())
        };
        Self {
            task: Some(tokio::spawn(work)),
        }
    }

    /// Sees whether a step has failed so far.
    ///
    /// # Errors
    /// When one has.
    pub async fn check(&mut self) -> Result<()> {
        if self.task.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.finish().await;
        }
        Ok(())
    }

    /// Waits for the end of all.
    ///
    /// # Errors
    /// When a step fails.
    pub async fn finish(&mut self) -> Result<()> {
        match self.task.take() {
            Some(task) => task.await.context("await the work beside the tests")?,
            None => Ok(()),
        }
    }
}

async fn run(what: &str, command: &Command) -> Result<()> {
    println!("==> meanwhile: {what}");
    let start = Instant::now();
    let output = tokio::process::Command::from(nice(19, command))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("start {what}"))?;
    let said = [output.stderr, output.stdout].concat();
    let ended = if output.status.success() {
        "done".to_owned()
    } else {
        output.status.to_string()
    };
    let took = start.elapsed().as_secs_f64();
    // In one piece: others print, too.
    println!(
        "{}    meanwhile: {what}: {ended} after {took:.1} s",
        String::from_utf8_lossy(&said)
    );
    ensure!(output.status.success(), "{what}: {ended}");
    Ok(())
}

/// The same program at a lower priority, from 1 to 19: at 19 it runs when no other wants to.
pub fn nice(level: u8, command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", &level.to_string()])
        .arg(command.get_program())
        .args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (String, Command) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("CODE", "3");
        (script.to_owned(), command)
    }

    #[tokio::test]
    async fn a_failed_step_is_reported_and_ends_the_others() {
        let mut work = Background::start([shell("exit $CODE"), shell("exit 4")]);
        let error = work.finish().await.unwrap_err();
        assert_eq!(error.to_string(), "exit $CODE: exit status: 3");
        work.check().await.unwrap();
    }

    #[tokio::test]
    async fn a_step_that_fails_once_is_no_failure() {
        let mark = std::env::temp_dir().join(format!("cdb-background-{}", std::process::id()));
        let mark = mark.display();
        let mut work = Background::start([shell(&format!("mkdir {mark} && exit 1; rmdir {mark}"))]);
        work.finish().await.unwrap();
    }

    #[tokio::test]
    async fn what_runs_is_no_failure() {
        let mut work = Background::start([shell("exec sleep 600"), shell("exit 3")]);
        work.check().await.unwrap();
    }

    #[test]
    fn a_lower_priority_is_all_that_differs() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $(nice) $CODE $(pwd)"])
            .env("CODE", "3")
            .current_dir("/");
        let output = nice(19, &command).output().expect("nice runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "19 3 /\n");
    }

    #[tokio::test]
    async fn all_steps_run() {
        let mut work = Background::start([shell("true"), shell("exit $((CODE - 3))")]);
        work.finish().await.unwrap();
    }
}
