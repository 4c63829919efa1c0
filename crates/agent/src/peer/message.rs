//! Checks of peers' messages, before the machine sees them: a member's report goes into the Lease, which every member
//! and the operator read.

use api::names::Names;
use machine::json;
use machine::protocol::{
    FailsafeReply, FailsafeRequest, MemberId, PoolerRequest, PromiseReply, PromiseRequest, ReportRequest,
};
use serde::de::DeserializeOwned;

/// Parses a message.
///
/// # Errors
/// Fails if the message is not understood; the text names the wrong field.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    json::parse(body).map_err(|error| format!("the message is not understood: {error}"))
}

/// Checks a report, and cuts its texts to their limits.
///
/// # Errors
/// Fails if a field is out of its range or names another member or pod; the text says which.
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
    // Only the impostors that the primary itself sees count.
    report.impostors.clear();
    report.cut();
    report.check().map_err(|reason| format!("report.{reason}"))?;
    request.check_backup()?;
    Ok(request)
}

/// Checks a candidate's request for a promise.
///
/// # Errors
/// Fails if a field is out of its range or names another member or pod; the text says which.
pub(super) fn check_request(request: PromiseRequest, names: &Names) -> Result<PromiseRequest, String> {
    check_pod(&request.pod, names)?;
    Ok(request)
}

/// Checks a promise.
///
/// # Errors
/// Fails if a field is out of its range or names another member or pod; the text says which.
pub(super) fn check_reply(reply: PromiseReply) -> Result<PromiseReply, String> {
    check_member("member", &reply.member)?;
    Ok(reply)
}

/// Checks a holder's request.
///
/// # Errors
/// Fails if a field is out of its range or names another member or pod; the text says which.
pub(super) fn check_failsafe_request(request: FailsafeRequest, names: &Names) -> Result<FailsafeRequest, String> {
    check_pod(&request.pod, names)?;
    Ok(request)
}

/// Checks the answer to a holder.
///
/// # Errors
/// Fails if a field is out of its range or names another member or pod; the text says which.
pub(super) fn check_failsafe_reply(reply: FailsafeReply) -> Result<FailsafeReply, String> {
    check_member("member", &reply.member)?;
    Ok(reply)
}

/// Checks a pooler's question. Whoever signs it is nobody.
///
/// # Errors
/// Fails if the pod's name is none.
pub(super) fn check_pooler((request, _): (PoolerRequest, Option<String>)) -> Result<PoolerRequest, String> {
    match request.pod.len() {
        1..=LONGEST_NAME => Ok(request),
        _ => Err(format!("pod: {} is no name of a pod", shown(&request.pod))),
    }
}

/// The most bytes of a pod's name.
const LONGEST_NAME: usize = 253;

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

/// The most characters of an invalid name that an error quotes.
const SHOWN: usize = 64;

fn shown(name: &str) -> String {
    format!("{:?}", name.chars().take(SHOWN).collect::<String>())
}

#[cfg(test)]
mod tests;
