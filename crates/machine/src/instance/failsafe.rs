//! While the lease cannot be renewed, a primary serves as long as enough others promise not to take it (protocol.md
//! rule 19). Nothing is written to the Lease for that, and `-rw` does not change.
//!
//! A promise lasts for the lease's duration from the moment when it is given. The holder counts only the fence time,
//! and from before it asked. So the holder is fenced before the members that promised may take the lease, as with a
//! renewal.

use std::collections::BTreeMap;

use super::facts::{Context, others};
use super::{
    Action, Confirmed, Draft, FailsafeGiven, Memo, Mode, Observed, OnBackoff, Rule, RuleKind, Verdict, election,
};
use crate::protocol::{FailsafeReply, FailsafeRequest};
use crate::timing::BootTime;

/// A renewal is overdue after this share of the renewal interval, in percent: the next one was due, and half an
/// interval has brought no answer.
const OVERDUE_PERCENT: u64 = 150;

const OVERDUE: &str = "the lease cannot be renewed: the other members are asked not to take it";
const LOST: &str = "the Lease is lost: the other members are asked not to take it";

pub(super) const ASK_FAILSAFE: Rule = Rule {
    name: "ask-failsafe",
    family: "failsafe",
    what: "A holder that cannot renew its lease asks the other members not to take it.",
    protocol: &[19],
    kind: RuleKind::Act,
    decide: ask,
    on_backoff: OnBackoff::Yield,
};

/// Asks the other members while the renewal is overdue or the Lease is lost.
fn ask(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    let record = context.last_record()?;
    let confirmed = context.observed.lease.confirmed.as_ref()?;
    if !context.writable() || draft.memo.steps_down.is_some() {
        return None;
    }
    let task = &context.tasks().failsafe;
    if task.running.is_some() {
        return None;
    }
    let peers: BTreeMap<_, _> = others(context, record)
        .into_iter()
        .map(|(pod, (_, address))| (pod.clone(), address.clone()))
        .collect();
    if peers.is_empty() {
        return None;
    }
    let again = task.ended.plus(context.timing().renew / 2);
    let (at, because) = match context.lost() {
        // Their answers are also needed to write the Lease again.
        Some(lost) if task.ended < lost.since => (lost.since, LOST),
        Some(lost) => (lost.since.max(again), LOST),
        None => (overdue(context, confirmed).max(again), OVERDUE),
    };
    if !context.reached(at, draft) {
        return None;
    }
    let request = FailsafeRequest {
        epoch: record.epoch,
        pod: context.observed.own.pod.clone(),
        lease: record.uid.clone(),
    };
    Verdict::new(Action::AskFailsafe { peers, request }, because)
}

/// When a renewal after this one is overdue.
fn overdue(context: &Context, confirmed: &Confirmed) -> BootTime {
    confirmed.sent.plus(context.timing().renew.percent(OVERDUE_PERCENT))
}

/// True if the Lease can be written, as far as is known: no write has failed since one succeeded, and that was not long
/// ago.
pub(super) fn is_lease_writable(context: &Context) -> bool {
    let confirmed = context.observed.lease.confirmed.as_ref();
    context.tasks().lease.failures == 0 && confirmed.is_some_and(|confirmed| context.now < overdue(context, confirmed))
}

/// The answer to a holder that cannot renew its lease; `Err` says why the promise is refused. The promise
/// ([`Observed::failsafe_given`]) must be remembered before the answer is sent.
///
/// # Errors
/// Fails if the Lease, the identity or the promise is not known, or the Lease does not name the sender as its holder.
/// Also fails if this member has promised a later epoch, or is about to promise.
pub fn answer(
    observed: &Observed,
    now: BootTime,
    request: &FailsafeRequest,
) -> Result<(FailsafeReply, FailsafeGiven), String> {
    let context = Context::new(observed, now);
    let record = context.last_record().ok_or("the Lease has not been read")?;
    if record.uid != request.lease {
        return Err("the holder follows another Lease".to_owned());
    }
    let other = record.holder.as_ref().filter(|holder| !context.is_own_member(holder));
    let holder = other.ok_or("the Lease names no other member")?;
    if holder.incarnation.pod != request.pod || record.epoch != request.epoch {
        return Err(format!(
            "the Lease names {} in epoch {}",
            holder.incarnation.pod, record.epoch.0
        ));
    }
    let member = context.member().ok_or("this member has no identity yet")?;
    let promise = context
        .promise()
        .ok_or("what this member has promised cannot be read")?;
    if promise.epoch > request.epoch || context.tasks().promise.running.is_some() {
        return Err("this member promises an election".to_owned());
    }
    let upstream = observed
        .postgres
        .configured
        .as_ref()
        .and_then(|configured| configured.upstream.as_ref());
    let follows = upstream.is_some_and(|upstream| upstream.address == holder.address);
    let answer = observed.postgres.answer;
    let streams = answer.is_some_and(|answer| answer.in_recovery && answer.streaming);
    if context.running() != Some(Mode::Standby) || context.starting().is_some() || !follows || !streams {
        return Err("this member does not stream from the holder".to_owned());
    }
    if let Some(why) = election::suspicion(&context, &mut Draft::new(&Memo::default())) {
        return Err(format!("this member suspects the holder: {why}"));
    }
    let given = FailsafeGiven {
        epoch: request.epoch,
        run: holder.incarnation.run.clone(),
        until: now.plus(record.duration.max(context.timing().lease)),
    };
    let reply = FailsafeReply {
        member: member.id.clone(),
        epoch: request.epoch,
    };
    Ok((reply, given))
}

#[cfg(test)]
mod tests;
