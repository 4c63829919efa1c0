//! Actions that failed, and when they are tried again.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::backoff;

/// An action that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault<T> {
    /// What it was done to ([`super::Effect::target`]).
    pub target: T,
    /// The kind of refusal.
    pub kind: FaultKind,
    /// The API server's words.
    pub message: String,
    /// How many times in a row it has failed (1 or more).
    pub attempts: u32,
    /// When it failed last.
    pub at: DateTime<Utc>,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FaultKind {
    /// A resource quota (403 with "exceeded quota").
    Quota,
    /// Not allowed (401, 403): the operator's RBAC, or an admission rule. To change a pod's cpu and memory in place: an
    /// admission rule only.
    Forbidden,
    /// The object is invalid (400, 422). To change a pod's cpu and memory in place: or it is not offered to this operator.
    Invalid,
    /// It has changed meanwhile (409): observe again.
    Conflict,
    /// Anything else; may go away by itself.
    Transient,
}

/// When what has failed is tried again.
pub fn retry_at<T>(fault: &Fault<T>) -> DateTime<Utc> {
    let rest = match fault.kind {
        FaultKind::Conflict => backoff::delay_after_conflict(fault.attempts),
        FaultKind::Quota | FaultKind::Forbidden | FaultKind::Invalid | FaultKind::Transient => {
            backoff::delay(fault.attempts)
        }
    };
    fault.at + TimeDelta::from_std(rest).unwrap_or(TimeDelta::zero())
}
