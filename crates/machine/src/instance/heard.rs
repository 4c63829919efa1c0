//! Messages of other members: accepted, or refused before anything is remembered of them.

use super::election::check_epoch;
use super::facts::Context;
use super::keys::{self, Proven};
use super::{Failsafe, Memo, Observed, Peer, Promised, failsafe, members, report};
use crate::protocol::{
    FailsafeReply, FailsafeRequest, LeaseRecord, PromiseReply, PromiseRequest, ReportReply, ReportRequest, Timeline,
};
use crate::timing::BootTime;

/// Answers a member's report and remembers its content. Pods that are not wanted are forgotten after some time of
/// silence.
///
/// # Errors
/// Says why the report is refused; then nothing of it is remembered.
pub fn report(
    observed: &mut Observed,
    memo: &Memo,
    now: BootTime,
    request: ReportRequest,
    proven: Proven,
) -> Result<ReportReply, String> {
    let context = Context::new(observed, now);
    keys::check_report(&context, memo, &request, proven)?;
    check_report(&context, &request)?;
    let reply = report::answer(observed, memo, now, &request)?;
    let peer = Peer {
        report: request.report,
        position: request.position,
        replayed: request.replayed,
        promised: request.promised,
        backup: request.backup,
        heard: now,
    };
    observed.peers.insert(request.pod, peer);
    let context = Context::new(observed, now);
    let gone = observed
        .peers
        .iter()
        .filter(|(pod, peer)| members::is_gone(&context, pod, peer.heard));
    let gone: Vec<_> = gone.map(|(pod, _)| pod.clone()).collect();
    observed.peers.retain(|pod, _| !gone.contains(pod));
    Ok(reply)
}

/// Remembers that a candidate requests a promise, before [`super::election::answer`] answers it. A request of another
/// database's candidate, or for an epoch that no member can stand for, changes nothing.
///
/// # Errors
/// Says why the request is not to be answered: the candidate has not proved to be a member.
pub fn candidate(
    observed: &mut Observed,
    request: &PromiseRequest,
    proven: Proven,
    now: BootTime,
) -> Result<(), String> {
    let Some(record) = observed.lease.record.is() else {
        return Ok(());
    };
    if record.uid != request.lease || check_epoch(record, "epoch", request.epoch).is_err() {
        return Ok(());
    }
    keys::check_pod(&Context::new(observed, now), &request.pod, proven)?;
    observed.asked_for = observed.asked_for.max(Some(request.epoch));
    Ok(())
}

/// Remembers a member's answer to a request for a promise.
///
/// # Errors
/// Says why the answer does not count.
pub fn answer(
    observed: &mut Observed,
    pod: String,
    reply: PromiseReply,
    proven: Proven,
    now: BootTime,
) -> Result<(), String> {
    keys::check(&Context::new(observed, now), &reply.member, proven)?;
    observed.promises.insert(pod, Promised { reply, at: now });
    Ok(())
}

/// Answers a holder that cannot renew its lease, and remembers the promise.
///
/// # Errors
/// Says why it is refused; then nothing is promised.
pub fn holder(
    observed: &mut Observed,
    now: BootTime,
    request: &FailsafeRequest,
    proven: Proven,
) -> Result<FailsafeReply, String> {
    let (reply, given) = failsafe::answer(observed, now, request)?;
    keys::check_key(holders_key(observed, now).as_deref(), proven)?;
    observed.failsafe_given = Some(given);
    Ok(reply)
}

/// Remembers a member's promise to leave the lease to this holder, which asked for it at `sent`.
///
/// # Errors
/// Says why the promise does not count.
pub fn leaves_lease(
    observed: &mut Observed,
    pod: String,
    reply: FailsafeReply,
    proven: Proven,
    sent: BootTime,
) -> Result<(), String> {
    keys::check(&Context::new(observed, sent), &reply.member, proven)?;
    let promise = Failsafe {
        member: reply.member,
        epoch: reply.epoch,
        sent,
    };
    observed.failsafe.insert(pod, promise);
    Ok(())
}

/// The key on record for the holder of the lease.
pub fn holders_key(observed: &Observed, now: BootTime) -> Option<String> {
    let context = Context::new(observed, now);
    let holder = context.last_record()?.holder.as_ref()?;
    keys::of(&context, &holder.incarnation.member).map(str::to_owned)
}

/// Checks the answer to a report; `key` is [`holders_key`] of the holder that was called.
///
/// # Errors
/// Says why the answer does not count.
pub fn check_answer(key: Option<&str>, proven: Proven) -> Result<(), String> {
    keys::check_key(key, proven)
}

/// Checks a report, because its content goes into the Lease: the holder adopts its epoch, and positions rank members in
/// elections.
fn check_report(context: &Context, request: &ReportRequest) -> Result<(), String> {
    let record = context.record().ok_or("the Lease has not been read")?;
    check_epoch(record, "promised", request.promised)?;
    if let Some(position) = request.position {
        check_timeline(context, record, "position.timeline", position.timeline)?;
    }
    Ok(())
}

/// The same check for a timeline. Until an election has reserved one, the holder's own is the newest.
fn check_timeline(context: &Context, record: &LeaseRecord, field: &str, timeline: Timeline) -> Result<(), String> {
    let holders = record.holder.as_ref().and_then(|holder| holder.timeline);
    let own = context.database().map(|database| database.timeline);
    let known = [record.timeline, holders, own].into_iter().flatten().max();
    let known = known.unwrap_or(Timeline(1));
    match timeline.is_in_reach_of(known) {
        true => Ok(()),
        false => Err(format!(
            "{field}: timeline {} is out of reach, the newest is {}",
            timeline.0, known.0
        )),
    }
}

#[cfg(test)]
mod tests;
