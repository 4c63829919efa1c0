//! Logs: one JSON object a line on standard output, PostgreSQL's lines included.

mod forward;
mod record;
mod redact;

pub use forward::forward_postgres;
pub use record::LINE_PREFIX;

use tracing_subscriber::EnvFilter;

/// Names what is logged, such as `info,agent=debug`.
pub const VARIABLE: &str = "CDB_LOG";

/// Sets up logging for the whole process: JSON on standard output; what is logged is chosen by [`VARIABLE`], `info` if it
/// is not set.
pub fn init() {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    // A second call (tests) changes nothing.
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter)
        .try_init();
}
