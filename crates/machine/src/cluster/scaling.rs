//! Scaling: more instances at once; fewer only while the primary serves and is not among those that go.

use api::spec::VolumeFate;

use super::action::{Action, Apply, ApplyHow, Exact, StatusChange};
use super::decision::Step;
use super::drift::foreign_claim;
use super::facts::Facts;
use super::members::{exact_claim, ordinal_of};
use super::observed::{ChildKind, Claim, SetFacts, Volume};
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const SCALE: Rule = Rule {
    name: "scale",
    family: "scaling",
    what: "The StatefulSet gets the wanted number of pods, but never fewer than the primary's ordinal needs.",
    propose: scale,
    passable: false,
};

/// See [`Rule::what`].
pub const REMOVED_MEMBERS: Rule = Rule {
    name: "removed-members",
    family: "scaling",
    what: "When a removed instance's pod is gone, its claims go if volumePolicy.onScaleDown says so, and it is forgotten.",
    propose: removed_members,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_SCALE: Rule = Rule {
    name: "await-scale",
    family: "scaling",
    what: "While the primary is among the instances that are to go, or a new one would pick up a foreign claim, that is said.",
    propose: await_scale,
    passable: false,
};

/// How many instances there can be now: as wanted, but not without the primary, and none less while none serves.
fn possible(facts: &Facts<'_>, set: &SetFacts) -> u32 {
    let wanted = facts.wanted.replicas();
    if wanted >= set.replicas {
        return wanted;
    }
    match protected(facts) {
        Some(ordinal) => wanted.max(ordinal + 1).min(set.replicas),
        None => set.replicas,
    }
}

/// The highest ordinal that must stay: the primary's, by what the Lease says of its holder and its last one.
fn protected(facts: &Facts<'_>) -> Option<u32> {
    let primary = facts.primary()?.ordinal;
    let last = facts
        .lease?
        .release
        .as_ref()
        .and_then(|release| ordinal_of(&release.member));
    Some(last.map_or(primary, |last| last.max(primary)))
}

fn scale(facts: &Facts<'_>) -> Option<Proposal> {
    let set = facts.observed.stateful_set.as_ref()?;
    let replicas = possible(facts, set);
    if replicas == set.replicas || foreign_claim(facts, replicas).is_some() {
        return None;
    }
    // Whose claims these are must be known before pods pick them up.
    facts.observed.claims.get()?;
    let exact = Exact::new(facts.wanted.name, &set.uid, &set.resource_version);
    let how = ApplyHow::Change(exact);
    let because = format!(
        "StatefulSet {} has {} replicas and can have {replicas}",
        facts.wanted.name, set.replicas
    );
    let apply = Apply {
        kind: ChildKind::StatefulSet,
        how,
        replicas: Some(replicas),
    };
    Proposal::act(Step::Scaling, Action::Apply(apply), because)
}

fn await_scale(facts: &Facts<'_>) -> Option<Proposal> {
    let set = facts.observed.stateful_set.as_ref()?;
    let wanted = facts.wanted.replicas();
    if wanted == set.replicas {
        return None;
    }
    if let Some(claim) = foreign_claim(facts, wanted) {
        let what = format!("claim {} to go away, which was made for another database", claim.name);
        return Proposal::wait(
            facts,
            Step::Scaling,
            what,
            "the user, by deleting the claim or by the number of before",
        );
    }
    if wanted > set.replicas {
        return Proposal::wait(facts, Step::Scaling, "the claims to be read", "the API server");
    }
    let Some(primary) = facts.primary() else {
        let what = format!(
            "a primary that serves, to go from {} to {wanted} instances",
            set.replicas
        );
        return Proposal::wait(facts, Step::Scaling, what, "the agents");
    };
    let what = format!(
        "a switchover: {} is primary, and {wanted} instances leave no room for it",
        primary.name
    );
    Proposal::wait(
        facts,
        Step::Scaling,
        what,
        "the user, by a switchover or by the number of before",
    )
}

/// A member of the status that was removed, and whose pod is gone.
fn removed<'a>(facts: &Facts<'a>) -> Option<(&'a str, u32, Option<&'a str>)> {
    let set = facts.observed.stateful_set.as_ref()?;
    facts.observed.pods.get()?;
    facts.primary()?;
    let kept = facts.wanted.replicas().max(set.replicas);
    facts.status.members.iter().find_map(|(pod, member)| {
        let ordinal = facts.ordinal(pod)?;
        (ordinal >= kept && facts.pod(ordinal).is_none()).then_some((
            pod.as_str(),
            ordinal,
            member.claim_uid.as_deref(),
        ))
    })
}

fn removed_members(facts: &Facts<'_>) -> Option<Proposal> {
    let (pod, ordinal, claim_uid) = removed(facts)?;
    if facts.wanted.spec.volume_policy.on_scale_down == VolumeFate::Delete {
        let Some(claims) = facts.observed.claims.get() else {
            return Proposal::wait(facts, Step::Scaling, "the claims to be read", "the API server");
        };
        if let Some(claim) = claim_to_delete(facts, claims, ordinal, claim_uid) {
            let because = format!("{pod} was removed, and volumePolicy.onScaleDown is Delete");
            return Proposal::act(Step::Scaling, Action::DeleteClaim(exact_claim(claim)), because);
        }
    }
    let changes = vec![StatusChange::ForgetMember { pod: pod.to_owned() }];
    Proposal::act(
        Step::Scaling,
        Action::WriteStatus(changes),
        format!("{pod} was removed"),
    )
}

/// The next claim of a removed member: its WAL volume, then the data volume that it was published with. If another
/// claim has taken that name, none is.
fn claim_to_delete<'a>(
    facts: &Facts<'_>,
    claims: &'a [Claim],
    ordinal: u32,
    claim_uid: Option<&str>,
) -> Option<&'a Claim> {
    let mine = |claim: &&Claim| claim.ordinal == ordinal && claim.cluster_uid.as_deref() == Some(facts.wanted.uid);
    let data = claims
        .iter()
        .filter(mine)
        .find(|claim| claim.volume == Volume::Data && Some(claim.uid.as_str()) == claim_uid)?;
    let wal = claims
        .iter()
        .filter(mine)
        .find(|claim| claim.volume == Volume::Wal && !claim.terminating);
    wal.or(Some(data).filter(|claim| !claim.terminating))
}

#[cfg(test)]
mod tests {
    use api::Phase;

    use super::super::Known;
    use super::super::testing::Scene;
    use super::*;

    fn replicas(scene: &Scene) -> Option<u32> {
        match scene.decide().action {
            Action::Apply(apply) => apply.replicas,
            _ => None,
        }
    }

    #[test]
    fn more_instances_come_at_once_and_fewer_go_at_once() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.replicas = 5);
        assert_eq!((replicas(&scene), scene.decide().phase), (Some(5), Phase::Updating));
        scene.edit(|spec| spec.replicas = 1);
        assert_eq!(replicas(&scene), Some(1));
    }

    #[test]
    fn the_primary_stays_and_a_switchover_is_asked_for() {
        let mut scene = Scene::ready(3);
        scene.elect(1);
        scene.edit(|spec| spec.replicas = 1);
        assert_eq!(replicas(&scene), Some(2), "what can go goes");
        let mut scene = Scene::ready(3);
        scene.elect(2);
        scene.edit(|spec| spec.replicas = 1);
        let decision = scene.decide();
        assert_eq!(decision.rule, "await-scale");
        assert!(
            decision
                .because
                .to_string()
                .starts_with("a switchover: demo-2 is primary")
        );
    }

    #[test]
    fn nobody_goes_while_no_primary_serves() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.replicas = 1);
        scene.pod_mut(0).ready = false;
        assert_eq!(replicas(&scene), None);
        scene.pod_mut(0).ready = true;
        scene.observed.lease = Known::Unknown;
        assert_eq!(replicas(&scene), None);
    }

    /// Scaled down to one, and the pods are gone.
    fn scaled_down(fate: VolumeFate) -> Scene {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| (spec.replicas, spec.volume_policy.on_scale_down) = (1, fate));
        scene.observed.stateful_set.as_mut().unwrap().replicas = 1;
        scene.pods_mut().truncate(1);
        scene
    }

    #[test]
    fn claims_are_kept_or_deleted_and_the_member_is_forgotten() {
        let scene = scaled_down(VolumeFate::Retain);
        assert!(matches!(&scene.decide().action, Action::WriteStatus(changes) if changes.len() == 1));
        let mut scene = scaled_down(VolumeFate::Delete);
        let Action::DeleteClaim(claim) = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(claim.name(), "data-demo-1");
        scene.claims_mut().remove(1);
        scene.store();
        assert!(!scene.stored.members.contains_key("demo-1"));
    }

    #[test]
    fn a_claim_that_was_kept_before_is_not_deleted_by_a_later_policy() {
        let mut scene = scaled_down(VolumeFate::Retain);
        scene.store();
        scene.store();
        scene.edit(|spec| spec.volume_policy.on_scale_down = VolumeFate::Delete);
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn a_claim_with_another_uid_or_a_pod_is_not_deleted() {
        let mut scene = scaled_down(VolumeFate::Delete);
        scene.claims_mut()[1].uid = "another".to_owned();
        assert!(matches!(scene.decide().action, Action::WriteStatus(_)));
        let mut scene = scaled_down(VolumeFate::Delete);
        scene.add_pod(1);
        scene.claims_mut().remove(3);
        scene.pod_mut(1).terminating = true;
        scene.pods_mut().retain(|pod| pod.ordinal < 2);
        let Action::DeleteClaim(claim) = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(claim.name(), "data-demo-2", "the pod of demo-1 still exists");
    }

    #[test]
    fn a_foreign_claim_keeps_a_new_instance_away() {
        let mut scene = Scene::ready(3);
        scene.pods_mut().truncate(2);
        scene.observed.stateful_set.as_mut().unwrap().replicas = 2;
        scene.claims_mut()[2].cluster_uid = None;
        let decision = scene.decide();
        assert!(matches!(decision.action, Action::Wait(_)), "{decision:?}");
        assert_eq!(decision.phase, Phase::Failed);
    }
}
