//! Time in the failover protocol: milliseconds of a clock that goes on while the machine sleeps, and the lease's timing rule.

use api::spec::{FailoverProfile, FailoverSpec, FailoverTiming};
use serde::{Deserialize, Serialize};

/// Milliseconds of `CLOCK_BOOTTIME`. Only ever compared with readings of the same kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootTime(pub u64);

impl BootTime {
    /// This time and `milliseconds` more.
    pub const fn plus(self, milliseconds: u64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }
    /// Milliseconds from `earlier` to this time; 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The lease's times, in milliseconds (docs/design.md, "Lease, fence, dead-man").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// How long a silent holder's lease stays valid, counted by each observer from when it saw the last change.
    pub lease: u64,
    /// How often the holder renews.
    pub renew: u64,
    /// The holder stops its database this long after it *sent* its last successful renewal.
    pub fence: u64,
    /// How long that stop may take.
    pub kill: u64,
}

/// Parts per hundred by which two clocks may run apart.
const CLOCK_RATE_SKEW_PERCENT: u64 = 5;

/// Why a set of times is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The holder might still write when another may take the lease.
    #[error(
        "fence {fence} ms + kill {kill} ms must be at most 95 % of the lease of {lease} ms: raise leaseSeconds or lower fenceMilliseconds"
    )]
    FenceTooLate {
        /// See [`Timing::fence`].
        fence: u64,
        /// See [`Timing::kill`].
        kill: u64,
        /// See [`Timing::lease`].
        lease: u64,
    },
    /// One lost renewal would fence.
    #[error(
        "renewMilliseconds {renew} must be at least 200 and at most a third of fenceMilliseconds {fence}, so that one lost renewal fences nobody"
    )]
    RenewTooSeldom {
        /// See [`Timing::renew`].
        renew: u64,
        /// See [`Timing::fence`].
        fence: u64,
    },
    /// PostgreSQL cannot be stopped in that time.
    #[error("killMilliseconds {kill} must be at least 500: backends need that long to stop")]
    KillTooShort {
        /// See [`Timing::kill`].
        kill: u64,
    },
}

impl Timing {
    /// The default profile.
    pub const DEFAULT: Timing = Timing {
        lease: 10_000,
        renew: 2_000,
        fence: 6_000,
        kill: 1_500,
    };
    /// The fast profile.
    pub const FAST: Timing = Timing {
        lease: 5_000,
        renew: 800,
        fence: 2_500,
        kill: 1_000,
    };

    /// The times that a spec asks for, checked.
    pub fn of(spec: &FailoverSpec) -> Result<Timing, TimingError> {
        let timing = match (&spec.timing, spec.profile) {
            (Some(own), _) => Timing::explicit(own),
            (None, FailoverProfile::Default) => Timing::DEFAULT,
            (None, FailoverProfile::Fast) => Timing::FAST,
        };
        timing.check()?;
        Ok(timing)
    }

    fn explicit(own: &FailoverTiming) -> Timing {
        Timing {
            lease: u64::from(own.lease_seconds) * 1_000,
            renew: own.renew_milliseconds.into(),
            fence: own.fence_milliseconds.into(),
            kill: own.kill_milliseconds.into(),
        }
    }

    /// After how long without a word from the primary, by its WAL stream and by its agent, a standby suspects it to be
    /// gone (docs/design.md, "Failover"), in milliseconds: nine twentieths of the fence time, so that an election is over before an
    /// isolated primary has fenced itself. Also PostgreSQL's `wal_receiver_timeout`, half of which is the longest silence of a living stream.
    pub const fn suspect(&self) -> u64 {
        self.fence * 9 / 20
    }

    /// Checks the timing rule (invariant 5): a fenced holder has stopped before anybody may take its lease.
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
        if renew < 200 || renew * 3 > fence {
            return Err(TimingError::RenewTooSeldom { renew, fence });
        }
        if kill < 500 {
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
            fence: 9_000,
            ..Timing::DEFAULT
        };
        assert_eq!(
            late.check(),
            Err(TimingError::FenceTooLate {
                fence: 9_000,
                kill: 1_500,
                lease: 10_000
            })
        );
    }

    #[test]
    fn each_time_may_be_at_its_limit_and_not_beyond() {
        let limit = Timing {
            lease: 10_000,
            renew: 200,
            fence: 100 * (100 - CLOCK_RATE_SKEW_PERCENT) - 500,
            kill: 500,
        };
        let Timing { fence, kill, lease, .. } = limit;
        assert_eq!(limit.check(), Ok(()));
        let fence_late = TimingError::FenceTooLate {
            fence: fence + 1,
            kill,
            lease,
        };
        assert_eq!(
            Timing {
                fence: fence + 1,
                ..limit
            }
            .check(),
            Err(fence_late)
        );
        let renewed = |renew, fence| Timing { renew, fence, ..limit }.check();
        for (renew, fence) in [(199, fence), (1_000, 2_999)] {
            assert_eq!(renewed(renew, fence), Err(TimingError::RenewTooSeldom { renew, fence }));
        }
        assert_eq!(renewed(1_000, 3_000), Ok(()));
        assert_eq!(
            Timing { kill: 499, ..limit }.check(),
            Err(TimingError::KillTooShort { kill: 499 })
        );
    }

    #[test]
    fn a_standby_suspects_before_half_the_fence_time() {
        let timing = Timing {
            fence: 2_000,
            ..Timing::DEFAULT
        };
        assert_eq!(timing.suspect(), 900);
    }

    #[test]
    fn times_are_in_milliseconds() {
        assert_eq!(BootTime(70).since(BootTime(20)), 50);
        assert_eq!(BootTime(20).since(BootTime(70)), 0);
        let asked = FailoverTiming {
            lease_seconds: 20,
            renew_milliseconds: 300,
            fence_milliseconds: 5_000,
            kill_milliseconds: 600,
        };
        let Timing {
            lease,
            renew,
            fence,
            kill,
        } = Timing::explicit(&asked);
        assert_eq!((lease, renew, fence, kill), (20_000, 300, 5_000, 600));
    }
}
