//! The instance machine: what one agent does about the one PostgreSQL in its pod.
//!
//! [`decide`] is total and has no effects. [`RULES`] are asked in order and the first that applies decides; what is in
//! flight is part of [`Observed`], so that a rule never starts a second task of a class, while the fence and the lease
//! go on during long ones. Who is primary comes from the Lease alone.

mod action;
mod asking;
mod bootstrap;
mod checkpoint;
mod context;
mod copying;
mod crash;
mod durability;
pub mod election;
pub mod failsafe;
pub mod fence;
mod fenced;
mod give_way;
mod handover;
pub mod heard;
mod identity;
mod impostors;
mod kept;
mod keys;
mod lease_rules;
mod lineage;
mod loss;
mod lost;
mod members;
mod observed;
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
use std::collections::{BTreeMap, BTreeSet};

pub use action::{Action, Purpose, Stop};
pub use context::Tenure;
pub use copying::Copied;
pub use handover::Wish;
pub use impostors::{Doubt, Impostor, WalSender, impostors, receiving, standbys};
pub use keys::Proven;
pub use lost::{LeaseVersion, Lost};
pub use observed::*;
pub use primary::is_route_forged;
pub use rejoin::{MissingWal, Rewound};
pub use rule::Rule;
pub use senders::Ended;
pub use stalled::Stalled;

use crate::protocol::{Epoch, MemberId, Position};
use crate::timing::BootTime;
use context::Context;
use rule::{Draft, Verdict};

/// What must be remembered from one decision to the next. Empty in a new run of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memo {
    /// PostgreSQL was asked to stop, and is not gone yet.
    pub stopping: Option<Stopping>,
    /// The WAL senders that were ended meanwhile.
    pub ended: Option<Ended>,
    /// When impostors were ended last.
    pub impostors_ended: Option<BootTime>,
    /// Since when the lease has been held without a gap.
    pub holding_since: Option<BootTime>,
    /// Unexpected ends of PostgreSQL in a row, each within a minute of its start.
    pub crashes: u32,
    /// The end that was counted last.
    pub last_exit: Option<BootTime>,
    /// Settings for which PostgreSQL was restarted in place and which still wait for a restart; once is enough.
    pub restarted_for: Option<String>,
    /// The members whose slots were kept when slots were dropped last.
    pub kept: Option<BTreeSet<MemberId>>,
    /// When the container was first seen to be asked to end.
    pub terminating_since: Option<BootTime>,
    /// When the lease was handed back then, to a successor.
    pub left: Option<BootTime>,
    /// Since when the holder of which epoch has been suspected.
    pub suspected: Option<(Epoch, BootTime)>,
    /// Since when this member could have taken the lease, but for another that has as much WAL and comes before it, in which epoch.
    pub tied: Option<(Epoch, BootTime)>,
    /// Since when a loss has been accepted, in which epoch.
    pub accepted_loss: Option<(Epoch, BootTime)>,
    /// Since when this holder has not been able to write.
    pub unable_since: Option<BootTime>,
    /// Where all WAL ended that this holder came with: it has not been started or promoted for writing since, and nothing was acknowledged.
    pub inherited: Option<Position>,
    /// It gives way, in this epoch.
    pub gives_way: Option<Epoch>,
    /// When it last did.
    pub gave_way: Option<BootTime>,
    /// The holder before this one could not write; when that was seen last, or since then this one's own writes were late.
    pub relieves: Option<BootTime>,
    /// The wanted primary.
    pub wished: Option<Wish>,
    /// The pod to which the lease is being handed over.
    pub handing_over: Option<String>,
    /// The epoch in which that was seen last.
    pub handing_in: Option<Epoch>,
    /// When a handover was last begun.
    pub handed_over: Option<BootTime>,
    /// Since when the primary of which epoch has been promoted and does not serve yet.
    pub closed: Option<(Epoch, BootTime)>,
    /// What a rewind was begun of last.
    pub rewound: Option<Rewound>,
    /// Of whom a copy is being made.
    pub copied: Option<Copied>,
    /// The primary has not the WAL any more that this member needs next.
    pub misses_wal: Option<MissingWal>,
    /// It is to stream, and does not.
    pub stalled: Option<Stalled>,
    /// Since when members of the rule have been away.
    pub away: BTreeMap<MemberId, BootTime>,
}

/// A stop that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// How hard PostgreSQL was asked.
    pub stop: Stop,
    /// When.
    pub since: BootTime,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The rule that made it.
    pub rule: &'static str,
    /// The one thing to do.
    pub action: Action,
    /// Why, in words.
    pub because: Cow<'static, str>,
    /// Decide again at this time, if nothing happens before.
    pub wake: Option<BootTime>,
    /// When the dead-man must kill everything by itself; `None`: never. To be set before the action begins.
    pub dead_man: Option<BootTime>,
    /// To be handed to the next decision.
    pub memo: Memo,
}

/// The rules, most urgent first.
pub const RULES: &[Rule] = &[
    fence::FENCE,
    fence::STOP_PROMOTED,
    crash::KILL_STRAYS,
    give_way::GIVE_WAY,
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
    let memo = crash::count(observed, memo.clone());
    let context = Context::new(observed, now);
    let memo = remember(&context, memo);
    let mut draft = Draft { memo, wake: None };
    let made = RULES
        .iter()
        .find_map(|rule| Some((rule.name, (rule.decide)(&context, &mut draft)?)));
    let (rule, Verdict { action, because }) = made.unwrap_or((
        "wait",
        Verdict {
            action: Action::Wait,
            because: "nothing is to be done".into(),
        },
    ));
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
        memo: draft.memo,
    }
}

/// Brings the memo up to date with what is observed.
fn remember(context: &Context, mut memo: Memo) -> Memo {
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
    give_way::remember(context, &mut memo);
    handover::remember(context, &mut memo);
    rejoin::remember(context, &mut memo);
    copying::remember(context, &mut memo);
    stalled::remember(context, &mut memo);
    memo
}
