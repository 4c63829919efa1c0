//! The only place that waits for child processes, and the registry of those that it started.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};
use tokio::sync::{mpsc, watch};

use super::{ProcessError, Signal};

/// Starts, watches and ends processes. Clones share the channel on which ends are reported.
#[derive(Clone, Debug)]
pub struct Supervisor {
    exits: mpsc::UnboundedSender<Exit>,
}

/// A child of [`Supervisor::spawn`] has ended.
#[derive(Clone, Debug)]
pub struct Exit {
    /// The name that [`Supervisor::spawn`] was given.
    pub name: &'static str,
    /// Its process id.
    pub pid: u32,
    /// Its exit status.
    pub status: ExitStatus,
}

/// A child that was started.
#[derive(Debug)]
pub struct Running {
    /// Its process id.
    pub pid: u32,
    /// Its exit status; `None` while it runs.
    pub exit: watch::Receiver<Option<ExitStatus>>,
    /// Its standard input, if piped.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if piped.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, if piped.
    pub stderr: Option<ChildStderr>,
}

impl Running {
    /// Waits for its end.
    pub async fn wait(&mut self) -> ExitStatus {
        wait_for(&mut self.exit).await
    }
}

/// Waits until a child's end is known.
pub(crate) async fn wait_for(exit: &mut watch::Receiver<Option<ExitStatus>>) -> ExitStatus {
    match exit.wait_for(Option::is_some).await.ok().and_then(|status| *status) {
        Some(status) => status,
        // The registry drops the sender only after it has sent the status; so nothing more will come.
        None => std::future::pending().await,
    }
}

impl Supervisor {
    /// Starts the reaper, once per process. From now on nothing else may wait for a child (no `tokio::process`, no
    /// `Child::wait`). If the agent is not PID 1 it becomes a child subreaper, so that orphans among its descendants
    /// become its children. Also returns the channel on which the ends of this supervisor's children arrive.
    ///
    /// # Errors
    /// Fails with [`ProcessError::System`] if the reaper cannot be started.
    pub fn start() -> Result<(Self, mpsc::UnboundedReceiver<Exit>), ProcessError> {
        let system = |action| move |source: io::Error| ProcessError::System { action, source };
        if std::process::id() != 1 {
            rustix::process::set_child_subreaper(Some(Pid::INIT))
                .map_err(|error| system("become a child subreaper")(error.into()))?;
        }
        let mut registry = registry();
        if !registry.reaping {
            std::thread::Builder::new()
                .name("reaper".into())
                .spawn(reap)
                .map_err(system("start the reaper"))?;
            registry.reaping = true;
        }
        let (exits, received) = mpsc::unbounded_channel();
        Ok((Self { exits }, received))
    }

    /// Starts a child in a process group of its own. Its end is reported on the channel under `name`, and in
    /// [`Running::exit`].
    ///
    /// # Errors
    /// Fails with [`ProcessError::Start`] if the program cannot be executed, and with [`ProcessError::Closed`] while
    /// all processes are being killed.
    pub fn spawn(&self, name: &'static str, command: Command) -> Result<Running, ProcessError> {
        self.spawn_reporting(Some(name), command)
    }

    /// As [`Supervisor::spawn`]; without a name, the end is reported in [`Running::exit`] only.
    ///
    /// # Errors
    /// As [`Supervisor::spawn`].
    pub(crate) fn spawn_reporting(
        &self,
        name: Option<&'static str>,
        mut command: Command,
    ) -> Result<Running, ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        // The reaper reaps only while it holds this lock. So it cannot miss the end of this child. Nor can it reap a
        // child that failed to execute its program: the standard library itself waits for that child. It is not the
        // registry's lock: a program on a slow disk must not delay signals to running processes.
        let _one = SPAWNING.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut registry = registry();
            if registry.closed > 0 {
                return Err(ProcessError::Closed { program });
            }
            registry.spawning = true;
        }
        let spawned = command.process_group(0).spawn();
        let mut registry = registry();
        registry.spawning = false;
        let mut child = spawned.map_err(|source| ProcessError::Start { program, source })?;
        let (told, exit) = watch::channel(None);
        let report = name.map(|name| (name, self.exits.clone()));
        registry.children.insert(child.id(), Child { told, report });
        drop(registry);
        CHILD_STARTED.notify_all();
        Ok(Running {
            pid: child.id(),
            exit,
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
        })
    }

    /// Sends `signal` to a child. Returns `false`, and sends nothing, if the child has ended: its id may belong to
    /// another process by now.
    ///
    /// # Errors
    /// Fails with [`ProcessError::System`] if the kernel refuses the signal.
    pub fn signal(&self, pid: u32, signal: Signal) -> Result<bool, ProcessError> {
        send(pid, |pid| rustix::process::kill_process(pid, signal))
    }

    /// Sends `signal` to a child's process group. Returns `false` if the child has ended.
    ///
    /// # Errors
    /// As [`Supervisor::signal`].
    pub fn signal_group(&self, pid: u32, signal: Signal) -> Result<bool, ProcessError> {
        send(pid, |pid| rustix::process::kill_process_group(pid, signal))
    }

    /// Kills every process of the PID namespace with SIGKILL, except PID 1 (this agent) and `except`, and returns when
    /// none is alive. That is the proof on which a lease may be released. If the agent is not PID 1, its descendants
    /// are killed instead. Meanwhile no process can be started. It does not return while a process hangs in the kernel.
    /// Processes of another user (a debugging container in this PID namespace) cannot be the agent's; they are left
    /// alone.
    ///
    /// # Errors
    /// Fails with [`ProcessError::System`] if processes cannot be listed or killed: then nothing is proven.
    pub async fn kill_everything_else(&self, except: &[u32]) -> Result<(), ProcessError> {
        let except = except.to_vec();
        let system = |source| ProcessError::System {
            action: "kill all processes",
            source,
        };
        let killed = tokio::task::spawn_blocking(move || kill_until_none_is_left(&except)).await;
        killed.map_err(|error| system(io::Error::other(error)))?.map_err(system)
    }
}

/// A child that has not been reaped.
struct Child {
    told: watch::Sender<Option<ExitStatus>>,
    report: Option<(&'static str, mpsc::UnboundedSender<Exit>)>,
}

/// All children of this process; there is one set of children per process, whoever started them.
#[derive(Default)]
struct Registry {
    children: HashMap<u32, Child>,
    reaping: bool,
    /// A child is being started: it may live already, and is not registered yet.
    spawning: bool,
    /// How many calls are killing all processes right now.
    closed: usize,
}

/// Held while a child is started, and while children are reaped; taken before the registry's lock.
static SPAWNING: Mutex<()> = Mutex::new(());

static CHILD_STARTED: Condvar = Condvar::new();

/// How soon an orphan is reaped if this process had no child when the orphan came to it. In production the dead-man is
/// always a child, and `waitid` simply blocks.
const ORPHAN_CHECK: Duration = Duration::from_millis(200);

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    REGISTRY
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn reap() {
    loop {
        // Only checks: the zombie, and with it the process id, stays until it is reaped under the lock.
        match rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => reap_all_dead(),
            Err(Errno::INTR) => {}
            Err(error) => {
                if error != Errno::CHILD {
                    tracing::error!("wait for children: {error}");
                }
                let _ = CHILD_STARTED.wait_timeout(registry(), ORPHAN_CHECK);
            }
        }
    }
}

fn reap_all_dead() {
    let _one = SPAWNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut registry = registry();
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        let status = ExitStatus::from_raw(status.as_raw());
        let Some(child) = registry.children.remove(&pid) else {
            continue;
        };
        child.told.send_replace(Some(status));
        if let Some((name, exits)) = child.report {
            // The receiver is gone while the agent ends.
            let _ = exits.send(Exit { name, pid, status });
        }
    }
}

fn send(pid: u32, kill: impl FnOnce(Pid) -> rustix::io::Result<()>) -> Result<bool, ProcessError> {
    let registry = registry();
    let Some(id) = raw_pid(pid).filter(|_| registry.children.contains_key(&pid)) else {
        return Ok(false);
    };
    match kill(id) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(ProcessError::System {
            action: "signal a child",
            source: error.into(),
        }),
    }
}

fn raw_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// While a value exists, no process can be started.
struct NothingStarts;

impl NothingStarts {
    fn new() -> Self {
        registry().closed += 1;
        Self
    }
}

impl Drop for NothingStarts {
    fn drop(&mut self) {
        registry().closed -= 1;
    }
}

fn kill_until_none_is_left(except: &[u32]) -> io::Result<()> {
    let _closed = NothingStarts::new();
    // A process that is not our child does not report its end, so the list is read again. So are the processes that it
    // started meanwhile.
    let mut pause = Duration::from_millis(2);
    loop {
        // Read before the list: a process that is started meanwhile is in the next list.
        let mut left = usize::from(registry().spawning);
        for process in super::proc_fs::own_processes()?
            .into_iter()
            .filter(|process| !except.contains(&process.pid))
        {
            match raw_pid(process.pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL)) {
                Some(Ok(())) => left += 1,
                Some(Err(Errno::SRCH | Errno::PERM)) | None => {}
                Some(Err(error)) => return Err(error.into()),
            }
        }
        if left == 0 {
            return Ok(());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
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
    async fn the_end_of_a_child_is_reported_under_its_name() {
        let (supervisor, mut exits) = Supervisor::start().expect("a supervisor");
        let mut child = supervisor.spawn("seven", shell("exit 7")).expect("a child");
        assert_eq!(child.wait().await.code(), Some(7));
        let exit = exits.recv().await.expect("an end");
        assert_eq!((exit.name, exit.pid, exit.status.code()), ("seven", child.pid, Some(7)));
        assert!(
            !supervisor.signal(child.pid, Signal::KILL).expect("no error"),
            "an ended child gets no signal"
        );
    }

    #[tokio::test]
    async fn quick_children_are_not_missed() {
        let (supervisor, mut exits) = Supervisor::start().expect("a supervisor");
        for _ in 0..200 {
            supervisor.spawn("true", Command::new("true")).expect("a child");
        }
        for _ in 0..200 {
            assert!(exits.recv().await.expect("an end").status.success());
        }
    }

    #[tokio::test]
    async fn a_missing_program_is_an_error_beside_a_busy_reaper() {
        let (supervisor, _exits) = Supervisor::start().expect("a supervisor");
        for _ in 0..50 {
            supervisor.spawn("true", Command::new("true")).expect("a child");
            let error = supervisor
                .spawn("none", Command::new("/no/such/program"))
                .expect_err("no program");
            assert!(matches!(error, ProcessError::Start { .. }), "{error}");
        }
    }

    #[tokio::test]
    async fn signals_reach_children() {
        let (supervisor, _exits) = Supervisor::start().expect("a supervisor");
        let mut child = supervisor.spawn("sleep", shell("sleep 60")).expect("a child");
        assert!(supervisor.signal_group(child.pid, Signal::TERM).expect("no error"));
        assert_eq!(child.wait().await.signal(), Some(15));
    }
}
