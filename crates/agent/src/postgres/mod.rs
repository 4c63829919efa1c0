//! PostgreSQL: its configuration, its processes, and the agent's questions and changes in SQL.

mod access;
mod clone;
mod config;
mod conninfo;
mod hba;
pub(crate) mod history;
mod initdb;
mod members;
mod private;
mod promote;
mod quote;
mod receive;
mod recovery;
mod reload;
mod rewind;
mod server;
mod settings;
mod sql;
mod status;
mod sync;
mod torn;
mod values;

pub use access::{Settled, told};
pub use clone::{CloneSource, clone};
pub use config::{Config, Following};
pub use initdb::{InitdbRequest, initdb};
pub use members::Standby;
pub use promote::{Promoted, promote};
pub use receive::{promise, stop_receiving};
pub use recovery::{Progress, Recovered, RecoveryError, RecoveryRequest, fetch_wal, recover};
pub use reload::{Reload, reload};
pub use rewind::rewind;
pub use scram::{Verifier, VerifierError};
pub use server::{Server, StartError, StopMode, processes_on};
pub use settings::{Files, Primary, Role, Settings, SettingsError};
pub use sql::{Sql, SqlError};
pub use status::{Receiver, Sender, Slot, Status};
pub use sync::{open, set_sync};

/// The role that contains every member's replication role. `pg_hba.conf` admits its members by certificate.
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
    /// PostgreSQL refused a statement.
    #[error("{action}: {message}")]
    Statement {
        /// What the agent tried.
        action: String,
        /// PostgreSQL's message.
        message: String,
    },
    /// PostgreSQL did not answer a question, or refused it.
    #[error("{action}")]
    Sql {
        /// What the agent tried.
        action: &'static str,
        /// The cause.
        #[source]
        source: SqlError,
    },
    /// An effect could not be proven: it did not happen in time, or another one happened.
    #[error("{0}")]
    Unproven(String),
    /// A file operation failed.
    #[error("{action}")]
    File {
        /// What the agent tried.
        action: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// Makes a [`PostgresError`] of an [`SqlError`].
fn sql_failed(action: &'static str) -> impl FnOnce(SqlError) -> PostgresError {
    move |source| PostgresError::Sql { action, source }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
