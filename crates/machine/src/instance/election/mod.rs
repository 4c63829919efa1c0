//! Suspecting the primary, promising, asking and being elected (protocol.md rules 4 to 9 and 12; docs/design.md, "Failover").

mod ask;
mod promise;
mod ranking;
mod release;
mod suspicion;
mod take;
mod waiting;

pub(super) use ask::ASK;
pub use promise::answer;
pub(super) use promise::{PROMISE, is_kept, promise};
pub(super) use suspicion::{remember, suspicion};
pub(super) use take::{WIN_ELECTION, next_timeline, remember_tie};
pub(super) use waiting::waiting;

use super::context::Context;
use crate::protocol::LeaseRecord;

/// Distance between rounds of asking, in milliseconds: a round trip and a promise take some 20 ms each.
const ROUND: u64 = 100;
/// For so long an answer says how its member sees the primary, in milliseconds.
pub(super) const FRESH: u64 = 2_000;
/// A member that has more WAL and has not answered for so long, in milliseconds, is gone: it will not take the lease. The same holds
/// for one that answers, and could have taken the lease for so long. Nobody waits for such a member whose election needs no promise
/// of it.
pub(super) const GONE: u64 = 10_000;

/// A Lease behind the status is an old view of it, or was put back by somebody: either way it decides nothing.
fn is_behind_status(context: &Context, record: &LeaseRecord) -> bool {
    context
        .cluster()
        .and_then(|cluster| cluster.epoch)
        .is_some_and(|seen| seen > record.epoch)
}

#[cfg(test)]
mod fixtures;
