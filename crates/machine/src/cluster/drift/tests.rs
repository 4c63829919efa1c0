use api::Phase;
use api::status::FailureReason;

use api::ClusteredDatabaseSpec;
use api::spec::NetworkPolicyMode;

use super::super::Known;
use super::super::model::Scene;
use super::fixtures::{drifted, scene_name, with};
use super::*;

#[test]
fn every_object_that_can_be_made_again_is_put_right() {
    for kind in OwnedObject::ALL {
        let mut scene = Scene::ready(3);
        scene.edit(managed);
        scene.set_child(kind, drifted(kind, false));
        let decision = scene.decide();
        assert_eq!(decision.phase, Phase::Updating);
        let Action::Apply(apply) = decision.action else {
            panic!("{kind:?}: {decision:?}")
        };
        assert_eq!(
            (apply.kind, apply.how),
            (
                kind,
                ApplyHow::Change(ObjectVersion::new(scene_name(kind), format!("uid-{kind:?}"), "9"))
            )
        );

        scene.set_child(kind, OwnedState::Missing);
        scene.pod_mut(0).ready = kind != OwnedObject::Lease;
        let made = matches!(scene.decide().action, Action::Apply(Apply { kind: made, how: ApplyHow::Make, .. }) if made == kind);
        let unique = [OwnedObject::CaSecret, OwnedObject::AppSecret, OwnedObject::Lease].contains(&kind);
        assert_eq!(made, !unique, "{kind:?}");

        scene.observed.children[kind] = Known::Unknown;
        assert!(
            matches!(scene.decide().action, Action::Wait(_)),
            "{kind:?}: unknown is not absent"
        );
    }
}

#[test]
fn whose_turn_it_is_with_an_object_is_told() {
    let told = |kind: OwnedObject, state: Known<OwnedState>| {
        let mut scene = Scene::ready(3);
        scene.observed.children[kind] = state;
        let waiting = scene.status(&scene.decide()).waiting.unwrap();
        (waiting.what, waiting.who_can_end_it)
    };
    let foreign = OwnedState::Foreign {
        why: "somebody's".to_owned(),
        left: None,
    };
    assert_eq!(
        told(OwnedObject::RoService, Known::Known(foreign)).0,
        "Service demo-ro to go away, which is somebody's"
    );
    assert_eq!(told(OwnedObject::Role, Known::Unknown).0, "Role demo to be read");
    let damaged = OwnedState::Damaged {
        uid: "u".to_owned(),
        resource_version: "9".to_owned(),
        what: "holds no password".to_owned(),
        recoverable: false,
    };
    let (what, who) = told(OwnedObject::AppSecret, Known::Known(damaged));
    assert!(
        what.ends_with("which is lost") && who.contains("restoring"),
        "{what}; {who}"
    );
}

#[test]
fn a_refused_object_does_not_hold_up_those_behind_it() {
    let mut scene = Scene::ready(3);
    for kind in [
        OwnedObject::RoService,
        OwnedObject::EndpointSlice,
        OwnedObject::PodDisruptionBudget,
    ] {
        scene.set_child(kind, OwnedState::Missing);
    }
    scene.observed.faults = vec![super::super::Fault {
        target: super::super::Target::Child(OwnedObject::RoService),
        kind: super::super::FaultKind::Quota,
        message: "exceeded quota".to_owned(),
        attempts: 20,
        at: scene.now,
    }];
    for kind in [OwnedObject::EndpointSlice, OwnedObject::PodDisruptionBudget] {
        let decision = scene.decide();
        assert_eq!(decision.failure.unwrap().reason, FailureReason::QuotaExceeded);
        assert!(matches!(decision.action, Action::Apply(apply) if apply.kind == kind));
        scene.set_child(kind, OwnedState::Current { uid: "u".to_owned() });
    }
    let Action::Wait(waiting) = scene.decide().action else {
        panic!()
    };
    assert!(waiting.what.contains("making Service demo-ro"), "{}", waiting.what);
}

/// A database of which this object is missing, and can not be made.
fn refused(kind: OwnedObject) -> Scene {
    let mut scene = Scene::ready(3);
    scene.edit(managed);
    scene.set_child(kind, OwnedState::Missing);
    scene.observed.faults = vec![super::super::Fault {
        target: super::super::Target::Child(kind),
        kind: super::super::FaultKind::Forbidden,
        message: "admission webhook no-objects denied the request".to_owned(),
        attempts: 20,
        at: scene.now,
    }];
    scene
}

#[test]
fn what_is_refused_is_tried_again_in_time_whatever_is_waited_for_meanwhile() {
    let mut scene = refused(OwnedObject::RwService);
    scene.set_child(OwnedObject::RService, OwnedState::Missing);
    let first = scene.observed.faults[0].clone();
    let once = super::super::Fault {
        target: super::super::Target::Child(OwnedObject::RService),
        attempts: 1,
        ..first
    };
    scene.observed.faults.push(once);
    scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()]);
    scene.report_mut(2).state = crate::protocol::MemberState::Stopped;
    scene.pod_mut(2).ready = false;
    let decision = scene.decide();
    assert_eq!(decision.rule, "await-fenced");
    assert_eq!(
        decision.wake,
        scene.now + chrono::TimeDelta::seconds(1),
        "the Service that failed once"
    );
    scene.now = decision.wake;
    assert!(matches!(scene.decide().action, Action::Apply(apply) if apply.kind == OwnedObject::RService));
    scene.set_child(OwnedObject::RService, OwnedState::Current { uid: "u".to_owned() });
    let again = scene.observed.faults[0].at + chrono::TimeDelta::minutes(1);
    assert_eq!(scene.decide().wake, again, "the one that failed often");
}

#[test]
fn a_switchover_ends_whatever_is_refused() {
    for kind in OwnedObject::ALL {
        let mut scene = refused(kind);
        scene.stored.intent.primary = Some("demo-1".to_owned());
        scene.stored.memo.switchover = Some(api::status::SwitchoverMemo {
            target: "demo-1".to_owned(),
            since: scene.now,
            attempts: 1,
            ended: None,
        });
        scene.elect(1);
        let decision = scene.store();
        assert_eq!(
            (decision.rule, scene.stored.intent.primary.as_ref()),
            ("switch-over", None),
            "{kind:?}"
        );
    }
}

#[test]
fn what_nothing_builds_on_holds_nothing_up_and_what_something_does_holds_that_up() {
    for kind in OwnedObject::ALL {
        let mut scene = refused(kind);
        let lost =
            scene.with_wanted(|wanted| lost(&Facts::new(wanted, &scene.observed, &scene.stored, scene.now), kind));
        let waits_for_it = |scene: &Scene| match scene.decide().action {
            Action::Wait(waiting) => waiting.what.contains("no-objects denied the request"),
            _ => false,
        };
        assert!(lost || waits_for_it(&scene), "{kind:?}: {:?}", scene.decide());
        scene.revision = "r2".to_owned();
        let decision = scene.decide();
        let goes_on = matches!(decision.action, Action::ReplacePod(_));
        assert_eq!(goes_on, kind.owned().is_for_clients, "{kind:?}: {decision:?}");
        if !goes_on {
            assert_eq!(decision.rule, "blocked", "{kind:?}");
        }
        scene.revision = "r1".to_owned();
        scene.cordon(0, true);
        assert_eq!(
            scene.decide().rule == "switch-over",
            kind.owned().is_for_clients,
            "{kind:?}"
        );
    }
    let mut drifted_set = refused(OwnedObject::StatefulSet);
    drifted_set.set_child(OwnedObject::StatefulSet, drifted(OwnedObject::StatefulSet, false));
    drifted_set.revision = "r2".to_owned();
    assert_eq!(
        drifted_set.decide().rule,
        "blocked",
        "its pods would be of the old template"
    );
    drifted_set.cordon(0, true);
    assert_eq!(drifted_set.decide().rule, "switch-over", "its node may go any moment");
}

#[test]
fn what_only_clients_need_is_waited_for_before_there_is_a_database_and_while_it_is_put_down() {
    let held_up = |change: fn(&mut Scene)| {
        let mut scene = refused(OwnedObject::RwService);
        change(&mut scene);
        with(&scene, |facts| holds_up(facts, OwnedObject::RwService))
    };
    assert!(!held_up(|_| {}));
    assert!(held_up(|scene| scene.edit(|spec| spec.hibernated = true)));
    assert!(held_up(|scene| {
        scene.stored.system_identifier = None;
        scene.lease_mut().unwrap().system_id = None;
    }));
}

#[test]
fn the_role_of_a_binding_is_changed_by_making_it_again() {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::RoleBinding, drifted(OwnedObject::RoleBinding, true));
    assert!(matches!(
        scene.decide().action,
        Action::DeleteChild(OwnedObject::RoleBinding, _)
    ));
    scene.set_child(OwnedObject::RoleBinding, OwnedState::Missing);
    assert!(matches!(scene.decide().action, Action::Apply(_)));
}

#[test]
fn a_foreign_object_fails_and_is_left_alone_until_it_goes() {
    let mut scene = Scene::ready(3);
    scene.set_child(
        OwnedObject::RwService,
        OwnedState::Foreign {
            why: "owned by Deployment other".to_owned(),
            left: None,
        },
    );
    let decision = scene.decide();
    assert!(matches!(decision.action, Action::Wait(_)));
    let failure = decision.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::ForeignObject);
    assert!(
        failure.message.contains("Service demo-rw is owned by Deployment other"),
        "{}",
        failure.message
    );
    scene.set_child(OwnedObject::RwService, OwnedState::Missing);
    scene.stored.phase = Some(Phase::Failed);
    assert_eq!(scene.decide().phase, Phase::Updating);
}

#[test]
fn nothing_acts_as_a_foreign_identity() {
    let foreign = || OwnedState::Foreign {
        why: "owned by Deployment other".to_owned(),
        left: None,
    };
    for identity in [OwnedObject::ServiceAccount, OwnedObject::Role] {
        for kind in [OwnedObject::RoleBinding, OwnedObject::StatefulSet] {
            for state in [OwnedState::Missing, drifted(kind, true), drifted(kind, false)] {
                let mut scene = Scene::ready(3);
                scene.set_child(kind, state.clone());
                if state == OwnedState::Missing && kind == OwnedObject::StatefulSet {
                    scene.observed.stateful_set = None;
                }
                // A StatefulSet that is there brings no other pods by being put right in place.
                let in_place = kind == OwnedObject::StatefulSet && state == drifted(kind, false);
                assert!(scene.decide().action.target().is_some(), "{kind:?} {state:?}");
                scene.set_child(identity, foreign());
                let decision = scene.decide();
                assert_eq!(
                    decision.action.target().is_some(),
                    in_place,
                    "{kind:?} {state:?}: {decision:?}"
                );
                assert_eq!(decision.failure.unwrap().reason, FailureReason::ForeignObject);
            }
        }
    }
}

fn managed(spec: &mut ClusteredDatabaseSpec) {
    spec.network_policy.mode = NetworkPolicyMode::Managed;
}

#[test]
fn a_network_policy_is_made_only_if_the_spec_asks_for_it() {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::NetworkPolicy, OwnedState::Missing);
    assert_eq!(scene.decide().phase, Phase::Ready);
    scene.observed.children[OwnedObject::NetworkPolicy] = Known::Unknown;
    assert_eq!(
        scene.decide().phase,
        Phase::Ready,
        "whether there is one does not matter"
    );
    scene.edit(managed);
    assert_eq!(scene.decide().rule, "blocked");
    scene.set_child(OwnedObject::NetworkPolicy, OwnedState::Missing);
    let Action::Apply(apply) = scene.decide().action else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!((apply.kind, apply.how), (OwnedObject::NetworkPolicy, ApplyHow::Make));
}

#[test]
fn a_network_policy_that_is_not_wanted_goes_if_it_is_the_databases_own() {
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::NetworkPolicy, drifted(OwnedObject::NetworkPolicy, false));
    let expected = ObjectVersion::new("demo", format!("uid-{:?}", OwnedObject::NetworkPolicy), "9");
    assert_eq!(
        scene.decide().action,
        Action::DeleteChild(OwnedObject::NetworkPolicy, expected)
    );
    let foreign = OwnedState::Foreign {
        why: "not made by this operator".to_owned(),
        left: None,
    };
    scene.set_child(OwnedObject::NetworkPolicy, foreign);
    let decision = scene.decide();
    assert_eq!((decision.phase, decision.failure), (Phase::Ready, None));
    scene.edit(managed);
    let failure = scene.decide().failure.unwrap();
    assert_eq!(failure.reason, FailureReason::ForeignObject);
    assert!(
        failure
            .message
            .contains("NetworkPolicy demo is not made by this operator"),
        "{}",
        failure.message
    );
}
