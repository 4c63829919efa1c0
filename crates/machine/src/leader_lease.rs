//! The operator's leader election: which of several operators acts, by a record that all can see. None can change it
//! without the others noticing.
//!
//! Only the operator runs it. The agents' holding and taking of a database's Lease is decided in the instance machine:
//! `instance/lease_rules.rs`, `instance/fence.rs` and `instance/election`. Both obey the same timing rule.
//!
//! Times are [`BootTime`]s of the process that asks; nothing that stands in the record is compared with a clock:
//!
//! - An observer counts a silent holder's lease from when it *saw* the record change last; its first sight is a change.
//! - A holder counts its deadline from *before it sent* its last successful write, so that however long the request was
//!   under way, the holder has given up before anybody else may take over ([`Timing::check`]).
//! - A take expects the version that was looked at: of two candidates one fails, and looks again.

use crate::protocol::{Epoch, LeaseRecord};
use crate::timing::{BootTime, Timing};
use crate::units::Millis;

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
    /// How long its last writer promised that it stays valid.
    pub duration: Millis,
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
mod tests;
