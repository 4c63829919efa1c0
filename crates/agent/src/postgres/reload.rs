//! Taking up changed settings while the server runs.

use std::time::{Duration, Instant};

use super::server::{check, file};
use super::{Config, PostgresError, Server, Sql, SqlError, Tools};
use crate::volume::Volume;

/// What became of changed settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are in force, but for those named, which wait for a restart.
    Applied {
        /// Settings that wait for a restart.
        pending_restart: Vec<String>,
    },
    /// PostgreSQL refuses them (its words); the files and settings of before are in force.
    Refused {
        /// PostgreSQL's words.
        error: String,
    },
}

/// How long a server that answers may take to read its files again.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is asked whether it has.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Writes the configuration if PostgreSQL accepts it, has the server read it, and waits until it has. What PostgreSQL
/// refuses is never written: a restart would fail over it.
pub async fn reload(
    tools: &Tools,
    volume: &Volume,
    server: &Server,
    sql: &mut Sql,
    config: &Config,
) -> Result<Reload, PostgresError> {
    if let Some(error) = check(tools, volume, config).await? {
        return Ok(Reload::Refused { error });
    }
    let before = loaded_at(sql).await?;
    config
        .write(&volume.pgdata())
        .map_err(file("write the configuration"))?;
    // Even if nothing differs: the server may not have read what an interrupted reload wrote.
    server.reload()?;
    let begun = Instant::now();
    while loaded_at(sql).await? == before {
        if begun.elapsed() > RELOAD_TIMEOUT {
            let message = format!("it has not done so within {} s", RELOAD_TIMEOUT.as_secs());
            return Err(PostgresError::Statement {
                action: "have PostgreSQL read its settings".to_owned(),
                message,
            });
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
    let pending_restart = sql.status().await.map_err(asked)?.pending_restart;
    Ok(Reload::Applied { pending_restart })
}

/// When the agent's session read the settings. The postmaster reads them before it tells its children to.
async fn loaded_at(sql: &mut Sql) -> Result<String, PostgresError> {
    const QUERY: &str = "SELECT pg_conf_load_time()::text";
    let row = sql
        .run(async |client| client.query_typed_one(QUERY, &[]).await)
        .await
        .map_err(asked)?;
    row.try_get(0)
        .map_err(|error| asked(SqlError::Broken(error.to_string())))
}

fn asked(error: SqlError) -> PostgresError {
    PostgresError::Statement {
        action: "ask PostgreSQL for its settings".to_owned(),
        message: error.to_string(),
    }
}
