use super::super::Unsettled;
use super::super::fixtures::*;
use super::*;
use crate::protocol::Epoch;
use crate::quorum::SyncRule;

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
fn a_lease_that_is_gone_or_not_understood_or_empty_is_lost_and_its_content_remembered() {
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
fn a_lease_that_was_never_read_or_was_always_empty_is_not_lost() {
    let mut view = LeaseView::default();
    view.see(None, BootTime(5));
    assert_eq!((&view.record, before(&view)), (&Reading::Missing, None));
    view.see(Some((version("new", "9"), Some(empty_lease("new")))), BootTime(6));
    assert_eq!((&view.record, before(&view)), (&Reading::Is(empty_lease("new")), None));
    view.see(None, BootTime(7));
    assert_eq!(before(&view), None, "it had no content");
}

#[test]
fn each_new_object_in_its_place_restarts_the_count() {
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
fn rules_of_writes_with_unknown_outcome_count_as_well() {
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
fn a_late_answer_shows_the_content_of_the_lease_when_it_was_lost() {
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
