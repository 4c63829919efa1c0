//! PgBouncer's console: a connection of its own for each command, by the process's socket.

use std::path::Path;
use std::time::Duration;

use api::names::{POOLER_PORT, RUN_PATH};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};

/// Time limit of what PgBouncer does at once.
const LIMIT: Duration = Duration::from_secs(2);

async fn connect(process: u32) -> anyhow::Result<Client> {
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(Path::new(RUN_PATH).join(process.to_string()))
        .port(POOLER_PORT)
        .user("pgbouncer")
        .dbname("pgbouncer");
    let (client, connection) = timeout(LIMIT, config.connect(NoTls)).await??;
    tokio::spawn(connection);
    Ok(client)
}

/// The pools of the process with this number, from 1.
///
/// # Errors
/// If it does not answer.
pub(super) async fn pools(process: u32) -> anyhow::Result<Vec<SimpleQueryRow>> {
    let client = connect(process).await?;
    let answer = timeout(LIMIT, client.simple_query("SHOW POOLS")).await??;
    let rows = answer.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(rows.collect())
}

/// Has new transactions wait; returns when the last one under way has ended, however long that takes. It never returns if the process is
/// resumed meanwhile (<https://github.com/pgbouncer/pgbouncer/issues/715>).
///
/// # Errors
/// If it does not answer.
pub(super) async fn pause(process: u32) -> anyhow::Result<()> {
    connect(process).await?.batch_execute("PAUSE").await?;
    Ok(())
}

/// Has transactions go on. Fine if there was no pause.
///
/// # Errors
/// If it does not answer.
pub(super) async fn resume(process: u32) -> anyhow::Result<()> {
    let client = connect(process).await?;
    match timeout(LIMIT, client.batch_execute("RESUME")).await? {
        Err(error)
            if !error
                .as_db_error()
                .is_some_and(|error| error.message().contains("not paused")) =>
        {
            Err(error.into())
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
