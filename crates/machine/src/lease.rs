//! The lease machine: who may act, by a record that all can see and none can change without the others noticing.
//!
//! The operator's leader election runs on it, and the agent's holding and taking of the database's Lease obeys the same
//! rules (which member may take it at all is decided in the instance machine).
//!
//! Times are [`BootTime`]s of the process that asks; nothing that stands in the record is compared with a clock:
//!
//! - An observer counts a silent holder's lease from when it *saw* the record change last; its first sight is a change.
//! - A holder counts its deadline from *before it sent* its last successful write, so that however long the request was
//!   under way, the holder has given up before anybody else may take over ([`Timing::check`]).
//! - A take expects the version that was looked at: of two candidates one fails, and looks again.

use crate::protocol::{Epoch, LeaseRecord};
use crate::timing::{BootTime, Timing};

/// The record, as one observer last saw it. The answer of an own successful write counts as having seen it,
/// and a late watch event never takes this back to an older version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// `metadata.resourceVersion`.
    pub version: &'a str,
    /// Identity of the holder; `None` after a release and before the first one.
    pub holder: Option<&'a str>,
    /// How many times it has changed hands.
    pub epoch: Epoch,
    /// How long its last writer promised that it stays valid, in milliseconds.
    pub duration: u64,
    /// When this observer saw `version`, or anything else that shows that the holder lives, for the first time.
    pub changed: BootTime,
}

impl<'a> Seen<'a> {
    /// What stands in `record`, held by `holder` ([`crate::protocol::Incarnation::identity`]).
    pub fn new(record: &'a LeaseRecord, holder: Option<&'a str>, changed: BootTime) -> Self {
        Self {
            version: &record.version,
            holder,
            epoch: record.epoch,
            duration: record.duration,
            changed,
        }
    }
}

/// What a process knows of its own holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Just before its last successful acquire or renewal was sent.
    pub sent: BootTime,
    /// Just before its last try was sent, successful or not.
    pub tried: BootTime,
}

impl Held {
    /// A holding by a write that was sent at `sent` and has succeeded.
    pub const fn since(sent: BootTime) -> Self {
        Self { sent, tried: sent }
    }

    /// The holder must have given up by then.
    pub const fn deadline(self, timing: &Timing) -> BootTime {
        self.sent.plus(timing.fence)
    }
}

/// What to do about the lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Not held by anybody: write the own identity, expecting `version`. On success the process holds it from before the
    /// write was sent ([`Held::since`]); on a conflict look again.
    Acquire {
        /// The version to replace.
        version: &'a str,
        /// The epoch to write.
        epoch: Epoch,
    },
    /// Write again, expecting `version`, and give the request up at `before`.
    Renew {
        /// The version to replace.
        version: &'a str,
        /// The deadline of the present holding.
        before: BootTime,
    },
    /// Held; nothing to do before `wake`.
    Hold {
        /// When to ask again.
        wake: BootTime,
    },
    /// The deadline has passed without a successful renewal: stop acting, whatever else hangs. The record may still name
    /// this process; others may take it any time.
    Fence,
    /// The record names another holder, or none: stop acting at once.
    Lost,
    /// Somebody else holds it, or nothing is known.
    Yield {
        /// When to ask again.
        wake: BootTime,
    },
}

/// A failed renewal is tried again after this part of the renewal interval: with an interval of at most a third of the
/// fence time, some eight tries fit in before the fence.
const RETRIES_PER_RENEWAL: u64 = 4;

/// Decides about the lease. `seen` is `None` while the record cannot be read or does not exist (the two are not told
/// apart: nobody makes a lost record again by himself). `held` is this process's own knowledge, forgotten after
/// [`Verdict::Fence`] and [`Verdict::Lost`].
pub fn evaluate<'a>(
    seen: Option<Seen<'a>>,
    identity: &str,
    timing: &Timing,
    now: BootTime,
    held: Option<Held>,
) -> Verdict<'a> {
    match held {
        Some(held) => keep(seen, identity, timing, now, held),
        None => take(seen, identity, timing, now),
    }
}

/// For a process that holds the lease.
fn keep<'a>(seen: Option<Seen<'a>>, identity: &str, timing: &Timing, now: BootTime, held: Held) -> Verdict<'a> {
    let deadline = held.deadline(timing);
    if now >= deadline {
        return Verdict::Fence;
    }
    let Some(seen) = seen else {
        return Verdict::Hold { wake: deadline };
    };
    if seen.holder != Some(identity) {
        return Verdict::Lost;
    }
    let next = held
        .sent
        .plus(timing.renew)
        .max(held.tried.plus(timing.renew / RETRIES_PER_RENEWAL));
    if now >= next {
        Verdict::Renew {
            version: seen.version,
            before: deadline,
        }
    } else {
        Verdict::Hold {
            wake: next.min(deadline),
        }
    }
}

/// For a process that does not hold it.
fn take<'a>(seen: Option<Seen<'a>>, identity: &str, timing: &Timing, now: BootTime) -> Verdict<'a> {
    let Some(seen) = seen else {
        return Verdict::Yield {
            wake: now.plus(timing.renew),
        };
    };
    match seen.holder {
        None => Verdict::Acquire {
            version: seen.version,
            epoch: after(seen.epoch),
        },
        // The answer to an own acquire was lost, or this process has fenced itself since. Identities are never used
        // twice, so nobody else acts under it.
        Some(holder) if holder == identity => Verdict::Acquire {
            version: seen.version,
            epoch: seen.epoch,
        },
        Some(_) => {
            let expiry = seen.changed.plus(seen.duration.max(timing.lease));
            if now >= expiry {
                Verdict::Acquire {
                    version: seen.version,
                    epoch: after(seen.epoch),
                }
            } else {
                Verdict::Yield { wake: expiry }
            }
        }
    }
}

/// The epoch of the next holder. Here it only counts changes, for people: the last number stays as it is, so that one who wrote it keeps
/// nobody out.
fn after(epoch: Epoch) -> Epoch {
    epoch.next().unwrap_or(Epoch::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMING: Timing = Timing::DEFAULT;

    fn seen(holder: Option<&str>) -> Option<Seen<'_>> {
        Some(Seen {
            version: "7",
            holder,
            epoch: Epoch(3),
            duration: 10_000,
            changed: BootTime(100_000),
        })
    }

    fn ask(holder: Option<&'static str>, now: u64, held: Option<Held>) -> Verdict<'static> {
        evaluate(seen(holder), "me", &TIMING, BootTime(now), held)
    }

    #[test]
    fn a_free_lease_is_taken_at_once() {
        assert_eq!(
            ask(None, 100_000, None),
            Verdict::Acquire {
                version: "7",
                epoch: Epoch(4)
            }
        );
    }

    #[test]
    fn a_candidate_waits_the_whole_lease_from_what_it_saw() {
        assert_eq!(
            ask(Some("other"), 109_999, None),
            Verdict::Yield {
                wake: BootTime(110_000)
            }
        );
        assert_eq!(
            ask(Some("other"), 110_000, None),
            Verdict::Acquire {
                version: "7",
                epoch: Epoch(4)
            }
        );
    }

    #[test]
    fn a_longer_promise_of_the_holder_counts() {
        let long = Seen {
            duration: 30_000,
            ..seen(Some("other")).unwrap()
        };
        let verdict = evaluate(Some(long), "me", &TIMING, BootTime(110_000), None);
        assert_eq!(
            verdict,
            Verdict::Yield {
                wake: BootTime(130_000)
            }
        );
    }

    #[test]
    fn a_holder_renews_in_time_and_retries_at_a_pace() {
        let held = Held::since(BootTime(100_000));
        assert_eq!(
            ask(Some("me"), 101_999, Some(held)),
            Verdict::Hold {
                wake: BootTime(102_000)
            }
        );
        let renew = Verdict::Renew {
            version: "7",
            before: BootTime(106_000),
        };
        assert_eq!(ask(Some("me"), 102_000, Some(held)), renew);
        let failed = Held {
            tried: BootTime(102_000),
            ..held
        };
        assert_eq!(
            ask(Some("me"), 102_100, Some(failed)),
            Verdict::Hold {
                wake: BootTime(102_500)
            }
        );
        assert_eq!(ask(Some("me"), 102_500, Some(failed)), renew);
    }

    #[test]
    fn a_holder_without_renewal_fences_at_the_deadline_whatever_it_sees() {
        let held = Held {
            sent: BootTime(100_000),
            tried: BootTime(105_900),
        };
        assert_eq!(
            ask(Some("me"), 105_950, Some(held)),
            Verdict::Hold {
                wake: BootTime(106_000)
            }
        );
        assert_eq!(ask(Some("me"), 106_000, Some(held)), Verdict::Fence);
        let blind = evaluate(None, "me", &TIMING, BootTime(105_999), Some(held));
        assert_eq!(
            blind,
            Verdict::Hold {
                wake: BootTime(106_000)
            }
        );
        assert_eq!(
            evaluate(None, "me", &TIMING, BootTime(106_000), Some(held)),
            Verdict::Fence
        );
    }

    #[test]
    fn a_holder_that_sees_another_one_has_lost() {
        let held = Some(Held::since(BootTime(100_000)));
        assert_eq!(ask(Some("other"), 100_001, held), Verdict::Lost);
        assert_eq!(ask(None, 100_001, held), Verdict::Lost);
    }

    #[test]
    fn a_lost_answer_to_an_own_acquire_is_made_good_in_the_same_epoch() {
        assert_eq!(
            ask(Some("me"), 100_001, None),
            Verdict::Acquire {
                version: "7",
                epoch: Epoch(3)
            }
        );
    }

    #[test]
    fn nothing_is_made_of_an_unreadable_record() {
        assert_eq!(
            evaluate(None, "me", &TIMING, BootTime(5), None),
            Verdict::Yield { wake: BootTime(2_005) }
        );
    }

    proptest! {
        /// However long a renewal travels, whenever the candidate sees it, and however the two clocks run within 5 % of
        /// each other: the holder has been told to stop, and has had its kill time, when the candidate may take.
        #[test]
        fn a_candidate_never_takes_before_the_holder_has_stopped(
            fast in any::<bool>(),
            sent in 0_u64..100_000,
            travel in 0_u64..20_000,
            sight in 0_u64..20_000,
            candidate_runs_fast_by in 0.0_f64..=0.05,
        ) {
            let timing = if fast { Timing::FAST } else { Timing::DEFAULT };
            // Real time in milliseconds; the holder's clock shows it, the candidate's runs faster.
            let clock = |real: u64| BootTime((real as f64 * (1.0 + candidate_runs_fast_by)).floor() as u64);
            let stopped = sent + timing.fence + timing.kill;
            let held = Some(Held::since(BootTime(sent)));
            prop_assert_eq!(evaluate(seen(Some("me")), "me", &timing, BootTime(sent + timing.fence), held), Verdict::Fence);
            let changed = clock(sent + travel + sight);
            let record = Seen { version: "7", holder: Some("me"), epoch: Epoch(3), duration: timing.lease, changed };
            let verdict = evaluate(Some(record), "candidate", &timing, clock(stopped - 1), None);
            prop_assert!(matches!(verdict, Verdict::Yield { .. }), "{:?}", verdict);
        }
    }
}
