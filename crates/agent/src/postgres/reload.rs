//! Changing settings while the server runs.

use std::time::{Duration, Instant};

use super::config::Following;
use super::server::{check, file};
use super::{Config, PostgresError, Server, Sql, SqlError, blocking, sql_failed};
use crate::tools::Tools;
use crate::volume::Volume;

/// The result of changing settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The settings are in force, except those named, which wait for a restart.
    Applied {
        /// Settings that wait for a restart.
        pending_restart: Vec<String>,
    },
    /// PostgreSQL refuses the settings. The earlier files and settings stay in force.
    Refused {
        /// PostgreSQL's message.
        error: String,
    },
}

/// Time limit in which a server that answers must read its files again.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between questions whether it has.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Writes the configuration if PostgreSQL accepts it, has the server read it, and waits until it has. A configuration
/// that PostgreSQL refuses is never written: a restart would fail.
///
/// # Errors
/// Fails with [`PostgresError::Unproven`] if the server does not read the files in time or uses other values than
/// written. Fails with other variants if PostgreSQL does not answer, or a file or program fails. Settings that
/// PostgreSQL refuses are no error but [`Reload::Refused`].
pub async fn reload(
    tools: &Tools,
    volume: &Volume,
    server: &Server,
    sql: &mut Sql,
    config: &Config,
) -> Result<Reload, PostgresError> {
    let (pgdata, wanted) = (volume.pgdata(), config.clone());
    let accepted = blocking(move || wanted.was_accepted(&pgdata)).await;
    if !accepted && let Some(error) = check(tools, volume, config).await? {
        return Ok(Reload::Refused { error });
    }
    take_up(volume, server, sql, config).await?;
    let status = sql
        .status()
        .await
        .map_err(sql_failed("ask which settings wait for a restart"))?;
    Ok(Reload::Applied {
        pending_restart: status.pending_restart,
    })
}

/// Writes the configuration, has the server read it, and waits until a new session proves that it has: the written
/// synchronous rule is in force, and no line of `pg_hba.conf` is refused. A server that refuses the agent's sessions
/// may do so because of its old configuration; it reads the new one all the same.
///
/// # Errors
/// As [`reload`].
pub(super) async fn take_up(
    volume: &Volume,
    server: &Server,
    sql: &mut Sql,
    config: &Config,
) -> Result<(), PostgresError> {
    let before = match write(volume, sql, config).await {
        Err(error) if is_refused(&error) => await_taken(server, sql).await?,
        before => before?,
    };
    have_read(server, sql, config, &before).await
}

/// Has the server read the written files, and waits until it takes a session. Whether that session's settings are the
/// old or the new ones is not known: the proof is still to come.
async fn await_taken(server: &Server, sql: &Sql) -> Result<Loaded, PostgresError> {
    server.reload()?;
    let begun = Instant::now();
    loop {
        match loaded(sql).await {
            Err(error) if is_refused(&error) && begun.elapsed() < RELOAD_TIMEOUT => {}
            taken => return taken,
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn is_refused(error: &PostgresError) -> bool {
    matches!(
        error,
        PostgresError::Sql {
            source: SqlError::Refused(_),
            ..
        }
    )
}

/// The first half of [`take_up`]: writes the configuration. Returns the settings that the server uses before it is told
/// to read the files.
///
/// # Errors
/// Fails if the files cannot be written, or PostgreSQL does not answer.
pub(super) async fn write(volume: &Volume, sql: &Sql, config: &Config) -> Result<Loaded, PostgresError> {
    let (pgdata, writing) = (volume.pgdata(), config.clone());
    let writing = blocking(move || writing.write(&pgdata));
    // These, too, are read in a new session: an older one may not have heard of the last reload yet.
    let (before, written) = tokio::join!(loaded(sql), writing);
    written.map_err(file("write the configuration"))?;
    before
}

/// The second half of [`take_up`]: has the server read the files, and proves that it has.
///
/// # Errors
/// As [`reload`].
pub(super) async fn have_read(
    server: &Server,
    sql: &mut Sql,
    config: &Config,
    before: &Loaded,
) -> Result<(), PostgresError> {
    // Done even if nothing differs: the server may not have read what an interrupted reload wrote.
    server.reload()?;
    let begun = Instant::now();
    loop {
        // Asking an existing session costs no process. But it may hear of an earlier reload only now, or may be refused
        // by settings that are still being replaced.
        let known = match loaded_at(sql).await {
            Err(error) if is_refused(&error) => None,
            at => Some(at?),
        };
        if known.is_none_or(|at| at != before.at) {
            let now = loaded(sql).await?;
            if now.at != before.at {
                return now.check(config);
            }
        }
        if begun.elapsed() > RELOAD_TIMEOUT {
            return Err(PostgresError::Unproven(format!(
                "PostgreSQL has not read its settings within {} s",
                RELOAD_TIMEOUT.as_secs()
            )));
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// When the session of `sql` read its settings.
async fn loaded_at(sql: &mut Sql) -> Result<String, PostgresError> {
    const QUERY: &str = "SELECT pg_conf_load_time()::text";
    let row = sql.run(async |client| client.query_typed_one(QUERY, &[]).await).await;
    let row = row.map_err(sql_failed("ask when it read its settings"))?;
    row.try_get(0)
        .map_err(|error| sql_failed("read its settings")(SqlError::Broken(error.to_string())))
}

/// The settings of a new session. It inherits them from the postmaster.
pub(super) struct Loaded {
    /// When the postmaster read its settings.
    at: String,
    synchronous: String,
    following: Following,
    /// The first error in `pg_hba.conf`.
    hba: Option<String>,
}

impl Loaded {
    fn check(self, config: &Config) -> Result<(), PostgresError> {
        if self.synchronous != config.synchronous {
            return Err(PostgresError::Unproven(format!(
                "PostgreSQL has synchronous_standby_names {:?} instead of {:?}",
                self.synchronous, config.synchronous
            )));
        }
        if config.standby && self.following != config.following {
            // The values are not logged: a value that a user has set may hold a password.
            let words = "PostgreSQL goes by another primary_conninfo or primary_slot_name than was written";
            return Err(PostgresError::Unproven(words.to_owned()));
        }
        match self.hba {
            Some(error) => Err(PostgresError::Unproven(format!(
                "PostgreSQL refuses its pg_hba.conf: {error}"
            ))),
            None => Ok(()),
        }
    }
}

async fn loaded(sql: &Sql) -> Result<Loaded, PostgresError> {
    const QUERY: &str = "SELECT pg_conf_load_time()::text, current_setting('synchronous_standby_names'),
        (SELECT min(error) FROM pg_hba_file_rules), current_setting('primary_conninfo'), current_setting('primary_slot_name')";
    let row = sql
        .freshly(async |client| client.query_typed_one(QUERY, &[]).await)
        .await;
    let row = row.map_err(sql_failed("ask a new session for its settings"))?;
    let read = || {
        Ok(Loaded {
            at: row.try_get(0)?,
            synchronous: row.try_get(1)?,
            hba: row.try_get(2)?,
            following: Following {
                conninfo: row.try_get(3)?,
                slot: row.try_get(4)?,
            },
        })
    };
    read().map_err(|error: tokio_postgres::Error| sql_failed("read its settings")(SqlError::Broken(error.to_string())))
}
