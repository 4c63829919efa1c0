//! The answers of the probes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use machine::timing::BootTime;
use machine::units::Millis;

use crate::deadman::boot_time;

/// The agent's health. The event loop writes it, the probes read it.
#[derive(Debug)]
pub struct Health {
    beat: AtomicU64,
    workers_beat: AtomicU64,
    started: AtomicBool,
    /// `None`: ready.
    unready: Mutex<Option<String>>,
}

/// The event loop and the workers give a sign every second at least. Ten times that without a sign counts as a hang.
const SILENCE: Millis = Millis::seconds(10);
/// The pause between two signs of the workers.
const WORKERS_BEAT: Duration = Duration::from_secs(1);

impl Health {
    /// Not started, not ready, alive as of `now`.
    pub fn new(now: BootTime) -> Self {
        let reason = "the agent has only just started".to_owned();
        Self {
            beat: AtomicU64::new(now.0),
            workers_beat: AtomicU64::new(now.0),
            started: AtomicBool::new(false),
            unready: Mutex::new(Some(reason)),
        }
    }

    /// The event loop gives its sign.
    pub fn beat(&self, now: BootTime) {
        self.beat.store(now.0, Ordering::Relaxed);
    }

    /// Gives the workers' sign for ever, as long as the runtime on which it runs lets its tasks run.
    pub async fn beat_for_workers(self: Arc<Self>) {
        loop {
            self.workers_beat.store(boot_time().0, Ordering::Relaxed);
            tokio::time::sleep(WORKERS_BEAT).await;
        }
    }

    /// The first decision has been carried out.
    pub fn set_started(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    /// Sets whether the instance serves in its role, or the reason why not (`/readyz`).
    pub fn set_ready(&self, ready: Result<(), String>) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = ready.err();
    }

    /// Start-up and liveness: the first decision has been carried out, and the event loop and the workers have given
    /// their signs since.
    ///
    /// # Errors
    /// The text says which of these is missing.
    pub fn alive(&self, now: BootTime) -> Result<(), String> {
        if !self.started.load(Ordering::Relaxed) {
            return Err("nothing has been decided yet".to_owned());
        }
        for (who, beat) in [("the event loop", &self.beat), ("the workers", &self.workers_beat)] {
            let silence = now.since(BootTime(beat.load(Ordering::Relaxed)));
            if silence >= SILENCE {
                return Err(format!("{who} gave no sign for {silence}"));
            }
        }
        Ok(())
    }

    pub(super) fn ready(&self) -> Result<(), String> {
        self.unready
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_alive_once_it_has_decided_and_while_loop_and_workers_give_signs() {
        let health = Health::new(BootTime(1_000));
        let why = |now| health.alive(BootTime(now)).expect_err("not alive");
        assert!(why(1_000).contains("nothing has been decided"));
        health.set_started();
        assert_eq!(health.alive(BootTime(10_999)), Ok(()));
        assert!(why(11_000).contains("the event loop"));
        health.beat(BootTime(11_000));
        assert!(why(11_000).contains("the workers"));
        health.workers_beat.store(11_000, Ordering::Relaxed);
        assert_eq!(health.alive(BootTime(11_001)), Ok(()));
    }

    #[tokio::test]
    async fn workers_tell_that_they_run() {
        let health = Arc::new(Health::new(BootTime(0)));
        let beating = tokio::spawn(Arc::clone(&health).beat_for_workers());
        while health.workers_beat.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        beating.abort();
    }

    #[test]
    fn reasons_are_told() {
        let health = Health::new(BootTime(0));
        assert!(health.ready().is_err());
        health.set_ready(Ok(()));
        assert_eq!(health.ready(), Ok(()));
        health.set_ready(Err("cloning".to_owned()));
        assert_eq!(health.ready(), Err("cloning".to_owned()));
    }
}
