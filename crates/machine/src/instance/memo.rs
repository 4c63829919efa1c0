//! The memory of the instance machine, and the changes that a decision makes to it.

use std::collections::{BTreeMap, BTreeSet};

use super::action::Stop;
use super::observed::Upstream;
use crate::protocol::{Epoch, Lsn, MemberId, Position};
use crate::timing::BootTime;

/// What must be remembered from one decision to the next. Empty in a new run of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memo {
    /// Set while PostgreSQL was asked to stop and is not gone yet.
    pub stopping: Option<Stopping>,
    /// The WAL senders that were ended during the stop.
    pub ended: Option<Ended>,
    /// When impostors were ended last.
    pub impostors_ended: Option<BootTime>,
    /// Since when the lease has been held without a gap.
    pub holding_since: Option<BootTime>,
    /// Unexpected ends of PostgreSQL in a row, each within a minute of its start.
    pub crashes: u32,
    /// The end that was counted last.
    pub last_exit: Option<BootTime>,
    /// Settings for which PostgreSQL was restarted in place and which still wait for a restart: it is restarted for
    /// them only once.
    pub restarted_for: Option<String>,
    /// The members whose slots were kept when slots were dropped last.
    pub kept: Option<BTreeSet<MemberId>>,
    /// When the container was first seen to be asked to end.
    pub terminating_since: Option<BootTime>,
    /// When the lease was released to a successor as the container ends.
    pub left: Option<BootTime>,
    /// The epoch of the suspected holder, and since when it is suspected.
    pub suspected: Option<(Epoch, BootTime)>,
    /// The epoch, and since when in it this member could have taken the lease, if a preferred member did not have as
    /// much WAL.
    pub tied: Option<(Epoch, BootTime)>,
    /// The epoch in which a loss is accepted, and since when.
    pub accepted_loss: Option<(Epoch, BootTime)>,
    /// Since when this holder has not been able to write.
    pub unable_since: Option<BootTime>,
    /// The end of all WAL that this holder came with. It has not been started or promoted for writing since, so nothing
    /// was acknowledged.
    pub inherited: Option<Position>,
    /// The epoch in which this holder steps down.
    pub steps_down: Option<Epoch>,
    /// When it last stepped down.
    pub stepped_down: Option<BootTime>,
    /// Set if the previous holder could not write: when that was seen last, or when this holder's own writes were last
    /// late.
    pub relieves: Option<BootTime>,
    /// The wanted primary.
    pub wished: Option<Wish>,
    /// The pod to which the lease is being handed over.
    pub handing_over: Option<String>,
    /// The epoch in which this run was last seen to hold the lease.
    pub handing_in: Option<Epoch>,
    /// The epoch of a promoted primary that does not serve yet, and since when.
    pub closed: Option<(Epoch, BootTime)>,
    /// The data of the last rewind.
    pub rewound: Option<Rewound>,
    /// The source of the copy that is being made.
    pub copied: Option<Copied>,
    /// Set if the primary no longer has the WAL that this member needs next.
    pub misses_wal: Option<MissingWal>,
    /// What was last asked of the archive.
    pub fetched: Option<Fetched>,
    /// Set if this standby should stream and does not.
    pub stalled: Option<Stalled>,
    /// The attempt at a backup that this holder has begun last.
    pub backup: Option<Attempt>,
    /// Since when members of the synchronous rule have been away.
    pub away: BTreeMap<MemberId, BootTime>,
}

/// A stop that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// The signal that PostgreSQL got.
    pub stop: Stop,
    /// When it got that signal.
    pub since: BootTime,
}

/// A copy is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The member that is copied.
    pub member: MemberId,
    /// Since when another member holds the lease.
    pub since: Option<BootTime>,
}

impl Copied {
    /// The memory at the begin of a copy of this primary.
    pub(super) fn of(member: &MemberId) -> Self {
        Self {
            member: member.clone(),
            since: None,
        }
    }
}

/// The primary that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Its pod.
    pub pod: String,
    /// Since when the operator has wanted it.
    pub since: BootTime,
    /// A handover to it was begun.
    pub tried: bool,
}

/// A rewind of this data has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rewound {
    /// The epoch in which it began.
    pub epoch: Epoch,
    /// The position of the data, by its control file.
    pub data: Position,
    /// When it began.
    pub since: BootTime,
}

/// A member needs WAL that the primary has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MissingWal {
    /// The epoch in which that is so.
    pub epoch: Epoch,
    /// Since when that is so.
    pub since: BootTime,
    /// Where this member's WAL ended when the primary last confirmed it: once the member has more, it receives WAL.
    pub end: Lsn,
    /// When the question was sent that the primary last confirmed.
    pub confirmed: BootTime,
}

/// The archive was asked for WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fetched {
    /// The WAL behind this position.
    pub from: Lsn,
    /// Where recovery began then.
    pub checkpoint: Lsn,
    /// How many times it has begun there.
    pub rounds: u32,
}

/// WAL senders that were ended while a stop was under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The member whose WAL sender was left alone, because that member takes over. No other member does any more.
    pub kept: Option<MemberId>,
    /// When they were ended.
    pub at: BootTime,
}

/// A standby that should stream and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The primary that it follows.
    pub upstream: Upstream,
    /// How far it has replayed.
    pub replayed: Option<Lsn>,
    /// Since when that is so, nothing else keeps it from streaming, and nothing was tried.
    pub since: BootTime,
    /// How many times it was configured or started because of it.
    pub tries: u32,
    /// What was known of it then, as text.
    pub said: String,
}

/// An attempt at a backup. The holder chooses its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// UID of the DatabaseBackup.
    pub uid: String,
    /// Its number, from 1.
    pub number: u32,
    /// The pod whose files are copied.
    pub pod: String,
    /// When it began.
    pub since: BootTime,
    /// Why the attempt before it has ended, if there was one.
    pub because: Option<String>,
    /// Pages with wrong checksums are copied as they are.
    pub accepts_damage: bool,
    /// Why there is no backup, and no other attempt.
    pub ended: Option<String>,
}

/// What a decision changes in the memory. Everything else that is remembered follows from what is observed
/// ([`super::remember`]).
pub(super) enum Change {
    /// PostgreSQL was asked to stop.
    Stops(Stopping),
    /// WAL senders were ended.
    EndsSenders(Ended),
    /// Impostors were ended at this time.
    EndsImpostors(BootTime),
    /// PostgreSQL was restarted in place for these settings.
    RestartsFor(String),
    /// All slots were dropped except those of these members.
    KeepsSlots(BTreeSet<MemberId>),
    /// The lease was released because the container ends. The time is set if it went to a successor.
    Leaves(Option<BootTime>),
    /// A handover to this pod was begun.
    HandsOver(String),
    /// A rewind was begun.
    Rewinds(Rewound),
    /// The archive is asked for WAL.
    Fetches(Fetched),
    /// A copy of a primary was begun; `None`: it was cancelled.
    Copies(Option<Copied>),
    /// A standby that does not stream was configured or started again.
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
            Change::HandsOver(to) => {
                self.handing_over = Some(to);
                if let Some(wish) = &mut self.wished {
                    wish.tried = true;
                }
            }
            Change::Rewinds(rewound) => self.rewound = Some(rewound),
            Change::Fetches(fetched) => self.fetched = Some(fetched),
            Change::Copies(copied) => self.copied = copied,
            Change::FollowsAgain(stalled) => self.stalled = Some(stalled),
        }
    }
}
