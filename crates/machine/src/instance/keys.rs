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
mod tests {
    use super::super::fixtures::*;
    use super::super::members::SILENT;
    use super::super::*;
    use super::*;
    use crate::protocol::{Epoch, FailsafeReply, FailsafeRequest, PromiseReply, PromiseRequest, ReportReply};
    use crate::timing::BootTime;

    const NOW: BootTime = BootTime(1_200);
    const KEY: &str = "key-1";

    fn one() -> MemberId {
        primary().peers["orders-1"].report.member.clone()
    }

    /// `orders-1` reports to the primary.
    fn reports(
        observed: &mut Observed,
        proven: Proven,
        change: impl FnOnce(&mut MemberReport),
    ) -> Result<ReportReply, String> {
        let mut request = report_request();
        change(&mut request.report);
        heard::report(observed, &settled(), NOW, request, proven)
    }

    fn promise(member: &MemberId) -> PromiseReply {
        PromiseReply {
            member: member.clone(),
            promised: Epoch(2),
            suspects: true,
            position: Some(position()),
        }
    }

    /// Sees that only [`KEY`] is believed, and that nothing is remembered of anything else.
    fn only_its_key_counts<T: std::fmt::Debug>(
        observed: &Observed,
        mut says: impl FnMut(&mut Observed, Proven) -> Result<T, String>,
    ) {
        for proven in [None, Some("key"), Some("")] {
            let mut told = observed.clone();
            let refused = says(&mut told, proven).unwrap_err();
            assert!(refused.contains("signed"), "{refused}");
            assert_eq!(told, *observed, "nothing is remembered: {proven:?}");
        }
        let mut told = observed.clone();
        says(&mut told, Some(KEY)).unwrap();
    }

    #[test]
    fn a_message_counts_only_with_the_key_of_the_member_that_it_names() {
        only_its_key_counts(&primary(), |observed, proven| reports(observed, proven, |_| {}));
        only_its_key_counts(&primary(), |observed, proven| {
            heard::answer(observed, "orders-1".to_owned(), promise(&one()), proven, NOW)
        });
        only_its_key_counts(&primary(), |observed, proven| {
            let reply = FailsafeReply {
                member: one(),
                epoch: Epoch(1),
            };
            heard::leaves_lease(observed, "orders-1".to_owned(), reply, proven, NOW)
        });
        only_its_key_counts(&standby(), |observed, proven| {
            let request = FailsafeRequest {
                epoch: Epoch(1),
                pod: "orders-1".to_owned(),
                lease: "lease".to_owned(),
            };
            heard::holder(observed, NOW, &request, proven)
        });
        only_its_key_counts(&standby(), |observed, proven| {
            let request = PromiseRequest {
                epoch: Epoch(2),
                pod: "orders-1".to_owned(),
                lease: "lease".to_owned(),
            };
            heard::candidate(observed, &request, proven, NOW)
        });
        only_its_key_counts(&standby(), |observed, proven| {
            heard::check_answer(heard::holders_key(observed, NOW).as_deref(), proven)
        });
    }

    #[test]
    fn a_new_member_proves_the_key_that_it_reports_and_keeps_it() {
        let new = MemberId::new(1, "cccc", 9);
        let mut observed = primary();
        let says = |observed: &mut Observed, key: &str, proven: Proven| {
            let (new, key) = (new.clone(), key.to_owned());
            reports(observed, proven, |report| {
                (report.member, report.public_key) = (new, Some(key))
            })
        };
        for proven in [None, Some(KEY)] {
            says(&mut observed, "new", proven).unwrap_err();
        }
        says(&mut observed, "new", Some("new")).unwrap();
        assert_eq!(observed.peers["orders-1"].report.member, new);
        says(&mut observed, "other", Some("other")).unwrap_err();
        says(&mut observed, "new", Some("new")).unwrap();
    }

    #[test]
    fn a_pod_whose_certified_member_is_heard_reports_as_no_other() {
        let new = MemberId::new(1, "cccc", 9);
        let now = 6_200;
        let says = |certified: bool, heard: u64, holding_since: u64| {
            let mut observed = primary();
            if certified {
                certify(&mut observed, &one());
            }
            observed.peers.get_mut("orders-1").unwrap().heard = BootTime(heard);
            observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now);
            let memo = Memo {
                holding_since: Some(BootTime(holding_since)),
                ..settled()
            };
            let mut request = report_request();
            (request.report.member, request.report.public_key) = (new.clone(), Some("new".to_owned()));
            heard::report(&mut observed, &memo, BootTime(now), request, Some("new")).is_ok()
        };
        let silent = now - SILENT;
        assert!(!says(true, silent + 1, 0));
        assert!(says(true, silent, 0), "its volume may have been replaced");
        assert!(!says(true, silent, silent + 1), "a new holder has not heard it yet");
        assert!(says(false, silent + 1, 0), "nobody has vouched for the one before");
    }

    fn certify(observed: &mut Observed, member: &MemberId) {
        let certified = CertifiedKey {
            member: member.clone(),
            key: KEY.to_owned(),
        };
        cluster(observed).certified.insert("orders-1".to_owned(), certified);
    }

    #[test]
    fn what_the_operator_has_certified_counts_before_the_lease_and_without_it() {
        let answers = |observed: &mut Observed, proven| {
            heard::answer(observed, "orders-1".to_owned(), promise(&one()), proven, NOW).is_ok()
        };
        let mut observed = standby();
        record(&mut observed).members.clear();
        assert!(!answers(&mut observed, Some(KEY)), "nobody knows its key");
        certify(&mut observed, &one());
        assert!(answers(&mut observed, Some(KEY)));
        let mut observed = standby();
        record(&mut observed).members.get_mut("orders-1").unwrap().public_key = Some("planted".to_owned());
        assert!(answers(&mut observed, Some("planted")));
        certify(&mut observed, &one());
        assert!(!answers(&mut observed, Some("planted")) && answers(&mut observed, Some(KEY)));
    }
}
