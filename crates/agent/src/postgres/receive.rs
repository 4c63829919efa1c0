//! Ending what is received, for a promise (protocol.md rule 4).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use machine::instance::Promise;
use machine::instance::steps::{PROMISE, PromiseStep};
use machine::protocol::Epoch;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::server::file;
use super::{PostgresError, Server, blocking, processes_on};
use crate::process::postgres_processes;
use crate::volume::{Volume, read_if_there, write_whole};

/// A WAL receiver flushes what it has, and ends; one that takes longer hangs in its disk.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// Promises durably to receive nothing from an epoch below `epoch`, by the steps of [`PROMISE`]. When this returns, nothing
/// is received any more, and nothing will be before [`Volume::follow`]. Works without a server, too. Returns what is
/// promised now; after an error the server may still receive, even if the epoch is persisted.
///
/// # Errors
/// Fails if the volume cannot be written, or the WAL receiver does not end in time. This member may still receive then,
/// even if the epoch is persisted.
pub async fn promise(volume: &Volume, server: Option<&Server>, epoch: Epoch) -> Result<Promise, PostgresError> {
    let mut promised = None;
    for step in PROMISE {
        match step.step {
            PromiseStep::Write => {
                promised = Some(volume.blocking(move |volume| volume.promise_at_least(epoch)).await?);
            }
            PromiseStep::EndReceiver => stop_receiving(volume).await?,
            PromiseStep::EmptyUpstream => {
                if let Some(server) = server {
                    empty_upstream(volume, server).await;
                }
            }
        }
    }
    promised.ok_or_else(|| PostgresError::Unproven("a promise writes nothing".to_owned()))
}

/// Empties `primary_conninfo`, which only spares PostgreSQL its attempts; the missing credential is what counts. Another
/// primary may have been found meanwhile, and its name written.
async fn empty_upstream(volume: &Volume, server: &Server) {
    let pgdata = volume.pgdata();
    let emptied = volume
        .blocking(move |volume| volume.while_promised(|| forget_upstream(&pgdata)))
        .await
        .map(|()| server.reload());
    if !matches!(emptied, Ok(Ok(()))) {
        tracing::warn!("the standby's settings still name its former primary");
    }
}

/// Ends the WAL receiver (SIGTERM), and returns when no process of PostgreSQL on this volume is one. Those that are started
/// later do not connect if the credential was taken away before: whoever may have read it is gone then.
///
/// # Errors
/// Fails with [`PostgresError::Unproven`] if a WAL receiver does not end in time, and with [`PostgresError::File`] if
/// the processes cannot be listed or signalled.
pub async fn stop_receiving(volume: &Volume) -> Result<(), PostgresError> {
    let begun = Instant::now();
    let mut asked = BTreeSet::new();
    loop {
        let pgdata = volume.pgdata();
        let looked = blocking(move || receivers(&pgdata)).await;
        let left = looked.map_err(file("look for WAL receivers"))?;
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > END_TIMEOUT {
            return Err(PostgresError::Unproven(format!(
                "the WAL receiver still runs after {} s (processes {left:?})",
                END_TIMEOUT.as_secs()
            )));
        }
        for &pid in &left {
            if asked.insert(pid) && !terminate(pid).map_err(file("end the WAL receiver"))? {
                // It had no name yet.
                asked.remove(&pid);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Processes on `pgdata` that are WAL receivers, or too young to tell.
fn receivers(pgdata: &Path) -> io::Result<Vec<u32>> {
    let family = processes_on(pgdata)?;
    let parents: Vec<(u32, u32)> = postgres_processes()?
        .iter()
        .map(|process| (process.pid, process.parent))
        .collect();
    let mut found = Vec::new();
    for pid in family.iter().copied() {
        let child = parents
            .iter()
            .any(|&(own, parent)| own == pid && family.contains(&parent));
        match kind(&title(pid)?) {
            Kind::Receiver => found.push(pid),
            // Forked just now: it bears its parent's name. The postmaster itself always does.
            Kind::Unnamed if child => found.push(pid),
            Kind::Unnamed | Kind::Other => {}
        }
    }
    Ok(found)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Receiver,
    Other,
    Unnamed,
}

/// Reads a process title such as `postgres: orders: walreceiver streaming 0/3000148`. Sessions of a role of that name tell
/// their client's address in brackets.
fn kind(title: &str) -> Kind {
    if title.is_empty() {
        // Gone, or about to be.
        return Kind::Other;
    }
    let Some(title) = title.strip_prefix("postgres: ") else {
        return Kind::Unnamed;
    };
    let work = title.split_once(": ").map_or(title, |(_, work)| work).trim_end();
    match work.strip_prefix("walreceiver") {
        Some(rest) if rest.is_empty() || (rest.starts_with(' ') && !rest.contains(['(', '['])) => Kind::Receiver,
        _ => Kind::Other,
    }
}

fn title(pid: u32) -> io::Result<String> {
    match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Sends SIGTERM to a WAL receiver, and to nobody who has got its number since; `false` if it is none (yet).
fn terminate(pid: u32) -> io::Result<bool> {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(false);
    };
    let handle = match pidfd_open(id, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(true),
        handle => handle?,
    };
    if kind(&title(pid)?) != Kind::Receiver {
        return Ok(false);
    }
    match pidfd_send_signal(&handle, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Empties `primary_conninfo` in the configuration.
fn forget_upstream(pgdata: &Path) -> io::Result<()> {
    let path = pgdata.join("postgresql.conf");
    let text = read_if_there(&path)?.unwrap_or_default();
    let emptied: String = text
        .lines()
        .map(|line| match line.starts_with("primary_conninfo = ") {
            true => "primary_conninfo = ''\n".to_owned(),
            false => format!("{line}\n"),
        })
        .collect();
    if emptied != text {
        write_whole(&path, emptied.as_bytes(), 0o600)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_known_by_their_title() {
        for (title, expected) in [
            ("postgres: orders: walreceiver streaming 0/3000148", Kind::Receiver),
            ("postgres: orders: walreceiver", Kind::Receiver),
            ("postgres: walreceiver: walreceiver ", Kind::Receiver),
            ("postgres: walreceiver: checkpointer ", Kind::Other),
            ("postgres: orders: walreceiver orders 10.0.0.1(4711) idle", Kind::Other),
            ("postgres: orders: walreceiver postgres [local] idle", Kind::Other),
            (
                "postgres: orders: walsender cdb_1 10.0.0.1(4711) streaming 0/3",
                Kind::Other,
            ),
            ("/usr/lib/postgresql/17/bin/postgres -D /data", Kind::Unnamed),
            ("", Kind::Other),
        ] {
            assert_eq!(kind(title), expected, "{title}");
        }
    }
}
