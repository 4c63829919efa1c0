//! `pg_basebackup`, whose output goes to the store.

use std::cell::Cell;
use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use backup::base::{BaseError, Writer, Written};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{Instant, sleep, timeout};

use super::Order;

/// The last lines of `pg_basebackup` that a failure tells.
const LINES: usize = 5;
/// How long PostgreSQL may send nothing. At the end it waits until the WAL is archived.
const SILENCE: Duration = Duration::from_secs(30 * 60);
/// How long `pg_basebackup` may take to end when its output is closed.
const END: Duration = Duration::from_secs(10);
/// The manifest is a temporary file, which the user's `temp_file_limit` may forbid.
const OPTIONS: &str = "-c temp_file_limit=-1 -c statement_timeout=0";

/// What `pg_basebackup` says when the server has found pages with wrong checksums. It has received everything by then.
const DAMAGED: &str = "pg_basebackup: error: checksum error occurred";

/// There are pages with wrong checksums; the server's warnings name the files.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL has found pages with wrong checksums: {0}")]
pub(super) struct DamagedPages(String);

/// Copies the server into the store. Dropping the future kills `pg_basebackup`.
pub(super) async fn copy(order: &Order, writer: Writer, progress: impl Fn(u64)) -> anyhow::Result<Written> {
    let mut child = start(order)?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("pg_basebackup has no pipes");
    };
    let words = tokio::spawn(last_lines(stderr));
    let heard = Cell::new(Instant::now());
    let written = tokio::select! {
        written = writer.write(stdout, |bytes| {
            heard.set(Instant::now());
            progress(bytes);
        }) => written,
        () = silence(&heard) => bail!(
            "PostgreSQL has sent nothing for {} minutes: look if its WAL is archived",
            SILENCE.as_secs() / 60
        ),
    };
    let status = end(&mut child).await?;
    match written {
        // Then the stream is cut off; the program knows why.
        Ok(_) | Err(BaseError::Tar(_) | BaseError::Manifest(_)) if !status.success() => {
            let mut words = timeout(END, words).await.ok().and_then(Result::ok).unwrap_or_default();
            if words.last().is_some_and(|last| last == DAMAGED) {
                words.pop();
                return Err(DamagedPages(words.join("; ")).into());
            }
            bail!("pg_basebackup has failed ({status}): {}", words.join("; "))
        }
        written => Ok(written?),
    }
}

fn start(order: &Order) -> anyhow::Result<Child> {
    let mut command = Command::new(order.programs.join("pg_basebackup"));
    command
        .args(["--pgdata=-", "--format=tar", "--wal-method=none", "--checkpoint=fast"])
        .args(["--no-password", "--username=postgres", "--label=base backup"])
        .arg(format!("--port={}", order.port))
        .arg("--host")
        .arg(&order.socket_directory)
        .args(order.copy.accepts_damage.then_some("--no-verify-checksums"))
        .env("LC_ALL", "C")
        .env("PGOPTIONS", OPTIONS)
        .env("PGAPPNAME", "cdb_base_backup")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command.spawn().context("start pg_basebackup")
}

/// Its end. If the stream was not read to its end, it is told so by the closed pipe.
async fn end(child: &mut Child) -> anyhow::Result<ExitStatus> {
    if let Ok(status) = timeout(END, child.wait()).await {
        return Ok(status?);
    }
    child.start_kill()?;
    Ok(child.wait().await?)
}

/// Says what the program says, and returns its last lines.
async fn last_lines(stderr: ChildStderr) -> Vec<String> {
    let mut lines = BufReader::new(stderr).lines();
    let mut last = VecDeque::new();
    while let Ok(Some(line)) = lines.next_line().await {
        eprintln!("{line}");
        last.push_back(line);
        if last.len() > LINES {
            last.pop_front();
        }
    }
    last.into()
}

/// Waits until nothing was heard for [`SILENCE`].
async fn silence(heard: &Cell<Instant>) {
    while heard.get().elapsed() < SILENCE {
        sleep(SILENCE - heard.get().elapsed().min(SILENCE)).await;
    }
}
