//! The fence deadline, shared with tasks that outlive the decision that began them.

use std::sync::atomic::{AtomicU64, Ordering};

use machine::timing::BootTime;

use crate::deadman::boot_time;

/// Until when something may be started for writing: the fence deadline of the lease as it is held now. It moves on with
/// every renewal, and is gone with the lease.
#[derive(Debug, Default)]
pub struct Deadline(AtomicU64);

impl Deadline {
    /// Sets it; `None`: the lease is not held.
    pub fn set(&self, until: Option<BootTime>) {
        self.0.store(until.map_or(0, |until| until.0), Ordering::SeqCst);
    }

    /// It has not passed.
    pub fn is_ahead(&self) -> bool {
        boot_time() < BootTime(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_on_and_is_gone_with_the_lease() {
        let deadline = Deadline::default();
        assert!(!deadline.is_ahead());
        deadline.set(Some(boot_time().plus(60_000)));
        assert!(deadline.is_ahead());
        deadline.set(Some(BootTime(1)));
        assert!(!deadline.is_ahead());
        deadline.set(Some(boot_time().plus(60_000)));
        deadline.set(None);
        assert!(!deadline.is_ahead());
    }
}
