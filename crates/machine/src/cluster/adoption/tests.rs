use api::Phase;
use api::spec::{BootstrapSpec, RetainedVolumes, VolumeFate};
use api::status::FailureReason;

use super::super::model::Scene;
use super::super::{Apply, ApplyHow};
use super::*;

const FORMER: &str = "0f0f0f0f-1111-2222-3333-444444444444";

fn adopts(name: &str) -> Option<BootstrapSpec> {
    let adopt = name.to_owned();
    Some(BootstrapSpec {
        initdb: None,
        volumes: Some(RetainedVolumes { adopt }),
        recovery: None,
    })
}

/// What a database of three instances has left, and a new one that asks for it.
fn scene(adopt: &str) -> Scene {
    let before = Scene::ready(3);
    let mut scene = Scene::new(3);
    scene.spec.bootstrap = adopts(adopt);
    scene.observed.lease = before.observed.lease;
    scene.observed.claims = before.observed.claims;
    scene.lease_mut().unwrap().holder = None;
    for claim in scene.claims_mut() {
        claim.cluster_uid = Some(FORMER.to_owned());
    }
    for kind in OwnedObject::ALL.into_iter().filter(|kind| kind.owned().is_unique) {
        leave(&mut scene, kind, FORMER);
    }
    scene
}

fn leave(scene: &mut Scene, kind: OwnedObject, by: &str) {
    let left = Left {
        by: by.to_owned(),
        uid: "u".to_owned(),
        resource_version: "1".to_owned(),
    };
    let why = format!("left by {by}");
    scene.set_child(kind, OwnedState::Foreign { why, left: Some(left) });
}

/// The objects that are taken over or made, one decision after another, until the claims are the database's own.
fn course(scene: &mut Scene) -> Vec<String> {
    let mut course = Vec::new();
    for _ in 0..40 {
        let decision = scene.store();
        match decision.action {
            Action::WriteStatus(changes) => course.push(format!("{changes:?}")),
            Action::Apply(Apply { kind, how, .. }) => {
                if let ApplyHow::Change(exact) = &how {
                    course.push(format!("takes {}", exact.name()));
                }
                let uid = "u".to_owned();
                scene.set_child(kind, OwnedState::Current { uid });
            }
            Action::AddFinalizer(_) => scene.finalizer = true,
            Action::AdoptClaim(exact) => {
                course.push(format!("takes {}", exact.name()));
                let uid = scene.with_wanted(|wanted| wanted.uid.to_owned());
                let mut claims = scene.claims_mut().iter_mut();
                claims.find(|claim| claim.uid == exact.uid()).unwrap().cluster_uid = Some(uid);
            }
            _ => break,
        }
        if scene
            .claims_mut()
            .iter()
            .all(|claim| claim.cluster_uid.as_deref() != Some(FORMER))
        {
            break;
        }
    }
    course
}

#[test]
fn what_was_left_is_recorded_and_taken_over_before_any_pod_is_made() {
    for adopt in [NEWEST, FORMER] {
        let mut scene = scene(adopt);
        let course = course(&mut scene);
        let taken = [
            "takes demo-ca",
            "takes demo-app",
            "takes demo",
            "takes data-demo-0",
            "takes data-demo-1",
            "takes data-demo-2",
        ];
        assert_eq!(course[0], format!("[Adopt({FORMER:?}, 0, None)]"));
        let order: Vec<_> = course.iter().filter(|step| step.starts_with("takes")).collect();
        assert_eq!(order, taken.iter().collect::<Vec<_>>());
        assert_eq!(scene.stored.memo.adopted.as_deref(), Some(FORMER));
        assert_eq!(scene.decide().failure, None);
        let apply = loop {
            let Action::Apply(apply) = scene.store().action else {
                panic!("{:?}", scene.decide())
            };
            if apply.kind == OwnedObject::StatefulSet {
                break apply;
            }
            scene.set_child(apply.kind, OwnedState::Current { uid: "u".to_owned() });
        };
        assert_eq!(
            (apply.kind, apply.replicas),
            (OwnedObject::StatefulSet, Some(3)),
            "then the pods"
        );
        assert!(
            scene.with_facts(|facts| facts.bootstrapped()),
            "nobody makes a first database"
        );
    }
}

#[test]
fn it_says_which_members_come_back_and_which_have_no_volume() {
    let mut scene = scene(NEWEST);
    scene.finalizer = true;
    scene.claims_mut().remove(1);
    let because = scene.decide().because.to_string();
    assert!(
        because.contains(FORMER) && because.contains("demo-0") && because.ends_with("without a volume: demo-1"),
        "{because}"
    );
}

#[test]
fn what_cannot_become_the_database_is_refused_before_anything_is_made() {
    type Spoil = fn(&mut Scene);
    let spoilt: [(&str, Spoil); 10] = [
        ("has left a Lease", |scene| {
            scene.set_child(OwnedObject::Lease, OwnedState::Missing);
            scene.observed.lease = Known::Known(None);
        }),
        ("has left a Lease", |scene| {
            let uid = "u".to_owned();
            scene.set_child(OwnedObject::Lease, OwnedState::Current { uid });
            *scene.lease_mut().unwrap() = super::super::model::empty_lease();
        }),
        ("correct adopt", |scene| {
            scene.spec.bootstrap = adopts("0f0f0f0f-1111-2222-3333-555555555555")
        }),
        ("take spec.bootstrap.volumes away", |scene| scene.claims_mut().clear()),
        ("store and cluster: demo-0f0f0f0f", |scene| {
            scene.claims_mut().clear();
            let backup = serde_json::json!({"store": {"s3": {"bucket": "backups"}}});
            scene.spec.backup = Some(serde_json::from_value(backup).unwrap());
        }),
        ("label them clustereddatabase.io/uid=0f0f", |scene| {
            let claims = scene.claims_mut().iter_mut();
            claims.for_each(|claim| claim.cluster_uid = Some("between".to_owned()));
        }),
        ("cannot be understood", |scene| scene.observed.lease = Known::Unknown),
        ("and no data", |scene| scene.lease_mut().unwrap().system_id = None),
        ("replicas to at least 3", |scene| scene.spec.replicas = 2),
        ("spec.storage.wal", |scene| {
            let mut claim = scene.claims_mut()[0].clone();
            (claim.name, claim.volume, claim.uid) = ("wal-demo-0".to_owned(), Volume::Wal, "w".to_owned());
            scene.claims_mut().push(claim);
        }),
    ];
    for (words, spoil) in spoilt {
        let mut scene = scene(NEWEST);
        scene.finalizer = true;
        spoil(&mut scene);
        let decision = scene.store();
        let failure = decision.failure.unwrap();
        assert_eq!((decision.rule, decision.phase), ("adopt", Phase::Failed), "{words}");
        assert_eq!(failure.reason, FailureReason::NothingToAdopt);
        assert!(failure.message.contains(words), "{}", failure.message);
        assert!(matches!(decision.action, Action::Wait(_)));
        assert_eq!(scene.stored.memo.adopted, None);
    }
}

#[test]
fn without_being_asked_it_says_how_to_have_the_data_back() {
    let mut scene = scene(NEWEST);
    (scene.finalizer, scene.spec.bootstrap) = (true, None);
    let failure = scene.decide().failure.unwrap();
    assert_eq!(failure.reason, FailureReason::ForeignObject);
    for words in [
        FORMER,
        "spec.bootstrap.volumes.adopt to Newest",
        "-l clustereddatabase.io/cluster=demo",
    ] {
        assert!(failure.message.contains(words), "{}", failure.message);
    }
    assert!(
        !scene.with_facts(|facts| facts.bootstrapped()),
        "the Lease of another says nothing of this one"
    );
    for _ in 0..40 {
        let decision = scene.store();
        match decision.action {
            Action::Apply(apply) => {
                assert!(
                    !apply.kind.owned().is_unique && apply.kind != OwnedObject::StatefulSet,
                    "{apply:?}"
                );
                let uid = "u".to_owned();
                scene.set_child(apply.kind, OwnedState::Current { uid });
            }
            Action::Wait(_) => return assert_eq!(decision.rule, "blocked"),
            other => panic!("{other:?}"),
        }
    }
    panic!("it goes on without end");
}

#[test]
fn nobodys_lease_is_waited_for_until_it_can_be_read() {
    let mut scene = scene(NEWEST);
    scene.finalizer = true;
    scene.observed.children[OwnedObject::Lease] = Known::Unknown;
    assert_eq!(scene.decide().failure, None);
    let mut unread = self::scene(NEWEST);
    unread.finalizer = true;
    unread.observed.claims = Known::Unknown;
    unread.store();
    assert_eq!(unread.stored.memo.adopted, None);
}

#[test]
fn a_deletion_on_the_way_leaves_all_under_one_name() {
    let mut scene = scene(NEWEST);
    scene.finalizer = true;
    // The Secrets are taken over, and the Lease is not.
    while !scene.with_facts(|facts| facts.exists(OwnedObject::AppSecret)) {
        match scene.store().action {
            Action::Apply(apply) => scene.set_child(apply.kind, OwnedState::Current { uid: "u".to_owned() }),
            Action::WriteStatus(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut gone = scene.clone();
    gone.deleting = true;
    for _ in 0..10 {
        let decision = gone.store();
        assert!(
            !matches!(decision.action, Action::DeleteChild(..) | Action::AdoptClaim(_)),
            "{decision:?}"
        );
    }
    // Another database takes them over: the Secrets bear the name of the one between.
    let mut next = self::scene(NEWEST);
    next.finalizer = true;
    leave(&mut next, OwnedObject::AppSecret, "between");
    assert!(course(&mut next).contains(&"takes demo-app".to_owned()));
    // With the Lease, the claims follow even while it is deleted.
    next.claims_mut()[1].cluster_uid = Some(FORMER.to_owned());
    next.deleting = true;
    next.stored.intent.stop = true;
    next.end_deletion_steps(&["Stopped", "PodsGone"]);
    let Action::AdoptClaim(claim) = next.decide().action else {
        panic!("{:?}", next.decide())
    };
    assert_eq!(claim.name(), "data-demo-1");
}

#[test]
fn a_deletion_keeps_what_adopting_needs_or_takes_it_along() {
    let kinds = |fate: VolumeFate, made: bool| {
        let mut scene = if made { Scene::ready(3) } else { Scene::new(3) };
        scene.finalizer = true;
        scene.deleting = true;
        scene.spec.storage.retention_policy.when_deleted = fate;
        scene.stored.intent.stop = true;
        scene.end_deletion_steps(&["Stopped", "PodsGone"]);
        scene.claims_mut().clear();
        for kind in OwnedObject::ALL {
            scene.set_child(kind, OwnedState::Current { uid: "u".to_owned() });
        }
        let mut deleted = Vec::new();
        while let Action::DeleteChild(kind, _) = scene.decide().action {
            deleted.push(kind);
            scene.set_child(kind, OwnedState::Missing);
        }
        deleted
    };
    let all = [OwnedObject::CaSecret, OwnedObject::AppSecret, OwnedObject::Lease];
    assert_eq!(kinds(VolumeFate::Delete, true), all);
    assert_eq!(kinds(VolumeFate::Retain, true), []);
    assert_eq!(kinds(VolumeFate::Retain, false), all, "there was no database");
}

#[test]
fn a_lease_that_goes_on_the_way_is_not_made_anew() {
    let mut scene = scene(NEWEST);
    scene.finalizer = true;
    scene.store();
    assert_eq!(scene.stored.memo.adopted.as_deref(), Some(FORMER));
    scene.set_child(OwnedObject::Lease, OwnedState::Missing);
    scene.observed.lease = Known::Known(None);
    for _ in 0..40 {
        let decision = scene.store();
        match decision.action {
            Action::Apply(apply) => {
                assert!(
                    ![OwnedObject::Lease, OwnedObject::StatefulSet].contains(&apply.kind),
                    "{apply:?}"
                );
                scene.set_child(apply.kind, OwnedState::Current { uid: "u".to_owned() });
            }
            Action::Wait(_) => {
                let failure = decision.failure.unwrap();
                assert_eq!(failure.reason, FailureReason::PartLost);
                return assert!(
                    failure.message.contains("restore it from a copy"),
                    "{}",
                    failure.message
                );
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("it goes on without end");
}

#[test]
fn a_database_that_was_made_is_never_told_to_delete_its_own() {
    let mut scene = Scene::ready(3);
    leave(&mut scene, OwnedObject::AppSecret, "before");
    let failure = scene.decide().failure.unwrap();
    assert!(
        !failure.message.contains("persistentvolumeclaim"),
        "{}",
        failure.message
    );
    let uid = scene.with_wanted(|wanted| wanted.uid.to_owned());
    assert!(
        failure
            .message
            .ends_with(&format!("label it clustereddatabase.io/uid={uid}")),
        "{}",
        failure.message
    );
}

#[test]
fn a_deletion_on_the_way_waits_for_what_cannot_be_read() {
    let mut scene = scene(NEWEST);
    scene.finalizer = true;
    course(&mut scene);
    scene.deleting = true;
    scene.stored.intent.stop = true;
    scene.end_deletion_steps(&["Stopped", "PodsGone"]);
    for spoil in [
        |scene: &mut Scene| scene.observed.claims = Known::Unknown,
        |scene: &mut Scene| scene.observed.children[OwnedObject::Lease] = Known::Unknown,
    ] {
        let mut unread = scene.clone();
        spoil(&mut unread);
        assert!(
            matches!(unread.decide().action, Action::Wait(_)),
            "{:?}",
            unread.decide()
        );
    }
    assert!(
        matches!(scene.decide().action, Action::WriteStatus(_)),
        "{:?}",
        scene.decide()
    );
}
