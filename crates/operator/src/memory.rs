//! What the operator remembers of a database between two looks at it. All of it can be lost: it is then found out again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use machine::cluster::{ChildKind, ChildState, Fault, FaultKind, ForeignRoute, ImageError, Target, Trouble, retry_at};

use crate::desired::Wants;
use crate::observe::Checked;

/// What is remembered of one database.
#[derive(Debug, Default)]
pub struct Memory {
    /// UID of the resource that all of this is about.
    pub uid: String,
    /// The generation of its spec.
    pub generation: i64,
    /// Actions that failed and have not succeeded since.
    pub faults: BTreeMap<Target, Fault>,
    /// What was refused because it had changed meanwhile, and the version (`None`: there was none) that it was known by: at that
    /// version the same would be refused again.
    pub outdated: BTreeMap<Target, Option<String>>,
    /// Why the StatefulSet makes no pod, by the pod's name, as its events say.
    pub unmade_pods: BTreeMap<String, Fault>,
    /// What is wanted.
    pub wants: Option<Arc<Wants>>,
    /// Kinds of which an object with our name, but without our label, was met: the watch does not show it.
    pub strays: BTreeSet<ChildKind>,
    /// Differences that were still there in the API server's answer to our own apply (somebody rewrites objects on
    /// their way in): applying again would never end.
    pub tolerated: BTreeMap<ChildKind, Vec<String>>,
    /// The last comparisons, for objects and contents that have not changed since.
    pub compared: BTreeMap<ChildKind, Compared>,
    /// What the Secrets hold, each at the version that was last read.
    pub checked: BTreeMap<ChildKind, Checked>,
    /// Image faults as they were first seen, by pod UID and image.
    pub image_faults: BTreeMap<(String, String), ImageError>,
    /// Addresses to which `-rw` leads, and which no pod has.
    pub foreign_route: Option<ForeignRoute>,
    /// Since when the status has differed in something that can wait.
    pub status_due_since: Option<DateTime<Utc>>,
    /// When the StatefulSet's events were last read.
    pub events_read: Option<DateTime<Utc>>,
    /// Pods (UIDs) on a node of which no container has been started yet, and what their events say of that.
    pub starting: BTreeMap<String, Option<Trouble>>,
    /// When their events were last read.
    pub starting_read: Option<DateTime<Utc>>,
}

/// One comparison of a live object with what it should be.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Version of the live object; 0 if that is no number, and the comparison counts for nothing then.
    pub version: u64,
    /// Hash of the desired content.
    pub hash: Option<String>,
    /// What came of it.
    pub state: ChildState,
}

impl Memory {
    /// Remembers a failure; what it was done to keeps the count of failures in a row.
    pub fn failed(&mut self, target: Target, kind: FaultKind, message: String, at: DateTime<Utc>) {
        let attempts = self
            .faults
            .get(&target)
            .map_or(0, |fault| fault.attempts)
            .saturating_add(1);
        self.outdated.remove(&target);
        self.faults.insert(
            target.clone(),
            Fault {
                target,
                kind,
                message,
                attempts,
                at,
            },
        );
    }

    /// The failure was a conflict, at this version.
    pub fn found_outdated(&mut self, target: Target, version: Option<String>) {
        self.outdated.insert(target, version);
    }

    /// Forgets every conflict about something of which another version is known by now: it is tried at once.
    pub fn catch_up(&mut self, known: impl Fn(&Target) -> Option<String>) {
        let faults = &mut self.faults;
        self.outdated.retain(|target, version| {
            let same = *version == known(target);
            if !same {
                faults.remove(target);
            }
            same
        });
    }

    /// Until when a write that met a conflict is not repeated.
    pub fn rests(&self, target: &Target, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let fault = self.faults.get(target);
        let conflict = fault.filter(|fault| fault.kind == FaultKind::Conflict);
        conflict.map(retry_at).filter(|again| *again > now)
    }

    /// Remembers a success.
    pub fn succeeded(&mut self, target: &Target) {
        self.faults.remove(target);
        self.outdated.remove(target);
    }

    /// Forgets everything if the resource is another one, and the failures if its spec has changed: what failed may now
    /// succeed, and must not wait for its turn.
    pub fn adopt(&mut self, uid: &str, generation: i64) {
        if self.uid != uid {
            *self = Memory {
                uid: uid.to_owned(),
                ..Memory::default()
            };
        }
        if self.generation != generation {
            self.generation = generation;
            self.faults.clear();
            self.outdated.clear();
            self.unmade_pods.clear();
            self.events_read = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_until_a_success() {
        let mut memory = Memory::default();
        let now = "2027-01-01T00:00:00Z".parse().unwrap();
        let target = Target::Pod("db-0".to_owned());
        memory.failed(target.clone(), FaultKind::Transient, "a".to_owned(), now);
        memory.failed(target.clone(), FaultKind::Quota, "b".to_owned(), now);
        assert_eq!(memory.faults[&target].attempts, 2);
        assert_eq!(memory.faults[&target].kind, FaultKind::Quota);
        memory.succeeded(&target);
        assert!(memory.faults.is_empty());
        memory.failed(target.clone(), FaultKind::Transient, "a".to_owned(), now);
        memory
            .unmade_pods
            .insert("db-0".to_owned(), memory.faults[&target].clone());
        memory.events_read = Some(now);
        memory.adopt("", 1);
        assert!(memory.faults.is_empty(), "a changed spec is tried at once");
        assert!(memory.unmade_pods.is_empty() && memory.events_read.is_none());
        memory.failed(target, FaultKind::Transient, "a".to_owned(), now);
        memory.adopt("another", 1);
        assert!(memory.faults.is_empty());
    }

    #[test]
    fn after_a_conflict_it_rests_longer_each_time_until_another_version_is_known() {
        let mut memory = Memory::default();
        let now: DateTime<Utc> = "2027-01-01T00:00:00Z".parse().unwrap();
        let version = |text: &str| Some(text.to_owned());
        let conflict = |memory: &mut Memory, at: &str| {
            memory.failed(Target::Status, FaultKind::Conflict, "changed".to_owned(), now);
            memory.found_outdated(Target::Status, version(at));
            memory
                .rests(&Target::Status, now)
                .map(|again| (again - now).num_milliseconds())
        };
        for rest in [100, 200, 400] {
            memory.catch_up(|_| version("7"));
            assert_eq!(conflict(&mut memory, "7"), Some(rest));
        }
        memory.catch_up(|_| version("8"));
        assert_eq!(memory.rests(&Target::Status, now), None);
        assert_eq!(conflict(&mut memory, "8"), Some(100), "counted anew");
        // Something else is wrong: another version mends nothing.
        memory.failed(Target::Status, FaultKind::Forbidden, "no".to_owned(), now);
        memory.catch_up(|_| version("9"));
        assert_eq!(memory.faults[&Target::Status].kind, FaultKind::Forbidden);
        assert_eq!(
            memory.rests(&Target::Status, now),
            None,
            "only a conflict is sure to be met again"
        );
    }
}
