//! The input of the configuration files: the user's settings, the places of files, and the server's role.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use machine::protocol::MemberId;
use machine::quorum::SyncRule;

use crate::archive::Archiving;
use crate::volume::{EnforcedSettings, WalRoom};

/// Where PostgreSQL finds files and puts sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Directory of the Unix socket.
    pub socket: PathBuf,
    /// Directory with `tls.crt`, `tls.key` and `ca.crt`.
    pub tls: PathBuf,
    /// The member's replication certificate.
    pub certificate: PathBuf,
    /// The member's replication key, for its tools.
    pub key: PathBuf,
    /// The copy of the key that the WAL receiver uses ([`crate::volume::Volume::credential_file`]). A promise removes
    /// it.
    pub credential: PathBuf,
    /// Name of the operating system's user that runs agent and server. The socket maps it to `postgres`.
    pub system_user: String,
}

/// The user's part of the configuration, and the values that depend on the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// PostgreSQL's major version.
    pub major: u16,
    /// Name of the ClusteredDatabase (`cluster_name`).
    pub cluster: String,
    /// TCP port.
    pub port: u16,
    /// `spec.bootstrap.initdb.locale`.
    pub locale: String,
    /// The user's settings ([`api::spec::PostgresSpec::settings`]).
    pub parameters: BTreeMap<String, String>,
    /// The file system that holds `pg_wal`. It bounds the default limits of the write-ahead log.
    pub wal: WalRoom,
    /// The time after which a silent stream counts as broken (`wal_receiver_timeout`): the standby then suspects the
    /// primary ([`machine::timing::Timing::suspect`]).
    pub suspicion: Duration,
    /// How WAL is archived; `None` if it is not.
    pub archive: Option<Archiving>,
}

/// The role that a server is configured for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It accepts writes.
    Primary {
        /// `synchronous_standby_names`.
        rule: SyncRule,
        /// Applications may connect over the network. A primary starts closed (protocol.md rule 13).
        open: bool,
    },
    /// It recovers, and streams if it has a primary to stream from.
    Standby {
        /// The primary that it follows; `None` for now.
        primary: Option<Primary>,
        /// The settings that its control file demands.
        enforced: EnforcedSettings,
    },
}

/// The primary that a standby follows, and the standby's own identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// Address of its pod.
    pub address: IpAddr,
    /// Its TCP port.
    pub port: u16,
    /// The standby's own identity: role, slot and `application_name`.
    pub member: MemberId,
}

/// A setting that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The name cannot be a setting's.
    #[error("{0:?} is not the name of a PostgreSQL setting")]
    Name(String),
    /// The operator manages this setting.
    #[error("{0} is managed by the operator and cannot be set")]
    Managed(String),
    /// A configuration file cannot hold the value.
    #[error("the value of {0} holds a line break or another control character")]
    Value(String),
    /// PostgreSQL would not start with this line of `pg_hba.conf`, or it is not the user's to write.
    #[error("{0:?} cannot be written into pg_hba.conf")]
    Line(String),
}

impl Settings {
    /// Hash of the user's settings, as in the members' reports.
    pub fn hash(&self) -> String {
        machine::protocol::settings_hash(&self.parameters)
    }
}
