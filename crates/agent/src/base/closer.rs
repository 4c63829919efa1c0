//! Closes segments of WAL on the primary, while a standby that is copied waits for its last one to be archived.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use crate::postgres::Sql;

/// The pause until another segment is closed, if the standby waits still: its copy may have ended behind the first one.
const AGAIN: Duration = Duration::from_secs(10);

/// A segment is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    /// PostgreSQL's port.
    pub port: u16,
    /// Its major version.
    pub major: u16,
}

/// Closes the segment that the server writes whose socket is in `socket`, as long as that is wanted.
pub async fn close_segments(socket: PathBuf, mut wanted: watch::Receiver<Option<Closing>>) {
    loop {
        let closing = *wanted.borrow_and_update();
        let changed = match closing {
            None => wanted.changed().await,
            Some(Closing { port, major }) => {
                match Sql::new(socket.clone(), port, major).close_segment().await {
                    Ok(()) => tracing::info!("the segment of WAL is closed for the backup of a standby"),
                    Err(error) => tracing::warn!("close a segment of WAL for a backup: {error}"),
                }
                tokio::select! {
                    changed = wanted.changed() => changed,
                    () = tokio::time::sleep(AGAIN) => Ok(()),
                }
            }
        };
        if changed.is_err() {
            return;
        }
    }
}
