//! Another instance becomes primary, by a failure or by a request.

use api::Phase;
use api::status::RequestOutcome;
use chrono::TimeDelta;
use machine::cluster::Step;
use machine::cluster::model::{Crash, World};

use crate::{assert_rests, assert_roles, assert_stays, drift, ready};

#[test]
fn a_primary_pod_that_is_deleted_hands_over_and_comes_back_as_a_standby() {
    let mut world = ready(3);
    world.scene.pod_mut(0).terminating = true;
    let decision = world.scene.decide();
    assert_eq!(
        (decision.phase, decision.step),
        (Phase::SwitchingOver, Some(Step::Primary))
    );
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!((world.scene.stored.epoch, world.initdbs), (Some(2), 1));
    assert_eq!(world.primaries, ["demo-0", "demo-1"]);
    assert_eq!(world.scene.stored.current_primary.as_deref(), Some("demo-1"));
    assert_roles(&world, "demo-1");
    let mut phases = world.scene.stored.history.iter().map(|change| change.to);
    assert_eq!(phases.next_back(), Some(Phase::Ready));
    assert!(phases.clone().any(|phase| phase == Phase::SwitchingOver));
    assert!(phases.all(|phase| phase != Phase::FailingOver), "it was planned");
}

#[test]
fn a_lost_primary_fails_over() {
    let mut world = ready(3);
    world.lose_primary();
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(world.primaries, ["demo-0", "demo-1"]);
    let mut phases = world.scene.stored.history.iter().map(|change| change.to);
    assert!(phases.any(|phase| phase == Phase::FailingOver));
}

#[test]
fn one_instance_comes_back_as_primary() {
    let mut world = ready(1);
    world.scene.pod_mut(0).terminating = true;
    world.scene.pod_mut(0).ready = false;
    assert_eq!(world.scene.decide().phase, Phase::Updating);
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!((world.scene.stored.epoch, world.initdbs), (Some(2), 1));
}

#[test]
fn agents_that_fail_over_at_any_time_change_no_outcome() {
    let mut reference = World::new(3);
    reference.scene.revision = "r1".to_owned();
    assert!(reference.settle());
    for write in 0..reference.writes.len() {
        let mut world = World::new(3);
        world.run_until(TimeDelta::minutes(1), |world, _| world.writes.len() >= write);
        world.lose_primary();
        assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.initdbs, 1, "after {write}");
        let primary = world.scene.stored.current_primary.clone().unwrap();
        assert_roles(&world, &primary);
    }
}

#[test]
fn a_rollout_continues_whichever_instance_becomes_primary() {
    let rollout = || {
        let mut world = ready(3);
        world.scene.revision = "r2".to_owned();
        drift(&mut world);
        world
    };
    let mut reference = rollout();
    assert!(reference.settle());
    for write in 0..reference.writes.len() {
        let mut world = rollout();
        world.run_until(TimeDelta::minutes(1), |world, _| world.writes.len() >= write);
        world.lose_primary();
        assert!(world.settle(), "after {write}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.scene.stored.intent.primary, None);
    }
}

#[test]
fn an_operator_that_dies_during_a_switchover_goes_on_with_it() {
    let prefer = |crash: Crash| {
        let mut world = ready(3);
        world.primaries.clear();
        world.scene.edit(|spec| spec.primary.prefer = Some("demo-2".to_owned()));
        let mut world = world.crashing(crash);
        assert!(world.settle(), "{crash:?}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.primaries.last().map(String::as_str), Some("demo-2"), "{crash:?}");
        assert!(world.primaries.len() <= 2, "{crash:?}: {:?}", world.primaries);
        world
    };
    let reference = prefer(Crash::Never);
    for write in 1..=reference.writes.len() {
        prefer(Crash::After(write));
    }
}

#[test]
fn a_preferred_primary_gets_its_place_back_after_a_failover() {
    let mut world = ready(3);
    world.scene.edit(|spec| spec.primary.prefer = Some("demo-0".to_owned()));
    assert!(world.settle());
    world.scene.pod_mut(0).terminating = true;
    assert!(world.settle(), "{:#?}", world.scene.decide());
    assert_rests(&world);
    assert_eq!(world.primaries, ["demo-0", "demo-1", "demo-0"]);
}

#[test]
fn agents_that_do_not_hand_over_are_asked_again_and_nothing_is_taken_down() {
    let mut world = ready(3);
    world.stubborn = true;
    world.scene.revision = "r2".to_owned();
    drift(&mut world);
    let before = world.scene.pod_mut(0).uid.clone();
    let tried = world.run_until(TimeDelta::minutes(30), |world, _| {
        world
            .scene
            .stored
            .memo
            .switchover
            .as_ref()
            .is_some_and(|memo| memo.attempts >= 3)
    });
    assert!(tried, "{:#?}", world.scene.decide());
    assert_eq!(world.scene.pod_mut(0).uid, before, "the primary keeps serving");
    assert_eq!(world.primaries, ["demo-0"]);
    assert!(world.writes.len() < 60, "{} writes", world.writes.len());
    world.stubborn = false;
    assert!(
        world.run_until(TimeDelta::minutes(30), |world, _| world.scene.stored.phase
            == Some(Phase::Ready))
    );
    assert!(world.settle());
    assert_rests(&world);
}

#[test]
fn a_request_is_carried_out_once_wherever_the_operator_dies() {
    let request = |crash: Crash| {
        let mut world = ready(3);
        world.primaries.clear();
        world.scene.ask_switchover("demo-2", "1");
        let mut world = world.crashing(crash);
        assert!(world.settle(), "{crash:?}: {:#?}", world.scene.decide());
        assert_rests(&world);
        assert_eq!(world.primaries.last().map(String::as_str), Some("demo-2"), "{crash:?}");
        assert!(world.primaries.len() <= 2, "{crash:?}: {:?}", world.primaries);
        let outcome = world
            .scene
            .stored
            .memo
            .request
            .as_ref()
            .and_then(|request| request.outcome);
        assert_eq!(outcome, Some(RequestOutcome::Done));
        world
    };
    let mut reference = request(Crash::Never);
    for write in 1..=reference.writes.len() {
        request(Crash::After(write));
    }
    reference.lose_primary();
    assert!(reference.settle());
    assert_stays(&mut reference);
    assert_ne!(
        reference.scene.stored.current_primary.as_deref(),
        Some("demo-2"),
        "asked for once"
    );
}
