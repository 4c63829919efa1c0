//! PostgreSQL: its configuration, its processes, its tools, and what is asked of it in SQL.

mod clone;
mod config;
mod conninfo;
mod hba;
mod initdb;
mod members;
mod password;
mod quote;
mod reload;
mod server;
mod sql;
mod status;
mod tools;

pub use clone::{CloneSource, clone};
pub use config::{Config, Files, Primary, Role, Settings, SettingsError};
pub use initdb::{InitdbRequest, initdb};
pub use members::Standby;
pub use password::{Verifier, VerifierError};
pub use reload::{Reload, reload};
pub use server::{Server, StartError, StopMode, processes_on};
pub use sql::{Sql, SqlError};
pub use status::{Receiver, Sender, Slot, Status};
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
