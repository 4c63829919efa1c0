//! The data volume: who this member is, and what data it has.
//!
//! `pgdata/` (PGDATA), `agent/` (identity, replication key and certificate, markers), `staging/` (an unfinished initdb
//! or clone). The WAL volume, if any, holds `pg_wal/`.

use std::path::{Path, PathBuf};

use machine::protocol::{Lsn, MemberId, Timeline};

/// The volumes of one instance.
#[derive(Clone, Debug)]
pub struct Volume {}

/// The identity of the data on the volume, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The identity.
    pub id: MemberId,
    /// UID of the claim that it was made on.
    pub claim_uid: String,
    /// Public key of its replication key (SubjectPublicKeyInfo, DER, base64).
    pub public_key: String,
}

/// Why the volume could not be read or written. Never to be taken for "absent".
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A file operation failed.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A stored file does not hold what it should.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The replication key could not be made or read.
    #[error("replication key: {0}")]
    Key(String),
    /// A certificate that is not for this member's key and name.
    #[error("the replication certificate is refused: {0}")]
    Certificate(String),
    /// `pg_controldata` failed.
    #[error("read the control file")]
    ControlFile(#[from] crate::process::ProcessError),
}

/// What data the volume holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataState {
    /// None: a new volume.
    Empty,
    /// What an initdb or a clone left that did not finish. Never started; [`Volume::discard_unfinished`] removes it.
    Unfinished {
        /// What was being done.
        what: String,
    },
    /// A complete PGDATA.
    Ready(ControlData),
}

/// What `pg_controldata` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlData {
    /// Database system identifier.
    pub system_id: String,
    /// What the server was doing when it last wrote.
    pub state: ClusterState,
    /// Timeline of the last checkpoint.
    pub timeline: Timeline,
    /// Place of the last checkpoint: after a clean stop, where the WAL's last record begins.
    pub checkpoint: Lsn,
    /// Up to where recovery must go before the data is consistent; 0/0 if not a standby's.
    pub minimum_recovery_end: Lsn,
    /// Timeline of [`Self::minimum_recovery_end`]; 0 if none.
    pub minimum_recovery_timeline: Timeline,
    /// Settings that a standby may not have lower than its primary had.
    pub enforced: EnforcedSettings,
    /// Data pages have checksums.
    pub checksums: bool,
}

/// Settings that a standby may not have lower than the primary whose WAL it replays (`pg_control` keeps them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnforcedSettings {
    /// `max_connections`.
    pub max_connections: u32,
    /// `max_worker_processes`.
    pub max_worker_processes: u32,
    /// `max_wal_senders`.
    pub max_wal_senders: u32,
    /// `max_prepared_transactions`.
    pub max_prepared_transactions: u32,
    /// `max_locks_per_transaction`.
    pub max_locks_per_transaction: u32,
}

/// "Database cluster state" of `pg_controldata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// "starting up".
    StartingUp,
    /// "shut down": a primary stopped cleanly.
    ShutDown,
    /// "shut down in recovery": a standby stopped cleanly.
    ShutDownInRecovery,
    /// "shutting down".
    ShuttingDown,
    /// "in crash recovery".
    InCrashRecovery,
    /// "in archive recovery": a standby that runs, or died.
    InArchiveRecovery,
    /// "in production": a primary that runs, or died.
    InProduction,
    /// Anything else.
    Unrecognized,
}

impl Volume {
    /// Volumes mounted at `data` and, if there is a WAL volume, `wal`.
    pub fn new(_data: impl Into<PathBuf>, _wal: Option<PathBuf>) -> Self {
        todo!()
    }
    /// Makes the directories, and throws nothing away. An error tells what is wrong with the mount.
    pub fn prepare(&self) -> Result<(), VolumeError> {
        todo!()
    }
    /// PGDATA.
    pub fn pgdata(&self) -> PathBuf {
        todo!()
    }
    /// PGDATA while it is being made.
    pub fn staging_pgdata(&self) -> PathBuf {
        todo!()
    }
    /// Where the write-ahead log goes if it has a volume of its own.
    pub fn wal_directory(&self) -> Option<&Path> {
        todo!()
    }
    /// File with the member's private key.
    pub fn key_file(&self) -> PathBuf {
        todo!()
    }
    /// File with the member's certificate.
    pub fn certificate_file(&self) -> PathBuf {
        todo!()
    }
    /// The stored identity; `None` only if it was never made. A file that cannot be read or understood is an error.
    pub fn member(&self) -> Result<Option<Member>, VolumeError> {
        todo!()
    }
    /// Makes the identity and its key, and stores both for good. Fails if there is one already.
    pub fn make_member(&self, _id: &MemberId, _claim_uid: &str) -> Result<Member, VolumeError> {
        todo!()
    }
    /// The stored certificate (PEM), if there is one.
    pub fn certificate(&self) -> Result<Option<String>, VolumeError> {
        todo!()
    }
    /// Stores the member's certificate (PEM) if it is for the member's key and name; `true` if it was not there before.
    pub fn write_certificate(&self, _pem: &str) -> Result<bool, VolumeError> {
        todo!()
    }
    /// Records that PGDATA is about to be changed in a way that must be finished before it may be started.
    pub fn begin_unfinished(&self, _what: &str) -> Result<(), VolumeError> {
        todo!()
    }
    /// Renames the staged PGDATA into place and takes the mark of [`Volume::begin_unfinished`] away. All of it must be on disk.
    pub fn finish_staging(&self) -> Result<(), VolumeError> {
        todo!()
    }
    /// Removes what an unfinished initdb or clone left, its part of the WAL volume included. Refuses if a complete
    /// PGDATA is there.
    pub fn discard_unfinished(&self) -> Result<(), VolumeError> {
        todo!()
    }
    /// What data there is.
    pub async fn data_state(&self, _tools: &crate::postgres::Tools) -> Result<DataState, VolumeError> {
        todo!()
    }
}
