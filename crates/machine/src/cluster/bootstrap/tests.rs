use super::super::model::Scene;
use super::super::{Action, Decision, Known, StatusChange};
use crate::protocol::Epoch;

/// Pods and claims exist, and nobody has made a database yet.
fn before() -> Scene {
    let mut scene = Scene::ready(3);
    scene.stored = api::ClusteredDatabaseStatus::default();
    let lease = scene.lease_mut().unwrap();
    (lease.holder, lease.system_id, lease.epoch) = (None, None, Epoch(0));
    lease.members.clear();
    for pod in scene.pods_mut() {
        pod.ready = false;
    }
    scene
}

fn granted(decision: &Decision) -> Option<&str> {
    let Action::WriteStatus(changes) = &decision.action else {
        return None;
    };
    changes.iter().find_map(|change| match change {
        StatusChange::GrantBootstrap { pod, .. } => Some(pod.as_str()),
        _ => None,
    })
}

#[test]
fn one_write_publishes_all_members_grants_and_remembers() {
    let mut scene = before();
    let decision = scene.store();
    assert_eq!(granted(&decision), Some("demo-0"));
    let stored = &scene.stored;
    assert_eq!(
        (stored.members.len(), stored.memo.made.len(), stored.memo.lease_made),
        (3, 2, true)
    );
    assert_eq!(
        stored.intent.bootstrap.as_ref().map(|grant| grant.pod.as_str()),
        Some("demo-0")
    );
    assert!(
        matches!(scene.decide().action, Action::Wait(_)),
        "plan again changes nothing"
    );
}

#[test]
fn a_pod_without_a_node_is_not_granted() {
    let mut scene = before();
    scene.pod_mut(0).node = None;
    assert_eq!(granted(&scene.decide()), Some("demo-1"));
}

#[test]
fn nothing_is_granted_to_a_claim_that_goes_or_to_a_database_that_does_or_sleeps() {
    let mut going = before();
    going.claims_mut()[0].terminating = true;
    assert_eq!(granted(&going.decide()), Some("demo-1"));
    for change in [
        |scene: &mut Scene| scene.deleting = true,
        |scene: &mut Scene| scene.spec.hibernated = true,
    ] {
        let mut scene = before();
        change(&mut scene);
        assert!(scene.with_facts(|facts| super::grant(facts).is_none()));
    }
}

#[test]
fn a_grant_moves_only_when_its_claim_and_pod_are_gone_and_known_to_be() {
    let mut scene = before();
    scene.store();
    let pod = scene.pods_mut().remove(0);
    assert_eq!(granted(&scene.decide()), None, "the claim exists");
    let claim = scene.claims_mut().remove(0);
    assert_eq!(granted(&scene.decide()), Some("demo-1"));
    scene.pods_mut().insert(0, pod);
    assert_eq!(granted(&scene.decide()), None, "the pod may be running on it");
    scene.pods_mut().remove(0);
    scene.observed.claims = Known::Unknown;
    assert_eq!(granted(&scene.decide()), None);
    scene.observed.claims = Known::Known(vec![claim]);
    assert_eq!(granted(&scene.decide()), None);
}

#[test]
fn a_grant_ends_when_its_pod_is_on_record_with_another_claim() {
    let mut scene = before();
    scene.store();
    scene.pod_mut(0).uid = "another-pod".to_owned();
    scene.claims_mut()[0].uid = "another-claim".to_owned();
    let member = scene.stored.members.get_mut("demo-0").unwrap();
    member.pod_uid = Some("another-pod".to_owned());
    assert_eq!(granted(&scene.decide()), None, "its claim is not on record yet");
    scene.stored.members.get_mut("demo-0").unwrap().claim_uid = Some("another-claim".to_owned());
    assert_eq!(granted(&scene.decide()), Some("demo-0"));
}

#[test]
fn nobody_is_granted_a_second_database() {
    let mut recorded = before();
    recorded.stored.system_identifier = Some("7400".to_owned());
    assert_eq!(granted(&recorded.decide()), None);
    let mut held = before();
    held.lease_mut().unwrap().epoch = Epoch(1);
    assert_eq!(granted(&held.decide()), None);
    let mut unknown = before();
    unknown.observed.lease = Known::Unknown;
    assert_eq!(granted(&unknown.decide()), None);
    let mut named = before();
    named.lease_mut().unwrap().system_id = Some("7400".to_owned());
    assert!(
        named.with_facts(|facts| super::grant(facts).is_none()),
        "nobody has stored it yet"
    );
}
