//! Making the first database.

use std::time::Duration;

use super::members::{SILENTLY, silently};
use super::private::{Launch, PrivateServer, SERVER_TIMEOUT, statement, sync};
use super::quote::{identifier, literal};
use super::sql::connect;
use super::{MEMBERS_ROLE, PostgresError, Verifier};
use crate::tools::Tools;
use crate::volume::Volume;

/// The parameters of the first database.
#[derive(Clone, Debug)]
pub struct InitdbRequest {
    /// Name of the application's database.
    pub database: String,
    /// Role that owns it.
    pub owner: String,
    /// The owner's password, already hashed.
    pub verifier: Verifier,
    /// Data pages get checksums.
    pub data_checksums: bool,
    /// Locale of the databases.
    pub locale: String,
    /// Size of a WAL segment, in MiB. PostgreSQL's own default is 16. A promotion writes and flushes a whole segment before anything can be
    /// written. Each standby is then sent the WAL of that segment once more, from its beginning, before it holds the commits that are in
    /// doubt.
    pub wal_segment_size: u32,
    /// Statements run in the application's database as superuser.
    pub post_init_sql: Vec<String>,
}

/// Longest time for `initdb`: seconds even on slow disks.
const INITDB_TIMEOUT: Duration = Duration::from_secs(300);

/// Makes a database in the staging directory (initdb, owner, database, role of the members, `postInitApplicationSQL`), stops it
/// cleanly, and renames it into place. An interrupted or failed run leaves [`crate::volume::DataState::Unfinished`],
/// which must be discarded first.
///
/// # Errors
/// Fails with [`PostgresError::Volume`] if there is a PGDATA or unfinished data. Fails with [`PostgresError::Process`]
/// if a tool fails, with [`PostgresError::Start`] if the server does not start, and with [`PostgresError::Statement`],
/// which holds PostgreSQL's message, if a statement fails.
pub async fn initdb(
    tools: &Tools,
    volume: &Volume,
    system_user: &str,
    request: &InitdbRequest,
) -> Result<(), PostgresError> {
    let file_systems = volume.blocking(Volume::file_systems).await?;
    volume.blocking(|volume| volume.begin_staging("initdb")).await?;
    run_initdb(tools, volume, request).await?;
    let mut server = PrivateServer::start(tools, volume, system_user, Launch::default()).await?;
    let made = fill(&mut server, request).await;
    let stopped = server.stop(made.is_ok(), SERVER_TIMEOUT).await;
    made?;
    stopped?;
    // Nothing has been synchronized to disk so far; now everything is.
    sync(tools, volume, file_systems, INITDB_TIMEOUT).await?;
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
        .arg(format!("--wal-segsize={}", request.wal_segment_size));
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

/// Makes the owner, the database and the members' role, and runs the user's statements.
async fn fill(server: &mut PrivateServer, request: &InitdbRequest) -> Result<(), PostgresError> {
    let client = server.connect_first().await?;
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
    let mut config = server.config();
    config.dbname(&request.database);
    let client = connect(&config)
        .await
        .map_err(statement("connect to the new database"))?;
    for (index, text) in request.post_init_sql.iter().enumerate() {
        let action = format!("run statement {} of postInitApplicationSQL", index + 1);
        client.batch_execute(text).await.map_err(statement(&action))?;
    }
    Ok(())
}
