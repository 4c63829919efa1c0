//! Readiness and metrics over plain HTTP; the sign of life that no network reaches.

mod health;
mod metrics;
mod server;

pub use health::Health;
pub use metrics::Metrics;
pub use server::serve;
