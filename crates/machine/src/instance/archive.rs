//! What this member does for the archive of WAL.

use api::backup::BackupTask;

use super::facts::lineage::{Lineage, lineage};
use super::facts::{Context, Tenure};
use super::{Memo, Mode, Observed};
use crate::archive::{ArchiveRecord, Charge};
use crate::protocol::{HolderRecord, LeaseRecord, Position};
use crate::timing::BootTime;

/// What the archiver of this member's PostgreSQL may do now.
pub fn charge(observed: &Observed, memo: &Memo, now: BootTime) -> Charge {
    let context = Context::new(observed, now);
    let Some(cluster) = context.cluster() else {
        return Charge::Wait;
    };
    if !cluster.archives {
        return Charge::Nowhere;
    }
    if memo.stopping.is_some() {
        return Charge::End;
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

/// What stands in the Lease about the archive from the next write on, with this about the backup. A holder that has not looked yet leaves
/// what the one before it has written: that names the timeline for which it is true.
pub(super) fn recorded(context: &Context, record: &LeaseRecord, backup: Option<BackupTask>) -> Option<ArchiveRecord> {
    context.cluster().filter(|cluster| cluster.archives)?;
    let own = context.observed.archive.clone().filter(|_| context.accepting());
    let mut next = own.or_else(|| record.archive.clone())?;
    next.backup = backup;
    next.catalogue = next.catalogue.or_else(|| record.archive.as_ref()?.catalogue.clone());
    Some(next)
}

#[cfg(test)]
mod tests;
