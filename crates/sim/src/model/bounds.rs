//! How far the world goes, what is broken in it, and what is noticed on the way.

/// How far the world goes, and what is broken in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Faults in one course: a crash, a cut, a lost or late request, a lease that is not renewed, a task that fails, a clock
    /// that loses a tick.
    pub faults: u8,
    /// Machines that lose power, and with it the WAL that was written and not flushed.
    pub reboots: u8,
    /// Members whose promotion never ends.
    pub unfit: u8,
    /// Records of WAL.
    pub records: u8,
    /// Epochs.
    pub epochs: u8,
    /// Edits of the spec by the user.
    pub edits: u8,
    /// Clocks count. Without, all deadlines of others have always passed, and none of its own: enough where elections are by
    /// promises, not by the clock.
    pub timed: bool,
    /// The Lease may be lost: deleted, or edited so that nobody understands it. The operator makes an empty one in the place of one
    /// that is gone, and somebody may put right what was edited.
    pub losable: bool,
    /// What is broken, to see that it is noticed.
    pub mutant: Option<Mutant>,
}

/// One broken rule: the model must find what is lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Rule 2: a promise is forgotten with the agent's run.
    PromiseIsForgotten,
    /// Rule 3: whoever connects under a member's name acknowledges in that name.
    AnybodyAcknowledges,
    /// Rule 3: a standby acknowledges what it has only written.
    UnflushedCounts,
    /// Rule 4: a promise leaves the WAL receiver alone.
    PromiseKeepsReceiving,
    /// Rules 4 and 5: a promise and a position are told while WAL still comes in.
    PositionIsNotFinal,
    /// Rule 6: whoever follows a primary does not promise its epoch.
    EpochIsNotAdopted,
    /// Rule 7: a holder does not hear what others have promised.
    EpochIsNotRaised,
    /// Rule 8: who has less than the holder that left is elected by its answer alone.
    ReleasedPositionIsIgnored,
    /// Rule 8: an elected holder that cannot be promoted sees nobody that has all its WAL.
    HeirIsIgnored,
    /// Rule 9: an election counts one promise for two.
    OnePromiseIsEnough,
    /// Rule 9: who has less may be elected.
    AnyPositionWins,
    /// Rule 9: whoever is elected counts as having all that those have who follow it.
    AnyHolderIsFollowed,
    /// Rule 9: where a standby's WAL ends counts as final while it still follows a former primary.
    FollowedEndIsFinal,
    /// Rule 9: a loss that was accepted in another epoch is accepted.
    AnyLossIsAccepted,
    /// Rule 10: a setting is in force before it is safe by the record.
    RuleIsSetFirst,
    /// Rule 10: a rule is recorded though its names do not hold everything.
    RuleIsRecordedUnflushed,
    /// Rule 11: a setting counts as proven when it is asked for.
    ReloadIsNotProven,
    /// Rule 12: a write of the Lease does not expect a version.
    LeaseIsOverwritten,
    /// Rule 13: applications are let in before what is in doubt is held by others.
    OpensInDoubt,
    /// Rule 14: a timeline is used again.
    TimelineIsUsedTwice,
    /// Rule 15: a promotion that was broken off is begun again under its number.
    PromotionIsBegunAgain,
    /// Rule 16: the lease is handed over with a position that is not the last.
    ReleasesBeforeStop,
    /// Rule 16: the chosen successor takes the lease before it is released.
    SuccessorDoesNotWait,
    /// Rule 17: data whose rewind was broken off is started.
    HalfARewindIsStarted,
    /// Rule 17: that an election may have lost something is not on record, so that nothing is kept for that.
    LossIsForgotten,
    /// Rule 18: a Lease that is missing is made again from what was seen of it.
    LeaseIsMadeAgain,
    /// Rule 18: a lost Lease is written again without a promise of anybody.
    LeaseIsRestoredUnproven,
    /// Rule 18: what was promised before the Lease was seen as it is now proves that nobody else has held it.
    OldPromisesProve,
    /// Rule 18: who has promised an election says that it has not, and follows the primary.
    ElectionIsDenied,
    /// Rule 18: the rules in writes that may have come through before the loss are forgotten.
    DoubtsAreForgotten,
    /// Rule 19: a promise not to take the lease is forgotten.
    FailsafeIsForgotten,
    /// Rule 19: where commits wait for nobody, the promise of one counts for all.
    FailsafeOfOneIsEnough,
    /// Rule 20: where commits wait for nobody, the lease is taken before it has run out.
    LeaseIsNotAwaited,
    /// Rule 20: an election does not wait for the lease though old reads are to have ended.
    ReadsAreNotAwaited,
    /// Rule 21: who is back and has caught up does not come into the rule again.
    RuleDoesNotGrow,
    /// A holder's clock stands still: beyond what the lease's times allow for.
    ClockStands,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 36] = [
        Mutant::PromiseIsForgotten,
        Mutant::AnybodyAcknowledges,
        Mutant::UnflushedCounts,
        Mutant::PromiseKeepsReceiving,
        Mutant::PositionIsNotFinal,
        Mutant::EpochIsNotAdopted,
        Mutant::EpochIsNotRaised,
        Mutant::ReleasedPositionIsIgnored,
        Mutant::HeirIsIgnored,
        Mutant::OnePromiseIsEnough,
        Mutant::AnyPositionWins,
        Mutant::AnyHolderIsFollowed,
        Mutant::FollowedEndIsFinal,
        Mutant::AnyLossIsAccepted,
        Mutant::LossIsForgotten,
        Mutant::RuleIsSetFirst,
        Mutant::RuleIsRecordedUnflushed,
        Mutant::ReloadIsNotProven,
        Mutant::LeaseIsOverwritten,
        Mutant::OpensInDoubt,
        Mutant::TimelineIsUsedTwice,
        Mutant::PromotionIsBegunAgain,
        Mutant::ReleasesBeforeStop,
        Mutant::SuccessorDoesNotWait,
        Mutant::HalfARewindIsStarted,
        Mutant::LeaseIsMadeAgain,
        Mutant::LeaseIsRestoredUnproven,
        Mutant::OldPromisesProve,
        Mutant::ElectionIsDenied,
        Mutant::DoubtsAreForgotten,
        Mutant::FailsafeIsForgotten,
        Mutant::FailsafeOfOneIsEnough,
        Mutant::LeaseIsNotAwaited,
        Mutant::ReadsAreNotAwaited,
        Mutant::RuleDoesNotGrow,
        Mutant::ClockStands,
    ];

    /// The rules of the protocol that it breaks.
    pub const fn rules(self) -> &'static [u8] {
        match self {
            Mutant::PromiseIsForgotten => &[2],
            Mutant::AnybodyAcknowledges | Mutant::UnflushedCounts => &[3],
            Mutant::PromiseKeepsReceiving => &[4],
            Mutant::PositionIsNotFinal => &[4, 5],
            Mutant::EpochIsNotAdopted => &[6],
            Mutant::EpochIsNotRaised => &[7],
            Mutant::ReleasedPositionIsIgnored | Mutant::HeirIsIgnored => &[8],
            Mutant::OnePromiseIsEnough
            | Mutant::AnyPositionWins
            | Mutant::AnyHolderIsFollowed
            | Mutant::FollowedEndIsFinal
            | Mutant::AnyLossIsAccepted => &[9],
            Mutant::LossIsForgotten => &[17],
            Mutant::RuleIsSetFirst | Mutant::RuleIsRecordedUnflushed => &[10],
            Mutant::ReloadIsNotProven => &[11],
            Mutant::LeaseIsOverwritten => &[12],
            Mutant::OpensInDoubt => &[13],
            Mutant::TimelineIsUsedTwice => &[14],
            Mutant::PromotionIsBegunAgain => &[14, 15],
            Mutant::ReleasesBeforeStop | Mutant::SuccessorDoesNotWait => &[16],
            Mutant::HalfARewindIsStarted => &[17],
            Mutant::LeaseIsMadeAgain
            | Mutant::LeaseIsRestoredUnproven
            | Mutant::OldPromisesProve
            | Mutant::ElectionIsDenied
            | Mutant::DoubtsAreForgotten => &[18],
            Mutant::FailsafeIsForgotten | Mutant::FailsafeOfOneIsEnough => &[19],
            Mutant::LeaseIsNotAwaited | Mutant::ReadsAreNotAwaited => &[20],
            Mutant::RuleDoesNotGrow => &[21],
            Mutant::ClockStands => &[],
        }
    }
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
    /// A standby was promoted without what others have, as the user has accepted.
    LostAsAccepted,
    /// A holder took up a higher epoch that a member had promised.
    Bumped,
    /// The rule on record lost a name or a number.
    Relaxed,
    /// Commits wait for nobody, since nobody is there that they are to wait for if possible.
    RelaxedToNobody,
    /// The rule on record gained a name or a number.
    Tightened,
    /// Diverged data was rewound.
    Rewound,
    /// Diverged data was rewound, and its WAL kept before.
    RewoundAndKept,
    /// Diverged data was moved aside, and kept.
    KeptAside,
    /// The primary was copied anew.
    Cloned,
    /// A holder released the lease.
    Released,
    /// The chosen successor took the lease that was released to it.
    HandedOver,
    /// Another member took the lease that one left which could not be promoted.
    Inherited,
    /// Another member took the lease that a fenced one had released.
    FencedPrimaryReplaced,
    /// A write of the Lease came too late.
    Refused,
    /// A standby is not promoted: its take of the lease came too late.
    PromotionRefused,
    /// A primary served on past its deadline, on promises of others.
    FailsafeServed,
    /// A primary was stopped because its lease was gone.
    StoodDown,
    /// A commit was acknowledged by a holder that the Lease did not name any more. It must not happen.
    AcknowledgedLate,
    /// A promotion was broken off when its timeline had begun.
    PromotionTorn,
    /// A rewind was broken off.
    RewindTorn,
    /// A reboot took what was written and not flushed.
    TailLost,
    /// The Lease was deleted.
    LeaseDeleted,
    /// The Lease was edited, and nobody understands it.
    LeaseScribbled,
    /// The Lease, which was lost, was written again by the primary.
    LeaseRestored,
    /// Another timeline was reserved after a promotion that did not end.
    ReservedAgain,
    /// A primary let applications in.
    Opened,
    /// The holder of before held the lease again.
    Resumed,
    /// The dead-man killed what might write without a lease.
    DeadMan,
}

impl Event {
    /// What some search or walk must reach, so that a world in which nothing happens does not pass.
    pub const GOALS: [Event; 31] = [
        Event::Promoted,
        Event::PromotedLate,
        Event::PromotedSecondBest,
        Event::LostAsAllowed,
        Event::LostAsAccepted,
        Event::Bumped,
        Event::Relaxed,
        Event::RelaxedToNobody,
        Event::Tightened,
        Event::Rewound,
        Event::RewoundAndKept,
        Event::KeptAside,
        Event::Cloned,
        Event::Released,
        Event::HandedOver,
        Event::Inherited,
        Event::FencedPrimaryReplaced,
        Event::Refused,
        Event::PromotionRefused,
        Event::FailsafeServed,
        Event::StoodDown,
        Event::PromotionTorn,
        Event::RewindTorn,
        Event::TailLost,
        Event::LeaseDeleted,
        Event::LeaseScribbled,
        Event::LeaseRestored,
        Event::ReservedAgain,
        Event::Opened,
        Event::Resumed,
        Event::DeadMan,
    ];
}
