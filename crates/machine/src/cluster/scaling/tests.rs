use api::Phase;
use api::status::SwitchoverMemo;

use super::super::Known;
use super::super::model::Scene;
use super::*;
use crate::quorum::SyncRule;

fn replicas(scene: &Scene) -> Option<u32> {
    match scene.decide().action {
        Action::Apply(apply) => apply.replicas,
        _ => None,
    }
}

#[test]
fn more_instances_come_at_once_and_fewer_go_at_once() {
    let mut scene = Scene::ready(3);
    scene.scaled(5);
    assert_eq!((replicas(&scene), scene.decide().phase), (Some(5), Phase::Updating));
    let takes_pods_away = |scene: &Scene| match scene.decide().action {
        Action::Apply(apply) => apply.takes_pods_away(&scene.observed),
        _ => false,
    };
    assert!(!takes_pods_away(&scene));
    scene.scaled(1);
    scene.synchronize();
    assert_eq!(replicas(&scene), Some(1));
    assert!(takes_pods_away(&scene), "all is read once more before");
}

#[test]
fn the_primary_stays_until_it_has_handed_over() {
    let mut scene = Scene::ready(3);
    scene.elect(1);
    scene.scaled(1);
    scene.synchronize();
    assert_eq!(scene.decide().rule, "switch-over");
    let mut given_up = scene.clone();
    given_up.stored.memo.switchover = Some(SwitchoverMemo {
        target: "demo-0".to_owned(),
        since: scene.now,
        attempts: 1,
        ended: Some(scene.now),
    });
    assert_eq!(replicas(&given_up), Some(2), "what can go goes");
    scene.report_mut(0).state = crate::protocol::MemberState::CatchingUp;
    assert_eq!(scene.decide().rule, "await-staying");
    scene.elect(2);
    scene.report_mut(0).state = crate::protocol::MemberState::CatchingUp;
    assert_eq!(scene.decide().rule, "await-standbys", "nobody can take over yet");
    scene.elect(0);
    assert_eq!(replicas(&scene), Some(1));
}

#[test]
fn who_serves_does_not_go_while_one_that_stays_is_broken() {
    let mut scene = Scene::ready(3);
    scene.scaled(2);
    scene.synchronize();
    assert_eq!(replicas(&scene), Some(2));
    type Spoil = fn(&mut Scene);
    let broken: [(Spoil, &str); 5] = [
        (|scene| scene.pod_mut(1).ready = false, "its agent; or the user"),
        (
            |scene| {
                scene.report_mut(1).state = crate::protocol::MemberState::Cloning;
                scene.report_mut(1).fault = Some("no room".to_owned());
            },
            "its agent (no room); or the user",
        ),
        (
            |scene| {
                let pod = scene.pod_mut(1);
                (pod.ready, pod.node, pod.unschedulable) = (false, None, Some("no node fits".to_owned()));
            },
            "spec.scheduling or spec.resources: a node for pod demo-1 (no node fits); or the user",
        ),
        (|scene| scene.pod_mut(1).terminating = true, "the kubelet of node-1"),
        (
            |scene| scene.pods_mut().retain(|pod| pod.ordinal != 1),
            "the StatefulSet controller; or the user",
        ),
    ];
    for (index, (spoil, who)) in broken.into_iter().enumerate() {
        let mut scene = scene.clone();
        spoil(&mut scene);
        let decision = scene.store();
        assert_eq!(
            (decision.rule, decision.phase),
            ("await-staying", Phase::Updating),
            "{index}"
        );
        let waiting = scene.stored.waiting.clone().unwrap();
        assert_eq!(
            waiting.what,
            "demo-1, which is to stay, to serve, before demo-2 goes, which does"
        );
        assert!(waiting.who_can_end_it.contains(who), "{}", waiting.who_can_end_it);
        let command = "kubectl delete pvc data-demo-1 --wait=false && kubectl delete pod demo-1;";
        assert!(waiting.who_can_end_it.contains(command), "{}", waiting.who_can_end_it);
        scene.pod_mut(2).ready = false;
        assert_eq!(replicas(&scene), Some(2), "{index}: nothing that serves goes");
    }
    scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
    scene.report_mut(1).state = crate::protocol::MemberState::Stopped;
    scene.store();
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!(waiting.who_can_end_it, "the user, by changing spec.fenced");
}

#[test]
fn nobody_goes_while_no_primary_serves() {
    let mut scene = Scene::ready(3);
    scene.scaled(1);
    scene.pod_mut(0).ready = false;
    assert_eq!(replicas(&scene), None);
    scene.pod_mut(0).ready = true;
    scene.observed.lease = Known::Unknown;
    assert_eq!(replicas(&scene), None);
}

/// Scaled down to one, and the pods are gone.
fn scaled_down(fate: VolumeFate) -> Scene {
    let mut scene = Scene::ready(3);
    scene.scaled(1);
    scene.edit(|spec| spec.storage.retention_policy.when_scaled = fate);
    scene.synchronize();
    scene.observed.stateful_set.as_mut().unwrap().replicas = 1;
    scene.pods_mut().truncate(1);
    scene
}

#[test]
fn claims_are_kept_or_deleted_and_the_member_is_forgotten() {
    let scene = scaled_down(VolumeFate::Retain);
    assert!(matches!(&scene.decide().action, Action::WriteStatus(changes) if changes.len() == 1));
    let mut scene = scaled_down(VolumeFate::Delete);
    let Action::DeleteClaim(claim) = scene.decide().action else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!(claim.name(), "data-demo-1");
    scene.claims_mut().remove(1);
    scene.store();
    assert!(!scene.stored.members.contains_key("demo-1"));
}

#[test]
fn the_only_claim_that_stays_is_not_deleted() {
    let mut scene = scaled_down(VolumeFate::Delete);
    scene.claims_mut()[0].terminating = true;
    let wait = scene.decide();
    assert_eq!(wait.rule, "removed-members");
    assert!(matches!(wait.action, Action::Wait(_)), "{wait:?}");
    scene.claims_mut().remove(0);
    assert!(matches!(scene.decide().action, Action::Wait(_)));
}

#[test]
fn whom_elections_still_count_keeps_its_claim() {
    let mut scene = scaled_down(VolumeFate::Delete);
    scene.stored.members.remove("demo-1");
    let member = scene.report_mut(2).member.clone();
    scene.lease_mut().unwrap().rule = SyncRule::any(1, [member]);
    assert_eq!(scene.decide().rule, "await-durability");
    scene.lease_mut().unwrap().rule = SyncRule::default();
    assert!(matches!(scene.decide().action, Action::DeleteClaim(claim) if claim.name() == "data-demo-2"));
}

#[test]
fn a_claim_that_was_kept_before_is_not_deleted_by_a_later_policy() {
    let mut scene = scaled_down(VolumeFate::Retain);
    scene.store();
    scene.store();
    scene.edit(|spec| spec.storage.retention_policy.when_scaled = VolumeFate::Delete);
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn a_claim_with_another_uid_or_a_pod_is_not_deleted() {
    let mut scene = scaled_down(VolumeFate::Delete);
    scene.claims_mut()[1].uid = "another".to_owned();
    assert!(matches!(scene.decide().action, Action::WriteStatus(_)));
    let mut scene = scaled_down(VolumeFate::Delete);
    scene.add_pod(1);
    scene.claims_mut().remove(3);
    scene.pod_mut(1).terminating = true;
    scene.pods_mut().retain(|pod| pod.ordinal < 2);
    let Action::DeleteClaim(claim) = scene.decide().action else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!(claim.name(), "data-demo-2", "the pod of demo-1 still exists");
}

#[test]
fn a_wal_volume_does_not_outlive_its_data() {
    let mut scene = scaled_down(VolumeFate::Delete);
    let mut wal = scene.claims_mut()[1].clone();
    (wal.name, wal.uid, wal.volume) = ("wal-demo-1".to_owned(), "w".to_owned(), Volume::Wal);
    scene.claims_mut()[1] = wal;
    let Action::DeleteClaim(claim) = scene.decide().action else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!(claim.name(), "wal-demo-1");
}

#[test]
fn claims_of_an_instance_that_was_never_published_go_if_nothing_is_on_them() {
    let mut scene = scaled_down(VolumeFate::Delete);
    for _ in 1..3 {
        scene.claims_mut().truncate(1);
        scene.store();
    }
    assert_eq!(scene.decide().rule, "rest");
    let left = Scene::ready(3).claims_mut()[2].clone();
    scene.claims_mut().push(left);
    assert_eq!(scene.decide().rule, "rest", "there may be data on it");
    scene.claims_mut()[1].bound = false;
    assert!(matches!(scene.decide().action, Action::DeleteClaim(claim) if claim.name() == "data-demo-2"));
    scene.edit(|spec| spec.storage.retention_policy.when_scaled = VolumeFate::Retain);
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn an_instance_that_goes_before_it_was_published_is_published_for_its_claims() {
    let mut scene = Scene::ready(1);
    scene.spec.storage.retention_policy.when_scaled = VolumeFate::Delete;
    scene.add_pod(1);
    scene.pod_mut(1).terminating = true;
    scene.now += chrono::TimeDelta::seconds(3);
    scene.store();
    assert!(scene.stored.members.contains_key("demo-1"));
    scene.pods_mut().truncate(1);
    assert!(matches!(scene.decide().action, Action::DeleteClaim(claim) if claim.name() == "data-demo-1"));
}

#[test]
fn a_foreign_claim_keeps_a_new_instance_away() {
    let mut scene = Scene::ready(3);
    scene.pods_mut().truncate(2);
    scene.observed.stateful_set.as_mut().unwrap().replicas = 2;
    scene.claims_mut()[2].cluster_uid = None;
    let decision = scene.decide();
    assert!(matches!(decision.action, Action::Wait(_)), "{decision:?}");
    assert_eq!(decision.phase, Phase::Failed);
}

#[test]
fn a_scale_down_needs_a_primary_and_says_so() {
    let mut scene = Scene::ready(3);
    scene.scaled(2);
    scene.pod_mut(0).ready = false;
    let Action::Wait(waiting) = scene.with_facts(await_scale).unwrap().action else {
        panic!()
    };
    assert_eq!(waiting.reason, api::status::WaitReason::PrimaryForScaleDown);
}

#[test]
fn only_a_claim_of_this_database_that_nobody_returns_to_is_abandoned() {
    let abandoned = |change: fn(&mut Claim)| {
        let mut scene = Scene::ready(1);
        let mut left = Scene::ready(2).claims_mut()[1].clone();
        left.bound = false;
        change(&mut left);
        scene.claims_mut().push(left);
        scene.with_facts(|facts| super::abandoned(facts).is_some())
    };
    assert!(abandoned(|_| {}));
    assert!(!abandoned(|claim| claim.cluster_uid = Some("another".to_owned())));
    let mut scene = Scene::ready(2);
    scene.pods_mut().truncate(1);
    scene.claims_mut()[1].bound = false;
    scene.stored.members.remove("demo-1");
    assert!(
        scene.with_facts(|facts| super::abandoned(facts).is_none()),
        "its pod comes back"
    );
}
