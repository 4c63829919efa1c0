//! PostgreSQL: its configuration, its processes, its tools, and what is asked of it in SQL.

mod clone;
mod config;
mod conninfo;
mod hba;
mod history;
mod initdb;
mod members;
mod password;
mod promote;
mod quote;
mod receive;
mod reload;
mod rewind;
mod server;
mod sql;
mod status;
mod sync;
mod tools;
mod torn;
mod values;

pub use clone::{CloneSource, clone};
pub use config::{Config, Files, Following, Primary, Role, Settings, SettingsError};
pub(crate) use history::forks;
pub use initdb::{InitdbRequest, initdb};
pub use members::Standby;
pub use password::{Verifier, VerifierError};
pub use promote::{Promoted, promote};
pub use receive::{promise, stop_receiving};
pub use reload::{Reload, reload};
pub use rewind::rewind;
pub use server::{Server, StartError, StopMode, processes_on};
pub use sql::{Sql, SqlError};
pub use status::{Receiver, Sender, Slot, Status};
pub use sync::{open, set_sync};
pub use tools::{Tools, ToolsError};

/// The role of which every member's replication role is a member; `pg_hba.conf` admits those, by certificate.
pub const MEMBERS_ROLE: &str = "cdb_members";

/// Why a database could not be made, cloned or configured.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// A tool failed.
    #[error(transparent)]
    Process(#[from] crate::process::ProcessError),
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] crate::volume::VolumeError),
    /// A settings file cannot be written.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// PostgreSQL could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// PostgreSQL refused a statement; PostgreSQL's own words.
    #[error("{action}: {message}")]
    Statement {
        /// What was tried.
        action: String,
        /// PostgreSQL's words.
        message: String,
    },
    /// PostgreSQL did not answer, or refused.
    #[error("{action}")]
    Sql {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: SqlError,
    },
    /// Something did not come about in time, or came about otherwise.
    #[error("{0}")]
    Unproven(String),
    /// A file operation failed.
    #[error("{action}")]
    File {
        /// What was tried.
        action: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// Wraps PostgreSQL's silence or refusal.
fn sql_failed(action: &'static str) -> impl FnOnce(SqlError) -> PostgresError {
    move |source| PostgresError::Sql { action, source }
}

/// Runs file operations where they may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
