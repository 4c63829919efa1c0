//! The cluster machine, run by the operator: what to do next about one database.
//!
//! [`decide`] is total and deterministic and has no effect; it gives one [`Action`] at a time. Its input is what the user
//! wants ([`Wanted`]), what is observed ([`Observed`]), the status as it is stored, and the time. [`RULES`] are tried in
//! order; the first that proposes something decides. [`status`] computes the status that belongs to a decision, and
//! [`due`] says when it has to be written.
//!
//! How the executor uses it, once per change of anything observed and at [`Decision::wake`]:
//!
//! 1. observe, [`decide`];
//! 2. for [`StatusChange::SignCertificate`] read the claim once more and sign, then compute [`status`];
//! 3. write the status if it is [`StatusWrite::BeforeAction`] (always so for [`Action::WriteStatus`]), or if it has been
//!    [`StatusWrite::Debounced`] for that long; before the effect, because it holds what the effect relies on;
//! 4. carry out the action; a failure becomes a [`Fault`], a success takes that target's fault away;
//! 5. begin again with what is observed then (and not before the caches have seen the own write).

mod action;
mod adoption;
mod archive;
mod bootstrap;
pub mod budgets;
mod certificates;
mod claims;
mod consent;
mod controller;
mod creation;
mod decision;
mod delete_archive;
mod deletion;
mod drift;
mod drill;
mod durability;
mod facts;
mod failover;
mod failure;
mod fenced;
mod final_backup;
pub mod health;
mod hibernation;
mod idle;
mod image;
mod in_place;
mod internal;
mod loss;
mod members;
mod observed;
mod owned;
mod page;
mod phase;
mod quarantine;
mod recovery_source;
mod request;
mod resize;
mod restarts;
mod resting;
mod rollout;
mod room;
mod route;
mod rule;
mod scaling;
mod schedule;
mod snapshot;
mod status;
mod switchover;
mod wait_limit;
// A model for tests and plans: it looks for single actions.
#[allow(clippy::wildcard_enum_match_arm, reason = "it decides nothing")]
pub mod model;
mod stale_identity;
mod transitions;
mod volumes;
mod wait;
mod wal;
mod wal_claims;
mod wanted;

use api::ClusteredDatabaseStatus;
use chrono::{DateTime, TimeDelta, Utc};

pub use action::{Action, Apply, ApplyHow, DeletionStep, LeaseChange, PodMark, StatusChange};
pub use consent::password_refusal;
pub use controller::{Basis, Cluster};
pub use decision::{Because, Decision, Failure, Step};
pub use facts::Facts;
pub use failure::IMAGE_LIMIT;
pub use fenced::fence_of;
pub use image::image_in_use;
pub use internal::{InternalErrors, with_internal_error};
pub use observed::{
    AgentsCertificate, ApplicationTrust, AuthorityCertificate, Certificates, Children, Claim, DrillSeen, Fault,
    ForeignRoute, Growth, ImageError, Known, Left, MemberCertificate, Observed, OpenBackup, OwnedState, Pod, Resizing,
    Resources, SnapshotSeen, SourceSeen, StatefulSetView, StorageClass, Target, Trouble, Unreadable, Validity, Volume,
    WalVolumes,
};
pub use owned::{OWNED, Owned, OwnedObject, is_wanted};
pub use page::state_machine_page;
pub use phase::{briefly_away, ready, stored as stored_phase};
pub use resize::why_never_resized;
pub use route::foreign_route;
pub use rule::{OnBackoff, Proposal, Rule, RuleKind};
pub use snapshot::snapshots_to_read;
pub use stale_identity::mark_revoked;
pub use status::{due, status};
pub use transitions::{TRANSITIONS, may_follow};
pub use wait::{WaitKey, Waiting};
pub use wait_limit::{rests, wait_limit};
pub use wanted::Wanted;

pub use crate::reconcile::{FaultKind, ObjectVersion, StatusWrite};

/// All rules, the most important first. The last one always proposes something.
pub const RULES: &[Rule] = &[
    deletion::RELEASE_FINALIZER,
    final_backup::FINAL_BACKUP,
    delete_archive::DELETE_ARCHIVE,
    snapshot::SNAPSHOT,
    deletion::STOP,
    deletion::REMOVE_PODS,
    deletion::REMOVE_VOLUMES,
    deletion::FINISH,
    request::ACCEPT_LOSS,
    idle::PAUSED,
    creation::FINALIZER,
    members::LABEL_ROLES,
    members::RECORD,
    failure::INVALID_SPEC,
    certificates::RENEW,
    certificates::ROTATE,
    schedule::SCHEDULED_BACKUP,
    drill::DRILL,
    volumes::GROW,
    volumes::UPDATE,
    hibernation::WAKE,
    in_place::CHANGE_VOLUMES,
    hibernation::HIBERNATE,
    recovery_source::RECOVERY_SOURCE,
    snapshot::CLAIM_FROM_SNAPSHOT,
    adoption::ADOPT,
    drift::CHILDREN,
    wal::SETTLE,
    drift::RECREATE_LEASE,
    request::REQUEST,
    switchover::SWITCH_OVER,
    drift::BLOCKED,
    stale_identity::REPLACE_STALE_IDENTITY,
    hibernation::AWAIT_WAKING,
    rollout::REPLACE_IDLE,
    scaling::SCALE,
    fenced::ALL_FENCED,
    creation::AWAIT_DATABASE,
    failover::AWAIT_PRIMARY,
    scaling::REMOVED_MEMBERS,
    in_place::DISCARD_VOLUMES,
    wal_claims::REMOVE_CLAIM,
    wal_claims::MAKE_CLAIM,
    rollout::AWAIT_SETTLED,
    resize::RESIZE,
    rollout::REPLACE_SERVING,
    restarts::RESTART,
    request::AWAIT_REQUEST,
    scaling::AWAIT_STAYING,
    creation::AWAIT_STANDBYS,
    fenced::AWAIT_FENCED,
    wal_claims::AWAIT_VOLUME,
    rollout::AWAIT_SUPERVISOR,
    switchover::AWAIT_SWITCHOVER,
    rollout::AWAIT_ROLLOUT,
    restarts::AWAIT_SETTINGS,
    scaling::AWAIT_SCALE,
    durability::AWAIT_DURABILITY,
    claims::AWAIT_CLAIM,
    switchover::AWAIT_SCHEDULABLE_STANDBY,
    volumes::AWAIT_GROWTH,
    volumes::AWAIT_EXPANDABLE,
    idle::IDLE,
];

/// A database is looked at again after this long, even if nothing happens.
const RECHECK: TimeDelta = TimeDelta::minutes(2);

/// What to do next about one database. `stored` is the status as it is stored.
pub fn decide(
    wanted: &Wanted<'_>,
    observed: &Observed,
    stored: &ClusteredDatabaseStatus,
    now: DateTime<Utc>,
) -> Decision {
    let facts = Facts::new(wanted, observed, stored, now);
    let (rule, mut proposal) = choose(&facts);
    let (phase, failure) = phase::after(&facts, failure::failure(&facts), &proposal.action);
    let recheck = now + RECHECK;
    let wakes = [
        Some(recheck),
        proposal.wake.map(|wake| wake.max(now)),
        failure::next_deadline(&facts),
        phase::briefly_away(&facts),
        route::lasts_at(&facts),
        schedule::next_time(&facts),
        drill::next_time(&facts),
        in_place::expires_at(&facts),
        snapshot::next_look(&facts),
        wait_limit::bound(&facts, &mut proposal.action, phase, proposal.step),
    ];
    Decision {
        phase,
        step: proposal.step.filter(|_| phase != api::Phase::Ready),
        action: proposal.action,
        rule: rule.name,
        because: proposal.because,
        failure,
        wake: wakes.into_iter().flatten().min().unwrap_or(recheck),
    }
}

/// The first rule that proposes something, with its proposal: the rest after a failure, if that action has to rest. What
/// rests and was passed over is tried again in time all the same.
fn choose(facts: &Facts<'_>) -> (&'static Rule, Proposal) {
    let mut passed = None;
    let mut again = None;
    for rule in RULES {
        let Some(proposal) = (rule.decide)(facts) else {
            continue;
        };
        let Some(rest) = resting::resting(facts, &proposal.action) else {
            if rule.name == idle::IDLE.name {
                continue;
            }
            return (rule, proposal.looking_again_by(again));
        };
        let sooner = proposal.wake.filter(|wake| *wake > facts.now);
        again = [again, sooner, rest.wake].into_iter().flatten().min();
        if rule.on_backoff == OnBackoff::Hold {
            return (rule, rest.looking_again_by(again));
        }
        passed = passed.or(Some((rule, rest)));
    }
    let (rule, proposal) = passed.unwrap_or_else(|| (&idle::IDLE, idle::rest(facts)));
    (rule, proposal.looking_again_by(again))
}
