//! The configuration files, as text: everything in them is the agent's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use machine::protocol::MemberId;

use crate::volume::EnforcedSettings;

/// Where PostgreSQL finds files and puts sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Directory of the Unix socket.
    pub socket: PathBuf,
    /// Directory with `tls.crt`, `tls.key` and `ca.crt`.
    pub tls: PathBuf,
    /// The member's replication certificate.
    pub certificate: PathBuf,
    /// The member's replication key.
    pub key: PathBuf,
    /// Name of the operating system's user that runs agent and server; maps to `postgres` on the socket.
    pub system_user: String,
}

/// The user's part of the configuration, and what depends on the place.
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
    /// `spec.postgres.parameters`.
    pub parameters: BTreeMap<String, String>,
    /// Bytes of the file system that holds `pg_wal`, from which the default of `max_slot_wal_keep_size` is made.
    pub wal_capacity: u64,
}

/// What the server is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It accepts writes.
    Primary,
    /// It recovers, and streams if it has somebody to stream from.
    Standby {
        /// Whom it follows; `None`: nobody for now.
        primary: Option<Primary>,
        /// What its control file demands of its settings.
        enforced: EnforcedSettings,
    },
}

/// Whom a standby follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// Address of its pod.
    pub address: IpAddr,
    /// Its TCP port.
    pub port: u16,
    /// The standby's own identity: role, slot and `application_name`.
    pub member: MemberId,
}

/// The configuration files' content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `postgresql.conf`.
    pub postgresql_conf: String,
    /// `pg_hba.conf`.
    pub pg_hba_conf: String,
    /// `pg_ident.conf`.
    pub pg_ident_conf: String,
    /// `standby.signal` must exist at start.
    pub standby: bool,
}

/// A setting that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not the name of a setting.
    #[error("{0:?} is not the name of a PostgreSQL setting")]
    Name(String),
    /// A value that no configuration file can hold.
    #[error("the value of {0} holds a line break or another control character")]
    Value(String),
}

impl Settings {
    /// Hash of the user's settings (16 hexadecimal digits): equal on all members that want the same.
    pub fn hash(&self) -> String {
        todo!()
    }
}

impl Config {
    /// The files for a server in `role`.
    pub fn render(_settings: &Settings, _files: &Files, _role: &Role) -> Result<Self, SettingsError> {
        todo!()
    }
}
