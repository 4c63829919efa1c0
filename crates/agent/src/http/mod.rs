//! Probes and metrics, over plain HTTP.

mod health;
mod metrics;
mod server;

pub use health::Health;
pub use metrics::Metrics;
pub use server::serve;
