//! Suspicion, promises and elections (protocol.md rules 4 to 9 and 12; docs/design.md, "Failover").

mod ask;
mod promise;
mod ranking;
mod release;
mod suspicion;
mod take;
mod waiting;

pub(super) use ask::ASK;
pub use promise::answer;
pub(super) use promise::{PROMISE, promise};
pub(super) use suspicion::{remember, suspicion};
pub(super) use take::{WIN_ELECTION, remember_tie};
pub(super) use waiting::waiting;

use super::facts::Context;
use crate::protocol::{Epoch, LeaseRecord};
use crate::units::Millis;

/// The pause between two rounds of requests: a round trip and a promise take about 20 ms each. If several members have
/// as much WAL, the preferred one has this time to take the lease first. (How long a round itself waits for answers,
/// 0.4 s, is decided by the agent.)
const PAUSE: Millis = Millis(100);
/// How long an answer is valid as its member's view of the primary.
pub(super) const FRESH: Millis = Millis::seconds(2);
/// After this time a member that has more WAL and does not answer counts as gone: it will not take the lease. The same
/// holds for one that answers and could have taken the lease for so long. A candidate that does not need its promise
/// stops waiting for it.
pub(super) const GONE: Millis = Millis::seconds(10);

/// True if the Lease is behind the status: it is an outdated view, or was restored by hand. Neither may decide.
fn is_behind_status(context: &Context, record: &LeaseRecord) -> bool {
    context
        .cluster()
        .and_then(|cluster| cluster.epoch)
        .is_some_and(|seen| seen > record.epoch)
}

/// Refuses an epoch that no election can have led to since the Lease was written (see [`crate::protocol::REACH`]).
pub(super) fn check_epoch(record: &LeaseRecord, field: &str, epoch: Epoch) -> Result<(), String> {
    match epoch.is_in_reach_of(record.epoch) {
        true => Ok(()),
        false => Err(format!(
            "{field}: epoch {} is out of reach, the Lease's is {}",
            epoch.0, record.epoch.0
        )),
    }
}

#[cfg(test)]
mod fixtures;
