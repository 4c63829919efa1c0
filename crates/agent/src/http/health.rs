//! What the probes answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use machine::timing::BootTime;

/// Written by the event loop, read by the probes.
#[derive(Debug)]
pub struct Health {
    beat: AtomicU64,
    started: AtomicBool,
    /// `None`: ready.
    unready: Mutex<Option<String>>,
}

/// The event loop comes round every second at least; ten times that without a sign is a hang.
const SILENCE: u64 = 10_000;

impl Health {
    /// Not started, not ready, alive as of `now`.
    pub fn new(now: BootTime) -> Self {
        let reason = "the agent has only just started".to_owned();
        Self {
            beat: AtomicU64::new(now.0),
            started: AtomicBool::new(false),
            unready: Mutex::new(Some(reason)),
        }
    }

    /// The event loop came round.
    pub fn beat(&self, now: BootTime) {
        self.beat.store(now.0, Ordering::Relaxed);
    }

    /// The first decision has been carried out (`/startupz`).
    pub fn set_started(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    /// It serves in its role, or the reason why not (`/readyz`).
    pub fn set_ready(&self, ready: Result<(), String>) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = ready.err();
    }

    pub(super) fn startup(&self) -> Result<(), String> {
        match self.started.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("nothing has been decided yet".to_owned()),
        }
    }

    pub(super) fn live(&self, now: BootTime) -> Result<(), String> {
        match now.since(BootTime(self.beat.load(Ordering::Relaxed))) {
            silence if silence < SILENCE => Ok(()),
            silence => Err(format!("the event loop has not come round for {silence} ms")),
        }
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
    fn a_silent_loop_is_not_alive() {
        let health = Health::new(BootTime(1_000));
        assert!(health.live(BootTime(10_999)).is_ok());
        assert!(health.live(BootTime(11_000)).is_err());
        health.beat(BootTime(11_000));
        assert!(health.live(BootTime(11_001)).is_ok());
    }

    #[test]
    fn reasons_are_told() {
        let health = Health::new(BootTime(0));
        assert!(health.startup().is_err() && health.ready().is_err());
        health.set_started();
        health.set_ready(Ok(()));
        assert!(health.startup().is_ok() && health.ready().is_ok());
        health.set_ready(Err("cloning".to_owned()));
        assert_eq!(health.ready(), Err("cloning".to_owned()));
    }
}
