//! The canary: a tiny write to the WAL, flushed, each second. A hanging disk shows by it, where a question does not. And a new
//! session each five seconds: a postmaster that stands still shows by it, while the sessions that there are go on.

use std::path::PathBuf;
use std::time::Duration;

use machine::timing::BootTime;
use tokio::sync::watch;

use super::Poll;
use crate::deadman::boot_time;
use crate::postgres::Sql;

/// Distance between writes, and between sessions that were not taken.
const EVERY: Duration = Duration::from_secs(1);
/// Distance between sessions that were.
const GREETING: Duration = Duration::from_secs(5);

/// Writes to the primary's WAL for ever, on a connection of its own, and tells `tell` when each write that succeeded began.
/// One that hangs is told by nobody.
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
            Err(error) => tracing::debug!("the canary's write: {error}"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Begins new sessions for ever, one at a time, and tells `tell` when each was begun that PostgreSQL took, or refused with words.
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
