//! The reader of PostgreSQL's standard error.

use std::os::fd::OwnedFd;
use std::process::ChildStderr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;

use super::record::{Assembler, Level, Record, goes_on};
use super::repeats::Repeats;

/// A record is complete if nothing follows it for this long: PostgreSQL writes a record and its details at once.
const QUIET: Duration = Duration::from_millis(50);
/// Longest part of a line that is logged as one.
const LONGEST_LINE: u64 = 64 * 1024;

/// Logs what PostgreSQL writes to standard error, until PostgreSQL closes it. Call it within the runtime.
pub fn forward_postgres(stderr: ChildStderr) {
    match pipe::Receiver::from_owned_fd(OwnedFd::from(stderr)) {
        Ok(pipe) => {
            tokio::spawn(forward(BufReader::new(pipe)));
        }
        Err(error) => tracing::error!("read the log of PostgreSQL: {error}"),
    }
}

async fn forward(mut pipe: BufReader<pipe::Receiver>) {
    let mut assembler = Assembler::default();
    let mut repeats = Repeats::default();
    let mut log = |record: Option<Record>| {
        if let Some(record) = record
            && let Some(left_out) = repeats.tell(&record, Instant::now())
        {
            log(record, left_out);
        }
    };
    let mut line = Vec::new();
    loop {
        let mut part = (&mut pipe).take(LONGEST_LINE);
        // The bytes of a cancelled read stay in `line`.
        let read = part.read_until(b'\n', &mut line);
        let read = if assembler.is_pending() {
            match tokio::time::timeout(QUIET, read).await {
                Ok(read) => read,
                Err(_) => {
                    if line.is_empty() {
                        log(assembler.flush());
                    }
                    continue;
                }
            }
        } else {
            read.await
        };
        match read {
            Ok(0) if line.is_empty() => break,
            // If nothing was read, nothing more will come.
            Ok(1..) if goes_on(&line) => {}
            Ok(_) => {
                let end = line
                    .iter()
                    .rposition(|byte| !b"\r\n".contains(byte))
                    .map_or(0, |last| last + 1);
                log(assembler.push(&line[..end]));
                line.clear();
            }
            Err(error) => {
                tracing::error!("read the log of PostgreSQL: {error}");
                break;
            }
        }
    }
    log(assembler.flush());
}

/// Logs a record. `left_out` says how often the same message was not logged since the last time.
fn log(record: Record, left_out: u32) {
    let Record {
        level,
        severity,
        message,
        pid,
        backend,
        user,
        database,
        code,
        details,
    } = record;
    let details = (!details.is_empty()).then(|| details.join("\n"));
    let left_out = (left_out > 0).then_some(left_out);
    macro_rules! event {
        ($level:ident) => {
            tracing::event!(
                target: "postgres",
                tracing::Level::$level,
                severity,
                pid,
                backend,
                user,
                database,
                code,
                details,
                left_out,
                "{message}"
            )
        };
    }
    match level {
        Level::Debug => event!(DEBUG),
        Level::Info => event!(INFO),
        Level::Warn => event!(WARN),
        Level::Error => event!(ERROR),
    }
}
