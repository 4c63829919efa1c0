//! Runs other programs, bounded in time.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;

/// Directories that a minimal root environment may lack but Debian's tools use.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin";

/// Bound for tools that only talk to the kernel. They take milliseconds;
/// the remainder is for a machine that is busy compiling.
pub const QUICK: Duration = Duration::from_secs(120);

/// The search path for all programs that are started from here.
#[must_use]
pub fn search_path() -> String {
    match std::env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{SYSTEM_PATH}"),
        _ => SYSTEM_PATH.to_owned(),
    }
}

/// True if `program` is on the search path.
#[must_use]
pub fn exists(program: &str) -> bool {
    search_path()
        .split(':')
        .any(|dir| Path::new(dir).join(program).is_file())
}

/// One program to run.
pub struct Tool {
    command: tokio::process::Command,
    shown: String,
    input: Option<String>,
    limit: Duration,
}

impl Tool {
    /// `program`, bounded by [`QUICK`].
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let shown = program.as_ref().to_string_lossy().into_owned();
        let mut command = tokio::process::Command::new(program);
        command
            .env("PATH", search_path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Self {
            command,
            shown,
            input: None,
            limit: QUICK,
        }
    }

    /// `program`, ended by the kernel when this program dies in any way. So a killed `up` leaves no build behind that
    /// would disturb the next one.
    pub fn tied(program: &str) -> Self {
        Self::new("setpriv").words("--pdeathsig KILL").arg(program)
    }

    /// `program` inside the network namespace at `netns`. Not `ip netns exec`:
    /// that remounts /sys, which hides the control groups.
    pub fn inside(netns: &Path, program: &str) -> Self {
        Self::new("nsenter")
            .arg(format!("--net={}", netns.display()))
            .arg(program)
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.shown.push(' ');
        self.shown.push_str(&arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    /// Adds arguments, separated by spaces in `args`.
    #[must_use]
    pub fn words(self, args: &str) -> Self {
        args.split_whitespace().fold(self, Tool::arg)
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Sets what the program reads from its standard input.
    #[must_use]
    pub fn input(mut self, text: impl Into<String>) -> Self {
        self.input = Some(text.into());
        self
    }

    /// Sets the bound.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs to the end and returns what was printed on standard output.
    ///
    /// # Errors
    /// When the program is not there, fails, or takes too long.
    pub async fn run(mut self) -> Result<String> {
        let shown = shorten(&self.shown);
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.input.is_some() {
            self.command.stdin(Stdio::piped());
        }
        let mut child = self.command.spawn().with_context(|| format!("start `{shown}`"))?;
        if let (Some(text), Some(mut pipe)) = (self.input.take(), child.stdin.take()) {
            pipe.write_all(text.as_bytes())
                .await
                .with_context(|| format!("write to `{shown}`"))?;
        }
        let Ok(output) = tokio::time::timeout(self.limit, child.wait_with_output()).await else {
            bail!("`{shown}` took longer than {} s and was ended", self.limit.as_secs());
        };
        let output = output.with_context(|| format!("wait for `{shown}`"))?;
        if !output.status.success() {
            let text = [output.stderr.as_slice(), output.stdout.as_slice()].concat();
            bail!(
                "`{shown}` failed ({}): {}",
                output.status,
                last_lines(&String::from_utf8_lossy(&text))
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A command line of readable length.
fn shorten(line: &str) -> String {
    const SHOWN: usize = 160;
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The end of a long output: that is where programs say what went wrong.
fn last_lines(text: &str) -> String {
    const SHOWN: usize = 15;
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_says_what_was_printed() {
        let error = Tool::new("sh")
            .arg("-c")
            .arg("echo out; echo no >&2; exit 3")
            .run()
            .await
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("no\nout"), "{text}");
    }

    #[tokio::test]
    async fn a_slow_program_is_ended() {
        let error = Tool::new("sleep")
            .arg("60")
            .limit(Duration::from_millis(50))
            .run()
            .await
            .unwrap_err();
        assert!(format!("{error:#}").contains("took longer"));
    }

    #[tokio::test]
    async fn input_reaches_the_program() {
        assert_eq!(Tool::new("cat").input("text").run().await.unwrap(), "text");
    }
}
