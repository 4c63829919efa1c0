//! Who may make the first database. Granted to one data claim, before anything happens, and moved only if that claim is
//! gone and no system identifier was ever recorded: initdb runs at most once.

use api::status::BootstrapGrant;

use super::action::StatusChange;
use super::facts::Facts;
use super::fenced;
use super::observed::{ChildState, Claim, Pod};

/// The grant to write now, with everything that has to be on record before a database exists.
pub(super) fn changes(facts: &Facts<'_>, changes: &mut Vec<StatusChange>) {
    let Some((pod, claim)) = grant(facts) else { return };
    changes.push(StatusChange::GrantBootstrap {
        pod: pod.name.clone(),
        claim_uid: claim.uid.clone(),
    });
}

/// The pod and the claim to grant the bootstrap to, if a grant is missing and may be given.
pub(super) fn grant<'a>(facts: &Facts<'a>) -> Option<(&'a Pod, &'a Claim)> {
    let lease = facts.lease?;
    let untouched = lease.holder.is_none() && lease.epoch.0 == 0 && lease.release.is_none();
    let stays = facts.wanted.deleting || facts.wanted.spec.hibernated;
    if !untouched || facts.bootstrapped() || facts.wanted.invalid.is_some() || stays {
        return None;
    }
    let all_made = facts.wanted_children().all(|kind| {
        matches!(
            facts.child(kind),
            Some(ChildState::Current { .. } | ChildState::Drifted { .. })
        )
    });
    if !all_made
        || facts
            .status
            .intent
            .bootstrap
            .as_ref()
            .is_some_and(|grant| stands(facts, grant))
    {
        return None;
    }
    let granted = facts
        .pods()
        .iter()
        .filter(|pod| pod.node.is_some() && !pod.terminating && !fenced::is_fenced(facts, &pod.name))
        .find_map(|pod| {
            let claim = facts.data_claim(pod.ordinal)?;
            (!claim.terminating && facts.owns(claim)).then_some((pod, claim))
        });
    granted.filter(|_| facts.observed.claims.get().is_some())
}

/// A grant stands while its claim exists, or the pod that may be using it, or while that is unknown. A pod that is on
/// record with another claim does not use the granted one.
fn stands(facts: &Facts<'_>, grant: &BootstrapGrant) -> bool {
    let (Some(claims), Some(pods)) = (facts.observed.claims.get(), facts.observed.pods.get()) else {
        return true;
    };
    let user = facts
        .status
        .members
        .get(&grant.pod)
        .filter(|member| member.claim_uid.as_deref() == Some(grant.claim_uid.as_str()))
        .and_then(|member| member.pod_uid.as_deref());
    claims.iter().any(|claim| claim.uid == grant.claim_uid) || pods.iter().any(|pod| Some(pod.uid.as_str()) == user)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scene;
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
}
