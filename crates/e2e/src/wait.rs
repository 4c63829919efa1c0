//! Waiting for a condition, with a bound and with the last thing seen in the error.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How soon a condition is looked at again: often enough to measure tenths of seconds.
const INTERVAL: Duration = Duration::from_millis(100);
/// Later it is looked at more rarely, since each look costs the machine something: after a part of the time that has gone by, so that
/// what is measured is at most this part too long.
const PART: u32 = 50;

/// What a look at a condition found.
#[derive(Debug)]
pub enum Seen<T> {
    /// It holds.
    Yes(T),
    /// Not yet; this is what is there instead.
    NotYet(String),
}

/// Looks again and again until the condition holds, and returns what it found and how long that took.
///
/// # Errors
/// After `limit`, with the last thing that was seen. An error of a look counts as "not yet".
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
