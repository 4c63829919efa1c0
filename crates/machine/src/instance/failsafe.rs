//! While the lease cannot be renewed, a primary serves on as long as enough others promise not to take it (protocol.md
//! rule 19). Nothing is written to the Lease for that, and `-rw` stays where it is.
//!
//! A promise lasts for the lease's duration from when it is given; the holder counts the shorter fence time from before it
//! asked. So it is fenced before those who promised may take the lease, as with a renewal.

use std::collections::BTreeMap;

use super::context::Context;
use super::{Action, Confirmed, Draft, FailsafeGiven, Memo, Mode, Observed, Rule, Verdict, election, members};
use crate::protocol::{Epoch, FailsafeReply, FailsafeRequest, LeaseRecord, MemberId};
use crate::quorum::SyncRule;
use crate::timing::BootTime;

/// A renewal is overdue after this part of the renewals' distance since the last one that succeeded: the next one was
/// due, and half of the distance has not brought its answer.
const OVERDUE_PERCENT: u64 = 150;

const OVERDUE: &str = "the lease cannot be renewed: the others are asked not to take it";
const LOST: &str = "the Lease is lost: the others are asked not to take it";

pub(super) const ASK_FAILSAFE: Rule = Rule {
    name: "ask-failsafe",
    family: "failsafe",
    what: "A holder that cannot renew its lease asks the other members not to take it.",
    protocol: &[19],
    decide: ask,
};

/// Asks the others not to take the lease, as long as its renewal is overdue or the Lease is lost.
fn ask(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    let record = context.last_record()?;
    let confirmed = context.observed.lease.confirmed.as_ref()?;
    if !context.writable() || draft.memo.gives_way.is_some() {
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
        // Their answers are needed to write it again, too.
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
    confirmed.sent.plus(context.timing().renew * OVERDUE_PERCENT / 100)
}

/// The Lease can be written, by all that is known: no write has failed since one succeeded, and that was not long ago.
pub(super) fn is_lease_writable(context: &Context) -> bool {
    let confirmed = context.observed.lease.confirmed.as_ref();
    context.tasks().lease.failures == 0 && confirmed.is_some_and(|confirmed| context.now < overdue(context, confirmed))
}

/// Members that may take the lease, with their addresses, by pod name: all others on record, and those that have reported
/// since it was written.
fn others<'a>(context: &'a Context, record: &'a LeaseRecord) -> BTreeMap<&'a String, (&'a MemberId, &'a String)> {
    let own = &context.observed.own.pod;
    let reported = context.observed.peers.iter().map(|(pod, peer)| (pod, &peer.report));
    let reported = reported.filter(|(pod, _)| members::is_wanted(context, pod));
    record
        .members
        .iter()
        .chain(reported)
        .filter(|(pod, _)| *pod != own)
        .map(|(pod, report)| (pod, (&report.member, &report.address)))
        .collect()
}

/// The newest time at which enough others had promised this holder not to take its lease; `None` if they have not, or if
/// the Lease says by now that it is over.
pub(super) fn sent(context: &Context) -> Option<BootTime> {
    let observed = context.observed;
    let record = context.last_record()?;
    let (epoch, confirmed) = (record.epoch, observed.lease.confirmed?.epoch);
    let holds = record.holder.as_ref().is_some_and(|holder| context.is_self(holder));
    if !holds || epoch < confirmed || observed.failsafe.is_empty() {
        return None;
    }
    // A write that was sent may be what the others see: theirs must be enough promises by that rule as well.
    let unsettled = observed.lease.unsettled.as_ref();
    let unsettled = unsettled.filter(|unsettled| unsettled.version == record.version);
    if unsettled.is_some_and(|unsettled| unsettled.releases) {
        return None;
    }
    let unsettled = unsettled.into_iter().flat_map(|unsettled| &unsettled.rules);
    let lost = context.lost().into_iter().flat_map(|lost| &lost.rules);
    let rules = unsettled.chain(lost);
    let times: Option<Vec<_>> = rules
        .chain([&record.rule])
        .map(|rule| sent_under(context, record, rule, epoch))
        .collect();
    times?.into_iter().min()
}

/// The same, if `rule` is what elections count by: so many names of it have promised that the others cannot elect anybody,
/// or, if commits wait for nobody, all that might take the lease by the clock.
fn sent_under(context: &Context, record: &LeaseRecord, rule: &SyncRule, epoch: Epoch) -> Option<BootTime> {
    let promised = context.observed.failsafe.iter();
    let promised = promised.filter(|(_, promise)| promise.epoch == epoch);
    if rule.is_synchronous() {
        let named = promised.filter(|(_, promise)| rule.names.contains(&promise.member));
        let latest: BTreeMap<_, _> = named.map(|(_, promise)| (&promise.member, promise.sent)).collect();
        let mut times: Vec<_> = latest.into_values().collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        return times.get(rule.required.checked_sub(1)?).copied();
    }
    let promised: BTreeMap<_, _> = promised.collect();
    let times: Option<Vec<_>> = others(context, record)
        .into_iter()
        .map(|(pod, (member, _))| Some(promised.get(pod).filter(|promise| promise.member == *member)?.sent))
        .collect();
    times?.into_iter().min()
}

/// Until when this member has promised the present holder not to take its lease, if that time is still to come. The
/// holder's run counts, not its epoch: it may be raising that at this moment, and still rely on the promise.
pub(super) fn given_until(context: &Context) -> Option<BootTime> {
    let given = context.observed.failsafe_given.as_ref()?;
    let record = context.record()?;
    let holds = |run: &String| *run == given.run && record.epoch >= given.epoch;
    let holder = record.holder.as_ref()?;
    (holds(&holder.incarnation.run) && context.now < given.until).then_some(given.until)
}

/// The answer to a holder that cannot renew its lease; `Err` says why it is refused. What is promised
/// ([`Observed::failsafe_given`]) is to be remembered before it is answered.
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
