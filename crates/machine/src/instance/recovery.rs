//! A primary's PostgreSQL has crashed: it recovers in place, or another member is elected, whichever is faster.
//!
//! A promotion waits only for the candidate's own short queue, while recovery replays all WAL since the last
//! checkpoint. But a holder that steps down must be rewound before it is of use again, and its last unacknowledged WAL
//! is lost. So it steps down only if that is faster by a wide margin. It never does if commits wait for no standby,
//! because its last commits would be lost.

use super::facts::Context;
use super::{Memo, failsafe, successors};
use crate::units::{Bytes, Millis};

/// How much WAL a recovery replays in a millisecond, in bytes: a fast disk and a warm cache reach 100 MB/s. If this is
/// too high, the wait still ends after ten seconds ([`super::step_down`]). If it is too low, the cluster loses
/// redundancy for nothing.
const REPLAYED: u64 = 100_000;
/// Time for an election, a promotion and the move of `-rw`, with a margin: they take a second if nothing is slow. A
/// recovery that is shorter than this (500 MB of WAL) is not interrupted.
const ELECTION: Millis = Millis::seconds(5);

/// A primary that has crashed, and the members that could take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crashed {
    /// WAL from the redo location of the last checkpoint to its end.
    pub redo: Bytes,
    /// How long it has not been able to write: it may have recovered for that long already.
    pub elapsed: Millis,
    /// WAL that the slowest electable member has not replayed yet. `None`: no member is electable, by the
    /// rule in the Lease and what is heard of its names.
    pub candidates: Option<Bytes>,
    /// True if it stepped down not long ago, and no other member has served since.
    pub stepped_down: bool,
    /// True if the Lease can be written, as far as is known. Otherwise stepping down would not help, because no member
    /// could take it.
    pub writable: bool,
}

/// What a crashed primary does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It recovers, for this reason.
    InPlace(String),
    /// It leaves the lease to another member, for this reason.
    StepDown(String),
}

/// Decides between the two.
pub(super) fn way(crashed: &Crashed) -> Way {
    let recovery = replay(crashed.redo).saturating_sub(crashed.elapsed);
    let replays = format!(
        "recovery replays {} MiB of WAL, at best in {}",
        crashed.redo.in_mib(),
        seconds(recovery)
    );
    let Some(queue) = crashed.candidates else {
        return Way::InPlace(format!("{replays}; no other member could be elected without a loss"));
    };
    let election = ELECTION + replay(queue);
    if recovery <= election {
        return Way::InPlace(format!("{replays}; an election may take {}", seconds(election)));
    }
    if crashed.stepped_down {
        return Way::InPlace(format!("{replays}; it stepped down before, and no member took over"));
    }
    if !crashed.writable {
        return Way::InPlace(format!("{replays}; the Lease cannot be written for an election"));
    }
    Way::StepDown(format!(
        "{replays}: it steps down, an election takes {}",
        seconds(election)
    ))
}

/// How long the replay of so much WAL takes.
fn replay(wal: Bytes) -> Millis {
    Millis(wal.0 / REPLAYED)
}

fn seconds(time: Millis) -> String {
    format!("{} s", time.in_seconds())
}

/// The same decision for this member, if it is a crashed primary that holds the lease.
pub(super) fn of(context: &Context, memo: &Memo) -> Option<Way> {
    let since = memo.unable_since?;
    let database = context.database()?;
    let standby = context.running() == Some(super::Mode::Standby);
    // The volume was read before this server started. A server that has left recovery has nothing left to replay.
    let recovered = context.observed.postgres.in_doubt.is_some();
    if context.held().is_none() || context.accepting() || context.stop_intended() || standby || recovered {
        return None;
    }
    if !context.knows_data() {
        return None;
    }
    if !database.primary || database.clean || !context.is_our_data() {
        return None;
    }
    Some(way(&Crashed {
        redo: database.written.since(database.redo),
        elapsed: context.now.since(since),
        candidates: successors::slowest_candidate(context),
        stepped_down: !successors::is_rested(context, memo),
        writable: failsafe::is_lease_writable(context),
    }))
}

#[cfg(test)]
mod tests;
