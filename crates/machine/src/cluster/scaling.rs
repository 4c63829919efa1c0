//! Scaling: more instances at once; fewer only while the primary serves and is not among those that go (see
//! [`super::switchover`]).

use api::spec::VolumeFate;
use api::status::{WaitActor, WaitReason};

use super::action::{Action, Apply, ApplyHow, StatusChange};
use super::claims;
use super::creation::{lacks, remover};
use super::decision::Step;
use super::drift::{self, foreign_claim};
use super::durability;
use super::facts::{Facts, exact_claim, fenced};
use super::observed::{Claim, StatefulSetView, Volume};
use super::owned::OwnedObject;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use crate::reconcile::ObjectVersion;

/// See [`Rule::what`].
pub const SCALE: Rule = Rule {
    name: "scale",
    family: "scaling",
    what: "The StatefulSet gets the wanted number of pods.\n\
           - Never fewer than the primary's ordinal needs.\n\
           - Not before the synchronous rule does without the instances that go.\n\
           - Not while an instance that stays does not serve and one that goes does.",
    protocol: &[10],
    kind: RuleKind::Act,
    decide: scale,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const REMOVED_MEMBERS: Rule = Rule {
    name: "removed-members",
    family: "scaling",
    what: "A removed instance is forgotten once its pod is gone and the synchronous rule does without it.\n\
           - Its claims are deleted if storage.retentionPolicy.whenScaled says so, and an instance that stays has its data on a claim that stays.",
    protocol: &[10],
    kind: RuleKind::Act,
    decide: removed_members,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_STAYING: Rule = Rule {
    name: "await-staying",
    family: "scaling",
    what: "An instance that has to go and serves stays while one that has to stay does not serve; the status says how that one can be made anew.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_staying,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_SCALE: Rule = Rule {
    name: "await-scale",
    family: "scaling",
    what: "Scaling waits while no primary serves, while commits wait for an instance that goes, or while a new instance would take a foreign claim.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_scale,
    on_backoff: OnBackoff::Hold,
};

/// How many instances there can be now: as wanted, but not without the primary, or who was it last, and none less while
/// none serves.
fn possible(facts: &Facts<'_>, set: &StatefulSetView) -> u32 {
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
    let exact = ObjectVersion::new(facts.wanted.name, &set.uid, &set.resource_version);
    let how = ApplyHow::Change(exact);
    let because = format!(
        "StatefulSet {} has {} replicas and can have {replicas}",
        facts.wanted.name, set.replicas
    );
    let apply = Apply {
        kind: OwnedObject::StatefulSet,
        how,
        replicas: Some(replicas),
        wal: None,
    };
    Proposal::act(Step::Scaling, Action::Apply(apply), because)
}

/// A scale-down to so many would keep an instance that does not serve and take one that does: both of them. A StatefulSet
/// drops its highest ordinals, whichever the broken one is.
fn loses(facts: &Facts<'_>, set: &StatefulSetView, replicas: u32) -> Option<(u32, u32)> {
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
    let key = WaitKey::pod(WaitReason::RemainingMember, &stays);
    let what = format!("{stays}, which is to stay, to serve, before {goes} goes, which does");
    if fenced::is_fenced(facts, &stays) {
        let wait = Proposal::wait(facts, Step::Scaling, key, what, "the user, by changing spec.fenced")?;
        return Some(wait.by(WaitActor::User));
    }
    let fault = pod.and_then(|pod| facts.report(pod)?.fault.as_ref());
    let (actor, who) = match pod {
        None => (WaitActor::Kubernetes, "the StatefulSet controller".to_owned()),
        Some(pod) if pod.terminating => (WaitActor::Kubernetes, remover(pod)),
        Some(pod) if pod.never_ran() => {
            let lack = lacks(pod);
            (lack.actor, format!("{}: {}", lack.who, lack.what))
        }
        Some(_) => {
            let agent = fault.map_or("its agent".to_owned(), |fault| format!("its agent ({fault})"));
            (WaitActor::Agents, agent)
        }
    };
    let wal = pod.and_then(|pod| pod.wal_claim.as_ref());
    let wal = wal.map_or(String::new(), |wal| format!(" {wal}"));
    let who = format!(
        "{who}; or the user, who has it copied anew: kubectl delete pvc {}{wal} --wait=false && kubectl delete pod \
         {stays}; or by the number of before",
        facts.claim_name(Volume::Data, &stays)
    );
    Some(Proposal::wait(facts, Step::Scaling, key, what, who)?.by(actor))
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
            WaitKey::claim(WaitReason::ForeignClaimRemoval, &claim.name),
            what,
            "the user, by deleting the claim or by the number of before",
        );
    }
    if wanted < set.replicas && facts.primary().is_none() {
        let what = format!(
            "a primary that serves, to go from {} to {wanted} instances",
            set.replicas
        );
        return Proposal::wait(
            facts,
            Step::Scaling,
            WaitReason::PrimaryForScaleDown,
            what,
            "the agents",
        );
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
    let deletes = facts.wanted.spec.storage.retention_policy.when_scaled == VolumeFate::Delete;
    let Some((pod, ordinal, claim_uid)) = removed(facts) else {
        let claim = abandoned(facts).filter(|_| deletes)?;
        let because = format!(
            "nobody has used {}, and storage.retentionPolicy.whenScaled is Delete",
            claim.name
        );
        return Proposal::act(Step::Scaling, Action::DeleteClaim(exact_claim(claim)), because);
    };
    if deletes {
        let Some(claims) = facts.observed.claims.get() else {
            return Proposal::unread(facts, Step::Scaling, "the claims");
        };
        if let Some(claim) = claim_to_delete(facts, claims, ordinal, claim_uid) {
            let because = format!("{pod} was removed, and storage.retentionPolicy.whenScaled is Delete");
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
