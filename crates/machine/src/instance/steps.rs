//! The order of steps in a promise and in a promotion, as data (protocol.md rules 4, 13 and 14).
//!
//! The agent, the simulator and the model walk the same lists. Each maps a step to its effect by an exhaustive match; none
//! has an order of its own. A step names the steps that must have ended before it begins, so steps that name the same ones
//! may run beside each other.

use std::fmt;

/// One step of a piece of work.
#[derive(Debug)]
pub struct Step<S: 'static> {
    /// The step.
    pub step: S,
    /// What it does, as a sentence for the documentation.
    pub what: &'static str,
    /// The rules of the failover protocol that require it or its place, by number (docs/protocol.md).
    pub protocol: &'static [u8],
    /// Steps that must have ended before it begins.
    pub after: &'static [S],
}

/// A step of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromiseStep {
    /// Writes to the volume: [`PROMISE_WRITES`], while no other task changes the same files.
    Write,
    /// The WAL receiver ends.
    EndReceiver,
    /// The settings name no primary any more.
    EmptyUpstream,
}

/// A write of a promise to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromiseWrite {
    /// The epoch.
    Epoch,
    /// The WAL receiver's credential is removed.
    RemoveCredential,
}

/// A step of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromotionStep {
    /// The server recovers, on a timeline before the reserved one.
    CheckStandby,
    /// All WAL is replayed.
    AwaitReplay,
    /// Replication slots are those of the members.
    KeepSlots,
    /// The volume says that a promotion to the reserved timeline is begun.
    Note,
    /// The configuration is that of a primary, closed to applications.
    WriteConfiguration,
    /// PostgreSQL is made to pick the reserved timeline.
    ReserveTimeline,
    /// The server uses the configuration.
    ProveConfiguration,
    /// Sessions from before that are gone.
    EndSessions,
    /// The lease is verified to be still held.
    CheckLease,
    /// The server leaves recovery.
    Promote,
    /// Its timeline is verified to be the reserved one.
    CheckTimeline,
}

/// A promise. Measuring the end of the WAL and answering the candidate come after it, in decisions of their own.
pub const PROMISE: &[Step<PromiseStep>] = &[
    Step {
        step: PromiseStep::Write,
        what: "Writes the promise to the volume.",
        protocol: &[2, 4],
        after: &[],
    },
    Step {
        step: PromiseStep::EndReceiver,
        what: "Ends the WAL receiver with SIGTERM and waits until this PostgreSQL has none.",
        protocol: &[4],
        after: &[PromiseStep::Write],
    },
    Step {
        step: PromiseStep::EmptyUpstream,
        what: "Empties primary_conninfo. It spares PostgreSQL its attempts and proves nothing, so a failure is no failure of the promise.",
        protocol: &[4],
        after: &[PromiseStep::EndReceiver],
    },
];

/// The writes of a promise. They run under one lock, so that no other task restores a credential between them.
pub const PROMISE_WRITES: &[Step<PromiseWrite>] = &[
    Step {
        step: PromiseWrite::Epoch,
        what: "Writes the epoch to the promise store, unless a higher one is there.",
        protocol: &[2, 4],
        after: &[],
    },
    Step {
        step: PromiseWrite::RemoveCredential,
        what: "Removes the key file that the WAL receiver connects with, and flushes the directory of both.",
        protocol: &[4],
        after: &[PromiseWrite::Epoch],
    },
];

/// A promotion of a running standby to the reserved timeline. The note is dropped after all of them.
pub const PROMOTION: &[Step<PromotionStep>] = &[
    Step {
        step: PromotionStep::CheckStandby,
        what: "Refuses a server that does not recover, or that is on the reserved timeline already.",
        protocol: &[14],
        after: &[],
    },
    Step {
        step: PromotionStep::AwaitReplay,
        what: "Waits until all WAL is replayed, and ends sessions that hold it up.",
        protocol: &[13],
        after: &[PromotionStep::CheckStandby],
    },
    Step {
        step: PromotionStep::KeepSlots,
        what: "Makes the replication slots of the members and drops all others.",
        protocol: &[3],
        after: &[PromotionStep::AwaitReplay],
    },
    Step {
        step: PromotionStep::Note,
        what: "Notes on the volume that a promotion to the reserved timeline is begun.",
        protocol: &[14, 15],
        after: &[PromotionStep::AwaitReplay],
    },
    Step {
        step: PromotionStep::WriteConfiguration,
        what: "Writes a primary's configuration: the synchronous names, and no connections of applications.",
        protocol: &[13],
        after: &[PromotionStep::AwaitReplay],
    },
    Step {
        step: PromotionStep::ReserveTimeline,
        what: "Writes stub history files, so that PostgreSQL picks the reserved timeline.",
        protocol: &[14],
        after: &[PromotionStep::AwaitReplay],
    },
    Step {
        step: PromotionStep::ProveConfiguration,
        what: "Has the server read the configuration, and proves that it did.",
        protocol: &[11, 13],
        after: &[
            PromotionStep::Note,
            PromotionStep::WriteConfiguration,
            PromotionStep::ReserveTimeline,
        ],
    },
    Step {
        step: PromotionStep::EndSessions,
        what: "Ends the sessions that began before, except the agent's and the members' streams.",
        protocol: &[13],
        after: &[PromotionStep::ProveConfiguration],
    },
    Step {
        step: PromotionStep::CheckLease,
        what: "Asks for the last time whether this run may still write.",
        protocol: &[8],
        after: &[PromotionStep::EndSessions],
    },
    Step {
        step: PromotionStep::Promote,
        what: "Has the server leave recovery. From here on any failure stops it at once.",
        protocol: &[13, 14],
        after: &[PromotionStep::CheckLease],
    },
    Step {
        step: PromotionStep::CheckTimeline,
        what: "Reads the timeline back. A server on any other than the reserved one is stopped.",
        protocol: &[14],
        after: &[PromotionStep::Promote],
    },
];

/// Progress of a piece of work.
#[derive(Debug)]
pub struct Walk<S: 'static> {
    steps: &'static [Step<S>],
    /// A bit for each step that has begun.
    begun: u32,
    /// A bit for each step that has ended.
    ended: u32,
}

/// A step that must not begin, or end, at this point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder<S> {
    /// The step.
    pub step: S,
    /// The step that must have ended before; `None`: the step itself has begun or ended already, or never began.
    pub missing: Option<S>,
}

impl<S> Clone for Walk<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Walk<S> {}

impl<S: Copy + PartialEq> Walk<S> {
    /// No step has begun.
    pub const fn new(steps: &'static [Step<S>]) -> Self {
        Self {
            steps,
            begun: 0,
            ended: 0,
        }
    }

    /// The first step of the list that may begin. `None`: another one must end first, or none is left.
    pub fn next_step(&self) -> Option<S> {
        let may_begin = |step: &&Step<S>| self.missing(step.step).is_none() && !has(self.begun, self.bit(step.step));
        Some(self.steps.iter().find(may_begin)?.step)
    }

    /// Begins the first step of the list that may begin. `None`: another one must end first, or none is left.
    pub fn begin_next(&mut self) -> Option<S> {
        let step = self.next_step()?;
        self.begun |= self.bit(step);
        Some(step)
    }

    /// Begins this step.
    ///
    /// # Errors
    /// The step has begun before, or another one must end first.
    pub fn begin(&mut self, step: S) -> Result<(), OutOfOrder<S>> {
        let missing = self.missing(step);
        if missing.is_some() || has(self.begun, self.bit(step)) {
            return Err(OutOfOrder { step, missing });
        }
        self.begun |= self.bit(step);
        Ok(())
    }

    /// Marks a begun step as ended successfully.
    ///
    /// # Errors
    /// The step has not begun, or has ended before.
    pub fn end(&mut self, step: S) -> Result<(), OutOfOrder<S>> {
        if !has(self.begun & !self.ended, self.bit(step)) {
            let missing = self.missing(step);
            return Err(OutOfOrder { step, missing });
        }
        self.ended |= self.bit(step);
        Ok(())
    }

    /// Marks a step as begun and ended at once.
    ///
    /// # Errors
    /// The step has begun before, or another one must end first.
    pub fn take(&mut self, step: S) -> Result<(), OutOfOrder<S>> {
        self.begin(step)?;
        self.end(step)
    }

    /// True if all steps have ended.
    pub fn is_over(&self) -> bool {
        self.steps.iter().all(|step| self.has_ended(step.step))
    }

    /// True if this step has ended.
    pub fn has_ended(&self, step: S) -> bool {
        has(self.ended, self.bit(step))
    }

    /// The first step that must end before this one begins.
    fn missing(&self, step: S) -> Option<S> {
        let listed = self.steps.iter().find(|listed| listed.step == step)?;
        listed.after.iter().copied().find(|before| !self.has_ended(*before))
    }

    /// The step's bit; 0 if it is not in the list.
    fn bit(&self, step: S) -> u32 {
        let place = self.steps.iter().position(|listed| listed.step == step);
        place.map_or(0, |place| 1 << place)
    }
}

fn has(bits: u32, bit: u32) -> bool {
    bits & bit != 0
}

impl<S: fmt::Debug> fmt::Display for OutOfOrder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.missing {
            Some(missing) => write!(f, "the step {:?} comes after {missing:?}", self.step),
            None => write!(f, "the step {:?} has begun or ended already, or never began", self.step),
        }
    }
}

impl<S: fmt::Debug> std::error::Error for OutOfOrder<S> {}

#[cfg(test)]
mod tests;
