//! Claims that were deleted while pods use them. Kubernetes keeps such a volume until its pod goes, and nobody can take the
//! deletion back. So it is said as long as it lasts, and nothing is done on purpose that would end the last copy of the data.

use super::decision::Step;
use super::facts::{Facts, list};
use super::observed::{Claim, Pod};
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const AWAIT_CLAIM: Rule = Rule {
    name: "await-claim",
    family: "volumes",
    what: "While a claim that a pod uses is deleted, that and what to do is said: what is on it goes with the pod.",
    propose: await_claim,
    passable: false,
};

/// Names of this pod's claims that are being deleted, or are gone.
fn deleted(facts: &Facts<'_>, pod: &Pod) -> impl Iterator<Item = String> {
    let data_stays = facts.data_claim(pod.ordinal).is_some_and(|claim| !claim.terminating);
    let stays = |name: &&String| {
        facts
            .claims()
            .iter()
            .any(|claim| claim.name == **name && !claim.terminating)
    };
    let wal = pod.wal_claim.as_ref().filter(|name| !stays(name)).cloned();
    let name = || format!("{}-{}", api::names::DATA_VOLUME, pod.name);
    let known = facts.observed.claims.get().is_some();
    let all = [(!data_stays).then(name), wal];
    all.into_iter().flatten().filter(move |_| known)
}

/// Claims that go with these pods. A pod that has no node keeps none.
fn going(facts: &Facts<'_>) -> Vec<String> {
    let pods = facts
        .pods()
        .iter()
        .filter(|pod| facts.bootstrapped() && pod.node.is_some());
    pods.flat_map(|pod| deleted(facts, pod)).collect()
}

/// What is to be known of claims that were deleted, in a sentence.
pub(super) fn words(facts: &Facts<'_>) -> Option<String> {
    let going = going(facts);
    let names = list(going.iter().map(String::as_str));
    (!going.is_empty()).then(|| format!("deleted while pods use them, so that their volumes go with the pods: {names}"))
}

fn await_claim(facts: &Facts<'_>) -> Option<Proposal> {
    let what = format!("claims to be made anew, {}", words(facts)?);
    let who = if facts.expected() > 1 {
        "the user, by deleting these pods one after another, each while all others serve: it comes back with a new claim and a \
         new copy"
    } else {
        "the user, by a second instance (spec.replicas), which takes a copy before the pod ends"
    };
    Proposal::wait(facts, Step::Volumes, what, who)
}

/// All that this pod's volume has is elsewhere, too: another one is primary, or follows this one, which is.
fn is_elsewhere(facts: &Facts<'_>, pod: &Pod) -> bool {
    match facts.primary() {
        Some(primary) if primary.uid == pod.uid => {
            let mut others = facts.pods().iter().filter(|other| other.uid != pod.uid);
            others.any(|other| facts.serves(other))
        }
        Some(_) => true,
        None => false,
    }
}

/// What is waited for before this pod is taken away, if the last copy of the data might go with it.
pub(super) fn before_replacing(facts: &Facts<'_>, pod: &Pod) -> Option<Proposal> {
    if !facts.bootstrapped() || pod.node.is_none() || is_elsewhere(facts, pod) {
        return None;
    }
    let name = &pod.name;
    if facts.observed.claims.get().is_none() {
        return Proposal::unread(facts, Step::Rollout, format!("what {name} leaves behind (the claims)"));
    }
    let claim = deleted(facts, pod).next()?;
    let what = format!(
        "another copy of the data, before {name} is replaced: claim {claim} was deleted, and its volume goes with the pod"
    );
    let copy = if facts.expected() > 1 {
        "the agents, by a primary that serves"
    } else {
        "the user, by a second instance (spec.replicas), which takes a copy"
    };
    let who = format!("{copy}; or, to give up what is on the volume, the user: kubectl delete pod {name}");
    Proposal::wait(facts, Step::Rollout, what, who)
}

/// What is waited for before a claim of a removed instance is deleted, if the volumes of all that stay go with their pods: then the
/// removed one's is the only copy that outlives them.
pub(super) fn before_removing(facts: &Facts<'_>, claim: &Claim) -> Option<Proposal> {
    let stays = |ordinal| facts.data_claim(ordinal).is_some_and(|claim| !claim.terminating);
    if (0..facts.wanted.replicas()).any(stays) {
        return None;
    }
    let what = format!(
        "a claim of an instance that stays, before {} is deleted, which has a copy of the data: those of all that stay were deleted",
        claim.name
    );
    let who = "the user, by more instances (spec.replicas), which take a copy, or by volumePolicy.onScaleDown Retain";
    Proposal::wait(facts, Step::Scaling, what, who)
}

/// What is waited for before all pods are taken away, if the newest data is not known to be on a volume that stays.
pub(super) fn before_hibernating(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.bootstrapped() && facts.observed.claims.get().is_none() {
        return Proposal::unread(facts, Step::Stopping, "the claims");
    }
    let deleted_ones = words(facts)?;
    let released = facts.lease.and_then(|lease| lease.release.as_ref());
    let held = facts.holder().map(|holder| &holder.incarnation.member);
    let newest = held
        .or(released.map(|release| &release.member))
        .and_then(|member| member.ordinal());
    let stays = |ordinal| {
        let claim = facts.data_claim(ordinal).filter(|claim| !claim.terminating);
        let pod = facts.pod(ordinal);
        claim.is_some() && pod.is_none_or(|pod| deleted(facts, pod).next().is_none())
    };
    if newest.is_some_and(stays) {
        return None;
    }
    let what = format!("the primary to have a volume that outlives its pod, to hibernate; {deleted_ones}");
    let who = "the user: once spec.hibernated is false, a primary whose pod is deleted hands over first, and its claim is made \
               anew; with one instance a second one (spec.replicas) takes a copy before";
    Proposal::wait(facts, Step::Stopping, what, who)
}

#[cfg(test)]
mod tests {
    use api::Phase;

    use super::super::Known;
    use super::super::rollout::HOLDER_PATIENCE;
    use super::super::testing::Scene;
    use super::*;

    /// Somebody has deleted the data claim of this instance, in one way or another.
    const DELETED: [fn(&mut Scene, usize); 2] = [
        |scene, index| scene.claims_mut()[index].terminating = true,
        |scene, index| {
            scene.claims_mut().remove(index);
        },
    ];

    #[test]
    fn the_only_instance_is_not_replaced_while_its_volume_would_go_with_it() {
        for (index, delete) in DELETED.into_iter().enumerate() {
            for ready in [true, false] {
                let mut scene = Scene::ready(1);
                scene.revision = "r2".to_owned();
                assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
                delete(&mut scene, 0);
                scene.pod_mut(0).ready = ready;
                scene.store();
                scene.now += HOLDER_PATIENCE;
                assert_eq!(scene.replaced(), None, "{index}");
                scene.store();
                let waiting = scene.stored.waiting.clone().unwrap();
                assert!(
                    waiting.what.contains("claim data-demo-0 was deleted"),
                    "{}",
                    waiting.what
                );
                assert!(waiting.who_can_end_it.contains("spec.replicas"), "{waiting:?}");
                scene.pod_mut(0).node = None;
                assert_eq!(
                    scene.replaced(),
                    Some("demo-0".to_owned()),
                    "its volume is gone already"
                );
            }
        }
        let mut copied = Scene::ready(2);
        copied.revision = "r2".to_owned();
        copied.pod_mut(1).revision = Some("r2".to_owned());
        copied.claims_mut()[0].terminating = true;
        assert_eq!(copied.decide().rule, "switch-over");
        copied.elect(1);
        assert_eq!(copied.replaced(), Some("demo-0".to_owned()), "there is a copy");
    }

    #[test]
    fn a_second_instance_comes_though_the_first_is_not_replaced() {
        let mut scene = Scene::ready(1);
        scene.revision = "r2".to_owned();
        scene.claims_mut()[0].terminating = true;
        scene.edit(|spec| spec.replicas = 2);
        assert_eq!(scene.decide().rule, "scale");
    }

    #[test]
    fn while_nobody_serves_those_whose_volumes_stay_go_first() {
        let mut scene = Scene::ready(3);
        scene.revision = "r2".to_owned();
        (0..3).for_each(|ordinal| scene.pod_mut(ordinal).ready = false);
        scene.claims_mut()[2].terminating = true;
        scene.store();
        scene.now += HOLDER_PATIENCE;
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
        let mut unread = scene.clone();
        unread.observed.claims = Known::Unknown;
        assert_eq!(unread.replaced(), None, "what is not known may be gone");
        scene.pod_mut(1).revision = Some("r2".to_owned());
        scene.claims_mut()[0].terminating = true;
        scene.store();
        let who = scene.stored.waiting.clone().unwrap().who_can_end_it;
        assert!(who.contains("the agents, by a primary that serves"), "{who}");
        scene.now += HOLDER_PATIENCE;
        assert_eq!((scene.replaced(), scene.decide().rule), (None, "replace-idle"));
        scene.elect(1);
        scene.pod_mut(1).ready = true;
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()), "a primary has it all");
    }

    #[test]
    fn a_wal_volume_goes_with_its_pod_as_well() {
        let mut scene = Scene::with_wal(1);
        scene.revision = "r2~wal".to_owned();
        assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
        scene.claims_mut()[1].terminating = true;
        let decision = scene.decide();
        assert!(
            decision.because.to_string().contains("claim wal-demo-0 was deleted"),
            "{decision:?}"
        );
    }

    #[test]
    fn it_is_said_as_long_as_it_lasts() {
        for (index, delete) in DELETED.into_iter().enumerate() {
            let mut scene = Scene::ready(3);
            delete(&mut scene, 1);
            let decision = scene.store();
            assert_eq!(
                (decision.rule, decision.phase),
                ("await-claim", Phase::Ready),
                "{index}"
            );
            let waiting = scene.stored.waiting.clone().unwrap();
            assert!(waiting.what.ends_with(": data-demo-1"), "{}", waiting.what);
            assert!(
                waiting.who_can_end_it.contains("one after another"),
                "{}",
                waiting.who_can_end_it
            );
            let safe = |scene: &Scene| {
                let found = scene.stored.conditions.iter().find(|found| found.type_ == "DataSafe");
                found.map(|found| (found.status.clone(), found.reason.clone())).unwrap()
            };
            assert_eq!(safe(&scene), ("False".to_owned(), "ClaimDeleted".to_owned()));
            scene.observed.claims = Scene::ready(3).observed.claims;
            assert_eq!(scene.store().rule, "rest");
            assert_eq!(safe(&scene).1, "Replicated");
            delete(&mut scene, 1);
            scene.pod_mut(1).node = None;
            assert_ne!(scene.decide().rule, "await-claim", "a pod without a node keeps none");
            let mut alone = Scene::ready(1);
            delete(&mut alone, 0);
            let waits = alone.store();
            let who = alone.stored.waiting.clone().unwrap().who_can_end_it;
            assert_eq!(waits.rule, "await-claim");
            assert!(who.contains("by a second instance"), "{who}");
        }
    }

    #[test]
    fn nothing_hibernates_whose_newest_data_would_go_with_its_pod() {
        for (index, delete) in DELETED.into_iter().enumerate() {
            let mut scene = Scene::ready(3);
            scene.edit(|spec| spec.hibernated = true);
            let mut standby = scene.clone();
            delete(&mut standby, 2);
            standby.store();
            assert!(
                standby.stored.intent.stop,
                "the primary has it all, and its volume stays"
            );
            let mut gone = scene.clone();
            delete(&mut gone, 2);
            gone.claims_mut().retain(|claim| claim.ordinal != 0);
            gone.pods_mut().remove(0);
            let waits = gone.with_facts(before_hibernating);
            assert!(waits.is_some(), "what the primary had is gone with its volume");
            delete(&mut scene, 0);
            let decision = scene.store();
            assert_eq!(
                (decision.rule, scene.stored.intent.stop),
                ("hibernate", false),
                "{index}"
            );
            assert!(decision.because.to_string().contains("data-demo-0"), "{decision:?}");
            let mut stopping = Scene::ready(3);
            stopping.edit(|spec| spec.hibernated = true);
            stopping.store();
            delete(&mut stopping, 0);
            stopping.now += super::super::deletion::STOP_PATIENCE * 2;
            assert!(
                matches!(stopping.decide().action, super::super::Action::Wait(_)),
                "{index}"
            );
            stopping.edit(|spec| spec.hibernated = false);
            assert_eq!(stopping.decide().rule, "wake", "the user can take it back");
        }
    }

    #[test]
    fn a_primary_that_has_not_reported_has_it_all_the_same() {
        let mut scene = Scene::ready(2);
        scene.claims_mut()[1].terminating = true;
        scene.lease_mut().unwrap().members.remove("demo-0");
        let kept = |ordinal: usize| scene.with_facts(|facts| before_replacing(facts, &facts.pods()[ordinal]));
        assert_eq!(kept(1), None);
    }
}
