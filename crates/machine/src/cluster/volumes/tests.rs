use api::status::GrantedStorage;
use chrono::{DateTime, TimeDelta, Utc};

use super::super::facts::volumes::{AWAITS_MOUNT, GROWS_MOUNTED, in_words};
use super::super::model::Scene;
use super::super::{Fault, FaultKind, Growth, Known, OwnedObject, OwnedState, StorageClass, Volume};
use super::*;
use crate::units::Bytes;

#[test]
fn volumes_grow_whatever_else_is_wrong() {
    let mut scene = Scene::ready(3);
    scene.data_bytes.0 *= 2;
    scene.pod_mut(0).ready = false;
    scene.set_child(
        OwnedObject::StatefulSet,
        OwnedState::Drifted {
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
            what: "spec.volumeClaimTemplates".to_owned(),
            immutable: true,
        },
    );
    for ordinal in 0..3 {
        let Action::ResizeClaim { claim, .. } = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(claim.name(), format!("data-demo-{ordinal}"));
        scene.claims_mut()[ordinal].requested.0 *= 2;
    }
    assert_eq!(scene.decide().action.name(), "OrphanStatefulSet", "then the templates");
}

#[test]
fn a_class_that_cannot_expand_is_named_and_nothing_else_is_held_up() {
    let mut scene = Scene::ready(3);
    scene.data_bytes.0 *= 2;
    scene.observed.storage_class = Known::Known(StorageClass::Present { expandable: false });
    scene.store();
    assert_eq!(
        (scene.decide().rule, scene.decide().phase),
        ("await-expandable", api::Phase::Updating)
    );
    scene.set_child(OwnedObject::RwService, OwnedState::Missing);
    assert_eq!(scene.decide().rule, "children");
}

#[test]
fn claims_get_what_the_spec_asks_for_beside_their_size() {
    let mut scene = Scene::ready(3);
    scene.claims_mut()[1].differs = true;
    scene.claims_mut()[2].differs = true;
    let claim = |scene: &Scene| match scene.decide().action {
        Action::UpdateClaim(claim) => claim.name().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(claim(&scene), "data-demo-1");
    scene.observed.faults = vec![Fault {
        target: Target::Claim("data-demo-1".to_owned()),
        kind: FaultKind::Invalid,
        message: "no such class".to_owned(),
        attempts: 1,
        at: scene.now,
    }];
    assert_eq!(claim(&scene), "data-demo-2", "one that is refused holds up no other");
    scene.claims_mut()[2].differs = false;
    assert!(matches!(scene.decide().action, Action::Wait(_)), "{:?}", scene.decide());
    scene.store();
    let mut conditions = scene.stored.conditions.iter();
    let ready = conditions.find(|found| found.type_ == "Ready").unwrap();
    assert_eq!(
        (&*ready.status, &*ready.reason),
        ("False", "Refused"),
        "{}",
        ready.message
    );
    scene.claims_mut()[1].differs = false;
    assert_eq!(scene.decide().rule, "rest");
}

/// Three instances with WAL volumes, all of which are to be larger.
fn with_wal() -> Scene {
    let mut scene = Scene::with_wal(3);
    (scene.data_bytes, scene.wal_bytes) = (Bytes::gib(2), Bytes::gib(4));
    scene
}

#[test]
fn wal_volumes_grow_as_data_volumes_do() {
    let mut scene = with_wal();
    for number in 0..6 {
        let Action::ResizeClaim { claim, .. } = scene.decide().action else {
            panic!("{number}: {:?}", scene.decide())
        };
        let (data, wal) = (scene.data_bytes, scene.wal_bytes);
        let mut claims = scene.claims_mut().iter_mut();
        let found = claims.find(|found| found.name == claim.name()).unwrap();
        found.requested = if found.volume == Volume::Wal { wal } else { data };
    }
    scene.store();
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn a_wal_class_that_cannot_expand_keeps_no_data_volume_from_growing() {
    for (fixed, grows) in [(Volume::Wal, "data-demo-"), (Volume::Data, "wal-demo-")] {
        let mut scene = with_wal();
        let class = Known::Known(StorageClass::Present { expandable: false });
        match fixed {
            Volume::Wal => scene.observed.wal_storage_class = class,
            Volume::Data => scene.observed.storage_class = class,
        }
        scene.store();
        for ordinal in 0..3 {
            let Action::ResizeClaim { claim, .. } = scene.decide().action else {
                panic!("{:?}", scene.decide())
            };
            assert_eq!(claim.name(), format!("{grows}{ordinal}"));
            let mut claims = scene.claims_mut().iter_mut();
            claims.find(|found| found.name == claim.name()).unwrap().requested.0 *= 4;
        }
        assert_eq!(scene.decide().rule, "await-expandable");
    }
}

fn refused(claim: &str, kind: FaultKind) -> Fault {
    Fault {
        target: Target::Claim(claim.to_owned()),
        kind,
        message: "only dynamically provisioned pvc can be resized".to_owned(),
        attempts: 1,
        at: Scene::ready(1).now,
    }
}

fn data(size: &str) -> GrantedStorage {
    GrantedStorage {
        data: Some(size.to_owned()),
        wal: None,
    }
}

#[test]
fn what_is_refused_to_all_claims_may_be_taken_back_and_that_is_said() {
    for kind in [FaultKind::Quota, FaultKind::Forbidden, FaultKind::Invalid] {
        let mut scene = Scene::ready(3);
        scene.data_bytes.0 *= 1024;
        scene.store();
        assert!(scene.stored.memo.granted.is_empty(), "nothing is refused yet");
        scene.observed.faults = vec![refused("data-demo-0", kind)];
        scene.store();
        assert_eq!(scene.stored.memo.granted, data("1Gi"));
        let who = |scene: &Scene| match scene.decide().action {
            Action::Wait(waiting) => waiting.who_can_end_it.into_owned(),
            other => panic!("{other:?}"),
        };
        for ordinal in [1, 2] {
            scene
                .observed
                .faults
                .push(refused(&format!("data-demo-{ordinal}"), kind));
        }
        let way = ", or the user by spec.storage.data.size 1Gi";
        assert!(who(&scene).ends_with(way), "{}", who(&scene));
        scene.observed.faults.clear();
        scene.store();
        assert_eq!(scene.stored.memo.granted, data("1Gi"), "until it is granted");
        let mut back = scene.clone();
        back.data_bytes.0 /= 1024;
        back.store();
        assert!(back.stored.memo.granted.is_empty());
        assert_eq!(back.decide().rule, "rest");
        let grown = scene.data_bytes;
        scene.claims_mut()[1].requested = grown;
        scene.store();
        assert!(
            scene.stored.memo.granted.is_empty(),
            "there is no way back for that one"
        );
    }
}

#[test]
fn a_claim_that_is_refused_keeps_no_other_from_growing_and_is_told_in_the_servers_words() {
    let mut scene = Scene::ready(3);
    scene.data_bytes.0 *= 2;
    scene.observed.faults = vec![refused("data-demo-0", FaultKind::Forbidden)];
    scene.store();
    for ordinal in [1, 2] {
        let Action::ResizeClaim { claim, .. } = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(claim.name(), format!("data-demo-{ordinal}"));
        let bytes = scene.data_bytes;
        scene.claims_mut()[ordinal].requested = bytes;
        scene.store();
    }
    let decision = scene.decide();
    let told = "changing claim data-demo-0 to succeed: only dynamically provisioned pvc can be resized";
    assert_eq!(
        (decision.rule, decision.because.to_string().as_str()),
        ("grow-volumes", told)
    );
}

#[test]
fn what_may_still_be_granted_is_not_taken_back() {
    let mut scene = Scene::ready(3);
    scene.data_bytes.0 *= 2;
    scene.observed.faults = vec![
        refused("data-demo-0", FaultKind::Transient),
        refused("data-demo-1", FaultKind::Conflict),
        refused("data-demo-7", FaultKind::Forbidden),
    ];
    scene.store();
    assert!(scene.stored.memo.granted.is_empty());
    scene.observed.faults = vec![refused("data-demo-0", FaultKind::Quota)];
    scene.store();
    scene.observed.claims = Known::Unknown;
    scene.store();
    assert_eq!(scene.stored.memo.granted, data("1Gi"), "unknown is not granted");
}

#[test]
fn a_class_that_cannot_expand_lets_the_spec_go_back_for_its_volumes_alone() {
    let mut scene = with_wal();
    scene.observed.wal_storage_class = Known::Known(StorageClass::Present { expandable: false });
    scene.store();
    let wal = Some("1Gi".to_owned());
    assert_eq!(scene.stored.memo.granted, GrantedStorage { data: None, wal });
}

#[test]
fn sizes_are_told_in_the_largest_unit() {
    let told = [1 << 30, 10 << 40, 1 << 50, 10_000_000_000, 1000, 0].map(|bytes| in_words(Bytes(bytes)));
    assert_eq!(told, ["1Gi", "10Ti", "1Pi", "9765625Ki", "1000", "0"]);
}

/// Three instances whose claims ask for twice of what they have.
fn accepted(stage: &str) -> Scene {
    let mut scene = Scene::ready(3);
    let (had, since) = (scene.data_bytes, scene.now);
    scene.data_bytes.0 *= 2;
    for claim in scene.claims_mut() {
        (claim.requested, claim.capacity) = (Bytes(had.0 * 2), Some(had));
        claim.growth = Some(Growth {
            stage: stage.to_owned(),
            message: "why".to_owned(),
            since,
        });
    }
    scene
}

#[test]
fn growth_that_was_accepted_and_is_not_done_is_not_ready_and_told_in_the_claims_words() {
    let mut scene = accepted("ControllerResizeError");
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.phase), ("await-growth", api::Phase::Updating));
    let Action::Wait(waiting) = decision.action else {
        panic!("{:?}", scene.decide())
    };
    assert_eq!(waiting.what, "claim data-demo-0 to grow to 1Gi", "by the spec's words");
    let who = "the driver of its StorageClass, which says ControllerResizeError: why";
    assert_eq!(waiting.who_can_end_it, who);
    scene.now += TimeDelta::hours(1);
    assert_eq!(scene.replaced(), None, "a new pod would not help");
    for ordinal in 0..3 {
        assert_eq!(scene.decide().rule, "await-growth");
        let bytes = scene.data_bytes;
        scene.claims_mut()[ordinal].capacity = Some(bytes);
    }
    assert_eq!((scene.decide().rule, scene.decide().phase), ("rest", api::Phase::Ready));
    scene.claims_mut()[0].capacity = None;
    assert_eq!(scene.decide().rule, "rest", "what is not told is not missing");
}

#[test]
fn a_file_system_that_grows_only_when_it_is_mounted_gets_a_new_pod_once() {
    let mut scene = accepted(AWAITS_MOUNT);
    let due = scene.now + GROWS_MOUNTED;
    assert_eq!(
        (scene.replaced(), scene.decide().wake),
        (None, due),
        "a mounted one may grow"
    );
    scene.now = due;
    for ordinal in [2, 1] {
        assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
        let because = "has to be made again for claim data-demo-";
        assert!(scene.decide().because.to_string().contains(because));
        let (now, bytes) = (scene.now, scene.data_bytes);
        scene.pod_mut(ordinal).created = now;
        assert_ne!(scene.replaced(), Some(format!("demo-{ordinal}")), "it has not helped");
        scene.claims_mut()[ordinal as usize].capacity = Some(bytes);
    }
    assert_eq!(scene.decide().rule, "switch-over");
    scene.elect(2);
    assert_eq!(
        scene.replaced(),
        Some("demo-0".to_owned()),
        "the primary of before last"
    );
}

#[test]
fn nothing_shrinks() {
    let mut scene = Scene::ready(3);
    scene.data_bytes.0 /= 2;
    assert_eq!(scene.decide().rule, "rest");
}

#[test]
fn only_claims_with_volumes_of_members_are_grown() {
    let small = |change: fn(&mut Claim)| {
        let mut scene = Scene::ready(3);
        scene.data_bytes.0 *= 2;
        change(&mut scene.claims_mut()[2]);
        scene.with_facts(|facts| too_small(facts).count())
    };
    assert_eq!(small(|_| {}), 3);
    let left_alone: [fn(&mut Claim); 5] = [
        |claim| claim.cluster_uid = None,
        |claim| claim.ordinal = 3,
        |claim| claim.ordinal = 7,
        |claim| claim.bound = false,
        |claim| claim.terminating = true,
    ];
    assert_eq!(left_alone.map(small), [2; 5]);
}

#[test]
fn growth_is_looked_at_again_when_it_takes_a_new_pod_and_not_before_or_all_the_time() {
    let mut scene = Scene::ready(1);
    scene.data_bytes.0 *= 2;
    let (bytes, since) = (scene.data_bytes, scene.now);
    let claim = &mut scene.claims_mut()[0];
    (claim.requested, claim.capacity) = (bytes, Some(Bytes(bytes.0 / 2)));
    claim.growth = Some(Growth {
        stage: AWAITS_MOUNT.to_owned(),
        message: String::new(),
        since,
    });
    let due = since + GROWS_MOUNTED;
    let wake = |now: DateTime<Utc>| {
        let scene = Scene { now, ..scene.clone() };
        scene.with_facts(await_growth).unwrap().wake
    };
    assert_eq!((wake(since), wake(due)), (Some(due), None));
}
