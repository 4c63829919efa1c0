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
pub mod observer;
mod primary;
mod recovery;
mod rejoin;
pub mod report;
mod restore;
mod room;
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
pub use senders::Ended;
pub use stalled::Stalled;

use crate::protocol::{Epoch, MemberId, Position};
use crate::timing::BootTime;
use context::Context;

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

/// A rule of the machine.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    apply: fn(&Context, &mut Draft) -> Option<Verdict>,
}

/// The rules, most urgent first.
pub const RULES: &[Rule] = &[
    Rule {
        name: "fence",
        apply: fence::fence,
    },
    Rule {
        name: "stop promoted",
        apply: fence::stop_promoted,
    },
    Rule {
        name: "kill strays",
        apply: crash::kill_strays,
    },
    Rule {
        name: "give way",
        apply: give_way::give_way,
    },
    Rule {
        name: "renew",
        apply: lease_rules::renew,
    },
    Rule {
        name: "restore lease",
        apply: restore::restore,
    },
    Rule {
        name: "ask failsafe",
        apply: failsafe::ask,
    },
    Rule {
        name: "end impostors",
        apply: impostors::end,
    },
    Rule {
        name: "shut down",
        apply: shutdown::shut_down,
    },
    Rule {
        name: "hand over",
        apply: shutdown::hand_over,
    },
    Rule {
        name: "create member",
        apply: identity::create_member,
    },
    Rule {
        name: "store certificate",
        apply: identity::store_certificate,
    },
    Rule {
        name: "stay fenced",
        apply: fenced::stay,
    },
    Rule {
        name: "take",
        apply: lease_rules::take,
    },
    Rule {
        name: "promise",
        apply: election::promise,
    },
    Rule {
        name: "win election",
        apply: election::take,
    },
    Rule {
        name: "ask",
        apply: election::ask,
    },
    Rule {
        name: "read lease",
        apply: stale::read_lease,
    },
    Rule {
        name: "give up",
        apply: bootstrap::give_up,
    },
    Rule {
        name: "discard staging",
        apply: bootstrap::discard_staging,
    },
    Rule {
        name: "initdb",
        apply: bootstrap::initdb,
    },
    Rule {
        name: "promote",
        apply: primary::promote,
    },
    Rule {
        name: "reserve again",
        apply: primary::reserve_again,
    },
    Rule {
        name: "start to promote",
        apply: primary::start_to_promote,
    },
    Rule {
        name: "start primary",
        apply: primary::start,
    },
    Rule {
        name: "open",
        apply: durability::open,
    },
    Rule {
        name: "route",
        apply: primary::route,
    },
    Rule {
        name: "admit",
        apply: primary::admit,
    },
    Rule {
        name: "change rule",
        apply: durability::change,
    },
    Rule {
        name: "drop slots",
        apply: primary::drop_slots,
    },
    Rule {
        name: "cancel copy",
        apply: copying::cancel,
    },
    Rule {
        name: "stop diverged",
        apply: rejoin::stop_diverged,
    },
    Rule {
        name: "stop stranded",
        apply: standby::stop_stranded,
    },
    Rule {
        name: "stop torn",
        apply: standby::stop_torn,
    },
    Rule {
        name: "rewind",
        apply: rejoin::rewind,
    },
    Rule {
        name: "clone",
        apply: standby::clone,
    },
    Rule {
        name: "start standby",
        apply: standby::start,
    },
    Rule {
        name: "leave former primary",
        apply: standby::leave_former_primary,
    },
    Rule {
        name: "restart",
        apply: settings::restart,
    },
    Rule {
        name: "configure",
        apply: settings::configure,
    },
    Rule {
        name: "follow again",
        apply: stalled::follow_again,
    },
    Rule {
        name: "discard kept",
        apply: kept::discard,
    },
    Rule {
        name: "report",
        apply: report::send,
    },
    Rule {
        name: "wait",
        apply: waiting::wait,
    },
];

/// What a rule decides.
struct Verdict {
    action: Action,
    because: Cow<'static, str>,
}

/// The parts of a decision that rules fill in as they are asked.
#[derive(Default)]
struct Draft {
    memo: Memo,
    wake: Option<BootTime>,
}

impl Verdict {
    fn new(action: Action, because: impl Into<Cow<'static, str>>) -> Option<Self> {
        Some(Self {
            action,
            because: because.into(),
        })
    }
    fn wait(because: impl Into<Cow<'static, str>>) -> Option<Self> {
        Self::new(Action::Wait, because)
    }
}

impl Draft {
    /// Asks for another decision at `at`.
    fn wake(&mut self, at: BootTime) {
        self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
    }
}

/// Decides what to do next.
pub fn decide(observed: &Observed, memo: &Memo, now: BootTime) -> Decision {
    let memo = crash::count(observed, memo.clone());
    let context = Context::new(observed, now);
    let memo = remember(&context, memo);
    let mut draft = Draft { memo, wake: None };
    let made = RULES
        .iter()
        .find_map(|rule| Some((rule.name, (rule.apply)(&context, &mut draft)?)));
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
