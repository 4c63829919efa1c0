//! The result of a decision.

use std::borrow::Cow;
use std::fmt;

use api::Phase;
use api::status::FailureReason;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::action::Action;

/// What to do now, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// The phase after this decision; reachable from the one in the status ([`super::transitions`]).
    pub phase: Phase,
    /// What is being done within the phase.
    pub step: Option<Step>,
    /// The one effect.
    pub action: Action,
    /// The rule that decided.
    pub rule: &'static str,
    /// The fact that made it decide so.
    pub because: Because,
    /// Why the phase is `Failed`.
    pub failure: Option<Failure>,
    /// Decide again then, even if nothing changes; never later than two minutes from now.
    pub wake: DateTime<Utc>,
}

/// A fact, true in the world, that made a rule decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Because(pub Cow<'static, str>);

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T: Into<Cow<'static, str>>> From<T> for Because {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

/// Why a database cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The kind of fault.
    pub reason: FailureReason,
    /// What is wrong and what to change.
    pub message: Cow<'static, str>,
}

/// What is being done within a phase (`status.step`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Step {
    /// Kubernetes objects are being made.
    Objects,
    /// The first database is being made.
    Bootstrap,
    /// Standbys are being cloned, or are catching up.
    Standbys,
    /// No primary serves; one is being waited for.
    Primary,
    /// The primary is being moved to another instance.
    Switchover,
    /// A lost or changed object is being put right.
    Repair,
    /// Settings are being taken up.
    Settings,
    /// Pods are being brought to the wanted template, one at a time.
    Rollout,
    /// The number of instances is being changed.
    Scaling,
    /// Volumes are being grown, or changed for another set of volumes.
    Volumes,
    /// The last backup before a deletion is being taken.
    BackingUp,
    /// PostgreSQL is being stopped: everywhere, or in instances that are fenced.
    Stopping,
    /// Pods are going away.
    Removing,
    /// `spec.primary.updatePolicy: Supervised`: the user has the word.
    Supervised,
    /// `spec.fenced`: instances stay stopped.
    Fenced,
    /// `spec.paused`: nothing is changed.
    Paused,
}

impl Step {
    /// All of them, in declaration order.
    pub const ALL: [Step; 16] = [
        Step::Objects,
        Step::Bootstrap,
        Step::Standbys,
        Step::Primary,
        Step::Switchover,
        Step::Repair,
        Step::Settings,
        Step::Rollout,
        Step::Scaling,
        Step::Volumes,
        Step::BackingUp,
        Step::Stopping,
        Step::Removing,
        Step::Supervised,
        Step::Fenced,
        Step::Paused,
    ];

    /// As it stands in `status.step`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Step::Objects => "Objects",
            Step::Bootstrap => "Bootstrap",
            Step::Standbys => "Standbys",
            Step::Primary => "Primary",
            Step::Switchover => "Switchover",
            Step::Repair => "Repair",
            Step::Settings => "Settings",
            Step::Rollout => "Rollout",
            Step::Scaling => "Scaling",
            Step::Volumes => "Volumes",
            Step::BackingUp => "BackingUp",
            Step::Stopping => "Stopping",
            Step::Removing => "Removing",
            Step::Supervised => "Supervised",
            Step::Fenced => "Fenced",
            Step::Paused => "Paused",
        }
    }
}
