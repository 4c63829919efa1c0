//! Whether this member's data is part of the primary's history (protocol.md rules 9 and 17).

use super::Context;
use super::following::{follows, upstream};
use super::promises::is_kept;
use crate::protocol::{Lsn, Timeline};

/// How this member's data relates to the primary's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::instance) enum Lineage {
    /// The data is part of the primary's history: the member can follow.
    Follows,
    /// It is not; or the data is a primary's, and where its WAL ends is not known.
    Diverged {
        /// The data's timeline.
        timeline: Timeline,
    },
    /// The primary has not published its history yet, or PostgreSQL has not reported where the local WAL ends.
    Unknown,
}

/// What is known of this member's WAL end.
struct Extent {
    timeline: Timeline,
    /// It has all WAL up to here.
    least: Lsn,
    /// It has no WAL beyond this; `None`: that is not known.
    most: Option<Lsn>,
}

/// Compares the data with the history that the holder published (protocol.md rule 9: LSNs of different timelines say nothing).
///
/// PostgreSQL lets a standby stream whose WAL goes beyond the fork, if its WAL ends in the fork's segment, and counts
/// for commits whatever position it reports. So a member follows only once all its WAL is known to be the primary's
/// too.
pub(in crate::instance) fn lineage(context: &Context) -> Lineage {
    let (Some(primary), Some(record), Some(own)) = (upstream(context), context.record(), extent(context)) else {
        return Lineage::Unknown;
    };
    let timeline = own.timeline;
    // A member that follows already was found to be able to.
    let is_within = |end: Lsn| own.most.is_some_and(|most| most <= end) || follows(context, primary);
    // A promotion that was begun here may have left WAL of a timeline that no other member has.
    let promoted = context.promise().is_some_and(|promise| promise.promoting.is_some());
    let Some(theirs) = primary.timeline else {
        // It has WAL of its reserved timeline: it was primary before, and all WAL of that timeline is its own.
        let goes_on = timeline == record.timeline.unwrap_or(Timeline(1));
        // It was elected and is not promoted yet. It wrote its own position into the Lease when it took it.
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

/// A running standby reports where its WAL ends once it has read all of it and receives none. That end is final only if
/// the standby follows no primary: a former primary that comes back could send more before the standby has read its new
/// settings. The control file of a stopped standby names a location after which more WAL may exist, also of a newer
/// timeline.
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
        // It may have written more than any other member has.
        (true, false) => (Lsn(u64::MAX), Lsn(u64::MAX)),
    };
    Some(Extent {
        timeline: database.timeline,
        least,
        most: Some(most),
    })
}

/// True if PostgreSQL's settings name no primary, and no failed promise may have left a WAL receiver running.
fn follows_nobody(context: &Context) -> bool {
    let configured = context.observed.postgres.configured.as_ref();
    configured.is_some_and(|configured| configured.upstream.is_none()) && is_kept(context)
}

/// The fault text of data that has diverged from the primary's and must be rewound.
pub(in crate::instance) fn fault(context: &Context) -> Option<String> {
    let primary = upstream(context)?;
    match lineage(context) {
        Lineage::Diverged { timeline } => Some(format!(
            "the data diverged on timeline {}, the primary {} is on {}: it must be rewound",
            timeline.0, primary.incarnation.pod, primary.timeline?.0
        )),
        Lineage::Follows | Lineage::Unknown => None,
    }
}

#[cfg(test)]
mod tests;
