//! End-to-end: drivers of several languages connect with what the application's Secret says. Needs Python, Go, Java with Maven,
//! and Node, and installs the drivers: with `--long` only.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, connect_for_test};
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde::Deserialize;
use serde_json::json;

const BOUND: Duration = Duration::from_secs(180);

/// One attempt, as `drivers/run` prints it.
#[derive(Debug, Deserialize)]
struct Attempt {
    driver: String,
    uri: String,
    ok: bool,
    encrypted: bool,
    error: String,
}

/// What the documentation says ("Drivers" in docs/operation.md): driver, kind of URI, whether it connects.
const EXPECTED: [(&str, &str, bool); 10] = [
    ("psycopg", "plain", true),
    ("psycopg", "verify-full", true),
    ("pgx", "plain", true),
    ("pgx", "verify-full", true),
    ("pgjdbc", "plain", true),
    ("pgjdbc", "verify-full", true),
    ("pg", "plain", false),
    ("pg", "verify-full", true),
    ("postgres.js", "plain", false),
    ("postgres.js", "verify-full", false),
];

#[tokio::test]
async fn drivers_connect_as_the_documentation_says() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-clients").await?;
    namespace
        .create("db", json!({"replicas": 1, "storage": {"data": {"size": "1Gi"}}}))
        .await?;
    namespace.wait_ready("db", BOUND).await?;
    let pod = namespace.api::<Pod>().get("db-0").await?;
    let address = pod
        .status
        .and_then(|status| status.pod_ip)
        .context("the pod has an address")?;
    let secret = namespace.api::<Secret>().get("db-app").await?;
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = scratch.join("db-app");
    std::fs::create_dir_all(&folder)?;
    for (key, value) in secret.data.unwrap_or_default() {
        std::fs::write(folder.join(key), value.0)?;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers/run");
    let host = format!("db-rw.{}.svc={address}", namespace.name);
    let output = Command::new(program)
        .args([folder.as_path(), &scratch.join("drivers")])
        .args(["--host", &host])
        .output()
        .context("start drivers/run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut found = Vec::new();
    for line in said.lines() {
        let attempt: Attempt = serde_json::from_str(line).with_context(|| line.to_owned())?;
        println!("{attempt:?}");
        ensure!(attempt.ok == attempt.encrypted, "in the clear: {attempt:?}");
        ensure!(attempt.ok == attempt.error.is_empty(), "{attempt:?}");
        found.push((attempt.driver, attempt.uri, attempt.ok));
    }
    let expected = EXPECTED.map(|(driver, uri, ok)| (driver.to_owned(), uri.to_owned(), ok));
    ensure!(found == expected, "{found:?}");
    namespace.begin_removal().await
}
