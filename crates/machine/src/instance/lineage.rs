//! Whether this member's data is part of the primary's history (protocol.md rules 9 and 17).

use super::context::Context;
use super::{election, standby};
use crate::protocol::{Lsn, Timeline};

/// What is known of this member's data beside the primary's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lineage {
    /// It is part of the primary's history: it can follow.
    Follows,
    /// It is not; or where its WAL ends is not known, and it was written by a primary.
    Diverged {
        /// Its timeline.
        timeline: Timeline,
    },
    /// The primary has not said yet what its history is, or PostgreSQL not where the WAL ends that lies here.
    Unknown,
}

/// Where this member's WAL ends.
struct Extent {
    timeline: Timeline,
    /// It has all up to here.
    least: Lsn,
    /// It has nothing behind this; `None`: that is not known.
    most: Option<Lsn>,
}

/// Compares the data with the history that the holder published (protocol.md rule 9: LSNs of different timelines say nothing).
///
/// PostgreSQL lets a standby whose WAL goes beyond the fork begin to stream, if it ends in the fork's segment, and counts for
/// commits all that it says it has. So nobody follows before it is known that all that it has is the primary's, too.
pub(super) fn lineage(context: &Context) -> Lineage {
    let (Some(primary), Some(record), Some(own)) = (standby::upstream(context), context.record(), extent(context))
    else {
        return Lineage::Unknown;
    };
    let timeline = own.timeline;
    // Whoever follows already was found to be able to.
    let is_within = |end: Lsn| own.most.is_some_and(|most| most <= end) || standby::follows(context, primary);
    // A promotion that was begun here may have left WAL of a timeline that nobody else has.
    let promoted = context.promise().is_some_and(|promise| promise.promoting.is_some());
    let Some(theirs) = primary.timeline else {
        // It has WAL of the timeline that is reserved for it: it was primary before, and all that there is of it is its own.
        let goes_on = timeline == record.timeline.unwrap_or(Timeline(1));
        // It was elected, and is not promoted yet. What it has itself it wrote into the Lease when it took it.
        let has = record.positions.get(&primary.incarnation.pod);
        let has_all = has.is_some_and(|has| has.timeline == timeline && is_within(has.lsn));
        return match !promoted && (goes_on || has_all) {
            true => Lineage::Follows,
            false => Lineage::Unknown,
        };
    };
    let fork = record.history.iter().find(|fork| fork.timeline == timeline);
    match fork {
        _ if promoted => Lineage::Diverged { timeline },
        None if timeline == theirs => Lineage::Follows,
        Some(fork) if own.least <= fork.end => match is_within(fork.end) {
            true => Lineage::Follows,
            false => Lineage::Unknown,
        },
        Some(_) | None => Lineage::Diverged { timeline },
    }
}

/// A running standby says where its WAL ends, once it has read all and receives none. That end is final only if the standby
/// follows nobody: a former primary that comes back sends more before the standby has read its new settings. The control file
/// of a stopped standby names a place behind which more WAL may lie, also of a newer timeline.
fn extent(context: &Context) -> Option<Extent> {
    if let (Some(_), Some(position)) = (context.running(), context.position()) {
        let end = context.final_position().map(|position| position.lsn);
        return Some(Extent {
            timeline: position.timeline,
            least: position.lsn,
            most: end.filter(|_| follows_nobody(context)),
        });
    }
    let database = context.database()?;
    let (least, most) = match (database.primary, database.clean) {
        (false, _) => (database.checkpoint, database.written.max(database.checkpoint)),
        (true, true) => (database.checkpoint, database.checkpoint),
        // It may have written more than anybody has.
        (true, false) => (Lsn(u64::MAX), Lsn(u64::MAX)),
    };
    Some(Extent {
        timeline: database.timeline,
        least,
        most: Some(most),
    })
}

/// PostgreSQL's settings name no primary to receive from, and no promise that failed may have left a WAL receiver running.
fn follows_nobody(context: &Context) -> bool {
    let configured = context.observed.postgres.configured.as_ref();
    configured.is_some_and(|configured| configured.upstream.is_none()) && election::is_kept(context)
}

#[cfg(test)]
mod tests;
