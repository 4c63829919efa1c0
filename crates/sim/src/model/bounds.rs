//! How far the world goes, what is broken in it, and what is noticed on the way.

/// How far the world goes, and what is broken in it.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Faults in one course: a crash, a cut, a lost or late request, a lease that is not renewed, a task that fails.
    pub faults: u8,
    /// Records of WAL.
    pub records: u8,
    /// Epochs.
    pub epochs: u8,
    /// Standbys that a commit waits for.
    pub durability: u8,
    /// What is broken, to see that it is noticed.
    pub mutant: Option<Mutant>,
}

/// One broken rule: the model must find what is lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Rule 4: a promise leaves the WAL receiver alone.
    PromiseKeepsReceiving,
    /// Rule 2: a promise is forgotten with the agent's run.
    PromiseIsForgotten,
    /// Rules 4 and 5: a promise and a position are told while WAL still comes in.
    PositionIsNotFinal,
    /// Rule 9: an election counts one promise for two.
    OnePromiseIsEnough,
    /// Rule 9: who has less may be elected.
    AnyPositionWins,
    /// Rule 10: a setting is in force before it is safe by the record.
    RuleIsSetFirst,
    /// Rule 10: a rule is recorded though its names do not hold everything.
    RuleIsRecordedUnflushed,
    /// Rule 11: a reload counts as done when it was asked for.
    ReloadIsNotProven,
    /// Rule 12: a write of the Lease does not expect a version.
    LeaseIsOverwritten,
    /// Rule 14: a timeline is used again.
    TimelineIsUsedTwice,
}

/// What was noticed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// A standby was promoted.
    Promoted,
    /// A standby was promoted while the Lease already named another holder.
    PromotedLate,
    /// A holder took up a higher epoch that a member had promised.
    Bumped,
    /// The rule on record lost a name or a number.
    Relaxed,
    /// The rule on record gained a name or a number.
    Tightened,
    /// Diverged data was rewound.
    Rewound,
    /// A holder released the lease.
    Released,
    /// A write of the Lease came too late.
    Refused,
    /// A commit was acknowledged by a holder that the Lease did not name any more.
    AcknowledgedLate,
    /// Another timeline was reserved after a promotion that did not end.
    ReservedAgain,
    /// A primary let applications in.
    Opened,
    /// The holder of before held the lease again.
    Resumed,
}
