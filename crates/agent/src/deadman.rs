//! The dead-man: a second, tiny process. It kills PostgreSQL when the deadline passes and the agent has not extended
//! it.
//!
//! The agent may hang, be stopped or starve; a stopped process cannot fence itself. The dead-man has no runtime and
//! allocates no memory. It waits for a deadline of `CLOCK_BOOTTIME`, and then sends SIGKILL to every process except PID
//! 1 and itself. The kernel allows it, since every process in the container runs as the same user.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use machine::timing::BootTime;
use machine::units::Millis;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime, timerfd_create,
    timerfd_settime,
};

use crate::process::descendants;

/// The time now, on the clock that goes on while the machine sleeps.
pub fn boot_time() -> BootTime {
    let now = clock_gettime(ClockId::Boottime);
    BootTime(now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000)
}

/// The hidden first argument with which the agent's binary becomes the dead-man.
pub const SUBCOMMAND: &str = "dead-man";

/// If this process was started as the dead-man, becomes it and never returns. Call it first in `main`, before any
/// thread exists.
pub fn become_dead_man_if_asked() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(SUBCOMMAND) {
        return;
    }
    let Some(scope) = arguments.next().and_then(|scope| Scope::parse(&scope)) else {
        eprintln!("{SUBCOMMAND} is started by the agent itself");
        std::process::exit(2);
    };
    if let Err(error) = watch(&scope) {
        // The dead-man cannot watch the deadline any more, so it kills now rather than never.
        scope.kill();
        tell(&format!("killed everything: {error}"));
    }
    std::process::exit(1);
}

/// The agent's handle of the dead-man. If it is dropped, or the agent dies, the dead-man kills every process.
#[derive(Debug)]
pub struct DeadMan {
    pid: u32,
    deadlines: ChildStdin,
}

/// Why the dead-man does not work. The holder of the lease must not go on without it.
#[derive(Debug, thiserror::Error)]
pub enum DeadManError {
    /// The dead-man could not be started.
    #[error("start the dead-man")]
    Start(#[source] io::Error),
    /// The dead-man does not take deadlines.
    #[error("tell the dead-man its deadline")]
    Tell(#[source] io::Error),
}

impl DeadMan {
    /// Starts the dead-man from `/proc/self/exe`. Call it before the asynchronous runtime starts, and before
    /// [`crate::process::Supervisor::start`].
    ///
    /// # Errors
    /// Fails with [`DeadManError::Start`] if the process, or its pipe, cannot be made.
    pub fn start() -> Result<Self, DeadManError> {
        Self::start_program(Path::new("/proc/self/exe"))
    }

    /// As [`DeadMan::start`], with another binary that calls [`become_dead_man_if_asked`]. For tests.
    ///
    /// # Errors
    /// As [`DeadMan::start`].
    pub fn start_program(program: &Path) -> Result<Self, DeadManError> {
        let scope = match std::process::id() {
            1 => NAMESPACE.to_owned(),
            own => own.to_string(),
        };
        let mut child = Command::new(program)
            .args([SUBCOMMAND, &scope])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(DeadManError::Start)?;
        let deadlines = child
            .stdin
            .take()
            .ok_or_else(|| DeadManError::Start(io::ErrorKind::BrokenPipe.into()))?;
        set_nonblocking(&deadlines).map_err(DeadManError::Start)?;
        Ok(Self {
            pid: child.id(),
            deadlines,
        })
    }

    /// Its process id, for [`crate::process::Supervisor::kill_everything_else`].
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sets the deadline at which every process is killed, in place of the one before. Never blocks.
    ///
    /// # Errors
    /// Fails with [`DeadManError::Tell`] if the dead-man does not read its pipe or is dead.
    pub fn arm(&self, deadline: BootTime) -> Result<(), DeadManError> {
        // 0 means no deadline; the first millisecond after boot has passed long ago.
        self.tell(deadline.0.max(1))
    }

    /// Removes the deadline. Never blocks.
    ///
    /// # Errors
    /// As [`DeadMan::arm`].
    pub fn disarm(&self) -> Result<(), DeadManError> {
        self.tell(0)
    }

    fn tell(&self, deadline: u64) -> Result<(), DeadManError> {
        // Fewer bytes than PIPE_BUF are written whole or not at all.
        rustix::io::retry_on_intr(|| rustix::io::write(&self.deadlines, &deadline.to_ne_bytes()))
            .map(|_| ())
            .map_err(|error| DeadManError::Tell(error.into()))
    }
}

const NAMESPACE: &str = "namespace";

/// The pause between two kills after the deadline.
const KILL_AGAIN: Millis = Millis(100);

/// The processes that are killed.
enum Scope {
    /// Every process of the PID namespace; the agent is PID 1.
    Namespace,
    /// The descendants of the agent with this process id, which is not PID 1. For tests.
    Family(u32),
}

impl Scope {
    fn parse(text: &str) -> Option<Self> {
        if text == NAMESPACE {
            // In the PID namespace of a whole machine this would kill every process of the machine.
            return (std::os::unix::process::parent_id() == 1).then_some(Self::Namespace);
        }
        text.parse().ok().map(Self::Family)
    }

    fn kill(&self) {
        match self {
            // kill(-1): every process except PID 1 and the caller, in one system call that no fork escapes.
            Self::Namespace => {
                let _ = kill_process_group(Pid::INIT, Signal::KILL);
            }
            Self::Family(agent) => kill_family(*agent),
        }
    }
}

fn kill_family(agent: u32) {
    let own = std::process::id();
    loop {
        let family = descendants(agent).unwrap_or_default();
        let victims = family.iter().map(|process| process.pid).filter(|pid| *pid != own);
        let victims: Vec<Pid> = victims
            .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
            .collect();
        if victims.is_empty() {
            return;
        }
        for victim in victims {
            let _ = kill_process(victim, Signal::KILL);
        }
        // A process that is not our child does not report its end to us.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The dead-man's loop.
fn watch(scope: &Scope) -> io::Result<()> {
    // A signal with a handler that only notes it does not end this process. Ignoring a signal would need unsafe code.
    let noted = Arc::new(AtomicBool::new(false));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        signal_hook::flag::register(signal.as_raw(), Arc::clone(&noted))?;
    }
    let stdin = io::stdin();
    set_nonblocking(&stdin)?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let (mut deadline, mut kill_at) = (0, 0);
    loop {
        // The agent's messages are read before the clock: after a long sleep of the machine both are waiting.
        let before = deadline;
        if take_deadlines(&stdin, &mut deadline)? == Said::Goodbye {
            scope.kill();
            tell("the agent is gone: killed everything");
            std::process::exit(0);
        }
        if deadline != before {
            kill_at = deadline;
        }
        if kill_at != 0 && boot_time().0 >= kill_at {
            scope.kill();
            if kill_at == deadline {
                tell("the deadline passed without a renewal: killed everything");
            }
            // Kills again until the agent sets another deadline: a task that had begun may start a process after the
            // first kill.
            kill_at = boot_time().plus(KILL_AGAIN).0;
        }
        set_timer(&timer, kill_at)?;
        let mut waiting = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the agent still lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    GoOn,
    Goodbye,
}

/// Reads the deadlines that wait in the pipe; the last one counts.
fn take_deadlines(pipe: impl AsFd, deadline: &mut u64) -> io::Result<Said> {
    let mut buffer = [0_u8; 512];
    loop {
        match rustix::io::read(&pipe, &mut buffer) {
            Ok(0) => return Ok(Said::Goodbye),
            Ok(count) => {
                if let Some(last) = buffer[..count].as_chunks().0.last() {
                    *deadline = u64::from_ne_bytes(*last);
                }
            }
            Err(Errno::AGAIN) => return Ok(Said::GoOn),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn set_timer(timer: &OwnedFd, deadline: u64) -> io::Result<()> {
    // A timer of zero is disarmed.
    let seconds = i64::try_from(deadline / 1_000).unwrap_or(i64::MAX);
    let nanoseconds = i64::try_from(deadline % 1_000).unwrap_or(0) * 1_000_000;
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let at = Itimerspec {
        it_interval: none,
        it_value: Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds,
        },
    };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &at)?;
    Ok(())
}

/// Logs after the kill, and only if that cannot block.
fn tell(message: &str) {
    let stderr = io::stderr();
    let mut writable = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if matches!(poll(&mut writable, Some(&now)), Ok(1..)) {
        let line = format!("{{\"level\":\"ERROR\",\"message\":\"{message}\",\"target\":\"dead-man\"}}\n");
        let _ = stderr.lock().write_all(line.as_bytes());
    }
}

fn set_nonblocking(file: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_deadline_counts() {
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        set_nonblocking(&read).expect("non-blocking");
        let mut deadline = 7;
        assert!(matches!(take_deadlines(&read, &mut deadline), Ok(Said::GoOn)));
        assert_eq!(deadline, 7);
        for said in 1..=100_u64 {
            rustix::io::write(&write, &said.to_ne_bytes()).expect("room in the pipe");
        }
        assert!(matches!(take_deadlines(&read, &mut deadline), Ok(Said::GoOn)));
        assert_eq!(deadline, 100);
        drop(write);
        assert!(matches!(take_deadlines(&read, &mut deadline), Ok(Said::Goodbye)));
    }

    #[test]
    fn boot_time_goes_on() {
        let before = boot_time();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!((Millis(20)..Millis::seconds(5)).contains(&boot_time().since(before)));
    }

    #[test]
    fn a_whole_namespace_is_only_for_a_child_of_its_first_process() {
        assert!(std::os::unix::process::parent_id() == 1 || Scope::parse(NAMESPACE).is_none());
    }
}
