//! What is known of a lost Lease.

use std::collections::BTreeSet;

use crate::protocol::LeaseRecord;
use crate::quorum::SyncRule;
use crate::timing::BootTime;

/// One version of a Lease object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseVersion {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// UID of the `ClusteredDatabase` that owns it.
    pub owner: Option<String>,
}

/// What is known of a lost Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The newest version that this agent has understood.
    pub before: LeaseRecord,
    /// The synchronous rules that may have been in it: that of `before`, and those of this run's writes on top of it
    /// whose outcome is unknown.
    pub rules: BTreeSet<SyncRule>,
    /// True if one of these writes releases the lease.
    pub releases: bool,
    /// The object in its place, which is empty or not understood; `None`: no object exists.
    pub place: Option<LeaseVersion>,
    /// When this agent first saw it in its present state.
    pub since: BootTime,
}
