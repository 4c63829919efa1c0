//! A circuit breaker for requests to a system outside: how long to pause after failures in a row.
//!
//! The first failures are taken for chance. Then the breaker opens: single attempts, far apart, try whether the system is back, and one
//! success closes it. Pure arithmetic; the number of failures is kept where it outlives the operator.

use std::time::Duration;

use crate::backoff::doubling;

/// So many failures in a row open the breaker.
pub const OPENS_AT: u32 = 5;
/// The pause after the first failure.
const FIRST: Duration = Duration::from_secs(2);
/// The first pause of an open breaker.
const FIRST_WHEN_OPEN: Duration = Duration::from_secs(30);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);

/// Whether the breaker is open after so many failures in a row.
pub const fn is_open(failures: u32) -> bool {
    failures >= OPENS_AT
}

/// The pause after the last of so many failures in a row; none without a failure.
pub fn pause(failures: u32) -> Duration {
    match failures.checked_sub(OPENS_AT) {
        None => doubling(FIRST, LONGEST, failures),
        Some(more) => doubling(FIRST_WHEN_OPEN, LONGEST, more + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_long_once_it_is_open() {
        let seconds: Vec<u64> = (0..12).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [0, 2, 4, 8, 16, 30, 60, 120, 240, 300, 300, 300]);
        assert_eq!(pause(u32::MAX), LONGEST);
        assert_eq!((0..7).map(is_open).filter(|open| !open).count(), 5);
    }
}
