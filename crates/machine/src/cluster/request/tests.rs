use api::Phase;
use api::status::RequestOutcome::{Done, GivenUp};

use super::super::model::Scene;
use super::*;
use crate::protocol::MemberState;

fn asked(to: &str) -> Scene {
    let mut scene = Scene::ready(3);
    scene.ask_switchover(to, "1");
    scene.store();
    scene
}

fn outcome(scene: &Scene) -> (Option<RequestOutcome>, String) {
    let request = scene.stored.memo.request.clone().unwrap();
    (request.outcome, request.message.unwrap_or_default())
}

#[test]
fn it_is_done_once() {
    let mut scene = asked("demo-2");
    let decision = scene.store();
    assert_eq!(
        (decision.phase, scene.stored.intent.primary.as_deref()),
        (Phase::SwitchingOver, Some("demo-2"))
    );
    scene.elect(2);
    scene.store();
    assert_eq!(outcome(&scene), (Some(Done), "demo-2 is the primary".to_owned()));
    scene.store();
    assert_eq!(
        (scene.stored.intent.primary.clone(), scene.decide().rule),
        (None, "rest")
    );
    scene.elect(0);
    assert_eq!(scene.decide().rule, "rest", "the same request does nothing any more");
    scene.ask_switchover("demo-2", "again");
    scene.store();
    scene.store();
    assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-2"));
}

#[test]
fn what_cannot_be_done_is_waited_for_with_a_reason_and_given_up() {
    let unfit = |to: &str, change: &dyn Fn(&mut Scene), why: &str| {
        let mut scene = Scene::ready(3);
        change(&mut scene);
        scene.store();
        let phase = scene.decide().phase;
        scene.ask_switchover(to, "1");
        scene.store();
        let decision = scene.store();
        assert_eq!((decision.rule, decision.phase), ("await-request", phase), "{to}");
        let waiting = scene.stored.waiting.clone().unwrap();
        assert!(waiting.what.ends_with(why), "{}", waiting.what);
        assert_eq!(waiting.deadline, Some(scene.now + WAIT_LIMIT));
        scene.now += WAIT_LIMIT;
        scene.store();
        let (outcome, message) = outcome(&scene);
        assert!(outcome == Some(GivenUp) && message.ends_with(why), "{message}");
        assert_ne!(scene.decide().rule, "await-request");
    };
    let nothing: &dyn Fn(&mut Scene) = &|_| {};
    unfit("demo-3", nothing, "there is no instance demo-3 among 3");
    unfit("other", nothing, "there is no instance other among 3");
    unfit("", nothing, "there is no instance  among 3");
    let behind: &dyn Fn(&mut Scene) = &|scene| scene.report_mut(2).state = MemberState::CatchingUp;
    unfit("demo-2", behind, "demo-2 does not stream from the primary");
    let drained: &dyn Fn(&mut Scene) = &|scene| scene.cordon(1, true);
    unfit("demo-1", drained, "takes no pods, so it would not stay primary");
    let lost: &dyn Fn(&mut Scene) = &|scene| scene.lease_mut().unwrap().holder = None;
    let mut scene = asked("demo-1");
    lost(&mut scene);
    scene.now += WAIT_LIMIT;
    scene.store();
    assert!(outcome(&scene).1.ends_with("no primary serves that could hand over"));
}

#[test]
fn whom_a_primary_cannot_hand_over_to_and_why() {
    let why = |change: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        change(&mut scene);
        scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            unfit(&facts, facts.primary().unwrap(), "demo-2").unwrap_or_default()
        })
    };
    assert_eq!(why(&|_| {}), "");
    assert_eq!(
        why(&|scene| scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()])),
        "spec.fenced names demo-2"
    );
    let nowhere = |scene: &mut Scene| (0..3).for_each(|ordinal| scene.cordon(ordinal, true));
    assert_eq!(why(&nowhere), "", "the primary's node is no better");
    let older = |scene: &mut Scene| scene.pod_mut(2).revision = Some("r0".to_owned());
    assert_eq!(why(&older), "the pod of demo-2 is of an older template");
    assert_eq!(
        why(&|scene| scene.revision = "r2".to_owned()),
        "",
        "so is the primary's"
    );
}

#[test]
fn what_is_under_way_is_neither_given_up_nor_forgotten() {
    let mut scene = asked("demo-2");
    scene.store();
    scene.stored.memo.request.as_mut().unwrap().since = scene.now - WAIT_LIMIT;
    scene.store();
    assert_eq!(outcome(&scene).0, None, "it began late");
    scene.elect(2);
    scene.store();
    assert_eq!(outcome(&scene).0, Some(Done));
    scene.request = None;
    scene.store();
    scene.store();
    assert_eq!(outcome(&scene).0, Some(Done), "only what is open is taken back");
}

#[test]
fn the_primary_itself_is_there_already() {
    let mut scene = asked("demo-0");
    scene.store();
    assert_eq!(outcome(&scene), (Some(Done), "demo-0 is the primary".to_owned()));
    assert_eq!(scene.decide().phase, Phase::Ready);
}

#[test]
fn it_does_not_fight_with_the_preferred_instance() {
    let mut scene = asked("demo-2");
    scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
    scene.store();
    let (outcome, message) = outcome(&scene);
    assert_eq!(outcome, Some(GivenUp));
    assert!(
        message.contains("spec.primary.prefer names demo-1; change"),
        "{message}"
    );
    let mut agrees = asked("demo-2");
    agrees.edit(|spec| spec.primary.prefer = Some("demo-2".to_owned()));
    agrees.store();
    assert_eq!(agrees.stored.intent.primary.as_deref(), Some("demo-2"));
}

#[test]
fn one_that_nobody_carries_out_is_given_up() {
    let mut scene = asked("demo-2");
    scene.store();
    scene.now += TimeDelta::seconds(50);
    scene.store();
    assert_eq!(
        outcome(&scene),
        (Some(GivenUp), "demo-2 did not take over within 50 s".to_owned())
    );
    scene.store();
    assert_eq!(
        (scene.stored.memo.switchover.clone(), scene.decide().phase),
        (None, Phase::Ready)
    );
}

#[test]
fn it_can_be_taken_back() {
    let mut scene = asked("demo-2");
    scene.store();
    scene.request = None;
    scene.store();
    scene.store();
    assert_eq!(
        (scene.stored.memo.request.clone(), scene.stored.intent.primary.clone()),
        (None, None)
    );
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn it_goes_though_another_standby_is_away() {
    let mut scene = asked("demo-2");
    scene.pod_mut(1).ready = false;
    scene.store();
    assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-2"));
}
