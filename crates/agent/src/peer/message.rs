//! Messages of peers are checked before the machine sees them: what a member says of itself goes into the Lease, which
//! every member and the operator read.

use api::names::Names;
use machine::json;
use machine::protocol::{FailsafeReply, FailsafeRequest, MemberId, PromiseReply, PromiseRequest, ReportRequest};
use serde::de::DeserializeOwned;

/// Reads a message; an error names the field that is wrong.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    json::parse(body).map_err(|error| format!("the message is not understood: {error}"))
}

/// Checks a report, and cuts its words.
pub(super) fn check_report(mut request: ReportRequest, names: &Names) -> Result<ReportRequest, String> {
    let ordinal = check_pod(&request.pod, names)?;
    let report = &mut request.report;
    check_member("report.member", &report.member)?;
    if report.member.ordinal() != Some(ordinal) {
        return Err(format!(
            "report.member: {} is no member of pod {}",
            report.member, request.pod
        ));
    }
    // Only the primary's own count.
    report.impostors.clear();
    report.cut();
    report.check().map_err(|reason| format!("report.{reason}"))?;
    Ok(request)
}

/// Checks a candidate's request.
pub(super) fn check_request(request: PromiseRequest, names: &Names) -> Result<PromiseRequest, String> {
    check_pod(&request.pod, names)?;
    Ok(request)
}

/// Checks a promise.
pub(super) fn check_reply(reply: PromiseReply) -> Result<PromiseReply, String> {
    check_member("member", &reply.member)?;
    Ok(reply)
}

/// Checks a holder's request.
pub(super) fn check_failsafe_request(request: FailsafeRequest, names: &Names) -> Result<FailsafeRequest, String> {
    check_pod(&request.pod, names)?;
    Ok(request)
}

/// Checks the answer to a holder.
pub(super) fn check_failsafe_reply(reply: FailsafeReply) -> Result<FailsafeReply, String> {
    check_member("member", &reply.member)?;
    Ok(reply)
}

fn check_pod(pod: &str, names: &Names) -> Result<u32, String> {
    names
        .instance(pod)
        .ok_or_else(|| format!("pod: {} is no pod of {}", shown(pod), names.cluster()))
}

fn check_member(field: &str, member: &MemberId) -> Result<(), String> {
    match MemberId::parse(member.as_str()) {
        Some(_) => Ok(()),
        None => Err(format!("{field}: {} is no member", shown(member.as_str()))),
    }
}

/// So much of a name that is none is repeated, in characters.
const SHOWN: usize = 64;

fn shown(name: &str) -> String {
    format!("{:?}", name.chars().take(SHOWN).collect::<String>())
}

#[cfg(test)]
mod tests;
