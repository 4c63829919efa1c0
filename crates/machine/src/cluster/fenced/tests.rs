use api::Phase;

use super::super::model::Scene;
use super::super::{Action, ImageError};
use super::*;
use crate::protocol::FAULT_SILENT;

/// These instances are fenced, and their PostgreSQL has stopped.
fn fenced(ordinals: &[u32]) -> Scene {
    let mut scene = Scene::ready(3);
    let names = ordinals.iter().map(|ordinal| format!("demo-{ordinal}"));
    scene.edit(|spec| spec.fenced = names.collect());
    for ordinal in ordinals {
        scene.pod_mut(*ordinal).ready = false;
        scene.report_mut(*ordinal).state = MemberState::Stopped;
    }
    scene
}

fn condition(scene: &Scene, kind: &str) -> (String, String, String) {
    let status = scene.status(&scene.decide());
    let found = status.conditions.into_iter().find(|found| found.type_ == kind).unwrap();
    (found.status, found.reason, found.message)
}

#[test]
fn who_has_made_the_first_database_may_be_fenced() {
    let mut scene = fenced(&[1]);
    scene.stored.intent.bootstrap = Some(api::status::BootstrapGrant {
        pod: "demo-1".to_owned(),
        claim_uid: "claim-1".to_owned(),
    });
    assert_eq!(scene.decide().rule, "await-fenced");
}

#[test]
fn since_when_a_stop_is_waited_for_is_said_of_that_alone() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(1).ready = false;
    scene.store();
    assert!(scene.stored.waiting.is_some());
    scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()]);
    let said = |scene: &Scene| {
        scene.with_wanted(|wanted| words(&Facts::new(wanted, &scene.observed, &scene.stored, scene.now)))
    };
    let asked = "asked to stop by spec.fenced, and not confirmed";
    assert_eq!(said(&scene), format!("{asked}: demo-2"));
    scene.pod_mut(1).ready = true;
    scene.store();
    assert!(said(&scene).starts_with(&format!("{asked} since ")), "{}", said(&scene));
}

#[test]
fn a_fenced_standby_is_said_at_once_and_for_as_long_as_it_lasts() {
    let scene = fenced(&[2]);
    let decision = scene.decide();
    assert_eq!(
        (decision.rule, decision.phase, decision.step),
        ("await-fenced", Phase::Updating, Some(Step::Fenced))
    );
    let Action::Wait(waiting) = decision.action else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!(
        (waiting.reason, waiting.actor, waiting.deadline),
        (api::status::WaitReason::Unfencing, api::status::WaitActor::User, None)
    );
    let (status, reason, message) = condition(&scene, "Ready");
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("True", "Fenced"),
        "it rests as the spec wants it"
    );
    assert!(message.contains("demo-2"), "{message}");
    assert_eq!(condition(&scene, "Reconciling").0, "False");
    assert_eq!(condition(&scene, "Degraded").1, "Fenced");
    assert_eq!(condition(&scene, "Available").0, "True");
    let mut lifted = scene.clone();
    lifted.edit(|spec| spec.fenced.clear());
    assert_eq!(lifted.decide().rule, "await-standbys");
    let mut broken = scene;
    broken.pod_mut(1).ready = false;
    assert_eq!(
        broken.awaits(),
        (api::status::WaitReason::StandbyJoining, "pod/demo-1".to_owned())
    );
}

#[test]
fn nobody_is_said_to_be_fenced_before_its_agent_says_that_it_has_stopped() {
    let mut scene = fenced(&[2]);
    scene.report_mut(2).state = MemberState::Streaming;
    let decision = scene.store();
    assert_eq!((decision.rule, decision.step), ("await-fenced", Some(Step::Stopping)));
    let asked = scene.now;
    let waiting = scene.stored.waiting.clone().unwrap();
    assert_eq!(
        (waiting.reason, waiting.object.as_deref()),
        (Some(api::status::WaitReason::FencedStop), Some("pod/demo-2"))
    );
    assert!(waiting.deadline.is_some());
    scene.now += chrono::TimeDelta::minutes(1);
    let (_, reason, message) = condition(&scene, "Ready");
    let expected = format!(
        "asked to stop by spec.fenced, and not confirmed since {}: demo-2",
        asked.format("%FT%TZ")
    );
    assert_eq!((reason.as_str(), message), ("Fencing", expected));
    assert_eq!(condition(&scene, "Degraded").1, "Fencing");
    let mut frozen = scene.clone();
    let report = frozen.report_mut(2);
    (report.state, report.fault) = (MemberState::Stopped, Some(FAULT_SILENT.to_owned()));
    frozen.store();
    let who = frozen.stored.waiting.clone().unwrap().who_can_end_it;
    assert!(who.contains("PostgreSQL may still run there: demo-2"), "{who}");
    assert_eq!(
        condition(&frozen, "Ready").1,
        "Fencing",
        "it may have been started since"
    );
    let mut two = fenced(&[1, 2]);
    two.report_mut(1).state = MemberState::Streaming;
    let message = condition(&two, "Ready").2;
    assert!(message.ends_with("demo-1; fenced by the user: demo-2"), "{message}");
}

#[test]
fn a_pod_that_nothing_runs_in_is_no_proof_that_the_one_before_it_has_stopped() {
    let image_error = |scene: &Scene| ImageError {
        reason: "ErrImagePull".to_owned(),
        image: "nothing".to_owned(),
        message: String::new(),
        since: scene.now,
    };
    let instead: [fn(&mut Scene, ImageError); 3] = [
        |scene, _| drop(scene.pods_mut().remove(2)),
        |scene, _| scene.pod_mut(2).node = None,
        |scene, error| scene.pod_mut(2).image_error = Some(error),
    ];
    let reason = |scene: &Scene| condition(scene, "Ready").1;
    for without in instead {
        let mut scene = fenced(&[2]);
        let error = image_error(&scene);
        without(&mut scene, error);
        scene.report_mut(2).pod_uid = "before".to_owned();
        assert_eq!(reason(&scene), "Fenced", "it said so before it went");
        let mut cut_off = scene.clone();
        cut_off.report_mut(2).fault = Some(FAULT_SILENT.to_owned());
        assert_eq!(reason(&cut_off), "Fencing", "it may have been started since");
        scene.report_mut(2).state = MemberState::Streaming;
        assert_eq!(reason(&scene), "Fencing");
        scene.lease_mut().unwrap().members.remove("demo-2");
        assert_eq!(reason(&scene), "Fencing", "nobody knows");
        scene.stored.members.remove("demo-2");
        let said = scene.with_wanted(|wanted| {
            let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
            fence_of(&facts, "demo-2")
        });
        assert_eq!(said, Some("fenced"), "it never was a member");
    }
}

#[test]
fn where_nobody_is_left_to_report_to_that_is_said() {
    let mut scene = fenced(&[0, 1, 2]);
    scene.lease_mut().unwrap().holder = None;
    scene.report_mut(1).state = MemberState::Streaming;
    let decision = scene.store();
    assert_eq!((decision.rule, decision.step), ("all-fenced", Some(Step::Stopping)));
    let who = scene.stored.waiting.clone().unwrap().who_can_end_it;
    assert!(
        who.starts_with("their agents, once a primary serves") && who.contains("spec.fenced"),
        "{who}"
    );
    assert_eq!(condition(&scene, "Available").1, "Fencing");
}

#[test]
fn one_that_serves_for_a_moment_longer_is_not_ready_any_more() {
    let mut scene = Scene::ready(3);
    scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
    assert_eq!(scene.decide().phase, Phase::Updating);
}

#[test]
fn the_others_replace_a_fenced_primary_and_when_all_are_fenced_nobody_can() {
    let scene = fenced(&[0]);
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("await-primary", Phase::FailingOver));
    let Action::Wait(waiting) = decision.action else {
        panic!("{:?}", scene.decide())
    };
    assert!(
        waiting
            .who_can_end_it
            .starts_with("the agents in 2 of the pods demo-1, demo-2")
    );
    let down = fenced(&[0, 1, 2]);
    let decision = down.decide();
    assert_eq!((decision.rule, decision.phase), ("all-fenced", Phase::Updating));
    assert_eq!(condition(&down, "Available").1, "Fenced");
    assert_eq!(condition(&down, "Degraded").1, "Fenced");
}

#[test]
fn a_fenced_member_is_named_among_those_that_cannot_elect() {
    let mut scene = fenced(&[1]);
    scene.pods_mut().remove(0);
    let Action::Wait(waiting) = scene.decide().action else {
        panic!("{:?}", scene.decide())
    };
    let who = waiting.who_can_end_it;
    assert!(who.contains("but demo-1 is named in spec.fenced"), "{who}");
    assert!(!who.contains("accept-loss"), "it is not lost: {who}");
}

#[test]
fn the_pod_of_a_fenced_instance_is_not_replaced_unless_it_never_ran() {
    let mut scene = fenced(&[2]);
    scene.revision = "r2".to_owned();
    assert_eq!(scene.decide().rule, "await-fenced");
    let pod = scene.pod_mut(2);
    pod.image_error = Some(ImageError {
        reason: "ErrImagePull".to_owned(),
        image: "nothing".to_owned(),
        message: String::new(),
        since: pod.created,
    });
    assert_eq!(scene.decide().action.name(), "ReplacePod");
}

#[test]
fn a_fenced_instance_is_neither_preferred_nor_permitted_to_restart() {
    let mut scene = Scene::ready(3);
    scene.edit(|spec| {
        spec.fenced = vec!["demo-1".to_owned()];
        spec.primary.prefer = Some("demo-1".to_owned());
    });
    assert_eq!(scene.decide().rule, "await-fenced", "though it still serves");
    let mut scene = Scene::ready(3);
    scene.report_mut(2).pending_restart = true;
    scene.store();
    assert!(scene.stored.intent.restart.is_some());
    scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()]);
    scene.pod_mut(2).ready = false;
    scene.store();
    assert_eq!(scene.stored.intent.restart, None);
}

#[test]
fn the_first_database_is_made_by_one_that_is_not_fenced() {
    let mut scene = Scene::ready(3);
    scene.stored = Default::default();
    let lease = scene.lease_mut().unwrap();
    (lease.holder, lease.system_id, lease.epoch.0) = (None, None, 0);
    lease.members.clear();
    scene.edit(|spec| spec.fenced = vec!["demo-0".to_owned()]);
    for _ in 0..4 {
        scene.store();
    }
    let granted = scene.stored.intent.bootstrap.clone().map(|grant| grant.pod);
    assert_eq!(granted.as_deref(), Some("demo-1"));
    scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("all-fenced", Phase::Creating));
}
