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
