//! How much CPU time a figure took.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// CPU time of this thread, so that other work of the machine does not count. Where it is not available, the elapsed
/// time.
#[must_use]
pub fn computed() -> Duration {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let there = BEGUN.get_or_init(Instant::now).elapsed();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = told.split_whitespace().next().and_then(|first| first.parse().ok());
    nanoseconds.map_or(there, Duration::from_nanos)
}

/// How many of something were done per second of CPU time, since the start at [`computed`].
#[must_use]
pub fn per_second(count: usize, begun: Duration) -> f64 {
    count as f64 / (computed() - begun).as_secs_f64()
}
