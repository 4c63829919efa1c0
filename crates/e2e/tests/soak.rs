//! End-to-end: random faults, for 20 minutes in `cargo xtask test --long`, for 90 seconds if one asks for it by name. `cargo xtask soak`
//! makes any number of them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::availability::case::subject;
use e2e::soak::run::{Plan, run, spec};
use e2e::{Namespace, WRITER_IMAGE_VARIABLE, connect_for_test, is_long};

/// Bound of a creation.
const BOUND: Duration = Duration::from_secs(180);
const NAME: &str = "db";
/// After this no further round of faults begins.
const TIME: Duration = Duration::from_secs(90);
const TIME_LONG: Duration = Duration::from_secs(1_200);
/// Selects another seed. Without it the faults are the same in each run, so the outcome depends only on the code;
/// `cargo xtask soak` draws others.
const SEED_VARIABLE: &str = "CDB_SOAK_SEED";
const SEED: u64 = 1;

#[tokio::test]
async fn random_faults_leave_a_valid_history() -> Result<()> {
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(seed) => seed.parse().with_context(|| format!("read {SEED_VARIABLE}"))?,
        Err(_) => SEED,
    };
    println!("soak: seed {seed}");
    let namespace = Namespace::fresh(connect_for_test().await?, "soak").await?;
    namespace.create(NAME, spec(Some("loop"))).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    let plan = Plan {
        seed,
        time: if is_long() { TIME_LONG } else { TIME },
        image: std::env::var(WRITER_IMAGE_VARIABLE).context("the image with the clients")?,
        loop_volumes: true,
    };
    let done = run(&subject(&namespace, NAME)?, &plan).await?;
    println!("{}", done.summary());
    ensure!(
        done.is_good(),
        "{SEED_VARIABLE}={seed} makes the same faults:\n{}",
        done.summary()
    );
    namespace.begin_removal().await
}
