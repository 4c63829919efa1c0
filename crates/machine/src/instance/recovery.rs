//! A primary's PostgreSQL has crashed: it recovers in place, or another member is elected meanwhile, whichever is faster.
//!
//! A promotion waits for nothing but the candidate's own short queue, while recovery replays all WAL since the last
//! checkpoint. But who gives way has to be rewound before it is of use again, and its unacknowledged last moments are lost.
//! So it gives way only if that is worth it by a wide margin, and never if commits wait for nobody: what it acknowledged
//! alone would be lost.

use super::context::Context;
use super::{Memo, failsafe, give_way};

/// How much WAL a recovery replays in a millisecond, in bytes: 100 MB a second is what a fast disk and a warm cache reach.
/// Taken too high, it costs a wait that ends after ten seconds all the same ([`give_way`]); too low, redundancy for nothing.
const REPLAYED: u64 = 100_000;
/// What an election, a promotion and the move of `-rw` take, in milliseconds, the margin included: a second when nothing is
/// slow. A recovery that is shorter than this (500 MB of WAL) is left alone.
const ELECTION: u64 = 5_000;

/// A primary that has crashed, and who else there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crashed {
    /// WAL from the redo point of the last checkpoint to its end, in bytes.
    pub redo: u64,
    /// For so long it has not been able to write, in milliseconds: so long it may have recovered already.
    pub elapsed: u64,
    /// WAL that the slowest of those who may be elected has not replayed yet, in bytes; `None`: nobody may, by the rule on
    /// record and what is heard of its members.
    pub candidates: Option<u64>,
    /// It gave way not long ago, and nobody has held the lease since.
    pub gave_way: bool,
    /// The Lease can be written, by all that is known: it is no use to give way to members that cannot take it.
    pub writable: bool,
}

/// What a crashed primary does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It recovers, and why.
    InPlace(String),
    /// It leaves the lease to another member, and why.
    GiveWay(String),
}

/// In place, or not.
pub(super) fn way(crashed: &Crashed) -> Way {
    let recovery = (crashed.redo / REPLAYED).saturating_sub(crashed.elapsed);
    let replays = format!(
        "recovery replays {} MiB of WAL, at best in {}",
        crashed.redo >> 20,
        seconds(recovery)
    );
    let Some(queue) = crashed.candidates else {
        return Way::InPlace(format!("{replays}; nobody else could be elected without a loss"));
    };
    let election = ELECTION + queue / REPLAYED;
    if recovery <= election {
        return Way::InPlace(format!("{replays}; an election may take {}", seconds(election)));
    }
    if crashed.gave_way {
        return Way::InPlace(format!("{replays}; it gave way before, and nobody took over"));
    }
    if !crashed.writable {
        return Way::InPlace(format!("{replays}; the Lease cannot be written for an election"));
    }
    Way::GiveWay(format!(
        "{replays}: it gives way, an election takes {}",
        seconds(election)
    ))
}

fn seconds(milliseconds: u64) -> String {
    format!("{} s", milliseconds.div_ceil(1_000))
}

/// The same for this member, if it is a primary that has crashed and holds the lease.
pub(super) fn of(context: &Context, memo: &Memo) -> Option<Way> {
    let since = memo.unable_since?;
    let database = context.database()?;
    let standby = context.running() == Some(super::Mode::Standby);
    // The volume was read before this server started: a server that has left recovery has no more to replay.
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
        redo: database.written.0.saturating_sub(database.redo.0),
        elapsed: context.now.since(since),
        candidates: give_way::slowest_candidate(context),
        gave_way: !give_way::is_rested(context, memo),
        writable: failsafe::is_lease_writable(context),
    }))
}

#[cfg(test)]
mod tests;
