//! `spec.storage.wal` added to a running database: each member gets its WAL volume with its next pod, in the order of a
//! rolling change.
//!
//! A StatefulSet with a claim template that some pod has no volume for makes no pod behind that one any more. So as long as
//! there are pods without, it has the template for data alone, and the pod template names the claim of the one pod that is
//! being replaced ([`WalVolumes::Of`]). Another pod that is made meanwhile gets that claim, too; its agent touches nothing
//! then, and it is replaced like any pod that is not as it should be. In between no claim is named, so that a pod that is
//! lost comes back as it was. Once all pods have theirs, the StatefulSet is made again with both claim templates.

use super::action::{Action, Apply, ApplyHow, Exact};
use super::decision::Step;
use super::drift::may_make_stateful_set;
use super::facts::Facts;
use super::failure::STORAGE_CLASS_RECHECK;
use super::observed::{ChildKind, ChildState, Claim, Pod, SetFacts, StorageClass, Volume, WalVolumes};
use super::rollout::next;
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const SETTLE: Rule = Rule {
    name: "settle-wal-volumes",
    family: "volumes",
    what: "Once the pod whose WAL claim the template names has been made, the template names none; once every pod serves with its own WAL volume, and none is being made, the StatefulSet is made again with a claim template for them, its pods orphaned meanwhile.",
    propose: settle,
    passable: true,
};

/// See [`Rule::what`].
pub const MAKE_CLAIM: Rule = Rule {
    name: "make-wal-claim",
    family: "volumes",
    what: "Where spec.storage.wal was added, the WAL claim of the pod whose turn it is to be replaced is made, on the pod's node, while the pod goes on.",
    propose: make_claim,
    passable: true,
};

/// See [`Rule::what`].
pub const AWAIT_VOLUME: Rule = Rule {
    name: "await-wal-volume",
    family: "volumes",
    what: "No pod that serves is replaced for a WAL volume that is not there yet; what it lacks is said.",
    propose: await_volume,
    passable: false,
};

/// The claim of this pod has its volume, and it is this database's.
fn is_there(facts: &Facts<'_>, ordinal: u32) -> bool {
    let usable =
        |claim: &Claim| claim.bound && !claim.terminating && claim.cluster_uid.as_deref() == Some(facts.wanted.uid);
    facts.wal_claim(ordinal).is_some_and(usable)
}

/// This pod has got the WAL claim of another one, and cannot start.
pub(super) fn has_anothers(facts: &Facts<'_>, pod: &Pod) -> bool {
    pod.wal_claim.is_some() && !facts.has_wal_volume(pod)
}

/// This pod lacks a WAL volume that is not there yet, and nothing else: a new one would be the same.
pub(super) fn is_not_yet_due(facts: &Facts<'_>, pod: &Pod) -> bool {
    lacks_claim(facts, pod) && pod.revision.as_deref() == Some(facts.wanted.bare_revision)
}

/// This pod has no WAL volume, and none is there for it.
pub(super) fn lacks_claim(facts: &Facts<'_>, pod: &Pod) -> bool {
    pod.wal_claim.is_none() && !facts.has_wal_volume(pod) && !is_there(facts, pod.ordinal)
}

/// What a StatefulSet that is made now, with this many replicas, has to be like.
pub(super) fn of_new_set(facts: &Facts<'_>, replicas: u32) -> WalVolumes {
    if all_have_theirs(facts, replicas) {
        WalVolumes::Templated
    } else {
        WalVolumes::Withheld
    }
}

/// Every pod has its own WAL volume, and no member that is to come back without a pod now lacks one: its claim, made from
/// the template, might never get a volume. While all pods are to be away, that is every member with data.
fn all_have_theirs(facts: &Facts<'_>, replicas: u32) -> bool {
    let returns = |claim: &&Claim| claim.volume == Volume::Data && (claim.ordinal < replicas || replicas == 0);
    let has_its_own = |claim: &Claim| facts.pod(claim.ordinal).is_some() || is_there(facts, claim.ordinal);
    facts.pods().iter().all(|pod| facts.has_wal_volume(pod))
        && (!facts.bootstrapped() || facts.claims().iter().filter(returns).all(has_its_own))
}

fn settle(facts: &Facts<'_>) -> Option<Proposal> {
    facts.wanted.spec.storage.wal.as_ref()?;
    let pods = facts.observed.pods.get()?;
    facts.observed.claims.get()?;
    let set = facts.observed.stateful_set.as_ref()?;
    let Some(ChildState::Current { .. }) = facts.child(ChildKind::StatefulSet) else {
        return None;
    };
    let is_made = |ordinal| match facts.pod(ordinal) {
        Some(pod) => facts.has_wal_volume(pod) && !pod.terminating,
        None => ordinal >= set.replicas,
    };
    // One that is being made while the StatefulSet goes might be taken for its own, and go with it.
    // One that does not serve may not have room on its volume: without templates it can come back as it was.
    let serves = |ordinal| facts.pod(ordinal).is_some_and(|pod| pod.ready) && is_made(ordinal);
    let complete = (0..set.replicas).all(serves) && all_have_theirs(facts, set.replicas);
    let (wal, because) = match set.wal {
        WalVolumes::Templated if pods.iter().any(|pod| !facts.has_wal_volume(pod)) => {
            (WalVolumes::Withheld, "a pod has no WAL volume".to_owned())
        }
        WalVolumes::Templated => return None,
        _ if complete && may_make_stateful_set(facts) => {
            (WalVolumes::Templated, "every pod has its WAL volume".to_owned())
        }
        WalVolumes::Of(ordinal) if is_made(ordinal) => (
            WalVolumes::Withheld,
            format!("pod {} has been made", pod_name(facts, ordinal)),
        ),
        WalVolumes::Of(_) | WalVolumes::Withheld => return None,
    };
    change(facts, set, wal, because)
}

fn change(facts: &Facts<'_>, set: &SetFacts, wal: WalVolumes, because: String) -> Option<Proposal> {
    let exact = Exact::new(facts.wanted.name, &set.uid, &set.resource_version);
    // Claim templates cannot be changed.
    if [wal, set.wal].contains(&WalVolumes::Templated) {
        return Proposal::act(Step::Volumes, Action::OrphanStatefulSet(exact), because);
    }
    let apply = Apply {
        kind: ChildKind::StatefulSet,
        how: ApplyHow::Change(exact),
        replicas: Some(set.replicas),
        wal: Some(wal),
    };
    Proposal::act(Step::Volumes, Action::Apply(apply), because)
}

/// The template is changed so that it fits this pod, which is to be made from it: with its WAL volume if that is there.
pub(super) fn template_first(facts: &Facts<'_>, pod: &Pod) -> Option<Proposal> {
    facts.wanted.spec.storage.wal.as_ref()?;
    let set = facts.observed.stateful_set.as_ref()?;
    if facts.observed.claims.get().is_none() {
        return Proposal::wait(facts, Step::Volumes, "the claims to be read", "the API server");
    }
    let wal = if is_there(facts, pod.ordinal) {
        WalVolumes::Of(pod.ordinal)
    } else {
        WalVolumes::Withheld
    };
    if [wal, WalVolumes::Templated].contains(&set.wal) {
        return None;
    }
    change(facts, set, wal, format!("{} is to be made again", pod.name))
}

fn make_claim(facts: &Facts<'_>) -> Option<Proposal> {
    let pod = next(facts).filter(|pod| lacks_claim(facts, pod))?;
    facts.observed.claims.get()?;
    if facts.wal_claim(pod.ordinal).is_some() || missing_class(facts).is_some() {
        return None;
    }
    let action = Action::MakeWalClaim {
        name: claim_name(facts, pod.ordinal),
        node: pod.node.clone()?,
    };
    Proposal::act(Step::Volumes, action, format!("{} has no WAL volume", pod.name))
}

fn await_volume(facts: &Facts<'_>) -> Option<Proposal> {
    let pod = next(facts).filter(|pod| lacks_claim(facts, pod))?;
    let before = format!("before {} is replaced to have it", pod.name);
    let claim = claim_name(facts, pod.ordinal);
    let wait = |what: String, who| Proposal::wait(facts, Step::Volumes, format!("{what}, {before}"), who);
    match facts.wal_claim(pod.ordinal) {
        Some(found) if found.cluster_uid.as_deref() != Some(facts.wanted.uid) => wait(
            format!("claim {claim} to go away, which was made for another database"),
            "the user, by deleting the claim",
        ),
        Some(found) if found.terminating => wait(format!("claim {claim} to be gone"), "who uses it"),
        Some(_) => wait(
            format!("claim {claim} to have a volume"),
            "the provisioner of its StorageClass; a claim that is deleted is made again",
        ),
        None => match missing_class(facts) {
            Some(class) => {
                let wake = facts.now + STORAGE_CLASS_RECHECK;
                Some(wait(class, "the cluster's administrator")?.looking_again(wake))
            }
            None if pod.node.is_none() => wait(format!("a node for pod {}", pod.name), "the scheduler"),
            None => wait(format!("claim {claim} to be made"), "the operator"),
        },
    }
}

/// The StorageClass of the WAL volumes, if there is none.
fn missing_class(facts: &Facts<'_>) -> Option<String> {
    let wanted = facts.wanted.spec.storage.wal.as_ref()?.storage_class_name.as_ref();
    match facts.observed.storage_class.get()? {
        StorageClass::Missing { name } if wanted == Some(name) => Some(format!("StorageClass {name} for WAL volumes")),
        StorageClass::NoDefault if wanted.is_none() => Some("a default StorageClass for WAL volumes".to_owned()),
        StorageClass::Missing { .. } | StorageClass::NoDefault | StorageClass::Present { .. } => None,
    }
}

fn pod_name(facts: &Facts<'_>, ordinal: u32) -> String {
    format!("{}-{ordinal}", facts.wanted.name)
}

fn claim_name(facts: &Facts<'_>, ordinal: u32) -> String {
    format!("{}-{}", api::names::WAL_VOLUME, pod_name(facts, ordinal))
}

#[cfg(test)]
mod tests {
    use super::super::Known;
    use super::super::testing::Scene;
    use super::*;

    fn added() -> Scene {
        let mut scene = Scene::ready(3);
        scene.add_wal_volume();
        scene
    }

    fn claim(scene: &mut Scene, ordinal: u32) -> &mut Claim {
        let name = format!("wal-demo-{ordinal}");
        if scene.claims_mut().iter().all(|claim| claim.name != name) {
            let data = scene.claims_mut()[0].clone();
            let (volume, uid) = (Volume::Wal, format!("uid-{name}"));
            scene.claims_mut().push(Claim {
                name: name.clone(),
                volume,
                ordinal,
                uid,
                ..data
            });
        }
        scene.claims_mut().iter_mut().find(|claim| claim.name == name).unwrap()
    }

    fn template(scene: &Scene) -> Option<WalVolumes> {
        match scene.decide().action {
            Action::Apply(apply) => apply.wal,
            _ => None,
        }
    }

    fn set(scene: &mut Scene, wal: WalVolumes) {
        scene.observed.stateful_set.as_mut().unwrap().wal = wal;
    }

    /// The pod is made again, from the template as it is.
    fn make(scene: &mut Scene, ordinal: u32, claim: Option<u32>) {
        let revision = scene.revision.clone();
        let pod = scene.pod_mut(ordinal);
        pod.revision = Some(if claim.is_some() { revision } else { "r1".to_owned() });
        pod.base_revision.clone_from(&pod.revision);
        pod.wal_claim = claim.map(|of| format!("wal-demo-{of}"));
    }

    #[test]
    fn the_volume_is_there_before_the_pod_is_replaced_from_a_template_that_names_it() {
        let mut scene = added();
        let decision = scene.decide();
        let Action::MakeWalClaim { name, node } = &decision.action else {
            panic!("{decision:#?}")
        };
        assert_eq!((name.as_str(), node.as_str()), ("wal-demo-2", "node-2"));
        claim(&mut scene, 2).bound = false;
        assert_eq!((scene.decide().rule, scene.replaced()), ("await-wal-volume", None));
        claim(&mut scene, 2).bound = true;
        assert_eq!(template(&scene), Some(WalVolumes::Of(2)));
        set(&mut scene, WalVolumes::Of(2));
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
        scene.pod_mut(2).terminating = true;
        assert_eq!((template(&scene), scene.replaced()), (None, None));
        scene.pod_mut(2).terminating = false;
        make(&mut scene, 2, Some(2));
        assert_eq!(
            template(&scene),
            Some(WalVolumes::Withheld),
            "the next one that is lost comes back as it was"
        );
    }

    #[test]
    fn a_pod_with_anothers_volume_is_made_again_as_it_was_or_with_its_own() {
        let mut scene = added();
        claim(&mut scene, 2).bound = true;
        set(&mut scene, WalVolumes::Of(2));
        scene.pod_mut(2).terminating = true;
        make(&mut scene, 1, Some(2));
        scene.pod_mut(1).ready = false;
        assert_eq!(template(&scene), Some(WalVolumes::Withheld));
        set(&mut scene, WalVolumes::Withheld);
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
        claim(&mut scene, 1).bound = true;
        assert_eq!(template(&scene), Some(WalVolumes::Of(1)));
    }

    #[test]
    fn a_member_that_comes_back_without_its_volume_is_made_again_with_it() {
        let mut scene = added();
        claim(&mut scene, 2).bound = true;
        scene.pod_mut(2).ready = false;
        assert_eq!(template(&scene), Some(WalVolumes::Of(2)));
        scene.claims_mut().retain(|claim| claim.volume == Volume::Data);
        assert_eq!(scene.replaced(), None, "without a volume it would be made as it is");
    }

    #[test]
    fn a_class_that_is_missing_costs_no_pod_and_is_named() {
        let mut scene = added();
        scene.observed.storage_class = Known::Known(StorageClass::NoDefault);
        let decision = scene.store();
        assert_eq!(decision.rule, "await-wal-volume");
        let waiting = scene.stored.waiting.clone().unwrap();
        assert!(
            waiting.what.starts_with("a default StorageClass for WAL volumes"),
            "{}",
            waiting.what
        );
        assert_eq!(waiting.who_can_end_it, "the cluster's administrator");
        assert_ne!(scene.stored.phase, Some(api::Phase::Failed), "it serves as before");
    }

    #[test]
    fn a_pod_that_differs_in_more_is_replaced_without_a_volume_that_cannot_be_had() {
        let mut scene = added();
        scene.observed.storage_class = Known::Known(StorageClass::NoDefault);
        scene.revision = scene.revision.replace("r1", "r2");
        for ordinal in [2, 1] {
            assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
            make(&mut scene, ordinal, None);
            scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        }
        assert_eq!((scene.decide().rule, scene.replaced()), ("await-wal-volume", None));
    }

    #[test]
    fn settings_get_their_restart_while_a_volume_cannot_be_had() {
        let mut scene = Scene::pending_restart(false);
        scene.add_wal_volume();
        scene.observed.storage_class = Known::Known(StorageClass::NoDefault);
        assert_eq!(scene.permitted(), Some("demo-2".to_owned()));
    }

    #[test]
    fn a_claim_of_another_database_is_left_alone() {
        let mut scene = added();
        claim(&mut scene, 2).cluster_uid = Some("another".to_owned());
        assert_eq!((scene.decide().rule, scene.replaced()), ("await-wal-volume", None));
    }

    #[test]
    fn claim_templates_come_when_every_pod_has_its_volume() {
        let mut scene = added();
        for ordinal in 0..3 {
            claim(&mut scene, ordinal).bound = true;
            make(&mut scene, ordinal, Some(ordinal));
            let orphans = matches!(scene.decide().action, Action::OrphanStatefulSet(_));
            assert_eq!(orphans, ordinal == 2);
        }
        scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
        scene.observed.stateful_set = None;
        assert_eq!(template(&scene), Some(WalVolumes::Templated));
        make(&mut scene, 1, None);
        assert_eq!(
            template(&scene),
            Some(WalVolumes::Withheld),
            "or no pod behind it is made any more"
        );
    }

    fn all_moved(replicas: u32) -> Scene {
        let mut scene = Scene::ready(replicas);
        scene.add_wal_volume();
        for ordinal in 0..replicas {
            claim(&mut scene, ordinal).bound = true;
            make(&mut scene, ordinal, Some(ordinal));
        }
        scene
    }

    #[test]
    fn the_stateful_set_stays_while_a_pod_is_being_made() {
        for replicas in [1, 3] {
            let mut scene = all_moved(replicas);
            set(&mut scene, WalVolumes::Of(0));
            let orphans = |scene: &Scene| matches!(scene.decide().action, Action::OrphanStatefulSet(_));
            assert!(orphans(&scene));
            let mut gone = scene.clone();
            gone.pods_mut().retain(|pod| pod.ordinal != 0);
            assert!(!orphans(&gone), "{:#?}", gone.decide());
            let mut stuck = scene.clone();
            stuck.pod_mut(0).ready = false;
            assert!(!orphans(&stuck), "{:#?}", stuck.decide());
            scene.pod_mut(0).terminating = true;
            assert!(!orphans(&scene), "{:#?}", scene.decide());
        }
    }

    #[test]
    fn who_comes_back_without_a_pod_now_must_have_its_volume() {
        let mut scene = all_moved(3);
        scene.edit(|spec| spec.hibernated = true);
        scene.pods_mut().clear();
        scene.observed.stateful_set.as_mut().unwrap().replicas = 0;
        let orphans = |scene: &Scene| matches!(scene.decide().action, Action::OrphanStatefulSet(_));
        assert!(orphans(&scene));
        claim(&mut scene, 1).bound = false;
        assert!(!orphans(&scene));
        scene.set_child(ChildKind::StatefulSet, ChildState::Missing);
        scene.observed.stateful_set = None;
        assert_eq!(template(&scene), Some(WalVolumes::Withheld));
        claim(&mut scene, 1).bound = true;
        assert_eq!(template(&scene), Some(WalVolumes::Templated));
    }

    #[test]
    fn claim_templates_that_are_there_stay_while_no_pod_without_a_volume_is() {
        let mut scene = all_moved(3);
        set(&mut scene, WalVolumes::Templated);
        scene.claims_mut().retain(|claim| claim.volume == Volume::Data);
        scene.pods_mut().retain(|pod| pod.ordinal != 1);
        assert!(!matches!(scene.decide().action, Action::OrphanStatefulSet(_)));
    }

    #[test]
    fn a_stateful_set_that_could_not_be_made_again_stays() {
        let mut scene = all_moved(3);
        scene.edit(|spec| spec.replicas = 4);
        claim(&mut scene, 3).cluster_uid = Some("another".to_owned());
        let decision = scene.decide();
        assert!(
            !matches!(decision.action, Action::OrphanStatefulSet(_)),
            "{decision:#?}"
        );
    }

    #[test]
    fn a_fenced_member_with_anothers_volume_is_made_again() {
        let mut scene = added();
        claim(&mut scene, 2).bound = true;
        set(&mut scene, WalVolumes::Withheld);
        make(&mut scene, 1, Some(2));
        scene.pod_mut(1).ready = false;
        scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
    }
}
