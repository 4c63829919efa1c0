//! What a figure is measured by.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long this thread has computed; the machine may do other things as well. Where that is not told, how long it has been there.
#[must_use]
pub fn computed() -> Duration {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let there = BEGUN.get_or_init(Instant::now).elapsed();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = told.split_whitespace().next().and_then(|first| first.parse().ok());
    nanoseconds.map_or(there, Duration::from_nanos)
}

/// How many of something are done in a second of computing, which began when so much was [`computed`].
#[must_use]
pub fn per_second(count: usize, begun: Duration) -> f64 {
    count as f64 / (computed() - begun).as_secs_f64()
}
