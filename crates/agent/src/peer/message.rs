//! Messages of peers are checked before the machine sees them: what a member says of itself goes into the Lease, which
//! every member and the operator read.

use std::net::IpAddr;

use api::names::Names;
use machine::protocol::{
    FailsafeReply, FailsafeRequest, MemberId, MemberReport, PromiseReply, PromiseRequest, ReportRequest,
};

/// Longest identifier or version, in bytes: a UID has 36.
const SHORT: usize = 64;
/// Longest public key, in bytes: ours has 124.
const KEY: usize = 1024;
/// Longest text in words, in bytes; more is cut off. Nine members with two of them stay far below the 256 KiB that
/// Kubernetes lets an object's annotations have.
const WORDS: usize = 1024;

/// So many names of data that is kept are told.
const KEPT: usize = 4;

/// Checks a report, and cuts its words.
pub(super) fn check_report(mut request: ReportRequest, names: &Names) -> Result<ReportRequest, String> {
    check_pod(&request.pod, names)?;
    let report = &mut request.report;
    check_member(&report.member)?;
    let MemberReport {
        pod_uid,
        address,
        settings,
        public_key,
        server_version,
        agent_version,
        settings_error,
        fault,
        kept,
        impostors,
        ..
    } = report;
    // Only the primary's own count.
    impostors.clear();
    while kept.len() > KEPT {
        kept.pop_last();
    }
    if address.parse::<IpAddr>().is_err() {
        return Err(format!("{address:?} is no address"));
    }
    let short = [
        Some(&*pod_uid),
        Some(&*settings),
        server_version.as_ref(),
        Some(&*agent_version),
    ];
    if short.into_iter().flatten().chain(&*kept).any(|text| text.len() > SHORT)
        || public_key.as_ref().is_some_and(|key| key.len() > KEY)
    {
        return Err("a field is too long".to_owned());
    }
    for words in [settings_error, fault].into_iter().flatten() {
        cut(words);
    }
    Ok(request)
}

/// Checks a candidate's request.
pub(super) fn check_request(request: PromiseRequest, names: &Names) -> Result<PromiseRequest, String> {
    check_pod(&request.pod, names)?;
    Ok(request)
}

/// Checks a promise.
pub(super) fn check_reply(reply: PromiseReply) -> Result<PromiseReply, String> {
    check_member(&reply.member)?;
    Ok(reply)
}

/// Checks a holder's request.
pub(super) fn check_failsafe_request(request: FailsafeRequest, names: &Names) -> Result<FailsafeRequest, String> {
    check_pod(&request.pod, names)?;
    Ok(request)
}

/// Checks the answer to a holder.
pub(super) fn check_failsafe_reply(reply: FailsafeReply) -> Result<FailsafeReply, String> {
    check_member(&reply.member)?;
    Ok(reply)
}

fn check_pod(pod: &str, names: &Names) -> Result<(), String> {
    match names.ordinal(pod).map(|ordinal| names.pod(ordinal)) {
        Some(name) if name == pod => Ok(()),
        _ => Err(format!("{pod:?} is no pod of {}", names.cluster())),
    }
}

fn check_member(member: &MemberId) -> Result<(), String> {
    match MemberId::parse(member.as_str()) {
        Some(_) => Ok(()),
        None => Err(format!("{:?} is no member", member.as_str())),
    }
}

fn cut(words: &mut String) {
    if words.len() > WORDS {
        let end = (0..=WORDS).rev().find(|end| words.is_char_boundary(*end));
        words.truncate(end.unwrap_or_default());
        words.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(change: impl FnOnce(&mut serde_json::Value)) -> Result<ReportRequest, String> {
        let mut value = serde_json::json!({
            "epoch": 3, "pod": "orders-1",
            "report": {"podUid": "u", "member": "cdb_1_1a2b3c4d_00000007", "address": "10.0.0.2", "state": "Waiting",
                       "settings": "s", "agentVersion": "0"},
        });
        change(&mut value);
        let request = serde_json::from_value(value).expect("a report");
        check_report(request, &Names::new("orders"))
    }

    #[test]
    fn only_pods_and_members_of_the_cluster_report() {
        assert!(report(|_| {}).is_ok());
        for pod in ["others-1", "orders", "orders-", "orders-x", "orders-1-1", "orders-01"] {
            assert!(report(|value| value["pod"] = pod.into()).is_err(), "{pod}");
        }
        for member in ["postgres", "cdb_1\"; DROP ROLE", ""] {
            assert!(
                report(|value| value["report"]["member"] = member.into()).is_err(),
                "{member}"
            );
        }
        assert!(report(|value| value["report"]["address"] = "orders-1".into()).is_err());
    }

    #[test]
    fn long_words_are_cut_and_other_long_fields_refused() {
        let long = "ä".repeat(2_000);
        let cut = report(|value| value["report"]["fault"] = long.as_str().into()).expect("a report");
        let fault = cut.report.fault.expect("a fault");
        assert!(fault.len() < WORDS + 8 && fault.ends_with('…'));
        assert!(report(|value| value["report"]["podUid"] = long.as_str().into()).is_err());
        assert!(report(|value| value["report"]["kept"] = [long.as_str()].as_slice().into()).is_err());
        let many = report(|value| value["report"]["kept"] = ["1", "2", "3", "4", "5"].as_slice().into());
        assert_eq!(many.expect("a report").report.kept.len(), KEPT);
        assert!(report(|value| value["report"]["publicKey"] = long.as_str().into()).is_err());
    }
}
