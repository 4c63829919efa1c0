//! The StatefulSet: when it may be made, how many pods it asks for, and which claims stand in its way.

use super::super::facts::Facts;
use super::super::hibernation;
use super::super::observed::{ChildKind, Claim, StorageClass, Volume};
use super::super::wal;
use super::{exists, is_identity_foreign};

/// It brings pods: everything that they need is there, their identity is ours, and so are the claims that they would pick up. A
/// database that was made before comes back even if a part that only clients need is in dispute.
pub(in crate::cluster) fn may_make_stateful_set(facts: &Facts<'_>) -> bool {
    let readable = facts.observed.pods.get().is_some() && facts.observed.claims.get().is_some();
    let ready = facts
        .wanted_children()
        .all(|kind| kind == ChildKind::StatefulSet || exists(facts, kind));
    readable
        && !is_identity_foreign(facts)
        && foreign_claim(facts, facts.wanted.replicas()).is_none()
        && (facts.bootstrapped() || (ready && storage_class_fault(facts).is_none()))
}

/// `replicas` of an object that has such a number. A StatefulSet is never made smaller here, and one that is made again
/// covers every pod that is alive, and who holds or last held the Lease: how it gets smaller is for the rules of scaling.
/// Whose claims new pods would pick up must be known before it gets larger.
pub(super) fn replicas(facts: &Facts<'_>, kind: ChildKind) -> Option<u32> {
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
        | ChildKind::PrimaryBudget
        | ChildKind::NetworkPolicy => None,
    }
}

/// How many instances it takes to have who was primary last among them, while nobody serves: its data is the newest, and
/// a database may have been stopped with more instances than it is to have now.
pub(in crate::cluster) fn returning(facts: &Facts<'_>) -> u32 {
    if facts.primary().is_some() { 0 } else { leading(facts) }
}

/// How many instances it takes to have the Lease's holder, and who released it last, among them: their data is the newest.
fn leading(facts: &Facts<'_>) -> u32 {
    let holder = facts.holder().and_then(|holder| facts.ordinal(&holder.incarnation.pod));
    let release = facts.lease.and_then(|lease| lease.release.as_ref());
    let last = release.and_then(|release| release.member.ordinal());
    holder.max(last).map_or(0, |ordinal| ordinal.saturating_add(1))
}

/// The first claim that one of `replicas` pods would pick up though it was made for another database.
pub(in crate::cluster) fn foreign_claim<'a>(facts: &Facts<'a>, replicas: u32) -> Option<&'a Claim> {
    let theirs = |claim: &&Claim| !facts.owns(claim);
    facts
        .claims()
        .iter()
        .filter(|claim| claim.ordinal < replicas)
        .find(theirs)
}

/// Why no volumes can be had, if some are still needed.
pub(in crate::cluster) fn storage_class_fault<'a>(facts: &Facts<'a>) -> Option<(Volume, &'a StorageClass)> {
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

#[cfg(test)]
mod tests {
    use api::Phase;
    use api::status::FailureReason;

    use super::super::fixtures::{drifted, make_all_but_the_stateful_set, with};
    use super::*;
    use crate::cluster::failure::STORAGE_CLASS_RECHECK;
    use crate::cluster::testing::Scene;
    use crate::cluster::{Action, ChildState, Known};
    use crate::protocol::Release;

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
    fn claims_of_another_database_keep_pods_from_being_made() {
        let mut scene = Scene::ready(3);
        let claims = scene.claims_mut().clone();
        let mut scene = Scene::new(3);
        scene.finalizer = true;
        make_all_but_the_stateful_set(&mut scene);
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
        make_all_but_the_stateful_set(&mut scene);
        scene.observed.storage_class = Known::Known(StorageClass::Missing {
            name: "fast".to_owned(),
        });
        let decision = scene.decide();
        assert_eq!(decision.wake, scene.now + STORAGE_CLASS_RECHECK);
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
}
