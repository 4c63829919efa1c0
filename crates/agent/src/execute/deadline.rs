//! The fence deadline, shared with tasks that outlive the decision that began them.

use std::sync::atomic::{AtomicU64, Ordering};

use machine::timing::BootTime;

use crate::deadman::boot_time;

/// The time until which something may be started for writing: the fence deadline of the lease. Each renewal moves it
/// on; without the lease there is none.
#[derive(Debug, Default)]
pub struct Deadline(AtomicU64);

impl Deadline {
    /// Sets the deadline; `None`: the lease is not held.
    pub fn set(&self, until: Option<BootTime>) {
        self.0.store(until.map_or(0, |until| until.0), Ordering::SeqCst);
    }

    /// True if there is a deadline and it has not passed.
    pub fn is_ahead(&self) -> bool {
        boot_time() < BootTime(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use machine::units::Millis;

    use super::*;

    #[test]
    fn it_moves_on_and_ends_with_the_lease() {
        let deadline = Deadline::default();
        assert!(!deadline.is_ahead());
        deadline.set(Some(boot_time().plus(Millis::minutes(1))));
        assert!(deadline.is_ahead());
        deadline.set(Some(BootTime(1)));
        assert!(!deadline.is_ahead());
        deadline.set(Some(boot_time().plus(Millis::minutes(1))));
        deadline.set(None);
        assert!(!deadline.is_ahead());
    }
}
