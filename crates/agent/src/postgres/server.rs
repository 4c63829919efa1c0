//! Starting and stopping the server.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use machine::protocol::Lsn;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use super::{Config, Files, PostgresError, blocking, history, torn};
use crate::process::{Output, ProcessError, Signal, Supervisor, postgres_processes, wait_for};
use crate::tools::Tools;
use crate::volume::{Volume, make_directory, read_if_there, sync_parent, write_for_now, write_whole};

/// The exit code of `postgres` after a FATAL error, such as settings that it refuses.
const REFUSED: i32 = 1;

/// A running PostgreSQL server. Its end is also reported on the supervisor's channel, under [`Server::NAME`].
#[derive(Debug)]
pub struct Server {
    supervisor: Supervisor,
    pid: u32,
    exit: watch::Receiver<Option<ExitStatus>>,
}

/// Why the server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another server still runs on the data.
    #[error("postgres already runs here (process {pid})")]
    AlreadyRuns {
        /// Its process id.
        pid: u32,
    },
    /// PostgreSQL refuses a setting; its message.
    #[error("the settings are refused: {0}")]
    Settings(String),
    /// A rewind of the data, or its setting aside, has not finished.
    #[error("the data is being rewound or set aside: it must not be started")]
    Torn,
    /// The start is not allowed any more.
    #[error("the start was called off")]
    CalledOff,
    /// The server ended before it accepted connections.
    #[error("postgres ended while starting ({0}); its log says why")]
    Ended(ExitStatus),
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended, WAL is sent to the standbys, and a checkpoint is made (SIGINT).
    Fast,
    /// The server ends at once, and recovers at its next start (SIGQUIT).
    Immediate,
}

/// The time limit of a check of the settings. If PostgreSQL takes longer to read them and print one, its volume hangs.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

impl Server {
    /// Name of the server's process in [`crate::process::Exit`].
    pub const NAME: &'static str = "postgres";

    /// Starts a server on the volume's PGDATA; does not wait until it accepts connections. Before that, it has
    /// PostgreSQL itself check the configuration, writes it, and removes files that a dead container left
    /// (`postmaster.pid`, sockets). The server's log is forwarded as JSON.
    ///
    /// # Errors
    /// Fails with [`StartError`] if another server runs on the data, if the data is being rewound or set aside, or if
    /// PostgreSQL refuses the settings. Fails with other variants of [`PostgresError`] if a file or program fails.
    pub async fn start(tools: &Tools, volume: &Volume, files: &Files, config: &Config) -> Result<Self, PostgresError> {
        Self::start_if(tools, volume, files, config, || true).await
    }

    /// As [`Server::start`]. `allowed` is called at the last moment, when everything else is done.
    ///
    /// # Errors
    /// As [`Server::start`]; also fails with [`StartError::CalledOff`] if `allowed` returns false.
    pub async fn start_if(
        tools: &Tools,
        volume: &Volume,
        files: &Files,
        config: &Config,
        allowed: impl Fn() -> bool,
    ) -> Result<Self, PostgresError> {
        let (pgdata, before, sockets) = (volume.pgdata(), volume.clone(), files.socket.clone());
        blocking(move || prepare(&before, &sockets)).await?;
        if config.standby {
            remove_torn(tools, volume).await?;
        }
        if let Some(words) = check(tools, volume, config).await? {
            return Err(StartError::Settings(words).into());
        }
        let (place, writing) = (pgdata.clone(), config.clone());
        blocking(move || {
            writing.write(&place).map_err(file("write the configuration"))?;
            writing.write_signal(&place).map_err(file("write standby.signal"))
        })
        .await?;
        let mut command = tools.command("postgres");
        command
            .arg("-D")
            .arg(&pgdata)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if !allowed() {
            return Err(StartError::CalledOff.into());
        }
        let mut child = tools.supervisor().spawn(Self::NAME, command)?;
        if let Some(stderr) = child.stderr.take() {
            crate::logs::forward_postgres(stderr);
        }
        Ok(Self {
            supervisor: tools.supervisor().clone(),
            pid: child.pid,
            exit: child.exit,
        })
    }

    /// Process id of the postmaster.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its exit status, if it has ended.
    pub fn exited(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Asks the server to stop; returns at once. Does nothing if it has ended.
    ///
    /// # Errors
    /// Fails if the kernel refuses the signal.
    pub fn stop(&self, mode: StopMode) -> Result<(), ProcessError> {
        let signal = match mode {
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        };
        self.supervisor.signal(self.pid, signal).map(|_| ())
    }

    /// Ends the WAL senders for which `ends` is true (SIGTERM); does not wait for their end. `ends` is given the
    /// process id and the role that the sender serves. The senders are found by the titles of their processes: a server
    /// that is stopping answers no questions.
    ///
    /// # Errors
    /// Fails if processes cannot be listed, or the kernel refuses a signal.
    pub fn end_senders_if(&self, ends: impl Fn(i32, &str) -> bool) -> io::Result<()> {
        for process in postgres_processes()?
            .iter()
            .filter(|process| process.parent == self.pid)
        {
            let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else {
                continue;
            };
            // The process id may belong to another process when the signal is sent; the handle cannot.
            let handle = match pidfd_open(pid, PidfdFlags::empty()) {
                Err(Errno::SRCH) => continue,
                handle => handle?,
            };
            let title = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            let title = String::from_utf8_lossy(&title);
            if !sends_to(&title).is_some_and(|member| ends(pid.as_raw_nonzero().get(), member)) {
                continue;
            }
            match pidfd_send_signal(&handle, Signal::TERM) {
                // A sender that has ended meanwhile needs no signal.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until the postmaster has ended; `None` if `timeout` comes first. After [`StopMode::Fast`] its children
    /// have ended before it. After a crash only [`Supervisor::kill_everything_else`] proves that.
    pub async fn stopped(&self, timeout: Duration) -> Option<ExitStatus> {
        tokio::time::timeout(timeout, wait_for(&mut self.exit.clone()))
            .await
            .ok()
    }

    /// Tells the server to read its configuration files again (SIGHUP).
    ///
    /// # Errors
    /// Fails if the kernel refuses the signal.
    pub fn reload(&self) -> Result<(), ProcessError> {
        self.supervisor.signal(self.pid, Signal::HUP).map(|_| ())
    }
}

/// The role that a WAL sender serves, read from the title of its process: `postgres: <cluster>: walsender <role>
/// <address> …`.
fn sends_to(title: &str) -> Option<&str> {
    title.split_once(": walsender ")?.1.split([' ', '\0']).next()
}

/// Prepares the data for a start: checks that no server runs and that the data is whole, and removes what a dead server
/// left.
fn prepare(volume: &Volume, sockets: &Path) -> Result<(), PostgresError> {
    let pgdata = volume.pgdata();
    if let Some(pid) = runs_on(&pgdata).map_err(file("list processes"))? {
        return Err(StartError::AlreadyRuns { pid }.into());
    }
    if volume.is_torn()? {
        return Err(StartError::Torn.into());
    }
    remove_remains(&pgdata, sockets).map_err(file("remove what a dead server left"))?;
    make_directory(sockets).map_err(file("make the socket directory"))?;
    history::repair(&pgdata.join("pg_wal")).map_err(file("put the history files in order"))
}

/// Removes WAL that would hide other WAL from a standby, and histories of timelines that the standby cannot follow.
async fn remove_torn(tools: &Tools, volume: &Volume) -> Result<(), PostgresError> {
    let control = volume.control_data(tools).await?;
    let wal = volume.pgdata().join("pg_wal");
    // If the checkpoint's record does not begin before a fork, it is not WAL of that timeline.
    let mut points = vec![(control.timeline, Lsn(control.checkpoint.0.saturating_add(1)))];
    if control.minimum_recovery_timeline.0 > 0 {
        points.push((control.minimum_recovery_timeline, control.minimum_recovery_end));
    }
    // The thread goes on if the future of this start is dropped.
    let asked = Arc::new(());
    let still = Arc::downgrade(&asked);
    let work = move || {
        let removed = torn::remove(&wal, control.wal_sizes.segment, || still.strong_count() > 0)?;
        Ok((removed, history::forget_foreign(&wal, &points)?))
    };
    let (removed, forgotten) = blocking(work).await.map_err(file("remove WAL that was torn off"))?;
    drop(asked);
    for name in removed {
        tracing::warn!(
            "removed the WAL segment {name}: it ends before its timeline begins, and the ancestor's segment has more"
        );
    }
    for timeline in forgotten {
        tracing::warn!(
            "removed the history of timeline {}: the data does not belong to it",
            timeline.0
        );
    }
    Ok(())
}

/// A server process on `pgdata`, if there is one. All server processes have `pgdata` as their working directory.
fn runs_on(pgdata: &Path) -> io::Result<Option<u32>> {
    Ok(processes_on(pgdata)?.first().copied())
}

/// All server processes on `pgdata`; none if it does not exist.
///
/// # Errors
/// Fails if the processes or a working directory cannot be read: an unknown process must not count as none.
pub fn processes_on(pgdata: &Path) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    let pgdata = match fs::canonicalize(pgdata) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        pgdata => pgdata?,
    };
    for process in postgres_processes()? {
        match fs::read_link(format!("/proc/{}/cwd", process.pid)) {
            Ok(directory) if directory == pgdata => found.push(process.pid),
            // Elsewhere, or gone meanwhile.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Has PostgreSQL read the configuration without using it. Returns its message if it refuses a setting.
///
/// # Errors
/// Fails with [`PostgresError::File`] if the candidate file cannot be written or removed, and with
/// [`PostgresError::Process`] if PostgreSQL could not judge the settings.
pub(super) async fn check(tools: &Tools, volume: &Volume, config: &Config) -> Result<Option<String>, PostgresError> {
    let pgdata = volume.pgdata();
    let candidate = pgdata.join("postgresql.conf.candidate");
    let (place, text) = (candidate.clone(), config.postgresql_conf.clone());
    let written = blocking(move || write_for_now(&place, text.as_bytes(), 0o600)).await;
    written.map_err(file("write the configuration"))?;
    let mut command = tools.command("postgres");
    command
        .arg("-D")
        .arg(&pgdata)
        .arg("-c")
        .arg(format!("config_file={}", candidate.display()))
        .args(["-C", "port"]);
    let checked = tools.supervisor().run(command, CHECK_TIMEOUT).await;
    let removed = blocking(move || fs::remove_file(&candidate)).await;
    removed.map_err(file("remove the checked configuration"))?;
    Ok(refusal(checked)?)
}

/// PostgreSQL's message if it has judged the configuration and refuses it: it then exits with [`REFUSED`]. A process
/// that was killed (by the kernel for want of memory, say), or that could not read the file, has not judged the
/// settings.
fn refusal(checked: Result<Output, ProcessError>) -> Result<Option<String>, ProcessError> {
    match checked {
        Ok(_) => Ok(None),
        Err(ProcessError::Failed { status, message, .. })
            if status.code() == Some(REFUSED) && !message.trim().is_empty() =>
        {
            Ok(Some(messages(&message)))
        }
        Err(error) => Err(error),
    }
}

/// The messages that `postgres` wrote, without time, process, and the closing remark about the file.
fn messages(stderr: &str) -> String {
    let messages: Vec<&str> = stderr
        .lines()
        .map(|line| line.split_once(":  ").map_or(line, |(_, message)| message).trim())
        .filter(|message| !message.is_empty() && !message.contains("postgresql.conf.candidate\" contains errors"))
        .collect();
    if messages.is_empty() {
        stderr.trim().to_owned()
    } else {
        messages.join("; ")
    }
}

impl Config {
    /// Replaces the configuration files in PGDATA that differ. The file of `ALTER SYSTEM` is emptied, so that it
    /// overrides nothing.
    ///
    /// While the machine runs, a reader always finds whole files. After a crash of the machine only `pg_rewind` reads
    /// them as they are: a server is started only after they have been written again ([`Server::start_if`]).
    /// `pg_rewind` lets an unclean server recover alone, and that server reads the settings. So `postgresql.conf` and
    /// `postgresql.auto.conf` are whole after a crash, too, with their old or their new content; either lets the server
    /// recover. The other two files, which that server does not read, may be empty. So closing a primary at its
    /// promotion waits for one flush instead of four, and opening it afterwards for none.
    pub(super) fn write(&self, pgdata: &Path) -> io::Result<()> {
        type Write = fn(&Path, &[u8], u32) -> io::Result<()>;
        const AUTO: &str = "# Not used: settings belong into the ClusteredDatabase.\n";
        let files: [(&str, &str, Write); 4] = [
            ("postgresql.conf", &self.postgresql_conf, write_whole),
            ("pg_hba.conf", &self.pg_hba_conf, write_for_now),
            ("pg_ident.conf", &self.pg_ident_conf, write_for_now),
            ("postgresql.auto.conf", AUTO, write_whole),
        ];
        for (name, content, write) in files {
            let path = pgdata.join(name);
            // A file that cannot be read is replaced, too.
            if read_if_there(&path).ok().flatten().as_deref() != Some(content) {
                write(&path, content.as_bytes(), 0o600)?;
            }
        }
        Ok(())
    }

    /// True if PostgreSQL has accepted these settings before: the written file differs at most in the primary that is
    /// followed. Asking PostgreSQL would take a process at the time at which a new primary waits for its standbys.
    pub(super) fn was_accepted(&self, pgdata: &Path) -> bool {
        fn settings(text: &str) -> impl Iterator<Item = &str> {
            let follows =
                |line: &&str| line.starts_with("primary_conninfo = ") || line.starts_with("primary_slot_name = ");
            text.lines().filter(move |line| !follows(line))
        }
        let written = read_if_there(&pgdata.join("postgresql.conf")).ok().flatten();
        written.is_some_and(|written| settings(&written).eq(settings(&self.postgresql_conf)))
    }

    /// Makes or removes `standby.signal`; removes `recovery.signal`.
    fn write_signal(&self, pgdata: &Path) -> io::Result<()> {
        let standby = pgdata.join("standby.signal");
        match (self.standby, fs::exists(&standby)?) {
            (true, false) => write_for_now(&standby, b"", 0o600)?,
            (false, true) => fs::remove_file(&standby)?,
            (true, true) | (false, false) => {}
        }
        remove_if_there(&pgdata.join("recovery.signal"))?;
        sync_parent(&standby)
    }
}

/// Removes lock files and sockets of a dead server. In a new container, the process id that they name belongs to no
/// process or to another one. Call it only when no server runs.
pub(super) fn remove_remains(pgdata: &Path, sockets: &Path) -> io::Result<()> {
    remove_if_there(&pgdata.join("postmaster.pid"))?;
    let entries = match fs::read_dir(sockets) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(".s.PGSQL.") {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a [`PostgresError`] of the error of a file operation.
pub(super) fn file(action: &str) -> impl FnOnce(io::Error) -> PostgresError {
    let action = action.to_owned();
    move |source| PostgresError::File { action, source }
}

#[cfg(test)]
mod tests;
