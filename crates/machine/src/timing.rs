//! Time in the failover protocol: a clock that goes on while the machine sleeps, and the lease's timing rule.

use api::spec::{FailoverProfile, FailoverSpec, FailoverTiming};
use serde::{Deserialize, Serialize};

use crate::units::Millis;

/// Milliseconds of `CLOCK_BOOTTIME`. Only ever compared with readings of the same kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootTime(pub u64);

impl BootTime {
    /// So much later than this time.
    pub const fn plus(self, later: Millis) -> Self {
        Self(self.0.saturating_add(later.0))
    }
    /// So much earlier than this time, but not before the clock's zero.
    pub const fn minus(self, earlier: Millis) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
    /// The time from `earlier` to this one; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

/// The lease's times (docs/design.md, "Lease, fence, dead-man").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// How long a silent holder's lease stays valid, counted by each observer from when it saw the last change.
    pub lease: Millis,
    /// How often the holder renews.
    pub renew: Millis,
    /// The holder stops its database this long after it *sent* its last successful renewal.
    pub fence: Millis,
    /// How long that stop may take.
    pub kill: Millis,
}

/// Parts per hundred by which two clocks may run apart.
const CLOCK_RATE_SKEW_PERCENT: u64 = 5;

/// Why a set of times is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The holder might still write when another may take the lease.
    #[error(
        "fence {fence} + kill {kill} must be at most 95 % of the lease of {lease}: raise leaseDurationMilliseconds or lower fenceTimeoutMilliseconds"
    )]
    FenceTooLate {
        /// See [`Timing::fence`].
        fence: Millis,
        /// See [`Timing::kill`].
        kill: Millis,
        /// See [`Timing::lease`].
        lease: Millis,
    },
    /// One lost renewal would fence.
    #[error(
        "renewPeriodMilliseconds {} must be at least 200 and at most a third of fenceTimeoutMilliseconds {}, so that one lost renewal does not stop the primary",
        renew.0,
        fence.0
    )]
    RenewTooSeldom {
        /// See [`Timing::renew`].
        renew: Millis,
        /// See [`Timing::fence`].
        fence: Millis,
    },
    /// PostgreSQL cannot be stopped in that time.
    #[error("stopTimeoutMilliseconds {} must be at least 500: backends need that long to stop", kill.0)]
    KillTooShort {
        /// See [`Timing::kill`].
        kill: Millis,
    },
}

impl Timing {
    /// The default profile.
    pub const DEFAULT: Timing = Timing {
        lease: Millis::seconds(10),
        renew: Millis::seconds(2),
        fence: Millis::seconds(6),
        kill: Millis(1_500),
    };
    /// The fast profile.
    pub const FAST: Timing = Timing {
        lease: Millis::seconds(5),
        renew: Millis(800),
        fence: Millis(2_500),
        kill: Millis::seconds(1),
    };

    /// The times that a spec asks for, checked.
    ///
    /// # Errors
    /// As [`Timing::check`].
    pub fn of(spec: &FailoverSpec) -> Result<Timing, TimingError> {
        let timing = match (&spec.timing, spec.profile) {
            (Some(own), FailoverProfile::Custom) => Timing::explicit(own),
            (_, FailoverProfile::Fast) => Timing::FAST,
            (_, FailoverProfile::Standard) | (None, FailoverProfile::Custom) => Timing::DEFAULT,
        };
        timing.check()?;
        Ok(timing)
    }

    fn explicit(own: &FailoverTiming) -> Timing {
        Timing {
            lease: Millis(own.lease_duration_milliseconds.into()),
            renew: Millis(own.renew_period_milliseconds.into()),
            fence: Millis(own.fence_timeout_milliseconds.into()),
            kill: Millis(own.stop_timeout_milliseconds.into()),
        }
    }

    /// After how long without a word from the primary, by its WAL stream and by its agent, a standby suspects it to be
    /// gone (docs/design.md, "Failover"): nine twentieths of the fence time, so that an election is over before an
    /// isolated primary has fenced itself. Also PostgreSQL's `wal_receiver_timeout`, half of which is the longest silence of a living stream.
    pub const fn suspect(&self) -> Millis {
        self.fence.percent(45)
    }

    /// Checks the timing rule (protocol.md rule 24, invariant 5): a fenced holder has stopped before another member may
    /// take its lease.
    ///
    /// # Errors
    /// Fails with [`TimingError::FenceTooLate`], [`TimingError::RenewTooSeldom`] or [`TimingError::KillTooShort`],
    /// whichever limit is broken first.
    pub fn check(self) -> Result<(), TimingError> {
        let Timing {
            lease,
            renew,
            fence,
            kill,
        } = self;
        if (fence + kill) * 100 > lease * (100 - CLOCK_RATE_SKEW_PERCENT) {
            return Err(TimingError::FenceTooLate { fence, kill, lease });
        }
        if renew < Millis(200) || renew * 3 > fence {
            return Err(TimingError::RenewTooSeldom { renew, fence });
        }
        if kill < Millis(500) {
            return Err(TimingError::KillTooShort { kill });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_obey_the_rule() {
        assert_eq!(Timing::DEFAULT.check(), Ok(()));
        assert_eq!(Timing::FAST.check(), Ok(()));
    }

    #[test]
    fn a_fence_after_the_lease_is_refused() {
        let late = Timing {
            fence: Millis::seconds(9),
            ..Timing::DEFAULT
        };
        assert_eq!(
            late.check(),
            Err(TimingError::FenceTooLate {
                fence: Millis::seconds(9),
                kill: Millis(1_500),
                lease: Millis::seconds(10)
            })
        );
    }

    #[test]
    fn each_time_may_be_at_its_limit_and_not_beyond() {
        let limit = Timing {
            lease: Millis::seconds(10),
            renew: Millis(200),
            fence: Millis(100 * (100 - CLOCK_RATE_SKEW_PERCENT) - 500),
            kill: Millis(500),
        };
        let Timing { fence, kill, lease, .. } = limit;
        assert_eq!(limit.check(), Ok(()));
        let fence_late = TimingError::FenceTooLate {
            fence: fence + Millis(1),
            kill,
            lease,
        };
        assert_eq!(
            Timing {
                fence: fence + Millis(1),
                ..limit
            }
            .check(),
            Err(fence_late)
        );
        let renewed = |renew, fence| Timing { renew, fence, ..limit }.check();
        for (renew, fence) in [(Millis(199), fence), (Millis(1_000), Millis(2_999))] {
            assert_eq!(renewed(renew, fence), Err(TimingError::RenewTooSeldom { renew, fence }));
        }
        assert_eq!(renewed(Millis(1_000), Millis(3_000)), Ok(()));
        assert_eq!(
            Timing {
                kill: Millis(499),
                ..limit
            }
            .check(),
            Err(TimingError::KillTooShort { kill: Millis(499) })
        );
    }

    #[test]
    fn a_standby_suspects_before_half_the_fence_time() {
        let timing = Timing {
            fence: Millis::seconds(2),
            ..Timing::DEFAULT
        };
        assert_eq!(timing.suspect(), Millis(900));
    }

    #[test]
    fn times_are_in_milliseconds() {
        assert_eq!(BootTime(70).since(BootTime(20)), Millis(50));
        assert_eq!(BootTime(20).since(BootTime(70)), Millis::ZERO);
        let asked = FailoverTiming {
            lease_duration_milliseconds: 20_000,
            renew_period_milliseconds: 300,
            fence_timeout_milliseconds: 5_000,
            stop_timeout_milliseconds: 600,
        };
        let Timing {
            lease,
            renew,
            fence,
            kill,
        } = Timing::explicit(&asked);
        assert_eq!((lease, renew), (Millis(20_000), Millis(300)));
        assert_eq!((fence, kill), (Millis(5_000), Millis(600)));
    }
}
