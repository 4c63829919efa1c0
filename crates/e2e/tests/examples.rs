//! End-to-end: every example becomes what it says, under Pod Security `restricted`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::declared::DeclaredPhase;
use e2e::{Namespace, connect_for_test, manifest};
use kube::ResourceExt;

/// All examples together have some twenty instances to make, on a machine that may have two cores.
const BOUND: Duration = Duration::from_secs(420);

#[tokio::test]
async fn every_example_becomes_ready() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "e2e-examples").await?;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let (mut databases, mut users, mut sql_databases) = (Vec::new(), Vec::new(), Vec::new());
    for entry in std::fs::read_dir(&directory).context("list the examples")? {
        let path = entry?.path();
        let yaml = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let objects = manifest::parse(&yaml)?;
        manifest::apply(&namespace.client, &namespace.name, &objects).await?;
        for object in &objects {
            match object.types.as_ref().map(|types| types.kind.as_str()) {
                Some("ClusteredDatabase") => databases.push(object.name_any()),
                Some("DatabaseUser") => users.push(object.name_any()),
                Some("Database") => sql_databases.push(object.name_any()),
                _ => {}
            }
        }
    }
    if databases.is_empty() {
        bail!("there are no examples in {}", directory.display());
    }
    let here = &namespace;
    let waits = databases.iter().map(|name| async move {
        let (_, took) = here.wait_ready(name, BOUND).await?;
        println!("{name}: Ready after {:.1} s", took.as_secs_f64());
        anyhow::Ok(())
    });
    futures::future::try_join_all(waits).await?;
    for name in &users {
        namespace.wait_user(name, DeclaredPhase::Ready, BOUND).await?;
    }
    for name in &sql_databases {
        namespace.wait_database(name, DeclaredPhase::Ready, BOUND).await?;
    }
    namespace.begin_removal().await
}
