//! One database session, and the outcome of an attempt on it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::availability::record::{Outcome, Stream};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, SimpleQueryMessage, SimpleQueryRow};

use crate::settings::Login;
use crate::tls::{self, Tls};

/// Bound of a connection and of a statement, by the client.
pub const BOUND: Duration = Duration::from_secs(1);
/// Bound of a statement by the server. It is below [`BOUND`], so that a server that still answers reports the abort
/// itself, and its processes do not pile up behind a standby that does not confirm.
const SERVER_BOUND: Duration = Duration::from_millis(900);

/// A session; closed at once when dropped.
pub struct Session {
    client: Client,
    driver: AbortHandle,
    /// True if the server has said that a commit is not as safe as it should be.
    doubtful: Arc<AtomicBool>,
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it ended.
    pub outcome: Outcome,
    /// Address of the server.
    pub server: Option<String>,
    /// Its timeline.
    pub timeline: Option<u32>,
    /// What went wrong.
    pub error: Option<String>,
    /// True if the session can be used again.
    pub usable: bool,
}

impl Session {
    /// Connects, in [`BOUND`].
    ///
    /// # Errors
    /// When that fails or takes longer.
    pub async fn connect(address: SocketAddr, login: &Login, tls: &Tls) -> Result<Self> {
        let set = format!("SET statement_timeout = {}", SERVER_BOUND.as_millis());
        Self::connect_with(address, login, tls, &set).await
    }

    /// The same with other settings than a bound for statements.
    ///
    /// # Errors
    /// When that fails or takes longer.
    pub async fn connect_with(address: SocketAddr, login: &Login, tls: &Tls, settings: &str) -> Result<Self> {
        timeout(BOUND, Self::connect_unbounded(address, login, tls, settings))
            .await
            .context("connect: no answer in time")?
    }

    async fn connect_unbounded(address: SocketAddr, login: &Login, tls: &Tls, settings: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("connect")?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let mut config = Config::new();
        config
            .user(&login.user)
            .password(&login.password)
            .dbname(&login.database)
            .application_name("availability-writer")
            .ssl_mode(SslMode::Prefer);
        let (client, connection) = config.connect_raw(stream, tls.clone()).await.context("log in")?;
        let doubtful = Arc::new(AtomicBool::new(false));
        let driver = tokio::spawn(drive(connection, doubtful.clone())).abort_handle();
        let session = Self {
            client,
            driver,
            doubtful,
        };
        session
            .client
            .batch_execute(settings)
            .await
            .context("set the timeout")?;
        Ok(session)
    }

    /// Tries to commit one row, in [`BOUND`].
    pub async fn write(&self, table: &str, run: &str, stream: &Stream, seq: u64) -> Answer {
        // Names and numbers of ours, without quotes. The timeline is the one that the row's WAL is written on.
        let statement = format!(
            "INSERT INTO {table} (run, stream, seq) VALUES ('{run}', '{stream}', {seq}) \
             RETURNING host(inet_server_addr()), substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
        );
        match self.ask(&statement, BOUND).await {
            Err(answer) => answer,
            Ok(rows) => self.answer(rows.first()),
        }
    }

    /// Commits, in `bound`.
    pub async fn commit(&self, bound: Duration) -> Answer {
        match self.ask("COMMIT", bound).await {
            Err(answer) => answer,
            Ok(_) => self.answer(None),
        }
    }

    /// The outcome of a success.
    fn answer(&self, row: Option<&SimpleQueryRow>) -> Answer {
        Answer::done(row, self.doubtful.load(Ordering::Relaxed))
    }

    /// The rows of a statement, in `bound`; or the outcome of its failure.
    ///
    /// # Errors
    /// With an outcome that says whether it may have had an effect.
    pub async fn ask(&self, statement: &str, bound: Duration) -> Result<Vec<SimpleQueryRow>, Answer> {
        self.doubtful.store(false, Ordering::Relaxed);
        match timeout(bound, self.client.simple_query(statement)).await {
            Err(_) => Err(Answer::unknown("no answer in time")),
            Ok(Err(error)) => Err(Answer::failed(&error)),
            Ok(Ok(messages)) => Ok(messages.into_iter().filter_map(row).collect()),
        }
    }

    /// The rows of a query, in [`BOUND`].
    ///
    /// # Errors
    /// When it fails or takes longer.
    pub async fn query(&self, statement: &str) -> Result<Vec<SimpleQueryRow>> {
        let messages = timeout(BOUND, self.client.simple_query(statement))
            .await
            .context("no answer in time")??;
        Ok(messages.into_iter().filter_map(row).collect())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn row(message: SimpleQueryMessage) -> Option<SimpleQueryRow> {
    match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    }
}

/// Processes the session's messages until it ends, and reads its notices.
async fn drive(mut connection: Connection<TcpStream, tls::Stream>, doubtful: Arc<AtomicBool>) {
    while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notice(notice) = message {
            // "canceling wait for synchronous replication" and similar notices come as warnings with the success.
            if notice.severity() != "NOTICE" {
                doubtful.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Answer {
    fn done(row: Option<&SimpleQueryRow>, doubtful: bool) -> Self {
        let text = |column| row.and_then(|row| row.get(column)).map(str::to_owned);
        Self {
            outcome: if doubtful { Outcome::Unknown } else { Outcome::Acked },
            server: text(0),
            timeline: text(1).and_then(|name| u32::from_str_radix(&name, 16).ok()),
            error: doubtful.then(|| "committed, but not as safely as it should be".to_owned()),
            usable: true,
        }
    }

    fn unknown(error: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Unknown,
            server: None,
            timeline: None,
            error: Some(error.into()),
            usable: false,
        }
    }

    /// The row was never sent.
    pub fn refused(error: &anyhow::Error) -> Self {
        Self {
            outcome: Outcome::Error,
            usable: false,
            ..Self::unknown(format!("{error:#}"))
        }
    }

    fn failed(error: &tokio_postgres::Error) -> Self {
        let Some(said) = error.as_db_error() else {
            return Self::unknown(error.to_string());
        };
        if is_certain(said.code(), said.severity()) {
            Self {
                outcome: Outcome::Error,
                usable: true,
                ..Self::unknown(format!("{}: {}", said.code().code(), said.message()))
            }
        } else {
            Self::unknown(format!("{}: {}", said.code().code(), said.message()))
        }
    }
}

/// Whether an error says that nothing was written. One that ends the session does not: it may come after the commit,
/// while that waits for a standby.
fn is_certain(code: &SqlState, severity: &str) -> bool {
    let uncertain = ["08", "57P", "58", "XX"];
    severity == "ERROR" && !uncertain.iter().any(|prefix| code.code().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ordinary_error_is_certain() {
        assert!(is_certain(&SqlState::READ_ONLY_SQL_TRANSACTION, "ERROR"));
        assert!(is_certain(&SqlState::QUERY_CANCELED, "ERROR"));
        assert!(is_certain(&SqlState::DISK_FULL, "ERROR"));
        assert!(!is_certain(&SqlState::ADMIN_SHUTDOWN, "FATAL"));
        assert!(!is_certain(&SqlState::ADMIN_SHUTDOWN, "ERROR"));
        assert!(!is_certain(&SqlState::CRASH_SHUTDOWN, "ERROR"));
        assert!(!is_certain(&SqlState::IO_ERROR, "ERROR"));
        assert!(!is_certain(&SqlState::CONNECTION_FAILURE, "ERROR"));
    }

    #[test]
    fn a_warning_beside_the_success_takes_the_acknowledgement_away() {
        assert_eq!(Answer::done(None, false).outcome, Outcome::Acked);
        let answer = Answer::done(None, true);
        assert_eq!((answer.outcome, answer.usable), (Outcome::Unknown, true));
    }
}
