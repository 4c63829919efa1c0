//! What `/metrics` shows.

/// The agent's metrics. Fields are set by the event loop.
#[derive(Debug)]
pub struct Metrics {}

impl Metrics {
    /// All zero.
    pub fn new() -> Self {
        todo!()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
