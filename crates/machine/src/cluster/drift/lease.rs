//! The Lease: when a lost one is made again, for whom, and what ends the wait for it.

use std::collections::BTreeSet;

use api::status::MemberRole;

use super::super::action::Action;
use super::super::decision::Step;
use super::super::durability;
use super::super::facts::Facts;
use super::super::observed::{ChildKind, ChildState, Known, Pod};
use super::super::rule::{Proposal, Rule};
use super::{lost, way_back};
use crate::protocol::{Epoch, LeaseRecord, MemberId, Timeline, accepted_loss};
use crate::quorum::SyncRule;

/// See [`Rule::what`].
pub const RECREATE_LEASE: Rule = Rule {
    name: "recreate-lease",
    family: "drift",
    what: "A lost Lease is made again only on the user's word (annotation with the resource's UID), for the member that held it last.",
    propose: recreate_lease,
    passable: false,
};

/// The Lease says nothing, and it did before: somebody has emptied it, or it is in the place of one that is lost.
pub(in crate::cluster) fn is_emptied(facts: &Facts<'_>) -> bool {
    let found = facts.observed.lease.get().and_then(Option::as_ref);
    facts.bootstrapped() && found.is_some_and(LeaseRecord::is_empty)
}

/// The last primary may prove that it still holds the lost Lease, and write it again (`instance::restore`): it is ready, and commits wait
/// for standbys. An order of the user goes first. The operator only makes the object, empty: that gives nobody any right.
pub(in crate::cluster) fn may_heal(facts: &Facts<'_>) -> bool {
    let accepted = facts
        .wanted
        .accept_loss
        .and_then(|said| accepted_loss(said, facts.wanted.uid));
    let accepts = accepted.is_some_and(|epoch| facts.status.epoch.is_none_or(|seen| epoch.0 >= seen));
    let ordered = facts.wanted.recreate_lease == Some(facts.wanted.uid) || accepts;
    durability::wanted(facts).standbys > 0 && !ordered && last_pod(facts).is_some()
}

/// The last primary's pod, if it is ready.
pub(super) fn last_pod<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    last_primary(facts)?;
    let is_last = |pod: &&Pod| {
        let member = facts.member(pod);
        member.is_some_and(|member| member.role == Some(MemberRole::Primary))
    };
    let found = facts.pods().iter().find(is_last)?;
    (found.ready && !found.terminating).then_some(found)
}

/// What is wrong with a Lease that is there: agents act on it as little as the operator, and the primary stops.
pub(in crate::cluster) fn understood_by_nobody<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    match facts.child(ChildKind::Lease)? {
        ChildState::Damaged { what, .. } => Some(what),
        ChildState::Missing | ChildState::Current { .. } | ChildState::Drifted { .. } | ChildState::Foreign { .. } => {
            None
        }
    }
}

fn recreate_lease(facts: &Facts<'_>) -> Option<Proposal> {
    let gone = lost(facts, ChildKind::Lease) && facts.observed.lease == Known::Known(None);
    if !gone || facts.wanted.recreate_lease != Some(facts.wanted.uid) {
        return None;
    }
    let (member, system_id) = last_primary(facts)?;
    let epoch = Epoch::new(facts.status.epoch?).ok()?.next()?;
    let because = format!("the Lease is lost, and its annotation asks for a new one for {member}, the last primary");
    let members = facts.status.members.values();
    let others: BTreeSet<_> = members
        .filter_map(|found| MemberId::parse(found.member_id.as_deref()?))
        .filter(|other| *other != member)
        .collect();
    let required = usize::from(!others.is_empty());
    let timeline = facts.status.timeline.map(Timeline);
    let lossy = timeline.unwrap_or(Timeline(1)).next()?;
    let action = Action::RecreateLease {
        member,
        epoch,
        system_id,
        rule: SyncRule::any(required, others),
        timeline,
        lossy,
    };
    Proposal::act(Step::Repair, action, because)
}

/// The member that the status names as the last primary, with the system identifier of its data.
pub(in crate::cluster) fn last_primary(facts: &Facts<'_>) -> Option<(MemberId, String)> {
    let mut primaries = facts
        .status
        .members
        .values()
        .filter(|member| member.role == Some(MemberRole::Primary));
    let (one, None) = (primaries.next()?, primaries.next()) else {
        return None;
    };
    Some((
        MemberId::parse(one.member_id.as_deref()?)?,
        facts.status.system_identifier.clone()?,
    ))
}

/// The way back from a Lease that cannot be understood.
pub(in crate::cluster) const PUT_RIGHT: &str = "the user, by putting the annotation right (kubectl edit lease), after which everything \
                                    goes on by itself; or, where nobody knows what it was, by deleting the Lease, after which \
                                    it is said how it is made again";

/// The way back from a Lease that is empty.
pub(in crate::cluster) const EMPTIED: &str = "the user, by deleting the empty Lease, and by the annotation \
                                  clustereddatabase.io/recreate-lease with the UID of this ClusteredDatabase";

/// The way back from a Lease that its holder does not write again.
pub(super) fn if_not_healed(facts: &Facts<'_>) -> &'static str {
    match understood_by_nobody(facts) {
        Some(_) => PUT_RIGHT,
        None if is_emptied(facts) => EMPTIED,
        None => way_back(ChildKind::Lease),
    }
}

#[cfg(test)]
mod tests {
    use api::Phase;
    use api::status::{DurabilityMode, FailureReason};

    use super::super::fixtures::{make_all_but_the_stateful_set, with};
    use super::*;
    use crate::cluster::testing::{Scene, empty_lease};
    use crate::cluster::{Apply, ApplyHow};

    #[test]
    fn a_lost_lease_is_made_empty_while_its_holder_is_ready_and_commits_wait() {
        let lost = |change: fn(&mut Scene)| {
            let mut scene = Scene::ready(3);
            scene.set_child(ChildKind::Lease, ChildState::Missing);
            scene.observed.lease = Known::Known(None);
            change(&mut scene);
            let decision = scene.decide();
            let is_made = matches!(
                &decision.action,
                Action::Apply(Apply {
                    kind: ChildKind::Lease,
                    how: ApplyHow::Make,
                    ..
                })
            );
            let failed = decision.failure.map(|failure| failure.reason);
            assert_eq!(failed.is_none(), is_made, "{failed:?}");
            is_made
        };
        assert!(lost(|_| {}));
        assert!(!lost(|scene| scene.pod_mut(0).ready = false), "the holder has stopped");
        assert!(!lost(|scene| scene.pod_mut(0).terminating = true));
        assert!(!lost(|scene| scene.pod_mut(0).uid = "another".to_owned()));
        assert!(
            !lost(|scene| scene.accept_loss = Some(scene.with_wanted(|wanted| format!("{}/9", wanted.uid)))),
            "it may have been taken by that"
        );
        assert!(
            !lost(|scene| scene.spec.durability.mode = Some(DurabilityMode::Async)),
            "commits wait for nobody"
        );
    }

    #[test]
    fn the_holder_of_a_lost_lease_is_waited_for_as_long_as_it_is_ready() {
        let empty = |scene: &mut Scene| scene.observed.lease = Known::Known(Some(empty_lease()));
        let damaged = |scene: &mut Scene| {
            let what = "has a release that cannot be read".to_owned();
            let (uid, resource_version) = ("lease".to_owned(), "9".to_owned());
            scene.set_child(
                ChildKind::Lease,
                ChildState::Damaged {
                    uid,
                    resource_version,
                    what,
                    recoverable: false,
                },
            );
            scene.observed.lease = Known::Unknown;
        };
        type Place<'a> = &'a dyn Fn(&mut Scene);
        let places: [(Place<'_>, &str); 2] = [(&empty, EMPTIED), (&damaged, PUT_RIGHT)];
        for (place, way_back) in places {
            let mut scene = Scene::ready(3);
            let epoch = scene.status(&scene.decide()).epoch;
            place(&mut scene);
            let decision = scene.decide();
            assert_eq!((decision.rule, decision.failure.is_none()), ("blocked", true));
            let status = scene.status(&decision);
            assert_eq!(status.epoch, epoch, "an empty Lease says nothing");
            let waiting = status.waiting.unwrap();
            assert!(
                waiting
                    .what
                    .ends_with("to be written again by demo-0, which serves and held it"),
                "{}",
                waiting.what
            );
            assert!(
                waiting.who_can_end_it.starts_with("the agent in pod demo-0"),
                "{}",
                waiting.who_can_end_it
            );
            scene.pod_mut(0).ready = false;
            let decision = scene.decide();
            assert_eq!(decision.failure.as_ref().unwrap().reason, FailureReason::PartLost);
            let waiting = scene.status(&decision).waiting.unwrap();
            assert_eq!(waiting.who_can_end_it, way_back);
        }
    }

    #[test]
    fn a_lost_lease_whose_last_holder_is_not_on_record_is_told_so() {
        let mut scene = Scene::ready(3);
        scene.set_child(ChildKind::Lease, ChildState::Missing);
        (scene.observed.lease, scene.recreate_lease) = (
            Known::Known(None),
            Some(scene.with_wanted(|wanted| wanted.uid.to_owned())),
        );
        scene.stored.members.clear();
        let message = scene.decide().failure.unwrap().message;
        assert!(message.contains("who held it last is not on record"), "{message}");
    }

    #[test]
    fn of_two_that_were_primary_nobody_knows_who_was_the_last() {
        let mut scene = Scene::ready(3);
        assert!(with(&scene, last_primary).is_some());
        scene.stored.members.get_mut("demo-2").unwrap().role = Some(api::status::MemberRole::Primary);
        assert_eq!(with(&scene, last_primary), None);
    }

    #[test]
    fn a_lease_that_nobody_understands_is_told_with_the_way_back_and_left_alone() {
        for mut scene in [Scene::ready(3), Scene::new(3)] {
            (scene.finalizer, scene.recreate_lease) = (true, Some(scene.with_wanted(|wanted| wanted.uid.to_owned())));
            if scene.pods().is_empty() {
                make_all_but_the_stateful_set(&mut scene);
            }
            scene.observed.lease = Known::Unknown;
            let damaged = ChildState::Damaged {
                uid: "u".to_owned(),
                resource_version: "9".to_owned(),
                what: "cannot be understood: its annotation x".to_owned(),
                recoverable: false,
            };
            scene.set_child(ChildKind::Lease, damaged);
            let decision = scene.decide();
            let failure = decision.failure.unwrap();
            assert_eq!(
                (decision.phase, failure.reason),
                (Phase::Failed, FailureReason::PartLost)
            );
            for words in ["cannot be understood: its annotation x", PUT_RIGHT] {
                assert!(failure.message.contains(words), "{}", failure.message);
            }
            let Action::Wait(waiting) = decision.action else {
                panic!("{:?}", decision.action)
            };
            assert!(
                waiting
                    .what
                    .ends_with("Lease demo, which cannot be understood: its annotation x"),
                "{}",
                waiting.what
            );
            assert_eq!(waiting.who_can_end_it, PUT_RIGHT);
        }
    }

    #[test]
    fn a_lease_that_is_made_again_asks_all_other_members() {
        let mut scene = Scene::ready(3);
        scene.elect(1);
        scene.store();
        scene.set_child(ChildKind::Lease, ChildState::Missing);
        scene.observed.lease = Known::Known(None);
        scene.recreate_lease = Some(scene.with_wanted(|wanted| wanted.uid.to_owned()));
        let Action::RecreateLease {
            member,
            epoch,
            rule,
            timeline,
            lossy,
            ..
        } = scene.decide().action
        else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(member.ordinal(), Some(1));
        assert_eq!((epoch, timeline), (Epoch(3), Some(Timeline(1))));
        assert_eq!(lossy, Timeline(2), "what was given up on timeline 1 is not known");
        assert_eq!((rule.required, rule.names.len(), rule.promises_needed()), (1, 2, 2));
        assert!(!rule.names.contains(&member));
    }
}
