use super::super::facts::made_on;
use super::super::model::Scene;
use super::*;
use crate::protocol::MemberId;

fn changes(scene: &Scene) -> Vec<StatusChange> {
    match scene.decide().action {
        Action::WriteStatus(changes) => changes,
        _ => Vec::new(),
    }
}

#[test]
fn what_is_written_is_told_the_members_first() {
    let member = |ordinal: u32| MemberId::new(ordinal, "aaaa", 1);
    let publish = |pod: &str| StatusChange::PublishMember {
        pod: pod.to_owned(),
        pod_uid: "u".to_owned(),
        claim_uid: "c".to_owned(),
    };
    let sign = StatusChange::SignCertificate {
        pod: "demo-1".to_owned(),
        claim: super::super::ObjectVersion::new("data-demo-1", "c", "1"),
        member: member(1),
        public_key: "key".to_owned(),
    };
    let told = describe(&[
        StatusChange::RecordLeaseMade,
        publish("demo-0"),
        sign,
        publish("demo-1"),
    ]);
    assert_eq!(
        told,
        "pods demo-0, demo-1 have claims; keys of demo-1 are to be signed; the Lease exists"
    );
    let granted = |granted| describe(&[StatusChange::RecordGranted(granted)]);
    assert_eq!(granted(Default::default()), "no volume is refused its size any more");
    let refused = api::status::GrantedStorage {
        data: Some("1Gi".to_owned()),
        wal: None,
    };
    assert_eq!(granted(refused), "volumes are refused their size");
}

#[test]
fn the_system_identifier_is_recorded_once_the_first_primary_serves() {
    let recorded = |epoch: u64, serving: bool| {
        let mut scene = Scene::ready(3);
        scene.stored.system_identifier = None;
        let lease = scene.lease_mut().unwrap();
        lease.epoch.0 = epoch;
        lease.holder.as_mut().unwrap().serving = serving;
        let mut changes = Vec::new();
        scene.with_facts(|facts| record_system_identifier(facts, &mut changes));
        !changes.is_empty()
    };
    assert_eq!(
        [recorded(1, false), recorded(1, true), recorded(2, false)],
        [false, true, true]
    );
}

#[test]
fn a_pod_that_goes_is_published_only_if_its_claim_is_to_go_with_it() {
    let published = |ordinal: u32, change: fn(&mut Scene)| {
        let mut scene = Scene::ready(3);
        scene.spec.storage.retention_policy.when_scaled = api::spec::VolumeFate::Delete;
        scene.observed.stateful_set.as_mut().unwrap().replicas = 2;
        scene.stored.members.clear();
        scene.pod_mut(ordinal).terminating = true;
        change(&mut scene);
        scene.with_facts(|facts| claim_to_publish(facts, facts.pod(ordinal).unwrap()).is_some())
    };
    assert!(published(2, |_| {}));
    assert!(!published(1, |_| {}), "it comes back");
    assert!(!published(2, |scene| scene.deleting = true));
    assert!(!published(2, |scene| {
        scene.spec.storage.retention_policy.when_scaled = api::spec::VolumeFate::Retain;
    }));
}

#[test]
fn the_old_primary_loses_its_label_before_the_new_one_gets_it() {
    let mut scene = Scene::ready(3);
    let labels: Vec<_> = scene.pods().iter().map(|pod| pod.role.clone()).collect();
    scene.elect(2);
    for (pod, role) in scene.pods_mut().iter_mut().zip(labels) {
        pod.role = role;
    }
    for (ordinal, wanted) in [(0, "replica"), (2, "primary")] {
        let Action::LabelPod { pod, role } = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!((pod.name(), role), (format!("demo-{ordinal}").as_str(), wanted));
        scene.pod_mut(ordinal).role = Some(role.to_owned());
    }
    assert_ne!(scene.decide().rule, "label-roles");
}

#[test]
fn keys_of_all_members_are_signed_in_one_write_and_only_once() {
    let mut scene = Scene::ready(3);
    for ordinal in [1, 2] {
        scene.report_mut(ordinal).public_key = Some(format!("another-{ordinal}"));
    }
    assert_eq!(changes(&scene).len(), 2);
    scene.store();
    assert_eq!(
        scene.stored.members["demo-2"].certified_key.as_deref(),
        Some("another-2")
    );
    assert_eq!(changes(&scene), []);
}

#[test]
fn nobody_gets_a_certificate_in_another_name_or_for_another_pod() {
    let mut scene = Scene::ready(3);
    let other = scene.report_mut(1).member.clone();
    let report = scene.report_mut(2);
    (report.public_key, report.member) = (Some("mine".to_owned()), other);
    assert_eq!(changes(&scene), []);
    let mut scene = Scene::ready(3);
    let report = scene.report_mut(2);
    (report.public_key, report.pod_uid) = (Some("mine".to_owned()), "another".to_owned());
    assert_eq!(changes(&scene), []);
}

#[test]
fn new_data_on_the_same_claim_gets_a_new_certificate() {
    let mut scene = Scene::ready(3);
    let claim = scene.claims_mut()[2].uid.clone();
    scene.report_mut(2).member = MemberId::new(2, &claim, 99);
    assert!(matches!(&changes(&scene)[..], [StatusChange::SignCertificate { pod, .. }] if pod == "demo-2"));
}

#[test]
fn a_new_pod_is_published_at_once_and_a_late_one_is_gathered_for_two_seconds() {
    let mut scene = Scene::ready(3);
    scene.pod_mut(2).uid = "new".to_owned();
    assert!(matches!(&changes(&scene)[..], [StatusChange::PublishMember { pod_uid, .. }] if pod_uid == "new"));
    scene.pods_mut().remove(1);
    scene.pod_mut(2).created = scene.now;
    let decision = scene.decide();
    assert_eq!((decision.rule, decision.wake), ("record", scene.now + GATHER));
    scene.now += GATHER;
    assert_eq!(changes(&scene).len(), 1);
}

#[test]
fn a_claim_of_another_database_is_never_published() {
    let mut scene = Scene::ready(3);
    scene.claims_mut()[2].cluster_uid = Some("another".to_owned());
    scene.pod_mut(2).uid = "new".to_owned();
    assert_eq!(changes(&scene), []);
}

#[test]
fn identities_say_where_they_were_made() {
    let member = MemberId::new(2, "1A2B3c4d-5e6f", 7);
    assert!(made_on(&member, 2, "1A2B3c4d-5e6f"));
    assert!(!made_on(&member, 1, "1A2B3c4d-5e6f") && !made_on(&member, 2, "2A2B3c4d-5e6f"));
    assert_eq!(member.ordinal(), Some(2));
}
