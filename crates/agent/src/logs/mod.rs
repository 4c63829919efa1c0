//! Logging: one JSON object a line on standard output, PostgreSQL's lines included.

mod forward;
mod output;
mod record;
mod redact;
mod repeats;

pub use forward::forward_postgres;
pub use record::LINE_PREFIX;

use std::sync::OnceLock;
use std::time::Duration;

use output::Output;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The environment variable that says what is logged, such as `info,agent=debug`.
pub const VARIABLE: &str = "CDB_LOG";

/// Sets up logging for the whole process: JSON on standard output. [`VARIABLE`] says what is logged; without it, level
/// `info` is. Logging never waits: if nobody reads the log, lines are left out.
pub fn init() {
    let wanted = std::env::var(VARIABLE).ok();
    let format = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter(wanted.as_deref()));
    // A second call (tests) changes nothing.
    let _ = match Output::start(std::io::stdout()) {
        Ok(output) => {
            let output = OUTPUT.get_or_init(|| output);
            format.with_writer(|| output.clone()).try_init()
        }
        Err(_) => format.try_init(),
    };
}

/// Waits until the lines logged so far are written, for a second at most. Call it before the process ends.
pub fn flush() {
    if let Some(output) = OUTPUT.get() {
        output.flush(Duration::from_secs(1));
    }
}

static OUTPUT: OnceLock<Output> = OnceLock::new();

/// The filter of what is logged. `tokio_postgres` is never logged: at its finer levels it shows every statement,
/// including passwords' verifiers and the user's own statements.
fn filter(wanted: Option<&str>) -> EnvFilter {
    let base = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let kept = wanted
        .unwrap_or_default()
        .split(',')
        .filter(|directive| !directive.contains("tokio_postgres"));
    let kept: Vec<&str> = kept.collect();
    match "tokio_postgres=off".parse() {
        Ok(never) => base.parse_lossy(kept.join(",")).add_directive(never),
        Err(_) => EnvFilter::new("info"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::filter;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("unpoisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(wanted: Option<&str>) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter(wanted))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "agent::run", "decided");
            tracing::debug!(target: "agent::run", "looked");
            tracing::error!(target: "tokio_postgres::simple_query", "geheim");
        });
        let bytes = written.0.lock().expect("unpoisoned").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn statements_are_never_logged() {
        for wanted in [
            None,
            Some("trace"),
            Some("tokio_postgres=trace"),
            Some("debug,tokio_postgres::simple_query=trace"),
        ] {
            let text = logged(wanted);
            assert!(
                text.contains("decided") && !text.contains("geheim"),
                "{wanted:?}: {text}"
            );
        }
    }

    #[test]
    fn info_is_logged_unless_something_else_is_wanted() {
        assert!(!logged(None).contains("looked"));
        assert!(!logged(Some("nonsense=")).contains("looked"));
        assert!(logged(Some("info,agent=debug")).contains("looked"));
    }
}
