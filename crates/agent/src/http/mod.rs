//! Readiness and metrics over plain HTTP, and the sign of life for a Unix socket.

mod health;
mod metrics;
mod server;

pub use health::Health;
pub use metrics::Metrics;
pub use server::serve;
