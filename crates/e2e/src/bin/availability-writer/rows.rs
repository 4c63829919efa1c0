//! The content of the tables of this run.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use e2e::availability::record::{PROBES_TABLE, ROWS_TABLE, Rows, Stream};
use e2e::soak::record::{Key, LISTS_TABLE, Value};

use crate::session::Session;
use crate::settings::Settings;
use crate::tls::Tls;

/// How long the database may take to answer; it was up a moment ago.
const BOUND: Duration = Duration::from_secs(20);
/// The same, for the server.
const PATIENT: &str = "SET statement_timeout = '20s'";
/// Between two tries.
const RETRY: Duration = Duration::from_millis(500);

/// The rows of this run in both tables, as JSON lines of [`Rows`].
///
/// # Errors
/// When the database does not answer within 20 s.
pub async fn read(settings: &Settings) -> Result<String> {
    let tls = Tls::new().context("set up TLS")?;
    let start = Instant::now();
    loop {
        match try_read(settings, &tls).await {
            Ok(text) => return Ok(text),
            Err(error) if start.elapsed() > BOUND => return Err(error),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// The lists of this run, as a JSON line of key and numbers each; as the Service's server has them, or the one at `address`.
///
/// # Errors
/// When the server does not answer within 20 s.
pub async fn lists(settings: &Settings, address: Option<IpAddr>) -> Result<String> {
    let tls = Tls::new().context("set up TLS")?;
    let service = settings.service;
    let server = address.map_or(service, |address| SocketAddr::new(address, service.port()));
    let session = Session::connect_with(server, &settings.login, &tls, PATIENT).await?;
    let statement = format!(
        "SELECT key, array_to_json(items) FROM {LISTS_TABLE} WHERE run = '{}' ORDER BY key",
        settings.run
    );
    let rows = session.ask(&statement, BOUND).await;
    let rows = rows.map_err(|answer| anyhow!("read the lists: {}", answer.error.unwrap_or_default()))?;
    let mut text = String::new();
    for row in rows {
        let column = |n: usize| row.get(n).context("read a row");
        let key: Key = column(0)?.parse().context("read a key")?;
        let items: Vec<Value> = serde_json::from_str(column(1)?).context("read a list")?;
        text.push_str(&serde_json::to_string(&(key, items)).context("write a list")?);
        text.push('\n');
    }
    Ok(text)
}

async fn try_read(settings: &Settings, tls: &Tls) -> Result<String> {
    // An hour's rows are not read in the bound of a write.
    let session = Session::connect_with(settings.service, &settings.login, tls, PATIENT).await?;
    let mut text = String::new();
    for table in [ROWS_TABLE, PROBES_TABLE] {
        // Consecutive rows have the same difference between number and index.
        let statement = format!(
            "SELECT stream, min(seq), max(seq) FROM (SELECT stream, seq, seq - row_number() OVER \
             (PARTITION BY stream ORDER BY seq) AS island FROM {table} WHERE run = '{}') AS rows \
             GROUP BY stream, island ORDER BY 1, 2",
            settings.run
        );
        let rows = session.ask(&statement, BOUND).await;
        for row in rows.map_err(|answer| anyhow!("read the rows: {}", answer.error.unwrap_or_default()))? {
            let column = |n: usize| row.get(n).context("read a row");
            let rows = Rows {
                stream: column(0)?.parse::<Stream>()?,
                from: column(1)?.parse().context("read a number")?,
                to: column(2)?.parse().context("read a number")?,
            };
            text.push_str(&serde_json::to_string(&rows).context("write rows")?);
            text.push('\n');
        }
    }
    Ok(text)
}
