//! The events of the agent's loop. Watches, servers, pollers, signals and tasks send them.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::ClusteredDatabase;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use machine::access::Published;
use machine::instance::Reading;
use machine::instance::observer::Event as Seen;
use machine::timing::BootTime;

use crate::observe::{Done, Scan, Secret};
use crate::peer::Request;
use crate::postgres::{SqlError, Status};
use crate::process::Exit;
use crate::tools::Tools;
use crate::volume::EnforcedSettings;

/// Something that has happened.
pub enum Event {
    /// The ClusteredDatabase was read.
    Cluster(Box<Reading<ClusteredDatabase>>),
    /// The Lease was read.
    Lease(Reading<Lease>),
    /// The EndpointSlice of `-rw` was read.
    Route(Reading<EndpointSlice>),
    /// The search for PostgreSQL's programs has ended.
    Tools(Result<Arc<Tools>, String>),
    /// The volume was read.
    Scanned(Result<Box<Scan>, Unread>),
    /// A child has ended.
    Exited(Exit),
    /// A task has ended.
    Done(Done),
    /// A peer has sent a request.
    Peer(Request),
    /// An event for the observer alone: it brings the agent no handle.
    Seen(Seen),
    /// PostgreSQL was asked for its status: its process id, the time of the question, and the answer.
    Status(u32, BootTime, Result<Box<Status>, SqlError>),
    /// The settings that the control file demands of a standby; `None` if it could not be read.
    Enforced(Option<EnforcedSettings>),
    /// A Secret's files have changed.
    Secret(Secret),
    /// Agent and PostgreSQL have loaded the certificates of this digest; or why that is not so.
    Certificates(Result<String, String>),
    /// The application's role has the password of the Secret. `true` if it was changed.
    Password(Result<bool, String>),
    /// What DatabaseUsers and Databases declare was read, by their UIDs.
    Declared(BTreeMap<String, Published>),
    /// What is declared was settled, and told.
    Settled(Settling),
    /// Something has changed that the loop finds out by itself.
    Look,
}

/// How far what is declared is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settling {
    /// All of it, and it is told.
    Whole,
    /// Something is refused, until what it asks for is there.
    Refused,
    /// Something failed.
    Failed(String),
}

/// Why the volume was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// All causes, in one line.
    pub why: String,
    /// The WAL volume has no room for the write-ahead log. Each try may copy much of it in vain.
    pub no_room: bool,
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Self { why, no_room: false }
    }
}
