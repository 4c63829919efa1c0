//! A lost Lease is written again by its holder, if the holder can prove that no other member has held it since
//! (protocol.md rule 18; the argument is in docs/design.md, "A Lease that is lost heals by itself").

use super::facts::{Context, failsafe_sent};
use super::lease_rules;
use super::{Draft, Lost, OnBackoff, Reading, Rule, RuleKind, Verdict};
use crate::protocol::LeaseRecord;

pub(super) const RESTORE_LEASE: Rule = Rule {
    name: "restore-lease",
    family: "restore",
    what: "A primary writes a lost Lease again, when enough members promise that no other has held it.",
    protocol: &[18],
    kind: RuleKind::Act,
    decide: restore,
    on_backoff: OnBackoff::Yield,
};

/// Writes the last content of the Lease into the object in its place, in the next epoch and on the same timeline.
fn restore(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let lost = context.lost()?;
    let place = lost.place.as_ref()?;
    let owned = context.cluster().map(|cluster| &cluster.uid) == place.owner.as_ref();
    if !owned || !is_proven(context, lost) || overtaken(context, &lost.before) {
        return None;
    }
    if draft.memo.steps_down.is_some() || !lease_rules::is_free(context, draft) {
        return None;
    }
    // The same as a renewal of that content, but in another object.
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
        "the Lease is lost, and enough members promise that no other has held it: this primary writes it again",
    )
}

/// True if this run writes as the holder, and for each rule that elections may have counted by enough names have
/// promised no later epoch. Enough are as many as commits wait for, because every election needs one of them. Their
/// answers must be younger than the present state of the Lease.
fn is_proven(context: &Context, lost: &Lost) -> bool {
    let promised = failsafe_sent(context);
    context.accepting() && context.held().is_some() && promised.is_some_and(|sent| sent >= lost.since)
}

/// True if a later epoch or another database is known elsewhere: the operator has seen a later epoch, or an election
/// may have used an accepted loss.
fn overtaken(context: &Context, before: &LeaseRecord) -> bool {
    let Some(cluster) = context.cluster() else { return true };
    let seen = cluster.epoch.is_none_or(|seen| seen > before.epoch);
    let accepted = cluster.accepted_loss.is_some_and(|accepted| accepted >= before.epoch);
    seen || accepted || cluster.system_id.is_none() || cluster.system_id != before.system_id
}

#[cfg(test)]
mod tests;
