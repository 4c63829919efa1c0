//! A circuit breaker for requests to a system outside: how long to pause after failures in a row.
//!
//! The first failures are taken for chance. Then the breaker opens: single attempts, far apart, try whether the system is back, and one
//! success closes it. Pure arithmetic; the number of failures is kept where it outlives the operator.

use chrono::TimeDelta;

/// So many failures in a row open the breaker.
pub const OPENS_AT: u32 = 5;
/// The pause after the first failure.
const FIRST: TimeDelta = TimeDelta::seconds(2);
/// The first pause of an open breaker.
const FIRST_WHEN_OPEN: TimeDelta = TimeDelta::seconds(30);
/// The longest pause.
const LONGEST: TimeDelta = TimeDelta::minutes(5);

/// Whether the breaker is open after so many failures in a row.
pub const fn is_open(failures: u32) -> bool {
    failures >= OPENS_AT
}

/// The pause after the last of so many failures in a row; none without a failure.
pub fn pause(failures: u32) -> TimeDelta {
    let (first, doublings) = match failures.checked_sub(OPENS_AT) {
        Some(more) => (FIRST_WHEN_OPEN, more),
        None if failures == 0 => return TimeDelta::zero(),
        None => (FIRST, failures - 1),
    };
    // 2^4 times either first pause and less than the longest, or beyond it.
    (first * (1 << doublings.min(4))).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_long_once_it_is_open() {
        let seconds: Vec<i64> = (0..12).map(|failures| pause(failures).num_seconds()).collect();
        assert_eq!(seconds, [0, 2, 4, 8, 16, 30, 60, 120, 240, 300, 300, 300]);
        assert_eq!(pause(u32::MAX), LONGEST);
        assert_eq!((0..7).map(is_open).filter(|open| !open).count(), 5);
    }
}
