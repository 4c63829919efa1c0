//! Waiting for a condition, with a bound and with the last thing seen in the error.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// Interval of checks at first: short enough to measure tenths of seconds.
const INTERVAL: Duration = Duration::from_millis(100);
/// The next check follows after one part in this many of the elapsed time. Later checks are rarer, because each costs
/// the machine something. A measured time is at most this part too long.
const PART: u32 = 50;

/// The result of a check.
#[derive(Debug)]
pub enum Seen<T> {
    /// It holds.
    Yes(T),
    /// It does not hold yet; this is what was found instead.
    NotYet(String),
}

/// Checks repeatedly until the condition holds, and returns the result and how long that took.
///
/// # Errors
/// After `limit`, with the last result. An error of a check counts as "not yet".
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut look: F) -> Result<(T, Duration)>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Seen<T>>>,
{
    let start = Instant::now();
    loop {
        let last = match look().await {
            Ok(Seen::Yes(found)) => return Ok((found, start.elapsed())),
            Ok(Seen::NotYet(instead)) => instead,
            Err(error) => format!("{error:#}"),
        };
        if start.elapsed() > limit {
            bail!("{what}: not within {} s; last seen: {last}", limit.as_secs());
        }
        sleep(INTERVAL.max(start.elapsed() / PART)).await;
    }
}
