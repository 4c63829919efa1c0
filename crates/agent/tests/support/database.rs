//! Helpers of the tests of whole agents: what they expect of their database.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::unprivileged;

/// The spec of a user.
pub fn spec() -> Value {
    let (major, _) = unprivileged::binaries();
    json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}, "postgres": {"majorVersion": major, "parameters": {"shared_buffers": "16MB"}}})
}

/// Waits until the primary serves, two members stream, and commits wait for one of them; returns the primary.
pub async fn healthy(cluster: &Cluster, what: &str, limit: u64) -> u32 {
    let look = async |cluster: &Cluster| {
        let serving = cluster.serving()?;
        let rule = cluster.annotation(api::names::LEASE_RULE);
        let names = rule["names"].as_array().map_or(0, Vec::len);
        if rule["required"] != 1 || names != 2 {
            return None;
        }
        let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'";
        let count = cluster.sql(serving, streaming).await.ok()?;
        (count == "2").then_some(serving)
    };
    cluster.until(what, limit, look).await.0
}

/// Waits until a primary other than `before` commits a row.
pub async fn writes(cluster: &Cluster, before: u32, number: u32) -> Option<u32> {
    let serving = cluster.serving().filter(|serving| *serving != before)?;
    commit_row(cluster, serving, number).await.ok().map(|_| serving)
}

/// Commits row `number`. May be repeated: a statement whose answer was lost may have been committed all the same, and a plain insert
/// would be refused for ever.
pub async fn commit_row(cluster: &Cluster, serving: u32, number: u32) -> Result<String, String> {
    let statement =
        format!("INSERT INTO entry VALUES ({number}) ON CONFLICT (number) DO UPDATE SET number = EXCLUDED.number");
    cluster.sql(serving, &statement).await
}

pub async fn rows(cluster: &Cluster, ordinal: u32) -> String {
    let all = "SELECT string_agg(number::text, ',' ORDER BY number) FROM entry";
    for _ in 0..100 {
        match cluster.sql(ordinal, all).await {
            Ok(rows) => return rows,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    String::new()
}

/// Waits until a primary other than `before` commits row `number`.
pub async fn replaced(cluster: &Cluster, before: u32, number: u32, limit: u64) -> (u32, Duration) {
    let look = async |cluster: &Cluster| writes(cluster, before, number).await;
    cluster.until("another primary writes", limit, look).await
}

/// Makes a healthy database with a table of one row. Returns its primary.
pub async fn with_a_row(cluster: &Cluster) -> u32 {
    let first = healthy(cluster, "three members, and commits wait for one", 90).await;
    let table = "CREATE TABLE entry (number int PRIMARY KEY)";
    cluster.sql(first, table).await.expect("a table");
    cluster
        .sql(first, "INSERT INTO entry VALUES (1)")
        .await
        .expect("a commit");
    first
}

/// Commits rows from `first` on, one after the other, for this time. Returns how many, and the longest time between
/// two.
pub async fn commits(cluster: &Cluster, serving: u32, first: u32, seconds: u64) -> (u32, Duration) {
    let (begun, mut last, mut longest, mut count) = (Instant::now(), Instant::now(), Duration::ZERO, 0);
    while begun.elapsed() < Duration::from_secs(seconds) {
        if commit_row(cluster, serving, first + count).await.is_ok() {
            count += 1;
            longest = longest.max(last.elapsed());
            last = Instant::now();
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    (count, longest.max(last.elapsed()))
}
