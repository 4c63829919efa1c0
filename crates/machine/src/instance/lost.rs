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
mod tests {
    use super::super::Unsettled;
    use super::super::fixtures::*;
    use super::*;
    use crate::protocol::Epoch;

    fn version(uid: &str, version: &str) -> LeaseVersion {
        LeaseVersion {
            uid: uid.to_owned(),
            version: version.to_owned(),
            owner: None,
        }
    }

    /// What the holder of [`primary`] sees of the Lease.
    fn held() -> LeaseView {
        primary().lease
    }

    fn before(view: &LeaseView) -> Option<(&str, BootTime)> {
        let lost = view.lost.as_ref()?;
        Some((lost.before.version.as_str(), lost.since))
    }

    #[test]
    fn a_lease_that_is_gone_or_not_understood_or_empty_is_lost_and_what_it_said_is_kept() {
        let known = held().record.is().expect("a record").version.clone();
        let found = [
            (None, Reading::Missing),
            (Some((version("lease", "9"), None)), Reading::Unknown),
            (Some((version("new", "9"), Some(empty_lease("new")))), Reading::Missing),
        ];
        for (found, seems) in found {
            let mut view = held();
            view.see(found, BootTime(5));
            assert_eq!(
                (&view.record, before(&view)),
                (&seems, Some((known.as_str(), BootTime(5))))
            );
            view.see(Some((version("new", "10"), held().record.is().cloned())), BootTime(6));
            assert_eq!(
                (before(&view), &view.record),
                (None, &held().record),
                "it is understood again"
            );
        }
    }

    #[test]
    fn whoever_never_read_it_has_lost_nothing_and_an_empty_one_is_what_it_is() {
        let mut view = LeaseView::default();
        view.see(None, BootTime(5));
        assert_eq!((&view.record, before(&view)), (&Reading::Missing, None));
        view.see(Some((version("new", "9"), Some(empty_lease("new")))), BootTime(6));
        assert_eq!((&view.record, before(&view)), (&Reading::Is(empty_lease("new")), None));
        view.see(None, BootTime(7));
        assert_eq!(before(&view), None, "nothing stood in it");
    }

    #[test]
    fn each_other_object_in_its_place_begins_the_count_anew() {
        let mut view = held();
        let mut since = Vec::new();
        let found = [None, None, Some("9"), Some("9"), Some("10"), None];
        for (at, found) in (10..).zip(found) {
            view.see(found.map(|found| (version("lease", found), None)), BootTime(at));
            since.push(before(&view).expect("it is lost").1.0);
        }
        assert_eq!(since, [10, 10, 12, 12, 14, 15]);
    }

    #[test]
    fn rules_of_writes_that_may_have_come_through_count_as_well() {
        let rules = |of: &str, releases| {
            let mut view = held();
            let rule = SyncRule::any(1, [third()]);
            view.unsettled = Some(Unsettled {
                version: of.to_owned(),
                rules: BTreeSet::from([rule]),
                releases,
            });
            view.see(None, BootTime(5));
            let lost = view.lost.expect("it is lost");
            (lost.rules.len(), lost.releases)
        };
        let current = held().record.is().expect("a record").version.clone();
        assert_eq!(rules(&current, true), (2, true));
        assert_eq!(rules("an older one", true), (1, false), "it cannot succeed any more");
    }

    #[test]
    fn a_late_answer_tells_what_stood_in_the_lease_when_it_was_lost() {
        let written = |uid: &str, version: &str| LeaseRecord {
            uid: uid.to_owned(),
            version: version.to_owned(),
            epoch: Epoch(4),
            ..held().record.is().expect("a record").clone()
        };
        let mut view = held();
        assert!(!view.recall(&written("lease", "8")), "it is not lost");
        view.see(Some((version("lease", "9"), None)), BootTime(5));
        assert!(view.recall(&written("lease", "8")));
        assert_eq!(before(&view), Some(("8", BootTime(5))));
        assert!(!view.recall(&written("lease", "10")), "it replaced what was lost");
        view.see(Some((version("new", "11"), Some(empty_lease("new")))), BootTime(6));
        assert!(view.recall(&written("lease", "10")));
        assert_eq!(before(&view), Some(("10", BootTime(6))));
    }
}
