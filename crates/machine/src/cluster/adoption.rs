//! `spec.bootstrap.volumes`: a database that takes over what a deleted one of its name has left. The Lease goes first, and
//! with it who was primary last, which members there were and what commits waited for: from there on it is as if the
//! database had been stopped and its status lost.

use std::collections::BTreeSet;

use api::names::parse_claim;
use api::spec::NEWEST;
use api::status::WaitReason;

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::{Facts, exact_claim, list};
use super::observed::{Claim, Known, Left, OwnedState, Volume};
use super::owned::OwnedObject;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use crate::protocol::{LeaseRecord, MemberId};

/// See [`Rule::what`].
pub const ADOPT: Rule = Rule {
    name: "adopt",
    family: "adoption",
    what: "With spec.bootstrap.volumes, what a deleted database of this name has left becomes this one's: first by record, then the Secrets, the Lease and the claims.\n\
           - Nothing is made or changed while the Lease is missing, is another database's, or does not fit the spec.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: adopt,
    on_backoff: OnBackoff::Hold,
};

/// What the deleted database has left of this kind.
fn left<'a>(facts: &Facts<'a>, kind: OwnedObject) -> Option<&'a Left> {
    match facts.child(kind)? {
        OwnedState::Foreign { left, .. } => left.as_ref(),
        OwnedState::Missing | OwnedState::Current { .. } | OwnedState::Drifted { .. } | OwnedState::Damaged { .. } => {
            None
        }
    }
}

/// UID of the deleted database whose volumes this one takes over, or is about to.
pub(super) fn former<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let recorded = facts.status.memo.adopted.as_deref();
    recorded.or_else(|| judged(facts)?.ok().map(|found| found.by))
}

/// Why nothing can be taken over, if that is asked for.
pub(super) fn refusal(facts: &Facts<'_>) -> Option<String> {
    judged(facts)?.err()
}

/// What is to be taken over.
struct Found<'a> {
    by: &'a str,
    lease: &'a LeaseRecord,
    claims: Vec<&'a Claim>,
}

/// What is to be taken over, or why nothing can be; `None` if that is not asked for, is recorded already, or is not known.
fn judged<'a>(facts: &Facts<'a>) -> Option<Result<Found<'a>, String>> {
    let asked = facts.wanted.spec.bootstrap.as_ref()?.volumes.as_ref()?;
    if facts.status.memo.adopted.is_some() || facts.status.system_identifier.is_some() {
        return None;
    }
    let name = facts.child_name(OwnedObject::Lease);
    let state = facts.child(OwnedObject::Lease)?;
    let Some(left) = left(facts, OwnedObject::Lease) else {
        // Somebody else's Lease is told as such; and with this database's own, it was made before.
        let is_told = matches!(state, OwnedState::Foreign { .. }) || facts.bootstrapped();
        return (!is_told).then(|| {
            Err(format!(
                "spec.bootstrap.volumes: no deleted database has left a Lease {name}, without which nobody can tell which volume has \
                 everything: take spec.bootstrap.volumes away for a new database{}",
                from_backup(facts, None)
            ))
        });
    };
    if asked.adopt != NEWEST && asked.adopt != left.by {
        return Some(Err(format!(
            "spec.bootstrap.volumes: the deleted database that has left Lease {name} has UID {}, and not {}: correct adopt, or set \
             it to {NEWEST}",
            left.by, asked.adopt
        )));
    }
    let Known::Known(Some(lease)) = &facts.observed.lease else {
        return Some(Err(format!(
            "spec.bootstrap.volumes: Lease {name}, which the deleted database {} has left, cannot be understood: put its \
             annotations right",
            left.by
        )));
    };
    let claims = facts.observed.claims.get()?;
    let claims = claims
        .iter()
        .filter(|claim| claim.cluster_uid.as_deref() == Some(&*left.by));
    let found = Found {
        by: &left.by,
        lease,
        claims: claims.collect(),
    };
    Some(unfit(facts, &found).map_or(Ok(found), Err))
}

/// Why this cannot become the database that the spec asks for.
fn unfit(facts: &Facts<'_>, found: &Found<'_>) -> Option<String> {
    if found.lease.system_id.is_none() || !found.claims.iter().any(|claim| claim.volume == Volume::Data) {
        let others = facts.claims().iter().filter_map(|claim| claim.cluster_uid.as_deref());
        let others: BTreeSet<_> = others.filter(|uid| *uid != found.by).collect();
        let what = match others.first() {
            None => format!(
                "take spec.bootstrap.volumes away for a new database{}",
                from_backup(facts, Some(found.by))
            ),
            Some(uid) => format!(
                "the claims of this name are of {uid}: if they belong to that Lease, label them {}={}",
                api::names::LABEL_CLUSTER_UID,
                found.by
            ),
        };
        return Some(format!(
            "spec.bootstrap.volumes: the deleted database {} has left a Lease, and no data: {what}",
            found.by
        ));
    }
    let release = found.lease.release.as_ref().map(|release| &release.member);
    let named = found
        .lease
        .rule
        .names
        .iter()
        .chain(release)
        .filter_map(MemberId::ordinal);
    let members = found.lease.members.keys().filter_map(|pod| facts.ordinal(pod));
    let needed = members
        .chain(named)
        .max()
        .map_or(1, |ordinal| ordinal.saturating_add(1));
    if facts.wanted.replicas() < needed {
        return Some(format!(
            "spec.bootstrap.volumes: the deleted database had instances up to {}-{}, any of which may have the last commits: set \
             replicas to at least {needed} until it serves again",
            facts.wanted.name,
            needed.saturating_sub(1)
        ));
    }
    let has_wal = found
        .claims
        .iter()
        .any(|claim| claim.volume == Volume::Wal && claim.had_volume);
    (has_wal && facts.wanted.spec.storage.wal.is_none()).then(|| {
        "spec.bootstrap.volumes: the deleted database had WAL volumes: set spec.storage.wal as it was".to_owned()
    })
}

/// What to do for a database that volumes cannot be taken from, if its backups may be in the store of the spec.
fn from_backup(facts: &Facts<'_>, uid: Option<&str>) -> String {
    if facts.wanted.spec.backup.is_none() {
        return String::new();
    }
    let uid = uid
        .and_then(|uid| uid.get(..8))
        .unwrap_or("<the first eight digits of its UID>");
    format!(
        "; or, if its backups are in the store of spec.backup, one that is recovered from them: spec.bootstrap.recovery.from with that \
         store and cluster: {}-{uid}",
        facts.wanted.name
    )
}

/// What can be done about what a deleted database has left.
pub(super) fn ways_out(facts: &Facts<'_>) -> String {
    // A database that was made needs nothing of it.
    if facts.status.system_identifier.is_some() {
        return format!(
            "delete it; or, if it is a copy of this database's own, label it {}={}",
            api::names::LABEL_CLUSTER_UID,
            facts.wanted.uid
        );
    }
    format!(
        "to have its data back, set spec.bootstrap.volumes.adopt to {NEWEST}; to give it up, kubectl delete \
         lease,secret,persistentvolumeclaim -l {}={}",
        api::names::LABEL_CLUSTER,
        facts.wanted.name
    )
}

fn adopt(facts: &Facts<'_>) -> Option<Proposal> {
    match judged(facts) {
        Some(Err(why)) => {
            let who = "the user, by changing spec.bootstrap.volumes or the spec";
            return Proposal::wait(facts, Step::Objects, WaitReason::SpecCorrection, why, who);
        }
        Some(Ok(found)) => {
            let action = Action::WriteStatus(vec![StatusChange::Adopt(
                found.by.to_owned(),
                found.lease.volume_set,
                found.lease.former_set,
            )]);
            return Proposal::act(Step::Objects, action, summary(&found));
        }
        None => {}
    }
    adopt_claims(facts)
}

/// Whether such volumes are asked for, or were.
fn is_asked(facts: &Facts<'_>) -> bool {
    let bootstrap = facts.wanted.spec.bootstrap.as_ref();
    facts.status.memo.adopted.is_some() || bootstrap.is_some_and(|bootstrap| bootstrap.volumes.is_some())
}

/// Whether a claim of this database becomes this one's, as far as that is known.
pub(super) fn takes_claim(facts: &Facts<'_>, of: Option<&str>) -> bool {
    is_asked(facts) && former(facts).is_none_or(|former| Some(former) == of)
}

/// Whether this object becomes this database's. The Lease must be of the very database; a Secret of this name may have been taken
/// over before by one that was deleted on the way.
pub(super) fn takes(facts: &Facts<'_>, kind: OwnedObject, left: &Left) -> bool {
    is_asked(facts) && (kind != OwnedObject::Lease || takes_claim(facts, Some(&left.by)))
}

/// The Lease is this database's, whatever its content.
pub(super) fn has_lease(facts: &Facts<'_>) -> bool {
    match facts.child(OwnedObject::Lease) {
        Some(OwnedState::Current { .. } | OwnedState::Drifted { .. } | OwnedState::Damaged { .. }) => true,
        Some(OwnedState::Missing | OwnedState::Foreign { .. }) | None => false,
    }
}

/// Claims in their turn, once the Lease is this database's.
pub(super) fn adopt_claims(facts: &Facts<'_>) -> Option<Proposal> {
    let former = facts.status.memo.adopted.as_deref()?;
    if !has_lease(facts) {
        return None;
    }
    let mut claims = facts.claims().iter().chain(&facts.observed.other_claims);
    let claim = claims.find(|claim| claim.cluster_uid.as_deref() == Some(former) && !claim.terminating)?;
    let because = format!("claim {} was left by the database that is adopted", claim.name);
    Proposal::act(Step::Objects, Action::AdoptClaim(exact_claim(claim)), because)
}

/// Which members come back, where their WAL ended in their last reports, and which have no volume any more.
fn summary(found: &Found<'_>) -> String {
    let is_of = |claim: &Claim, pod: &str| {
        claim.volume == Volume::Data && parse_claim(&claim.name).is_some_and(|(_, _, of)| of == pod)
    };
    let has = |pod: &&String| found.claims.iter().any(|claim| is_of(claim, pod));
    let (there, missing): (Vec<_>, Vec<_>) = found.lease.members.keys().partition(has);
    let described = there.into_iter().map(|pod| match found.lease.positions.get(pod) {
        Some(position) => format!("{pod} (WAL to {} on timeline {})", position.lsn, position.timeline.0),
        None => pod.clone(),
    });
    let described: Vec<_> = described.collect();
    let mut text = format!(
        "the deleted database {} of this name comes back: {}",
        found.by,
        list(described.iter().map(String::as_str))
    );
    if !missing.is_empty() {
        let names = list(missing.into_iter().map(String::as_str));
        text.push_str(&format!("; without a volume: {names}"));
    }
    text
}

#[cfg(test)]
mod tests;
