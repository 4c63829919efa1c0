//! What this member does for the archive of WAL.

use api::backup::BackupTask;

use super::facts::{Context, Tenure};
use super::{Memo, Mode, Observed};
use crate::archive::{ArchiveRecord, Charge};
use crate::protocol::LeaseRecord;
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
            up_to: context
                .record()
                .and_then(|record| record.archive.as_ref()?.progress.up_to),
        },
        Tenure::Held { .. }
        | Tenure::Lapsed
        | Tenure::OwnBefore(_)
        | Tenure::Other(_)
        | Tenure::Vacant
        | Tenure::Unknown => Charge::Wait,
    }
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
