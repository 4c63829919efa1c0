//! The operator's sign of life: its workers let tasks run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Distance between two signs of the workers.
const EVERY: Duration = Duration::from_secs(1);
/// So many milliseconds without a sign are a hang.
const SILENCE: u64 = 10_000;

/// When the workers came round last; clones share it.
#[derive(Clone, Debug)]
pub struct Beat {
    started: Instant,
    /// Milliseconds after the start.
    last: Arc<AtomicU64>,
}

impl Default for Beat {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            last: Arc::default(),
        }
    }
}

impl Beat {
    /// Tells for ever that the runtime on which it runs lets its tasks run.
    pub async fn keep(self) {
        loop {
            self.last.store(self.now(), Ordering::Relaxed);
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Whether the workers came round within the last ten seconds.
    ///
    /// # Errors
    /// When they did not; the text is for people.
    pub fn check(&self) -> Result<(), String> {
        self.check_at(self.now())
    }

    fn check_at(&self, now: u64) -> Result<(), String> {
        match now.saturating_sub(self.last.load(Ordering::Relaxed)) {
            silence if silence < SILENCE => Ok(()),
            silence => Err(format!("the operator's tasks did not run for {silence} ms")),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workers_that_do_not_come_round_are_told() {
        let beat = Beat::default();
        assert_eq!(beat.check_at(9_999), Ok(()));
        assert!(beat.check_at(10_000).is_err());
        std::thread::sleep(Duration::from_millis(2));
        let kept = tokio::spawn(beat.clone().keep());
        while beat.last.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(beat.check_at(10_000), Ok(()));
        kept.abort();
    }
}
