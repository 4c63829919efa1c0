//! Tools that run to their end (`initdb`, `pg_basebackup`, `pg_controldata`).

use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::{ProcessError, Signal, Supervisor};

/// The result of a tool.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output (the last MiB).
    pub stdout: String,
    /// Its standard error (the last MiB).
    pub stderr: String,
}

/// Bytes of each output of a tool that are kept.
const OUTPUT_LIMIT: usize = 1 << 20;
/// Bytes of the output that an error message quotes.
const QUOTED: usize = 2_000;

impl Supervisor {
    /// Runs a tool to its end, without standard input. The tool is killed with its whole process group after `timeout`,
    /// or when this future is dropped.
    ///
    /// # Errors
    /// Fails with [`ProcessError::Failed`], which holds the end of standard error, or of standard output if that is empty, if the tool
    /// reports failure. Fails
    /// with [`ProcessError::TooSlow`] after `timeout`, and with the errors of [`Supervisor::spawn`] if it cannot be
    /// started.
    pub async fn run(&self, command: Command, timeout: Duration) -> Result<Output, ProcessError> {
        self.run_with(command, timeout, |_| ()).await
    }

    /// As [`Supervisor::run`]; `on_line` is called with every line of standard error as it comes.
    ///
    /// # Errors
    /// As [`Supervisor::run`].
    pub async fn run_with(
        &self,
        mut command: Command,
        timeout: Duration,
        on_line: impl FnMut(&str) + Send,
    ) -> Result<Output, ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.spawn_reporting(None, command)?;
        let _kill = KillOnDrop {
            supervisor: self,
            pid: child.pid,
        };
        let system = |source| ProcessError::System {
            action: "read a tool's output",
            source,
        };
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        let all = async {
            tokio::try_join!(read(stdout, |_| ()), read(stderr, on_line), async {
                Ok(child.wait().await)
            })
        };
        let Ok(done) = tokio::time::timeout(timeout, all).await else {
            return Err(ProcessError::TooSlow {
                program,
                seconds: timeout.as_secs(),
            });
        };
        let (stdout, stderr, status) = done.map_err(system)?;
        if status.success() {
            return Ok(Output { status, stdout, stderr });
        }
        // Some tools print what they have found like a result.
        let told = if stderr.trim().is_empty() { stdout } else { stderr };
        let start = told.len().saturating_sub(QUOTED);
        let start = (start..=told.len()).find(|&at| told.is_char_boundary(at)).unwrap_or(0);
        Err(ProcessError::Failed {
            program,
            status,
            message: told[start..].trim().to_owned(),
        })
    }
}

/// Kills a tool when its future is dropped; does nothing after the tool's end.
struct KillOnDrop<'a> {
    supervisor: &'a Supervisor,
    pid: u32,
}

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.supervisor.signal_group(self.pid, Signal::KILL) {
            tracing::warn!("kill process {}: {error}", self.pid);
        }
    }
}

/// Reads a pipe to its end; returns the last part of its content.
async fn read(pipe: Option<OwnedFd>, mut on_line: impl FnMut(&str) + Send) -> std::io::Result<String> {
    let Some(pipe) = pipe else { return Ok(String::new()) };
    let mut pipe = pipe::Receiver::from_owned_fd(pipe)?;
    let (mut kept, mut line, mut buffer) = (Vec::new(), Vec::new(), [0; 8192]);
    loop {
        let count = pipe.read(&mut buffer).await?;
        for &byte in &buffer[..count] {
            if byte == b'\n' || byte == b'\r' {
                on_line(&String::from_utf8_lossy(&line));
                line.clear();
            } else if line.len() < OUTPUT_LIMIT {
                line.push(byte);
            }
        }
        if count == 0 {
            break;
        }
        kept.extend_from_slice(&buffer[..count]);
        if kept.len() > 2 * OUTPUT_LIMIT {
            kept.drain(..kept.len() - OUTPUT_LIMIT);
        }
    }
    if !line.is_empty() {
        on_line(&String::from_utf8_lossy(&line));
    }
    kept.drain(..kept.len().saturating_sub(OUTPUT_LIMIT));
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn output_and_failure_are_returned() {
        let (supervisor, _exits) = Supervisor::start().expect("a supervisor");
        let limit = Duration::from_secs(20);
        let mut lines = Vec::new();
        let script = "echo out; echo one >&2; echo two >&2";
        let output = supervisor
            .run_with(shell(script), limit, |line| lines.push(line.to_owned()))
            .await;
        let output = output.expect("success");
        assert_eq!(
            (output.stdout.as_str(), output.stderr.as_str()),
            ("out\n", "one\ntwo\n")
        );
        assert_eq!(lines, ["one", "two"]);
        let error = supervisor
            .run(shell("echo broken >&2; exit 3"), limit)
            .await
            .expect_err("a failure");
        assert!(error.to_string().contains("broken"), "{error}");
    }

    #[tokio::test]
    async fn slow_tools_are_killed_with_their_children() {
        let (supervisor, _exits) = Supervisor::start().expect("a supervisor");
        let script = "sleep 60 & echo $! >&2; wait";
        let mut inner = None;
        let run = supervisor.run_with(shell(script), Duration::from_secs(3), |line| {
            inner = line.parse::<u32>().ok()
        });
        let error = run.await.expect_err("too slow");
        assert!(matches!(error, ProcessError::TooSlow { .. }), "{error}");
        let inner = inner.expect("the inner process's id");
        let lives = || {
            super::super::processes()
                .expect("/proc")
                .iter()
                .any(|process| process.pid == inner)
        };
        for _ in 0..500 {
            if !lives() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the child of the killed tool lives on");
    }
}
