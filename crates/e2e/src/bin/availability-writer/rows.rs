//! What the tables hold of this run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::availability::record::{PROBES_TABLE, ROWS_TABLE, Rows, Stream};

use crate::session::Session;
use crate::settings::Settings;
use crate::tls::Tls;

/// How long the database may take to answer; it was up a moment ago.
const BOUND: Duration = Duration::from_secs(20);
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

async fn try_read(settings: &Settings, tls: &Tls) -> Result<String> {
    let session = Session::connect(settings.service, &settings.login, tls).await?;
    let mut text = String::new();
    for table in [ROWS_TABLE, PROBES_TABLE] {
        // Rows that follow each other have the same difference between number and place.
        let statement = format!(
            "SELECT stream, min(seq), max(seq) FROM (SELECT stream, seq, seq - row_number() OVER \
             (PARTITION BY stream ORDER BY seq) AS island FROM {table} WHERE run = '{}') AS rows \
             GROUP BY stream, island ORDER BY 1, 2",
            settings.run
        );
        for row in session.query(&statement).await? {
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
