use api::Phase;
use api::spec::{BootstrapSpec, InitdbSpec, PasswordSecretRef};
use api::status::FailureReason;

use super::super::fixtures::{drifted, scene_name, with};
use super::super::may_make;
use super::*;
use crate::cluster::model::Scene;
use crate::cluster::{Action, Apply, ApplyHow, Known, ObjectVersion};

#[test]
fn lost_secrets_and_leases_fail_with_the_way_back() {
    for kind in [OwnedObject::CaSecret, OwnedObject::AppSecret, OwnedObject::Lease] {
        let mut scene = Scene::ready(3);
        scene.set_child(kind, OwnedState::Missing);
        if kind == OwnedObject::Lease {
            scene.observed.lease = Known::Known(None);
            scene.pod_mut(0).ready = false;
        }
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("blocked", Phase::Failed));
        let waiting = scene.status(&decision).waiting.unwrap();
        let failure = decision.failure.unwrap();
        assert_eq!(failure.reason, FailureReason::PartLost);
        let way_back = match kind {
            OwnedObject::Lease => "kubectl cdb recreate-lease",
            _ => "restoring the Secret",
        };
        assert_eq!(waiting.reason, Some(api::status::WaitReason::ObjectRestoration));
        assert!(waiting.who_can_end_it.contains(way_back), "{}", waiting.who_can_end_it);
        let lost = format!("{} {} is lost", kind.kind(), scene_name(kind));
        assert!(failure.message.starts_with(&lost), "{}", failure.message);
        scene.set_child(kind, drifted(kind, false));
        assert!(
            matches!(scene.decide().action, Action::Apply(_)),
            "one that was restored is taken back"
        );
    }
}

#[test]
fn the_users_own_password_is_applied_again() {
    let mut scene = Scene::ready(3);
    let own = PasswordSecretRef {
        name: "mine".to_owned(),
        key: "password".to_owned(),
    };
    let initdb = InitdbSpec {
        password_secret_ref: Some(own),
        ..InitdbSpec::default()
    };
    scene.spec.bootstrap = Some(BootstrapSpec {
        initdb: Some(initdb),
        volumes: None,
        recovery: None,
    });
    scene.set_child(OwnedObject::AppSecret, OwnedState::Missing);
    assert!(matches!(
        scene.decide().action,
        Action::Apply(Apply {
            how: ApplyHow::Make,
            ..
        })
    ));
}

#[test]
fn whatever_is_made_after_it_shows_that_a_secret_was_made() {
    let evidence: [fn(&mut Scene); 4] = [
        |scene| scene.stored.system_identifier = Some("7400".to_owned()),
        |scene| {
            let made = OwnedState::Current { uid: "u".to_owned() };
            scene.set_child(OwnedObject::StatefulSet, made);
        },
        |scene| scene.add_pod(0),
        |scene| {
            let made = Scene::ready(3).stored.memo.made;
            scene.stored.memo.made = made;
        },
    ];
    let mut scene = Scene::new(3);
    for kind in [OwnedObject::CaSecret, OwnedObject::StatefulSet] {
        scene.set_child(kind, OwnedState::Missing);
    }
    let is_lost = |scene: &Scene| with(scene, |facts| lost(facts, OwnedObject::CaSecret));
    let may_be_made = |scene: &Scene| with(scene, |facts| may_make(facts, OwnedObject::CaSecret));
    assert!(!is_lost(&scene) && may_be_made(&scene));
    for (index, evidence) in evidence.into_iter().enumerate() {
        let mut scene = scene.clone();
        evidence(&mut scene);
        assert!(is_lost(&scene) && !may_be_made(&scene), "{index}");
    }
    let mut unread = scene.clone();
    unread.observed.pods = Known::Unknown;
    assert!(!may_be_made(&unread));
    scene.observed.children[OwnedObject::StatefulSet] = Known::Unknown;
    assert!(!may_be_made(&scene));
}

#[test]
fn an_emptied_secret_gets_its_content_again_or_is_lost() {
    let damaged = |recoverable| OwnedState::Damaged {
        uid: "u".to_owned(),
        resource_version: "9".to_owned(),
        what: "holds no password".to_owned(),
        recoverable,
    };
    for (kind, recoverable) in [(OwnedObject::TlsSecret, true), (OwnedObject::AppSecret, true)] {
        let mut scene = Scene::ready(3);
        scene.set_child(kind, damaged(recoverable));
        let Action::Apply(apply) = scene.decide().action else {
            panic!("{kind:?}")
        };
        assert_eq!(
            apply.how,
            ApplyHow::Renew(ObjectVersion::new(scene_name(kind), "u", "9"))
        );
    }
    for kind in [OwnedObject::CaSecret, OwnedObject::AppSecret] {
        let mut scene = Scene::ready(3);
        scene.set_child(kind, damaged(false));
        let decision = scene.decide();
        let failure = decision.failure.unwrap();
        assert_eq!((decision.rule, failure.reason), ("blocked", FailureReason::PartLost));
        assert!(failure.message.contains("holds no password"), "{}", failure.message);
    }
    let mut scene = Scene::ready(3);
    scene.set_child(OwnedObject::CaSecret, damaged(false));
    scene.set_child(OwnedObject::TlsSecret, damaged(true));
    assert!(matches!(scene.decide().action, Action::Wait(_)), "nobody can sign it");
}
