//! Which key counts for which member (protocol.md rule 1). All agents share one TLS key, so the connection does not
//! prove the sender. A message counts only if it is signed with the key of the member that it names.

use super::Memo;
use super::facts::Context;
use super::members::SILENT;
use crate::protocol::{LeaseRecord, MemberId, MemberReport, ReportRequest};

/// The public key whose private half the sender of a message has proved to own; `None`: the message is not signed.
pub type Proven<'a> = Option<&'a str>;

/// The recorded key of `member`. A member never changes its key. The operator's certificate has priority, because
/// agents cannot write it and it survives a lost Lease.
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
///
/// # Errors
/// Fails as [`check_key`]; the text names the member.
pub(super) fn check(context: &Context, member: &MemberId, proven: Proven) -> Result<(), String> {
    check_key(of(context, member), proven).map_err(|reason| format!("{member}: {reason}"))
}

/// Checks that the sender has proved to have `key`.
///
/// # Errors
/// Fails if the message is not signed, is signed with another key, or `key` is not known.
pub(super) fn check_key(key: Option<&str>, proven: Proven) -> Result<(), String> {
    let proven = proven.ok_or("the message is not signed with the member's key")?;
    match key {
        Some(key) if key == proven => Ok(()),
        Some(_) => Err("the message is signed with another key than the member's".to_owned()),
        None => Err("neither the Lease nor the operator knows the member's key".to_owned()),
    }
}

/// Checks that the sender has proved to be the member of `pod`, if that pod has a recorded member.
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

/// Checks the sender of a report. A member without a recorded key proves that it owns the key that it reports; from
/// then on that key counts. While a certified member is heard, or may still be, its pod cannot report as another
/// member.
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
            "report.member: {pod} is known as {}; its reports as {member} count once that member has been silent for {} s",
            certified.member,
            SILENT.in_seconds()
        )),
        false => Ok(()),
    }
}

/// The Lease, or its last content if it is lost: losing the Lease does not change a key.
fn last_record<'a>(context: &Context<'a>) -> Option<&'a LeaseRecord> {
    let lost = context.observed.lease.lost.as_ref().map(|lost| &lost.before);
    context.record().or(lost)
}

fn key(report: &MemberReport) -> Option<&str> {
    report.public_key.as_deref()
}

#[cfg(test)]
mod tests;
