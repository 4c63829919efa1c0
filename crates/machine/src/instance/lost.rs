//! A Lease that is lost: deleted, replaced by an empty one, or edited so that nobody understands it. Nobody acts on it.
//!
//! Each agent remembers what it read last. By that the holder may go on as in an outage of the API server
//! ([`super::failsafe`]), and prove that it still is the holder ([`super::restore`]).

use std::collections::BTreeSet;

use super::observed::{LeaseView, Reading};
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

impl LeaseVersion {
    /// The same object, as it is later. Versions of one object grow; they can be compared as numbers (promised since
    /// Kubernetes 1.35, true before).
    fn is_before(&self, later: &LeaseRecord) -> bool {
        let number = |version: &str| version.parse::<u64>().ok();
        let grows = number(&self.version)
            .zip(number(&later.version))
            .is_none_or(|(own, later)| own < later);
        self.uid == later.uid && grows
    }
}

/// What is left of a Lease that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The newest version that this agent has understood.
    pub before: LeaseRecord,
    /// The synchronous rules that may have stood in it: that of `before`, and those in this run's writes on top of it whose
    /// outcome is not known.
    pub rules: BTreeSet<SyncRule>,
    /// One of these writes releases the lease.
    pub releases: bool,
    /// The object in its place, which is empty or not understood; `None`: there is none.
    pub place: Option<LeaseVersion>,
    /// When this agent first saw it as it is now.
    pub since: BootTime,
}

impl LeaseView {
    /// Takes a newer version of the Lease. `None`: there is none. Without a record: nobody understands it.
    pub fn see(&mut self, found: Option<(LeaseVersion, Option<LeaseRecord>)>, now: BootTime) {
        let was_held = self.lost.is_some() || self.record.is().is_some_and(|before| !before.is_empty());
        let (place, seems) = match found {
            None => (None, Reading::Missing),
            Some((place, None)) => (Some(place), Reading::Unknown),
            Some((place, Some(record))) if was_held && record.is_empty() => (Some(place), Reading::Missing),
            Some((_, Some(record))) => {
                (self.record, self.lost) = (Reading::Is(record), None);
                return;
            }
        };
        let before = std::mem::replace(&mut self.record, seems);
        match (&mut self.lost, before) {
            (Some(lost), _) if lost.place == place => {}
            (Some(lost), _) => (lost.place, lost.since) = (place, now),
            (None, Reading::Is(before)) if !before.is_empty() => self.lose(before, place, now),
            (None, _) => {}
        }
    }

    fn lose(&mut self, before: LeaseRecord, place: Option<LeaseVersion>, now: BootTime) {
        let unsettled = self.unsettled.as_ref();
        let unsettled = unsettled.filter(|unsettled| unsettled.version == before.version);
        let mut rules = unsettled.map_or_else(BTreeSet::new, |unsettled| unsettled.rules.clone());
        rules.insert(before.rule.clone());
        self.lost = Some(Lost {
            rules,
            releases: unsettled.is_some_and(|unsettled| unsettled.releases),
            before,
            place,
            since: now,
        });
    }

    /// Takes what this run wrote, if the answer comes after the Lease that it was written to was seen to be lost. `false`: that
    /// Lease is not lost.
    pub fn recall(&mut self, written: &LeaseRecord) -> bool {
        let Some(lost) = &mut self.lost else { return false };
        if lost.place.as_ref().is_some_and(|place| place.is_before(written)) {
            return false;
        }
        if lost.before.uid == written.uid {
            lost.rules = BTreeSet::from([written.rule.clone()]);
            (lost.before, lost.releases) = (written.clone(), false);
        }
        true
    }
}

#[cfg(test)]
mod tests;
