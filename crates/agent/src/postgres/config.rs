//! The configuration files, as text: everything in them is the agent's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use machine::instance::observer::Following;
use machine::protocol::MemberId;
use machine::quorum::SyncRule;

use super::{hba, quote, values};
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
    /// The copy of it that the WAL receiver uses ([`crate::volume::Volume::credential_file`]): a promise takes it away.
    pub credential: PathBuf,
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
    /// The file system that holds `pg_wal`: bounds what the write-ahead log may take by default.
    pub wal: WalRoom,
    /// A stream silent for so long is broken (`wal_receiver_timeout`): the standby suspects the primary then
    /// ([`machine::timing::Timing::suspect`]).
    pub suspicion: Duration,
}

/// What the server is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It accepts writes.
    Primary {
        /// `synchronous_standby_names`.
        rule: SyncRule,
        /// Applications may connect over the network. A primary starts closed (protocol.md rule 13).
        open: bool,
    },
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
    /// How a standby finds whom it follows, as it stands in it.
    pub following: Following,
    /// The value of `synchronous_standby_names` in it.
    pub synchronous: String,
    /// What a standby's control file demands, if limits stand higher for it than the settings say.
    pub raised: Option<EnforcedSettings>,
}

/// A setting that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not the name of a setting.
    #[error("{0:?} is not the name of a PostgreSQL setting")]
    Name(String),
    /// The operator's own.
    #[error("{0} is managed by the operator and cannot be set")]
    Managed(String),
    /// A value that no configuration file can hold.
    #[error("the value of {0} holds a line break or another control character")]
    Value(String),
}

impl Settings {
    /// Hash of the user's settings, as in the members' reports.
    pub fn hash(&self) -> String {
        machine::protocol::settings_hash(&self.parameters)
    }
}

impl Config {
    /// The files for a server in `role`.
    pub fn render(settings: &Settings, files: &Files, role: &Role) -> Result<Self, SettingsError> {
        let values = values::of(settings, files, role)?;
        let raised = match role {
            Role::Primary { .. } => None,
            Role::Standby { primary, enforced } => {
                let nothing = Role::Standby {
                    primary: primary.clone(),
                    enforced: EnforcedSettings::default(),
                };
                (values != values::of(settings, files, &nothing)?).then_some(*enforced)
            }
        };
        let mut text = "# Written by the agent; changes made here are lost.\n".to_owned();
        for (name, value) in &values {
            text.push_str(&format!("{name} = {}\n", quote::setting(value)));
        }
        let value = |name: &str| values.get(name).cloned().unwrap_or_default();
        Ok(Self {
            following: Following {
                conninfo: value("primary_conninfo"),
                slot: value("primary_slot_name"),
            },
            postgresql_conf: text,
            pg_hba_conf: hba::pg_hba(match role {
                Role::Primary { open, .. } => *open,
                Role::Standby { .. } => true,
            }),
            pg_ident_conf: hba::pg_ident(&files.system_user),
            standby: matches!(role, Role::Standby { .. }),
            synchronous: values::synchronous(role),
            raised,
        })
    }
}

#[cfg(test)]
mod tests;
