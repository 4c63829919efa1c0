//! Making the first database.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::members::{SILENTLY, silently};
use super::quote::{identifier, literal};
use super::server::file;
use super::sql::{SqlError, classify, connect, words};
use super::{MEMBERS_ROLE, PostgresError, StartError, Tools, Verifier, blocking, hba};
use crate::process::{Running, Signal, Supervisor};
use crate::volume::Volume;

/// How the first database is made.
#[derive(Clone, Debug)]
pub struct InitdbRequest {
    /// Name of the application's database.
    pub database: String,
    /// Role that owns it.
    pub owner: String,
    /// The owner's password, already hashed.
    pub verifier: Verifier,
    /// Keep checksums of data pages.
    pub data_checksums: bool,
    /// Locale of the databases.
    pub locale: String,
    /// Statements run in the application's database as superuser.
    pub post_init_sql: Vec<String>,
}

/// Size of the files of WAL, in MiB, instead of 16. A promotion writes and flushes a whole one before anything can be written, and
/// each standby is sent the WAL of that file once more, from its beginning, before it holds what is in doubt.
const SEGMENT: u32 = 4;
/// Longest time for `initdb`: seconds even on slow disks.
const INITDB_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest time for a new, empty server to start or stop.
const SERVER_TIMEOUT: Duration = Duration::from_secs(120);
/// How often a starting server is tried.
const TRY_AGAIN: Duration = Duration::from_millis(30);
/// Port in the name of the private socket; nothing listens on TCP.
const PORT: u16 = 5432;

/// Makes a database in the staging directory (initdb, owner, database, role of the members, `postInitSql`), stops it
/// cleanly, and renames it into place. Fails if there is a PGDATA. What an interrupted or failed run leaves is
/// [`crate::volume::DataState::Unfinished`] and must be discarded first. Errors carry PostgreSQL's message.
pub async fn initdb(
    tools: &Tools,
    volume: &Volume,
    system_user: &str,
    request: &InitdbRequest,
) -> Result<(), PostgresError> {
    volume.blocking(|volume| volume.begin_staging("initdb")).await?;
    run_initdb(tools, volume, request).await?;
    let mut server = PrivateServer::start(tools, volume, system_user).await?;
    let made = server.fill(request).await;
    let stopped = server.stop(made.is_ok()).await;
    made?;
    stopped?;
    // Nothing has been synced so far; now everything is.
    let mut sync = tools.command("initdb");
    sync.arg("--sync-only").arg("-D").arg(volume.staging_pgdata());
    tools.supervisor().run(sync, INITDB_TIMEOUT).await?;
    Ok(volume.blocking(Volume::finish_staging).await?)
}

async fn run_initdb(tools: &Tools, volume: &Volume, request: &InitdbRequest) -> Result<(), PostgresError> {
    let mut command = tools.command("initdb");
    command.arg("-D").arg(volume.staging_pgdata());
    command.args([
        "--username=postgres",
        "--encoding=UTF8",
        "--auth-local=peer",
        "--auth-host=scram-sha-256",
    ]);
    command
        .args(["--no-instructions", "--no-sync"])
        .arg(format!("--locale={}", request.locale))
        .arg(format!("--wal-segsize={SEGMENT}"));
    match (request.data_checksums, tools.major()) {
        (true, _) => {
            command.arg("--data-checksums");
        }
        (false, 18..) => {
            command.arg("--no-data-checksums");
        }
        (false, _) => {}
    }
    if let Some(wal) = volume.wal_directory() {
        command.arg("--waldir").arg(wal);
    }
    tools.supervisor().run(command, INITDB_TIMEOUT).await?;
    Ok(())
}

/// A server on the staged data that nobody but this process can reach: no TCP, and its socket in the staging directory.
struct PrivateServer {
    supervisor: Supervisor,
    process: Running,
    config: tokio_postgres::Config,
}

impl PrivateServer {
    async fn start(tools: &Tools, volume: &Volume, system_user: &str) -> Result<Self, PostgresError> {
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
        let settings = [
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
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = tools.supervisor().spawn_reporting(None, command)?;
        if let Some(stderr) = process.stderr.take() {
            crate::logs::forward_postgres(stderr);
        }
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(&staging)
            .port(PORT)
            .user("postgres")
            .application_name(super::sql::APPLICATION);
        Ok(Self {
            supervisor: tools.supervisor().clone(),
            process,
            config,
        })
    }

    /// Makes owner, database and the members' role, and runs the user's statements.
    async fn fill(&mut self, request: &InitdbRequest) -> Result<(), PostgresError> {
        let client = self.connect_first().await?;
        client
            .batch_execute("SET search_path = pg_catalog")
            .await
            .map_err(statement("set up the session"))?;
        let (owner, verifier) = (identifier(&request.owner), literal(request.verifier.as_str()));
        let role = format!("{SILENTLY}; CREATE ROLE {owner} LOGIN PASSWORD {verifier}; COMMIT");
        silently(&client, &role).await.map_err(statement("make the owner"))?;
        let members = format!("CREATE ROLE {} NOLOGIN", identifier(MEMBERS_ROLE));
        client
            .batch_execute(&members)
            .await
            .map_err(statement("make the members' role"))?;
        let database = format!("CREATE DATABASE {} OWNER {owner}", identifier(&request.database));
        client
            .batch_execute(&database)
            .await
            .map_err(statement("make the database"))?;
        drop(client);
        if request.post_init_sql.is_empty() {
            return Ok(());
        }
        let mut config = self.config.clone();
        config.dbname(&request.database);
        let client = connect(&config)
            .await
            .map_err(statement("connect to the new database"))?;
        for (index, text) in request.post_init_sql.iter().enumerate() {
            let action = format!("run statement {} of postInitSql", index + 1);
            client.batch_execute(text).await.map_err(statement(&action))?;
        }
        Ok(())
    }

    async fn connect_first(&mut self) -> Result<Client, PostgresError> {
        let mut config = self.config.clone();
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
            // The socket says nothing before it exists; the process's end is awaited meanwhile.
            if let Ok(status) = tokio::time::timeout(TRY_AGAIN, self.process.wait()).await {
                return Err(StartError::Ended(status).into());
            }
        }
    }

    async fn stop(&mut self, cleanly: bool) -> Result<(), PostgresError> {
        let signal = if cleanly { Signal::INT } else { Signal::QUIT };
        self.supervisor.signal(self.process.pid, signal)?;
        match tokio::time::timeout(SERVER_TIMEOUT, self.process.wait()).await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(StartError::Ended(status).into()),
            Err(_) => Err(PostgresError::Statement {
                action: "stop the new server".to_owned(),
                message: format!("it still runs after {} s", SERVER_TIMEOUT.as_secs()),
            }),
        }
    }
}

impl Drop for PrivateServer {
    /// Ends the server if the work was broken off; harmless after its end.
    fn drop(&mut self) {
        if let Err(error) = self.supervisor.signal(self.process.pid, Signal::QUIT) {
            tracing::warn!("stop the private server: {error}");
        }
    }
}

/// Wraps PostgreSQL's refusal of a statement.
fn statement(action: &str) -> impl FnOnce(tokio_postgres::Error) -> PostgresError {
    let action = action.to_owned();
    move |error| PostgresError::Statement {
        action,
        message: words(&error),
    }
}
