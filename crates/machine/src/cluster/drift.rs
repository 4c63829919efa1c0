//! Objects: made in the order of [`OwnedObject`], put right when changed, and what is in the way of that.

mod lease;
mod lost;
mod stateful_set;

pub use lease::RECREATE_LEASE;
pub(super) use lease::{EMPTIED, PUT_RIGHT, last_primary, may_heal, recreated, refusal_to_recreate};
use lease::{if_not_healed, last_pod};
pub(super) use lost::{first_lost, is_emptied, lost, understood_by_nobody, way_back};
pub(super) use stateful_set::{
    STORAGE_CLASS_RECHECK, foreign_claim, may_make_stateful_set, returning, storage_class_fault,
};
use stateful_set::{is_identity_foreign, replicas};

use api::status::{WaitActor, WaitReason};

use super::action::{Action, Apply, ApplyHow};
use super::adoption;
use super::decision::Step;
use super::facts::{Facts, hibernation, wal};
use super::observed::OwnedState;
use super::owned::{OwnedObject, is_wanted};
use super::resting::resting;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use crate::reconcile::ObjectVersion;

/// See [`Rule::what`].
pub const CHILDREN: Rule = Rule {
    name: "children",
    family: "drift",
    what: "The first object, in the order of creation, that is missing or not as it should be is made or corrected.\n\
           - While an object is refused, those behind it have their turn, and so have the rules behind this one.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: children,
    on_backoff: OnBackoff::Yield,
};

/// See [`Rule::what`].
pub const BLOCKED: Rule = Rule {
    name: "blocked",
    family: "drift",
    what: "While an object is refused, lost, foreign, or could not be read, nothing that builds on it is changed.\n\
           - A database that exists builds neither on its Services for clients nor on its budgets: they are tried again, and everything else goes on.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: blocked,
    on_backoff: OnBackoff::Hold,
};

fn children(facts: &Facts<'_>) -> Option<Proposal> {
    let mut refused: Option<Proposal> = None;
    let mut again = None;
    for kind in OwnedObject::ALL {
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
fn refused(facts: &Facts<'_>, kind: OwnedObject) -> Option<Proposal> {
    resting(facts, &child(facts, kind)?.action)
}

/// What builds on this object has to wait for it.
fn holds_up(facts: &Facts<'_>, kind: OwnedObject) -> bool {
    if !is_wanted(facts.wanted.spec, kind) {
        return false;
    }
    let refused = refused(facts, kind).is_some();
    let spared = kind.owned().is_for_clients && facts.bootstrapped() && !hibernation::wanted(facts);
    // A StatefulSet that has to be made again, and could not be.
    let stuck = kind == OwnedObject::StatefulSet
        && matches!(facts.child(kind), Some(OwnedState::Drifted { immutable: true, .. }));
    if refused {
        !spared
    } else {
        stuck || !facts.exists(kind) || lost(facts, kind)
    }
}

/// Everything is there that a primary needs to hand over.
pub(super) fn may_hand_over(facts: &Facts<'_>) -> bool {
    OwnedObject::ALL
        .iter()
        .all(|kind| facts.exists(*kind) || !holds_up(facts, *kind))
}

fn child(facts: &Facts<'_>, kind: OwnedObject) -> Option<Proposal> {
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
        OwnedState::Current { .. } => None,
        OwnedState::Foreign { left, .. } => {
            facts.status.memo.adopted.as_ref()?;
            let left = left.as_ref().filter(|left| adoption::takes(facts, kind, left))?;
            let how = ApplyHow::Change(ObjectVersion::new(
                facts.child_name(kind),
                &left.uid,
                &left.resource_version,
            ));
            let action = Action::Apply(Apply {
                kind,
                how,
                replicas: None,
                wal: None,
            });
            Proposal::act(
                step,
                action,
                format!("{} was left by the database that is adopted", name()),
            )
        }
        OwnedState::Missing if may_make(facts, kind) => {
            let action = Action::Apply(Apply {
                kind,
                how: ApplyHow::Make,
                replicas: replicas(facts, kind),
                wal: replicas(facts, kind).map(|replicas| wal::of_new_set(facts, replicas)),
            });
            Proposal::act(step, action, format!("{} is missing", name()))
        }
        OwnedState::Damaged {
            uid,
            resource_version,
            what,
            ..
        } if may_make(facts, kind) => {
            let how = ApplyHow::Renew(ObjectVersion::new(facts.child_name(kind), uid, resource_version));
            let action = Action::Apply(Apply {
                kind,
                how,
                replicas: None,
                wal: None,
            });
            Proposal::act(step, action, format!("{} {what}", name()))
        }
        OwnedState::Missing | OwnedState::Damaged { .. } => None,
        OwnedState::Drifted {
            uid,
            resource_version,
            what,
            immutable,
        } => {
            if kind == OwnedObject::RoleBinding && is_identity_foreign(facts) {
                return None;
            }
            let exact = ObjectVersion::new(facts.child_name(kind), uid, resource_version);
            let because = format!("{} differs in {what}", name());
            if kind == OwnedObject::StatefulSet && *immutable {
                if !may_make_stateful_set(facts) {
                    return None;
                }
                return Proposal::act(step, Action::OrphanStatefulSet(exact), because);
            }
            if kind == OwnedObject::RoleBinding && *immutable {
                return Proposal::act(step, Action::DeleteChild(kind, exact), because);
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
fn unwanted(facts: &Facts<'_>, kind: OwnedObject, step: Step) -> Option<Proposal> {
    match facts.child(kind)? {
        OwnedState::Drifted {
            uid, resource_version, ..
        } => {
            let exact = ObjectVersion::new(facts.child_name(kind), uid, resource_version);
            let because = format!("{} {} is not wanted any more", kind.kind(), exact.name());
            Proposal::act(step, Action::DeleteChild(kind, exact), because)
        }
        OwnedState::Missing | OwnedState::Foreign { .. } | OwnedState::Current { .. } | OwnedState::Damaged { .. } => {
            None
        }
    }
}

/// Whether a missing object may be made.
fn may_make(facts: &Facts<'_>, kind: OwnedObject) -> bool {
    if lost(facts, kind) {
        return kind == OwnedObject::Lease && facts.missing(kind) && may_heal(facts);
    }
    if kind.owned().is_unique {
        // Whether it was made before shows in what is made after it.
        return facts.child(OwnedObject::StatefulSet).is_some() && facts.observed.pods.get().is_some();
    }
    (kind != OwnedObject::TlsSecret || facts.exists(OwnedObject::CaSecret))
        && (kind != OwnedObject::StatefulSet || may_make_stateful_set(facts))
        && (kind != OwnedObject::RoleBinding || !is_identity_foreign(facts))
}

/// The first object that belongs to somebody else.
pub(super) fn first_foreign<'a>(facts: &Facts<'a>) -> Option<(OwnedObject, &'a str)> {
    facts.wanted_children().find_map(|kind| match facts.child(kind)? {
        OwnedState::Foreign { left: Some(left), .. } if adoption::takes(facts, kind, left) => None,
        OwnedState::Foreign { why, .. } => Some((kind, why.as_str())),
        OwnedState::Missing | OwnedState::Current { .. } | OwnedState::Drifted { .. } | OwnedState::Damaged { .. } => {
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
    let kind = OwnedObject::ALL.into_iter().find(|kind| holds_up(facts, *kind))?;
    if let Some(rest) = refused(facts, kind) {
        return Some(rest);
    }
    let name = format!("{} {}", kind.kind(), facts.child_name(kind));
    let restoration = || WaitKey::child(facts, WaitReason::ObjectRestoration, kind);
    match facts.child(kind) {
        None => Proposal::unread(facts, step, name),
        Some(OwnedState::Foreign { why, left }) => {
            let what = format!("{name} to go away, which is {why}");
            let key = WaitKey::child(facts, WaitReason::ForeignObjectRemoval, kind);
            match left {
                None => Proposal::wait(facts, step, key, what, "its owner, or whoever deletes it"),
                Some(_) => {
                    let who = format!("the user: {}", adoption::ways_out(facts));
                    Some(Proposal::wait(facts, step, key, what, who)?.by(WaitActor::User))
                }
            }
        }
        _ if kind == OwnedObject::Lease && lost(facts, kind) && may_heal(facts) => {
            let pod = &last_pod(facts)?.name;
            let what = format!("{name} to be written again by {pod}, which serves and held it");
            let who = format!("the agent in pod {pod}; if it cannot: {}", if_not_healed(facts));
            let key = WaitKey::child(facts, WaitReason::LeaseRewrite, kind);
            Proposal::wait(facts, step, key, what, who)
        }
        Some(OwnedState::Damaged { what, .. }) if kind == OwnedObject::Lease => {
            Proposal::wait(facts, step, restoration(), format!("{name}, which {what}"), PUT_RIGHT)
        }
        _ if kind == OwnedObject::Lease && is_emptied(facts) => {
            Proposal::wait(facts, step, restoration(), format!("{name}, which is empty"), EMPTIED)
        }
        _ if lost(facts, kind) => {
            let what = format!("{name}, which is lost");
            Proposal::wait(facts, step, restoration(), what, way_back(kind))
        }
        _ => {
            if let Some(claim) = foreign_claim(facts, facts.wanted.replicas()) {
                let what = format!("claim {} to go away, which was made for another database", claim.name);
                return Proposal::wait(
                    facts,
                    step,
                    WaitKey::claim(WaitReason::ForeignClaimRemoval, &claim.name),
                    what,
                    "the user, by deleting the claim or by using another name",
                );
            }
            if storage_class_fault(facts).is_some() {
                let wake = facts.now + STORAGE_CLASS_RECHECK;
                let reason = WaitReason::StorageClassCreation;
                let proposal = Proposal::wait(facts, step, reason, "a StorageClass", "the cluster's administrator")?;
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
