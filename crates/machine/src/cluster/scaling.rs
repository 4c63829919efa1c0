//! Scaling: more instances at once; fewer only while the primary serves and is not among those that go (see
//! [`super::switchover`]).

use api::spec::VolumeFate;

use super::action::{Action, Apply, ApplyHow, StatusChange};
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
use crate::reconcile::Exact;

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
mod tests;
