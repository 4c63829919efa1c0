//! What is checked in a recovered database before anybody can connect to it.

use api::spec::RecoveryChecks;
use tokio_postgres::Client;

use super::{NO_LIMIT, RecoveryError, RecoveryRequest};
use crate::postgres::private::{PrivateServer, statement};
use crate::postgres::sql::{connect, describe_refusal};
use crate::postgres::{Sql, sql_failed};
use crate::process::ProcessError;
use crate::tools::Tools;

const DATABASES: &str = "SELECT datname::text FROM pg_database WHERE datallowconn ORDER BY oid";
/// How many indexes of this database are sorted by a collation that the image has in another version. That of the database has the OID 100.
const OUTDATED: &str = "WITH outdated AS (
        SELECT oid FROM pg_collation WHERE collversion <> pg_collation_actual_version(oid)
        UNION ALL SELECT 100 FROM pg_database
            WHERE datname = current_database() AND datcollversion <> pg_database_collation_actual_version(oid))
    SELECT count(*) FROM pg_index WHERE EXISTS (SELECT FROM unnest(indcollation) used JOIN outdated ON used = outdated.oid)";

/// Makes all checks of the request on a server that accepts writes.
pub(super) async fn check(
    tools: &Tools,
    server: &PrivateServer,
    sql: &Sql,
    request: &RecoveryRequest,
) -> Result<(), RecoveryError> {
    let outdated = outdated(sql).await?;
    let Some(checks) = &request.checks else {
        if let Some(words) = outdated {
            tracing::warn!("{words}");
        }
        return Ok(());
    };
    if let Some(words) = outdated {
        return Err(RecoveryError::Unsound(words));
    }
    if checks.amcheck {
        amcheck(tools, server).await?;
    }
    run_queries(server, &request.database, checks).await
}

/// What to say of indexes that PostgreSQL may not be able to search on this image; `None` if there are none.
async fn outdated(sql: &Sql) -> Result<Option<String>, RecoveryError> {
    let failed = || sql_failed("compare the versions of collations");
    let names = async |client: &Client| {
        let rows = client.query_typed(DATABASES, &[]).await?;
        rows.iter()
            .map(|row| row.try_get::<_, String>(0))
            .collect::<Result<Vec<_>, _>>()
    };
    let mut found = Vec::new();
    for name in sql.another().run(names).await.map_err(failed())? {
        let count = async |client: &Client| client.query_typed_one(OUTDATED, &[]).await?.try_get::<_, i64>(0);
        let count = sql.in_database(&name).run(count).await.map_err(failed())?;
        if count > 0 {
            found.push(format!("{count} in database {name:?}"));
        }
    }
    let words = format!(
        "indexes were made with another version of a collation than the image has, and may be wrong there: {}; recover with the image that \
         the backup was taken with, or without bootstrap.recovery.checks, and then run REINDEX and ALTER DATABASE (or ALTER COLLATION) … \
         REFRESH [COLLATION] VERSION",
        found.join(", ")
    );
    Ok((!found.is_empty()).then_some(words))
}

/// Has PostgreSQL's own tool look through all tables and B-tree indexes.
async fn amcheck(tools: &Tools, server: &PrivateServer) -> Result<(), RecoveryError> {
    const TOOL: &str = "pg_amcheck";
    if !tools.path(TOOL).is_file() {
        let words = format!("there is no {TOOL} in this image: use one that has it, or set checks.amcheck to false");
        return Err(RecoveryError::Unsound(words));
    }
    let mut command = tools.command(TOOL);
    command.args(["--all", "--install-missing"]).args(server.arguments());
    match tools.supervisor().run(command, NO_LIMIT).await {
        Err(ProcessError::Failed { message, .. }) => {
            Err(RecoveryError::Unsound(format!("{TOOL} finds damage: {message}")))
        }
        ended => Ok(ended.map(|_| ())?),
    }
}

async fn run_queries(server: &PrivateServer, database: &str, checks: &RecoveryChecks) -> Result<(), RecoveryError> {
    if checks.queries.is_empty() {
        return Ok(());
    }
    let mut config = server.config();
    config
        .dbname(database)
        .options("-c statement_timeout=0 -c default_transaction_read_only=on");
    let client = connect(&config).await.map_err(statement("connect to the database"))?;
    for (index, query) in checks.queries.iter().enumerate() {
        let unsound = |what: String| RecoveryError::Unsound(format!("query {} of checks.queries {what}", index + 1));
        let rows = client
            .query(query, &[])
            .await
            .map_err(|error| unsound(format!("fails: {}", describe_refusal(&error))))?;
        let answer = match rows.as_slice() {
            [row] if row.len() == 1 => row.try_get::<_, Option<bool>>(0).ok(),
            _ => None,
        };
        match answer {
            Some(Some(true)) => {}
            Some(answer) => return Err(unsound(format!("returns {}", answer.map_or("null", |_| "false")))),
            None => {
                return Err(unsound(
                    "has to return one row with one value of type boolean".to_owned(),
                ));
            }
        }
    }
    Ok(())
}
