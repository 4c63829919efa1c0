use super::super::model::Scene;
use super::super::{Action, Fault, FaultKind, Known, OwnedObject, Target, Trouble};
use super::*;

#[test]
fn nothing_is_made_before_the_finalizer() {
    let decision = Scene::new(3).decide();
    assert_eq!((decision.rule, decision.action.name()), ("finalizer", "AddFinalizer"));
}

#[test]
fn objects_are_made_in_order_and_the_stateful_set_last() {
    let mut scene = Scene::new(3);
    scene.finalizer = true;
    scene.edit(|spec| spec.network_policy.mode = api::spec::NetworkPolicyMode::Managed);
    for kind in OwnedObject::ALL {
        let Action::Apply(apply) = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(apply.kind, kind);
        scene.set_child(kind, super::super::OwnedState::Current { uid: "u".to_owned() });
    }
}

#[test]
fn a_pod_that_is_going_away_is_for_its_kubelet_or_whoever_knows_that_its_node_is_off() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).terminating = true;
    let who = |scene: &Scene| match scene.decide().action {
        Action::Wait(waiting) => (waiting.what, waiting.who_can_end_it),
        other => panic!("{other:?}"),
    };
    let (what, words) = who(&scene);
    assert_eq!(what, "pod demo-2");
    assert!(words.starts_with("the kubelet of node-2,"), "{words}");
    assert!(
        words.contains("kubectl taint node node-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
            && words.ends_with("kubectl delete pod demo-2 --force"),
        "{words}"
    );
    scene.pod_mut(2).node = None;
    assert_eq!(who(&scene).1, "the API server");
    scene.pods_mut().pop();
    assert_eq!(who(&scene).1, "the StatefulSet controller");
}

#[test]
fn standbys_are_waited_for_by_name_and_the_scheduler_is_quoted() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(1).ready = false;
    scene.pod_mut(2).ready = false;
    assert_eq!(
        scene.decide().because.to_string(),
        "demo-1, demo-2 to stream from the primary"
    );
    scene.pod_mut(2).unschedulable = Some("0/3 nodes are available".to_owned());
    scene.pod_mut(2).node = None;
    assert_eq!(
        scene.decide().because.to_string(),
        "a node for pod demo-2 (0/3 nodes are available)"
    );
    scene.pods_mut().truncate(2);
    assert_eq!(
        scene.awaits(),
        (api::status::WaitReason::PodCreation, "pod/demo-2".to_owned())
    );
}

/// What is waited for, who can end it, and for how long that may last.
fn waits(scene: &mut Scene) -> (String, String, i64) {
    scene.store();
    let waiting = scene.stored.waiting.clone().unwrap();
    let limit = waiting
        .deadline
        .map_or(0, |deadline| (deadline - waiting.since).num_minutes());
    (waiting.what, waiting.who_can_end_it, limit)
}

fn killed() -> Option<Trouble> {
    Some(Trouble {
        reason: "OOMKilled, exit code 137".to_owned(),
        message: "container postgres has ended 3 times".to_owned(),
    })
}

#[test]
fn a_pod_that_does_not_stay_up_is_told_in_kubernetes_words_and_is_late_sooner_than_a_copy() {
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(api::Phase::Updating);
    scene.pod_mut(2).ready = false;
    assert_eq!(waits(&mut scene).2, 60, "it may copy the database");
    scene.pod_mut(2).trouble = killed();
    let (what, who, limit) = waits(&mut scene);
    assert_eq!(what, "pod demo-2 to be ready (OOMKilled, exit code 137)");
    assert_eq!(
        who,
        "the kubelet, once this is mended: container postgres has ended 3 times"
    );
    assert_eq!(limit, 10);
    scene.pod_mut(1).ready = false;
    scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()]);
    assert_eq!(waits(&mut scene).0, "demo-1 to stream from the primary");
}

#[test]
fn a_pod_that_cannot_be_made_is_told_in_the_controllers_words() {
    let words = "create Pod demo-2 failed error: no PriorityClass with name nope was found";
    let fault = |kind| Fault {
        target: Target::Pod("demo-2".to_owned()),
        kind,
        message: words.to_owned(),
        attempts: 1,
        at: Scene::ready(3).now,
    };
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(api::Phase::Updating);
    scene.pods_mut().pop();
    scene.observed.faults = vec![fault(FaultKind::Conflict)];
    assert_eq!(
        waits(&mut scene).1,
        "the StatefulSet controller",
        "that was about the pod before"
    );
    scene.observed.faults = vec![fault(FaultKind::Forbidden)];
    let (what, who, limit) = waits(&mut scene);
    assert_eq!((what.as_str(), limit), ("pod demo-2 to be made", 10));
    assert_eq!(who, format!("the StatefulSet controller, once this is mended: {words}"));
}

#[test]
fn the_first_database_and_a_single_instance_wait_in_kubernetes_words_as_well() {
    let mut scene = Scene::ready(1);
    scene.pod_mut(0).ready = false;
    scene.pod_mut(0).trouble = killed();
    let (what, who, _) = waits(&mut scene);
    assert_eq!(what, "pod demo-0 to be ready (OOMKilled, exit code 137)");
    assert!(who.ends_with("container postgres has ended 3 times"), "{who}");
    scene.stored.system_identifier = None;
    scene.lease_mut().unwrap().system_id = None;
    scene.stored.intent.bootstrap = Some(api::status::BootstrapGrant {
        pod: "demo-0".to_owned(),
        claim_uid: scene.claims_mut()[0].uid.clone(),
    });
    assert_eq!(waits(&mut scene).0, what);
}

#[test]
fn the_first_database_waits_for_a_pod_that_does_not_go() {
    let waits = |granted: bool, change: fn(&mut Scene)| {
        let mut scene = Scene::ready(1);
        scene.stored.system_identifier = None;
        scene.lease_mut().unwrap().system_id = None;
        scene.stored.intent.bootstrap = granted.then(|| api::status::BootstrapGrant {
            pod: "demo-0".to_owned(),
            claim_uid: scene.claims_mut()[0].uid.clone(),
        });
        scene.pod_mut(0).ready = false;
        change(&mut scene);
        match scene.with_facts(await_database).unwrap().action {
            Action::Wait(waiting) => waiting.what.into_owned(),
            other => panic!("{other:?}"),
        }
    };
    let going: fn(&mut Scene) = |scene| scene.pod_mut(0).terminating = true;
    assert_eq!(waits(false, |_| {}), "pod demo-0 to be ready");
    assert_eq!(waits(false, going), "pods of StatefulSet demo");
    assert_eq!(waits(true, |_| {}), "demo-0 to make the first database");
    assert_eq!(waits(true, going), "pod demo-0, which may make the first database");
}

#[test]
fn a_pod_that_does_not_run_is_looked_at_again_or_late() {
    let mut scene = Scene::ready(1);
    let wait = |scene: &Scene| {
        let found = scene
            .with_facts(|facts| pending(facts, Step::Standbys, &facts.pods()[0]))
            .unwrap();
        let Action::Wait(waiting) = found.action else {
            panic!("{:?}", found.action)
        };
        (waiting.deadline, found.wake)
    };
    assert_eq!(wait(&scene), (None, None));
    scene.pod_mut(0).node = None;
    assert_eq!(wait(&scene), (None, Some(scene.now + PENDING_RECHECK)));
    scene.pod_mut(0).image_error = Some(scene.image_error());
    let late = scene
        .with_facts(|facts| failure::image_deadline(facts, &facts.pods()[0]))
        .unwrap();
    assert_eq!(wait(&scene).0, Some(late));
    scene.now = late;
    assert_eq!(wait(&scene).0, None, "it has become a failure");
}

#[test]
fn a_failover_that_waits_for_a_pod_that_does_not_stay_up_says_why() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(0).ready = false;
    scene.pod_mut(0).trouble = killed();
    let (_, who, _) = waits(&mut scene);
    assert!(who.ends_with("; demo-0: container postgres has ended 3 times"), "{who}");
}

#[test]
fn an_unreadable_lease_is_no_lost_one() {
    let mut scene = Scene::ready(3);
    scene.observed.lease = Known::Unknown;
    let decision = scene.decide();
    assert_eq!(
        (decision.rule, decision.because.to_string().as_str()),
        ("await-primary", "the Lease to be read")
    );
    assert_eq!(
        decision.phase,
        api::Phase::Ready,
        "what cannot be read changes no phase"
    );
}

fn progressing(scene: &Scene) -> String {
    let mut conditions = scene.stored.conditions.iter();
    let found = conditions.find(|found| found.type_ == "Progressing");
    found.unwrap().reason.clone()
}

/// One standby does not come back; the other one comes and goes, in each way that there is.
#[test]
fn a_standby_that_comes_and_goes_does_not_postpone_the_deadline_of_another() {
    type Change = fn(&mut Scene);
    let ways: [(&str, Change, Change); 4] = [
        (
            "not ready",
            |s| s.pod_mut(1).ready = false,
            |s| s.pod_mut(1).ready = true,
        ),
        (
            "killed",
            |s| (s.pod_mut(1).ready, s.pod_mut(1).trouble) = (false, killed()),
            |s| (s.pod_mut(1).ready, s.pod_mut(1).trouble) = (true, None),
        ),
        (
            "going away",
            |s| s.pod_mut(1).terminating = true,
            |s| s.pod_mut(1).terminating = false,
        ),
        (
            "without a node",
            |s| (s.pod_mut(1).ready, s.pod_mut(1).unschedulable) = (false, Some("full".to_owned())),
            |s| (s.pod_mut(1).ready, s.pod_mut(1).unschedulable) = (true, None),
        ),
    ];
    for (way, leave, come_back) in ways {
        for flaps_first in [false, true] {
            let mut scene = Scene::ready(3);
            scene.stored.phase = Some(api::Phase::Updating);
            if flaps_first {
                leave(&mut scene);
                scene.store();
                scene.now += TimeDelta::minutes(2);
            }
            scene.pod_mut(2).ready = false;
            scene.store();
            let began = scene.now;
            for minute in 1..60 {
                scene.now = began + TimeDelta::minutes(minute);
                if minute % 2 == 0 {
                    leave(&mut scene);
                } else {
                    come_back(&mut scene);
                }
                scene.store();
                assert_ne!(
                    progressing(&scene),
                    "DeadlineExceeded",
                    "{way}, {flaps_first}, {minute} min"
                );
            }
            for away in [true, false, true] {
                scene.now += TimeDelta::minutes(1);
                if away {
                    leave(&mut scene);
                } else {
                    come_back(&mut scene);
                }
                scene.store();
                let waiting = scene.stored.waiting.clone().unwrap();
                let deadline = began + TimeDelta::hours(1);
                assert_eq!(
                    (waiting.object.as_deref(), waiting.since, waiting.deadline),
                    (Some("pod/demo-2"), began, Some(deadline)),
                    "{way}, {flaps_first}: {waiting:?}"
                );
                assert_eq!(progressing(&scene), "DeadlineExceeded", "{way}, {flaps_first}");
            }
        }
    }
}

#[test]
fn of_two_late_standbys_the_one_that_is_late_longest_is_named_as_the_object() {
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(api::Phase::Updating);
    scene.pod_mut(2).ready = false;
    scene.store();
    let began = scene.now;
    scene.now += TimeDelta::minutes(5);
    scene.pod_mut(1).ready = false;
    scene.store();
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!(waiting.what, "demo-1, demo-2 to stream from the primary");
    assert_eq!((waiting.object.as_deref(), waiting.since), (Some("pod/demo-2"), began));
    let second = scene.now;
    scene.now += TimeDelta::minutes(5);
    scene.pod_mut(2).ready = true;
    scene.store();
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!((waiting.object.as_deref(), waiting.since), (Some("pod/demo-1"), second));
    scene.pod_mut(1).ready = true;
    scene.store();
    assert!(scene.stored.memo.late.is_empty(), "nobody is late any more");
}

/// While no primary serves, something else is waited for: a standby that is late stays late meanwhile.
#[test]
fn another_wait_in_between_restarts_no_time_of_a_late_standby() {
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(api::Phase::Updating);
    scene.pod_mut(2).ready = false;
    scene.store();
    let began = scene.now;
    scene.now += TimeDelta::minutes(5);
    scene.pod_mut(0).ready = false;
    assert_eq!(scene.store().rule, "await-primary");
    scene.now += TimeDelta::minutes(5);
    scene.pod_mut(0).ready = true;
    scene.store();
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!((waiting.object.as_deref(), waiting.since), (Some("pod/demo-2"), began));
}
