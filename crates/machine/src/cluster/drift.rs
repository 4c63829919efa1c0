//! Objects: made in the order of [`ChildKind`], put right when changed, and what is in the way of that.

use std::collections::BTreeSet;

use api::status::MemberRole;

use super::action::{Action, Apply, ApplyHow, Exact};
use super::decision::Step;
use super::durability;
use super::facts::Facts;
use super::failure::resting;
use super::hibernation;
use super::observed::{ChildKind, ChildState, Claim, Known, Pod, StorageClass, Volume};
use super::rule::{Proposal, Rule};
use super::wal;
use crate::protocol::{Epoch, LeaseRecord, MemberId, Timeline, accepted_loss};
use crate::quorum::SyncRule;

/// See [`Rule::what`].
pub const CHILDREN: Rule = Rule {
    name: "children",
    family: "drift",
    what: "The first object, in the order of creation, that is missing or not as it should be is made or put right; while one is refused, those behind it have their turn, and so have the rules behind this one.",
    propose: children,
    passable: true,
};

/// See [`Rule::what`].
pub const RECREATE_LEASE: Rule = Rule {
    name: "recreate-lease",
    family: "drift",
    what: "A lost Lease is made again only on the user's word (annotation with the resource's UID), for the member that held it last.",
    propose: recreate_lease,
    passable: false,
};

/// See [`Rule::what`].
pub const BLOCKED: Rule = Rule {
    name: "blocked",
    family: "drift",
    what: "While an object is refused, lost, foreign or could not be read, nothing that builds on it is changed. A database that was made builds neither on its Services for clients nor on its budgets: they are tried again, and everything else goes on.",
    propose: blocked,
    passable: false,
};

fn children(facts: &Facts<'_>) -> Option<Proposal> {
    let mut refused: Option<Proposal> = None;
    let mut again = None;
    for kind in ChildKind::ALL {
        let Some(proposal) = child(facts, kind) else { continue };
        let Some(rest) = resting(facts, &proposal.action) else {
            return Some(proposal.looking_again_by(again));
        };
        again = [again, rest.wake].into_iter().flatten().min();
        refused = refused.or(Some(proposal));
    }
    Some(refused?.looking_again_by(again))
}

/// What is waited for while this object cannot be made or put right.
fn refused(facts: &Facts<'_>, kind: ChildKind) -> Option<Proposal> {
    resting(facts, &child(facts, kind)?.action)
}

/// Only clients, or who drains a node, go by this object: nothing that is decided here does.
const fn is_for_others(kind: ChildKind) -> bool {
    match kind {
        ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget => true,
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::RoleBinding
        | ChildKind::CaSecret
        | ChildKind::TlsSecret
        | ChildKind::AppSecret
        | ChildKind::HeadlessService
        | ChildKind::EndpointSlice
        | ChildKind::Lease
        | ChildKind::StatefulSet => false,
    }
}

/// What builds on this object has to wait for it.
fn holds_up(facts: &Facts<'_>, kind: ChildKind) -> bool {
    let refused = refused(facts, kind).is_some();
    let spared = is_for_others(kind) && facts.bootstrapped() && !hibernation::wanted(facts);
    // A StatefulSet that has to be made again, and could not be.
    let stuck = kind == ChildKind::StatefulSet
        && matches!(facts.child(kind), Some(ChildState::Drifted { immutable: true, .. }));
    if refused {
        !spared
    } else {
        stuck || !exists(facts, kind) || lost(facts, kind)
    }
}

/// Everything is there that a primary needs to hand over.
pub(super) fn may_hand_over(facts: &Facts<'_>) -> bool {
    ChildKind::ALL
        .iter()
        .all(|kind| exists(facts, *kind) || !holds_up(facts, *kind))
}

fn child(facts: &Facts<'_>, kind: ChildKind) -> Option<Proposal> {
    let step = if facts.bootstrapped() {
        Step::Repair
    } else {
        Step::Objects
    };
    let name = || format!("{} {}", kind.kind(), facts.child_name(kind));
    match facts.child(kind)? {
        ChildState::Current { .. } | ChildState::Foreign { .. } => None,
        ChildState::Missing if may_make(facts, kind) => {
            let action = Action::Apply(Apply {
                kind,
                how: ApplyHow::Make,
                replicas: replicas(facts, kind),
                wal: replicas(facts, kind).map(|replicas| wal::of_new_set(facts, replicas)),
            });
            Proposal::act(step, action, format!("{} is missing", name()))
        }
        ChildState::Damaged {
            uid,
            resource_version,
            what,
            ..
        } if may_make(facts, kind) => {
            let how = ApplyHow::Renew(Exact::new(facts.child_name(kind), uid, resource_version));
            let action = Action::Apply(Apply {
                kind,
                how,
                replicas: None,
                wal: None,
            });
            Proposal::act(step, action, format!("{} {what}", name()))
        }
        ChildState::Missing | ChildState::Damaged { .. } => None,
        ChildState::Drifted {
            uid,
            resource_version,
            what,
            immutable,
        } => {
            if kind == ChildKind::RoleBinding && is_identity_foreign(facts) {
                return None;
            }
            let exact = Exact::new(facts.child_name(kind), uid, resource_version);
            let because = format!("{} differs in {what}", name());
            if kind == ChildKind::StatefulSet && *immutable {
                if !may_make_stateful_set(facts) {
                    return None;
                }
                return Proposal::act(step, Action::OrphanStatefulSet(exact), because);
            }
            if kind == ChildKind::RoleBinding && *immutable {
                return Proposal::act(step, Action::DeleteRoleBinding(exact), because);
            }
            let how = ApplyHow::Change(exact);
            Proposal::act(
                step,
                Action::Apply(Apply {
                    kind,
                    how,
                    replicas: replicas(facts, kind),
                    wal: None,
                }),
                because,
            )
        }
    }
}

/// Whether a missing object may be made.
fn may_make(facts: &Facts<'_>, kind: ChildKind) -> bool {
    if lost(facts, kind) {
        return kind == ChildKind::Lease && facts.missing(kind) && may_heal(facts);
    }
    match kind {
        ChildKind::CaSecret | ChildKind::AppSecret | ChildKind::Lease => {
            // Whether it was made before shows in what is made after it.
            facts.child(ChildKind::StatefulSet).is_some() && facts.observed.pods.get().is_some()
        }
        ChildKind::TlsSecret => exists(facts, ChildKind::CaSecret),
        ChildKind::StatefulSet => may_make_stateful_set(facts),
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::HeadlessService
        | ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::EndpointSlice
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget => true,
        ChildKind::RoleBinding => !is_identity_foreign(facts),
    }
}

/// The agents' ServiceAccount or Role belongs to somebody else. Binding the two would give our agents foreign rights, or a
/// foreign account ours; pods would run as that account.
fn is_identity_foreign(facts: &Facts<'_>) -> bool {
    [ChildKind::ServiceAccount, ChildKind::Role]
        .into_iter()
        .any(|kind| matches!(facts.child(kind), Some(ChildState::Foreign { .. })))
}

/// It brings pods: everything that they need is there, their identity is ours, and so are the claims that they would pick up. A
/// database that was made before comes back even if a part that only clients need is in dispute.
pub(super) fn may_make_stateful_set(facts: &Facts<'_>) -> bool {
    let readable = facts.observed.pods.get().is_some() && facts.observed.claims.get().is_some();
    let ready = ChildKind::ALL
        .iter()
        .all(|kind| *kind == ChildKind::StatefulSet || exists(facts, *kind));
    readable
        && !is_identity_foreign(facts)
        && foreign_claim(facts, facts.wanted.replicas()).is_none()
        && (facts.bootstrapped() || (ready && storage_class_fault(facts).is_none()))
}

/// It is there, and ours.
pub(super) fn exists(facts: &Facts<'_>, kind: ChildKind) -> bool {
    matches!(
        facts.child(kind),
        Some(ChildState::Current { .. } | ChildState::Drifted { .. })
    )
}

/// `replicas` of an object that has such a number. A StatefulSet is never made smaller here, and one that is made again
/// covers every pod that is alive, and who holds or last held the Lease: how it gets smaller is for the rules of scaling.
/// Whose claims new pods would pick up must be known before it gets larger.
fn replicas(facts: &Facts<'_>, kind: ChildKind) -> Option<u32> {
    let wanted = facts.wanted.replicas();
    match kind {
        ChildKind::StatefulSet => {
            let alive = facts.pods().iter().map(|pod| pod.ordinal + 1).max().unwrap_or(0);
            let set = facts.observed.stateful_set.as_ref();
            if hibernation::wanted(facts) {
                return Some(set.map_or(alive, |set| set.replicas));
            }
            let wanted = wanted.max(returning(facts));
            let now = set.map_or(alive, |set| set.replicas);
            Some(
                if facts.observed.claims.get().is_none() || foreign_claim(facts, wanted).is_some() {
                    now
                } else {
                    now.max(wanted)
                },
            )
        }
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::RoleBinding
        | ChildKind::CaSecret
        | ChildKind::TlsSecret
        | ChildKind::AppSecret
        | ChildKind::HeadlessService
        | ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::EndpointSlice
        | ChildKind::Lease
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget => None,
    }
}

/// How many instances it takes to have who was primary last among them, while nobody serves: its data is the newest, and
/// a database may have been stopped with more instances than it is to have now.
pub(super) fn returning(facts: &Facts<'_>) -> u32 {
    if facts.primary().is_some() { 0 } else { leading(facts) }
}

/// How many instances it takes to have the Lease's holder, and who released it last, among them: their data is the newest.
fn leading(facts: &Facts<'_>) -> u32 {
    let holder = facts.holder().and_then(|holder| facts.ordinal(&holder.incarnation.pod));
    let release = facts.lease.and_then(|lease| lease.release.as_ref());
    let last = release.and_then(|release| release.member.ordinal());
    holder.max(last).map_or(0, |ordinal| ordinal.saturating_add(1))
}

/// An object that is gone and cannot be made again with the same content: making it with other content would lock
/// members or applications out, or let two primaries be.
pub(super) fn lost(facts: &Facts<'_>, kind: ChildKind) -> bool {
    let unique = match kind {
        ChildKind::CaSecret | ChildKind::Lease => true,
        // With the user's own password it is made again as it was.
        ChildKind::AppSecret => facts.wanted.spec.bootstrap.initdb.password_secret.is_none(),
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::RoleBinding
        | ChildKind::TlsSecret
        | ChildKind::HeadlessService
        | ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::EndpointSlice
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget
        | ChildKind::StatefulSet => false,
    };
    let gone = match facts.child(kind) {
        Some(ChildState::Missing) => true,
        Some(ChildState::Damaged { recoverable, .. }) => !recoverable,
        Some(ChildState::Current { .. } | ChildState::Drifted { .. }) => kind == ChildKind::Lease && is_emptied(facts),
        Some(ChildState::Foreign { .. }) | None => false,
    };
    unique && gone && was_made(facts, kind)
}

/// The Lease says nothing, and it did before: somebody has emptied it, or it is in the place of one that is lost.
pub(super) fn is_emptied(facts: &Facts<'_>) -> bool {
    let found = facts.observed.lease.get().and_then(Option::as_ref);
    facts.bootstrapped() && found.is_some_and(LeaseRecord::is_empty)
}

/// The last primary may prove that it still holds the lost Lease, and write it again (`instance::restore`): it is ready, and commits wait
/// for standbys. An order of the user goes first. The operator only makes the object, empty: that gives nobody any right.
pub(super) fn may_heal(facts: &Facts<'_>) -> bool {
    let accepted = facts
        .wanted
        .accept_loss
        .and_then(|said| accepted_loss(said, facts.wanted.uid));
    let accepts = accepted.is_some_and(|epoch| facts.status.epoch.is_none_or(|seen| epoch.0 >= seen));
    let ordered = facts.wanted.recreate_lease == Some(facts.wanted.uid) || accepts;
    durability::wanted(facts).standbys > 0 && !ordered && last_pod(facts).is_some()
}

/// The last primary's pod, if it is ready.
fn last_pod<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    last_primary(facts)?;
    let is_last = |pod: &&Pod| {
        let member = facts.member(pod);
        member.is_some_and(|member| member.role == Some(MemberRole::Primary))
    };
    let found = facts.pods().iter().find(is_last)?;
    (found.ready && !found.terminating).then_some(found)
}

/// What is wrong with a Lease that is there: agents act on it as little as the operator, and the primary stops.
pub(super) fn understood_by_nobody<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    match facts.child(ChildKind::Lease)? {
        ChildState::Damaged { what, .. } => Some(what),
        ChildState::Missing | ChildState::Current { .. } | ChildState::Drifted { .. } | ChildState::Foreign { .. } => {
            None
        }
    }
}

/// By the record, or by what is only ever made after it.
fn was_made(facts: &Facts<'_>, kind: ChildKind) -> bool {
    let recorded = match kind {
        // One that is there was made: it is not given other content either.
        ChildKind::Lease => facts.status.memo.lease_made || understood_by_nobody(facts).is_some(),
        _ => facts.recorded_uid(kind).is_some(),
    };
    recorded || facts.bootstrapped() || exists(facts, ChildKind::StatefulSet) || !facts.pods().is_empty()
}

/// The first lost object.
pub(super) fn first_lost(facts: &Facts<'_>) -> Option<ChildKind> {
    [ChildKind::CaSecret, ChildKind::AppSecret, ChildKind::Lease]
        .into_iter()
        .find(|kind| lost(facts, *kind))
}

/// The first object that belongs to somebody else.
pub(super) fn first_foreign<'a>(facts: &Facts<'a>) -> Option<(ChildKind, &'a str)> {
    ChildKind::ALL.iter().find_map(|kind| match facts.child(*kind)? {
        ChildState::Foreign { why } => Some((*kind, why.as_str())),
        ChildState::Missing | ChildState::Current { .. } | ChildState::Drifted { .. } | ChildState::Damaged { .. } => {
            None
        }
    })
}

/// The first claim that one of `replicas` pods would pick up though it was made for another database.
pub(super) fn foreign_claim<'a>(facts: &Facts<'a>, replicas: u32) -> Option<&'a Claim> {
    let theirs = |claim: &&Claim| !facts.owns(claim);
    facts
        .claims()
        .iter()
        .filter(|claim| claim.ordinal < replicas)
        .find(theirs)
}

/// Why no volumes can be had, if some are still needed.
pub(super) fn storage_class_fault<'a>(facts: &Facts<'a>) -> Option<(Volume, &'a StorageClass)> {
    let waits = |claim: &Claim| !claim.bound && !claim.terminating && !wal::is_spare(facts, claim);
    let all = facts.missing(ChildKind::StatefulSet) && !facts.bootstrapped();
    [Volume::Data, Volume::Wal].into_iter().find_map(|volume| {
        let class = facts.storage_class(volume)?;
        let mut claims = facts.claims().iter().filter(|claim| claim.volume == volume);
        let needed = all || claims.any(waits);
        match class {
            StorageClass::Missing { .. } | StorageClass::NoDefault if needed => Some((volume, class)),
            StorageClass::Missing { .. } | StorageClass::NoDefault | StorageClass::Present { .. } => None,
        }
    })
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
pub(super) fn last_primary(facts: &Facts<'_>) -> Option<(MemberId, String)> {
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

fn blocked(facts: &Facts<'_>) -> Option<Proposal> {
    let step = if facts.bootstrapped() {
        Step::Repair
    } else {
        Step::Objects
    };
    let kind = ChildKind::ALL.into_iter().find(|kind| holds_up(facts, *kind))?;
    if let Some(rest) = refused(facts, kind) {
        return Some(rest);
    }
    let name = format!("{} {}", kind.kind(), facts.child_name(kind));
    match facts.child(kind) {
        None => Proposal::unread(facts, step, name),
        Some(ChildState::Foreign { why }) => {
            let what = format!("{name} to go away, which is {why}");
            Proposal::wait(facts, step, what, "its owner, or whoever deletes it")
        }
        _ if kind == ChildKind::Lease && lost(facts, kind) && may_heal(facts) => {
            let pod = &last_pod(facts)?.name;
            let what = format!("{name} to be written again by {pod}, which serves and held it");
            let who = format!("the agent in pod {pod}; if it cannot: {}", if_not_healed(facts));
            Proposal::wait(facts, step, what, who)
        }
        Some(ChildState::Damaged { what, .. }) if kind == ChildKind::Lease => {
            Proposal::wait(facts, step, format!("{name}, which {what}"), PUT_RIGHT)
        }
        _ if kind == ChildKind::Lease && is_emptied(facts) => {
            Proposal::wait(facts, step, format!("{name}, which is empty"), EMPTIED)
        }
        _ if lost(facts, kind) => Proposal::wait(facts, step, format!("{name}, which is lost"), way_back(kind)),
        _ => {
            if let Some(claim) = foreign_claim(facts, facts.wanted.replicas()) {
                let what = format!("claim {} to go away, which was made for another database", claim.name);
                return Proposal::wait(
                    facts,
                    step,
                    what,
                    "the user, by deleting the claim or by using another name",
                );
            }
            if storage_class_fault(facts).is_some() {
                let wake = facts.now + super::failure::STORAGE_CLASS_RECHECK;
                let proposal = Proposal::wait(facts, step, "a StorageClass", "the cluster's administrator")?;
                return Some(proposal.looking_again(wake));
            }
            Proposal::unread(facts, step, format!("what {name} needs"))
        }
    }
}

/// The way back from a Lease that cannot be understood.
pub(super) const PUT_RIGHT: &str = "the user, by putting the annotation right (kubectl edit lease), after which everything \
                                    goes on by itself; or, where nobody knows what it was, by deleting the Lease, after which \
                                    it is said how it is made again";

/// The way back from a Lease that is empty.
pub(super) const EMPTIED: &str = "the user, by deleting the empty Lease, and by the annotation \
                                  clustereddatabase.io/recreate-lease with the UID of this ClusteredDatabase";

/// The way back from a Lease that its holder does not write again.
fn if_not_healed(facts: &Facts<'_>) -> &'static str {
    match understood_by_nobody(facts) {
        Some(_) => PUT_RIGHT,
        None if is_emptied(facts) => EMPTIED,
        None => way_back(ChildKind::Lease),
    }
}

/// Who can bring a lost object back.
pub(super) const fn way_back(kind: ChildKind) -> &'static str {
    match kind {
        ChildKind::Lease => {
            "the user, by the annotation clustereddatabase.io/recreate-lease with the UID of this ClusteredDatabase"
        }
        _ => "the user, by restoring the Secret from a copy, with the label clustereddatabase.io/cluster",
    }
}

#[cfg(test)]
mod tests {
    use api::Phase;
    use api::status::{DurabilityMode, FailureReason};

    use super::super::Known;
    use super::super::testing::{Scene, empty_lease};
    use super::*;
    use crate::protocol::Release;

    fn drifted(kind: ChildKind, immutable: bool) -> ChildState {
        ChildState::Drifted {
            uid: format!("uid-{kind:?}"),
            resource_version: "9".to_owned(),
            what: "spec".to_owned(),
            immutable,
        }
    }

    #[test]
    fn every_object_that_can_be_made_again_is_put_right() {
        for kind in ChildKind::ALL {
            let mut scene = Scene::ready(3);
            scene.set_child(kind, drifted(kind, false));
            let decision = scene.decide();
            assert_eq!(decision.phase, Phase::Updating);
            let Action::Apply(apply) = decision.action else {
                panic!("{kind:?}: {decision:?}")
            };
            assert_eq!(
                (apply.kind, apply.how),
                (
                    kind,
                    ApplyHow::Change(Exact::new(scene_name(kind), format!("uid-{kind:?}"), "9"))
                )
            );

            scene.set_child(kind, ChildState::Missing);
            scene.pod_mut(0).ready = kind != ChildKind::Lease;
            let made = matches!(scene.decide().action, Action::Apply(Apply { kind: made, how: ApplyHow::Make, .. }) if made == kind);
            let unique = [ChildKind::CaSecret, ChildKind::AppSecret, ChildKind::Lease].contains(&kind);
            assert_eq!(made, !unique, "{kind:?}");

            scene.observed.children[kind] = Known::Unknown;
            assert!(
                matches!(scene.decide().action, Action::Wait(_)),
                "{kind:?}: unknown is not absent"
            );
        }
    }

    fn scene_name(kind: ChildKind) -> String {
        format!("demo{}", kind.suffix())
    }

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
    fn lost_secrets_and_leases_fail_with_the_way_back() {
        for kind in [ChildKind::CaSecret, ChildKind::AppSecret, ChildKind::Lease] {
            let mut scene = Scene::ready(3);
            scene.set_child(kind, ChildState::Missing);
            if kind == ChildKind::Lease {
                scene.observed.lease = Known::Known(None);
                scene.pod_mut(0).ready = false;
            }
            let decision = scene.decide();
            assert_eq!((decision.rule, decision.phase), ("blocked", Phase::Failed));
            let waiting = scene.status(&decision).waiting.unwrap();
            let failure = decision.failure.unwrap();
            assert_eq!(failure.reason, FailureReason::PartLost);
            let way_back = match kind {
                ChildKind::Lease => "the annotation clustereddatabase.io/recreate-lease",
                _ => "restoring the Secret",
            };
            assert!(waiting.what.ends_with("which is lost"), "{}", waiting.what);
            assert!(waiting.who_can_end_it.contains(way_back), "{}", waiting.who_can_end_it);
            let lost = format!("{} {} is lost", kind.kind(), scene_name(kind));
            assert!(failure.message.starts_with(&lost), "{}", failure.message);
            scene.set_child(kind, drifted(kind, false));
            assert!(
                matches!(scene.decide().action, Action::Apply(_)),
                "one that was restored is taken back"
            );
        }
    }

    #[test]
    fn whose_turn_it_is_with_an_object_is_told() {
        let told = |kind: ChildKind, state: Known<ChildState>| {
            let mut scene = Scene::ready(3);
            scene.observed.children[kind] = state;
            let waiting = scene.status(&scene.decide()).waiting.unwrap();
            (waiting.what, waiting.who_can_end_it)
        };
        let foreign = ChildState::Foreign {
            why: "somebody's".to_owned(),
        };
        assert_eq!(
            told(ChildKind::RoService, Known::Known(foreign)).0,
            "Service demo-ro to go away, which is somebody's"
        );
        assert_eq!(told(ChildKind::Role, Known::Unknown).0, "Role demo to be read");
        let damaged = ChildState::Damaged {
            uid: "u".to_owned(),
            resource_version: "9".to_owned(),
            what: "holds no password".to_owned(),
            recoverable: false,
        };
        let (what, who) = told(ChildKind::AppSecret, Known::Known(damaged));
        assert!(
            what.ends_with("which is lost") && who.contains("restoring"),
            "{what}; {who}"
        );
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
    fn the_users_own_password_is_applied_again() {
        let mut scene = Scene::ready(3);
        scene.spec.bootstrap.initdb.password_secret = Some("mine".to_owned());
        scene.set_child(ChildKind::AppSecret, ChildState::Missing);
        assert!(matches!(
            scene.decide().action,
            Action::Apply(Apply {
                how: ApplyHow::Make,
                ..
            })
        ));
    }

    fn size(scene: &Scene) -> Option<u32> {
        match scene.decide().action {
            Action::Apply(apply) if apply.kind == ChildKind::StatefulSet => apply.replicas,
            _ => None,
        }
    }

    #[test]
    fn a_stateful_set_that_is_made_again_covers_the_holder_and_the_last_one() {
        let mut scene = Scene::ready(3);
        scene.elect(2);
        scene.edit(|spec| spec.replicas = 1);
        scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
        scene.observed.stateful_set = None;
        scene.pods_mut().clear();
        assert_eq!(size(&scene), Some(3), "the holder");
        let member = scene.report_mut(1).member.clone();
        let lease = scene.lease_mut().unwrap();
        (lease.holder, lease.release) = (
            None,
            Some(Release {
                member,
                position: None,
                successor: None,
            }),
        );
        assert_eq!(size(&scene), Some(2), "the last one");
        scene.lease_mut().unwrap().release = None;
        assert_eq!(size(&scene), Some(1));
    }

    fn with<R>(scene: &Scene, of: impl FnOnce(&Facts<'_>) -> R) -> R {
        scene.with_wanted(|wanted| of(&Facts::new(wanted, &scene.observed, &scene.stored, scene.now)))
    }

    #[test]
    fn a_stateful_set_that_is_put_right_gets_no_smaller() {
        let mut scene = Scene::ready(5);
        scene.edit(|spec| spec.replicas = 3);
        scene.set_child(ChildKind::StatefulSet, drifted(ChildKind::StatefulSet, false));
        assert_eq!(size(&scene), Some(5));
    }

    #[test]
    fn who_led_last_comes_back_only_while_nobody_serves() {
        let mut scene = Scene::ready(3);
        scene.elect(2);
        assert_eq!(with(&scene, returning), 0);
        scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
        assert_eq!(with(&scene, returning), 3);
    }

    #[test]
    fn a_database_comes_back_though_a_service_is_in_dispute() {
        let mut scene = Scene::ready(3);
        scene.set_child(
            ChildKind::RwService,
            ChildState::Foreign {
                why: "theirs".to_owned(),
            },
        );
        assert!(with(&scene, may_make_stateful_set));
        scene.stored.system_identifier = None;
        scene.lease_mut().unwrap().system_id = None;
        assert!(!with(&scene, may_make_stateful_set), "none is begun");
    }

    #[test]
    fn whatever_is_made_after_it_shows_that_a_secret_was_made() {
        let evidence: [fn(&mut Scene); 4] = [
            |scene| scene.stored.system_identifier = Some("7400".to_owned()),
            |scene| {
                let made = ChildState::Current { uid: "u".to_owned() };
                scene.set_child(ChildKind::StatefulSet, made);
            },
            |scene| scene.add_pod(0),
            |scene| {
                let made = Scene::ready(3).stored.memo.made;
                scene.stored.memo.made = made;
            },
        ];
        let mut scene = Scene::new(3);
        for kind in [ChildKind::CaSecret, ChildKind::StatefulSet] {
            scene.set_child(kind, ChildState::Missing);
        }
        let is_lost = |scene: &Scene| with(scene, |facts| lost(facts, ChildKind::CaSecret));
        let may_be_made = |scene: &Scene| with(scene, |facts| may_make(facts, ChildKind::CaSecret));
        assert!(!is_lost(&scene) && may_be_made(&scene));
        for (index, evidence) in evidence.into_iter().enumerate() {
            let mut scene = scene.clone();
            evidence(&mut scene);
            assert!(is_lost(&scene) && !may_be_made(&scene), "{index}");
        }
        let mut unread = scene.clone();
        unread.observed.pods = Known::Unknown;
        assert!(!may_be_made(&unread));
        scene.observed.children[ChildKind::StatefulSet] = Known::Unknown;
        assert!(!may_be_made(&scene));
    }

    #[test]
    fn of_two_that_were_primary_nobody_knows_who_was_the_last() {
        let mut scene = Scene::ready(3);
        assert!(with(&scene, last_primary).is_some());
        scene.stored.members.get_mut("demo-2").unwrap().role = Some(api::status::MemberRole::Primary);
        assert_eq!(with(&scene, last_primary), None);
    }

    #[test]
    fn a_stateful_set_gets_no_larger_while_claims_are_unknown() {
        let mut scene = Scene::ready(2);
        scene.edit(|spec| spec.replicas = 3);
        scene.set_child(ChildKind::StatefulSet, drifted(ChildKind::StatefulSet, false));
        assert_eq!(size(&scene), Some(3));
        scene.observed.claims = Known::Unknown;
        assert_eq!(size(&scene), Some(2));
    }

    #[test]
    fn a_stateful_set_is_not_made_while_pods_or_claims_are_unknown() {
        let made = |change: fn(&mut Scene)| {
            let mut scene = Scene::ready(3);
            scene.observed.stateful_set = None;
            scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
            change(&mut scene);
            size(&scene)
        };
        assert_eq!(made(|_| {}), Some(3));
        assert_eq!(made(|scene| scene.observed.pods = Known::Unknown), None);
        assert_eq!(made(|scene| scene.observed.claims = Known::Unknown), None);
    }

    #[test]
    fn a_refused_object_does_not_hold_up_those_behind_it() {
        let mut scene = Scene::ready(3);
        for kind in [
            ChildKind::RoService,
            ChildKind::EndpointSlice,
            ChildKind::PodDisruptionBudget,
        ] {
            scene.set_child(kind, ChildState::Missing);
        }
        scene.observed.faults = vec![super::super::Fault {
            target: super::super::Target::Child(ChildKind::RoService),
            kind: super::super::FaultKind::Quota,
            message: "exceeded quota".to_owned(),
            attempts: 20,
            at: scene.now,
        }];
        for kind in [ChildKind::EndpointSlice, ChildKind::PodDisruptionBudget] {
            let decision = scene.decide();
            assert_eq!(decision.failure.unwrap().reason, FailureReason::QuotaExceeded);
            assert!(matches!(decision.action, Action::Apply(apply) if apply.kind == kind));
            scene.set_child(kind, ChildState::Current { uid: "u".to_owned() });
        }
        let Action::Wait(waiting) = scene.decide().action else {
            panic!()
        };
        assert!(waiting.what.contains("making Service demo-ro"), "{}", waiting.what);
    }

    /// A database of which this object is missing, and can not be made.
    fn refused(kind: ChildKind) -> Scene {
        let mut scene = Scene::ready(3);
        scene.set_child(kind, ChildState::Missing);
        scene.observed.faults = vec![super::super::Fault {
            target: super::super::Target::Child(kind),
            kind: super::super::FaultKind::Forbidden,
            message: "admission webhook no-objects denied the request".to_owned(),
            attempts: 20,
            at: scene.now,
        }];
        scene
    }

    #[test]
    fn what_is_refused_is_tried_again_in_time_whatever_is_waited_for_meanwhile() {
        let mut scene = refused(ChildKind::RwService);
        scene.set_child(ChildKind::RService, ChildState::Missing);
        let first = scene.observed.faults[0].clone();
        let once = super::super::Fault {
            target: super::super::Target::Child(ChildKind::RService),
            attempts: 1,
            ..first
        };
        scene.observed.faults.push(once);
        scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()]);
        scene.report_mut(2).state = crate::protocol::MemberState::Stopped;
        scene.pod_mut(2).ready = false;
        let decision = scene.decide();
        assert_eq!(decision.rule, "await-fenced");
        assert_eq!(
            decision.wake,
            scene.now + chrono::TimeDelta::seconds(1),
            "the Service that failed once"
        );
        scene.now = decision.wake;
        assert!(matches!(scene.decide().action, Action::Apply(apply) if apply.kind == ChildKind::RService));
        scene.set_child(ChildKind::RService, ChildState::Current { uid: "u".to_owned() });
        let again = scene.observed.faults[0].at + chrono::TimeDelta::minutes(1);
        assert_eq!(scene.decide().wake, again, "the one that failed often");
    }

    #[test]
    fn a_switchover_ends_whatever_is_refused() {
        for kind in ChildKind::ALL {
            let mut scene = refused(kind);
            scene.stored.intent.primary = Some("demo-1".to_owned());
            scene.stored.memo.switchover = Some(api::status::SwitchoverMemo {
                target: "demo-1".to_owned(),
                since: scene.now,
                attempts: 1,
                ended: None,
            });
            scene.elect(1);
            let decision = scene.store();
            assert_eq!(
                (decision.rule, scene.stored.intent.primary.as_ref()),
                ("switch-over", None),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn what_nothing_builds_on_holds_nothing_up_and_what_something_does_holds_that_up() {
        for kind in ChildKind::ALL {
            let mut scene = refused(kind);
            let lost =
                scene.with_wanted(|wanted| lost(&Facts::new(wanted, &scene.observed, &scene.stored, scene.now), kind));
            let waits_for_it = |scene: &Scene| match scene.decide().action {
                Action::Wait(waiting) => waiting.what.contains("no-objects denied the request"),
                _ => false,
            };
            assert!(lost || waits_for_it(&scene), "{kind:?}: {:?}", scene.decide());
            scene.revision = "r2".to_owned();
            let decision = scene.decide();
            let goes_on = matches!(decision.action, Action::ReplacePod(_));
            assert_eq!(goes_on, is_for_others(kind), "{kind:?}: {decision:?}");
            if !goes_on {
                assert_eq!(decision.rule, "blocked", "{kind:?}");
            }
            scene.revision = "r1".to_owned();
            scene.cordon(0, true);
            assert_eq!(scene.decide().rule == "switch-over", is_for_others(kind), "{kind:?}");
        }
        let mut drifted_set = refused(ChildKind::StatefulSet);
        drifted_set.set_child(ChildKind::StatefulSet, drifted(ChildKind::StatefulSet, false));
        drifted_set.revision = "r2".to_owned();
        assert_eq!(
            drifted_set.decide().rule,
            "blocked",
            "its pods would be of the old template"
        );
        drifted_set.cordon(0, true);
        assert_eq!(drifted_set.decide().rule, "switch-over", "its node may go any moment");
    }

    #[test]
    fn what_only_clients_need_is_waited_for_before_there_is_a_database_and_while_it_is_put_down() {
        let held_up = |change: fn(&mut Scene)| {
            let mut scene = refused(ChildKind::RwService);
            change(&mut scene);
            with(&scene, |facts| holds_up(facts, ChildKind::RwService))
        };
        assert!(!held_up(|_| {}));
        assert!(held_up(|scene| scene.edit(|spec| spec.hibernated = true)));
        assert!(held_up(|scene| {
            scene.stored.system_identifier = None;
            scene.lease_mut().unwrap().system_id = None;
        }));
    }

    #[test]
    fn the_role_of_a_binding_is_changed_by_making_it_again() {
        let mut scene = Scene::ready(3);
        scene.set_child(ChildKind::RoleBinding, drifted(ChildKind::RoleBinding, true));
        assert!(matches!(scene.decide().action, Action::DeleteRoleBinding(_)));
        scene.set_child(ChildKind::RoleBinding, ChildState::Missing);
        assert!(matches!(scene.decide().action, Action::Apply(_)));
    }

    #[test]
    fn an_emptied_secret_gets_its_content_again_or_is_lost() {
        let damaged = |recoverable| ChildState::Damaged {
            uid: "u".to_owned(),
            resource_version: "9".to_owned(),
            what: "holds no password".to_owned(),
            recoverable,
        };
        for (kind, recoverable) in [(ChildKind::TlsSecret, true), (ChildKind::AppSecret, true)] {
            let mut scene = Scene::ready(3);
            scene.set_child(kind, damaged(recoverable));
            let Action::Apply(apply) = scene.decide().action else {
                panic!("{kind:?}")
            };
            assert_eq!(apply.how, ApplyHow::Renew(Exact::new(scene_name(kind), "u", "9")));
        }
        for kind in [ChildKind::CaSecret, ChildKind::AppSecret] {
            let mut scene = Scene::ready(3);
            scene.set_child(kind, damaged(false));
            let decision = scene.decide();
            let failure = decision.failure.unwrap();
            assert_eq!((decision.rule, failure.reason), ("blocked", FailureReason::PartLost));
            assert!(failure.message.contains("holds no password"), "{}", failure.message);
        }
        let mut scene = Scene::ready(3);
        scene.set_child(ChildKind::CaSecret, damaged(false));
        scene.set_child(ChildKind::TlsSecret, damaged(true));
        assert!(matches!(scene.decide().action, Action::Wait(_)), "nobody can sign it");
    }

    #[test]
    fn a_lease_that_nobody_understands_is_told_with_the_way_back_and_left_alone() {
        for mut scene in [Scene::ready(3), Scene::new(3)] {
            (scene.finalizer, scene.recreate_lease) = (true, Some(scene.with_wanted(|wanted| wanted.uid.to_owned())));
            if scene.pods().is_empty() {
                for kind in ChildKind::ALL
                    .into_iter()
                    .filter(|kind| *kind != ChildKind::StatefulSet)
                {
                    scene.set_child(
                        kind,
                        ChildState::Current {
                            uid: format!("uid-{kind:?}"),
                        },
                    );
                }
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
    fn claim_templates_are_changed_by_orphaning() {
        let mut scene = Scene::ready(3);
        scene.set_child(ChildKind::StatefulSet, drifted(ChildKind::StatefulSet, true));
        assert!(matches!(scene.decide().action, Action::OrphanStatefulSet(_)));
        scene.claims_mut()[1].cluster_uid = Some("another".to_owned());
        scene.revision = "r2".to_owned();
        let decision = scene.decide();
        assert_eq!(decision.rule, "blocked", "it could not be made again");
        assert_eq!(
            decision.because.to_string(),
            "claim data-demo-1 to go away, which was made for another database"
        );
    }

    #[test]
    fn a_foreign_object_fails_and_is_left_alone_until_it_goes() {
        let mut scene = Scene::ready(3);
        scene.set_child(
            ChildKind::RwService,
            ChildState::Foreign {
                why: "owned by Deployment other".to_owned(),
            },
        );
        let decision = scene.decide();
        assert!(matches!(decision.action, Action::Wait(_)));
        let failure = decision.failure.unwrap();
        assert_eq!(failure.reason, FailureReason::ForeignObject);
        assert!(
            failure.message.contains("Service demo-rw is owned by Deployment other"),
            "{}",
            failure.message
        );
        scene.set_child(ChildKind::RwService, ChildState::Missing);
        scene.stored.phase = Some(Phase::Failed);
        assert_eq!(scene.decide().phase, Phase::Updating);
    }

    #[test]
    fn nothing_acts_as_a_foreign_identity() {
        let foreign = || ChildState::Foreign {
            why: "owned by Deployment other".to_owned(),
        };
        for identity in [ChildKind::ServiceAccount, ChildKind::Role] {
            for kind in [ChildKind::RoleBinding, ChildKind::StatefulSet] {
                for state in [ChildState::Missing, drifted(kind, true), drifted(kind, false)] {
                    let mut scene = Scene::ready(3);
                    scene.set_child(kind, state.clone());
                    if state == ChildState::Missing && kind == ChildKind::StatefulSet {
                        scene.observed.stateful_set = None;
                    }
                    // A StatefulSet that is there brings no other pods by being put right in place.
                    let in_place = kind == ChildKind::StatefulSet && state == drifted(kind, false);
                    assert!(scene.decide().action.target().is_some(), "{kind:?} {state:?}");
                    scene.set_child(identity, foreign());
                    let decision = scene.decide();
                    assert_eq!(
                        decision.action.target().is_some(),
                        in_place,
                        "{kind:?} {state:?}: {decision:?}"
                    );
                    assert_eq!(decision.failure.unwrap().reason, FailureReason::ForeignObject);
                }
            }
        }
    }

    #[test]
    fn claims_of_another_database_keep_pods_from_being_made() {
        let mut scene = Scene::ready(3);
        let claims = scene.claims_mut().clone();
        let mut scene = Scene::new(3);
        scene.finalizer = true;
        for kind in ChildKind::ALL
            .into_iter()
            .filter(|kind| *kind != ChildKind::StatefulSet)
        {
            scene.set_child(kind, ChildState::Current { uid: "u".to_owned() });
        }
        assert!(matches!(scene.decide().action, Action::Apply(_)));
        scene.claims_mut().extend(claims);
        scene.claims_mut()[1].cluster_uid = Some("the one before".to_owned());
        let decision = scene.decide();
        assert!(matches!(decision.action, Action::Wait(_)), "{decision:?}");
        assert_eq!(decision.failure.unwrap().reason, FailureReason::ForeignObject);
        let in_the_way = |replicas| with(&scene, |facts| foreign_claim(facts, replicas).is_some());
        assert_eq!(
            [1, 2].map(in_the_way),
            [false, true],
            "only what a pod would pick up is"
        );
    }

    #[test]
    fn a_missing_storage_class_is_looked_for_again_soon() {
        let mut scene = Scene::new(3);
        scene.finalizer = true;
        for kind in ChildKind::ALL
            .into_iter()
            .filter(|kind| *kind != ChildKind::StatefulSet)
        {
            scene.set_child(kind, ChildState::Current { uid: "u".to_owned() });
        }
        scene.observed.storage_class = Known::Known(StorageClass::Missing {
            name: "fast".to_owned(),
        });
        let decision = scene.decide();
        assert_eq!(decision.wake, scene.now + super::super::failure::STORAGE_CLASS_RECHECK);
        assert_eq!(decision.failure.unwrap().reason, FailureReason::StorageClassNotFound);
        scene.store();
        scene.observed.storage_class = Known::Known(StorageClass::Present { expandable: false });
        assert_eq!(scene.decide().phase, Phase::Creating, "it leaves by itself");
        let mut running = Scene::ready(3);
        running.observed.storage_class = Known::Known(StorageClass::NoDefault);
        assert_eq!(running.decide().phase, Phase::Ready, "bound volumes need no class");
        let at_fault = |scene: &Scene| with(scene, |facts| storage_class_fault(facts).is_some());
        let mut going = running.clone();
        (going.claims_mut()[2].bound, going.claims_mut()[2].terminating) = (false, true);
        assert!(!at_fault(&going), "what goes needs none");
        going.claims_mut()[2].terminating = false;
        assert!(at_fault(&going));
        let mut again = running.clone();
        again.set_child(ChildKind::StatefulSet, ChildState::Missing);
        assert!(!at_fault(&again), "its volumes are there");
        running.stored.system_identifier = None;
        running.lease_mut().unwrap().system_id = None;
        assert!(!at_fault(&running), "all claims are made");
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
