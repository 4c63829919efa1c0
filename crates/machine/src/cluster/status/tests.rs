use super::super::OwnedState;
use super::super::model::Scene;
use super::*;

#[test]
fn a_database_at_rest_writes_nothing() {
    let mut scene = Scene::ready(3);
    for _ in 0..10 {
        scene.now += chrono::TimeDelta::minutes(2);
        let decision = scene.decide();
        assert_eq!(scene.due(&decision), StatusWrite::None);
    }
}

#[test]
fn what_only_people_look_at_may_settle_and_promises_may_not() {
    let mut scene = Scene::ready(3);
    scene.lease_mut().unwrap().epoch.0 = 9;
    assert!(matches!(scene.due(&scene.decide()), StatusWrite::Debounced(_)));
    scene.pod_mut(2).ready = false;
    assert!(
        matches!(scene.due(&scene.decide()), StatusWrite::Debounced(_)),
        "it may be back soon"
    );
    scene.pod_mut(0).ready = false;
    assert_eq!(
        scene.due(&scene.decide()),
        StatusWrite::BeforeAction,
        "the phase changes"
    );
}

#[test]
fn what_is_relied_on_is_written_at_once() {
    type Change = fn(&mut ClusteredDatabaseStatus);
    let looked_at: [Change; 5] = [
        |next| member(next).member_id = Some("other".to_owned()),
        |next| member(next).role = None,
        |next| member(next).ready ^= true,
        |next| member(next).agent_version = None,
        |next| next.ready.clear(),
    ];
    let relied_on: [Change; 7] = [
        |next| next.phase = None,
        |next| {
            next.failure = Some(api::status::FailureStatus {
                reason: api::status::FailureReason::PartLost,
                message: String::new(),
            });
        },
        |next| next.current_primary = None,
        |next| next.system_identifier = None,
        |next| member(next).pod_uid = None,
        |next| next.intent.stop = true,
        |next| next.memo.lease_made = false,
    ];
    let scene = Scene::ready(3);
    let decision = scene.decide();
    for (changes, at_once) in [(&looked_at[..], false), (&relied_on[..], true)] {
        for (index, change) in changes.iter().enumerate() {
            let mut next = scene.stored.clone();
            change(&mut next);
            assert_eq!(
                due(&scene.stored, &next, &decision) == StatusWrite::BeforeAction,
                at_once,
                "{index}"
            );
        }
    }
    let exact = || super::super::ObjectVersion::new("name", "uid", "1");
    let write = |action: Action| {
        let decision = Decision {
            action,
            ..scene.decide()
        };
        let mut next = scene.stored.clone();
        next.phase = None;
        [
            due(&scene.stored, &scene.stored, &decision),
            due(&scene.stored, &next, &decision),
        ]
    };
    assert_eq!(
        write(Action::AddFinalizer(exact())),
        [StatusWrite::None, StatusWrite::None]
    );
    assert_eq!(
        write(Action::WriteStatus(Vec::new())),
        [StatusWrite::BeforeAction, StatusWrite::BeforeAction]
    );
    let label = Action::LabelPod {
        pod: exact(),
        role: "primary",
    };
    assert_eq!(write(label), [StatusWrite::None, StatusWrite::None]);
}

/// `demo-1` of a status.
fn member(status: &mut ClusteredDatabaseStatus) -> &mut MemberStatus {
    status.members.get_mut("demo-1").unwrap()
}

#[test]
fn a_member_of_another_claim_begins_anew() {
    let published = |claim: &str| {
        let mut next = Scene::ready(3).stored;
        let change = StatusChange::PublishMember {
            pod: "demo-1".to_owned(),
            pod_uid: "new".to_owned(),
            claim_uid: claim.to_owned(),
        };
        apply(&mut next, &change, &BTreeMap::new(), DateTime::UNIX_EPOCH);
        let member = member(&mut next);
        (member.pod_uid.clone().unwrap(), member.certificate.is_some())
    };
    let same = Scene::ready(3).stored.members["demo-1"].claim_uid.clone().unwrap();
    assert_eq!(published(&same), ("new".to_owned(), true));
    assert_eq!(published("another"), ("new".to_owned(), false));
}

#[test]
fn a_member_is_described_by_the_very_pod_that_is_published() {
    let mut scene = Scene::ready(3);
    let rest = scene.decide();
    let told = |scene: &Scene, ordinal: u32| {
        let next = scene.status(&rest);
        let member = next.members[&format!("demo-{ordinal}")].clone();
        (member.ready, member.role)
    };
    let roles = [MemberRole::Primary, MemberRole::Standby].map(Some);
    assert_eq!([told(&scene, 0), told(&scene, 1)], roles.map(|role| (true, role)));
    for pod in ["demo-0", "demo-1"] {
        scene.stored.members.get_mut(pod).unwrap().pod_uid = Some("before".to_owned());
    }
    assert_eq!([told(&scene, 0), told(&scene, 1)], [(false, roles[1]); 2]);
}

#[test]
fn what_goes_is_no_instance_and_who_does_not_serve_no_primary() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).terminating = true;
    scene.lease_mut().unwrap().holder.as_mut().unwrap().serving = false;
    let next = scene.status(&scene.decide());
    assert_eq!((next.replicas, next.current_primary), (2, None));
    let mut fresh = Scene::ready(3);
    fresh.lease_mut().unwrap().epoch.0 = 0;
    fresh.stored.epoch = None;
    assert_eq!(fresh.status(&fresh.decide()).epoch, None, "nobody has held it");
}

#[test]
fn the_epoch_never_goes_back() {
    let mut scene = Scene::ready(3);
    for (lease, stored) in [(9, 9), (8, 9), (10, 10)] {
        scene.lease_mut().unwrap().epoch.0 = lease;
        scene.store();
        assert_eq!(scene.stored.epoch, Some(stored));
    }
}

#[test]
fn history_keeps_the_last_twenty_changes() {
    let mut scene = Scene::ready(3);
    for round in 0..35 {
        scene.pod_mut(0).ready = round % 2 == 1;
        scene.now += chrono::TimeDelta::seconds(1);
        scene.store();
    }
    assert_eq!(scene.stored.history.len(), HISTORY);
    let chained = scene
        .stored
        .history
        .windows(2)
        .all(|pair| pair[1].from == Some(pair[0].to));
    assert!(chained, "{:#?}", scene.stored.history);
}

#[test]
fn a_wait_keeps_its_beginning() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).ready = false;
    scene.store();
    let since = scene.stored.waiting.as_ref().map(|waiting| waiting.since);
    assert_eq!(since, Some(scene.now));
    scene.now += chrono::TimeDelta::seconds(40);
    scene.store();
    assert_eq!(scene.stored.waiting.as_ref().map(|waiting| waiting.since), since);
}

#[test]
fn conditions_stand_side_by_side() {
    let mut scene = Scene::ready(3);
    let condition = |scene: &Scene, kind: &str| {
        let status = scene.status(&scene.decide());
        let found = status
            .conditions
            .into_iter()
            .find(|condition| condition.type_ == kind)
            .unwrap();
        (found.status, found.reason)
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(condition(&scene, "Ready"), is("True", "AsWanted"));
    assert_eq!(condition(&scene, "DataSafe"), is("True", "Replicated"));
    scene.pod_mut(1).ready = false;
    assert_eq!(condition(&scene, "Degraded"), is("True", "MembersMissing"));
    assert_eq!(condition(&scene, "Available"), is("True", "PrimaryServes"));
    assert_eq!(condition(&scene, "Progressing"), is("True", "StandbyJoining"));
    scene.pod_mut(2).ready = false;
    assert_eq!(condition(&scene, "DataSafe"), is("False", "NotReplicated"));
    scene.pod_mut(0).ready = false;
    assert_eq!(condition(&scene, "Available"), is("False", "NoPrimary"));
    scene.observed.lease = super::super::Known::Unknown;
    assert_eq!(condition(&scene, "Available"), is("Unknown", "Unknown"));
    assert_eq!(condition(&Scene::ready(1), "DataSafe"), is("False", "SingleInstance"));
    let mut foreign = Scene::ready(3);
    foreign.set_child(
        super::super::OwnedObject::RService,
        OwnedState::Foreign {
            why: "owned".to_owned(),
            left: None,
        },
    );
    assert_eq!(condition(&foreign, "Ready"), is("False", "ForeignObject"));
    assert_eq!(condition(&foreign, "Available"), is("True", "PrimaryServes"));
}

#[test]
fn data_that_was_set_aside_is_named_as_long_as_it_is_kept() {
    let mut scene = Scene::ready(3);
    let said = |scene: &Scene| {
        let conditions = scene.status(&scene.decide()).conditions;
        conditions.into_iter().find(|found| found.type_ == "DataSetAside")
    };
    assert_eq!(said(&scene), None);
    scene.report_mut(2).kept = ["1-0_3000060-1", "unreadable-1700000000-1"].map(str::to_owned).into();
    let found = said(&scene).unwrap();
    assert_eq!((found.status.as_str(), found.reason.as_str()), ("True", "Kept"));
    for words in [
        "demo-2/1-0_3000060-1, demo-2/unreadable-1700000000-1",
        "kubectl cdb discard-quarantined demo demo-2 1-0_3000060-1",
    ] {
        assert!(found.message.contains(words), "{}", found.message);
    }
    assert_eq!(scene.decide().phase, Phase::Ready, "nothing waits for it");
    scene.report_mut(2).kept.clear();
    assert_eq!(said(&scene), None);
}

#[test]
fn a_paused_database_says_so_and_keeps_its_phase() {
    let mut scene = Scene::ready(3);
    scene.edit(|spec| (spec.paused, spec.replicas) = (true, 5));
    scene.store();
    assert_eq!(
        (scene.stored.phase, scene.stored.step.as_deref()),
        (Some(Phase::Ready), None)
    );
    assert_eq!(
        scene.stored.waiting.as_ref().and_then(|waiting| waiting.reason),
        Some(api::status::WaitReason::Unpause)
    );
}

#[test]
fn what_is_waited_for_after_a_write_is_told_in_its_own_phase() {
    let mut scene = Scene::ready(3);
    scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
    scene.store();
    scene.now += chrono::TimeDelta::minutes(1);
    let told = |scene: &mut Scene| {
        scene.store();
        (scene.stored.phase.unwrap(), scene.stored.waiting.is_some())
    };
    assert_eq!(told(&mut scene), (Phase::SwitchingOver, false), "it is given up");
    assert_eq!(told(&mut scene), (Phase::Updating, true));
}
