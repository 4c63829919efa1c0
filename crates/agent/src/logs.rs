//! Logs: one JSON object a line on standard output, PostgreSQL's lines included.

/// Sets up logging for the whole process: JSON on standard output; what is logged is chosen by `CDB_LOG` (such as
/// `info,agent=debug`), `info` if it is not set.
pub fn init() {
    todo!()
}

/// `log_line_prefix` that [`forward_postgres`] understands.
pub const LINE_PREFIX: &str = "";

/// Logs what PostgreSQL writes to standard error until it closes it.
pub fn forward_postgres(_stderr: std::process::ChildStderr) {
    todo!()
}
