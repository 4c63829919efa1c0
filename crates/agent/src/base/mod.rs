//! A base backup, made by a process of its own.
//!
//! The agent starts it for one backup, writes an [`Order`] to it, and reads what it says, [`Told`]. As the archive's
//! worker, it has the lowest priority, and is the first process that the kernel ends when memory is short.

mod closer;
mod copy;
mod keeper;
mod server;
mod snapshot;
mod stream;
mod worker;

use std::path::PathBuf;

use api::backup::{SnapshotProgress, StoredBackup};
use machine::instance::backup::BackupCopy;
use serde::{Deserialize, Serialize};

use crate::archive::Target;

pub use closer::{Closing, close_segments};
pub use keeper::keep;
pub use stream::Stream;
pub use worker::work;

/// What the agent tells the process, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// Where the backup goes to.
    pub target: Target,
    /// The mounted Secrets with the store's credentials and authority. There is none without such Secrets.
    pub access: PathBuf,
    /// Which backup, in which attempt, and who this server is. There is only one backup with its UID.
    pub copy: BackupCopy,
    /// How far the VolumeSnapshot is that the operator makes for it. The process gets each change as one more line.
    #[serde(default)]
    pub snapshot: Option<SnapshotProgress>,
    /// The directory of PostgreSQL's Unix socket.
    pub socket_directory: PathBuf,
    /// PostgreSQL's port.
    pub port: u16,
}

/// What the process says, as lines of JSON. The last is [`Told::Completed`] or [`Told::Failed`], unless it is killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Told {
    /// It copies the data; at most once a second.
    Copying {
        /// The backup's name.
        name: String,
        /// Bytes copied so far, not compressed.
        bytes: u64,
        /// About how many there are; 0 if that is not known.
        total: u64,
    },
    /// PostgreSQL is in backup mode, or was, and the operator's VolumeSnapshot is not ready.
    WaitingForSnapshot {
        /// Name of the VolumeSnapshot.
        snapshot: String,
        /// What the storage says is wrong.
        #[serde(default)]
        message: Option<String>,
    },
    /// All data are copied. The backup needs WAL that is not archived yet.
    WaitingForWal {
        /// The backup's name.
        name: String,
    },
    /// The backup exists.
    Completed(StoredBackup),
    /// There is no backup, and this process makes none.
    Failed {
        /// Why.
        message: String,
        /// PostgreSQL has found pages with wrong checksums.
        damaged_pages: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_json_with_a_state() {
        for (told, json) in [
            (
                Told::Copying {
                    name: "a".to_owned(),
                    bytes: 1,
                    total: 2,
                },
                r#"{"state":"copying","name":"a","bytes":1,"total":2}"#,
            ),
            (
                Told::WaitingForWal { name: "a".to_owned() },
                r#"{"state":"waitingForWal","name":"a"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&told).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<Told>(json).expect("read"), told);
        }
    }
}
