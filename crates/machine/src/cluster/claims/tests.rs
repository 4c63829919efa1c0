use api::Phase;

use super::super::Known;
use super::super::model::Scene;
use super::super::rollout::HOLDER_LIMIT;
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
            scene.now += HOLDER_LIMIT;
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
    scene.scaled(2);
    assert_eq!(scene.decide().rule, "scale");
}

#[test]
fn while_nobody_serves_those_whose_volumes_stay_go_first() {
    let mut scene = Scene::ready(3);
    scene.revision = "r2".to_owned();
    (0..3).for_each(|ordinal| scene.pod_mut(ordinal).ready = false);
    scene.claims_mut()[2].terminating = true;
    scene.store();
    scene.now += HOLDER_LIMIT;
    assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
    let mut unread = scene.clone();
    unread.observed.claims = Known::Unknown;
    assert_eq!(unread.replaced(), None, "what is not known may be gone");
    scene.pod_mut(1).revision = Some("r2".to_owned());
    scene.claims_mut()[0].terminating = true;
    scene.store();
    let who = scene.stored.waiting.clone().unwrap().who_can_end_it;
    assert!(who.contains("the agents, by a primary that serves"), "{who}");
    scene.now += HOLDER_LIMIT;
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
        stopping.now += super::super::deletion::STOP_LIMIT * 2;
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
