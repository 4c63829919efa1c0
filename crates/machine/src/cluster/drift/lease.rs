//! The Lease: when a lost one is made again, for whom, and what ends the wait for it.

use std::collections::BTreeSet;

use api::status::{MemberRole, RequestOutcome};

use super::super::action::Action;
use super::super::decision::Step;
use super::super::durability;
use super::super::facts::{Facts, request};
use super::super::observed::{Known, Pod};
use super::super::owned::OwnedObject;
use super::super::rule::{OnBackoff, Progress, Proposal, Rule, RuleKind};
use super::lost::{is_emptied, lost, understood_by_nobody, way_back};
use crate::protocol::{Epoch, MemberId, Timeline};
use crate::quorum::SyncRule;

/// See [`Rule::what`].
pub const RECREATE_LEASE: Rule = Rule {
    name: "recreate-lease",
    family: "drift",
    what: "A lost Lease is made again only on the user's word (an operation), for the member that held it last.",
    protocol: &[18],
    kind: RuleKind::Act,
    decide: recreate_lease,
    on_backoff: OnBackoff::Hold,
};

/// The last primary may prove that it still holds the lost Lease, and write it again (`instance::restore`): it is ready, and commits wait
/// for standbys. An order of the user goes first. The operator only makes the object, empty: that gives nobody any right.
pub(in crate::cluster) fn may_heal(facts: &Facts<'_>) -> bool {
    let accepted = facts.status.intent.accept_loss;
    let accepts = accepted.is_some_and(|epoch| facts.status.epoch.is_none_or(|seen| epoch >= seen));
    let ordered = request::asks_for_a_lease(facts) || accepts;
    durability::wanted(facts).standbys > 0 && !ordered && last_pod(facts).is_some()
}

/// The last primary's pod, if it is ready.
pub(super) fn last_pod<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    last_primary(facts)?;
    let is_last = |pod: &&Pod| {
        let member = facts.member(pod);
        member.is_some_and(|member| member.role == Some(MemberRole::Primary))
    };
    let found = facts.pods().iter().find(is_last)?;
    (found.ready && !found.terminating).then_some(found)
}

fn recreate_lease(facts: &Facts<'_>) -> Option<Proposal> {
    let gone = lost(facts, OwnedObject::Lease) && facts.observed.lease == Known::Known(None);
    if !gone || !request::asks_for_a_lease(facts) {
        return None;
    }
    let (member, system_id) = last_primary(facts)?;
    let epoch = Epoch::new(facts.status.epoch?).ok()?.next()?;
    let because = format!("the Lease is lost, and an operation asks for a new one for {member}, the last primary");
    let members = facts.status.members.values();
    let others: BTreeSet<_> = members
        .filter_map(|found| MemberId::parse(found.member_id.as_deref()?))
        .filter(|other| *other != member)
        .collect();
    let required = usize::from(!others.is_empty());
    let timeline = facts.status.timeline.map(Timeline);
    let lossy = timeline.unwrap_or(Timeline(1)).next()?;
    let action = Action::RecreateLease {
        member,
        epoch,
        system_id,
        rule: SyncRule::any(required, others),
        timeline,
        lossy,
    };
    Proposal::act(Step::Repair, action, because)
}

/// Why a Lease is not made again, if it is not; `None` while that is not known.
pub(in crate::cluster) fn refusal_to_recreate(facts: &Facts<'_>) -> Option<Option<String>> {
    let name = facts.wanted.name;
    if facts.lease.is_some() {
        return Some(Some(format!(
            "Lease {name} is there: it is made again only where it is lost"
        )));
    }
    if facts.observed.lease.get().is_none() && understood_by_nobody(facts).is_none() {
        return None;
    }
    let nobody = format!("who held Lease {name} last is not on record: it cannot be made again safely");
    Some(last_primary(facts).is_none().then_some(nobody))
}

/// What becomes of an operation that asks for a lost Lease: it is done when there is one. An empty one has to be deleted first.
pub(in crate::cluster) fn recreated(facts: &Facts<'_>) -> Option<Progress> {
    let epoch = facts.lease?.epoch.0;
    let why = format!("Lease {} is there again, in epoch {epoch}", facts.wanted.name);
    Some(Progress::Ends(RequestOutcome::Done, why))
}

/// The member that the status names as the last primary, with the system identifier of its data.
pub(in crate::cluster) fn last_primary(facts: &Facts<'_>) -> Option<(MemberId, String)> {
    let mut primaries = facts
        .status
        .members
        .values()
        .filter(|member| member.role == Some(MemberRole::Primary));
    let (one, None) = (primaries.next()?, primaries.next()) else {
        return None;
    };
    Some((
        MemberId::parse(one.member_id.as_deref()?)?,
        facts.status.system_identifier.clone()?,
    ))
}

/// The way back from a Lease that cannot be understood.
pub(in crate::cluster) const PUT_RIGHT: &str = "the user, by putting the annotation right (kubectl edit lease), after which everything \
                                    goes on by itself; or, where nobody knows what it was, by deleting the Lease, after which \
                                    it is said how it is made again";

/// The way back from a Lease that is empty.
pub(in crate::cluster) const EMPTIED: &str = "the user, by kubectl cdb recreate-lease with the name of this ClusteredDatabase, \
                                  and by deleting the empty Lease then";

/// The way back from a Lease that its holder does not write again.
pub(super) fn if_not_healed(facts: &Facts<'_>) -> &'static str {
    match understood_by_nobody(facts) {
        Some(_) => PUT_RIGHT,
        None if is_emptied(facts) => EMPTIED,
        None => way_back(OwnedObject::Lease),
    }
}

#[cfg(test)]
mod tests;
