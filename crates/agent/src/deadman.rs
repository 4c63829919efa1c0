//! The dead-man: a second tiny process that ends PostgreSQL when the agent does not push the deadline on.
//!
//! The agent may hang, be stopped or starve; a stopped process cannot fence itself. This one has no runtime and asks for
//! no memory: it waits for a deadline of `CLOCK_BOOTTIME` and then sends SIGKILL to everything but PID 1 and itself. The
//! kernel lets it, since everything in the container runs as the same user.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use machine::timing::BootTime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime, timerfd_create,
    timerfd_settime,
};

use crate::process::descendants;

/// Now, on the clock that goes on while the machine sleeps.
pub fn boot_time() -> BootTime {
    let now = clock_gettime(ClockId::Boottime);
    BootTime(now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000)
}

/// The hidden first argument with which the agent's binary becomes the dead-man.
pub const SUBCOMMAND: &str = "dead-man";

/// If this process was started as the dead-man: be it, and never return. To be called first in `main`, before any
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
        // It cannot keep its watch: better now than never.
        scope.kill();
        tell(&format!("killed everything: {error}"));
    }
    std::process::exit(1);
}

/// The agent's end of the dead-man. Dropping it (or dying) makes the dead-man kill everything.
#[derive(Debug)]
pub struct DeadMan {
    pid: u32,
    deadlines: ChildStdin,
}

/// Why the dead-man is of no use; the holder of the lease must not go on without it.
#[derive(Debug, thiserror::Error)]
pub enum DeadManError {
    /// It could not be started.
    #[error("start the dead-man")]
    Start(#[source] io::Error),
    /// It does not take deadlines.
    #[error("tell the dead-man its deadline")]
    Tell(#[source] io::Error),
}

impl DeadMan {
    /// Starts the dead-man from `/proc/self/exe`. To be called before the asynchronous runtime starts, and before
    /// [`crate::process::Supervisor::start`].
    pub fn start() -> Result<Self, DeadManError> {
        Self::start_program(Path::new("/proc/self/exe"))
    }

    /// As [`DeadMan::start`], with another binary that calls [`become_dead_man_if_asked`] (tests).
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

    /// Its process id: for [`crate::process::Supervisor::kill_everything_else`].
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Everything dies at `deadline`, unless another one is set before. Never blocks.
    pub fn arm(&self, deadline: BootTime) -> Result<(), DeadManError> {
        // 0 means none; the first millisecond after boot has passed long ago.
        self.tell(deadline.0.max(1))
    }

    /// No deadline. Never blocks.
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

/// Distance between kills after the deadline, in milliseconds.
const KILL_AGAIN: u64 = 100;

/// What is killed.
enum Scope {
    /// All of the PID namespace: the agent is PID 1.
    Namespace,
    /// The descendants of the agent with this process id: it is not PID 1 (tests).
    Family(u32),
}

impl Scope {
    fn parse(text: &str) -> Option<Self> {
        if text == NAMESPACE {
            // On a machine's own PID namespace this would end everything.
            return (std::os::unix::process::parent_id() == 1).then_some(Self::Namespace);
        }
        text.parse().ok().map(Self::Family)
    }

    fn kill(&self) {
        match self {
            // kill(-1): every process but PID 1 and the caller, in one system call that no fork escapes.
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
        // What is not our child tells us nothing of its end.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The dead-man's life.
fn watch(scope: &Scope) -> io::Result<()> {
    // What a handler merely notes does not end us. (To ignore a signal needs unsafe code.)
    let noted = Arc::new(AtomicBool::new(false));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        signal_hook::flag::register(signal.as_raw(), Arc::clone(&noted))?;
    }
    let stdin = io::stdin();
    set_nonblocking(&stdin)?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let (mut deadline, mut kill_at) = (0, 0);
    loop {
        // First what the agent said, then the clock: after a long sleep of the machine both are waiting.
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
            // Until the agent says something else: what it had begun may start a process after the first one.
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

/// Whether the agent is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    GoOn,
    Goodbye,
}

/// Takes what waits in the pipe; the last deadline counts.
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
    // All zero disarms.
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

/// Logs after the deed, and only if that cannot block.
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
        assert!((20..5_000).contains(&boot_time().since(before)));
    }

    #[test]
    fn a_whole_namespace_is_only_for_a_child_of_its_first_process() {
        assert!(std::os::unix::process::parent_id() == 1 || Scope::parse(NAMESPACE).is_none());
    }
}
