//! The canary: a tiny write to the WAL, with a flush, each second. It reveals a hanging disk, which a query does not.
//! And a new session each five seconds: it reveals a postmaster that hangs while its sessions go on.

use std::path::PathBuf;
use std::time::Duration;

use machine::timing::BootTime;
use tokio::sync::watch;

use super::Poll;
use crate::deadman::boot_time;
use crate::postgres::Sql;

/// The pause between writes, and after a session that was not taken.
const EVERY: Duration = Duration::from_secs(1);
/// The pause after a session that was taken.
const GREETING: Duration = Duration::from_secs(5);

/// Writes to the primary's WAL for ever, on a connection of its own. Calls `tell` with the time at which each
/// successful write began. A write that hangs is not reported.
pub async fn canary(socket: PathBuf, mut wanted: watch::Receiver<Poll>, tell: impl Fn(u32, BootTime)) {
    let mut connection: Option<(u32, Sql)> = None;
    loop {
        let Poll {
            server,
            port,
            major,
            writes,
            ..
        } = wanted.borrow_and_update().clone();
        let Some(pid) = server.filter(|_| writes) else {
            connection = None;
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let fresh = connection.take().filter(|(of, _)| *of == pid);
        let (_, sql) = connection.insert(fresh.unwrap_or_else(|| (pid, Sql::new(socket.clone(), port, major))));
        let begun = boot_time();
        match sql.write_canary().await {
            Ok(()) => tell(pid, begun),
            Err(error) => tracing::debug!("the canary's write failed: {error}"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Begins new sessions for ever, one at a time. Calls `tell` with the time at which each session began that PostgreSQL
/// took, or refused with a message.
pub async fn greet(socket: PathBuf, mut wanted: watch::Receiver<Poll>, tell: impl Fn(u32, BootTime)) {
    loop {
        let Poll {
            server, port, major, ..
        } = wanted.borrow_and_update().clone();
        let Some(pid) = server else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let begun = boot_time();
        let taken = Sql::new(socket.clone(), port, major).greet().await;
        if taken {
            tell(pid, begun);
        }
        tokio::time::sleep(if taken { GREETING } else { EVERY }).await;
    }
}
