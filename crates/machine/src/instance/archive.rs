//! What this member does for the archive of WAL.

use api::backup::BackupTask;

use super::facts::lineage::{Lineage, lineage};
use super::facts::{Context, Tenure};
use super::{Memo, Mode, Observed, Stop};
use crate::archive::{self, ArchiveLine, ArchiveRecord, Charge, Fetch};
use crate::protocol::{HolderRecord, LeaseRecord, Lsn, Position};
use crate::timing::BootTime;
use crate::units::{Bytes, Millis};

/// A member that lacks more WAL than this is copied: replaying it would take longer, and its volume may have no room for it.
const FETCHED_AT_MOST: Bytes = Bytes::gib(16);

/// How long a primary that stops because all instances stop may go on archiving: nobody waits for it to hand over, and what is not in the
/// store then is in no recovery. Half of the time that its stop may take.
const ARCHIVES_ON: Millis = Millis::seconds(10);

/// What the archiver of this member's PostgreSQL may do now.
pub fn charge(observed: &Observed, memo: &Memo, now: BootTime) -> Charge {
    let context = Context::new(observed, now);
    let Some(cluster) = context.cluster() else {
        return Charge::Wait;
    };
    if !cluster.archives || cluster.archive_ended {
        return Charge::Nowhere;
    }
    if let Some(stopping) = memo.stopping {
        let goes_on = context.stop_intended() && stopping.stop == Stop::Fast && now < stopping.since.plus(ARCHIVES_ON);
        return match context.held() {
            Some((epoch, until)) if goes_on => Charge::Push { epoch, until },
            Some(_) | None => Charge::End,
        };
    }
    match context.tenure() {
        Tenure::Held { epoch, until } if context.accepting() => Charge::Push { epoch, until },
        Tenure::Other(holder) if context.running() == Some(Mode::Standby) && holder.serving => Charge::Confirm {
            up_to: confirmed(&context, holder),
        },
        Tenure::Held { .. }
        | Tenure::Lapsed
        | Tenure::OwnBefore(_)
        | Tenure::Other(_)
        | Tenure::Vacant
        | Tenure::Unknown => Charge::Wait,
    }
}

/// Whether this member's worker deletes all that this database has in the store: the holder's, once the user has confirmed that.
pub fn deletes(observed: &Observed, now: BootTime) -> bool {
    let context = Context::new(observed, now);
    let ordered = context
        .cluster()
        .is_some_and(|cluster| cluster.archives && cluster.archive_ended && cluster.deletes_archive);
    ordered && matches!(context.tenure(), Tenure::Held { .. }) && context.accepting()
}

/// The line of the archive that all members use.
pub fn line(observed: &Observed) -> ArchiveLine {
    let archive = observed.lease.record.is().and_then(|record| record.archive.as_ref());
    archive.map_or_else(ArchiveLine::default, |archive| archive.line)
}

/// Up to where the archive has the WAL that this member shares with the holder. `None` while this member's WAL is not known to be part of the
/// holder's history: the archive of that has other segments instead, and this member may be the only one with its own.
fn confirmed(context: &Context, holder: &HolderRecord) -> Option<Position> {
    let record = context.record()?;
    let up_to = record.archive.as_ref()?.progress.up_to?;
    if lineage(context) != Lineage::Follows {
        return None;
    }
    if holder.timeline == Some(up_to.timeline) {
        return Some(up_to);
    }
    // An earlier holder has written that. Its timeline may have gone on beyond where the present one left it, or is no ancestor.
    let fork = record.history.iter().find(|fork| fork.timeline == up_to.timeline)?;
    Some(Position {
        lsn: up_to.lsn.min(fork.end),
        ..up_to
    })
}

/// What the archive has of the WAL behind `end`, which the primary has removed; `None` if it does not have all of that, or this member
/// cannot read it.
pub(super) fn fetch(context: &Context, end: Lsn) -> Option<Fetch> {
    context.cluster().filter(|cluster| cluster.reads_archive)?;
    let Tenure::Other(holder) = context.tenure() else {
        return None;
    };
    let oldest = context.observed.reply.as_ref()?.oldest?;
    let to = confirmed(context, holder)?.lsn;
    let lineage = archive::Lineage {
        timeline: holder.timeline?,
        ancestors: context.record()?.history.clone(),
    };
    let is_little = oldest.0.saturating_sub(end.0) <= FETCHED_AT_MOST.0;
    // More than what is removed by now: the primary goes on removing WAL.
    (holder.serving && oldest <= to && is_little).then_some(Fetch { from: end, to, lineage })
}

/// What stands in the Lease about the archive from the next write on, with this about the backup. A holder that has not looked yet leaves
/// what the one before it has written: that names the timeline for which it is true.
pub(super) fn recorded(context: &Context, record: &LeaseRecord, backup: Option<BackupTask>) -> Option<ArchiveRecord> {
    context.cluster().filter(|cluster| cluster.archives)?;
    let own = context.observed.archive.clone().filter(|_| context.accepting());
    let mut next = own.or_else(|| record.archive.clone())?;
    next.backup = backup;
    // Only a holder begins a line, by a write of the Lease: one that is cut off begins none that others do not know.
    next.line = match line(context.observed) {
        used if next.conflict == Some(used) => used.next(),
        used => used,
    };
    next.conflict = None;
    next.catalogue = next.catalogue.or_else(|| record.archive.as_ref()?.catalogue.clone());
    Some(next)
}

#[cfg(test)]
mod tests;
