//! The WAL archive: PostgreSQL's `archive_command`, and the worker that answers it.
//!
//! `archive_command` runs [`ask`] in a process of its own, once for each file. That asks the worker over a Unix socket. The worker is a
//! child of the agent, with the lowest priority: whatever it does to a store cannot delay the agent, and if it uses too much memory it
//! is the first that the kernel ends. It answers by the [`Charge`] that the agent has told it, and only the holder's worker writes.

mod attached;
mod catalogue;
mod client;
mod delete;
mod fetch;
mod keeper;
mod place;
mod pushes;
mod source;
mod worker;

use std::collections::BTreeSet;
use std::path::PathBuf;

use api::spec::BackupRetention;
use api::status::RecoveryCheck;
use backup::Place;
use machine::archive::{ArchiveLine, Charge};
use serde::{Deserialize, Serialize};

pub(crate) use attached::{Attached, attach, open};
pub use client::ask;
pub(crate) use fetch::{Archive, fetch};
pub use keeper::keep;
pub(crate) use place::place;
pub use source::SourceError;
pub(crate) use source::{Planned, Source, identities, segment_content};
pub(crate) use worker::give_way_to_others;
pub use worker::work;

/// What the agent tells its worker, as a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// What the worker may do.
    pub charge: Charge,
    /// Where it archives to; `None` if that is not known.
    pub target: Option<Target>,
    /// Which backups stay there; all if absent.
    pub retention: Option<BackupRetention>,
    /// Name of the newest backup that a holder has told of. With another one the worker looks at the backups again.
    pub newest_backup: Option<String>,
    /// The VolumeSnapshots of this database that are there.
    #[serde(default)]
    pub snapshots: BTreeSet<String>,
    /// All that this database has in the store is to be deleted.
    #[serde(default)]
    pub deletes: bool,
    /// A recovery in place that is asked for: whether the store has all that it needs is to be told.
    pub check: Option<RecoveryCheck>,
}

/// Where WAL comes from and goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The store.
    pub place: Place,
    /// The database's folder in it (`backup::layout::ClusterFolder`).
    pub folder: String,
    /// The line of the archive.
    pub line: ArchiveLine,
    /// UID of the ClusteredDatabase.
    pub cluster_uid: String,
    /// System identifier of the data.
    pub system_id: String,
    /// UID of this pod.
    pub pod_uid: String,
    /// Public keys that all is encrypted to; nothing is encrypted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
}

/// What PostgreSQL and the agent need to archive WAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archiving {
    /// The agent's program.
    pub program: PathBuf,
    /// The Unix socket of the archive's worker.
    pub socket: PathBuf,
    /// Where the Secrets of the store are mounted, if there are any.
    pub access: PathBuf,
    /// Where the volume is mounted that is the store, if it is one.
    pub volume: PathBuf,
}

/// The paths of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The Unix socket on which it answers PostgreSQL's archiver.
    pub socket: PathBuf,
    /// `pg_wal`.
    pub wal: PathBuf,
    /// The mounted Secrets with the store's credentials and authority. There is none without such Secrets.
    pub access: PathBuf,
}
