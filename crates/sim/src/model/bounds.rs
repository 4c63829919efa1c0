//! How far the world goes, what is broken in it, and what is noticed on the way.

/// How far the world goes, and what is broken in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Faults in one course: a crash, a cut, a lost or late request, a lease that is not renewed, a task that fails, a clock
    /// that loses a tick.
    pub faults: u8,
    /// Records of WAL.
    pub records: u8,
    /// Epochs.
    pub epochs: u8,
    /// Edits of the spec by the user.
    pub edits: u8,
    /// Clocks count. Without, all deadlines of others have always passed, and none of its own: enough where elections are by
    /// promises, not by the clock.
    pub timed: bool,
    /// What is broken, to see that it is noticed.
    pub mutant: Option<Mutant>,
}

/// One broken rule: the model must find what is lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Rule 2: a promise is forgotten with the agent's run.
    PromiseIsForgotten,
    /// Rule 4: a promise leaves the WAL receiver alone.
    PromiseKeepsReceiving,
    /// Rules 4 and 5: a promise and a position are told while WAL still comes in.
    PositionIsNotFinal,
    /// Rule 7: a holder does not hear what others have promised.
    EpochIsNotRaised,
    /// Rule 9: an election counts one promise for two.
    OnePromiseIsEnough,
    /// Rule 9: who has less may be elected.
    AnyPositionWins,
    /// Rule 10: a setting is in force before it is safe by the record.
    RuleIsSetFirst,
    /// Rule 10: a rule is recorded though its names do not hold everything.
    RuleIsRecordedUnflushed,
    /// Rule 12: a write of the Lease does not expect a version.
    LeaseIsOverwritten,
    /// Rule 13: applications are let in before what is in doubt is held by others.
    OpensInDoubt,
    /// Rule 14: a timeline is used again.
    TimelineIsUsedTwice,
    /// Rule 16: the lease is handed over with a position that is not the last.
    ReleasesBeforeStop,
    /// Rule 16: the chosen successor takes the lease before it is released.
    SuccessorDoesNotWait,
    /// Rule 19: a promise not to take the lease is forgotten.
    FailsafeIsForgotten,
    /// Rule 19: where commits wait for nobody, the promise of one counts for all.
    FailsafeOfOneIsEnough,
    /// A holder's clock stands still: beyond what the lease's times allow for.
    ClockStands,
}

/// What was noticed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// A standby was promoted.
    Promoted,
    /// A standby was promoted while the Lease already named another holder.
    PromotedLate,
    /// A standby was promoted though another member, which did not answer, has more.
    PromotedSecondBest,
    /// A standby was promoted without what others have, as the rule on record allows.
    LostAsAllowed,
    /// A holder took up a higher epoch that a member had promised.
    Bumped,
    /// The rule on record lost a name or a number.
    Relaxed,
    /// The rule on record gained a name or a number.
    Tightened,
    /// Diverged data was rewound.
    Rewound,
    /// Diverged data was moved aside, and kept.
    KeptAside,
    /// The primary was copied anew.
    Cloned,
    /// A holder released the lease.
    Released,
    /// The chosen successor took the lease that was released to it.
    HandedOver,
    /// Another member took the lease that a fenced one had released.
    FencedPrimaryReplaced,
    /// A write of the Lease came too late.
    Refused,
    /// A primary served on past its deadline, on promises of others.
    FailsafeServed,
    /// A primary was stopped because its lease was gone.
    StoodDown,
    /// A commit was acknowledged by a holder that the Lease did not name any more.
    AcknowledgedLate,
    /// Another timeline was reserved after a promotion that did not end.
    ReservedAgain,
    /// A primary let applications in.
    Opened,
    /// The holder of before held the lease again.
    Resumed,
    /// The dead-man killed what might write without a lease.
    DeadMan,
}
