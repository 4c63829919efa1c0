//! What is waited for, as data: reason, object, actor. Timers are keyed by reason and object, never by a text.

use std::borrow::Cow;

use api::status::{LateObject, WaitActor, WaitReason};
use chrono::{DateTime, Utc};
use serde::Serialize;

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// What is waited for.
    pub reason: WaitReason,
    /// The object that is waited for, as kubectl takes it (`pod/orders-1`), if it is a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Who can end it.
    pub actor: WaitActor,
    /// The unmet condition, naming the object that it is about; nothing in it moves while the condition stays the same.
    pub what: Cow<'static, str>,
    /// Since when this has been waited for (carried on from the status).
    pub since: DateTime<Utc>,
    /// How the actor, or somebody else, can end it.
    pub who_can_end_it: Cow<'static, str>,
    /// When something else is done, or it is said that the wait takes too long (see [`super::wait_limit`]).
    pub deadline: Option<DateTime<Utc>>,
    /// Nothing is missing: this is the wait of a database that is as it should be. Not shown in the status.
    pub resting: bool,
    /// All objects that are late, if there are several: each has its own time, and the earliest deadline counts.
    #[serde(skip)]
    pub late: Vec<LateObject>,
}

/// What the timer of a wait hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitKey {
    /// What is waited for.
    pub reason: WaitReason,
    /// The object, as kubectl takes it.
    pub object: Option<String>,
}

impl From<WaitReason> for WaitKey {
    fn from(reason: WaitReason) -> Self {
        Self { reason, object: None }
    }
}

impl WaitKey {
    /// About a pod.
    pub fn pod(reason: WaitReason, name: &str) -> Self {
        Self::of(reason, "pod", name)
    }

    /// About a claim.
    pub fn claim(reason: WaitReason, name: &str) -> Self {
        Self::of(reason, "pvc", name)
    }

    /// About an object of this kind and name.
    pub fn of(reason: WaitReason, kind: &str, name: &str) -> Self {
        let object = Some(format!("{}/{name}", kind.to_lowercase()));
        Self { reason, object }
    }
}

/// What a pod lacks, and who can end that.
pub(super) struct Lack {
    pub key: WaitKey,
    pub actor: WaitActor,
    pub what: String,
    pub who: String,
}

#[cfg(test)]
mod tests;
