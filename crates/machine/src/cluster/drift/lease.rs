//! The Lease: when a lost one is made again, for whom, and what ends the wait for it.

use std::collections::BTreeSet;

use api::status::MemberRole;

use super::super::action::Action;
use super::super::decision::Step;
use super::super::durability;
use super::super::facts::Facts;
use super::super::observed::{ChildKind, ChildState, Known, Pod};
use super::super::rule::{Proposal, Rule};
use super::{lost, way_back};
use crate::protocol::{Epoch, LeaseRecord, MemberId, Timeline, accepted_loss};
use crate::quorum::SyncRule;

/// See [`Rule::what`].
pub const RECREATE_LEASE: Rule = Rule {
    name: "recreate-lease",
    family: "drift",
    what: "A lost Lease is made again only on the user's word (annotation with the resource's UID), for the member that held it last.",
    propose: recreate_lease,
    passable: false,
};

/// The Lease says nothing, and it did before: somebody has emptied it, or it is in the place of one that is lost.
pub(in crate::cluster) fn is_emptied(facts: &Facts<'_>) -> bool {
    let found = facts.observed.lease.get().and_then(Option::as_ref);
    facts.bootstrapped() && found.is_some_and(LeaseRecord::is_empty)
}

/// The last primary may prove that it still holds the lost Lease, and write it again (`instance::restore`): it is ready, and commits wait
/// for standbys. An order of the user goes first. The operator only makes the object, empty: that gives nobody any right.
pub(in crate::cluster) fn may_heal(facts: &Facts<'_>) -> bool {
    let accepted = facts
        .wanted
        .accept_loss
        .and_then(|said| accepted_loss(said, facts.wanted.uid));
    let accepts = accepted.is_some_and(|epoch| facts.status.epoch.is_none_or(|seen| epoch.0 >= seen));
    let ordered = facts.wanted.recreate_lease == Some(facts.wanted.uid) || accepts;
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

/// What is wrong with a Lease that is there: agents act on it as little as the operator, and the primary stops.
pub(in crate::cluster) fn understood_by_nobody<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    match facts.child(ChildKind::Lease)? {
        ChildState::Damaged { what, .. } => Some(what),
        ChildState::Missing | ChildState::Current { .. } | ChildState::Drifted { .. } | ChildState::Foreign { .. } => {
            None
        }
    }
}

fn recreate_lease(facts: &Facts<'_>) -> Option<Proposal> {
    let gone = lost(facts, ChildKind::Lease) && facts.observed.lease == Known::Known(None);
    if !gone || facts.wanted.recreate_lease != Some(facts.wanted.uid) {
        return None;
    }
    let (member, system_id) = last_primary(facts)?;
    let epoch = Epoch::new(facts.status.epoch?).ok()?.next()?;
    let because = format!("the Lease is lost, and its annotation asks for a new one for {member}, the last primary");
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
pub(in crate::cluster) const EMPTIED: &str = "the user, by deleting the empty Lease, and by the annotation \
                                  clustereddatabase.io/recreate-lease with the UID of this ClusteredDatabase";

/// The way back from a Lease that its holder does not write again.
pub(super) fn if_not_healed(facts: &Facts<'_>) -> &'static str {
    match understood_by_nobody(facts) {
        Some(_) => PUT_RIGHT,
        None if is_emptied(facts) => EMPTIED,
        None => way_back(ChildKind::Lease),
    }
}

#[cfg(test)]
mod tests;
