//! Which key counts for which member (protocol.md rule 1). All agents share one TLS key, so a message proves nothing by its connection:
//! it counts only if its sender has signed it with the key of the member that it names.

use super::Memo;
use super::context::Context;
use super::members::SILENT;
use crate::protocol::{LeaseRecord, MemberId, MemberReport, ReportRequest};

/// The public key whose private half the sender of a message has proved to have; `None`: the message is not signed.
pub type Proven<'a> = Option<&'a str>;

/// The key on record for `member`. A member keeps its key as long as it exists. The operator's certificate comes first, because
/// agents cannot write it; it also outlives a lost Lease.
pub(super) fn of<'a>(context: &Context<'a>, member: &MemberId) -> Option<&'a str> {
    let mut certified = context
        .cluster()
        .into_iter()
        .flat_map(|cluster| cluster.certified.values());
    if let Some(certified) = certified.find(|certified| certified.member == *member) {
        return Some(&certified.key);
    }
    let recorded = last_record(context)
        .into_iter()
        .flat_map(|record| record.members.values());
    let heard = context.observed.peers.values().map(|peer| &peer.report);
    let known = recorded.chain(heard).filter(|report| report.member == *member);
    known.filter_map(key).next()
}

/// Checks that the sender has proved to be `member`.
pub(super) fn check(context: &Context, member: &MemberId, proven: Proven) -> Result<(), String> {
    check_key(of(context, member), proven).map_err(|reason| format!("{member}: {reason}"))
}

/// Checks that the sender has proved to have `key`.
pub(super) fn check_key(key: Option<&str>, proven: Proven) -> Result<(), String> {
    let proven = proven.ok_or("the message is not signed with the member's key")?;
    match key {
        Some(key) if key == proven => Ok(()),
        Some(_) => Err("the message is signed with another key than the member's".to_owned()),
        None => Err("neither the Lease nor the operator knows the member's key".to_owned()),
    }
}

/// Checks that the sender has proved to be the member of `pod`, as far as one is on record.
pub(super) fn check_pod(context: &Context, pod: &str, proven: Proven) -> Result<(), String> {
    let certified = context.cluster().and_then(|cluster| cluster.certified.get(pod));
    let recorded = last_record(context).and_then(|record| record.members.get(pod));
    let heard = context.observed.peers.get(pod).map(|peer| &peer.report);
    let known = certified
        .map(|certified| certified.key.as_str())
        .into_iter()
        .chain([recorded, heard].into_iter().flatten().filter_map(key));
    let known: Vec<&str> = known.collect();
    let matching = known.iter().find(|key| Some(**key) == proven).or(known.first());
    check_key(matching.copied(), proven).map_err(|reason| format!("{pod}: {reason}"))
}

/// Checks who reports. A member without a key on record proves that it has the key that it reports; from then on that key counts.
/// While a member that the operator has certified is heard, or may still be, its pod cannot report as another one.
pub(super) fn check_report(
    context: &Context,
    memo: &Memo,
    request: &ReportRequest,
    proven: Proven,
) -> Result<(), String> {
    let (pod, member) = (&request.pod, &request.report.member);
    check_key(key(&request.report), proven).map_err(|reason| format!("report.publicKey: {reason}"))?;
    if of(context, member).is_some() {
        return check(context, member, proven);
    }
    let certified = context.cluster().and_then(|cluster| cluster.certified.get(pod));
    let Some(certified) = certified else {
        return Ok(());
    };
    let peer = context.observed.peers.get(pod);
    let heard = peer.filter(|peer| peer.report.member == certified.member);
    let since = heard.map(|peer| peer.heard).max(memo.holding_since);
    match since.is_some_and(|since| context.now < since.plus(SILENT)) {
        true => Err(format!(
            "report.member: {pod} is known as {}; as {member} it is heard when that one has been silent for {} s",
            certified.member,
            SILENT / 1_000
        )),
        false => Ok(()),
    }
}

/// The Lease, or what it said before it was lost: a key does not change with it.
fn last_record<'a>(context: &Context<'a>) -> Option<&'a LeaseRecord> {
    let lost = context.observed.lease.lost.as_ref().map(|lost| &lost.before);
    context.record().or(lost)
}

fn key(report: &MemberReport) -> Option<&str> {
    report.public_key.as_deref()
}

#[cfg(test)]
mod tests;
