//! What the process asks PostgreSQL.

use std::time::Duration;

use anyhow::Context;
use tokio_postgres::{Client, NoTls};

use super::Order;

/// A local server that takes longer hangs.
const CONNECT: Duration = Duration::from_secs(10);
/// No user's functions take the place of PostgreSQL's. The sizes of many files take a while.
const OPTIONS: &str = "-c search_path=pg_catalog -c statement_timeout=60s -c default_transaction_read_only=off";

/// What is known of the server.
pub(super) struct Server {
    /// Its `server_version_num`.
    pub(super) version: u32,
    /// About how many bytes it has; 0 if that is not known.
    pub(super) bytes: u64,
    /// Bytes of a WAL segment.
    pub(super) wal_segment_size: u64,
}

/// Asks the server.
pub(super) async fn ask(order: &Order) -> anyhow::Result<Server> {
    let client = connect(order, OPTIONS).await?;
    let version = client
        .query_typed_one("SELECT current_setting('server_version_num')::int4", &[])
        .await
        .context("ask PostgreSQL for its version")?;
    let segment = "SELECT setting::int8 FROM pg_settings WHERE name = 'wal_segment_size'";
    let segment = client.query_typed_one(segment, &[]).await;
    let segment = segment.context("ask PostgreSQL for the size of its WAL segments")?;
    let bytes = size(&client).await.unwrap_or_else(|error| {
        eprintln!("measure the databases: {error}");
        0
    });
    Ok(Server {
        version: version.try_get::<_, i32>(0)?.unsigned_abs(),
        bytes,
        wal_segment_size: segment.try_get::<_, i64>(0)?.unsigned_abs(),
    })
}

/// A session, which ends with the client.
pub(super) async fn connect(order: &Order, options: &str) -> anyhow::Result<Client> {
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(&order.socket_directory)
        .port(order.port)
        .user("postgres")
        .dbname("postgres")
        .application_name("cdb_base_backup")
        .options(options)
        .connect_timeout(CONNECT);
    let (client, connection) = config.connect(NoTls).await.context("connect to PostgreSQL")?;
    tokio::spawn(connection);
    Ok(client)
}

async fn size(client: &Client) -> Result<u64, tokio_postgres::Error> {
    let sum = "SELECT coalesce(sum(pg_database_size(oid)), 0)::int8 FROM pg_database";
    let row = client.query_typed_one(sum, &[]).await?;
    Ok(row.try_get::<_, i64>(0)?.unsigned_abs())
}
