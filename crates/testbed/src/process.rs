//! Long-running processes and their identities.
//!
//! A process is identified by its number together with its start time, because the number alone may be reused.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::command::Tool;

/// A program to run as a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// Its name among the testbed's processes, such as `kubelet-n1`.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Network namespace; `None`: the host's.
    pub netns: Option<PathBuf>,
    /// File for standard output and error.
    pub log: PathBuf,
}

/// A process that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// What was started.
    pub daemon: Daemon,
    /// Process number.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

/// Starts a daemon whose parent is init, so that it outlives this program and
/// leaves no zombie. The shell writes 0, which means itself, to `cgroup_procs`
/// before it becomes the daemon: whatever that starts is in the group too.
const LAUNCH: &str = r#"log=$1; procs=$2; shift 2
( echo 0 > "$procs" && exec setsid "$@" ) </dev/null >>"$log" 2>&1 &
echo $!"#;

impl Daemon {
    /// Starts the daemon in the group whose `cgroup.procs` is given.
    ///
    /// # Errors
    /// When it cannot be started or is gone at once.
    pub async fn start(self, cgroup_procs: &Path) -> Result<Process> {
        let mut tool = Tool::new("sh")
            .arg("-c")
            .arg(LAUNCH)
            .arg("sh")
            .arg(&self.log)
            .arg(cgroup_procs);
        if let Some(netns) = &self.netns {
            tool = tool.arg("nsenter").arg(format!("--net={}", netns.display()));
        }
        for arg in &self.argv {
            tool = tool.arg(arg);
        }
        let printed = tool.run().await.with_context(|| format!("start {}", self.name))?;
        let pid = printed
            .trim()
            .parse()
            .with_context(|| format!("read the number of {}", self.name))?;
        let Some(started) = start_time(pid) else {
            bail!("{} ended at once; see {}", self.name, self.log.display());
        };
        Ok(Process {
            daemon: self,
            pid,
            started,
        })
    }
}

impl Process {
    /// True if this very process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Sends `signal` if the process still runs.
    ///
    /// # Errors
    /// When it runs but takes no signal from us.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.is_alive() {
            send(self.pid, signal)
        } else {
            Ok(())
        }
    }
}

/// Sends `signal` to the process `pid`; one that is gone is no error.
///
/// # Errors
/// When the number is no process number or the signal is not permitted.
pub fn send(pid: i32, signal: Signal) -> Result<()> {
    send_if(pid, signal, || true)
}

/// Sends `signal` to the process `pid` if `is_meant` says that it is the right one. It asks only after it has the
/// kernel's handle on the process: if the number is reused meanwhile, the signal does not reach the new process.
///
/// # Errors
/// When the number is no process number or the signal is not permitted.
pub fn send_if(pid: i32, signal: Signal, is_meant: impl Fn() -> bool) -> Result<()> {
    // 1 is init; 0 and less mean groups.
    ensure!(pid > 1, "{pid} is not a process number");
    let number = Pid::from_raw(pid).with_context(|| format!("{pid} is not a process number"))?;
    let sent = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(_) if !is_meant() => Ok(()),
        Ok(process) => pidfd_send_signal(&process, signal),
        Err(error) => Err(error),
    };
    match sent {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("signal process {pid}")),
    }
}

/// The start time of a process that runs, in clock ticks since boot.
#[must_use]
pub fn start_time(pid: i32) -> Option<u64> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the start time from /proc/PID/stat; a zombie counts as gone.
fn parse_stat(stat: &str) -> Option<u64> {
    // The name in parentheses may contain anything, even blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // starttime is field 22 of the line, the 19th after the state.
    fields.nth(18)?.parse().ok()
}

/// The id of this boot of the machine.
#[must_use]
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, state: char) -> String {
        format!("42 ({name}) {state} 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 10\n")
    }

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        assert_eq!(parse_stat(&stat("etcd", 'S')), Some(987_654));
        assert_eq!(parse_stat(&stat("a) b (c", 'R')), Some(987_654));
    }

    #[test]
    fn a_zombie_is_gone() {
        assert_eq!(parse_stat(&stat("etcd", 'Z')), None);
    }

    #[test]
    fn a_reused_number_is_not_the_process() {
        let daemon = Daemon {
            name: "me".into(),
            argv: vec![],
            netns: None,
            log: PathBuf::new(),
        };
        let pid = i32::try_from(std::process::id()).unwrap();
        let started = start_time(pid).unwrap();
        assert!(
            Process {
                daemon: daemon.clone(),
                pid,
                started
            }
            .is_alive()
        );
        assert!(
            !Process {
                daemon,
                pid,
                started: started + 1
            }
            .is_alive()
        );
    }

    #[test]
    fn init_and_groups_are_never_signalled() {
        for pid in [1, 0, -1] {
            assert!(send(pid, Signal::CONT).is_err());
        }
    }
}
