//! A connection to the local server, as superuser, over its Unix socket.

use std::future::Future;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::Status;
use super::status::{STATUS_QUERY, parse};

/// The connection. It is made when it is needed, and again when it is lost. Its startup packet pins every setting that
/// could change what the agent reads, or keep it from its work ([`PINNED`]). Statements have time limits, and a commit
/// waits for no standby.
#[derive(Debug)]
pub struct Sql {
    config: tokio_postgres::Config,
    client: Option<Client>,
}

/// Why the server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// No server listens on the socket.
    #[error("PostgreSQL does not listen on its socket")]
    NotListening,
    /// PostgreSQL starts, recovers or stops, and takes no sessions now; its message.
    #[error("PostgreSQL takes no sessions now: {0}")]
    NotNow(String),
    /// PostgreSQL did not answer within this many milliseconds.
    #[error("PostgreSQL did not answer within {0} ms")]
    Silent(u64),
    /// PostgreSQL refused a session or a statement; its message.
    #[error("{0}")]
    Refused(String),
    /// The connection broke.
    #[error("the connection to PostgreSQL broke: {0}")]
    Broken(String),
}

/// The agent's name in `pg_stat_activity`.
pub(super) const APPLICATION: &str = "cdb_agent";
/// The settings in the startup packet. They outrank `postgresql.conf` and the settings of databases and roles.
/// `tests/settings.rs` sets each of them, and all others, to its least friendly value.
const PINNED: [(&str, &str); 22] = [
    ("client_min_messages", "warning"),
    ("datestyle", "iso"),
    // A statement that is printed may hold a password's verifier.
    ("debug_print_parse", "off"),
    ("debug_print_plan", "off"),
    ("debug_print_rewritten", "off"),
    ("default_transaction_deferrable", "off"),
    // A standby refuses every statement of a serializable transaction.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("idle_session_timeout", "0"),
    // Compiling the status query would take seconds.
    ("jit", "off"),
    // A library that cannot be loaded would end the session.
    ("local_preload_libraries", ""),
    ("lock_timeout", "5s"),
    ("post_auth_delay", "0"),
    ("role", "none"),
    // No user's operators or functions take the place of PostgreSQL's.
    ("search_path", "pg_catalog"),
    ("session_preload_libraries", ""),
    ("session_replication_role", "origin"),
    ("statement_timeout", "10s"),
    ("synchronous_commit", "local"),
    ("timezone", "UTC"),
    ("track_activities", "on"),
];
/// As [`PINNED`], for settings that exist since version 17.
const PINNED_SINCE_17: [(&str, &str); 2] = [
    // This includes login triggers.
    ("event_triggers", "off"),
    ("transaction_timeout", "0"),
];
/// Time limit of a connection and of questions: a local server that takes longer hangs.
const QUICK: Duration = Duration::from_secs(2);
/// Time limit of statements that write.
pub(super) const SLOW: Duration = Duration::from_secs(15);
/// See [`Sql::write_canary`].
const CANARY: Duration = Duration::from_secs(60);
/// See [`Sql::greet`].
const GREETING: Duration = Duration::from_secs(10);
/// A write to the WAL in a transaction of its own, so that it is flushed at its end.
const WRITE: &str = "SELECT pg_logical_emit_message(true, 'cdb', '')";

impl Sql {
    /// A connection (not made yet) through the socket in `socket` to a server of version `major`.
    pub fn new(socket: impl Into<PathBuf>, port: u16, major: u16) -> Self {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(socket.into())
            .port(port)
            .user("postgres")
            .dbname("postgres");
        config
            .application_name(APPLICATION)
            .options(options(major))
            .connect_timeout(QUICK);
        Self { config, client: None }
    }

    /// Another connection to the same server (not made yet).
    pub(super) fn another(&self) -> Self {
        Self {
            config: self.config.clone(),
            client: None,
        }
    }

    /// A connection to another database of the same server (not made yet).
    pub(super) fn in_database(&self, name: &str) -> Self {
        let mut config = self.config.clone();
        config.dbname(name);
        Self { config, client: None }
    }

    /// The server's status, in one round trip.
    ///
    /// # Errors
    /// Fails with [`SqlError::NotListening`] or [`SqlError::NotNow`] if the server takes no sessions, with
    /// [`SqlError::Silent`] after two seconds, with [`SqlError::Refused`] if it refuses, and with [`SqlError::Broken`]
    /// if the connection breaks or the answer is not understood.
    pub async fn status(&mut self) -> Result<Status, SqlError> {
        let text = self
            .within(QUICK, async |client| client.query_typed_one(STATUS_QUERY, &[]).await)
            .await?;
        let text: String = text.try_get(0).map_err(|error| SqlError::Broken(error.to_string()))?;
        parse(&text).map_err(SqlError::Broken)
    }

    /// True if the server is in recovery.
    ///
    /// # Errors
    /// As [`Sql::status`].
    pub(super) async fn recovers(&mut self) -> Result<bool, SqlError> {
        const QUERY: &str = "SELECT pg_is_in_recovery()";
        let row = self
            .within(QUICK, async |client| client.query_typed_one(QUERY, &[]).await)
            .await?;
        row.try_get(0).map_err(|error| SqlError::Broken(error.to_string()))
    }

    /// Writes a little to the WAL, and returns when it is flushed here. Use a connection of its own: a hung disk hangs
    /// it, for [`CANARY`] at most. The limit is so long that sessions that hang do not pile up. Judge the disk by the
    /// time of the last success.
    ///
    /// # Errors
    /// As [`Sql::status`], with [`CANARY`] as the time limit.
    pub async fn write_canary(&mut self) -> Result<(), SqlError> {
        self.within(CANARY, async |client| client.batch_execute(WRITE).await)
            .await
    }

    /// Begins a session of its own and ends it. True if the server takes the session, or says why it does not.
    pub async fn greet(&self) -> bool {
        let greeted = bounded(GREETING, connect(&self.config)).await;
        matches!(greeted, Ok(_) | Err(SqlError::Refused(_) | SqlError::NotNow(_)))
    }

    /// Writes a little to the WAL, so that standbys report their positions.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub(super) async fn provoke_reports(&mut self) -> Result<(), SqlError> {
        self.run(async |client| client.batch_execute(WRITE).await).await
    }

    /// Closes the segment of WAL that the server writes, so that it is archived at once.
    ///
    /// # Errors
    /// As [`Sql::run`].
    pub async fn close_segment(&mut self) -> Result<(), SqlError> {
        self.run(async |client| client.batch_execute("SELECT pg_switch_wal()").await)
            .await
    }

    /// Makes a checkpoint, in a session of its own. After `limit` it goes on in the server, but is no longer awaited.
    ///
    /// # Errors
    /// As [`Sql::status`], with `limit` as the time limit.
    pub async fn checkpoint(&self, limit: Duration) -> Result<(), SqlError> {
        let client = bounded(QUICK, connect(&self.config)).await?;
        let work = client.batch_execute("SET statement_timeout = 0; CHECKPOINT");
        bounded(limit, work).await
    }

    /// Runs `work` in a new session.
    ///
    /// # Errors
    /// As [`Sql::status`].
    pub(super) async fn freshly<T>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, SqlError> {
        let client = bounded(QUICK, connect(&self.config)).await?;
        bounded(QUICK, work(&client)).await
    }

    /// Runs `work` on the connection, with the time limit of statements that write.
    ///
    /// # Errors
    /// As [`Sql::status`], with [`SLOW`] as the time limit.
    pub(super) async fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, SqlError> {
        self.within(SLOW, work).await
    }

    /// Runs `work` on the connection, with this time limit.
    ///
    /// # Errors
    /// As [`Sql::status`], with `limit` as the time limit.
    pub(super) async fn within<T>(
        &mut self,
        limit: Duration,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, SqlError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => bounded(QUICK, connect(&self.config)).await?,
        };
        // After a failure or a timeout, or if this future is dropped, the connection is not put back, and is closed.
        let result = bounded(limit, work(&client)).await;
        if result.is_ok() || (matches!(result, Err(SqlError::Refused(_))) && !client.is_closed()) {
            self.client = Some(client);
        }
        result
    }
}

/// The startup packet's options that pin the settings, for a server of version `major`.
fn options(major: u16) -> String {
    let since_17 = PINNED_SINCE_17.iter().filter(|_| major >= 17);
    let pairs = PINNED.iter().chain(since_17);
    let options: Vec<String> = pairs
        .map(|(name, value)| format!("-c {name}={}", value.replace(' ', "\\ ")))
        .collect();
    options.join(" ")
}

/// Connects, and drives the connection until its client is dropped.
pub(super) async fn connect(config: &tokio_postgres::Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("the connection to PostgreSQL ended: {error}");
        }
    });
    Ok(client)
}

async fn bounded<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, SqlError> {
    match timeout(limit, work).await {
        Ok(result) => result.map_err(|error| classify(&error)),
        Err(_) => Err(SqlError::Silent(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))),
    }
}

/// PostgreSQL's message, with detail and hint; another error's text if PostgreSQL did not answer.
pub(super) fn describe_refusal(error: &tokio_postgres::Error) -> String {
    let Some(error) = error.as_db_error() else {
        return describe(error);
    };
    let mut text = error.message().to_owned();
    for more in [error.detail(), error.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}

pub(super) fn classify(error: &tokio_postgres::Error) -> SqlError {
    const NOT_NOW: [SqlState; 4] = [
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::TOO_MANY_CONNECTIONS,
    ];
    match error.code() {
        Some(code) if NOT_NOW.contains(code) => return SqlError::NotNow(describe_refusal(error)),
        Some(_) => return SqlError::Refused(describe_refusal(error)),
        None => {}
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<std::io::Error>()
            && [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&cause.kind())
        {
            return SqlError::NotListening;
        }
        source = cause.source();
    }
    SqlError::Broken(describe(error))
}

fn describe(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_for_no_setting_that_it_does_not_know() {
        let [before, since] = [16, 17].map(options);
        assert!(
            before.contains("-c default_transaction_isolation=read\\ committed -c "),
            "{before}"
        );
        assert!(!before.contains("transaction_timeout=0") && since.ends_with("-c transaction_timeout=0"));
        assert!(since.starts_with(&before));
    }
}
