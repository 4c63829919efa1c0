//! A lost Lease: deleted, replaced by an empty one, or edited so that no agent understands it. No agent acts on it.
//!
//! Each agent remembers its last content. With that the holder may go on as in an outage of the API server
//! ([`super::failsafe`]), and prove that it is still the holder ([`super::restore`]).

use std::collections::BTreeSet;

use super::observed::{LeaseVersion, LeaseView, Lost, Reading};
use crate::protocol::LeaseRecord;
use crate::timing::BootTime;

impl LeaseVersion {
    /// True if `later` is the same object at a later time. Versions of one object grow and can be compared as numbers
    /// (guaranteed since Kubernetes 1.35, true before).
    fn is_before(&self, later: &LeaseRecord) -> bool {
        let number = |version: &str| version.parse::<u64>().ok();
        let grows = number(&self.version)
            .zip(number(&later.version))
            .is_none_or(|(own, later)| own < later);
        self.uid == later.uid && grows
    }
}

impl LeaseView {
    /// Takes a newer version of the Lease. `None`: it does not exist. Without a record: it cannot be understood.
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

    /// Takes this run's own write, if its answer arrives after the Lease was seen to be lost. Returns `false` if that
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
