//! The memory of the machine, and the changes that a decision makes to it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Copied, Ended, MissingWal, Rewound, Stalled, Stop, Wish};
use crate::protocol::{Epoch, MemberId, Position};
use crate::timing::BootTime;

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

/// What a decision changes in the memory. All else that is remembered follows from what is observed ([`super::remember`]).
pub(super) enum Change {
    /// PostgreSQL is asked to stop.
    Stops(Stopping),
    /// WAL senders are ended.
    EndsSenders(Ended),
    /// Impostors are ended now.
    EndsImpostors(BootTime),
    /// PostgreSQL is restarted in place for these settings.
    RestartsFor(String),
    /// All slots are dropped, but those of these members.
    KeepsSlots(BTreeSet<MemberId>),
    /// The lease is handed back as the container ends: now, if there is a successor.
    Leaves(Option<BootTime>),
    /// A handover to this pod is begun now.
    HandsOver {
        /// The pod.
        to: String,
        /// Now.
        at: BootTime,
    },
    /// A rewind is begun.
    Rewinds(Rewound),
    /// A copy of a primary is begun; `None`: it is cancelled.
    Copies(Option<Copied>),
    /// A standby that does not stream is configured or started again.
    FollowsAgain(Stalled),
}

impl Memo {
    /// The memory after a decision that makes these changes.
    pub(super) fn with(mut self, changes: Vec<Change>) -> Self {
        for change in changes {
            self.apply(change);
        }
        self
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stops(stopping) => self.stopping = Some(stopping),
            Change::EndsSenders(ended) => self.ended = Some(ended),
            Change::EndsImpostors(at) => self.impostors_ended = Some(at),
            Change::RestartsFor(settings) => self.restarted_for = Some(settings),
            Change::KeepsSlots(members) => self.kept = Some(members),
            Change::Leaves(at) => self.left = at,
            Change::HandsOver { to, at } => {
                (self.handing_over, self.handed_over) = (Some(to), Some(at));
                if let Some(wish) = &mut self.wished {
                    wish.tries = wish.tries.saturating_add(1);
                }
            }
            Change::Rewinds(rewound) => self.rewound = Some(rewound),
            Change::Copies(copied) => self.copied = copied,
            Change::FollowsAgain(stalled) => self.stalled = Some(stalled),
        }
    }
}
