//! Bounds of the world, rules that are broken on purpose, and notable events.

/// Bounds of the world, and the rule that is broken in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Faults in one sequence: a crash, a cut, a lost or late request, a lease that is not renewed, a failing task, or
    /// a clock that loses a tick.
    pub faults: u8,
    /// Machines that lose power, and with it WAL that was written and not flushed.
    pub reboots: u8,
    /// Members whose promotion never ends.
    pub unfit: u8,
    /// Records of WAL.
    pub records: u8,
    /// Epochs.
    pub epochs: u8,
    /// Edits of the spec by the user.
    pub edits: u8,
    /// Clocks count. Without them, all deadlines of others have passed and none of a member's own: that is enough if
    /// elections are decided by promises, not by the clock.
    pub timed: bool,
    /// The Lease may be lost: deleted, or edited so that no agent understands it. The operator replaces a deleted one
    /// by an empty one, and a user may correct an edited one.
    pub losable: bool,
    /// The rule that is broken, to see that this is found.
    pub mutant: Option<Mutant>,
}

/// One broken rule. The model must find the resulting loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Rule 2: a promise is forgotten with the agent's run.
    PromiseIsForgotten,
    /// Rule 3: any client that connects under a member's name acknowledges in that name.
    AnybodyAcknowledges,
    /// Rule 3: a standby acknowledges what it has only written.
    UnflushedCounts,
    /// Rule 4: a promise leaves the WAL receiver alone.
    PromiseKeepsReceiving,
    /// Rules 4 and 5: a promise and a position are reported while WAL still arrives.
    PositionIsNotFinal,
    /// Rule 6: a member that follows a primary does not promise its epoch.
    EpochIsNotAdopted,
    /// Rule 7: a holder does not learn what others have promised.
    EpochIsNotRaised,
    /// Rule 8: a member with less WAL than the holder that released is elected by its answer alone.
    ReleasedPositionIsIgnored,
    /// Rule 8: an elected holder that cannot be promoted sees no member with all its WAL.
    HeirIsIgnored,
    /// Rule 9: an election counts one promise for two.
    OnePromiseIsEnough,
    /// Rule 9: a member with less WAL may be elected.
    AnyPositionWins,
    /// Rule 9: an elected member counts as having all the WAL of the members that follow it.
    AnyHolderIsFollowed,
    /// Rule 9: a standby's WAL end counts as final while it still follows a former primary.
    FollowedEndIsFinal,
    /// Rule 9: the acceptance of a loss in another epoch counts.
    AnyLossIsAccepted,
    /// Rule 10: a setting comes into force before the rule in the Lease makes it safe.
    RuleIsSetFirst,
    /// Rule 10: a rule is recorded although its names do not have all WAL.
    RuleIsRecordedUnflushed,
    /// Rule 11: a setting counts as proven as soon as it is requested.
    ReloadIsNotProven,
    /// Rule 12: a write of the Lease does not expect a version.
    LeaseIsOverwritten,
    /// Rule 13: a primary opens before other members have what is in doubt.
    OpensInDoubt,
    /// Rule 14: a timeline is used again.
    TimelineIsUsedTwice,
    /// Rule 15: an interrupted promotion is begun again with the same number.
    PromotionIsBegunAgain,
    /// Rule 16: the lease is handed over with a position that is not final.
    ReleasesBeforeStop,
    /// Rule 16: the chosen successor takes the lease before it is released.
    SuccessorDoesNotWait,
    /// Rule 17: data whose rewind was interrupted is started.
    HalfARewindIsStarted,
    /// Rule 17: the Lease does not record that an election may have lost commits, so no copy is kept for that reason.
    LossIsForgotten,
    /// Rule 18: a missing Lease is made again from its last seen content.
    LeaseIsMadeAgain,
    /// Rule 18: a lost Lease is written again without any promise.
    LeaseIsRestoredUnproven,
    /// Rule 18: promises from before the present state of the Lease prove that no other member has held it since.
    OldPromisesProve,
    /// Rule 18: a member that has promised an election denies it, and follows the primary.
    ElectionIsDenied,
    /// Rule 18: the rules in writes with unknown outcome before the loss are forgotten.
    DoubtsAreForgotten,
    /// Rule 19: a promise not to take the lease is forgotten.
    FailsafeIsForgotten,
    /// Rule 19: if commits wait for no standby, the promise of one member counts for all.
    FailsafeOfOneIsEnough,
    /// Rule 20: if commits wait for no standby, the lease is taken before it has run out.
    LeaseIsNotAwaited,
    /// Rule 20: an election does not wait for the lease although old reads must have ended.
    ReadsAreNotAwaited,
    /// Rule 21: a member that is back and has caught up does not return to the rule.
    RuleDoesNotGrow,
    /// Rule 24: a holder's clock stops, beyond what the times of the lease allow for.
    ClockStands,
    /// A member that does not fill the archive pushes.
    PushesWithoutLease,
    /// A standby strikes off whatever waits.
    UnarchivedIsStruckOff,
    /// What an old primary has told of the archive counts for its successor's timeline.
    OldWordOfANewTimeline,
    /// What the holder has told counts for a standby whose WAL is no part of the holder's history.
    AnotherHistoryCounts,
    /// The segment in which a timeline ended counts as a whole one.
    HalfASegmentIsWhole,
    /// A full segment that has no mark is not found.
    FullSegmentIsForgotten,
    /// The marks of a copy are believed.
    CopiedMarksCount,
    /// A holder tells of a timeline whose history is not archived.
    HistoryIsTakenForArchived,
    /// A timeline's segments are pushed beside its history.
    SegmentsGoBesideAHistory,
}

impl Mutant {
    /// All mutants that break the protocol.
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

    /// All mutants that break a rule of the archive (docs/invariants.md 16 and 36).
    pub const ARCHIVE: [Mutant; 9] = [
        Mutant::PushesWithoutLease,
        Mutant::UnarchivedIsStruckOff,
        Mutant::OldWordOfANewTimeline,
        Mutant::AnotherHistoryCounts,
        Mutant::HalfASegmentIsWhole,
        Mutant::FullSegmentIsForgotten,
        Mutant::CopiedMarksCount,
        Mutant::HistoryIsTakenForArchived,
        Mutant::SegmentsGoBesideAHistory,
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
            Mutant::ClockStands => &[24],
            Mutant::PushesWithoutLease
            | Mutant::UnarchivedIsStruckOff
            | Mutant::OldWordOfANewTimeline
            | Mutant::AnotherHistoryCounts
            | Mutant::HalfASegmentIsWhole
            | Mutant::FullSegmentIsForgotten
            | Mutant::CopiedMarksCount
            | Mutant::HistoryIsTakenForArchived
            | Mutant::SegmentsGoBesideAHistory => &[],
        }
    }
}

/// A notable event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// A standby was promoted.
    Promoted,
    /// A standby was promoted although the Lease already named another holder.
    PromotedLate,
    /// A standby was promoted although another member, which did not answer, has more WAL.
    PromotedSecondBest,
    /// A standby was promoted without WAL of others, as the rule in the Lease allows.
    LostAsAllowed,
    /// A standby was promoted without WAL of others, as the user has accepted.
    LostAsAccepted,
    /// A holder adopted a higher epoch that a member had promised.
    Bumped,
    /// The rule in the Lease lost a name or a number.
    Relaxed,
    /// Commits wait for no standby, because none is available and the durability mode allows that.
    RelaxedToNobody,
    /// The rule in the Lease gained a name or a number.
    Tightened,
    /// Diverged data was rewound.
    Rewound,
    /// Diverged data was rewound, after its WAL was copied aside.
    RewoundAndKept,
    /// Diverged data was quarantined.
    KeptAside,
    /// The primary was copied again.
    Cloned,
    /// A holder released the lease.
    Released,
    /// The chosen successor took the lease that was released to it.
    HandedOver,
    /// Another member took the lease from a holder that could not be promoted.
    Inherited,
    /// Another member took the lease that a fenced one had released.
    FencedPrimaryReplaced,
    /// A write of the Lease came too late.
    Refused,
    /// A standby is not promoted: its take of the lease came too late.
    PromotionRefused,
    /// A primary served past its deadline, by promises of others.
    FailsafeServed,
    /// A primary was stopped because it had lost its lease.
    StoodDown,
    /// A commit was acknowledged by a holder that the Lease no longer named. It must not happen.
    AcknowledgedLate,
    /// A promotion was interrupted after its timeline had begun.
    PromotionTorn,
    /// A rewind was interrupted.
    RewindTorn,
    /// A reboot lost WAL that was written and not flushed.
    TailLost,
    /// The Lease was deleted.
    LeaseDeleted,
    /// The Lease was edited so that no agent understands it.
    LeaseScribbled,
    /// The lost Lease was written again by the primary.
    LeaseRestored,
    /// Another timeline was reserved after an unfinished promotion.
    ReservedAgain,
    /// A primary opened.
    Opened,
    /// The previous holder held the lease again.
    Resumed,
    /// The dead-man killed processes that might have written without a lease.
    DeadMan,
    /// A successor pushed a segment of a timeline before its own, which the lost primary had not pushed.
    ArchivedForTheLost,
    /// A standby struck off a segment that the holder has archived.
    StruckOff,
    /// A segment reached the store that an old primary has written on a branch which the holder's history has left.
    AbandonedBranchArchived,
    /// A full segment was found that had no mark.
    UnmarkedFound,
    /// A segment was given up, since the volume is about to be full.
    SegmentGivenUp,
}

impl Event {
    /// Events that some search or walk must reach, so that a world in which nothing happens does not pass.
    pub const GOALS: [Event; 36] = [
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
        Event::ArchivedForTheLost,
        Event::StruckOff,
        Event::AbandonedBranchArchived,
        Event::UnmarkedFound,
        Event::SegmentGivenUp,
    ];
}
