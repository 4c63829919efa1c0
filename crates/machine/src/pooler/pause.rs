//! The pause of poolers across a planned stop of the primary: clients wait, and lose no transaction.
//!
//! Each pod asks the primary's agent every second whether it is to pause. Before a planned stop the agent says that it soon will be, so
//! that all pods ask more often and none pauses long before the others; then that it is to pause, and for how long. It waits a moment
//! for all pods that ask. A pod ends its pause by itself: when a primary serves that wants none, or when the time is over.
//! So a pause needs neither the operator nor the API server, and no fault makes it longer than [`LONGEST`].

use std::collections::BTreeMap;

use api::pooler::{PoolMode, PoolerRole, PoolerSpec};

use crate::protocol::{PoolerReply, PoolerRequest};
use crate::timing::BootTime;
use crate::units::Millis;

/// The longest pause: a planned stop follows within [`PATIENCE`] and what the checkpoint before it counts for.
pub const LONGEST: Millis = Millis::seconds(7);
/// So long after a pause a pod begins no other one: whatever primaries say, clients are served between two.
pub const REST: Millis = Millis::seconds(5);
/// How long a primary waits until all pods ask more often.
const ANNOUNCED: Millis = Millis(1_500);
/// How long a primary waits for the pods to pause. A transaction that takes longer ends with its server, as without a pooler.
pub const PATIENCE: Millis = Millis::seconds(2);
/// A pod that has not asked for so long is gone.
const SILENT: Millis = Millis::seconds(3);
/// How often a pod asks.
const ASKS: Millis = Millis::seconds(1);
/// How often it asks while it pauses, or soon is to: on average clients wait half of this for nothing.
const ASKS_SOON: Millis = Millis(50);
/// The most pods that are known at a time.
const MOST: usize = 256;

/// Whether the pods of such a pooler pause. Sessions would have to end first, which can take for ever; and standbys are not stopped with
/// the primary.
pub fn pauses(spec: &PoolerSpec) -> bool {
    spec.role == PoolerRole::ReadWrite && spec.pool_mode == PoolMode::Transaction
}

/// The instance that a pod asks, as far as the pod cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Applications can write here, and no planned stop is near.
    Serves,
    /// Applications can write here, and PostgreSQL is about to stop as planned, or stops.
    Stops,
    /// Applications cannot write here.
    Away,
}

/// The primary's side: which pods ask, and whether they are to pause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// When each pod asked last, and whether it had paused then.
    pods: BTreeMap<String, (BootTime, bool)>,
    /// When the pause was announced.
    announced: Option<BootTime>,
    /// When it began.
    since: Option<BootTime>,
}

impl Calls {
    /// Answers a pod. A pause ends where PostgreSQL serves and is not about to stop: it has stopped and started again, or stays.
    pub fn answer(&mut self, request: PoolerRequest, asked: Asked, now: BootTime) -> PoolerReply {
        if asked == Asked::Serves {
            (self.announced, self.since) = (None, None);
        }
        self.pods.retain(|_, (at, _)| now.since(*at) < SILENT);
        if self.pods.len() < MOST || self.pods.contains_key(&request.pod) {
            self.pods.insert(request.pod, (now, request.paused));
        }
        let left = self
            .since
            .map(|since| since.plus(LONGEST).since(now))
            .filter(|left| *left > Millis::ZERO);
        PoolerReply {
            pause_milliseconds: left.map(|left| left.0),
            soon: self.announced.is_some() && asked == Asked::Stops,
            serves: asked != Asked::Away,
        }
    }

    /// A pause comes soon. When what comes before it has taken long, it is announced again: so that all pods ask often.
    pub fn announce(&mut self, now: BootTime) {
        (self.announced, self.since) = (Some(now), None);
    }

    /// Whether the pause is not to begin yet: a pod that asks has not heard of it.
    pub fn announces(&self, now: BootTime) -> bool {
        let Some(since) = self.announced else { return false };
        let mut pods = self.pods.values();
        now.since(since) < ANNOUNCED && pods.any(|(at, _)| now.since(*at) < SILENT && *at <= since)
    }

    /// From now on the pods are to pause.
    pub fn begin(&mut self, now: BootTime) {
        self.since = Some(now);
        // What they said was of another pause.
        for (_, paused) in self.pods.values_mut() {
            *paused = false;
        }
    }

    /// Whether the stop waits for a pod that asks and has not paused.
    pub fn waits(&self, now: BootTime) -> bool {
        let in_time = self.since.is_some_and(|since| now.since(since) < PATIENCE);
        let mut pods = self.pods.values();
        in_time && pods.any(|(at, paused)| now.since(*at) < SILENT && !paused)
    }
}

/// A pod's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The end of the last pause.
    until: Option<BootTime>,
    /// Until then a pause is expected.
    expected: Option<BootTime>,
}

impl Pause {
    /// Takes an answer of the primary's agent.
    pub fn told(&mut self, reply: &PoolerReply, now: BootTime) {
        self.expected = reply.soon.then(|| now.plus(PATIENCE));
        match reply.pause_milliseconds {
            Some(left) if self.until.is_none_or(|until| now >= until.plus(REST)) => {
                self.until = Some(now.plus(Millis(left).min(LONGEST)));
            }
            None if reply.serves => self.until = self.until.map(|until| until.min(now)),
            Some(_) | None => {}
        }
    }

    /// How long the pause takes yet at most; `None`: there is none.
    pub fn left(&self, now: BootTime) -> Option<Millis> {
        let left = self.until?.since(now);
        (left > Millis::ZERO).then_some(left)
    }

    /// How long after an answer the pod asks again.
    pub fn asks_after(&self, now: BootTime) -> Millis {
        let soon = self.left(now).is_some() || self.expected.is_some_and(|until| now < until);
        if soon { ASKS_SOON } else { ASKS }
    }
}
