//! How long to rest after failures. Pure arithmetic: whoever has many objects adds his own jitter.

use std::time::Duration;

/// The first rest: long enough for a cache or a webhook to recover, short enough not to be noticed.
const FIRST: Duration = Duration::from_secs(1);
/// The longest rest: a fault that goes away is noticed within a minute.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest rest after a failure of the operator's own code: nothing but another release ends most of them.
const LONGEST_AFTER_INTERNAL_ERROR: Duration = Duration::from_secs(600);
/// The first rest after a conflict: observing again is all that it takes.
const FIRST_AFTER_CONFLICT: Duration = Duration::from_millis(100);

/// The rest after `attempts` failures in a row (counted from 1; 0 rests not at all): doubling, bounded.
pub fn delay(attempts: u32) -> Duration {
    doubling(FIRST, LONGEST, attempts)
}

/// The same after version conflicts.
pub fn delay_after_conflict(attempts: u32) -> Duration {
    doubling(FIRST_AFTER_CONFLICT, LONGEST, attempts)
}

/// The same after failures of the operator's own code.
pub fn delay_after_internal_error(attempts: u32) -> Duration {
    doubling(FIRST, LONGEST_AFTER_INTERNAL_ERROR, attempts)
}

/// The rest after `attempts` failures in a row: `first`, then twice as long each time, and at most `longest`.
pub fn doubling(first: Duration, longest: Duration, attempts: u32) -> Duration {
    match attempts.checked_sub(1) {
        None => Duration::ZERO,
        // 2^10 times either first rest is past the longest.
        Some(doublings) => first.saturating_mul(1 << doublings.min(10)).min(longest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_up_to_a_minute() {
        let seconds: Vec<u64> = (0..9).map(|attempts| delay(attempts).as_secs()).collect();
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(delay(u32::MAX), LONGEST);
        assert_eq!(delay_after_conflict(2), Duration::from_millis(200));
        assert_eq!(delay_after_conflict(u32::MAX), LONGEST);
    }
}
