//! A lost Lease is written again by its holder, where that can prove that nobody else has held it since (protocol.md rule 18;
//! docs/design.md, "A Lease that is lost heals by itself", has the argument).

use super::context::Context;
use super::lost::Lost;
use super::{Draft, Reading, Rule, Verdict};
use super::{failsafe, lease_rules};
use crate::protocol::LeaseRecord;

pub(super) const RESTORE_LEASE: Rule = Rule {
    name: "restore-lease",
    family: "restore",
    what: "A primary writes a lost Lease again, when enough members promise that nobody else has held it.",
    protocol: &[18],
    decide: restore,
};

/// Writes all that stood in the Lease into the object that is in its place, in the next epoch and on the same timeline.
fn restore(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let lost = context.lost()?;
    let place = lost.place.as_ref()?;
    let owned = context.cluster().map(|cluster| &cluster.uid) == place.owner.as_ref();
    if !owned || !is_proven(context, lost) || overtaken(context, &lost.before) {
        return None;
    }
    if draft.memo.gives_way.is_some() || !lease_rules::is_free(context, draft) {
        return None;
    }
    // The same as a renewal of what stood in it, but in another place.
    let mut observed = context.observed.clone();
    let record = LeaseRecord {
        uid: place.uid.clone(),
        version: place.version.clone(),
        ..lost.before.clone()
    };
    (observed.lease.record, observed.lease.lost) = (Reading::Is(record.clone()), None);
    let restored = Context::new(&observed, context.now);
    let write = lease_rules::Write {
        epoch: record.epoch.max(lease_rules::promised_above(&restored)).next()?,
        holder: Some(lease_rules::holder(&restored, &record)?),
        ..lease_rules::Write::renewal(&record)
    };
    Verdict::new(
        write.action(&restored, draft),
        "the Lease is lost, and enough members promise that nobody else has held it: this primary writes it again",
    )
}

/// This run writes as the holder, and of each rule that elections may have counted by, so many names as commits wait for have
/// said since the Lease was seen as it is that they have promised no later epoch. An election needs one of these.
fn is_proven(context: &Context, lost: &Lost) -> bool {
    let promised = failsafe::sent(context);
    context.accepting() && context.held().is_some() && promised.is_some_and(|sent| sent >= lost.since)
}

/// Others know of a later epoch, or another database: the operator has seen one, or an election may have gone by what the user
/// accepted to lose.
fn overtaken(context: &Context, before: &LeaseRecord) -> bool {
    let Some(cluster) = context.cluster() else { return true };
    let seen = cluster.epoch.is_none_or(|seen| seen > before.epoch);
    let accepted = cluster.accepted_loss.is_some_and(|accepted| accepted >= before.epoch);
    seen || accepted || cluster.system_id.is_none() || cluster.system_id != before.system_id
}

#[cfg(test)]
mod tests;
