//! The instance machine: decides what an agent does with the PostgreSQL in its pod.
//!
//! [`decide`] handles every input and has no effects. It goes through [`RULES`] in order, and the first that applies
//! decides. Running tasks are part of [`Observed`], so a decision rule never starts a second task of a class, and the
//! fence and the lease go on during long tasks. Only the Lease decides who is primary.

mod action;
pub mod archive;
mod asking;
pub mod backup;
mod bootstrap;
mod checkpoint;
mod copying;
mod crash;
mod draft;
mod durability;
pub mod election;
mod facts;
pub mod failsafe;
pub mod fence;
mod fenced;
mod handover;
pub mod heard;
mod identity;
mod impostors;
mod kept;
mod keys;
mod lease_rules;
mod loss;
mod lost;
mod members;
mod memo;
mod observed;
pub mod observer;
mod own;
mod primary;
mod recovery;
mod rejoin;
pub mod report;
mod restore;
mod room;
mod rule;
mod senders;
mod settings;
mod shutdown;
mod stale;
mod stalled;
mod standby;
mod step_down;
pub mod steps;
mod stopping;
mod successors;
mod waiting;

#[cfg(test)]
mod ballots;
#[cfg(test)]
mod exploration;
#[cfg(test)]
mod extremes;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;

use std::borrow::Cow;

pub use action::{Action, Purpose, Stop};
pub use facts::Tenure;
pub use impostors::{WalSender, impostors, receiving, standbys};
pub use keys::Proven;
pub use memo::{Attempt, Copied, Ended, Fetched, Memo, MissingWal, Rewound, Stalled, Stopping, Wish};
pub use observed::*;
pub use primary::is_route_forged;
pub use rule::{OnBackoff, Rule, RuleKind};

use crate::timing::BootTime;
use draft::Draft;
use facts::Context;
use rule::Verdict;

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Name of the decision rule that made it.
    pub rule: &'static str,
    /// The one thing to do.
    pub action: Action,
    /// Why, as text.
    pub because: Cow<'static, str>,
    /// Decide again at this time, if nothing happens before.
    pub wake: Option<BootTime>,
    /// When the dead-man must kill everything by itself; `None`: never. It must be set before the action begins.
    pub dead_man: Option<BootTime>,
    /// The memory for the next decision.
    pub memo: Memo,
}

/// The decision rules, most urgent first.
pub const RULES: &[Rule] = &[
    fence::FENCE,
    fence::STOP_PROMOTED,
    crash::KILL_STRAYS,
    step_down::STEP_DOWN,
    lease_rules::RENEW,
    restore::RESTORE_LEASE,
    failsafe::ASK_FAILSAFE,
    impostors::END_IMPOSTORS,
    shutdown::SHUT_DOWN,
    shutdown::HAND_OVER,
    identity::CREATE_MEMBER,
    identity::STORE_CERTIFICATE,
    fenced::STAY_FENCED,
    lease_rules::TAKE,
    election::PROMISE,
    election::WIN_ELECTION,
    election::ASK,
    stale::READ_LEASE,
    bootstrap::GIVE_UP,
    bootstrap::DISCARD_STAGING,
    bootstrap::TAKE_SNAPSHOT,
    bootstrap::INITDB,
    primary::PROMOTE,
    primary::RESERVE_AGAIN,
    primary::START_TO_PROMOTE,
    primary::START_PRIMARY,
    durability::OPEN,
    primary::ROUTE,
    primary::ADMIT,
    durability::CHANGE_RULE,
    primary::DROP_SLOTS,
    copying::CANCEL_COPY,
    rejoin::STOP_DIVERGED,
    standby::STOP_STRANDED,
    standby::STOP_TORN,
    rejoin::REWIND,
    standby::CLONE,
    standby::START_STANDBY,
    standby::LEAVE_FORMER_PRIMARY,
    settings::RESTART,
    settings::CONFIGURE,
    stalled::FOLLOW_AGAIN,
    kept::DISCARD_KEPT,
    report::REPORT,
    waiting::WAIT,
];

/// Decides what to do next.
pub fn decide(observed: &Observed, memo: &Memo, now: BootTime) -> Decision {
    let context = Context::new(observed, now);
    let memo = remember(&context, memo.clone());
    let mut draft = Draft::new(&memo);
    let (rule, verdict) = choose(&context, &mut draft);
    let Verdict {
        action,
        because,
        changes,
    } = verdict;
    let dead_man = fence::dead_man(&context, &action);
    if let Some(deadline) = context
        .fence_at()
        .filter(|deadline| context.writable() && now < *deadline)
    {
        draft.wake(deadline);
    }
    Decision {
        rule,
        action,
        because,
        wake: draft.wake,
        dead_man,
        memo: memo.with(changes),
    }
}

/// The first decision rule that applies, with its verdict.
fn choose(context: &Context, draft: &mut Draft) -> (&'static str, Verdict) {
    let made = RULES
        .iter()
        .find_map(|rule| Some((rule.name, (rule.decide)(context, draft)?)));
    made.unwrap_or_else(|| (waiting::WAIT.name, Verdict::of(Action::Wait, "nothing is to be done")))
}

/// Brings the memory up to date with what is observed, before any decision rule is asked.
fn remember(context: &Context, memo: Memo) -> Memo {
    let mut memo = crash::count(context.observed, memo);
    let held = matches!(context.tenure(), Tenure::Held { .. });
    memo.holding_since = held.then(|| memo.holding_since.unwrap_or(context.now));
    if !context.alive() {
        memo.stopping = None;
        memo.ended = None;
    }
    if context.observed.terminating {
        memo.terminating_since = memo.terminating_since.or(Some(context.now));
    }
    election::remember(context, &mut memo);
    loss::remember(context, &mut memo);
    step_down::remember(context, &mut memo);
    handover::remember(context, &mut memo);
    rejoin::remember(context, &mut memo);
    copying::remember(context, &mut memo);
    stalled::remember(context, &mut memo);
    settings::remember(context, &mut memo);
    durability::remember(context, &mut memo);
    election::remember_tie(context, &mut memo);
    backup::remember(context, &mut memo);
    memo
}
