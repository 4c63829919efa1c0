//! Promising the next epoch, and reporting the WAL end to a candidate (protocol.md rules 4 to 6).

use super::release::{covers_release, may_succeed};
use super::suspicion::suspicion;
use super::{FRESH, PAUSE, check_epoch, is_behind_status};
use crate::instance::facts::Context;
use crate::instance::facts::promises::is_kept;
use crate::instance::{Action, Draft, Memo, Mode, Observed, OnBackoff, Rule, RuleKind, Verdict, loss};
use crate::protocol::{Epoch, LeaseRecord, PromiseReply, PromiseRequest};
use crate::timing::BootTime;

/// The answer to a candidate (protocol.md rule 4, step 5); `Err` says why there is none. The request must be remembered
/// ([`crate::instance::heard::candidate`]) before it is answered.
///
/// # Errors
/// Fails if the Lease, the identity or the promise is not known. Also fails if the candidate follows another Lease, or
/// names an epoch out of reach.
pub fn answer(observed: &Observed, now: BootTime, request: &PromiseRequest) -> Result<PromiseReply, String> {
    let context = Context::new(observed, now);
    let record = context.record().ok_or("the Lease has not been read")?;
    if record.uid != request.lease {
        return Err("the candidate follows another Lease".to_owned());
    }
    check_epoch(record, "epoch", request.epoch)?;
    let member = context.member().ok_or("this member has no identity yet")?;
    let promise = context
        .promise()
        .ok_or("what this member has promised cannot be read")?;
    let suspects = suspicion(&context, &mut Draft::new(&Memo::default())).is_some();
    let kept = promise.epoch >= request.epoch && is_kept(&context);
    Ok(PromiseReply {
        member: member.id.clone(),
        promised: promise.epoch,
        suspects,
        position: context.electable_position().filter(|_| kept),
    })
}

pub(in crate::instance) const PROMISE: Rule = Rule {
    name: "promise",
    family: "election",
    what: "Promises the next epoch when this member suspects the primary and a candidate may win: then it receives no more WAL of the present epoch.",
    protocol: &[4, 5, 19, 23],
    kind: RuleKind::Act,
    decide: promise,
    on_backoff: OnBackoff::Yield,
};

/// Promises never again to receive WAL of the present epoch. Applies when this member suspects the primary, and a
/// candidate exists that may win with it.
pub(in crate::instance) fn promise(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let promise = context.promise()?;
    let epoch = record.epoch.next()?;
    let kept = promise.epoch > epoch || promise.epoch == epoch && is_kept(context);
    if kept || context.member().is_none() || is_behind_status(context, record) {
        return None;
    }
    let suspicion = suspicion(context, draft)?;
    let asked = context.observed.asked_for.is_some_and(|asked| asked >= epoch);
    if !asked && !stands(context, record, epoch) {
        return None;
    }
    if !context.is_free(&context.tasks().promise, PAUSE, draft) {
        return None;
    }
    Verdict::new(Action::Promise { epoch }, suspicion)
}

/// True if this member should stand for election now, because the needed promises may come together. A member that
/// alone suspects the primary promises nothing, so a one-sided cut costs no replication.
fn stands(context: &Context, record: &LeaseRecord, epoch: Epoch) -> bool {
    if context.running() != Some(Mode::Standby) || !context.is_our_data() {
        return false;
    }
    if covers_release(record, context.position()) {
        return may_succeed(context, record);
    }
    if !record.rule.is_synchronous() || loss::is_accepted(context, record) {
        return true;
    }
    let likely = context.observed.promises.values().filter(|promised| {
        promised.reply.promised >= epoch || promised.reply.suspects && context.now.since(promised.at) < FRESH
    });
    let likely = likely.map(|promised| &promised.reply.member);
    let own = context.member().map(|member| &member.id);
    record.rule.can_elect(likely.chain(own))
}

#[cfg(test)]
mod tests;
