//! What the probes answer.

use machine::timing::BootTime;

/// Written by the event loop, read by the probes.
#[derive(Debug)]
pub struct Health {}

impl Health {
    /// Not started, not ready, alive as of `now`.
    pub fn new(_now: BootTime) -> Self {
        todo!()
    }
    /// The event loop came round.
    pub fn beat(&self, _now: BootTime) {
        todo!()
    }
    /// The first decision has been carried out (`/startupz`).
    pub fn set_started(&self) {
        todo!()
    }
    /// It serves in its role, or the reason why not (`/readyz`).
    pub fn set_ready(&self, _ready: Result<(), String>) {
        todo!()
    }
}
