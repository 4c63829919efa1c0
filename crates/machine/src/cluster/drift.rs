//! Objects: made in the order of [`ChildKind`], put right when changed, and what is in the way of that.

mod lease;
mod lost;
mod stateful_set;

pub use lease::RECREATE_LEASE;
pub(super) use lease::{EMPTIED, PUT_RIGHT, is_emptied, last_primary, may_heal, understood_by_nobody};
use lease::{if_not_healed, last_pod};
pub(super) use lost::{first_lost, lost, way_back};
use stateful_set::replicas;
pub(super) use stateful_set::{foreign_claim, may_make_stateful_set, returning, storage_class_fault};

use api::ClusteredDatabaseSpec;
use api::spec::NetworkPolicyMode;

use super::action::{Action, Apply, ApplyHow};
use super::decision::Step;
use super::facts::Facts;
use super::failure::resting;
use super::hibernation;
use super::observed::{ChildKind, ChildState};
use super::rule::{Proposal, Rule};
use super::wal;
use crate::reconcile::Exact;

/// See [`Rule::what`].
pub const CHILDREN: Rule = Rule {
    name: "children",
    family: "drift",
    what: "The first object, in the order of creation, that is missing or not as it should be is made or put right; while one is refused, those behind it have their turn, and so have the rules behind this one.",
    propose: children,
    passable: true,
};

/// See [`Rule::what`].
pub const BLOCKED: Rule = Rule {
    name: "blocked",
    family: "drift",
    what: "While an object is refused, lost, foreign or could not be read, nothing that builds on it is changed. A database that was made builds neither on its Services for clients nor on its budgets: they are tried again, and everything else goes on.",
    propose: blocked,
    passable: false,
};

fn children(facts: &Facts<'_>) -> Option<Proposal> {
    let mut refused: Option<Proposal> = None;
    let mut again = None;
    for kind in ChildKind::ALL {
        let Some(proposal) = child(facts, kind) else { continue };
        let Some(rest) = resting(facts, &proposal.action) else {
            return Some(proposal.looking_again_by(again));
        };
        again = [again, rest.wake].into_iter().flatten().min();
        refused = refused.or(Some(proposal));
    }
    Some(refused?.looking_again_by(again))
}

/// What is waited for while this object cannot be made or put right.
fn refused(facts: &Facts<'_>, kind: ChildKind) -> Option<Proposal> {
    resting(facts, &child(facts, kind)?.action)
}

/// Only clients, or who drains a node, go by this object: nothing that is decided here does.
const fn is_for_others(kind: ChildKind) -> bool {
    match kind {
        ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget
        | ChildKind::NetworkPolicy => true,
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::RoleBinding
        | ChildKind::CaSecret
        | ChildKind::TlsSecret
        | ChildKind::AppSecret
        | ChildKind::HeadlessService
        | ChildKind::EndpointSlice
        | ChildKind::Lease
        | ChildKind::StatefulSet => false,
    }
}

/// Whether the spec asks for this object. One that is there and is not wanted is deleted, if it is the database's own.
pub fn is_wanted(spec: &ClusteredDatabaseSpec, kind: ChildKind) -> bool {
    kind != ChildKind::NetworkPolicy || spec.network_policy.mode == NetworkPolicyMode::Managed
}

/// What builds on this object has to wait for it.
fn holds_up(facts: &Facts<'_>, kind: ChildKind) -> bool {
    if !is_wanted(facts.wanted.spec, kind) {
        return false;
    }
    let refused = refused(facts, kind).is_some();
    let spared = is_for_others(kind) && facts.bootstrapped() && !hibernation::wanted(facts);
    // A StatefulSet that has to be made again, and could not be.
    let stuck = kind == ChildKind::StatefulSet
        && matches!(facts.child(kind), Some(ChildState::Drifted { immutable: true, .. }));
    if refused {
        !spared
    } else {
        stuck || !exists(facts, kind) || lost(facts, kind)
    }
}

/// Everything is there that a primary needs to hand over.
pub(super) fn may_hand_over(facts: &Facts<'_>) -> bool {
    ChildKind::ALL
        .iter()
        .all(|kind| exists(facts, *kind) || !holds_up(facts, *kind))
}

fn child(facts: &Facts<'_>, kind: ChildKind) -> Option<Proposal> {
    let step = if facts.bootstrapped() {
        Step::Repair
    } else {
        Step::Objects
    };
    let name = || format!("{} {}", kind.kind(), facts.child_name(kind));
    if !is_wanted(facts.wanted.spec, kind) {
        return unwanted(facts, kind, step);
    }
    match facts.child(kind)? {
        ChildState::Current { .. } | ChildState::Foreign { .. } => None,
        ChildState::Missing if may_make(facts, kind) => {
            let action = Action::Apply(Apply {
                kind,
                how: ApplyHow::Make,
                replicas: replicas(facts, kind),
                wal: replicas(facts, kind).map(|replicas| wal::of_new_set(facts, replicas)),
            });
            Proposal::act(step, action, format!("{} is missing", name()))
        }
        ChildState::Damaged {
            uid,
            resource_version,
            what,
            ..
        } if may_make(facts, kind) => {
            let how = ApplyHow::Renew(Exact::new(facts.child_name(kind), uid, resource_version));
            let action = Action::Apply(Apply {
                kind,
                how,
                replicas: None,
                wal: None,
            });
            Proposal::act(step, action, format!("{} {what}", name()))
        }
        ChildState::Missing | ChildState::Damaged { .. } => None,
        ChildState::Drifted {
            uid,
            resource_version,
            what,
            immutable,
        } => {
            if kind == ChildKind::RoleBinding && is_identity_foreign(facts) {
                return None;
            }
            let exact = Exact::new(facts.child_name(kind), uid, resource_version);
            let because = format!("{} differs in {what}", name());
            if kind == ChildKind::StatefulSet && *immutable {
                if !may_make_stateful_set(facts) {
                    return None;
                }
                return Proposal::act(step, Action::OrphanStatefulSet(exact), because);
            }
            if kind == ChildKind::RoleBinding && *immutable {
                return Proposal::act(step, Action::DeleteRoleBinding(exact), because);
            }
            let how = ApplyHow::Change(exact);
            Proposal::act(
                step,
                Action::Apply(Apply {
                    kind,
                    how,
                    replicas: replicas(facts, kind),
                    wal: None,
                }),
                because,
            )
        }
    }
}

/// Takes away the database's own object that the spec asks for no longer.
fn unwanted(facts: &Facts<'_>, kind: ChildKind, step: Step) -> Option<Proposal> {
    match facts.child(kind)? {
        ChildState::Drifted {
            uid, resource_version, ..
        } => {
            let exact = Exact::new(facts.child_name(kind), uid, resource_version);
            let because = format!("{} {} is not wanted any more", kind.kind(), exact.name());
            Proposal::act(step, Action::DeleteNetworkPolicy(exact), because)
        }
        ChildState::Missing | ChildState::Foreign { .. } | ChildState::Current { .. } | ChildState::Damaged { .. } => {
            None
        }
    }
}

/// Whether a missing object may be made.
fn may_make(facts: &Facts<'_>, kind: ChildKind) -> bool {
    if lost(facts, kind) {
        return kind == ChildKind::Lease && facts.missing(kind) && may_heal(facts);
    }
    match kind {
        ChildKind::CaSecret | ChildKind::AppSecret | ChildKind::Lease => {
            // Whether it was made before shows in what is made after it.
            facts.child(ChildKind::StatefulSet).is_some() && facts.observed.pods.get().is_some()
        }
        ChildKind::TlsSecret => exists(facts, ChildKind::CaSecret),
        ChildKind::StatefulSet => may_make_stateful_set(facts),
        ChildKind::ServiceAccount
        | ChildKind::Role
        | ChildKind::HeadlessService
        | ChildKind::RwService
        | ChildKind::RoService
        | ChildKind::RService
        | ChildKind::EndpointSlice
        | ChildKind::PodDisruptionBudget
        | ChildKind::PrimaryBudget
        | ChildKind::NetworkPolicy => true,
        ChildKind::RoleBinding => !is_identity_foreign(facts),
    }
}

/// The agents' ServiceAccount or Role belongs to somebody else. Binding the two would give our agents foreign rights, or a
/// foreign account ours; pods would run as that account.
fn is_identity_foreign(facts: &Facts<'_>) -> bool {
    [ChildKind::ServiceAccount, ChildKind::Role]
        .into_iter()
        .any(|kind| matches!(facts.child(kind), Some(ChildState::Foreign { .. })))
}

/// It is there, and ours.
pub(super) fn exists(facts: &Facts<'_>, kind: ChildKind) -> bool {
    matches!(
        facts.child(kind),
        Some(ChildState::Current { .. } | ChildState::Drifted { .. })
    )
}

/// The first object that belongs to somebody else.
pub(super) fn first_foreign<'a>(facts: &Facts<'a>) -> Option<(ChildKind, &'a str)> {
    facts.wanted_children().find_map(|kind| match facts.child(kind)? {
        ChildState::Foreign { why } => Some((kind, why.as_str())),
        ChildState::Missing | ChildState::Current { .. } | ChildState::Drifted { .. } | ChildState::Damaged { .. } => {
            None
        }
    })
}

fn blocked(facts: &Facts<'_>) -> Option<Proposal> {
    let step = if facts.bootstrapped() {
        Step::Repair
    } else {
        Step::Objects
    };
    let kind = ChildKind::ALL.into_iter().find(|kind| holds_up(facts, *kind))?;
    if let Some(rest) = refused(facts, kind) {
        return Some(rest);
    }
    let name = format!("{} {}", kind.kind(), facts.child_name(kind));
    match facts.child(kind) {
        None => Proposal::unread(facts, step, name),
        Some(ChildState::Foreign { why }) => {
            let what = format!("{name} to go away, which is {why}");
            Proposal::wait(facts, step, what, "its owner, or whoever deletes it")
        }
        _ if kind == ChildKind::Lease && lost(facts, kind) && may_heal(facts) => {
            let pod = &last_pod(facts)?.name;
            let what = format!("{name} to be written again by {pod}, which serves and held it");
            let who = format!("the agent in pod {pod}; if it cannot: {}", if_not_healed(facts));
            Proposal::wait(facts, step, what, who)
        }
        Some(ChildState::Damaged { what, .. }) if kind == ChildKind::Lease => {
            Proposal::wait(facts, step, format!("{name}, which {what}"), PUT_RIGHT)
        }
        _ if kind == ChildKind::Lease && is_emptied(facts) => {
            Proposal::wait(facts, step, format!("{name}, which is empty"), EMPTIED)
        }
        _ if lost(facts, kind) => Proposal::wait(facts, step, format!("{name}, which is lost"), way_back(kind)),
        _ => {
            if let Some(claim) = foreign_claim(facts, facts.wanted.replicas()) {
                let what = format!("claim {} to go away, which was made for another database", claim.name);
                return Proposal::wait(
                    facts,
                    step,
                    what,
                    "the user, by deleting the claim or by using another name",
                );
            }
            if storage_class_fault(facts).is_some() {
                let wake = facts.now + super::failure::STORAGE_CLASS_RECHECK;
                let proposal = Proposal::wait(facts, step, "a StorageClass", "the cluster's administrator")?;
                return Some(proposal.looking_again(wake));
            }
            Proposal::unread(facts, step, format!("what {name} needs"))
        }
    }
}

#[cfg(test)]
mod fixtures;

#[cfg(test)]
mod tests;
