//! The server that works on staged data before they are put into place.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::server::file;
use super::sql::{SqlError, classify, connect, describe_refusal};
use super::{PostgresError, Sql, StartError, blocking, hba};
use crate::process::{Running, Signal, Supervisor};
use crate::tools::Tools;
use crate::volume::{FileSystems, Volume};

/// Longest time for a new, empty server to start or stop.
pub(super) const SERVER_TIMEOUT: Duration = Duration::from_secs(120);
/// The pause between attempts to connect to a starting server.
const TRY_AGAIN: Duration = Duration::from_millis(30);
/// Port in the name of the private socket; nothing listens on TCP.
const PORT: u16 = 5432;

/// What a private server gets beside its usual settings and environment.
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Settings; they outrank those of the files and the usual ones.
    pub(super) settings: Vec<(&'static str, String)>,
    /// Environment variables.
    pub(super) environment: Vec<(OsString, OsString)>,
}

/// A server on the staged data that only this process can reach: it does not listen on TCP, and its socket is in the
/// staging directory.
pub(super) struct PrivateServer {
    supervisor: Supervisor,
    process: Running,
    socket: PathBuf,
}

impl PrivateServer {
    /// Starts the server; does not wait until it accepts connections.
    pub(super) async fn start(
        tools: &Tools,
        volume: &Volume,
        system_user: &str,
        launch: Launch,
    ) -> Result<Self, PostgresError> {
        let staging = volume.staging();
        let (rules, users) = (staging.join("pg_hba.conf"), staging.join("pg_ident.conf"));
        let (access, ident) = (rules.clone(), users.clone());
        let mapped = hba::pg_ident(system_user);
        blocking(move || {
            fs::write(&access, hba::private_hba()).map_err(file("write pg_hba.conf"))?;
            fs::write(&ident, mapped).map_err(file("write pg_ident.conf"))
        })
        .await?;
        let mut command = tools.command("postgres");
        command.arg("-D").arg(volume.staging_pgdata());
        let own = [
            ("listen_addresses", String::new()),
            ("port", PORT.to_string()),
            ("unix_socket_directories", staging.to_string_lossy().into_owned()),
            ("unix_socket_permissions", "0700".to_owned()),
            ("hba_file", rules.to_string_lossy().into_owned()),
            ("ident_file", users.to_string_lossy().into_owned()),
            ("log_line_prefix", crate::logs::LINE_PREFIX.to_owned()),
            ("lc_messages", "C".to_owned()),
            ("password_encryption", "scram-sha-256".to_owned()),
            ("autovacuum", "off".to_owned()),
            ("fsync", "off".to_owned()),
        ];
        for (name, value) in own.into_iter().chain(launch.settings) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command
            .envs(launch.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = tools.supervisor().spawn_reporting(None, command)?;
        if let Some(stderr) = process.stderr.take() {
            crate::logs::forward_postgres(stderr);
        }
        Ok(Self {
            supervisor: tools.supervisor().clone(),
            process,
            socket: staging,
        })
    }

    /// How to connect to it; the database is still to be set.
    pub(super) fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(&self.socket)
            .port(PORT)
            .user("postgres")
            .application_name(super::sql::APPLICATION);
        config
    }

    /// The same for PostgreSQL's own tools.
    pub(super) fn arguments(&self) -> [OsString; 6] {
        let port = PORT.to_string();
        let fixed = |text: &str| OsString::from(text);
        [
            fixed("--host"),
            self.socket.clone().into(),
            fixed("--port"),
            fixed(&port),
            fixed("--username"),
            fixed("postgres"),
        ]
    }

    /// A connection that pins its settings (not made yet).
    pub(super) fn sql(&self, major: u16) -> Sql {
        Sql::new(&self.socket, PORT, major)
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        self.process.wait().await
    }

    /// Connects as soon as it accepts connections.
    pub(super) async fn connect_first(&mut self) -> Result<Client, PostgresError> {
        let mut config = self.config();
        config.dbname("postgres");
        let begun = Instant::now();
        loop {
            match connect(&config).await {
                Ok(client) => return Ok(client),
                Err(error) => match classify(&error) {
                    SqlError::NotListening | SqlError::NotNow(_) if begun.elapsed() < SERVER_TIMEOUT => {}
                    _ => return Err(statement("connect to the new server")(error)),
                },
            }
            // Meanwhile the end of the process is awaited: a server that ends early never makes its socket.
            if let Ok(status) = tokio::time::timeout(TRY_AGAIN, self.process.wait()).await {
                return Err(StartError::Ended(status).into());
            }
        }
    }

    /// Stops it, within `limit`.
    pub(super) async fn stop(&mut self, cleanly: bool, limit: Duration) -> Result<(), PostgresError> {
        let signal = if cleanly { Signal::INT } else { Signal::QUIT };
        self.supervisor.signal(self.process.pid, signal)?;
        match tokio::time::timeout(limit, self.process.wait()).await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(StartError::Ended(status).into()),
            Err(_) => Err(PostgresError::Statement {
                action: "stop the new server".to_owned(),
                message: format!("it still runs after {} s", limit.as_secs()),
            }),
        }
    }
}

impl Drop for PrivateServer {
    /// Ends the server if the work broke off; does nothing after its end.
    fn drop(&mut self) {
        if let Err(error) = self.supervisor.signal(self.process.pid, Signal::QUIT) {
            tracing::warn!("stop the private server: {error}");
        }
    }
}

/// Synchronizes the staged PGDATA to disk; `file_systems` were opened before anything was written there. PostgreSQL's own program, which
/// flushes the disk for each file, does it where the file systems cannot be synchronized as a whole.
pub(super) async fn sync(
    tools: &Tools,
    volume: &Volume,
    file_systems: FileSystems,
    limit: Duration,
) -> Result<(), PostgresError> {
    let synced = blocking(move || file_systems.sync()).await;
    if synced.map_err(file("synchronize the volume"))? {
        return Ok(());
    }
    let mut command = tools.command("initdb");
    command.arg("--sync-only").arg("-D").arg(volume.staging_pgdata());
    tools.supervisor().run(command, limit).await?;
    Ok(())
}

/// Makes a [`PostgresError`] of PostgreSQL's refusal of a statement.
pub(super) fn statement(action: &str) -> impl FnOnce(tokio_postgres::Error) -> PostgresError {
    let action = action.to_owned();
    move |error| PostgresError::Statement {
        action,
        message: describe_refusal(&error),
    }
}
