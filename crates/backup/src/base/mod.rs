//! Base backups: PostgreSQL's own tar, cut into parts that are complete tars themselves.
//!
//! [`Writer`] takes what PostgreSQL sends from a [`Source`] and stores it, [`backups`] lists what is complete,
//! [`unpack`] writes a data directory, and [`wal`] says which WAL is there. A backup exists when its `backup.json`
//! does.

mod attempt;
mod copies;
mod files;
mod info;
mod list;
mod manifest;
mod part;
mod remove;
mod snapshot;
mod source;
mod tar;
mod unpack;
mod wal;
mod writer;

use std::io;
use std::time::Duration;

use crate::Problem;

pub use attempt::{Attempt, Begun, begin, is_discarded};
pub use copies::WalRange;
pub use info::{BackupInfo, Origin, Part, Role, Snapshot, VERSION, format_lsn, parse_lsn};
pub use list::{Catalogue, backups, catalogue};
pub use remove::{remove, remove_all};
pub use source::Source;
pub use unpack::{check_key, unpack};
pub use wal::{WalList, missing, needed, outline, wal, wal_before};
pub use writer::{About, PART_SIZE, Writer, Written};

/// Time limit of a request for one piece. A link with 200 kB/s is still good enough.
const LIMIT: Duration = Duration::from_secs(120);

/// Why a base backup cannot be written or unpacked.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The store has a problem.
    #[error(transparent)]
    Store(#[from] Problem),
    /// The stream cannot be read.
    #[error("read PostgreSQL's data")]
    Read(#[source] io::Error),
    /// The stream is no tar of a data directory.
    #[error("PostgreSQL's data are no complete tar: {0}")]
    Tar(String),
    /// The manifest is missing or not understood.
    #[error("the backup's manifest: {0}")]
    Manifest(String),
    /// zstd cannot compress.
    #[error("compress")]
    Compress(#[source] io::Error),
    /// A stored file of the backup is missing.
    #[error("{0} is missing in the store")]
    Missing(String),
    /// A stored file of the backup has other bytes than its `backup.json` says.
    #[error("{name} is damaged: {found}")]
    Damaged {
        /// The object's name.
        name: String,
        /// What was found.
        found: String,
    },
    /// A part cannot be unpacked.
    #[error("unpack {name}")]
    Unpack {
        /// The object's name.
        name: String,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A task has ended by a defect.
    #[error("a task has failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}
