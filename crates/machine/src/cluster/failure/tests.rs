use api::Phase;

use super::super::model::Scene;
use super::super::resting::resting;
use super::super::{Action, Apply, ApplyHow, Fault, ImageError, ObjectVersion};
use super::*;

fn fault(scene: &Scene, kind: FaultKind, attempts: u32) -> Fault {
    let target = Target::Child(OwnedObject::RwService);
    Fault {
        target,
        kind,
        message: "exceeded quota: services".to_owned(),
        attempts,
        at: scene.now,
    }
}

fn missing_service() -> Scene {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::RwService, OwnedState::Missing);
    scene
}

#[test]
fn an_invalid_spec_fails_and_touches_nothing() {
    let mut scene = missing_service();
    scene.invalid = Some("spec.replicas must be at most 9".to_owned());
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("invalid-spec", Phase::Failed));
    scene.store();
    (scene.invalid, scene.generation) = (None, 2);
    assert_eq!(scene.decide().phase, Phase::Updating);
}

#[test]
fn a_failed_action_rests_longer_each_time_and_says_why() {
    for (attempts, rest) in [(1, 1), (3, 4), (20, 60)] {
        let mut scene = missing_service();
        scene.observed.faults = vec![fault(&scene, FaultKind::Transient, attempts)];
        let decision = scene.decide();
        let Action::Wait(waiting) = &decision.action else {
            panic!("{decision:?}")
        };
        assert!(
            waiting.what.contains("Service demo-rw") && waiting.what.contains("exceeded"),
            "{}",
            waiting.what
        );
        assert_eq!(decision.wake, scene.now + TimeDelta::seconds(rest));
        scene.now += TimeDelta::seconds(rest);
        assert!(matches!(scene.decide().action, Action::Apply(_)));
    }
}

#[test]
fn what_failed_is_told_by_what_was_to_be_done() {
    let told = |action: &Action, target: Target| {
        let mut scene = missing_service();
        let fault = fault(&scene, FaultKind::Transient, 1);
        scene.observed.faults = vec![Fault { target, ..fault }];
        let Some(Action::Wait(waiting)) = scene.with_facts(|facts| resting(facts, action)).map(|rest| rest.action)
        else {
            panic!("{action:?}")
        };
        waiting.what.split(' ').next().unwrap().to_owned()
    };
    let apply = |how| {
        Action::Apply(Apply {
            kind: OwnedObject::RwService,
            how,
            replicas: None,
            wal: None,
        })
    };
    let exact = || ObjectVersion::new("name", "uid", "7");
    let service = || Target::Child(OwnedObject::RwService);
    assert_eq!(told(&apply(ApplyHow::Make), service()), "making");
    assert_eq!(told(&apply(ApplyHow::Renew(exact())), service()), "changing");
    let claim = Action::MakeWalClaim {
        name: "name".to_owned(),
        node: "node".to_owned(),
    };
    assert_eq!(told(&claim, claim.target().unwrap()), "making");
    let deletion = Action::DeleteClaim(exact());
    assert_eq!(told(&deletion, deletion.target().unwrap()), "deleting");
}

#[test]
fn a_quota_fails_and_the_phase_does_not_flap_while_it_is_tried_again() {
    let mut scene = missing_service();
    scene.observed.faults = vec![fault(&scene, FaultKind::Quota, 1)];
    assert_eq!(scene.store().failure.unwrap().reason, FailureReason::QuotaExceeded);
    scene.observed.faults.clear();
    let again = scene.decide();
    assert_eq!((again.action.name(), again.phase), ("Apply", Phase::Failed));
    scene.set_child(OwnedObject::RwService, OwnedState::Current { uid: "u".to_owned() });
    assert_eq!(scene.decide().phase, Phase::Ready);
}

#[test]
fn a_refusal_ends_when_somebody_else_puts_the_object_right() {
    for kind in [FaultKind::Quota, FaultKind::Invalid] {
        let mut scene = missing_service();
        scene.observed.faults = vec![fault(&scene, kind, 1)];
        assert!(scene.decide().failure.is_some());
        scene.set_child(OwnedObject::RwService, OwnedState::Current { uid: "u".to_owned() });
        assert_eq!(scene.decide().failure, None);
    }
}

#[test]
fn a_failing_label_does_not_hold_up_what_matters() {
    let mut scene = missing_service();
    scene.pod_mut(0).role = None;
    assert_eq!(scene.decide().rule, "label-roles");
    let target = Target::Pod("demo-0".to_owned());
    scene.observed.faults = vec![Fault {
        target,
        ..fault(&scene, FaultKind::Forbidden, 1)
    }];
    assert_eq!(scene.decide().rule, "children");
    scene.set_child(OwnedObject::RwService, OwnedState::Current { uid: "u".to_owned() });
    let decision = scene.decide();
    assert_eq!(decision.rule, "label-roles", "at the end it is what is waited for");
    assert!(matches!(decision.action, Action::Wait(_)));
}

#[test]
fn what_is_passed_over_is_said_while_other_work_goes_on() {
    let said = |scene: &Scene| {
        let status = scene.status(&scene.decide());
        let mut conditions = status.conditions.into_iter();
        conditions.find(|found| found.type_ == "Ready").unwrap().message
    };
    let mut scene = missing_service();
    scene.pod_mut(2).ready = false;
    let waits = "waits for demo-2 to stream from the primary (Agents)";
    scene.observed.faults = vec![fault(&scene, FaultKind::Transient, 1)];
    let decision = scene.decide();
    assert_eq!(decision.rule, "await-standbys", "{decision:#?}");
    assert_eq!(said(&scene), waits, "it may be over at once");
    scene.observed.faults = vec![fault(&scene, FaultKind::Transient, 2)];
    let service = "Service demo-rw cannot be made or changed: exceeded quota: services; ";
    assert!(said(&scene).starts_with(service), "{}", said(&scene));
    scene.now += TimeDelta::hours(1);
    assert_eq!(scene.decide().rule, "children");
    assert!(said(&scene).starts_with(service), "also while it is tried again");
    scene.observed.faults[0].message = "ä".repeat(5_000);
    assert!(said(&scene).chars().count() < 450);
    scene.set_child(OwnedObject::RwService, OwnedState::Current { uid: "u".to_owned() });
    assert_eq!(said(&scene), waits);

    let target = Target::Pod("demo-2".to_owned());
    scene.observed.faults = vec![Fault {
        target,
        ..fault(&scene, FaultKind::Forbidden, 1)
    }];
    assert_eq!(said(&scene), waits, "its label is right by now");
    scene.pod_mut(2).role = None;
    assert!(
        said(&scene).starts_with("pod demo-2 cannot be made or changed: "),
        "{}",
        said(&scene)
    );
}

#[test]
fn what_is_refused_and_holds_nothing_up_is_no_secret_of_a_database_that_serves() {
    let conditions = |scene: &Scene| -> Vec<String> {
        let conditions = scene.stored.conditions.iter();
        let said = conditions.filter(|found| ["Ready", "Progressing", "Degraded"].contains(&found.type_.as_str()));
        said.map(|found| format!("{} {}", found.status, found.reason)).collect()
    };
    let whole = ["True AsWanted", "False AsWanted", "False AllServe"];
    let mut scene = Scene::ready(3);
    scene.store();
    assert_eq!(conditions(&scene), whole);
    let label = scene.pod_mut(2).role.take();
    let target = Target::Pod("demo-2".to_owned());
    scene.observed.faults = vec![Fault {
        target,
        ..fault(&scene, FaultKind::Forbidden, 1)
    }];
    assert_eq!(scene.store().phase, Phase::Ready);
    assert_eq!(conditions(&scene), ["False Refused", "False Refused", "True Refused"]);
    let message = "pod demo-2 cannot be made or changed: exceeded quota: services";
    assert_eq!(scene.stored.conditions[0].message, message);
    scene.pod_mut(2).role = label;
    scene.store();
    assert_eq!(conditions(&scene), whole, "it goes with its cause");

    let mut scene = missing_service();
    scene.observed.faults = vec![fault(&scene, FaultKind::Forbidden, 1)];
    assert_eq!(scene.store().phase, Phase::Updating);
    assert_eq!(
        conditions(&scene),
        ["False PermissionGrant", "True PermissionGrant", "True Refused"]
    );
}

#[test]
fn an_image_gets_two_minutes_and_only_at_the_wanted_revision() {
    let mut scene = Scene::ready(3);
    scene.stored.phase = Some(api::Phase::Updating);
    let pod = scene.pod_mut(2);
    pod.ready = false;
    let (reason, image) = ("ImagePullBackOff".to_owned(), "postgres:nope".to_owned());
    pod.image_error = Some(ImageError {
        reason,
        image,
        message: "not found".to_owned(),
        since: pod.created,
    });
    let deadline = scene.now + IMAGE_LIMIT;
    scene.now += TimeDelta::seconds(30);
    let decision = scene.decide();
    assert_eq!((decision.failure, decision.wake), (None, deadline));
    let next = |now: DateTime<Utc>| {
        scene.with_wanted(|wanted| next_deadline(&Facts::new(wanted, &scene.observed, &scene.stored, now)))
    };
    assert_eq!((next(scene.now), next(deadline)), (Some(deadline), None));
    scene.now = deadline;
    assert_eq!(scene.decide().failure.unwrap().reason, FailureReason::ImageCannotRun);
    scene.revision = "r2".to_owned();
    let decision = scene.decide();
    assert_eq!((decision.failure, decision.action.name()), (None, "ReplacePod"));
}

#[test]
fn a_failed_bootstrap_is_quoted_until_there_is_a_database() {
    let mut scene = Scene::ready(1);
    scene.pod_mut(0).bootstrap_error = Some("syntax error".to_owned());
    scene.stored.intent.bootstrap = Some(api::status::BootstrapGrant {
        pod: "demo-0".to_owned(),
        claim_uid: "c".to_owned(),
    });
    assert_eq!(scene.decide().failure, None);
    scene.stored.system_identifier = None;
    scene.lease_mut().unwrap().system_id = None;
    let failure = scene.decide().failure.unwrap();
    assert_eq!(failure.reason, FailureReason::BootstrapFailed);
    assert!(failure.message.ends_with("syntax error"));
}

#[test]
fn a_lease_that_is_lost_says_how_it_can_be_made_again() {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    scene.observed.lease = super::super::Known::Known(None);
    assert_eq!(
        scene.with_facts(lost),
        None,
        "its holder is ready, and may write it again"
    );
    scene.pod_mut(0).ready = false;
    let message = |scene: &Scene| scene.with_facts(lost).map(|failure| failure.message.into_owned());
    assert!(message(&scene).unwrap().ends_with("kubectl cdb recreate-lease demo"));
    scene.ask_for_a_lease();
    assert_eq!(message(&scene), None, "it is being made");
    scene.stored.members.clear();
    assert!(message(&scene).unwrap().contains("is not on record"));
}
