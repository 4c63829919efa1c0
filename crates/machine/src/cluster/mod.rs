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
//! 2. for [`StatusChange::SignCertificate`] sign, then compute [`status`];
//! 3. write the status if it is [`Due::Now`] (always so for [`Action::WriteStatus`]), or if it has been
//!    [`Due::Within`] for that long; before the effect, because it holds what the effect relies on;
//! 4. carry out the action; a failure becomes a [`Fault`], a success takes that target's fault away;
//! 5. begin again with what is observed then (and not before the caches have seen the own write).

mod action;
mod creation;
mod decision;
mod facts;
mod observed;
mod rule;
mod status;
mod wanted;

use api::{ClusteredDatabaseStatus, Phase};
use chrono::{DateTime, TimeDelta, Utc};

pub use action::{Action, Apply, ApplyHow, DeletionStep, Exact, StatusChange, Waiting};
pub use decision::{Because, Decision, Failure, Step};
pub use facts::Facts;
pub use observed::{
    ChildKind, ChildState, Children, Claim, Fault, FaultKind, ImageError, Known, Observed, Pod, SetFacts, StorageClass,
    Target, Volume,
};
pub use rule::{Proposal, Rule};
pub use status::{Due, due, status};
pub use wanted::Wanted;

/// All rules, the most important first.
pub const RULES: &[Rule] = &[creation::FINALIZER];

/// A database is looked at again after this long, even if nothing happens.
const RECHECK: TimeDelta = TimeDelta::minutes(2);

/// What to do next about one database. `status` is the status as it is stored.
pub fn decide(
    wanted: &Wanted<'_>,
    observed: &Observed,
    status: &ClusteredDatabaseStatus,
    now: DateTime<Utc>,
) -> Decision {
    let facts = Facts::new(wanted, observed, status, now);
    for rule in RULES {
        if let Some(Proposal { step, action, because }) = (rule.propose)(&facts) {
            return Decision {
                phase: Phase::Creating,
                step,
                action,
                rule: rule.name,
                because,
                failure: None,
                wake: now + RECHECK,
            };
        }
    }
    let waiting = Waiting {
        what: "a change".into(),
        since: now,
        who_can_end_it: "the user".into(),
        deadline: None,
        resting: true,
    };
    Decision {
        phase: status.phase.unwrap_or_default(),
        step: None,
        action: Action::Wait(waiting),
        rule: "rest",
        because: "everything is as it should be".into(),
        failure: None,
        wake: now + RECHECK,
    }
}
