//! Promising a candidate, and telling it where the WAL ends (protocol.md rules 4 to 6).

use super::release::{covers_release, may_succeed};
use super::suspicion::suspicion;
use super::{FRESH, ROUND, is_behind_status};
use crate::instance::context::Context;
use crate::instance::{Action, Draft, Memo, Mode, Observed, Rule, Verdict, heard, loss};
use crate::protocol::{Epoch, LeaseRecord, PromiseReply, PromiseRequest};
use crate::timing::BootTime;

/// The answer to a candidate (protocol.md rule 4 v); `Err` says why there is none. The request is to be remembered
/// ([`heard::candidate`]) before it is answered.
pub fn answer(observed: &Observed, now: BootTime, request: &PromiseRequest) -> Result<PromiseReply, String> {
    let context = Context::new(observed, now);
    let record = context.record().ok_or("the Lease has not been read")?;
    if record.uid != request.lease {
        return Err("the candidate follows another Lease".to_owned());
    }
    heard::check_epoch(record, "epoch", request.epoch)?;
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
    what: "Promises to receive no more WAL of this epoch, when this member suspects the primary and a candidate may win.",
    protocol: &[4, 5, 19],
    decide: promise,
};

/// Promises never again to receive WAL of the present epoch: when this member suspects the primary, and somebody stands
/// for election with whom it may be won.
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
    if !context.is_free(&context.tasks().promise, ROUND, draft) {
        return None;
    }
    Verdict::new(Action::Promise { epoch }, suspicion)
}

/// What stands on the volume is kept: the WAL receiver was proved to be gone. A promise is written down before that, and the
/// rest may have failed.
pub(in crate::instance) fn is_kept(context: &Context) -> bool {
    let task = &context.tasks().promise;
    task.running.is_none() && task.failures == 0
}

/// This member stands for election now: what is needed may come together. A member that suspects alone promises nothing,
/// so that a one-sided cut costs no replication.
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
