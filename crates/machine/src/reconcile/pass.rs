//! What an executor remembers of one resource between two decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::{Controller, Decided, Effect, Fault, FaultKind, StatusWrite, retry_at};

/// How many decisions one look may have. A creation takes some thirty; more means that something turns in circles, and
/// the rest waits a second so that this is slow and visible.
pub const MAX_STEPS: u32 = 64;
/// How many times one look may write the status: one that never comes to rest must not hold up the action for ever.
pub const MAX_STATUS_WRITES: u32 = 8;
/// How long to wait after a failure before observing again: a cache that was behind has caught up by then. How long the
/// action itself waits is the machine's decision.
pub const AFTER_FAILURE: TimeDelta = TimeDelta::milliseconds(200);
/// A resource is never looked at again sooner than this without an event.
pub const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// A status that can wait is looked at again after this long.
const STATUS_RECHECK: TimeDelta = TimeDelta::seconds(1);

/// What is remembered of one resource; `T` is what actions are done to. All of it can be lost: it is then found out again.
#[derive(Clone, Debug)]
pub struct Pass<T> {
    uid: String,
    generation: i64,
    faults: BTreeMap<T, Fault<T>>,
    /// What was refused because it had changed meanwhile, and the version (`None`: there was none) that it was known by: at
    /// that version the same would be refused again.
    outdated: BTreeMap<T, Option<String>>,
    /// Since when the status has differed in something that can wait.
    status_due_since: Option<DateTime<Utc>>,
    /// Writes of the status since the last sleep.
    status_writes: u32,
}

impl<T> Default for Pass<T> {
    fn default() -> Self {
        Self {
            uid: String::new(),
            generation: 0,
            faults: BTreeMap::new(),
            outdated: BTreeMap::new(),
            status_due_since: None,
            status_writes: 0,
        }
    }
}

/// What has changed of the resource since the decision before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Nothing that counts here.
    Nothing,
    /// Its spec: what failed may now succeed, and must not wait for its turn.
    Spec,
    /// It is another one of that name: nothing that was known holds.
    Resource,
}

/// What the executor does about a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Write the status that was computed for it.
    WriteStatus,
    /// Read once more what the action relies on; if it is the same, carry the action out, if not, decide again.
    Confirm,
    /// Carry the action out.
    Perform,
    /// Nothing until then, if nothing happens.
    Sleep(DateTime<Utc>),
}

impl<T: Clone + Ord> Pass<T> {
    /// Before each decision: this is the resource now, and `version` tells the version by which each target is known.
    pub fn begin(&mut self, uid: &str, generation: i64, version: impl Fn(&T) -> Option<String>) -> Changed {
        let changed = if self.uid != uid {
            *self = Self {
                uid: uid.to_owned(),
                ..Self::default()
            };
            Changed::Resource
        } else if self.generation != generation {
            self.faults.clear();
            self.outdated.clear();
            Changed::Spec
        } else {
            Changed::Nothing
        };
        self.generation = generation;
        self.catch_up(version);
        changed
    }

    /// Forgets each conflict about something of which another version is known by now: it is tried at once.
    fn catch_up(&mut self, version: impl Fn(&T) -> Option<String>) {
        let faults = &mut self.faults;
        self.outdated.retain(|target, refused_at| {
            let same = *refused_at == version(target);
            if !same {
                faults.remove(target);
            }
            same
        });
    }

    /// Actions that failed and have not succeeded since: an input of the next decision.
    pub fn faults(&self) -> &BTreeMap<T, Fault<T>> {
        &self.faults
    }

    /// What to do about `decision`; `next` is the status that belongs to it.
    pub fn next<C>(
        &mut self,
        observed: &C::Observed,
        stored: &C::Status,
        next: &C::Status,
        decision: &C::Decision,
        now: DateTime<Utc>,
    ) -> Next
    where
        C: Controller<Action: Effect<Target = T>>,
    {
        let due = C::due(stored, next, decision);
        let action = decision.action();
        let writes = action.writes_status();
        let refused = self.rests(&C::Action::status(), now).filter(|_| !writes);
        if let (StatusWrite::BeforeAction, Some(again)) = (due, refused) {
            // The action may rely on it.
            return self.sleep(again);
        }
        let target = action.target();
        let again = target.as_ref().and_then(|target| self.tried_again_at(target, now));
        if writes && again.is_none() || !writes && refused.is_none() && self.is_due(due, now) {
            self.status_writes += 1;
            return Next::WriteStatus;
        }
        if let Some(again) = again {
            return self.sleep(again);
        }
        if target.is_none() {
            let recheck = self.status_due_since.map(|_| now + STATUS_RECHECK);
            let wake = recheck.map_or(decision.wake(), |recheck| recheck.min(decision.wake()));
            return self.sleep(wake);
        }
        match C::confirms(observed, action) {
            true => Next::Confirm,
            false => Next::Perform,
        }
    }

    fn sleep(&mut self, until: DateTime<Utc>) -> Next {
        self.status_writes = 0;
        Next::Sleep(until)
    }

    /// Whether the status has to be written now.
    fn is_due(&mut self, due: StatusWrite, now: DateTime<Utc>) -> bool {
        let may = self.status_writes < MAX_STATUS_WRITES;
        match due {
            StatusWrite::BeforeAction => may,
            StatusWrite::Debounced(time) => {
                let since = *self.status_due_since.get_or_insert(now);
                may && (now - since).to_std().unwrap_or_default() >= time
            }
            StatusWrite::None => {
                self.status_due_since = None;
                false
            }
        }
    }

    /// Until when a write that met a conflict is not repeated.
    fn rests(&self, target: &T, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let fault = self.faults.get(target);
        let conflict = fault.filter(|fault| fault.kind == FaultKind::Conflict);
        conflict.map(retry_at).filter(|again| *again > now)
    }

    /// When what was done to `target` and failed is tried again, if not now. Not each machine has rules of its own for that.
    fn tried_again_at(&self, target: &T, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.faults.get(target).map(retry_at).filter(|again| *again > now)
    }

    /// What was done to `target` has succeeded.
    pub fn succeeded(&mut self, target: &T) {
        self.faults.remove(target);
        self.outdated.remove(target);
    }

    /// The status was written.
    pub fn status_written(&mut self, target: &T) {
        self.status_due_since = None;
        self.succeeded(target);
    }

    /// What was done to `target`, which was known at this version, has failed; what it was done to keeps the count of
    /// failures in a row. Returns when to observe again.
    pub fn failed(
        &mut self,
        target: T,
        known: Option<String>,
        kind: FaultKind,
        message: String,
        now: DateTime<Utc>,
    ) -> DateTime<Utc> {
        let attempts = self.faults.get(&target).map_or(0, |fault| fault.attempts);
        match kind {
            FaultKind::Conflict => drop(self.outdated.insert(target.clone(), known)),
            FaultKind::Quota | FaultKind::Forbidden | FaultKind::Invalid | FaultKind::Transient => {
                self.outdated.remove(&target);
            }
        }
        let fault = Fault {
            target: target.clone(),
            kind,
            message,
            attempts: attempts.saturating_add(1),
            at: now,
        };
        self.faults.insert(target, fault);
        self.status_writes = 0;
        now + AFTER_FAILURE
    }
}

#[cfg(test)]
mod tests;
