//! Writes all the time while something happens; none of it may be lost.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::time::sleep;

use crate::SqlClient;
use crate::wait::{Seen, until};

/// Longest time without a write before it is given up.
const BOUND: Duration = Duration::from_secs(180);

/// Pause before a write: each one starts a program in a container, and without a pause that keeps a core busy.
const PAUSE: Duration = Duration::from_millis(200);

/// Writes numbered rows into the table `t (v int)` until `during` is done; returns its result, and the longest time
/// between two successful writes.
///
/// # Errors
/// When `during` fails, no write succeeds for three minutes, or a row whose write succeeded is not there afterwards.
pub async fn writing<T>(sql: &SqlClient, during: impl Future<Output = Result<T>>) -> Result<(T, Duration)> {
    tokio::pin!(during);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    // Rows of an earlier call are not counted again.
    let base = number(sql, "SELECT coalesce(max(v), 0) FROM t").await?;
    let (mut row, mut failed) = (base, Vec::new());
    let mut done = None;
    let found = loop {
        row += 1;
        let insert = format!("INSERT INTO t VALUES ({row})");
        let write = async {
            sleep(PAUSE).await;
            sql.try_sql(&insert).await
        };
        tokio::pin!(write);
        let written = loop {
            tokio::select! {
                found = &mut during, if done.is_none() => done = Some(found?),
                written = &mut write => break written,
            }
        };
        let gap = last.elapsed();
        longest = longest.max(gap);
        match written {
            // One more write after the end, so that a gap at the end is measured too.
            Ok(_) => match done.take() {
                Some(found) => break found,
                None => last = Instant::now(),
            },
            Err(error) if gap > BOUND => bail!("no write for {} s: {error:#}", gap.as_secs()),
            // It may exist or not.
            Err(_) => failed.push(row.to_string()),
        }
    };
    let acknowledged = row - base - u32::try_from(failed.len())?;
    let failed = failed.join(",");
    let those = format!("v BETWEEN {base} + 1 AND {row} AND v <> ALL ('{{{failed}}}')");
    let there = number(sql, &format!("SELECT count(DISTINCT v) FROM t WHERE {those}")).await?;
    println!("{acknowledged} writes succeeded, {there} of their rows are there; these failed: [{failed}]");
    ensure!(
        there == acknowledged,
        "rows were lost: {there} of {acknowledged} are there"
    );
    Ok((found, longest))
}

/// The result of a query, even if the primary moves meanwhile.
async fn number(sql: &SqlClient, query: &str) -> Result<u32> {
    let (found, _) = until(query, BOUND, || async { sql.try_sql(query).await.map(Seen::Yes) }).await?;
    found.parse().with_context(|| format!("{query}: {found:?}"))
}
