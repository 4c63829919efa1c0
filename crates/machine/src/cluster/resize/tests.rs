use api::Phase;
use api::spec::PrimaryUpdatePolicy;
use chrono::TimeDelta;

use super::super::facts::resize::WAIT_LIMIT;
use super::super::model::Scene;
use super::super::{Fault, Target};
use super::*;
use crate::protocol::MemberState;

/// A database whose cpu and memory are changed, with the primary in pod 0.
fn changed() -> Scene {
    let mut scene = Scene::ready(3);
    scene.revision = "r1+large".to_owned();
    for pod in scene.pods_mut() {
        pod.resources = Resources::Other;
    }
    scene
}

/// Carries out what is decided, as a kubelet does that takes its time; returns the pod and what was done.
fn step(scene: &mut Scene) -> (u32, &'static str) {
    let decision = scene.decide();
    let (Action::MarkPod { pod, .. } | Action::ResizePod(pod) | Action::ReplacePod(pod)) = &decision.action else {
        panic!("{decision:#?}")
    };
    let found = scene
        .pods_mut()
        .iter_mut()
        .find(|found| found.uid == pod.uid())
        .unwrap();
    match &decision.action {
        Action::MarkPod { mark, .. } => match mark {
            PodMark::Resizing(resizing) => found.resizing = Some(resizing.clone()),
            PodMark::Current { revision } => (found.revision, found.resizing) = (Some(revision.clone()), None),
        },
        Action::ResizePod(_) => found.resources = Resources::Asked { message: None },
        _ => {}
    }
    (found.ordinal, decision.action.name())
}

#[test]
fn every_pod_gets_it_in_place_one_after_another_the_primary_last() {
    let mut scene = changed();
    scene.elect(1);
    for ordinal in [2, 0, 1] {
        assert_eq!(step(&mut scene), (ordinal, "MarkPod"));
        assert_eq!(step(&mut scene), (ordinal, "ResizePod"));
        let decision = scene.decide();
        assert!(matches!(decision.action, Action::Wait(_)), "{decision:#?}");
        assert_eq!((decision.rule, decision.phase), ("resize", Phase::Updating));
        assert_eq!(decision.wake, scene.now + WAIT_LIMIT);
        scene.pod_mut(ordinal).resources = Resources::Given;
        assert_eq!(step(&mut scene), (ordinal, "MarkPod"));
    }
    scene.store();
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn nothing_is_resized_while_another_instance_is_away() {
    let mut scene = changed();
    scene.report_mut(1).state = MemberState::CatchingUp;
    let decision = scene.decide();
    assert!(matches!(decision.action, Action::Wait(_)), "{decision:#?}");
    assert_ne!(decision.rule, "resize");
}

#[test]
fn a_pod_that_is_ready_and_does_not_stream_gets_it_as_well() {
    for state in [MemberState::CatchingUp, MemberState::Waiting] {
        let mut scene = changed();
        scene.report_mut(2).state = state;
        assert_eq!(step(&mut scene), (2, "MarkPod"), "what is missing to it may be memory");
        assert_eq!(step(&mut scene), (2, "ResizePod"));
        let mut refused = scene.clone();
        refused.pod_mut(2).resources = Resources::Refused {
            message: "no".to_owned(),
        };
        assert_eq!(step(&mut refused), (2, "ReplacePod"));
        scene.pod_mut(2).resources = Resources::Given;
        assert_eq!(step(&mut scene), (2, "MarkPod"));
        assert!(
            matches!(scene.decide().action, Action::Wait(_)),
            "the others have to wait"
        );
    }
}

#[test]
fn less_memory_waits_until_the_settings_that_need_less_are_in_force() {
    let mut scene = changed();
    for ordinal in 0..3 {
        scene.pod_mut(ordinal).resources = Resources::MoreMemory;
    }
    assert_eq!(step(&mut scene.clone()), (2, "MarkPod"), "no setting is changed");
    scene.edit(|spec| {
        let parameters = &mut spec.postgres.parameters;
        parameters.insert("shared_buffers".to_owned(), "64MB".to_owned());
    });
    let decision = scene.decide();
    assert_eq!(
        decision.rule, "await-settings",
        "whether they need a restart is not known yet"
    );
    for ordinal in 0..3 {
        let settings = crate::protocol::settings_hash(&scene.spec.postgres.parameters);
        let report = scene.report_mut(ordinal);
        (report.settings, report.pending_restart) = (settings, true);
    }
    let decision = scene.store();
    assert_eq!(decision.rule, "restart", "{decision:#?}");
    assert_eq!(scene.stored.intent.restart.as_ref().unwrap().pod, "demo-2");
    assert!(matches!(scene.decide().action, Action::Wait(_)));
    let mut restarts = scene.clone();
    restarts.pod_mut(2).ready = false;
    assert_eq!(restarts.decide().rule, "restart", "it was let restart");
    restarts.now += TimeDelta::minutes(2);
    assert_eq!(step(&mut restarts), (2, "ReplacePod"), "it is not back in time");
    scene.report_mut(2).pending_restart = false;
    scene.store();
    assert_eq!(scene.stored.intent.restart, None);
    assert_eq!(step(&mut scene), (2, "MarkPod"));
    assert_eq!(step(&mut scene), (2, "ResizePod"));

    let mut refused = scene.clone();
    refused.report_mut(1).settings_error = Some("invalid value".to_owned());
    refused.pod_mut(2).resources = Resources::Given;
    assert_eq!(step(&mut refused), (2, "MarkPod"));
    assert_eq!(
        refused.decide().rule,
        "await-settings",
        "refused settings need as much as before"
    );
}

#[test]
fn a_primary_that_restarts_first_is_given_less_memory_last() {
    let mut scene = changed();
    scene.edit(|spec| {
        let parameters = &mut spec.postgres.parameters;
        parameters.insert("max_connections".to_owned(), "20".to_owned());
    });
    for ordinal in 0..3 {
        scene.pod_mut(ordinal).resources = Resources::MoreMemory;
        let settings = crate::protocol::settings_hash(&scene.spec.postgres.parameters);
        let report = scene.report_mut(ordinal);
        (report.settings, report.pending_restart, report.lowers_limits) = (settings, true, true);
    }
    scene.store();
    assert_eq!(scene.stored.intent.restart.as_ref().unwrap().pod, "demo-0");
    let report = scene.report_mut(0);
    (report.pending_restart, report.lowers_limits) = (false, false);
    scene.store();
    scene.store();
    assert_eq!(scene.stored.intent.restart.as_ref().unwrap().pod, "demo-2");
}

#[test]
fn a_primary_whose_updates_are_supervised_is_resized_without_leave() {
    let mut scene = changed();
    scene.edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Supervised);
    for ordinal in [2, 1] {
        let pod = scene.pod_mut(ordinal);
        (pod.revision, pod.resources) = (Some("r1+large".to_owned()), Resources::Given);
    }
    assert_eq!(step(&mut scene), (0, "MarkPod"));
    assert_eq!(step(&mut scene), (0, "ResizePod"));
}

#[test]
fn a_template_that_differs_in_more_needs_a_new_pod() {
    let mut scene = changed();
    scene.revision = "r2+large".to_owned();
    assert_eq!(step(&mut scene), (2, "ReplacePod"));
    let mut before = changed();
    before.pod_mut(2).base_revision = None;
    assert_eq!(
        step(&mut before),
        (2, "ReplacePod"),
        "a pod that an older operator made"
    );
}

fn because(scene: &Scene) -> String {
    let decision = scene.decide();
    assert_eq!(decision.action.name(), "ReplacePod", "{decision:#?}");
    decision.because.to_string()
}

#[test]
fn what_kubernetes_cannot_do_in_place_is_done_by_replacement_and_it_is_said_why() {
    let mut infeasible = changed();
    infeasible.pod_mut(2).resources = Resources::Refused {
        message: "Infeasible: too little".to_owned(),
    };
    let said = "demo-2 is of an older template, and all others serve; it cannot be resized in place: ";
    assert_eq!(because(&infeasible), format!("{said}Infeasible: too little"));

    let mut slow = changed();
    step(&mut slow);
    step(&mut slow);
    let message = Some("Deferred: no room".to_owned());
    slow.pod_mut(2).resources = Resources::Asked { message };
    slow.store();
    slow.now += WAIT_LIMIT - TimeDelta::seconds(1);
    assert_eq!(slow.decide().rule, "resize");
    slow.now += TimeDelta::seconds(1);
    assert_eq!(because(&slow), format!("{said}not done in 60 s: Deferred: no room"));
    slow.pod_mut(2).resources = Resources::Given;
    assert_eq!(step(&mut slow), (2, "MarkPod"), "late is not never");
}

fn fault(scene: &mut Scene, kind: FaultKind) {
    scene.observed.faults = vec![Fault {
        target: Target::Resize("demo-2".to_owned()),
        kind,
        message: "no".to_owned(),
        attempts: 1,
        at: scene.now,
    }];
}

#[test]
fn a_request_that_is_refused_is_not_made_again_unless_a_new_pod_would_be_refused_as_well() {
    let mut scene = changed();
    step(&mut scene);
    fault(&mut scene, FaultKind::Invalid);
    assert!(because(&scene).ends_with("; it cannot be resized in place: no"));
    let others = [
        FaultKind::Transient,
        FaultKind::Conflict,
        FaultKind::Forbidden,
        FaultKind::Quota,
    ];
    for kind in others {
        fault(&mut scene, kind);
        assert!(matches!(scene.decide().action, Action::Wait(_)));
        let mut late = scene.clone();
        late.now += WAIT_LIMIT - TimeDelta::seconds(1);
        (late.observed.faults[0].attempts, late.observed.faults[0].at) = (20, late.now);
        let decision = late.decide();
        assert_eq!(
            (decision.rule, decision.wake),
            ("resize", late.now + TimeDelta::seconds(1))
        );
        late.now = decision.wake;
        match kind {
            FaultKind::Quota | FaultKind::Forbidden => {
                assert!(
                    matches!(late.decide().action, Action::Wait(_)),
                    "a new pod would be refused as well"
                );
            }
            _ => assert!(because(&late).ends_with("; it cannot be resized in place: no")),
        }
    }
    assert_eq!(
        scene.decide().failure.unwrap().reason,
        api::status::FailureReason::QuotaExceeded
    );
    let mut undone = scene.clone();
    let pod = undone.pod_mut(2);
    (pod.revision, pod.resizing) = (Some("r1+large".to_owned()), None);
    assert_eq!(undone.decide().failure, None, "nothing is refused any more");
    scene.now += TimeDelta::minutes(5);
    assert_eq!(step(&mut scene), (2, "ResizePod"), "it is tried again");
}

#[test]
fn less_memory_that_is_refused_to_one_is_not_restarted_for_by_the_others() {
    let mut scene = changed();
    scene.edit(|spec| {
        let parameters = &mut spec.postgres.parameters;
        parameters.insert("shared_buffers".to_owned(), "64MB".to_owned());
    });
    for ordinal in 0..3 {
        scene.pod_mut(ordinal).resources = Resources::MoreMemory;
        let settings = crate::protocol::settings_hash(&scene.spec.postgres.parameters);
        let report = scene.report_mut(ordinal);
        (report.settings, report.pending_restart) = (settings, true);
    }
    assert_eq!(scene.decide().rule, "restart");
    fault(&mut scene, FaultKind::Transient);
    assert_eq!(scene.decide().rule, "restart", "it may go away");
    fault(&mut scene, FaultKind::Invalid);
    let mut elsewhere = scene.clone();
    elsewhere.observed.faults[0].target = Target::Pod("demo-2".to_owned());
    assert_eq!(elsewhere.decide().rule, "restart", "that is no word on memory");
    let pod = scene.pod_mut(2);
    (pod.revision, pod.resources) = (Some("r1+large".to_owned()), Resources::Given);
    scene.report_mut(2).pending_restart = false;
    let mut more = scene.clone();
    more.pod_mut(1).resources = Resources::Other;
    assert_eq!(step(&mut more), (1, "MarkPod"), "it needs no restart first");
    assert_eq!(step(&mut scene), (1, "ReplacePod"));
    assert!(because(&scene).ends_with("; it cannot be resized in place: no"));
    scene.report_mut(1).pending_restart = false;
    assert_eq!(step(&mut scene), (1, "MarkPod"), "its settings need no more than that");
}

#[test]
fn a_primary_that_cannot_be_resized_hands_over_first() {
    let mut scene = changed();
    for ordinal in [2, 1] {
        let pod = scene.pod_mut(ordinal);
        (pod.revision, pod.resources) = (Some("r1+large".to_owned()), Resources::Given);
    }
    scene.pod_mut(0).resources = Resources::Refused {
        message: "no".to_owned(),
    };
    assert_eq!(scene.decide().rule, "switch-over");
    let mut supervised = scene.clone();
    supervised.edit(|spec| spec.primary.update_policy = PrimaryUpdatePolicy::Supervised);
    assert_eq!(supervised.decide().rule, "await-supervisor");
    let mut alone = Scene::ready(1);
    alone.revision = "r1+large".to_owned();
    alone.pod_mut(0).resources = Resources::Other;
    assert_eq!(step(&mut alone), (0, "MarkPod"), "one instance is resized, too");
}

#[test]
fn a_change_that_is_taken_back_on_the_way_is_taken_back_in_the_pod() {
    let mut scene = changed();
    step(&mut scene);
    step(&mut scene);
    scene.revision = "r1".to_owned();
    for (ordinal, resources) in [(0, Resources::Given), (1, Resources::Given), (2, Resources::Other)] {
        scene.pod_mut(ordinal).resources = resources;
    }
    assert_ne!(
        scene.decide().phase,
        Phase::Ready,
        "its note says that it is not as any template says"
    );
    assert_eq!(step(&mut scene), (2, "MarkPod"));
    assert_eq!(scene.pods()[2].resizing.as_ref().unwrap().to, "r1");
    assert_eq!(step(&mut scene), (2, "ResizePod"));
    scene.pod_mut(2).resources = Resources::Given;
    assert_eq!(step(&mut scene), (2, "MarkPod"));
    scene.store();
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn a_pod_that_is_not_ready_is_replaced_as_before() {
    let mut scene = changed();
    scene.pod_mut(1).ready = false;
    assert_eq!(step(&mut scene), (1, "ReplacePod"));
}

#[test]
fn what_is_refused_at_its_limit_is_not_tried_all_the_time() {
    let mut scene = changed();
    let (to, since) = (scene.revision.clone(), scene.now);
    scene.pod_mut(2).resizing = Some(Resizing { to, since });
    assert_eq!(step(&mut scene.clone()), (2, "ResizePod"));
    scene.now += WAIT_LIMIT;
    scene.observed.faults = vec![Fault {
        target: Target::Resize("demo-2".to_owned()),
        kind: FaultKind::Forbidden,
        message: "no".to_owned(),
        attempts: 1,
        at: scene.now,
    }];
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.action.name()), ("resize", "Wait"));
    assert!(decision.wake > scene.now);
}
