//! The cluster machine as the reconcile kernel runs it.

use std::collections::BTreeMap;

use api::ClusteredDatabaseStatus;
use chrono::{DateTime, Utc};

use super::action::Action;
use super::decision::Decision;
use super::observed::{Observed, Target};
use super::wanted::Wanted;
use super::{decide, due, status};
use crate::protocol::{Epoch, HolderRecord, LeaseRecord};
use crate::reconcile::{Controller, Decided, Effect, StatusWrite};

/// The machine of `ClusteredDatabase`.
#[derive(Clone, Copy, Debug)]
pub struct Cluster;

impl Controller for Cluster {
    type Wanted<'a> = Wanted<'a>;
    type Observed = Observed;
    type Status = ClusteredDatabaseStatus;
    type Action = Action;
    /// Signed certificates (PEM) by pod name.
    type Prepared = BTreeMap<String, String>;
    type Decision = Decision;

    fn decide(wanted: &Wanted<'_>, observed: &Observed, stored: &Self::Status, now: DateTime<Utc>) -> Decision {
        decide(wanted, observed, stored, now)
    }

    fn status(
        wanted: &Wanted<'_>,
        observed: &Observed,
        stored: &Self::Status,
        decision: &Decision,
        certificates: &Self::Prepared,
        now: DateTime<Utc>,
    ) -> Self::Status {
        status(wanted, observed, stored, decision, certificates, now)
    }

    fn due(stored: &Self::Status, next: &Self::Status, decision: &Decision) -> StatusWrite {
        due(stored, next, decision)
    }

    fn confirms(observed: &Observed, action: &Action) -> bool {
        match action {
            Action::ReplacePod(_)
            | Action::DeleteChild(..)
            | Action::OrphanStatefulSet(_)
            | Action::DeleteStatefulSet(_)
            | Action::DeleteClaim(_)
            | Action::ChangeLease(..)
            | Action::RecreateLease { .. } => true,
            Action::Apply(apply) => apply.takes_pods_away(observed),
            Action::Wait(_)
            | Action::AddFinalizer(_)
            | Action::RemoveFinalizer(_)
            | Action::WriteStatus(_)
            | Action::LabelPod { .. }
            | Action::MarkPod { .. }
            | Action::ResizePod(_)
            | Action::MakeWalClaim { .. }
            | Action::ResizeClaim { .. }
            | Action::UpdateClaim(_)
            | Action::AdoptClaim(_)
            | Action::MakeBackup { .. }
            | Action::MakeSnapshot { .. }
            | Action::MakeDataClaim { .. }
            // Its UID says which it is, and only the store which backup has it.
            | Action::DeleteSnapshot(_)
            | Action::MakeDrill { .. }
            // Its UID and its owner say whose it is, and it has served nobody.
            | Action::DeleteDrill(_) => false,
        }
    }
}

impl Decided for Decision {
    type Action = Action;

    fn action(&self) -> &Action {
        &self.action
    }

    fn wake(&self) -> DateTime<Utc> {
        self.wake
    }
}

impl Effect for Action {
    type Target = Target;

    fn target(&self) -> Option<Target> {
        Action::target(self)
    }

    fn writes_status(&self) -> bool {
        matches!(self, Action::WriteStatus(_))
    }

    fn status() -> Target {
        Target::Status
    }
}

/// What a decision to take something away relies on. Resource and Lease are read once more, and must be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    uid: String,
    resource_version: String,
    lease: Option<(String, Epoch, Option<HolderRecord>)>,
}

impl Basis {
    /// What was decided by.
    pub fn new(wanted: &Wanted<'_>, observed: &Observed) -> Self {
        Self {
            uid: wanted.uid.to_owned(),
            resource_version: wanted.resource_version.to_owned(),
            lease: observed.lease.get().and_then(Option::as_ref).map(who),
        }
    }

    /// UID of the resource.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Whether the resource is still this one, at this version.
    pub fn is_resource(&self, uid: &str, resource_version: &str) -> bool {
        (uid, resource_version) == (&self.uid, &self.resource_version)
    }

    /// Whether the Lease is still this one, held by the same run of the same instance in the same epoch.
    pub fn is_lease(&self, lease: Option<&LeaseRecord>) -> bool {
        lease.map(who) == self.lease
    }
}

fn who(lease: &LeaseRecord) -> (String, Epoch, Option<HolderRecord>) {
    (lease.uid.clone(), lease.epoch, lease.holder.clone())
}
