//! Scaling: more instances at once; fewer only while the primary serves and is not among those that go (see
//! [`super::switchover`]).

use api::spec::VolumeFate;

use super::action::{Action, Apply, ApplyHow, Exact, StatusChange};
use super::claims;
use super::creation::{lacks, remover};
use super::decision::Step;
use super::drift::{self, foreign_claim};
use super::durability;
use super::facts::Facts;
use super::fenced;
use super::members::exact_claim;
use super::observed::{ChildKind, Claim, SetFacts, Volume};
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const SCALE: Rule = Rule {
    name: "scale",
    family: "scaling",
    what: "The StatefulSet gets the wanted number of pods, but never fewer than the primary's ordinal needs, nor before the synchronous rule does without those that go, nor while one that stays does not serve and one that goes does.",
    propose: scale,
    passable: false,
};

/// See [`Rule::what`].
pub const REMOVED_MEMBERS: Rule = Rule {
    name: "removed-members",
    family: "scaling",
    what: "When a removed instance's pod is gone, and the synchronous rule does without it, its claims go if volumePolicy.onScaleDown says so and one that stays has data on a claim that stays, and it is forgotten.",
    propose: removed_members,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_STAYING: Rule = Rule {
    name: "await-staying",
    family: "scaling",
    what: "An instance that is to go and serves stays while one that is to stay does not; how that one can be made anew is said.",
    propose: await_staying,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_SCALE: Rule = Rule {
    name: "await-scale",
    family: "scaling",
    what: "While no primary serves, commits still wait for an instance that is to go, or a new one would pick up a foreign claim, that is said.",
    propose: await_scale,
    passable: false,
};

/// How many instances there can be now: as wanted, but not without the primary, or who was it last, and none less while
/// none serves.
fn possible(facts: &Facts<'_>, set: &SetFacts) -> u32 {
    let wanted = facts.wanted.replicas();
    if wanted >= set.replicas {
        return wanted.max(drift::returning(facts));
    }
    match facts.primary() {
        Some(primary) => wanted.max(primary.ordinal + 1).min(set.replicas),
        None => set.replicas,
    }
}

fn scale(facts: &Facts<'_>) -> Option<Proposal> {
    let set = facts.observed.stateful_set.as_ref()?;
    let replicas = possible(facts, set);
    if replicas == set.replicas || foreign_claim(facts, replicas).is_some() {
        return None;
    }
    // Whose claims these are must be known before pods pick them up.
    facts.observed.claims.get()?;
    if replicas < set.replicas && durability::before_scale_down(facts, replicas).is_some() {
        return None;
    }
    if loses(facts, set, replicas).is_some() {
        return None;
    }
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
        wal: None,
    };
    Proposal::act(Step::Scaling, Action::Apply(apply), because)
}

/// A scale-down to so many would keep an instance that does not serve and take one that does: both of them. A StatefulSet
/// drops its highest ordinals, whichever the broken one is.
fn loses(facts: &Facts<'_>, set: &SetFacts, replicas: u32) -> Option<(u32, u32)> {
    let serves = |ordinal: &u32| facts.pod(*ordinal).is_some_and(|pod| facts.serves(pod));
    let stays = (0..replicas).find(|ordinal| !serves(ordinal))?;
    let goes = (replicas..set.replicas).find(serves)?;
    Some((stays, goes))
}

fn await_staying(facts: &Facts<'_>) -> Option<Proposal> {
    let set = facts.observed.stateful_set.as_ref()?;
    let (stays, goes) = loses(facts, set, possible(facts, set))?;
    let name = |ordinal: u32| format!("{}-{ordinal}", facts.wanted.name);
    let (stays, goes, pod) = (name(stays), name(goes), facts.pod(stays));
    let what = format!("{stays}, which is to stay, to serve, before {goes} goes, which does");
    if fenced::is_fenced(facts, &stays) {
        return Proposal::wait(facts, Step::Scaling, what, "the user, by changing spec.fenced");
    }
    let fault = pod.and_then(|pod| facts.report(pod)?.fault.as_ref());
    let who = match pod {
        None => "the StatefulSet controller".to_owned(),
        Some(pod) if pod.terminating => remover(pod),
        Some(pod) if pod.never_ran() => {
            let (lack, who) = lacks(pod);
            format!("{who}: {lack}")
        }
        Some(_) => fault.map_or("its agent".to_owned(), |fault| format!("its agent ({fault})")),
    };
    let wal = pod.and_then(|pod| pod.wal_claim.as_ref());
    let wal = wal.map_or(String::new(), |wal| format!(" {wal}"));
    let who = format!(
        "{who}; or the user, who has it copied anew: kubectl delete pvc {}-{stays}{wal} --wait=false && kubectl delete pod \
         {stays}; or by the number of before",
        api::names::DATA_VOLUME
    );
    Proposal::wait(facts, Step::Scaling, what, who)
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
    if wanted < set.replicas && facts.primary().is_none() {
        let what = format!(
            "a primary that serves, to go from {} to {wanted} instances",
            set.replicas
        );
        return Proposal::wait(facts, Step::Scaling, what, "the agents");
    }
    let shrinking = (wanted < set.replicas).then(|| durability::before_scale_down(facts, possible(facts, set)));
    shrinking
        .flatten()
        .or_else(|| Proposal::unread(facts, Step::Scaling, "the claims"))
}

/// A member of the status that was removed, and whose pod is gone. One whom the synchronous rule counts is not yet: a new
/// primary begins with all members that the Lease knows, and an election needs the answers of those.
fn removed<'a>(facts: &Facts<'a>) -> Option<(&'a str, u32, Option<&'a str>)> {
    let set = facts.observed.stateful_set.as_ref()?;
    facts.observed.pods.get()?;
    facts.primary()?;
    let kept = facts.wanted.replicas().max(set.replicas);
    let counted = |ordinal: u32| {
        let mut names = facts.lease.iter().flat_map(|lease| &lease.rule.names);
        names.any(|name| name.ordinal() == Some(ordinal))
    };
    facts.status.members.iter().find_map(|(pod, member)| {
        let ordinal = facts.ordinal(pod)?;
        (ordinal >= kept && facts.pod(ordinal).is_none() && !counted(ordinal)).then_some((
            pod.as_str(),
            ordinal,
            member.claim_uid.as_deref(),
        ))
    })
}

fn removed_members(facts: &Facts<'_>) -> Option<Proposal> {
    let Some((pod, ordinal, claim_uid)) = removed(facts) else {
        let claim = abandoned(facts).filter(|_| facts.wanted.spec.volume_policy.on_scale_down == VolumeFate::Delete)?;
        let because = format!("nobody has used {}, and volumePolicy.onScaleDown is Delete", claim.name);
        return Proposal::act(Step::Scaling, Action::DeleteClaim(exact_claim(claim)), because);
    };
    if facts.wanted.spec.volume_policy.on_scale_down == VolumeFate::Delete {
        let Some(claims) = facts.observed.claims.get() else {
            return Proposal::unread(facts, Step::Scaling, "the claims");
        };
        if let Some(claim) = claim_to_delete(facts, claims, ordinal, claim_uid) {
            let because = format!("{pod} was removed, and volumePolicy.onScaleDown is Delete");
            let delete = || Proposal::act(Step::Scaling, Action::DeleteClaim(exact_claim(claim)), because);
            return claims::before_removing(facts, claim).or_else(delete);
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
/// claim has taken that name, none is. If the data volume is gone already, the WAL volume is of no use any more.
fn claim_to_delete<'a>(
    facts: &Facts<'_>,
    claims: &'a [Claim],
    ordinal: u32,
    claim_uid: Option<&str>,
) -> Option<&'a Claim> {
    let mine = |volume: Volume| {
        let ours = |claim: &&Claim| facts.owns(claim);
        let here = move |claim: &&Claim| claim.ordinal == ordinal && claim.volume == volume;
        claims.iter().filter(here).find(ours)
    };
    let data = mine(Volume::Data);
    if data.is_some_and(|claim| Some(claim.uid.as_str()) != claim_uid) {
        return None;
    }
    let going = |claim: &&Claim| !claim.terminating;
    mine(Volume::Wal).filter(going).or(data.filter(going))
}

/// A claim of an instance that was taken away before it was published. Only one that never had a volume: what is on any
/// other may be data that an earlier policy wanted kept.
fn abandoned<'a>(facts: &Facts<'a>) -> Option<&'a Claim> {
    let set = facts.observed.stateful_set.as_ref()?;
    facts.observed.pods.get()?;
    let kept = facts.wanted.replicas().max(set.replicas);
    facts.claims().iter().find(|claim| {
        claim.ordinal >= kept
            && facts.owns(claim)
            && !claim.bound
            && !claim.terminating
            && facts.pod(claim.ordinal).is_none()
            && facts
                .status
                .members
                .keys()
                .all(|pod| facts.ordinal(pod) != Some(claim.ordinal))
    })
}

#[cfg(test)]
mod tests {
    use api::Phase;
    use api::status::SwitchoverMemo;

    use super::super::Known;
    use super::super::testing::Scene;
    use super::*;
    use crate::quorum::SyncRule;

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
        let takes_pods = |scene: &Scene| match scene.decide().action {
            Action::Apply(apply) => apply.takes_pods(&scene.observed),
            _ => false,
        };
        assert!(!takes_pods(&scene));
        scene.edit(|spec| spec.replicas = 1);
        scene.synchronize();
        assert_eq!(replicas(&scene), Some(1));
        assert!(takes_pods(&scene), "all is read once more before");
    }

    #[test]
    fn the_primary_stays_until_it_has_handed_over() {
        let mut scene = Scene::ready(3);
        scene.elect(1);
        scene.edit(|spec| spec.replicas = 1);
        scene.synchronize();
        assert_eq!(scene.decide().rule, "switch-over");
        let mut given_up = scene.clone();
        given_up.stored.memo.switchover = Some(SwitchoverMemo {
            target: "demo-0".to_owned(),
            since: scene.now,
            attempts: 1,
            ended: Some(scene.now),
        });
        assert_eq!(replicas(&given_up), Some(2), "what can go goes");
        scene.report_mut(0).state = crate::protocol::MemberState::CatchingUp;
        assert_eq!(scene.decide().rule, "await-staying");
        scene.elect(2);
        scene.report_mut(0).state = crate::protocol::MemberState::CatchingUp;
        assert_eq!(scene.decide().rule, "await-standbys", "nobody can take over yet");
        scene.elect(0);
        assert_eq!(replicas(&scene), Some(1));
    }

    #[test]
    fn who_serves_does_not_go_while_one_that_stays_is_broken() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.replicas = 2);
        scene.synchronize();
        assert_eq!(replicas(&scene), Some(2));
        type Spoil = fn(&mut Scene);
        let broken: [(Spoil, &str); 5] = [
            (|scene| scene.pod_mut(1).ready = false, "its agent; or the user"),
            (
                |scene| {
                    scene.report_mut(1).state = crate::protocol::MemberState::Cloning;
                    scene.report_mut(1).fault = Some("no room".to_owned());
                },
                "its agent (no room); or the user",
            ),
            (
                |scene| {
                    let pod = scene.pod_mut(1);
                    (pod.ready, pod.node, pod.unschedulable) = (false, None, Some("no node fits".to_owned()));
                },
                "spec.scheduling or spec.resources: a node for pod demo-1 (no node fits); or the user",
            ),
            (|scene| scene.pod_mut(1).terminating = true, "the kubelet of node-1"),
            (
                |scene| scene.pods_mut().retain(|pod| pod.ordinal != 1),
                "the StatefulSet controller; or the user",
            ),
        ];
        for (index, (spoil, who)) in broken.into_iter().enumerate() {
            let mut scene = scene.clone();
            spoil(&mut scene);
            let decision = scene.store();
            assert_eq!(
                (decision.rule, decision.phase),
                ("await-staying", Phase::Updating),
                "{index}"
            );
            let waiting = scene.stored.waiting.clone().unwrap();
            assert_eq!(
                waiting.what,
                "demo-1, which is to stay, to serve, before demo-2 goes, which does"
            );
            assert!(waiting.who_can_end_it.contains(who), "{}", waiting.who_can_end_it);
            let command = "kubectl delete pvc data-demo-1 --wait=false && kubectl delete pod demo-1;";
            assert!(waiting.who_can_end_it.contains(command), "{}", waiting.who_can_end_it);
            scene.pod_mut(2).ready = false;
            assert_eq!(replicas(&scene), Some(2), "{index}: nothing that serves goes");
        }
        scene.edit(|spec| spec.fenced = vec!["demo-1".to_owned()]);
        scene.report_mut(1).state = crate::protocol::MemberState::Stopped;
        scene.store();
        let waiting = scene.stored.waiting.clone().unwrap();
        assert_eq!(waiting.who_can_end_it, "the user, by changing spec.fenced");
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
        scene.synchronize();
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
    fn the_only_claim_that_stays_is_not_deleted() {
        let mut scene = scaled_down(VolumeFate::Delete);
        scene.claims_mut()[0].terminating = true;
        let wait = scene.decide();
        assert_eq!(wait.rule, "removed-members");
        assert!(matches!(wait.action, Action::Wait(_)), "{wait:?}");
        scene.claims_mut().remove(0);
        assert!(matches!(scene.decide().action, Action::Wait(_)));
    }

    #[test]
    fn whom_elections_still_count_keeps_its_claim() {
        let mut scene = scaled_down(VolumeFate::Delete);
        scene.stored.members.remove("demo-1");
        let member = scene.report_mut(2).member.clone();
        scene.lease_mut().unwrap().rule = SyncRule::any(1, [member]);
        assert_eq!(scene.decide().rule, "await-durability");
        scene.lease_mut().unwrap().rule = SyncRule::default();
        assert!(matches!(scene.decide().action, Action::DeleteClaim(claim) if claim.name() == "data-demo-2"));
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
    fn a_wal_volume_does_not_outlive_its_data() {
        let mut scene = scaled_down(VolumeFate::Delete);
        let mut wal = scene.claims_mut()[1].clone();
        (wal.name, wal.uid, wal.volume) = ("wal-demo-1".to_owned(), "w".to_owned(), Volume::Wal);
        scene.claims_mut()[1] = wal;
        let Action::DeleteClaim(claim) = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(claim.name(), "wal-demo-1");
    }

    #[test]
    fn claims_of_an_instance_that_was_never_published_go_if_nothing_is_on_them() {
        let mut scene = scaled_down(VolumeFate::Delete);
        for _ in 1..3 {
            scene.claims_mut().truncate(1);
            scene.store();
        }
        assert_eq!(scene.decide().rule, "rest");
        let left = Scene::ready(3).claims_mut()[2].clone();
        scene.claims_mut().push(left);
        assert_eq!(scene.decide().rule, "rest", "there may be data on it");
        scene.claims_mut()[1].bound = false;
        assert!(matches!(scene.decide().action, Action::DeleteClaim(claim) if claim.name() == "data-demo-2"));
        scene.edit(|spec| spec.volume_policy.on_scale_down = VolumeFate::Retain);
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn an_instance_that_goes_before_it_was_published_is_published_for_its_claims() {
        let mut scene = Scene::ready(1);
        scene.spec.volume_policy.on_scale_down = VolumeFate::Delete;
        scene.add_pod(1);
        scene.pod_mut(1).terminating = true;
        scene.now += chrono::TimeDelta::seconds(3);
        scene.store();
        assert!(scene.stored.members.contains_key("demo-1"));
        scene.pods_mut().truncate(1);
        assert!(matches!(scene.decide().action, Action::DeleteClaim(claim) if claim.name() == "data-demo-1"));
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

    #[test]
    fn a_scale_down_needs_a_primary_and_says_so() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| spec.replicas = 2);
        scene.pod_mut(0).ready = false;
        let Action::Wait(waiting) = scene.with_facts(await_scale).unwrap().action else {
            panic!()
        };
        assert_eq!(waiting.what, "a primary that serves, to go from 3 to 2 instances");
    }

    #[test]
    fn only_a_claim_of_this_database_that_nobody_returns_to_is_abandoned() {
        let abandoned = |change: fn(&mut Claim)| {
            let mut scene = Scene::ready(1);
            let mut left = Scene::ready(2).claims_mut()[1].clone();
            left.bound = false;
            change(&mut left);
            scene.claims_mut().push(left);
            scene.with_facts(|facts| super::abandoned(facts).is_some())
        };
        assert!(abandoned(|_| {}));
        assert!(!abandoned(|claim| claim.cluster_uid = Some("another".to_owned())));
        let mut scene = Scene::ready(2);
        scene.pods_mut().truncate(1);
        scene.claims_mut()[1].bound = false;
        scene.stored.members.remove("demo-1");
        assert!(
            scene.with_facts(|facts| super::abandoned(facts).is_none()),
            "its pod comes back"
        );
    }
}
