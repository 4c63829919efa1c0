//! End-to-end: a primary whose disk hangs or is full is replaced, and nothing that was acknowledged is lost.

use std::time::Duration;

use anyhow::Result;
use e2e::availability::case::{Case, run_all};
use e2e::{Namespace, connect_for_test};
use serde_json::json;

/// Bound of a creation.
const BOUND: Duration = Duration::from_secs(180);
const NAME: &str = "db";

/// A small flushed write is overdue after 4 s; a PostgreSQL that ends again and again gives way after 4 s without a write.
const CASES: [Case; 2] = [Case::new("disk-hang", 20.0, true), Case::new("disk-full", 40.0, true)];

#[tokio::test]
async fn a_primary_with_a_broken_disk_is_replaced_and_comes_back() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "disks").await?;
    let spec = json!({"replicas": 3, "storage": {"size": "1Gi", "storageClassName": "loop"}});
    namespace.create(NAME, spec).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    run_all(&namespace, NAME, &CASES).await?;
    namespace.remove().await
}
