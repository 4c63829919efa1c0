use api::Phase;

use super::super::OwnedObject;
use super::super::model::Scene;
use super::*;
use crate::protocol::{Lsn, MemberState, Timeline};

fn moved(scene: &Scene) -> Option<String> {
    let Action::WriteStatus(changes) = scene.decide().action else {
        return None;
    };
    changes.into_iter().find_map(|change| match change {
        StatusChange::MovePrimary { memo, .. } => Some(memo.target),
        _ => None,
    })
}

fn replaced(scene: &Scene) -> Option<String> {
    match scene.decide().action {
        Action::ReplacePod(pod) => Some(pod.name().to_owned()),
        _ => None,
    }
}

/// The primary's pod is the only one of an older template.
fn primary_outdated() -> Scene {
    let mut scene = Scene::ready(3);
    scene.revision = "r2".to_owned();
    for ordinal in [1, 2] {
        scene.pod_mut(ordinal).revision = Some("r2".to_owned());
    }
    scene
}

fn at(scene: &mut Scene, ordinal: u32, lsn: u64) {
    let position = Position {
        timeline: Timeline(1),
        lsn: Lsn(lsn),
    };
    scene
        .lease_mut()
        .unwrap()
        .positions
        .insert(format!("demo-{ordinal}"), position);
}

#[test]
fn an_outdated_primary_hands_over_and_is_replaced_as_a_standby() {
    let mut scene = primary_outdated();
    at(&mut scene, 1, 7);
    at(&mut scene, 2, 8);
    assert_eq!(moved(&scene), Some("demo-2".to_owned()), "the one with the most WAL");
    let decision = scene.store();
    assert_eq!((decision.rule, decision.phase), ("switch-over", Phase::SwitchingOver));
    assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-2"));
    assert!(!scene.stored.intent.urgent, "nobody waits for it");
    assert_eq!(scene.stored.step.as_deref(), Some("Switchover"));
    // On the way nobody serves, and the pod of the older template is not ready.
    scene.pod_mut(0).ready = false;
    scene.lease_mut().unwrap().holder = None;
    let decision = scene.decide();
    assert_eq!((decision.phase, decision.rule), (Phase::SwitchingOver, "switch-over"));
    assert_eq!(
        scene.awaits(),
        (api::status::WaitReason::PrimaryTakeover, "pod/demo-2".to_owned())
    );
    assert_eq!(decision.wake, scene.now + WAIT_LIMIT);
    scene.pod_mut(0).ready = true;
    scene.elect(2);
    let decision = scene.store();
    assert_eq!(decision.because.to_string(), "demo-2 is the primary");
    assert_eq!(
        (
            scene.stored.intent.primary.clone(),
            scene.stored.memo.switchover.clone()
        ),
        (None, None)
    );
    assert_eq!(replaced(&scene), Some("demo-0".to_owned()));
}

#[test]
fn no_primary_moves_before_all_standbys_are_updated_and_serve() {
    let mut scene = primary_outdated();
    scene.pod_mut(1).revision = Some("r1".to_owned());
    assert_eq!((moved(&scene), replaced(&scene)), (None, Some("demo-1".to_owned())));
    let mut scene = primary_outdated();
    scene.pod_mut(1).ready = false;
    assert_eq!((moved(&scene), replaced(&scene)), (None, None));
    let mut scene = primary_outdated();
    scene.report_mut(1).state = MemberState::CatchingUp;
    assert_eq!((moved(&scene), replaced(&scene)), (None, None));
}

#[test]
fn a_switchover_that_does_not_happen_is_given_up_and_tried_again_later_and_elsewhere() {
    let mut scene = primary_outdated();
    at(&mut scene, 1, 9);
    scene.store();
    let began = scene.now;
    scene.now = began + WAIT_LIMIT - TimeDelta::seconds(1);
    assert!(matches!(scene.decide().action, Action::Wait(_)));
    scene.now = began + WAIT_LIMIT;
    scene.store();
    assert_eq!(scene.stored.intent.primary, None, "the agents need not try any more");
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("await-switchover", Phase::Updating));
    assert_eq!(
        decision.because.to_string(),
        "another try to move the primary: demo-0 is primary, and its pod is of an older template; demo-1 was asked \
             last and did not take over within 50 s (tried once)"
    );
    assert_eq!(replaced(&scene), None, "it is never just taken down");
    assert_eq!(decision.wake, scene.now + FIRST_REST);
    scene.now += FIRST_REST;
    assert_eq!(moved(&scene), Some("demo-2".to_owned()), "the other one has its turn");
    scene.store();
    scene.now += WAIT_LIMIT;
    scene.store();
    assert_eq!(scene.stored.memo.switchover.clone().unwrap().attempts, 2);
    scene.now += FIRST_REST;
    assert_eq!(moved(&scene), None, "the rests double");
    scene.now += FIRST_REST;
    assert_eq!(moved(&scene), Some("demo-1".to_owned()));
    for _ in 0..12 {
        scene.store();
        scene.now += LONGEST_REST;
    }
    let memo = scene.stored.memo.switchover.clone().unwrap();
    assert!(
        memo.attempts > 4,
        "it is tried again at least each {LONGEST_REST}: {memo:?}"
    );
}

#[test]
fn a_revert_takes_the_wish_back_while_the_primary_still_serves() {
    let mut scene = primary_outdated();
    scene.store();
    assert!(scene.stored.intent.primary.is_some());
    scene.revision = "r1".to_owned();
    scene.store();
    assert_eq!(scene.stored.intent.primary, None);
    assert_eq!(moved(&scene), None);
    let mut scene = primary_outdated();
    scene.store();
    scene.now += WAIT_LIMIT;
    scene.store();
    scene.revision = "r1".to_owned();
    scene.store();
    assert_eq!(scene.stored.memo.switchover, None, "and its attempts are forgotten");
}

#[test]
fn a_switchover_that_leaves_nobody_becomes_a_failover() {
    let mut scene = primary_outdated();
    scene.store();
    scene.lease_mut().unwrap().holder = None;
    scene.now += WAIT_LIMIT;
    scene.store();
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("await-primary", Phase::FailingOver));
    assert_eq!(
        scene.stored.intent.primary, None,
        "the agents are free to elect anybody"
    );
}

#[test]
fn the_preferred_instance_becomes_primary_and_stays_it() {
    let mut scene = Scene::ready(3);
    scene.edit(|spec| spec.primary.prefer = Some("demo-2".to_owned()));
    assert_eq!(
        (moved(&scene), scene.decide().phase),
        (Some("demo-2".to_owned()), Phase::SwitchingOver)
    );
    scene.store();
    scene.elect(2);
    scene.store();
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("rest", Phase::Ready));
    scene.edit(|spec| spec.primary.prefer = None);
    assert_eq!(scene.decide().rule, "rest", "any may stay");
}

#[test]
fn the_preferred_instance_waits_for_everything_else() {
    let prefer = |change: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
        change(&mut scene);
        scene
    };
    let away = prefer(&|scene| scene.pod_mut(2).ready = false);
    assert_eq!(moved(&away), None);
    let behind = prefer(&|scene| scene.report_mut(1).state = MemberState::CatchingUp);
    assert_eq!((moved(&behind), behind.decide().rule), (None, "await-standbys"));
    let restarts = prefer(&|scene| scene.report_mut(2).pending_restart = true);
    assert_eq!(moved(&restarts), None);
    let outdated = prefer(&|scene| {
        let pod = scene.pod_mut(2);
        (pod.revision, pod.base_revision) = (Some("r0".to_owned()), Some("r0".to_owned()));
    });
    assert_eq!(
        (moved(&outdated), replaced(&outdated)),
        (None, Some("demo-2".to_owned()))
    );
}

#[test]
fn a_primary_above_the_new_size_hands_over_to_one_below() {
    let mut scene = Scene::ready(5);
    scene.elect(4);
    at(&mut scene, 3, 100);
    at(&mut scene, 2, 50);
    scene.scaled(3);
    assert_eq!(moved(&scene), Some("demo-2".to_owned()), "the best of those that stay");
    let decision = scene.decide();
    assert_eq!(
        decision.because.to_string(),
        "demo-4 is primary, and 3 instances leave no room for it: demo-2 is to take over"
    );
    for ordinal in 0..3 {
        scene.report_mut(ordinal).state = MemberState::CatchingUp;
    }
    assert_eq!(moved(&scene), None);
}

#[test]
fn a_primary_leaves_a_node_that_is_drained_and_comes_not_back() {
    let mut scene = Scene::ready(3);
    scene.cordon(0, true);
    at(&mut scene, 2, 9);
    let decision = scene.decide();
    assert_eq!(
        (moved(&scene), decision.phase),
        (Some("demo-2".to_owned()), Phase::SwitchingOver)
    );
    assert_eq!(
        decision.because.to_string(),
        "demo-0 is primary, and its node node-0 takes no pods any more: demo-2 is to take over"
    );
    scene.store();
    assert!(scene.stored.intent.urgent, "the drain waits for it");
    scene.elect(2);
    scene.store();
    assert!(!scene.stored.intent.urgent);
    assert_eq!((scene.decide().rule, scene.decide().phase), ("rest", Phase::Ready));
    scene.cordon(2, true);
    assert_eq!(moved(&scene), Some("demo-1".to_owned()), "the only node that is left");
    scene.cordon(1, true);
    assert_eq!(
        (moved(&scene), scene.decide().rule),
        (None, "await-refuge"),
        "nothing is gained by moving"
    );
}

#[test]
fn a_drain_with_nowhere_to_go_is_said_with_what_can_be_done() {
    let mut scene = Scene::ready(3);
    for ordinal in 0..3 {
        scene.cordon(ordinal, true);
    }
    let decision = scene.store();
    assert_eq!(
        (decision.rule, decision.phase, decision.step),
        ("await-refuge", Phase::Ready, None)
    );
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!(
        waiting.what,
        "another place for the primary demo-0, whose node node-0 takes no pods any more: demo-1 is on node-1, which takes \
             none either, demo-2 is on node-2, which takes none either"
    );
    assert!(
        waiting.who_can_end_it.contains("kubectl uncordon node-0"),
        "{waiting:?}"
    );
    assert_eq!(waiting.deadline, None, "the database is as it is wanted");
    assert_eq!(scene.due(&scene.decide()), super::super::StatusWrite::None);
    let mut fenced = Scene::ready(3);
    fenced.cordon(0, true);
    fenced.cordon(2, true);
    fenced.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
    assert_eq!(
        fenced.decide().rule,
        "await-fenced",
        "that holds it up, and is to be ended first"
    );
    let mut alone = Scene::ready(1);
    alone.cordon(0, true);
    alone.store();
    let waiting = alone.stored.waiting.clone().unwrap();
    assert!(waiting.what.ends_with("it is the only instance"), "{waiting:?}");
    assert!(waiting.who_can_end_it.contains("spec.replicas"), "{waiting:?}");
    alone.cordon(0, false);
    assert_eq!(alone.decide().rule, "rest");
}

#[test]
fn a_standby_that_does_not_come_back_from_its_restart_keeps_no_primary_on_a_drained_node() {
    let mut scene = Scene::ready(3);
    scene.report_mut(2).pending_restart = true;
    scene.store();
    let report = scene.report_mut(2);
    (report.state, report.pending_restart) = (MemberState::Starting, false);
    report.settings.clear();
    report.fault = Some("start PostgreSQL: could not read the control file".to_owned());
    scene.pod_mut(2).ready = false;
    scene.cordon(0, true);
    scene.store();
    let deadline = scene.stored.waiting.clone().unwrap().deadline.unwrap();
    assert!(deadline <= scene.now + TimeDelta::minutes(2));
    let mut elsewhere = scene.clone();
    scene.now = deadline;
    assert_eq!(moved(&scene), Some("demo-1".to_owned()), "nothing waits for ever");
    scene.store();
    assert_eq!(
        (scene.stored.intent.restart.as_ref(), scene.stored.memo.restart_since),
        (None, None)
    );
    elsewhere.cordon(0, false);
    elsewhere.now = deadline;
    let decision = elsewhere.store();
    assert_eq!(decision.rule, "restart");
    assert!(decision.because.to_string().contains("2 min"), "{}", decision.because);
    assert_eq!(elsewhere.stored.intent.restart, None);
    let waiting = elsewhere.stored.waiting.clone().unwrap();
    assert_eq!(
        (waiting.reason, waiting.object.as_deref()),
        (Some(api::status::WaitReason::StandbyJoining), Some("pod/demo-2"))
    );
    assert!(
        waiting.who_can_end_it.contains("could not read the control file"),
        "{waiting:?}"
    );
}

#[test]
fn a_drained_primary_waits_for_a_standby_elsewhere_and_not_for_all() {
    let mut scene = Scene::ready(3);
    scene.cordon(0, true);
    scene.pod_mut(2).ready = false;
    assert_eq!(moved(&scene), Some("demo-1".to_owned()), "its node may go any moment");
    scene.cordon(1, true);
    assert_eq!((moved(&scene), scene.decide().phase), (None, Phase::Updating));
    scene.pod_mut(2).ready = true;
    assert_eq!(moved(&scene), Some("demo-2".to_owned()));
}

#[test]
fn nothing_is_moved_where_nodes_cannot_be_read() {
    let mut scene = Scene::ready(3);
    scene.cordon(0, true);
    scene.observed.unschedulable_nodes = super::super::Known::Unknown;
    assert_eq!((moved(&scene), scene.decide().phase), (None, Phase::Ready));
}

#[test]
fn an_uncordoned_node_keeps_its_primary() {
    let mut scene = Scene::ready(3);
    scene.cordon(0, true);
    scene.store();
    assert!(scene.stored.intent.primary.is_some());
    scene.cordon(0, false);
    scene.store();
    assert_eq!(
        (scene.stored.intent.primary.clone(), scene.decide().phase),
        (None, Phase::Ready)
    );
}

#[test]
fn no_reason_sends_a_primary_to_a_node_that_is_drained() {
    let mut scene = primary_outdated();
    at(&mut scene, 1, 9);
    scene.cordon(1, true);
    assert_eq!(moved(&scene), Some("demo-2".to_owned()), "though it has less WAL");
    scene.cordon(2, true);
    assert_eq!((moved(&scene), scene.decide().rule), (None, "await-switchover"));
    scene.cordon(0, true);
    assert_eq!(moved(&scene), Some("demo-1".to_owned()), "all are alike");
    let mut scene = Scene::ready(3);
    scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
    scene.cordon(1, true);
    assert_eq!((moved(&scene), scene.decide().phase), (None, Phase::Ready));
    scene.cordon(1, false);
    assert_eq!(moved(&scene), Some("demo-1".to_owned()));
    let mut scene = Scene::ready(5);
    scene.elect(4);
    at(&mut scene, 0, 9);
    scene.cordon(0, true);
    scene.scaled(2);
    assert_eq!(moved(&scene), Some("demo-1".to_owned()));
    scene.cordon(1, true);
    assert_eq!(moved(&scene), Some("demo-0".to_owned()), "it has to go somewhere");
}

#[test]
fn a_wish_that_nobody_remembers_is_taken_back() {
    let mut scene = Scene::ready(3);
    scene.stored.intent.primary = Some("demo-1".to_owned());
    scene.store();
    assert_eq!(scene.stored.intent.primary, None);
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn one_instance_has_nobody_to_hand_over_to() {
    let mut scene = Scene::ready(1);
    scene.revision = "r2".to_owned();
    assert_eq!((moved(&scene), replaced(&scene)), (None, Some("demo-0".to_owned())));
}

#[test]
fn a_fault_of_another_part_holds_up_a_new_switchover_and_not_the_end_of_one() {
    let foreign = || super::super::OwnedState::Foreign {
        why: "owned by Deployment other".to_owned(),
        left: None,
    };
    let mut scene = primary_outdated();
    scene.set_child(OwnedObject::RoService, foreign());
    assert_eq!((moved(&scene), scene.decide().rule), (None, "blocked"));
    let mut scene = primary_outdated();
    scene.store();
    scene.set_child(OwnedObject::RoService, foreign());
    scene.now += WAIT_LIMIT;
    scene.store();
    assert_eq!(scene.stored.intent.primary, None);
    assert_eq!(scene.decide().phase, Phase::Failed);
}

#[test]
fn the_requested_and_then_the_preferred_instance_comes_before_others_that_are_as_fit() {
    let mut scene = Scene::ready(4);
    scene.elect(3);
    scene.edit(|spec| (spec.replicas, spec.primary.prefer) = (3, Some("demo-2".to_owned())));
    scene.synchronize();
    assert_eq!(moved(&scene), Some("demo-2".to_owned()));
    scene.edit(|spec| spec.primary.prefer = None);
    scene.ask_switchover("demo-1", "1");
    scene.store();
    assert_eq!(moved(&scene), Some("demo-1".to_owned()));
}

#[test]
fn one_is_under_way_until_the_named_instance_serves() {
    let mut scene = primary_outdated();
    let under_way = |scene: &Scene| scene.with_facts(under_way);
    assert!(!under_way(&scene));
    scene.store();
    assert!(under_way(&scene));
    let target = scene.stored.intent.primary.clone().unwrap();
    let mut other = scene.clone();
    other.stored.intent.primary = Some("demo-0".to_owned());
    let because = format!("{}", other.decide().because);
    assert_eq!(because, "when demo-0 was to become primary is not on record");
    scene.elect(if target == "demo-1" { 1 } else { 2 });
    assert!(!under_way(&scene));
}

#[test]
fn what_keeps_a_primary_from_moving_is_told() {
    let waits = |scene: &Scene| match scene.with_facts(await_switchover)?.action {
        Action::Wait(waiting) => Some(waiting.what.into_owned()),
        _ => None,
    };
    let mut scene = Scene::ready(3);
    scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
    let fit = "a standby that is fit to take over: demo-0 is primary, and spec.primary.prefer names demo-1";
    assert_eq!(waits(&scene).as_deref(), Some(fit));
    scene.stored.memo.switchover = Some(SwitchoverMemo {
        target: "demo-1".to_owned(),
        since: scene.now,
        attempts: 1,
        ended: Some(scene.now),
    });
    assert!(waits(&scene).unwrap().starts_with("another try"));
    scene.now += FIRST_REST;
    assert_eq!(waits(&scene).as_deref(), Some(fit), "the rest is over");
    scene.report_mut(2).settings = "of before".to_owned();
    assert_eq!(waits(&scene), None, "the settings are waited for");
}

#[test]
fn there_is_no_refuge_in_a_pod_that_goes() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(1).terminating = true;
    let why = scene.with_facts(|facts| no_refuge(facts, &facts.pods()[1]));
    assert_eq!(why.as_deref(), Some("demo-1 is going away"));
    scene.scaled(2);
    let why = scene.with_facts(|facts| no_refuge(facts, &facts.pods()[2]));
    assert_eq!(why.as_deref(), Some("demo-2 is going away"));
}
