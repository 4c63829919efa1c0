use api::spec::PrimaryUpdatePolicy;

use super::super::model::Scene;
use super::super::{Fault, FaultKind, Target};
use super::*;

fn void(primary: u32) -> Scene {
    let mut scene = Scene::ready(3);
    scene.elect(primary);
    for ordinal in 0..3 {
        let pod = scene.pod_mut(ordinal);
        (pod.revision, pod.token_revoked) = (None, true);
    }
    scene
}

#[test]
fn agents_that_the_api_server_does_not_know_are_replaced_though_nobody_reports_the_new_ones() {
    let mut scene = void(2);
    for ordinal in [1, 0] {
        assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
        scene.pod_mut(ordinal).terminating = true;
        scene.store();
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.step), ("replace-void", Some(Step::Rollout)));
        assert_eq!(decision.wake, scene.now + HOLDER_LIMIT);
        let revision = scene.revision.clone();
        let pod = scene.pod_mut(ordinal);
        (pod.revision, pod.terminating, pod.token_revoked) = (Some(revision), false, false);
        scene.report_mut(ordinal).pod_uid = "the pod before".to_owned();
    }
    assert_eq!(scene.replaced(), Some("demo-2".to_owned()), "the holder last");
}

#[test]
fn who_serves_nobody_is_replaced_first_and_one_that_goes_or_is_too_many_holds_nobody_up() {
    let mut scene = void(0);
    scene.pod_mut(1).ready = false;
    assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
    let mut going = void(0);
    let revision = going.revision.clone();
    let pod = going.pod_mut(2);
    (pod.revision, pod.token_revoked, pod.node) = (Some(revision), false, None);
    let stuck = |scene: &Scene| scene.with_facts(|facts| stuck(facts).count());
    assert_eq!(stuck(&going), 0, "it is ready");
    going.pod_mut(2).ready = false;
    assert_eq!(stuck(&going), 1);
    let mut fewer = going.clone();
    fewer.spec.replicas = 2;
    fewer.observed.stateful_set.as_mut().unwrap().replicas = 2;
    assert_eq!(stuck(&fewer), 0);
    going.pod_mut(2).terminating = true;
    assert_eq!(stuck(&going), 0);
}

#[test]
fn an_agent_that_the_api_server_does_not_know_is_not_kept_for_one_that_does_not_become_ready() {
    let mut scene = void(0);
    scene.edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Supervised);
    for ordinal in [1, 2] {
        let revision = scene.revision.clone();
        let pod = scene.pod_mut(ordinal);
        (pod.revision, pod.token_revoked, pod.ready) = (Some(revision), false, ordinal == 2);
    }
    let decision = scene.store();
    assert_eq!(
        decision.because.to_string(),
        "the others to be ready, to replace demo-0, whose agent's token is void"
    );
    scene.now = decision.wake;
    assert_eq!(scene.replaced(), Some("demo-0".to_owned()), "it can serve no longer");
}

#[test]
fn an_agent_that_the_api_server_does_not_know_serves_on_while_a_new_pod_cannot_come_up() {
    let mut renewed = void(0);
    let revision = renewed.revision.clone();
    let pod = renewed.pod_mut(2);
    (pod.revision, pod.token_revoked, pod.ready) = (Some(revision), false, false);

    let mut image = renewed.clone();
    image.pod_mut(2).image_error = Some(renewed.image_error());
    let mut unscheduled = renewed.clone();
    unscheduled.pod_mut(2).node = None;
    let mut unmade = renewed.clone();
    unmade.pods_mut().retain(|pod| pod.ordinal != 2);
    unmade.observed.faults = vec![Fault {
        target: Target::Pod("demo-2".to_owned()),
        kind: FaultKind::Forbidden,
        message: "violates PodSecurity".to_owned(),
        attempts: 1,
        at: unmade.now,
    }];
    let cases = [
        (
            image,
            "pod demo-2 to run image nope (ErrImagePull)",
            "the kubelet, or a change",
        ),
        (unscheduled, "a node for pod demo-2", "the scheduler"),
        (
            unmade,
            "pod demo-2 to be made",
            "once this is mended: violates PodSecurity",
        ),
    ];
    for (mut scene, what, who) in cases {
        scene.store();
        scene.now += HOLDER_LIMIT * 2;
        let decision = scene.store();
        assert_eq!((decision.rule, scene.replaced()), ("replace-void", None), "{what}");
        assert_eq!(decision.wake, scene.now + PENDING_RECHECK);
        let waiting = scene.stored.waiting.clone().unwrap();
        let kept = "before demo-1 is replaced, which serves though its agent's token is void";
        assert_eq!(waiting.what, format!("{what}, {kept}"));
        assert!(waiting.who_can_end_it.contains(who), "{}", waiting.who_can_end_it);

        let mut mended = scene.clone();
        mended.revision = "r2".to_owned();
        let stuck = mended.pods().iter().find(|pod| pod.ordinal == 2);
        let first = stuck.map(|pod| pod.name.clone());
        if let Some(first) = first {
            assert_eq!(
                mended.replaced(),
                Some(first),
                "the wanted template may be what it lacks"
            );
        }
        scene.pod_mut(1).ready = false;
        scene.store();
        scene.now += HOLDER_LIMIT;
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()), "it serves nobody");
    }
}
