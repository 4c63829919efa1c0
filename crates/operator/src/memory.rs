//! What the operator remembers of a database between two looks at it. All of it can be lost: it is then found out again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use machine::cluster::{Fault, ForeignRoute, ImageError, OwnedObject, OwnedState, Target, Trouble};
use machine::reconcile::{Changed, Pass};

use crate::desired::Wants;
use crate::observe::Checked;

/// What is remembered of one database.
#[derive(Debug, Default)]
pub struct Memory {
    /// Failures, and when the status is due.
    pub pass: Pass<Target>,
    /// Why the StatefulSet makes no pod, by the pod's name, as its events say.
    pub unmade_pods: BTreeMap<String, Fault>,
    /// What is wanted.
    pub wants: Option<Arc<Wants>>,
    /// Kinds of which an object with our name, but without our label, was met: the watch does not show it.
    pub strays: BTreeSet<OwnedObject>,
    /// Differences that were still there in the API server's answer to our own apply (somebody rewrites objects on
    /// their way in): applying again would never end.
    pub tolerated: BTreeMap<OwnedObject, Vec<String>>,
    /// The last comparisons, for objects and contents that have not changed since.
    pub compared: BTreeMap<OwnedObject, Compared>,
    /// What the Secrets hold, each at the version that was last read.
    pub checked: BTreeMap<OwnedObject, Checked>,
    /// Image faults as they were first seen, by pod UID and image.
    pub image_faults: BTreeMap<(String, String), ImageError>,
    /// Addresses to which `-rw` leads, and which no pod has.
    pub foreign_route: Option<ForeignRoute>,
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
    pub state: OwnedState,
}

impl Memory {
    /// Before each decision: this is the resource now, and `version` tells the version by which each target is known. Forgets
    /// everything if the resource is another one, and what failed if its spec has changed.
    pub fn begin(&mut self, uid: &str, generation: i64, version: impl Fn(&Target) -> Option<String>) {
        match self.pass.begin(uid, generation, version) {
            Changed::Nothing => {}
            Changed::Spec => {
                self.unmade_pods.clear();
                self.events_read = None;
            }
            Changed::Resource => {
                *self = Memory {
                    pass: std::mem::take(&mut self.pass),
                    ..Memory::default()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use machine::cluster::FaultKind;

    use super::*;

    #[test]
    fn why_pods_are_not_made_is_read_again_for_another_spec() {
        let mut memory = Memory::default();
        let now = "2027-01-01T00:00:00Z".parse().unwrap();
        memory.begin("a", 1, |_| None);
        let fault = Fault {
            target: Target::Pod("db-0".to_owned()),
            kind: FaultKind::Quota,
            message: "no".to_owned(),
            attempts: 1,
            at: now,
        };
        memory.unmade_pods.insert("db-0".to_owned(), fault);
        memory.events_read = Some(now);
        memory.strays.insert(OwnedObject::Lease);
        memory.begin("a", 1, |_| None);
        assert_eq!(memory.unmade_pods.len(), 1);
        memory.begin("a", 2, |_| None);
        assert!(memory.unmade_pods.is_empty() && memory.events_read.is_none());
        assert_eq!(memory.strays.len(), 1);
        memory.begin("another", 2, |_| None);
        assert!(memory.strays.is_empty());
    }
}
